"""`kvorum top`: a live view of a cluster. It goes on over leader changes and nodes that are gone."""

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.doctor_machine import shown_bytes
from kvorum.cli.policies import shown_duration
from kvorum.cli.queues import stats_json
from kvorum.cli.session import UNAVAILABLE, Duration, Options, cluster_options, print_json, printable, runs
from kvorum.cli.top_view import Look, NodeRow, View, as_json, view
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.cluster.route import Address, name
from kvorum.errors import InvalidArgument, KvorumError
from kvorum.target import Cluster

LEAST_EVERY: Final = 0.2
ANSWER: Final = 1.0
"""Seconds that a node, or the leader with its queues, gets to answer: a view that waits is no live one."""
MOST_QUEUES: Final = 20


@click.command("top")
@click.option("--every", type=Duration(), default="1s", show_default=True, help="How often to look (≥ 200ms).")
@click.option("--once", is_flag=True, help="Look twice, print what was seen once, and end.")
@cluster_options("10s")
@runs
async def top_command(options: Options, every: timedelta, once: bool) -> int | None:
    """Show nodes, leader, lag, rates and queues, again and again; q or Ctrl-C ends it.

    With --json one object for each look; without a terminal, or with --once, one view. No node answers: status 3.
    """
    target = options.target
    if not isinstance(target, Cluster):
        raise InvalidArgument(f"{options.url} is an embedded database: kvorum status shows it")
    pause = max(LEAST_EVERY, every / timedelta(seconds=1))
    async with Watcher(target.addresses, options) as watcher:
        if not options.as_json and not once and sys.stdout.isatty():
            await _live(watcher, pause)
            return None
        async for shown in watcher.views(pause):
            if options.as_json:
                print_json(as_json(shown, lambda stats: stats_json(stats, counts=False)))
            else:
                console = Console(file=sys.stdout, width=120, highlight=False, markup=False)
                with console.capture() as capture:
                    console.print(render(shown))
                click.echo(capture.get().rstrip("\n"))  # with its colours
            if once or not options.as_json:
                return None if any(not row.problem for row in shown.rows) else UNAVAILABLE
    return None


class Watcher:
    """Looks at the nodes of a cluster, one connection each. Use it with `async with`."""

    def __init__(self, addresses: tuple[Address, ...], options: Options) -> None:
        self._addresses = addresses
        self._options = replace(options, timeout=timedelta(seconds=ANSWER))
        self._tls = options.channel_tls
        self._token = options.shown_token
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Address, Connection] = {}
        self._kv: kvorum.Kv | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            await connection.close()
        if self._kv is not None:
            await self._kv.close()

    async def views(self, pause: float) -> AsyncIterator[View]:
        """The first after `pause` seconds, because rates take two looks; then one every `pause` seconds."""
        before = await self.look()
        while True:
            await asyncio.sleep(pause)
            now = await self.look()
            yield view(before, now)
            before = now

    async def look(self) -> Look:
        """Never fails: what gives no answer says why."""
        at = time.monotonic()
        queues, answers = await asyncio.gather(self._queues(), asyncio.gather(*map(self._ask, self._addresses)))
        return Look(at, dict(answers), queues)

    async def _ask(self, address: Address) -> tuple[str, pb.StatusResponse | str]:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(address, self._loop, self._tls)
        try:
            return name(address), await connection.status(ANSWER, self._token)
        except NodeFailed as failure:
            # Its channel would wait longer and longer before it tries again; a new one tries at once.
            del self._connections[address]
            await connection.close()
            return name(address), failure.problem

    async def _queues(self) -> list[kvorum.QueueStats] | None:
        try:
            if self._kv is None:
                self._kv = await self._options.open()
            return await self._kv.queues()
        except KvorumError:
            return None


# ---- on a terminal


async def _live(watcher: Watcher, pause: float) -> None:
    ended = asyncio.Event()
    with _keys(ended), Live(Text("looking …"), screen=True, auto_refresh=False) as live:
        showing = asyncio.ensure_future(_show(watcher, live, pause))
        ending = asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait([showing, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (showing, ending):
                task.cancel()
            await asyncio.wait([showing, ending])
        if showing.done() and not showing.cancelled():
            showing.result()


async def _show(watcher: Watcher, live: Live, pause: float) -> None:
    async for shown in watcher.views(pause):
        live.update(render(shown), refresh=True)


@contextlib.contextmanager
def _keys(ended: asyncio.Event) -> Iterator[None]:
    """While this lasts, q on the terminal sets `ended`; the terminal is left as it was."""
    loop = asyncio.get_running_loop()
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    former = termios.tcgetattr(descriptor)

    def pressed() -> None:
        keys = os.read(descriptor, 64)
        if not keys or set(keys) & set(b"qQ\x04"):  # the terminal is gone; q; Ctrl-D
            ended.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)


# ---- drawing


def render(shown: View) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [Text(printable(_headline(shown)), style="bold"), _nodes(shown)]
    parts += [Text(f"{row.address}: {printable(row.problem)}") for row in shown.rows if row.problem]
    if shown.queues is None:
        parts.append(Text("queues: no answer of the leader"))
    elif shown.queues:
        parts.append(_queues(shown.queues))
    return Group(*parts)


def _headline(shown: View) -> str:
    leader = f"leader {shown.leader}, term {shown.term:,}" if shown.leader else "no leader"
    rates = shown.rates
    return (
        f"{leader}   commits/s {rates['commits_per_s']:,.0f}   reads/s {rates['reads_per_s']:,.0f}"
        f"   messages/s {rates['messages_per_s']:,.0f}   log syncs/s {rates['log_syncs_per_s']:,.0f}"
        f"   HTTP/s {rates['http_reads_per_s'] + rates['http_writes_per_s']:,.0f}"
    )


def _nodes(shown: View) -> Table:
    columns = ("Node", "Address", "Role", "Applied", "Lag", "Commits/s", "Reads/s", "Clients", "Loop lag", "Disk free")
    table = Table(*columns, header_style="bold")
    for row in shown.rows:
        table.add_row(*(Text(printable(cell)) for cell in _cells(row)), style="red" if row.problem else None)
    return table


def _cells(row: NodeRow) -> tuple[str, ...]:
    if row.problem:
        return (row.node, row.address, row.role, *[""] * 7)
    figures = row.figures
    return (
        row.node,
        row.address,
        row.role,
        f"{row.applied:,}",
        f"{row.lag:,}",
        f"{row.rates.get('commits_per_s', 0):,.0f}",
        f"{row.rates.get('reads_per_s', 0):,.0f}",
        f"{figures['clients']:.0f}" if "clients" in figures else "",
        f"{figures['loop_lag_worst'] * 1000:.0f} ms" if "loop_lag_worst" in figures else "",
        shown_bytes(figures["disk_free_bytes"]) if "disk_free_bytes" in figures else "",
    )


def _queues(queues: list[kvorum.QueueStats] | object) -> Table:
    table = Table("Queue", "Messages", "Leased", "Dead", "Oldest", "Consumers", "Sent/s", "Done/s", header_style="bold")
    assert isinstance(queues, list)
    largest = sorted(queues, key=lambda stats: (-stats.messages - stats.dead, stats.name))
    for stats in largest[:MOST_QUEUES]:
        table.add_row(
            Text(printable(stats.name) or '""'),  # as it is: brackets of a name are no styles
            f"{stats.messages:,}",
            f"{stats.leased:,}",
            f"{stats.dead:,}",
            "" if stats.oldest_age is None else shown_duration(stats.oldest_age),
            str(stats.consumers),
            f"{stats.sent_per_s:.1f}",
            f"{stats.done_per_s:.1f}",
        )
    if len(largest) > MOST_QUEUES:
        table.caption = f"and {len(largest) - MOST_QUEUES:,} more"
    return table
