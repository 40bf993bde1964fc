"""`kvorum certs …`: a CA, and certificates of nodes and clients, in files."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from kvorum import certificates, errors
from kvorum.cli.interrupts import ends_by_signals
from kvorum.cli.session import UNAVAILABLE, USAGE, drop_stdout, echo, fail, print_json

P = ParamSpec("P")
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("certs")
def certs_group() -> None:
    """Make and show certificates for TLS.

    \b
    kvorum certs ca DIR                                          once; ca.key stays off the nodes
    kvorum certs node DIR --id n1 --host n1.example --host 10.0.0.1
    kvorum certs client DIR --name app
    """


def _runs(action: Callable[P, None]) -> Callable[P, None]:
    """Errors become one line and an exit status."""

    @functools.wraps(action)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            ends_by_signals(action)(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_stdout()
        except errors.InvalidArgument as error:
            fail(USAGE, str(error))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "cryptography":
                raise
            fail(USAGE, 'certificates need the extra "node": pip install "kvorum[node]"')
        except OSError as error:
            fail(UNAVAILABLE, f"{error.filename or 'a file'}: {error.strerror or error}")

    return run


_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
_FORCE = click.option("--force", is_flag=True, help="Overwrite files that are there.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _days(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--days", type=click.IntRange(1, certificates.MAX_DAYS), default=default, show_default=True, help="Validity."
    )


@certs_group.command("ca")
@_FOLDER
@click.option("--name", default="kvorum CA", show_default=True, help="Its common name.")
@_days(certificates.CA_DAYS)
@_FORCE
@_JSON
@_runs
def ca_command(folder: Path, name: str, days: int, force: bool, as_json: bool) -> None:
    """Make a CA: DIR/ca.pem for everybody, DIR/ca.key for whoever makes certificates.

    One for each cluster: nodes take every certificate of it that names a node for that node's.
    """
    _say(certificates.make_ca(folder, name=name, days=days, force=force), as_json)


@certs_group.command("node")
@_FOLDER
@click.option("--id", "node_id", required=True, help="The node's id, as in the configuration.")
@click.option("--host", "hosts", multiple=True, help="Host name or address by which it is reached; any number.")
@_days(certificates.DAYS)
@_FORCE
@_JSON
@_runs
def node_command(folder: Path, node_id: str, hosts: tuple[str, ...], days: int, force: bool, as_json: bool) -> None:
    """Make DIR/ID.pem and DIR/ID.key: for tls_cert and tls_key, and for peer_cert and peer_key.

    Never valid for longer than the CA.
    """
    _say(certificates.make_node(folder, node_id=node_id, hosts=hosts, days=days, force=force), as_json)


@certs_group.command("client")
@_FOLDER
@click.option("--name", required=True, help="Whose it is; also the files' name.")
@_days(certificates.DAYS)
@_FORCE
@_JSON
@_runs
def client_command(folder: Path, name: str, days: int, force: bool, as_json: bool) -> None:
    """Make DIR/NAME.pem and DIR/NAME.key, for nodes with tls_client_ca."""
    _say(certificates.make_client(folder, name=name, days=days, force=force), as_json)


@certs_group.command("show")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object for each certificate.")
@_runs
def show_command(file: Path, as_json: bool) -> None:
    """Print what the certificates of FILE say."""
    for number, facts in enumerate(certificates.show(file)):
        if as_json:
            print_json(facts)
            continue
        if number:
            echo("")
        for name, value in facts.items():
            if value not in ([], False):
                shown = ", ".join(value) if isinstance(value, list) else "yes" if value is True else value
                echo(f"{name.replace('_', ' '):<11} {shown}")


def _say(made: certificates.Made, as_json: bool) -> None:
    if as_json:
        print_json({"certificate": str(made.certificate), "key": str(made.key), "expires": made.expires.isoformat()})
    else:
        echo(f"{made.certificate} and {made.key}, valid until {made.expires:%Y-%m-%d}")
