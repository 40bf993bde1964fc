"""The code blocks and commands of the pages: each is of a kind that something tries, and names only what there is.

Python of the pages about keys and queues runs in tests/integration/api/test_documents.py, the quickstart and the
runbooks run as a whole in their own tests; here is what all others have to hold to.
"""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

import kvorum
from kvorum.cli.group import kvorum as kvorum_command
from kvorum_node import main as node
from kvorum_node.config import SETTINGS, load

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if page.name != "CHANGELOG.md")
KINDS = {"", "python", "sh", "console", "toml", "ts"}
RUN_ELSEWHERE = {"README.md", "docs/queues.md", "docs/kv-semantics.md", "docs/tracing.md"}
"""Their Python is run against databases, or in a process of its own, by other tests."""
Block = tuple[str, str, str]
"""Page, language, text."""


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            found.append((page.relative_to(ROOT).as_posix(), kind, text))
    return found


def command_lines() -> list[tuple[str, str]]:
    """What the pages have people type that begins with `kvorum`: page and line. Without the
    page that is made from the commands, and the quickstart, which is run."""
    found = []
    for page, kind, text in blocks():
        if kind in {"", "sh", "console"} and page not in {"docs/cli.md", "docs/quickstart.md"}:
            for line in text.splitlines():
                if kind == "sh" or line.startswith("$ "):
                    parts = line.removeprefix("$ ").split("; ")
                    found += [(page, part) for part in parts if part.startswith("kvorum ")]
    return found


def named_commands() -> list[tuple[str, str]]:
    """Commands that stand in the text, like `kvorum queue list`."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        names = re.findall(r"`(kvorum [a-z][^`]*)`", text)
        found += [(page.relative_to(ROOT).as_posix(), " ".join(name.split())) for name in names]
    return found


def resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command, or group, that is named, and what is left for it."""
    command: click.Command = kvorum_command
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def test_blocks_are_of_known_kinds() -> None:
    found = blocks()
    assert len(found) > 100
    assert {kind for _, kind, _ in found} <= KINDS


@pytest.mark.parametrize(
    ("page", "text"), [(page, text) for page, kind, text in blocks() if kind == "python" and page not in RUN_ELSEWHERE]
)
def test_other_python_runs(page: str, text: str) -> None:
    """It opens what is not there, which is no I/O before it is awaited; so it has to be expressions only."""
    exec(compile(text, page, "exec"), {"kvorum": kvorum})


def test_all_commands_are_found() -> None:
    assert len(command_lines()) > 40
    assert len(named_commands()) > 30


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_line_is_understood(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "node":
        node._parser().parse_args(words[1:])  # ends the test where it does not know a word
        return
    command, rest = resolved(words)
    assert not isinstance(command, click.Group)
    try:
        command.make_context(command.name, rest)
    except click.BadParameter as error:
        assert error.message.endswith("does not exist."), error.message  # a file or folder of the reader's


@pytest.mark.parametrize(("page", "name"), named_commands())
def test_a_command_in_the_text_exists(page: str, name: str) -> None:
    words = [word for word in name.removeprefix("kvorum ").split() if word not in {"…", "..."}]
    if words[0] == "node":
        known = {option for action in node._parser()._actions for option in action.option_strings}
    else:
        command, words = resolved(words)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.rstrip(",;:") for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, kind, text in blocks() if kind == "toml"])
def test_settings_are_known(page: str, text: str) -> None:
    assert set(tomllib.loads(text)) <= {setting.name for setting in SETTINGS}


def test_the_page_of_settings_has_a_whole_file(tmp_path: Path) -> None:
    (text,) = [text for page, kind, text in blocks() if kind == "toml" and page == "docs/configuration.md"]
    file = tmp_path / "n1.toml"
    file.write_text(text + "insecure = true\n" if "[[" not in text else "insecure = true\n" + text)
    config = load(file, {}, {})
    assert config.node_id == "n1"
    assert [member.node_id for member in config.members] == ["n1", "n2", "n3"]
