"""One run: an arena, crews of clients, a nemesis, and the judgement."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from subprocess import CalledProcessError
from typing import Final

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import ClusterFailed, in_thread

from . import audit
from .arena import VOTERS, Arena
from .closing import PATIENCE, look, until_handled
from .crew import Account
from .crews import CrewFailed, Crews, words_of
from .duties import deed
from .faults import FAULTS, KINDS, Category, Fault
from .history import Operation, export
from .membership import Membership
from .nemesis import LONGEST, DidNotRejoin, Nemesis
from .network import Lab
from .observer import Observer
from .operator import ChangeFailed
from .recorder import SawNonsense
from .report import Report
from .restarts import RestartFailed, Restarts, load_ballast
from .shim import build
from .timeline import Timeline
from .versions import SwapFailed, Versions
from .workload import THINKING

LEASE: Final = 3_000
"""Milliseconds after which messages of a lost consumer are free again: shorter than some outages."""
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
    other: str = ""
    """PYTHONPATH for the code of another version."""
    shims: bool = False
    """Nodes can be given wrong clocks and bad syncs."""
    longest: float = LONGEST
    """Seconds of a fault that is no kill, at most."""
    every: bool = False
    """Each kind of fault has to come."""
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


_FAILURES: Final = (
    *(ChangeFailed, ClusterFailed, CrewFailed, DidNotRejoin, RestartFailed, SawNonsense, SwapFailed),
    *(KvorumError, TimeoutError, OSError, CalledProcessError),
)
"""What may become of a run whose cluster, or whose means, fail."""


async def trial(options: Options, say: Callable[[str], None]) -> Report:
    """Run and judge. What goes wrong with the cluster is a problem in the report, not an exception."""
    return await _Trial(options, say).run()


class _Trial:
    """The parts of one run, and what they bring."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._report = Report()
        self._arena = arena = _arena(options)
        self._open = partial(kvorum.open_kv, arena.url)
        rng = Random(f"{options.seed}/nemesis")
        self._nemesis = Nemesis(arena, rng, options.faults, say, options.wanted, options.longest)
        self._membership = Membership(arena, self._nemesis, rng, options.faults, say)
        restarts = Restarts(arena, self._nemesis, self._membership, rng, say)
        self._nemesis.others = {
            "backup-restart": restarts.during_backup,
            "snapshot-restart": restarts.during_snapshot,
            "version": Versions(arena, rng, say).swap,
            "change": self._membership.change,
        }
        self._observer = Observer([arena.reached_at(number) for number in range(arena.nodes)])
        self._account, self._resolved = Account(), list[Operation]()
        self._began = self._ended = time.monotonic()

    async def run(self) -> Report:
        """See `trial`."""
        report, arena = self._report, self._arena
        observing = asyncio.create_task(self._observer.run())
        try:
            await in_thread(arena.start_all)
            if set(self._options.faults) & set(KINDS["restarts"]):
                await load_ballast(arena.url)
            await self._play()
            self._resolved, final = await look(self._open, self._account, report)
            report.problems += audit.audit_messages(self._resolved, self._account.deliveries, final)
            report.messages = len(final.done)
            report.problems += await unequal(arena)
        except _FAILURES as error:
            report.problems.append(_in_words(error))
            await in_thread(_write_states, arena)
        finally:
            observing.cancel()
            (seen,) = await asyncio.gather(observing, return_exceptions=True)
            await in_thread(arena.stop)
            export(self._account.operations, self._options.folder / "history.jsonl")
            export(self._resolved, self._options.folder / "resolved.jsonl")
            deed.export(self._account.deeds, self._options.folder / "deeds.jsonl")
        if isinstance(seen, Exception):
            report.problems.append(f"nobody looked at the nodes: {type(seen).__name__}: {seen}")
        self._judge()
        return report

    async def _play(self) -> None:
        """Clients and faults, until all messages are handled."""
        report, arena, nemesis = self._report, self._arena, self._nemesis
        async with Crews(arena.base_dir, arena.crew_seats, _crew_options(arena, self._options)) as crews:
            try:
                await crews.work()
                self._began = time.monotonic()
                report.problems += await _disturb(crews, _harm(self._options, nemesis, self._membership))
                self._ended = time.monotonic()
                if report.problems:
                    await in_thread(_write_states, arena)
                operations = crews.account().operations
                self._say(f"quiet after {nemesis.counts.total()} faults and {len(operations)} operations")
                await until_handled(self._open, operations)
                await crews.end()
            finally:
                await crews.give_up()
                self._account = crews.account()

    def _judge(self) -> None:
        report, nemesis, account = self._report, self._nemesis, self._account
        report.faults, report.hits = nemesis.counts, nemesis.hits
        report.changes = self._membership.counts
        report.rejoins = nemesis.rejoins
        report.count(account)
        report.judge(self._resolved or account.operations, self._say)
        report.judge_deeds(account.deeds)
        line = Timeline.of(account.operations, nemesis.struck, self._began, self._ended)
        report.judge_times(line, self._observer)
        report.problems += _unproven(self._options, self._arena, nemesis, account)


def _arena(options: Options) -> Arena:
    return Arena(
        options.folder,
        nodes=VOTERS + (options.membership or "change" in options.faults),
        lab=Lab() if options.namespaces else None,
        disks=options.disks,
        crews=options.crews,
        shims=build(options.folder) if options.shims else None,
        other=options.other,
        # Checkpoints are made and the log is cut all the time, as those of a busier cluster.
        settings={"lease_ms": LEASE, "checkpoint_log_mb": 1},
    )


def _in_words(error: Exception) -> str:
    said = f"{type(error).__name__}: {error}"
    return f"{said}: {error.stderr}" if isinstance(error, CalledProcessError) and error.stderr else said


def _unproven(options: Options, arena: Arena, nemesis: Nemesis, account: Account) -> list[str]:
    """What keeps the run from being one of which something follows."""
    harmless = [disk.mount.name for disk in arena.disks if disk.harmless]
    found = [f"power cuts lost nothing of what was not synced: {', '.join(harmless)}"] if harmless else []
    found += [f"a fault that did nothing: {kind} ({nemesis.counts[kind]} times)" for kind in nemesis.idle()]
    found += [f"too few faults: {what}" for what in nemesis.short_of()]
    if options.every and nemesis.missing():
        found.append(f"these faults did not come: {', '.join(nemesis.missing())}")
    if sum(operation.committed for operation in account.operations) < LEAST or not nemesis.counts:
        found.append("too little happened to prove anything")
    return found


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
    return words_of(given)


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
    except (ChangeFailed, ClusterFailed, DidNotRejoin, RestartFailed, SwapFailed) as error:
        problems.append(_in_words(error))
    finally:
        harming.cancel()
        full.cancel()
        await asyncio.gather(full, harming, return_exceptions=True)
    await crews.stop()
    return problems


def _write_states(arena: Arena) -> None:
    """What the nodes say after a failure."""
    for number in range(arena.nodes):
        answer = arena.peek(number)
        arena.log(number).with_suffix(".status").write_text(str(answer))


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
