"""`kvorum pitr …`: any moment that an archive of the log leads to."""

import contextlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.backup import bar, moment, node_options, offline, print_restored, restore_place
from kvorum.cli.cluster import parse_moment
from kvorum.cli.entries import integers_hint
from kvorum.cli.interrupts import completed
from kvorum.cli.session import (
    OK,
    UNAVAILABLE,
    Duration,
    Options,
    database_options,
    dry_run_option,
    echo,
    fail,
    note,
    print_json,
    print_table,
    runs,
    runs_without_url,
    tls_options,
)
from kvorum.cli.stores import ArchivePath, store_options
from kvorum.selector import select

_ARCHIVE: Final = click.argument("archive", metavar="ARCHIVE", type=ArchivePath())
_CLUSTER: Final = click.option(
    "--cluster", default="", metavar="ID", help="Beginning of a cluster's id, if the archive holds several."
)
_SCRATCH: Final = click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder for a copy of the state; by default the one for temporary files.",
)


@click.group("pitr")
def pitr_group() -> None:
    """Point-in-time restore, from an archive that nodes write (their setting `archive`).

    ARCHIVE is that folder, or s3://bucket/prefix.
    """


@pitr_group.command("bookmark")
@database_options
@runs
async def bookmark_command(options: Options) -> int | None:
    """Print the bookmark of now: everything that was acknowledged before can be restored by it.

    Write it down before you do something dangerous.
    """
    async with options.open() as kv:
        answer = await kv._link.backend.read(pb.Read(keys=(b"\x00",)), timeout=kv._link.timeout)
    stamp = answer.read_versionstamp.hex()
    if options.as_json:
        print_json({"bookmark": stamp, "asked": moment(time.time_ns() // 1_000_000)})
    else:
        echo(stamp)
    return OK


@pitr_group.command("list")
@_ARCHIVE
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object for each cluster.")
@store_options
@offline
def list_command(archive: Path | str, store: Any, as_json: bool) -> None:
    """Show what can be restored: bases, and from which entry to which the log leads on from them."""
    from kvorum_node.backup import commands

    found = commands.archived_clusters(commands.place_of(archive, store))
    if not found:
        fail(UNAVAILABLE, f"{archive} holds no archive")
    for catalog in found:
        bases = [(base, catalog.header(base)) for base in catalog.bases]
        runs = catalog.coverage()
        if as_json:
            print_json(_listed(catalog, bases, runs))
            continue
        echo(f"cluster {catalog.cluster_id.hex()}")
        rows = [
            (f"{base.entry:,}", moment(header.time_ms), header.bookmark.hex(), base.node_id, f"{header.size:,}")
            for base, header in bases
        ]
        print_table(("Base of entry", "Time", "Bookmark", "By node", "Bytes"), rows)
        for run in runs:
            echo(f"log: entries {run.first:,} to {run.last:,}")
        for before, after in pairwise(runs):
            note(f"GAP: entries {before.last + 1:,} to {after.first - 1:,} are missing")


def _listed(catalog: Any, bases: list[Any], runs: list[Any]) -> dict[str, Any]:
    return {
        "cluster": catalog.cluster_id.hex(),
        "bases": [
            {
                "entry": base.entry,
                "time": moment(header.time_ms),
                "bookmark": header.bookmark.hex(),
                "node": base.node_id,
                "size": header.size,
            }
            for base, header in bases
        ],
        "log": [list(run) for run in runs],
        "segments": len(catalog.segments),
    }


@pitr_group.command("verify")
@_ARCHIVE
@_CLUSTER
@_SCRATCH
@click.option("--replay", is_flag=True, help="Apply all of it as well, and compare with what the nodes had.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@offline
def verify_command(
    archive: Path | str, store: Any, cluster: str, scratch: Path | None, replay: bool, as_json: bool
) -> None:
    """Read the whole archive: checksums, states, gaps, and whether its parts belong together."""
    from kvorum_node.backup import commands

    catalog = commands.archive(commands.place_of(archive, store), cluster)
    problems = commands.verify_archive(catalog, scratch, replay=replay)
    runs = catalog.coverage()
    gaps = [[before.last + 1, after.first - 1] for before, after in pairwise(runs)]
    if as_json:
        print_json({**_listed(catalog, [], runs), "problems": problems, "gaps": gaps, "replayed": replay})
    else:
        for problem in problems:
            echo(f"DAMAGE: {problem}")
        for first, last in gaps:
            echo(f"GAP: entries {first:,} to {last:,}")
        echo(f"{len(catalog.bases):,} bases, {len(catalog.segments):,} segments: {len(problems):,} problems")
    if problems or gaps:
        found = [f"{len(problems)} files of the archive cannot be used"] if problems else []
        found += [f"{len(gaps)} gaps: no moment within one can be restored"] if gaps else []
        fail(UNAVAILABLE, "; ".join(found))


@pitr_group.command("restore")
@_ARCHIVE
@click.option("--to", "bookmark", default="", metavar="BOOKMARK", help="Up to this commit, and with it.")
@click.option("--time", "at", metavar="TIME", help="Up to this time: 2027-01-31T12:00:00+00:00 or Unix milliseconds.")
@click.option("--latest", is_flag=True, help="All that is in the archive.")
@_CLUSTER
@_SCRATCH
@node_options
@click.option("--prefix", metavar="KEY", help="Only the keys below KEY, into the database of --into, which goes on.")
@click.option("--into", "url", metavar="URL", help="With --prefix: a folder or kvorum://host:port,…")
@dry_run_option
@click.option("--py", "python", is_flag=True, help="KEY is a Python literal.")
@click.option("--timeout", type=Duration(), default="30s", show_default=True, help="How long a call may take.")
@tls_options
@store_options
@runs_without_url
def restore_command(
    options: Options,
    archive: Path | str,
    store: Any,
    bookmark: str,
    at: str | None,
    latest: bool,
    cluster: str,
    scratch: Path | None,
    prefix: str | None,
    dry_run: bool,
    **where: Any,
) -> int | None:
    """Restore the state of a moment.

    All of it: makes the folder of the first node of a NEW cluster, as `kvorum backup restore` does.

    With --prefix and --into: makes the keys below KEY what they were, in a database that goes on meanwhile. Keys that
    came since are deleted; keys elsewhere and queues are left alone. Written in atomic batches, not in one transaction.
    With --dry-run nothing is changed, and the counts are shown.
    """
    from kvorum_node.backup import commands

    if (prefix is None) != (not options.url) or (dry_run and prefix is None):
        raise errors.InvalidArgument("--prefix and --into belong together, and --dry-run to them")
    try:
        wanted = commands.goal(bookmark, _moment(at), latest=latest)
        catalog = commands.archive(commands.place_of(archive, store), cluster)
        if prefix is not None:
            return _put_back(options, catalog, wanted, prefix, scratch, dry_run=dry_run)
        folder, member = restore_place(**where)
        with bar("entries") as show:
            restored = commands.restore_archive(catalog, wanted, folder, member, show)
        print_restored(restored, folder, member, options.as_json)
    except commands.PROBLEMS as error:
        if isinstance(error, (errors.KvorumError, OSError)):
            raise
        raise errors.InvalidArgument(str(error)) from error
    return OK


def _moment(text: str | None) -> int | None:
    return None if text is None else parse_moment(text, time.time_ns() // 1_000_000)


def _put_back(options: Options, catalog: Any, wanted: Any, prefix: str, scratch: Path | None, *, dry_run: bool) -> int:
    from kvorum_node.backup import commands

    selected = select(options.key(prefix), None, None)

    async def work(snapshot: Any) -> Any:
        async with options.open() as kv:
            link = kv._link
            job = commands.PutBack(snapshot, link.backend, selected.start, selected.end, timeout=link.timeout)
            return await (job.compare() if dry_run else job.run())

    with contextlib.ExitStack() as stack:
        with bar("entries") as show:
            snapshot = stack.enter_context(commands.state_of(catalog, wanted, scratch, show))
        counts = completed(work(snapshot))
    if not (counts.set or counts.deleted or counts.same or counts.expired):
        note(f"no key lies below {prefix}, neither then nor now{integers_hint(options.key(prefix), options)}")
    if options.as_json:
        facts = {"set": counts.set, "deleted": counts.deleted, "same": counts.same, "expired": counts.expired}
        print_json({**facts, "done": not dry_run})
        return OK
    verb = "would be" if dry_run else "were"
    echo(
        f"{counts.set:,} keys {verb} set, {counts.deleted:,} deleted; {counts.same:,} are as they were,"
        f" {counts.expired:,} have expired since"
    )
    return OK
