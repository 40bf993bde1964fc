"""Writes docs/configuration.md from the table of a node's settings; `--check` only compares. Run as
`scripts/configuration`."""

from pathlib import Path
from typing import Any

from kvorum_node.config import SETTINGS, Setting

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration of a node

Made by `scripts/configuration` from `kvorum_node.config`: change the source, not this page.

A node is started with `kvorum node --config FILE`. The file is TOML; every key can also be given as a variable and as a
flag, and the later of *file, variable, flag* wins:

| in the file | variable | flag |
| --- | --- | --- |
| `lease_ms = 30000` | `KVORUM_LEASE_MS=30000` | `--lease-ms 30000` |

What is misspelt or has another unit is refused by name, with the line of the file and a guess at what was meant; what
nobody knows as a variable, and is like no setting, is logged. `kvorum node --check-config --config FILE` says whether a
file is right without starting anything (exit status 0 or 78, as at a start), and `kvorum doctor --config FILE` looks at
the machine as well. Paths in a file are relative to that file. `kv_connect_token` is the one key that is no flag:
arguments of processes are shown to everybody on a machine.

```toml
node_id = "n1"
data_dir = "/var/lib/kvorum/n1"

[[members]]                    # the same list on every node
id = "n1"
peer = "10.0.0.1:7403"         # where the other nodes reach it
client = "10.0.0.1:7401"       # where clients reach it

[[members]]
id = "n2"
peer = "10.0.0.2:7403"
client = "10.0.0.2:7401"

[[members]]
id = "n3"
peer = "10.0.0.3:7403"
client = "10.0.0.3:7401"
```

Once a cluster has formed, its members are what its log says, and the list only tells where to look for them:
`kvorum cluster` changes them ([Running a cluster](operations.md)).

## Settings

| key | default | |
| --- | --- | --- |
"""


def shown_default(setting: Setting) -> str:
    """The default as it would stand in the file; empty: there is none."""
    value: Any = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def row(setting: Setting) -> str:
    """One line of the table."""
    text = setting.help.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{setting.name}` | {shown_default(setting)} | {text} |\n"


def page() -> str:
    """The whole of docs/configuration.md."""
    return HEAD + "".join(map(row, SETTINGS))


if __name__ == "__main__":
    from _page import write

    write(PAGE, page(), "kvorum_node.config says", "scripts/configuration")
