"""One run: a cluster, clients, a nemesis, and the judgement."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import ClusterFailed, DevCluster, in_thread

from . import audit, linearizability, serializability
from .history import Operation, export
from .nemesis import FAULTS, DidNotRejoin, Fault, Nemesis
from .recorder import DONE, HANDLED, MARKS, UNDELIVERED, VALUES, Recorder, SawNonsense, seen_of
from .workload import KEYS, Lane, Worker

LEASE: Final = 3_000
"""Milliseconds after which messages of a lost consumer are free again: shorter than some outages."""
PATIENCE: Final = 45.0
"""Seconds that the queue may take to run dry, and the replicas to become equal, when nobody disturbs them."""
CALL: Final = 10_000
"""Milliseconds for each call of the final look."""
LEAST: Final = 50
"""Acknowledged commits below which a run proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do, and how much of it at most."""

    folder: Path
    """For the nodes' data and logs, and the history."""
    seconds: float = 60.0
    """How long faults may begin; then the last one is waited for, and everything is judged."""
    seed: int = 0
    faults: tuple[Fault, ...] = FAULTS
    clients: int = 4
    lanes: int = 4
    """For each client."""
    visitors: int = 2
    """Further lanes, each of which opens a client of its own every few calls."""
    operations: int = 100_000
    most_faults: int = 1_000


@dataclass(slots=True)
class Report:
    """What happened; a success if there are no `problems`."""

    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    """Retries and others, as the clients count them, over all clients."""
    messages: int = 0
    deliveries: int = 0
    slowest: float = 0.0
    """Seconds from the end of a fault to a whole cluster, at most."""
    judging: float = 0.0
    """Seconds."""

    @property
    def line(self) -> str:
        """The last line of the output."""
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{outcome} {self.outcomes[outcome]}" for outcome in ("ok", "not applied", "unknown"))
        verdict = f"FAILED ({len(self.problems)} problems)" if self.problems else "ok"
        return (
            f"chaos: {verdict} faults {self.faults.total()} ({faults}) operations {self.outcomes.total()} ({outcomes})"
            f" retries {self.figures['retries']} messages {self.messages} deliveries {self.deliveries}"
        )


async def trial(options: Options, say: Callable[[str], None]) -> Report:
    """Run and judge. What goes wrong with the cluster is a problem in the report, not an exception."""
    report = Report()
    recorder = Recorder()
    cluster = DevCluster(options.folder, settings={"lease_ms": LEASE})
    nemesis = Nemesis(cluster, Random(f"{options.seed}/nemesis"), options.faults, say)
    final: audit.Final | None = None
    resolved: list[Operation] = []
    try:
        await in_thread(cluster.start_all)
        await _disturb(cluster, nemesis, options, recorder, report)
        say(
            f"quiet after {nemesis.counts.total()} faults and {len(recorder.operations)} operations; looking at the end"
        )
        resolved, final = await _look(cluster, recorder, report)
        report.problems += await _unequal(cluster)
    except (ClusterFailed, DidNotRejoin, SawNonsense, KvorumError, TimeoutError) as error:
        report.problems.append(f"{type(error).__name__}: {error}")
    finally:
        await in_thread(cluster.stop)
        export(recorder.operations, options.folder / "history.jsonl")
        export(resolved, options.folder / "resolved.jsonl")
    report.faults = nemesis.counts
    report.slowest = nemesis.slowest
    report.outcomes = Counter(operation.outcome for operation in recorder.operations)
    report.kinds = Counter(operation.kind for operation in recorder.operations)
    report.deliveries = recorder.deliveries.total()
    if final is not None:
        report.messages = len(final.done)
        report.problems += audit.audit_messages(resolved, recorder.deliveries, final)
    _judge(resolved or recorder.operations, report, say)
    if sum(operation.committed for operation in recorder.operations) < LEAST or not report.faults:
        report.problems.append("too little happened to prove anything")
    return report


async def _disturb(cluster: DevCluster, nemesis: Nemesis, options: Options, recorder: Recorder, report: Report) -> None:
    """Clients and nemesis side by side, until the nemesis has had its time. The clients' lanes end before this does,
    their messages need not."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(kvorum.open_kv(cluster.url)) for _ in range(options.clients)]
        listening = [
            asyncio.create_task(Worker(kv, number, Random(f"{options.seed}/worker/{number}"), recorder).run())
            for number, kv in enumerate(clients)
        ]
        lanes = [
            Lane(kv, process, Random(f"{options.seed}/lane/{process}"), recorder).run(stop, options.operations)
            for process, kv in enumerate(clients * options.lanes)
        ]
        lanes += [
            Lane(None, process, Random(f"{options.seed}/lane/{process}"), recorder).visit(
                cluster.url, stop, options.operations
            )
            for process in range(len(lanes), len(lanes) + options.visitors)
        ]
        working = asyncio.gather(*lanes)
        harming = asyncio.create_task(nemesis.run(stop, time.monotonic() + options.seconds, options.most_faults))
        try:
            await asyncio.wait((asyncio.ensure_future(working), harming), return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await working
            await harming  # a fault that has begun is seen through, so that the nodes run again
        finally:
            stop.set()
            harming.cancel()
            await asyncio.gather(working, harming, return_exceptions=True)
        await _until_handled(clients[0], recorder, listening)
        for kv in clients:
            report.figures.update({name: int(value) for name, value in kv.statistics().items()})
    await asyncio.gather(*listening)


async def _until_handled(kv: kvorum.Kv, recorder: Recorder, listening: list[asyncio.Task[None]]) -> None:
    """Wait for the messages that are certainly on the queue; what is missing then is found by the audit."""
    marks = await _marks(kv)
    resolved, _ = audit.resolve(recorder.operations, marks, time.monotonic_ns())
    recording = asyncio.ensure_future(recorder.all_recorded(audit.to_be_handled(resolved)))
    await asyncio.wait((recording, *listening), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    recording.cancel()


async def _look(cluster: DevCluster, recorder: Recorder, report: Report) -> tuple[list[Operation], audit.Final]:
    """The state after everything, by a new client; its reads belong to the history."""
    async with kvorum.open_kv(cluster.url) as kv:
        marks = await _marks(kv)
        done = {str(entry.key[-1]): entry async for entry in kv.list(prefix=DONE, batch_size=500, timeout=CALL)}
        marks |= {str(entry.value): str(entry.versionstamp) for entry in done.values()}
        undelivered = {str(entry.key[-1]) async for entry in kv.list(prefix=UNDELIVERED, timeout=CALL)}
        keys = (*KEYS, HANDLED)
        draft = Operation(-1, "get", 0, None, "unknown", reads=keys)
        read = await recorder.read(draft, kv.get_many([(*VALUES, key) for key in keys], timeout=CALL))
        entry = await kv.get((*VALUES, HANDLED), timeout=CALL)
        looked_at = read.returned or time.monotonic_ns()
        resolved, problems = audit.resolve(recorder.operations, marks, looked_at)
        report.problems += problems
        return resolved, audit.Final(marks, set(done), seen_of(entry).value or 0, undelivered)


async def _marks(kv: kvorum.Kv) -> dict[str, str]:
    rows = kv.list(prefix=MARKS, batch_size=500, timeout=CALL)
    return {str(entry.key[-1]): str(entry.versionstamp) async for entry in rows}


async def _unequal(cluster: DevCluster) -> list[str]:
    """Wait until all nodes have applied the same entry; returns what is wrong with their hashes, if anything."""
    deadline = time.monotonic() + PATIENCE
    while True:
        replicas = await in_thread(cluster.hashes)
        if len({index for index, _ in replicas}) == 1:
            if len(set(replicas)) == 1:
                return []
            return [f"replicas differ at the same entry: {[(index, hash_.hex()) for index, hash_ in replicas]}"]
        if time.monotonic() > deadline:
            return [f"the replicas did not come to the same entry within {PATIENCE:g} s: {replicas}"]
        await asyncio.sleep(0.1)


def _judge(operations: list[Operation], report: Report, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    for name, checker in (("key by key", linearizability.check), ("as a whole", serializability.check)):
        verdict = checker(operations)
        say(f"judged {name}: {verdict.state}, {verdict.work} states for {len(operations)} operations")
        if not verdict.ok:
            report.problems.append(f"the history, {name}, is {verdict.state}: {verdict.explanation}")
    report.judging = time.monotonic() - began


def log_to(path: Path) -> logging.Handler:
    """Handlers' troubles are part of the play: what the client library logs goes to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("kvorum")
    logger.addHandler(handler)
    logger.propagate = False
    return handler
