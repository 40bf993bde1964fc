"""`kvorum node`: runs one node of a cluster in this process."""

import sys

import click


@click.command(
    "node",
    # The node knows its own flags; `kvorum node --help` is answered by it.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def node_command(arguments: tuple[str, ...]) -> None:
    """Run one node of a cluster (--config FILE; --help for all settings)."""
    try:
        from kvorum_node.main import main
    except ImportError as error:
        raise click.ClickException(
            f"running a node needs the extra 'node': pip install 'kvorum[node]' ({error})"
        ) from error
    sys.exit(main(arguments))
