"""One run: an arena, crews of clients, a nemesis, and the judgement."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import CalledProcessError
from typing import Final

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import ClusterFailed, in_thread

from . import audit
from .arena import VOTERS, Arena
from .crew import Account
from .crews import CrewFailed, Crews
from .faults import FAULTS, Category, Fault
from .history import Operation, export
from .membership import Membership
from .nemesis import DidNotRejoin, Nemesis
from .network import Lab
from .operator import ChangeFailed
from .recorder import DONE, HANDLED, MARKS, UNDELIVERED, VALUES, Recorder, SawNonsense, seen_of
from .report import Report
from .workload import KEYS, THINKING

LEASE: Final = 3_000
"""Milliseconds after which messages of a lost consumer are free again: shorter than some outages."""
PATIENCE: Final = 45.0
"""Seconds that the queue may take to run dry, and the replicas to become equal, when nobody disturbs them."""
CALL: Final = 10_000
"""Milliseconds for each call of the final look."""
LEAST: Final = 50
"""Acknowledged commits below which a run proves nothing."""


Harm = Callable[[asyncio.Event], Coroutine[None, None, None]]
"""Goes on until the event is set, or its time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do, and how much of it at most."""

    folder: Path
    """For the nodes' data and logs, and the history."""
    seconds: float = 60.0
    """How long faults may begin; then the last one is waited for, and everything is judged."""
    seed: int = 0
    faults: tuple[Fault, ...] = FAULTS
    wanted: Mapping[Category, int] = field(default_factory=dict)
    """Numbers of faults; fewer are a failure."""
    namespaces: bool = False
    """A network namespace for each node and each crew."""
    disks: bool = False
    """A disk for each node, whose power can be cut."""
    membership: bool = False
    """Members come and go meanwhile."""
    crews: int = 2
    """Processes with clients."""
    clients: int = 2
    """For each crew."""
    lanes: int = 4
    """For each client."""
    visitors: int = 1
    """Further lanes of each crew, each of which opens a client of its own every few calls."""
    thinking: float = THINKING
    operations: int = 1_000_000
    most_faults: int = 1_000


async def trial(options: Options, say: Callable[[str], None]) -> Report:
    """Run and judge. What goes wrong with the cluster is a problem in the report, not an exception."""
    report = Report()
    lab = Lab() if options.namespaces else None
    arena = Arena(
        options.folder,
        nodes=VOTERS + options.membership,
        lab=lab,
        disks=options.disks,
        crews=options.crews,
        settings={"lease_ms": LEASE},
    )
    rng = Random(f"{options.seed}/nemesis")
    nemesis = Nemesis(arena, rng, options.faults, say, options.wanted)
    membership = Membership(arena, nemesis, rng, options.faults, say)
    account, resolved = Account(), list[Operation]()
    try:
        await in_thread(arena.start_all)
        async with Crews(arena, _crew_options(arena, options)) as crews:
            try:
                report.problems += await _disturb(crews, _harm(options, nemesis, membership))
                if report.problems:
                    await in_thread(_write_states, arena)
                account = crews.account()
                say(f"quiet after {nemesis.counts.total()} faults and {len(account.operations)} operations")
                await _until_handled(arena.url, account.operations)
                await crews.end()
            finally:
                await crews.give_up()
                account = crews.account()
        resolved, final = await look(arena.url, account, report)
        report.problems += audit.audit_messages(resolved, account.deliveries, final)
        report.messages = len(final.done)
        report.problems += await unequal(arena)
    except (
        ChangeFailed,
        ClusterFailed,
        CrewFailed,
        DidNotRejoin,
        SawNonsense,
        KvorumError,
        TimeoutError,
        OSError,
        CalledProcessError,
    ) as error:
        report.problems.append(f"{type(error).__name__}: {error}")
        await in_thread(_write_states, arena)
    finally:
        await in_thread(arena.stop)
        export(account.operations, options.folder / "history.jsonl")
        export(resolved, options.folder / "resolved.jsonl")
    report.faults = nemesis.counts
    report.changes = membership.counts
    report.rejoins = nemesis.rejoins
    report.count(account)
    report.judge(resolved or account.operations, say)
    harmless = [disk.mount.name for disk in arena.disks if disk.harmless]
    if harmless:
        report.problems.append(f"power cuts lost nothing of what was not synced: {', '.join(harmless)}")
    report.problems += [f"too few faults: {what}" for what in nemesis.short_of()]
    if sum(operation.committed for operation in account.operations) < LEAST or not report.faults:
        report.problems.append("too little happened to prove anything")
    return report


def _crew_options(arena: Arena, options: Options) -> list[str]:
    given = {
        "url": arena.url,
        "seed": options.seed,
        "clients": options.clients,
        "lanes": options.lanes,
        "visitors": options.visitors,
        "operations": max(1, options.operations // options.crews),
        "thinking": options.thinking,
    }
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def _harm(options: Options, nemesis: Nemesis, membership: Membership) -> Harm:
    until = time.monotonic() + options.seconds
    if options.membership:
        return lambda stop: membership.run(stop, until)
    return lambda stop: nemesis.run(stop, until, options.most_faults)


async def _disturb(crews: Crews, harm: Harm) -> list[str]:
    """Crews and harm side by side, until the latter has had its time, or a crew has had enough. Returns what the
    cluster did not survive: what was lost is looked for all the same."""
    stop = asyncio.Event()
    full = asyncio.create_task(crews.one_is_full())
    harming = asyncio.create_task(harm(stop))
    problems = []
    try:
        await asyncio.wait((full, harming), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await harming  # a fault that has begun is seen through, so that the nodes run again
        if full.done():
            full.result()
    except (ChangeFailed, ClusterFailed, DidNotRejoin) as error:
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        harming.cancel()
        full.cancel()
        await asyncio.gather(full, harming, return_exceptions=True)
    await crews.stop()
    return problems


async def _until_handled(url: str, operations: list[Operation]) -> None:
    """Wait for the messages that are certainly on the queue; what is missing then is found by the audit."""
    deadline = time.monotonic() + PATIENCE
    async with kvorum.open_kv(url) as kv:
        resolved, _ = audit.resolve(operations, await _marks(kv), time.monotonic_ns())
        missing = audit.to_be_handled(resolved)
        while missing and time.monotonic() < deadline:
            missing -= {str(entry.key[-1]) async for entry in kv.list(prefix=DONE, batch_size=500, timeout=CALL)}
            await asyncio.sleep(0.2)


async def look(url: str, account: Account, report: Report) -> tuple[list[Operation], audit.Final]:
    """The state after everything, by a new client; its reads belong to the history. What the marks contradict goes to
    the report."""
    recorder = Recorder()
    async with kvorum.open_kv(url) as kv:
        marks = await _marks(kv)
        done = {str(entry.key[-1]): entry async for entry in kv.list(prefix=DONE, batch_size=500, timeout=CALL)}
        marks |= {str(entry.value): str(entry.versionstamp) for entry in done.values()}
        undelivered = {str(entry.key[-1]) async for entry in kv.list(prefix=UNDELIVERED, timeout=CALL)}
        keys = (*KEYS, HANDLED)
        draft = Operation(-1, "get", 0, None, "unknown", reads=keys)
        read = await recorder.read(draft, kv.get_many([(*VALUES, key) for key in keys], timeout=CALL))
        entry = await kv.get((*VALUES, HANDLED), timeout=CALL)
    account.operations.append(read)
    resolved, problems = audit.resolve(account.operations, marks, read.returned or time.monotonic_ns())
    report.problems += problems
    return resolved, audit.Final(marks, set(done), seen_of(entry).value or 0, undelivered)


def _write_states(arena: Arena) -> None:
    """What the nodes say after a failure."""
    for number in range(arena.nodes):
        answer = arena.peek(number)
        arena.log(number).with_suffix(".status").write_text(str(answer))


async def _marks(kv: kvorum.Kv) -> dict[str, str]:
    rows = kv.list(prefix=MARKS, batch_size=500, timeout=CALL)
    return {str(entry.key[-1]): str(entry.versionstamp) async for entry in rows}


async def unequal(arena: Arena) -> list[str]:
    """Wait until all nodes have applied the same entry; returns what is wrong with their hashes, if anything."""
    deadline = time.monotonic() + PATIENCE
    while True:
        replicas = await in_thread(arena.hashes)
        if len({index for index, _ in replicas}) == 1:
            if len(set(replicas)) == 1:
                return []
            return [f"replicas differ at the same entry: {[(index, hash_.hex()) for index, hash_ in replicas]}"]
        if time.monotonic() > deadline:
            return [f"the replicas did not come to the same entry within {PATIENCE:g} s: {replicas}"]
        await asyncio.sleep(0.1)
