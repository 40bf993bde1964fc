"""The library as it is, as a node of a `World`."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.config import FAIL_REASON
from pysyncobj.journal import Journal, MemoryJournal
from pysyncobj.node import Node

from tests.simulation.world import BATCH, TIMING, Clock, LinkTransport, World, poison


class CountingJournal(MemoryJournal):
    """Perfectly durable; counts what is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted = 0

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self.deleted += max(len(self) - entryFrom, 0)
        super().deleteEntriesFrom(entryFrom)


class _PlainCore(SyncObj):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.values: list[tuple[int, Any]] = []

    @replicated
    def put(self, value: str) -> str:
        self.values.append((self.raftLastApplied + 1, value))
        return poison(value)


class PlainNode:
    """The library as it is."""

    def __init__(self, node_id: str, world: World, journal: CountingJournal | None = None) -> None:
        self.node_id = node_id
        self.journal = journal if journal is not None else CountingJournal()
        self.transport = LinkTransport(world.links, node_id, copy.deepcopy)
        self.raised = 0
        self._held = False
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=TIMING.heartbeat,
            raftMinTimeout=TIMING.election_min,
            raftMaxTimeout=TIMING.election_max,
            leaderFallbackTimeout=5.0,
            appendEntriesBatchSizeBytes=BATCH,
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
            journalFile=self.journal,
            pollerType="select",
        )
        others = [Node(other) for other in world.ids if other != node_id]
        self.core = _PlainCore(Node(node_id), others, conf, nodeClass=Node, transport=self.transport)

    @property
    def applied(self) -> list[tuple[int, Any]]:
        return self.core.values

    @property
    def leads(self) -> bool:
        return bool(self.core._isLeader())

    @property
    def term(self) -> int:
        return int(self.core.raftCurrentTerm)

    @property
    def applied_index(self) -> int:
        return int(self.core.raftLastApplied)

    @property
    def last_index(self) -> int:
        return int(self.journal[-1][1])

    @property
    def deleted(self) -> int:
        return self.journal.deleted

    def propose(self, value: str, done: Callable[[bool], None]) -> None:
        self.core.put(value, callback=lambda result, reason: done(reason == FAIL_REASON.SUCCESS))

    def tick(self) -> None:
        if self._held and not self.leads:
            self.hold_election()
        self.core.doTick(0)

    def campaign(self) -> None:
        self._held = False
        self.core._SyncObj__raftElectionDeadline = 0.0
        self.core.doTick(0)
        if not self.leads:
            self.core._SyncObj__raftElectionDeadline = 1e18

    def hold_election(self) -> None:
        self._held = True
        self.core._SyncObj__raftElectionDeadline = 1e18

    def sync(self, batches: int | None = None) -> None:
        pass

    def deliver(self, source: str, message: Any) -> None:
        self.transport.deliver(source, message)


@contextmanager
def plain_time(clock: Clock) -> Iterator[None]:
    """The library's module-level clock and journal factory, for as long as plain nodes live."""
    original = pysyncobj.syncobj.createJournal

    def create(journal: Any) -> Any:
        return journal if isinstance(journal, Journal) else original(journal)

    with (
        mock.patch.object(pysyncobj.syncobj, "monotonicTime", clock),
        mock.patch.object(pysyncobj.syncobj, "createJournal", create),
    ):
        yield
