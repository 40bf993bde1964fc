"""`kvorum cluster quarantine`: offline, on one node's folder."""

from pathlib import Path

import click

from kvorum.cli.cluster import cluster_group
from kvorum.cli.session import USAGE, echo, fail


@cluster_group.command("quarantine")
@click.argument("index", type=click.IntRange(1, (1 << 63) - 1))
@click.argument("number", type=click.IntRange(0, 65_535))
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The node's folder; the node must not run.",
)
def quarantine_command(index: int, number: int, data_dir: Path) -> None:
    """Have a node skip one commit that it cannot apply: commit NUMBER of the log's entry INDEX.

    The node's log names both when it stops. Do the same on every node, before it applies that entry: otherwise their
    states differ.
    """
    from kvorum_node.quarantine import QuarantineError, add

    try:
        listed = add(data_dir, index, number)
    except (QuarantineError, OSError) as error:
        fail(USAGE, str(error))
    echo(f"{data_dir} skips from its next start on: {', '.join(map(str, listed))}")
