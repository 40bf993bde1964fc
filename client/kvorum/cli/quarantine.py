"""`kvorum cluster quarantine`: offline, on one node's folder."""

from pathlib import Path

import click

from kvorum.cli.cluster import cluster_group
from kvorum.cli.session import USAGE, echo, fail, print_json


@cluster_group.command("quarantine")
@click.argument("index", type=click.IntRange(1, (1 << 63) - 1))
@click.argument("number", type=click.IntRange(0, 65_535))
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The node's folder; the node must not run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quarantine_command(index: int, number: int, data_dir: Path, as_json: bool) -> None:
    """Have a node skip one commit that it cannot apply: commit NUMBER of the log's entry INDEX.

    The node's log names both when it stops. Do the same on every node, before it applies that entry: otherwise their
    states differ.
    """
    from kvorum_node.quarantine import QuarantineError, add

    try:
        listed = add(data_dir, index, number)
    except (QuarantineError, OSError) as error:
        fail(USAGE, str(error))
    if as_json:
        print_json({"data_dir": str(data_dir), "skipped": [[one.entry, one.number] for one in listed]})
        return
    echo(f"{data_dir} skips from its next start on: {', '.join(map(str, listed))}")
