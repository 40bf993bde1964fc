"""`kvorum watch | enqueue | listen`."""

import asyncio
import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable
from datetime import timedelta

import click

import kvorum
from kvorum.cli import notation
from kvorum.cli.entries import entry_json
from kvorum.cli.session import (
    USAGE,
    Duration,
    Options,
    database_options,
    echo,
    fail,
    print_json,
    require_existing,
    runs,
)

_COUNT = click.option("--count", type=click.IntRange(min=1), help="End after so many; default: when interrupted.")


# ---- watch


@click.command("watch")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--prefix", is_flag=True, help="Print every change below the one key, commit by commit.")
@click.option("--since", metavar="VERSIONSTAMP", help="With --prefix: go on after this commit; default: from now on.")
@click.option("--keys-only", is_flag=True, help="With --prefix: leave the values out.")
@_COUNT
@database_options
@runs
async def watch_command(
    options: Options, keys: tuple[str, ...], prefix: bool, since: str | None, keys_only: bool, count: int | None
) -> int | None:
    """Print the entries of keys, together, now and whenever one of them changes.

    With --prefix, print every change of what lies below one key. Changes are kept for a while: the versionstamp in the
    last line is where another --since may go on.
    """
    wanted = [options.key(text) for text in keys]
    if prefix and len(wanted) > 1:
        fail(USAGE, "--prefix takes one key")
    if not prefix and (since is not None or keys_only):
        fail(USAGE, f"{'--keys-only' if since is None else '--since'} goes with --prefix")
    require_existing(options)
    if prefix:
        await _watch_prefix(options, wanted[0], since, keys_only, count)
        return None
    async with options.open() as kv:
        seen = 0
        async for entries in kv.watch(wanted):
            if options.as_json:
                print_json([entry_json(entry) for entry in entries])
            else:
                for entry in entries:
                    echo(_line(entry, options))
            seen += 1
            if seen == count:
                break
    return None


async def _watch_prefix(
    options: Options, prefix: kvorum.Key, since: str | None, keys_only: bool, count: int | None
) -> None:
    async with options.open() as kv:
        seen = 0
        async for commit in kv.watch_prefix(prefix, since=since, keys_only=keys_only):
            if options.as_json:
                print_json(_commit_json(commit))
            else:
                for change in commit.changes:
                    value = f"  {options.shown_value(change.value)}" if change.kind == "set" and not keys_only else ""
                    echo(f"{change.kind:6} {options.shown_key(change.key)}{value}  {change.versionstamp}")
            seen += commit.complete
            if seen == count:
                break


def _commit_json(commit: kvorum.Changes) -> dict[str, object]:
    changes = [
        {"kind": change.kind, "key": notation.key_json(change.key), "value": notation.value_json(change.value)}
        for change in commit.changes
    ]
    return {"versionstamp": commit.versionstamp, "complete": commit.complete, "changes": changes}


def _line(entry: kvorum.Entry, options: Options) -> str:
    key = options.shown_key(entry.key)
    if entry.versionstamp is None:
        return f"{key}  absent"
    return f"{key}  {options.shown_value(entry.value)}  {entry.versionstamp}"


# ---- enqueue


_QUEUE = click.option("--queue", default="", metavar="NAME", help="A queue of that name; default: the nameless one.")


@click.command("enqueue")
@click.argument("value", metavar="MESSAGE")
@_QUEUE
@click.option("--delay", type=Duration(), help="Deliver it after this time: 10s, 5m; a bare number is milliseconds.")
@click.option(
    "--if-undelivered", multiple=True, metavar="KEY", help="Set this key to the message if nobody can handle it."
)
@database_options
@runs
async def enqueue_command(
    options: Options, value: str, queue: str, delay: timedelta | None, if_undelivered: tuple[str, ...]
) -> int | None:
    """Put a message into the queue."""
    message = options.value(value)
    keys = [options.key(text) for text in if_undelivered]
    async with options.open() as kv:
        done = await kv.enqueue(message, queue=queue, delay=delay, keys_if_undelivered=keys)
    if options.as_json:
        print_json({"ok": done.ok, "versionstamp": done.versionstamp})
    else:
        echo(done.versionstamp)
    return None


# ---- listen


@click.command("listen")
@_QUEUE
@_COUNT
@database_options
@runs
async def listen_command(options: Options, queue: str, count: int | None) -> int | None:
    """Take messages from the queue and print them; a printed one is done."""
    require_existing(options)
    taken = 0
    enough = asyncio.Event()
    never = asyncio.Event()
    broken: list[OSError] = []

    async def handle(message: object) -> None:
        nonlocal taken
        if enough.is_set():
            await never.wait()  # cancelled below: it goes back to the queue
        try:
            if options.as_json:
                print_json(notation.value_json(message))
            else:
                echo(options.shown_value(message))
        except OSError as error:
            broken.append(error)
            enough.set()
            await never.wait()  # not printed, so not done
        taken += 1
        if taken == count:
            enough.set()

    _tell_when_nobody_reads(enough.set)
    async with options.open() as kv:
        if enough.is_set():
            return None
        listening = asyncio.create_task(kv.listen_queue(handle, queue=queue, concurrency=1, prefetch=0))
        ending = asyncio.create_task(enough.wait())
        await asyncio.wait([listening, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if enough.is_set():
            # The last message is acknowledged all the same; one that came after it goes back to the queue.
            listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    if broken:
        raise broken[0]
    return None


def _tell_when_nobody_reads(gone: Callable[[], None]) -> None:
    """Call back as soon as the reader of our output has ended (`kvorum listen | head`).

    To find out by printing is too late: a message that was taken, and cannot be printed, has used up an attempt.
    """
    try:
        if sys.stdout is None or not stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
            return
    except (OSError, ValueError):
        return  # not a file at all, as in tests
    descriptor, loop = sys.stdout.fileno(), asyncio.get_running_loop()
    now = select.poll()
    now.register(descriptor, 0)
    if now.poll(0):
        # Before the loop looks for the first time, a message may be taken.
        gone()
        return

    def closed() -> None:
        # The writing end of a pipe is never readable: this is the error condition that its closing leaves.
        loop.remove_reader(descriptor)
        gone()

    loop.add_reader(descriptor, closed)
