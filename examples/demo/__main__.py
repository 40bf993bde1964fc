"""Runs the demo: `python -m examples.demo [--embedded] [--votes N] [--seed N]`."""

import argparse
import asyncio
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import ClusterFailed, DevCluster, in_thread

from . import ledger as books
from . import scenario, view
from .director import Director


async def _program(
    kv: kvorum.Kv, ledger: books.Ledger, votes: int, seed: int, director: Director | None, say: view.View
) -> None:
    """Wall and handler run all the time; the sale opens as the leader dies for the first time."""
    await scenario.prepare(kv)
    sale_opens = asyncio.Event()

    async def sale() -> None:
        await sale_opens.wait()
        say.say(f"the sale opens: {scenario.BUYERS} buyers, {scenario.TICKETS} tickets")
        await scenario.sale(kv, ledger, seed)
        say.say(f"sold out: {len(ledger.orders_sold)} sold, {len(ledger.orders_turned_away)} buyers came too late")

    async def handler(message: object) -> None:
        await scenario.issue(kv, message, ledger)

    async with asyncio.TaskGroup() as everything:
        background = [
            everything.create_task(scenario.wall(kv, ledger)),
            everything.create_task(kv.listen_queue(handler)),
        ]
        await asyncio.gather(_rounds(kv, ledger, votes, seed, director, sale_opens), sale())
        await _until_issued(ledger)
        await _until_shown(ledger, await kv.get(scenario.TOTAL))
        for task in background:
            task.cancel()


async def _rounds(
    kv: kvorum.Kv, ledger: books.Ledger, votes: int, seed: int, director: Director | None, sale_opens: asyncio.Event
) -> None:
    """Two rounds of votes, and trouble in the first half of each; the second begins when the first victim is back."""
    half = votes // 2
    if director is None:
        sale_opens.set()
    for begin, end, before in ((0, half, sale_opens.set), (half, votes, None)):
        trouble = asyncio.sleep(0) if director is None else director.kill_leader_when(begin + half // 4, before=before)
        await asyncio.gather(scenario.election(kv, range(begin, end), ledger, seed), trouble)


async def _until_issued(ledger: books.Ledger, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not ledger.orders_sold <= ledger.tickets_issued and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


async def _until_shown(ledger: books.Ledger, total: kvorum.Entry, patience: float = 5.0) -> None:
    """The wall must come to show the final state by itself."""
    deadline = time.monotonic() + patience
    while (ledger.wall_total, ledger.wall_stock) != (total.value, 0):
        if time.monotonic() > deadline:
            ledger.problems.append(
                f"the wall shows {ledger.wall_total} votes, {ledger.wall_stock} tickets;"
                f" it should show {total.value}, 0"
            )
            return
        await asyncio.sleep(0.02)


def _facts(kv: kvorum.Kv, ledger: books.Ledger, votes: int) -> view.Facts:
    figures = kv.statistics()
    stock = scenario.TICKETS if ledger.wall_stock is None else ledger.wall_stock
    return [
        ("votes", f"{len(ledger.acknowledged):,} of {votes:,}"),
        ("in flight", f"{ledger.under_way}"),
        ("wall shows", f"{ledger.wall_total:,} votes, {stock} of {scenario.TICKETS} tickets left"),
        ("tickets sold", f"{len(ledger.orders_sold)}"),
        ("issued by the queue", f"{len(ledger.tickets_issued)}"),
        ("retries", f"{figures.get('retries', 0):.0f}"),
        ("unknown", f"{len(ledger.unknown)}"),
        ("redeliveries", f"{sum(ledger.deliveries.values()) - len(ledger.deliveries)}"),
    ]


async def _main(options: argparse.Namespace, folder: Path) -> int:
    cluster = None
    if not options.embedded:
        cluster = DevCluster(folder)
    began = time.monotonic()
    try:
        if cluster is not None:
            await in_thread(cluster.start_all)
        target = str(folder / "demo.kv") if cluster is None else cluster.url
        async with kvorum.open_kv(target) as kv:
            ledger = books.Ledger()
            screen = view.View(lambda: _facts(kv, ledger, options.votes), lambda: ledger.votes_finished / options.votes)
            screen.say("embedded: one folder, no nodes" if cluster is None else f"three nodes: {cluster.url}")
            logging.getLogger("kvorum").addHandler(view.OneLine(screen.say))
            director = None if cluster is None else Director(cluster, ledger, screen.say)
            drawing = asyncio.create_task(screen.run())
            try:
                await _program(kv, ledger, options.votes, options.seed, director, screen)
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
            problems = await books.compare(kv, ledger, votes=options.votes, tickets=scenario.TICKETS)
            if director is not None:
                problems += await director.replicas_differ()
                if kv.statistics().get("retries", 0) < 1:
                    problems.append(
                        "two leaders were killed in the middle of the work and nothing had to be retried:"
                        " the demo showed nothing"
                    )
            summary = "; ".join(f"{name} {value}" for name, value in _facts(kv, ledger, options.votes))
            for what, number in sorted(ledger.counters.items()):
                screen.say(f"{what}: {number}")
        if director is not None:
            gaps = " and ".join(f"{gap:.2f} s" for gap in director.gaps)
            in_flight = " and ".join(map(str, director.in_flight_at_kills))
            summary += f"; {director.kills} leaders killed with {in_flight} operations in flight; gaps {gaps}"
        return view.finish(problems, f"{summary}; {time.monotonic() - began:.1f} s")
    finally:
        if cluster is not None:
            await in_thread(cluster.stop)


def main() -> int:
    """Parse the options, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--embedded", action="store_true", help="the same program on the embedded store, without nodes")
    parser.add_argument("--votes", type=int, default=20_000, help="default 20,000; at least 4,000")
    parser.add_argument("--seed", type=int, default=1, help="of the program's own random choices")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep data and logs in this empty folder")
    options = parser.parse_args()
    if options.votes < 4_000:
        parser.error("--votes must be at least 4,000: with fewer, nothing is in flight when a leader is killed")
    folder = options.keep
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="kvorum-demo-", dir="."))
    else:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        # The nodes are processes of their own: whoever ends the demo must leave it the time to end them.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        status = _run(_main(options, folder))
    except KeyboardInterrupt:
        print("demo: interrupted", flush=True)
        if options.keep is None:
            shutil.rmtree(folder)
        return 130
    except (KvorumError, ClusterFailed, ExceptionGroup, TimeoutError, OSError) as error:
        status = view.finish([_innermost(error)], "it broke off")
    if options.keep is None and status == 0:
        shutil.rmtree(folder)
    elif status != 0:
        print(f"data and logs of the nodes are kept in {folder}")
    return status


def _run(program: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # 40 % more for the client as well; plain asyncio is as right
    except ImportError:
        return asyncio.run(program)
    return uvloop.run(program)


def _innermost(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    raise SystemExit(main())
