"""Writes docs/limits.md from client/kvorum/limits.py; `--check` only compares. Run as `scripts/limits`."""

import ast
from pathlib import Path
from typing import Any

from kvorum import limits
from kvorum_node.stock_texts import LIMITS as STOCK_TEXTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "limits.md"
TIMES = (
    *("DELAY", "INTERVAL", "EXPIRE_IN", "LEASE", "IDLE", "TIMEOUT", "BACKOFF"),
    *("WAIT", "RETENTION", "DEDUP_WINDOW", "GRACE"),
)
SPANS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
HEAD = """# Limits

Made by `scripts/limits` from `kvorum.limits`: change the source, not this page.

What exceeds a limit is refused before anything happens: `kvorum.errors.LimitExceeded` has the name of the limit
(`limit`), its value (`allowed`) and what was asked for (`got`). The client checks first, a node checks again. Over KV
Connect the answer is HTTP 400 with the text of the stock server; those texts are at the end of the page.
"""


def sections(source: str) -> list[tuple[str, list[tuple[str, Any, str]]]]:
    """Headings with their limits: name, value, explanation."""
    lines = enumerate(source.splitlines(), 1)
    headings = {number: line.removeprefix("# ---- ") for number, line in lines if line.startswith("# ---- ")}
    found: list[tuple[str, list[tuple[str, Any, str]]]] = []
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        heading = headings[max(number for number in headings if number < node.lineno)]
        if not found or found[-1][0] != heading:
            found.append((heading, []))
        if not (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            raise SystemExit(f"kvorum.limits.{node.target.id} has no string below it that says what it limits")
        text = " ".join(following.value.value.split())
        found[-1][1].append((node.target.id, getattr(limits, node.target.id), text))
    return found


def shown(name: str, value: Any) -> str:
    """A value with its unit, and in a larger one where that is exact."""
    if isinstance(value, tuple):
        return ", ".join(shown(name, part) for part in value)
    if name.endswith(("_SIZE", "_BYTES")) and not name.endswith("BATCH_SIZE"):
        return f"{value:,} bytes" + (f" ({value // 1024:,} KiB)" if value % 1024 == 0 and value >= 4096 else "")
    if name.endswith(TIMES):
        for size, unit in SPANS:
            if value % size == 0 and value // size < 10_000:
                return f"{value:,} ms ({value // size:,} {unit}{'s' * (value != size)})"
        return f"{value:,} ms"
    return f"{value:,}"


def page() -> str:
    """The whole of docs/limits.md."""
    parts = [HEAD]
    for heading, rows in sections(Path(limits.__file__).read_text()):
        parts.append(f"\n## {heading}\n\n| name | value | |\n| --- | --- | --- |\n")
        parts += [f"| `{name}` | {shown(name, value)} | {text} |\n" for name, value, text in rows]
    parts.append("\n## Texts over KV Connect\n\n| limit | text |\n| --- | --- |\n")
    parts += [f"| `{name}` | {text} |\n" for name, text in STOCK_TEXTS.items()]
    return "".join(parts)


if __name__ == "__main__":
    from _page import write

    write(PAGE, page(), "kvorum.limits says", "scripts/limits")
