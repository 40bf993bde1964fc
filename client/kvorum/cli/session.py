"""What all commands share: options, opening the database, errors and exit statuses, printing."""

import contextlib
import functools
import io
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn, ParamSpec

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import kvorum
from kvorum import errors, tokens
from kvorum.cli import notation
from kvorum.cli.interrupts import INTERRUPTED, TERMINATED, completed, interruptible, status_of
from kvorum.keys import Key
from kvorum.target import Cluster, Folder, parse_target
from kvorum.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, NAME_VARIABLE, ChannelTls, Tls
from kvorum.visible import visible

OK: Final = 0
NOT_FOUND: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
UNKNOWN: Final = 4

STATUSES: Final[Mapping[int, str]] = {
    OK: "done",
    NOT_FOUND: "not found, or a check failed: nothing was changed; of `kvorum doctor`: a check says FAIL",
    USAGE: "wrong usage, or else nothing that repeating would mend",
    UNAVAILABLE: "unavailable: certainly nothing was applied; try again",
    UNKNOWN: "unknown outcome: it may or may not have been applied; look",
    70: "`kvorum node`: stopped by a fault of the disk or the state",
    73: "`kvorum node`: the disk is full",
    78: "`kvorum node`: refused to start; the line says why",
    INTERRUPTED: "interrupted by Ctrl-C; a write may or may not have been applied (`kvorum node` ends with 0)",
    TERMINATED: "the same, by SIGTERM",
}
"""What a program that calls `kvorum` needs to know of its exit status."""

_UNMENDABLE: Final = (
    errors.InvalidArgument,
    errors.TypeMismatch,
    errors.OutOfRange,
    errors.Compacted,
    errors.WrongCluster,
    errors.Unauthenticated,
    errors.PermissionDenied,
)
"""To repeat the same command would be in vain."""

UNBOUNDED_WIDTH: Final = 100_000
"""Columns of a table that does not go to a terminal: nothing is cut or folded."""
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


P = ParamSpec("P")


class Duration(click.ParamType[timedelta]):
    """`500ms`, `2s`, `1.5h`, or a number of milliseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """See `click.ParamType.convert`."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration; write 500ms, 2s, 5m, 1.5h, 7d or a number of milliseconds", param)
        try:
            return timedelta(milliseconds=float(match[1]) * _UNITS[match[2] or "ms"])
        except OverflowError:
            self.fail(f"{value!r} is too long", param)


@dataclass(frozen=True)
class Options:
    """What was asked for, whatever the command."""

    url: str
    timeout: timedelta
    as_json: bool
    python: bool
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)

    def open(self) -> kvorum.Opening:
        """The database, about to be opened."""
        return kvorum.open_kv(self.url, timeout=self.timeout, tls=self.tls, token=self.token)

    @property
    def shown_token(self) -> str:
        """For calls of one's own; empty: none. Errors: InvalidArgument."""
        return self.token or tokens.from_environment(os.environ) or ""

    @property
    def channel_tls(self) -> ChannelTls | None:
        """For connections to nodes of one's own; None: without TLS."""
        return None if self.tls is None else ChannelTls(self.tls)

    @property
    def target(self) -> Folder | Cluster:
        """The parsed --url."""
        return parse_target(self.url, os.environ)

    def key(self, text: str) -> Key:
        """A key argument."""
        return notation.parse_key(text, python=self.python)

    def value(self, text: str) -> object:
        """A value argument."""
        return notation.parse_value(text, python=self.python)

    def shown_key(self, key: Key) -> str:
        """A key for people, to be pasted back."""
        return notation.show_key(key, python=self.python)

    def shown_value(self, value: object) -> str:
        """A value for people."""
        return notation.show_value(value, python=self.python)


Action = Callable[..., Coroutine[Any, Any, int | None]] | Callable[..., int | None]
"""The body of a command; returns its exit status. A plain function is for work that no event loop may wait for: Ctrl-C
stops it where it is."""


def runs(action: Action) -> Callable[..., None]:
    """Make a function the body of a click command: errors become one line and an exit status."""
    return _runs(action, url_is_needed=True)


def runs_without_url(action: Action) -> Callable[..., None]:
    """The same; the `url` of its options may be empty."""
    return _runs(action, url_is_needed=False)


def _runs(action: Action, *, url_is_needed: bool) -> Callable[..., None]:
    @functools.wraps(action)
    def run(
        url: str | None,
        timeout: timedelta,
        as_json: bool,
        python: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key_file: str | None = None,
        server_name: str | None = None,
        token: str | None = None,
        token_file: str | None = None,
        **arguments: Any,
    ) -> None:
        if not url and url_is_needed:
            fail(USAGE, "which database? give --url, or set KVORUM_URL, to a folder or kvorum://host:port,…")
        try:
            tls = None if ca is None and cert is None and key_file is None else Tls(ca, cert, key_file, server_name)
            token = tokens.read_file(token_file, "--token-file") if token_file else token and tokens.check(token)
        except errors.InvalidArgument as error:
            fail(USAGE, str(error))
        options = Options(url or "", timeout, as_json, python, tls, token)
        sys.exit(_outcome(lambda: action(options, **arguments)))

    return run


def tls_options(function: Callable[P, None]) -> Callable[P, None]:
    """How the nodes are spoken to, and in whose name."""
    for option in (
        click.option("--token", help="Who asks: kvo_…; better $KVORUM_TOKEN or a file, since others see arguments."),
        click.option("--token-file", metavar="FILE", help="The file that holds it; default $KVORUM_TOKEN_FILE."),
        click.option(
            "--server-name",
            envvar=NAME_VARIABLE,
            metavar="NAME",
            help=f"The name that nodes' certificates must have, whatever the address; default ${NAME_VARIABLE}.",
        ),
        click.option(
            "--key", "key_file", envvar=KEY_VARIABLE, metavar="FILE", help=f"Its key; default ${KEY_VARIABLE}."
        ),
        click.option(
            "--cert",
            envvar=CERT_VARIABLE,
            metavar="FILE",
            help=f"Certificate to show to nodes that demand one; default ${CERT_VARIABLE}.",
        ),
        click.option(
            "--ca",
            envvar=CA_VARIABLE,
            metavar="FILE",
            help=f"Speak TLS, and take certificates of this CA ('system': this machine's CAs); default ${CA_VARIABLE}.",
        ),
    ):
        function = option(function)
    return function


def database_options(function: Callable[P, None]) -> Callable[P, None]:
    """The options that every command has."""
    for option in (
        tls_options,
        click.option("--py", "python", is_flag=True, help="Keys and values are Python literals: ('a', 1)."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line."),
        click.option(
            "--timeout",
            type=Duration(),
            default="10s",
            show_default=True,
            help="How long a call may take: 500ms, 5s, 2m; a bare number is milliseconds.",
        ),
        click.option("--url", envvar="KVORUM_URL", help="A folder or kvorum://host:port,…; default $KVORUM_URL."),
    ):
        function = option(function)
    return function


def cluster_options(timeout: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """The options of a command for nodes; `timeout` is the default of all of it."""

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        for option in (
            tls_options,
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
            click.option(
                "--timeout",
                type=Duration(),
                default=timeout,
                show_default=True,
                help="How long all of it may take: 500ms, 5s, 2m; a bare number is milliseconds.",
            ),
            click.option(
                "--url", envvar="KVORUM_URL", help="kvorum://host:port,… of some of the nodes; default $KVORUM_URL."
            ),
        ):
            function = option(function)
        return function

    return decorate


def dry_run_option(function: Callable[P, None]) -> Callable[P, None]:
    """For commands that destroy."""
    return click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")(function)


def print_plan(options: Options, text: str, **facts: object) -> None:
    """What a dry run has found: one line, or an object with `dry_run` and the facts."""
    if options.as_json:
        print_json({"dry_run": True, **facts})
    else:
        echo(text)


def _outcome(action: Callable[[], Coroutine[Any, Any, int | None] | int | None]) -> int:
    try:
        with interruptible():
            done = action()
            status = completed(done) if isinstance(done, Coroutine) else done
            if sys.stdout is not None:
                sys.stdout.flush()
        return status or OK
    except KeyboardInterrupt as interrupt:
        return status_of(interrupt)
    except BrokenPipeError:
        # The reader went away, e.g. `kvorum list | head`.
        drop_stdout()
        return OK
    except errors.OutcomeUnknown as error:
        fail(UNKNOWN, f"unknown outcome: {error}")
    except (errors.StaleLease, errors.MessageGone) as error:
        fail(NOT_FOUND, str(error))
    except _UNMENDABLE as error:
        fail(USAGE, str(error))
    except errors.KvorumError as error:
        fail(UNAVAILABLE, str(error) or type(error).__name__)
    except ModuleNotFoundError as error:
        fail(USAGE, missing_extra(error))
    except OSError as error:
        drop_stdout()
        fail(UNAVAILABLE, file_trouble(error))


def missing_extra(error: ModuleNotFoundError) -> str:
    """What to install, beside the name of a module that Python has missed."""
    if error.name is None or "pip install" in str(error):
        return str(error)  # whoever raised it has said it
    if error.name.startswith("kvorum"):
        raise error  # a fault of ours
    return f'this command needs the extra "node": pip install "kvorum[node]" ({error})'


def drop_stdout() -> None:
    """Python would complain once more about what it could not write when it flushes at exit."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def file_trouble(error: BaseException) -> str:
    """An error as a line; of a file: its name and what is the matter, without a number that says nothing to people."""
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def printable(text: str) -> str:
    """What may go to a terminal, whoever has written it."""
    return visible(text)


def echo(text: object) -> None:
    """A line of the result."""
    click.echo(printable(str(text)))


def fail(status: int, message: str) -> NoReturn:
    """End with one line on stderr."""
    click.echo(printable(f"kvorum: {' '.join(message.split())}"), err=True)
    sys.exit(status)


def require_existing(options: Options) -> None:
    """Reading must not create a database by a slip of the finger."""
    target = options.target
    if isinstance(target, Folder) and target.path is not None and not Path(target.path).exists():
        fail(
            UNAVAILABLE,
            f"there is no database at {target.path}: reading makes none, the first write does; a cluster is"
            " kvorum://host:port,…",
        )


def print_json(data: object) -> None:
    """One line of JSON, at once, so that a pipe's reader sees it."""
    echo(json.dumps(data, ensure_ascii=not _takes_all_characters()))


def _takes_all_characters() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; whole cells, so that keys can be copied."""
    console = _console()
    table = Table(*columns, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def note(text: str) -> None:
    """Something for people that is no result."""
    click.echo(printable(text), err=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """As everywhere else: rich would end the process, with status 1."""
        raise BrokenPipeError


def _console() -> Console:
    # None: it was closed before this program began (`>&-`).
    stdout = sys.stdout if sys.stdout is not None else io.StringIO()
    width = None if stdout.isatty() else UNBOUNDED_WIDTH
    return _Console(file=stdout, width=width, highlight=False, markup=False)
