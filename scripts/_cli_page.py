"""Writes docs/cli.md from the commands themselves; `--check` only compares. Run as `scripts/cli-page`."""

import inspect
from collections.abc import Collection, Iterator
from pathlib import Path

import click

from kvorum.cli.group import kvorum
from kvorum.cli.session import STATUSES

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# Command line

Made by `scripts/cli-page` from the commands themselves: change the source, not this page.

`pip install "kvorum[cli]"` brings the command `kvorum`; with the extra `node` as well it opens folders and runs nodes.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups aside."""
    yield from _below("kvorum", kvorum)


def _below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command, info_name=name)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        if found is not None and not found.hidden:
            yield from _below(f"{name} {word}", found)


def usage(name: str, command: click.Command) -> str:
    """`kvorum get [OPTIONS] KEY...`."""
    return " ".join([name, *command.collect_usage_pieces(click.Context(command, info_name=name))])


def description(command: click.Command) -> str:
    """Its help: paragraphs that click wraps, and blocks after `\\b` that stay as they are."""
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    shown = []
    for part in parts:
        shown.append("```\n" + part.removeprefix("\b\n") + "\n```" if part.startswith("\b") else " ".join(part.split()))
    return escaped("\n\n".join(shown))


def escaped(text: str) -> str:
    """Angle brackets are no HTML, and bars no cells; blocks of code stay as they are."""
    return "\n\n".join(
        part if part.startswith("```") else part.replace("<", "&lt;").replace("|", "\\|") for part in text.split("\n\n")
    )


def option_rows(command: click.Command) -> list[str]:
    """A line of the table for each option."""
    context = click.Context(command)
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    return [f"| `{names}` | {escaped(' '.join(text.split()))} |\n" for names, text in records]


def section(name: str, command: click.Command, common: Collection[str]) -> str:
    """What the page says of one command, but for the options that it has in common with most."""
    parts = [f"\n### {name}\n\n```\n{usage(name, command)}\n```\n\n{description(command)}\n"]
    rows = [row for row in option_rows(command) if row not in common]
    if rows:
        parts.append("\n| option | |\n| --- | --- |\n" + "".join(rows))
    return "".join(parts)


def page() -> str:
    """The whole of docs/cli.md."""
    every = list(commands())
    common = [row for row in option_rows(dict(every)["kvorum get"]) if row in option_rows(dict(every)["kvorum list"])]
    parts = [HEAD, "\n## Exit status\n\n| status | means |\n| --- | --- |\n"]
    parts += [f"| {status} | {escaped(meaning)} |\n" for status, meaning in STATUSES.items()]
    parts.append(f"\n## Keys, values, database\n\n{description(kvorum)}\n\nMost commands have these options:\n\n")
    parts.append("| option | |\n| --- | --- |\n" + "".join(common))
    group = ""
    for name, command in every:
        words = name.split()
        heading = f"kvorum {words[1]}" if len(words) > 2 else "Commands"
        if heading != group:
            group = heading
            parts.append(f"\n## {heading}\n")
        parts.append(section(name, command, common))
    return "".join(parts)


if __name__ == "__main__":
    from _page import write

    write(PAGE, page(), "the commands say", "scripts/cli-page")
