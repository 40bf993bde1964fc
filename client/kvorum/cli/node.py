"""`kvorum node`: runs one node of a cluster in this process."""

import sys
from typing import Final

import click
from click.shell_completion import CompletionItem

from kvorum.cli.session import fail, missing_extra

REFUSED: Final = 78
"""The exit status of a node that cannot start."""


class NodeCommand(click.Command):
    """The node knows its own flags: click passes all on, and is told what it may complete."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of flags; none where nodes are not installed."""
        try:
            from kvorum_node.config import SETTINGS
        except ImportError:
            return []
        flags = {"--config": "", "--check-config": "", "--help": "", "--version": ""}
        flags |= {setting.flag: setting.help for setting in SETTINGS if not setting.secret}
        return [CompletionItem(flag, help=text) for flag, text in flags.items() if flag.startswith(incomplete)]


def _files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


@click.command(
    "node",
    cls=NodeCommand,
    # `kvorum node --help` is answered by the node.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_files)
def node_command(arguments: tuple[str, ...]) -> None:
    """Run one node of a cluster (--config FILE; --help for all settings)."""
    try:
        from kvorum_node.main import main
    except ModuleNotFoundError as error:
        fail(REFUSED, missing_extra(error))
    sys.exit(main(arguments))
