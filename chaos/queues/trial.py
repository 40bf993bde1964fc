"""One run: three nodes, producers, consumers, kills of consumers and of leaders, and the judgement."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import ClusterFailed, in_thread

from ..arena import Arena
from ..nemesis import DidNotRejoin, Nemesis
from ..trial import unequal
from . import checker, look
from .book import now
from .case import Terms, Violation
from .crowd import Crowd, ProcessFailed
from .history import History, Office, Record, Send, load, save
from .plan import LEASE, RECORDS, define

PATIENCE: Final = 120.0
"""Seconds that the queues may take to run dry when nobody disturbs them."""
WATCHED: Final = 0.1
"""Seconds between two looks at who leads."""
REBIRTH: Final = (0.0, 1.0)
"""Seconds from a consumer's kill to the next one's start."""
OUTAGE: Final = (0.05, 1.5)
"""Seconds from a leader's kill to its start."""
LATE: Final = 2_500
"""Milliseconds beyond lease and a second that a redelivery may take: all processes of a run share few CPUs, and a
consumer that was killed is missing among those that have room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do, and how much of it."""

    folder: Path
    seconds: float = 600.0
    """How long there are kills; all is sent by then, or left unsent."""
    seed: int = 0
    messages: int = 220_000
    """Sends at most."""
    producers: int = 2
    consumers: int = 4
    consumer_kills: int = 110
    leader_kills: int = 22
    thinking: float = 0.005
    """Seconds that handling a message takes, on average."""


@dataclass(slots=True)
class Report:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Whatever else went wrong."""
    consumer_kills: int = 0
    leader_kills: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds from the loss of a consumer, or the next leader after it, to the next delivery of what it held."""

    def judge(self, records: Iterable[Record]) -> None:
        """Look for all that is wrong in a history."""
        history = History.of(records)
        self.violations = checker.check(history, Terms(late=LATE))
        self.counts = checker.count(history)
        self.waits = waits(history)

    @property
    def line(self) -> str:
        """The last line of the command."""
        verdict = "FAILED" if self.problems or self.violations else "ok"
        return (
            f"queues: messages {self.counts['messages']} redeliveries {self.counts['redeliveries']}"
            f" consumer kills {self.consumer_kills} leader kills {self.leader_kills}"
            f" violations {len(self.violations)} problems {len(self.problems)} {verdict}"
        )


class Trial:
    """See the module. `say` is called with a line now and then."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._rng = Random(f"{options.seed}/kills")
        self._arena = Arena(options.folder / "nodes", settings={"lease_ms": LEASE})
        self._nemesis = Nemesis(self._arena, self._rng, (), say)
        self._report = Report()
        self._records: list[Record] = list(RECORDS)

    async def run(self) -> Report:
        """What goes wrong with the cluster is a problem in the report, not an exception."""
        options, report = self._options, self._report
        books = options.folder / "books"
        books.mkdir(parents=True)
        crowd = Crowd(books, {"url": self._arena.url, "seed": options.seed})
        watching: asyncio.Task[None] | None = None
        try:
            await in_thread(self._arena.start_all)
            watching = asyncio.create_task(self._watch_offices())
            async with crowd, kvorum.open_kv(self._arena.url, timeout=30_000) as kv:
                await self._play(crowd, kv)
                sends, self._records = _apart([*self._records, *(one for file in crowd.files for one in load(file))])
                resolved, problems = look.resolve(sends, await look.marks(kv))
                self._records += [*resolved, *await look.found(kv)]
                report.problems += problems
            report.problems += await unequal(self._arena)
        except (ClusterFailed, DidNotRejoin, ProcessFailed, KvorumError, TimeoutError, OSError) as error:
            report.problems.append(f"{type(error).__name__}: {error}")
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await in_thread(self._arena.stop)
        report.consumer_kills = crowd.kills
        self._judge()
        return report

    async def _play(self, crowd: Crowd, kv: kvorum.Kv) -> None:
        options = self._options
        await define(kv)
        first = await look.begin_schedule(kv)
        for number in range(options.consumers):
            crowd.start_consumer(number, options.thinking)
        rate = options.messages / options.seconds / options.producers
        for number in range(options.producers):
            crowd.start_producer(number, rate, options.messages // options.producers)
        await self._kill(crowd)
        self._say(f"quiet after {crowd.kills} kills of consumers and {self._report.leader_kills} of leaders")
        await crowd.end("p")
        self._records.append(await look.end_schedule(kv, first))
        await self._until_dry(kv, crowd)
        await crowd.end("c")

    # ---- harm

    async def _kill(self, crowd: Crowd) -> None:
        until = time.monotonic() + self._options.seconds
        killing = [
            asyncio.create_task(self._kill_consumers(crowd, until)),
            asyncio.create_task(self._kill_leaders(until)),
        ]
        try:
            await asyncio.gather(*killing)
            await crowd.sent(until - time.monotonic())
        finally:
            for task in killing:
                task.cancel()
            await asyncio.gather(*killing, return_exceptions=True)

    async def _kill_consumers(self, crowd: Crowd, until: float) -> None:
        for pause in _pauses(self._rng, until, self._options.consumer_kills):
            await asyncio.sleep(pause)
            victim = self._rng.randrange(self._options.consumers)
            await crowd.kill_consumer(victim)
            await asyncio.sleep(self._rng.uniform(*REBIRTH))
            crowd.start_consumer(victim, self._options.thinking)

    async def _kill_leaders(self, until: float) -> None:
        for pause in _pauses(self._rng, until, self._options.leader_kills):
            await asyncio.sleep(pause)
            victim = await in_thread(self._arena.leader)
            self._say(f"kill -9 of the leader, n{victim + 1}")
            await in_thread(self._arena.kill, victim)
            self._report.leader_kills += 1
            await asyncio.sleep(self._rng.uniform(*OUTAGE))
            await in_thread(self._arena.start, victim)
            await self._nemesis.whole_again()

    async def _watch_offices(self) -> None:
        """Note each leader that shows itself."""
        known = set()
        while True:
            for number in range(self._arena.nodes):
                answer = await in_thread(self._arena.peek, number)
                if answer is not None and answer.role == "leader" and answer.term not in known:
                    known.add(answer.term)
                    self._records.append(Office(now()))
            await asyncio.sleep(WATCHED)

    async def _until_dry(self, kv: kvorum.Kv, crowd: Crowd) -> None:
        deadline = time.monotonic() + PATIENCE
        while left := {queue.name: queue.messages for queue in await kv.queues() if queue.messages}:
            crowd.check()
            if time.monotonic() > deadline:
                self._report.problems.append(f"queues are not dry after {PATIENCE:g} s: {left}")
                return
            await asyncio.sleep(0.3)

    # ---- judgement

    def _judge(self) -> None:
        report = self._report
        save(self._records, self._options.folder / "history.jsonl")
        began = time.monotonic()
        report.judge(self._records)
        self._say(f"judged {len(self._records):,} records in {time.monotonic() - began:.1f} s")
        if report.consumer_kills < self._options.consumer_kills:
            report.problems.append(f"{report.consumer_kills} of {self._options.consumer_kills} consumers were killed")
        if report.leader_kills < self._options.leader_kills:
            report.problems.append(f"{report.leader_kills} of {self._options.leader_kills} leaders were killed")
        for name in ("duplicates", "letters", "redeliveries", "groups"):
            if not report.counts[name]:
                report.problems.append(f"no {name}: too little happened to prove anything")


def _pauses(rng: Random, until: float, number: int) -> list[float]:
    """Seconds before each of so many events, which come within nine tenths of the time."""
    mean = (until - time.monotonic()) * 0.9 / max(1, number)
    spare = min(mean / 2, 1.0)
    """What an event takes by itself."""
    return [rng.uniform(0.5, 1.5) * max(0.05, mean - spare) for _ in range(number)]


def _apart(records: list[Record]) -> tuple[list[Send], list[Record]]:
    sends = [one for one in records if isinstance(one, Send)]
    return sends, [one for one in records if not isinstance(one, Send)]


def waits(history: History) -> list[float]:
    """See `Report.waits`; in order of their length."""
    losses = {loss.consumer: loss.at for loss in history.losses}
    offices = sorted(office.at for office in history.offices)
    settled = {settle.lease for settle in history.settles}
    by_message: dict[str, list[tuple[str, int, str]]] = {}
    for one in history.deliveries:
        by_message.setdefault(one.message, []).append((one.lease, one.at, one.consumer))
    found = []
    for deliveries in by_message.values():
        deliveries.sort()
        for (lease, at, consumer), (_, again, _) in pairwise(deliveries):
            lost = losses.get(consumer)
            if lost is not None and lost >= at and lease not in settled:
                since = max([lost, *(office for office in offices if lost < office < again)])
                found.append((again - since) / 1e9)
    return sorted(found)
