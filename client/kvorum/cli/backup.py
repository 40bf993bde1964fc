"""`kvorum backup …`: a database to a file, and back."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, ParamSpec

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.admin import AdminClient
from kvorum.cli.interrupts import completed, ends_by_signals
from kvorum.cli.session import (
    OK,
    UNAVAILABLE,
    USAGE,
    Options,
    cluster_options,
    drop_stdout,
    echo,
    fail,
    file_trouble,
    note,
    print_json,
    runs,
)
from kvorum.cli.stores import store_options
from kvorum.cluster.route import Address, name
from kvorum.target import Cluster, Folder

SILENCE: Final = 60.0
"""Seconds without a sign of the node that makes the backup."""
P = ParamSpec("P")
Show = Callable[[int, int], None]
"""Bytes done, and bytes in all (0: not known)."""


@click.group("backup")
def backup_group() -> None:
    """Back a database up to a file while it is used, and restore it. FILE may be s3://bucket/name.

    `restore` makes the folder of the first node of a NEW cluster; the others join it with empty folders.
    """


# ---- save


@backup_group.command("save")
@click.argument("file", metavar="FILE|-")
@click.option("--node", "node_id", metavar="NODE", help="Which node makes it; by default a follower.")
@click.option("--stale", is_flag=True, help="What the node has, even if no leader confirms that nothing is missing.")
@click.option("--overwrite", is_flag=True, help="Replace FILE, once the new one is whole.")
@cluster_options("10s")
@store_options
@runs
def save_command(
    options: Options, file: str, store: Any, node_id: str | None, stale: bool, overwrite: bool
) -> int | None:
    """Write a backup to FILE, or to standard output (then what is printed goes to standard error).

    A cluster goes on working meanwhile; an embedded database must not be open. FILE appears when it is whole and on the
    disk. What was acknowledged before the command began is in it; the bookmark that is printed says up to which
    versionstamp.
    """
    from kvorum_node.backup import commands

    target = options.target
    if not overwrite and commands.is_there(file, store):
        raise errors.InvalidArgument(f"{file} is there already: choose another name, or --overwrite")
    try:
        with commands.output(file, store, replace=overwrite) as sink, bar("backup") as show:
            if isinstance(target, Folder):
                if target.path is None:
                    raise errors.InvalidArgument("a private database is gone when its process ends")
                header = commands.save_folder(Path(target.path), sink, show)
            else:
                header = completed(_save_cluster(target, options, commands.Saver(sink), show, node_id, stale))
    except BrokenPipeError as error:
        # Elsewhere that means `| head`, and is fine. Nobody may take half a backup for one.
        drop_stdout()
        raise errors.Unavailable("no backup was made: whatever read standard output has gone away") from error
    except OSError as error:
        if file == commands.STANDARD and error.filename is None:
            drop_stdout()
            raise errors.Unavailable(f"no backup was made: writing to standard output: {error}") from error
        raise
    except commands.DAMAGE as error:
        if isinstance(error, errors.KvorumError):
            raise
        raise errors.Unavailable(f"no backup was made: {error}") from error
    told = {"file": file, **header_json(header)}
    if file == commands.STANDARD:
        note(json.dumps(told) if options.as_json else _saved(told))
    elif options.as_json:
        print_json(told)
    else:
        echo(_saved(told))
    return OK


def _saved(told: dict[str, Any]) -> str:
    return (
        f"{told['file']}: {told['size']:,} bytes of state at entry {told['entry']:,}, by node"
        f" {told['node'] or 'local'}, bookmark {told['bookmark']}"
    )


async def _save_cluster(
    target: Cluster, options: Options, saver: Any, show: Show, node_id: str | None, stale: bool
) -> pb.BackupHeader:
    problems: list[str] = []
    async with AdminClient(target.addresses, options.channel_tls, options.shown_token) as client:
        view = await client.members(options.timeout / timedelta(seconds=1))
        for member in candidates(view, node_id):
            address = client.address_of(member)
            if address is None:
                continue
            try:
                await _receive(client, address, saver, show, stale=stale)
                header: pb.BackupHeader = await asyncio.to_thread(saver.finish)
                return header
            except (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded) as error:
                problems.append(str(error))
                if saver.size:
                    break  # the rest must come from the same state
    raise errors.Unavailable(f"no backup was made: {'; '.join(problems) or 'no node can be reached'}")


def candidates(view: pb.MembersResponse, node_id: str | None) -> list[pb.MemberStatus]:
    """The nodes to be asked, in order: followers that are up to date, the leader, the rest. Errors: InvalidArgument."""
    members = [member for member in view.members if node_id in (None, member.node_id)]
    if node_id is not None and not members:
        raise errors.InvalidArgument(f"node {node_id} is not a member")

    def rank(member: pb.MemberStatus) -> tuple[bool, bool, int]:
        return not member.voter, member.node_id == view.leader.node_id, member.lag // 1_000

    return sorted((member for member in members if member.connected or node_id is not None), key=rank)


async def _receive(client: AdminClient, address: Address, saver: Any, show: Show, *, stale: bool) -> None:
    stream = client.stream(address, "Backup", pb.BackupRequest(stale=stale), pb.BackupPart, patience=SILENCE)
    async with aclosing(stream) as parts:  # type: ignore[type-var]
        async for part in parts:
            if part.data:
                try:
                    await asyncio.to_thread(saver.take, part.data)
                except ValueError as error:
                    raise errors.Unavailable(f"{name(address)} sends what is no backup: {error}") from error
            show(saver.size, part.size)


# ---- offline


def offline(function: Callable[P, None]) -> Callable[P, None]:
    """Errors of files and folders become one line and an exit status."""

    def run(*arguments: P.args, **options: P.kwargs) -> None:
        from kvorum_node.backup import commands

        try:
            ends_by_signals(function)(*arguments, **options)
        except errors.InvalidArgument as error:
            fail(USAGE, str(error))
        except BrokenPipeError:
            drop_stdout()  # the reader went away, e.g. `kvorum pitr list | head`
        except (errors.KvorumError, *commands.PROBLEMS) as error:
            fail(USAGE if isinstance(error, (ValueError, FileNotFoundError)) else UNAVAILABLE, file_trouble(error))

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return run


@backup_group.command("show")
@click.argument("file", metavar="FILE|-")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@offline
def show_command(file: str, store: Any, as_json: bool) -> None:
    """Say what FILE is a backup of. Only its first part is read: see `verify`."""
    from kvorum_node.backup import commands

    _print_facts(header_json(commands.show(file, store)), as_json)


@backup_group.command("verify")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder for a copy of the state while it is read; by default FILE's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@offline
def verify_command(file: str, store: Any, scratch: Path | None, as_json: bool) -> None:
    """Read FILE to its end, open the state in it, and compare all its rows with its content hash."""
    from kvorum_node.backup import commands

    with bar("verify") as show:
        checked = commands.verify(file, scratch, show, store)
    _print_facts({**header_json(checked.header), "verified": True}, as_json)


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        shown = value if isinstance(value, (bool, str)) else f"{value:,}"
        echo(f"{key.replace('_', ' '):14} {shown}")


_NODE_OPTIONS: Final = (
    click.option("--embedded", is_flag=True, help="Make an embedded database instead of a node's folder."),
    click.option("--client-address", default="", metavar="HOST:PORT", help="Where clients reach the node."),
    click.option("--peer-address", default="", metavar="HOST:PORT", help="Where the other nodes reach it."),
    click.option("--node-id", default="", metavar="ID", help="The node's id."),
    click.option("--data-dir", type=click.Path(path_type=Path), help="The folder to be made; missing or empty."),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The node's configuration, in place of the four options above.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def node_options(function: Callable[P, None]) -> Callable[P, None]:
    """Which folder a restore makes."""
    for option in reversed(_NODE_OPTIONS):
        function = option(function)
    return function


@backup_group.command("restore")
@click.argument("file", metavar="FILE|-")
@node_options
@store_options
@offline
def restore_command(file: str, store: Any, as_json: bool, **where: Any) -> None:
    """Make the folder of the first node of a NEW cluster from FILE.

    Start that node with the folder, then let the others in, with empty folders: `kvorum node --join` and `kvorum
    cluster add`. With --embedded: make an embedded database in --data-dir.

    The new cluster has an id of its own, so clients of the old one do not go on with it by mistake, and its
    versionstamps are larger than all that the old one has given. Messages that were in a consumer's hands come back
    after a lease.
    """
    from kvorum_node.backup import commands

    folder, member = restore_place(**where)
    with bar("restore") as show:
        restored = commands.restore(file, folder, member, progress=show, store=store)
    print_restored(restored, folder, member, as_json)


def restore_place(
    config: Path | None, data_dir: Path | None, node_id: str, peer_address: str, client_address: str, embedded: bool
) -> tuple[Path, Any]:
    """The folder, and the node; None for an embedded database. Errors: InvalidArgument, ValueError."""
    from kvorum_node.backup import commands

    if not embedded:
        return commands.place(config, data_dir, node_id, peer_address, client_address)
    if config or node_id or peer_address or client_address:
        raise errors.InvalidArgument("an embedded database has no node: give --data-dir alone")
    if data_dir is None:
        raise errors.InvalidArgument("give --data-dir")
    return data_dir, None


def print_restored(restored: Any, folder: Path, member: Any, as_json: bool) -> None:
    """What was made, and what to do next."""
    facts = {
        "data_dir": str(folder),
        "node": None if member is None else member.node_id,
        "cluster": restored.cluster_id.hex(),
        "entry": restored.entry,
        "time": moment(restored.time_ms),
        "keys": restored.keys,
        "messages": restored.messages,
        "bookmark": restored.bookmark.hex(),
        "content_hash": restored.old_hash.hex(),
    }
    if as_json:
        print_json(facts)
        return
    echo(
        f"{folder}: {restored.keys:,} keys and {restored.messages:,} messages as of {facts['time']}"
        f" (entry {restored.entry:,}), cluster {facts['cluster']}"
    )
    if member is not None:
        note(
            f"start node {member.node_id} with it; then let the others in: `kvorum node --join` with empty folders, and"
            " `kvorum cluster add`. No node of the old cluster may run any more: who asks one goes on with it"
        )


# ---- shown


def moment(unix_ms: int) -> str:
    """A time for people and programs."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


def header_json(header: pb.BackupHeader) -> dict[str, Any]:
    """A backup's header as JSON data."""
    return {
        "format": header.format,
        "cluster": header.cluster_id.hex(),
        "node": header.node_id,
        "entry": header.index,
        "term": header.term,
        "time": moment(header.time_ms),
        "made": moment(header.made_ms),
        "bookmark": header.bookmark.hex(),
        "content_hash": header.content_hash.hex(),
        "data_format": header.data_format,
        "size": header.size,
        "version": header.version,
    }


@contextmanager
def bar(what: str) -> Iterator[Show]:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, size: None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, size: progress.update(task, completed=done, total=size or None)
