"""The library as it is, as a node of a `World`: in memory, or with its own files in a folder."""

import copy
import mmap
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pysyncobj.journal
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
    """The library as it is. With `folder` it uses the library's own journal there (and its dump file, if `dump` says
    so); otherwise a journal in memory that outlives the process."""

    def __init__(
        self,
        node_id: str,
        world: World,
        journal: Any = None,
        *,
        folder: Path | None = None,
        dump: bool = False,
        synced: "Synced | None" = None,
        **options: Any,
    ) -> None:
        self.node_id = node_id
        self.synced = synced if synced is not None else Synced()
        self.spared: dict[Path, bytes] = {}
        """Files that a power cut leaves so, as luck may have it."""
        self.folder = None if folder is None else folder / node_id
        self.transport = LinkTransport(world.links, node_id, copy.deepcopy)
        self.raised = 0
        self._held = False
        self._again: Callable[..., PlainNode] = partial(
            PlainNode, node_id, folder=folder, dump=dump, synced=synced, **options
        )
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)
            journal = str(self.journal_file)
        conf = SyncObjConf(
            **{
                "autoTick": False,
                "appendEntriesUseBatch": True,
                "appendEntriesPeriod": TIMING.heartbeat,
                "raftMinTimeout": TIMING.election_min,
                "raftMaxTimeout": TIMING.election_max,
                "leaderFallbackTimeout": 5.0,
                "appendEntriesBatchSizeBytes": BATCH,
                "logCompactionMinEntries": 10**9,
                "logCompactionMinTime": 10**9,
                "journalFile": journal if journal is not None else CountingJournal(),
                "fullDumpFile": str(self.dump_file) if dump else None,
                "useFork": False,
                "dynamicMembershipChange": True,
                "pollerType": "select",
                **options,
            }
        )
        others = [Node(other) for other in world.founders if other != node_id]
        self.core = _PlainCore(Node(node_id), others, conf, nodeClass=Node, transport=self.transport)
        self._journal_at_start = self.journal_file.read_bytes() if self.folder is not None else b""

    @property
    def journal_file(self) -> Path:
        assert self.folder is not None
        return self.folder / "journal"

    @property
    def dump_file(self) -> Path:
        assert self.folder is not None
        return self.folder / "dump"

    @property
    def meta_file(self) -> Path:
        """Term, vote and commit index."""
        return self.journal_file.with_name("journal.meta")

    @property
    def journal(self) -> Any:
        return self.core._SyncObj__raftLog

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
        return int(self.journal.deleted)

    @property
    def members(self) -> set[str]:
        """Ids of those whom this node counts, itself included."""
        return {node.id for node in self.core.otherNodes} | {self.node_id}

    def propose(self, value: str, done: Callable[[bool], None]) -> None:
        self.core.put(value, callback=lambda result, reason: done(reason == FAIL_REASON.SUCCESS))

    def read(self, read_id: int, done: Callable[[int | None], None]) -> None:
        """All that the library offers: ask whether this node leads, and look at its state."""
        done(self.applied_index if self.leads else None)

    def add(self, node_id: str, done: Callable[[bool], None]) -> None:
        """The library knows one step only: a new node counts at once."""
        self.core.addNodeToCluster(Node(node_id), lambda result, reason: done(reason == FAIL_REASON.SUCCESS))

    def promote(self, node_id: str, done: Callable[[bool], None]) -> None:
        done(True)

    def remove(self, node_id: str, done: Callable[[bool], None]) -> None:
        self.core.removeNodeFromCluster(Node(node_id), lambda result, reason: done(reason == FAIL_REASON.SUCCESS))

    def compact(self) -> None:
        """Make a snapshot and cut the log behind it: two steps, without input between them."""
        self.core.forceLogCompaction()
        self.core._SyncObj__tryLogCompaction()
        self.core._SyncObj__tryLogCompaction()

    def begin_compaction(self) -> None:
        """The snapshot is being made; the next step finds it done."""
        self.core.forceLogCompaction()
        self.core._SyncObj__tryLogCompaction()

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

    def admits(self, node_id: str) -> bool:
        return True

    def keep_oldest_log(self) -> None:
        """At the next power cut; the file of term, vote and commit index stays as it is."""
        self.spared = {self.journal_file: self._journal_at_start, self.meta_file: self.meta_file.read_bytes()}

    def close(self) -> None:
        """Let the files go; what was written stays as after a killed process."""
        if self.folder is not None and self.journal is not None:
            self.journal._destroy()
            self.core._SyncObj__raftLog = None

    def restarted(self, world: World, *, power_cut: bool) -> "PlainNode":
        """The next process. A journal in memory forgets nothing."""
        journal = self.journal
        if self.folder is None:
            return self._again(world, journal)
        left = self.synced.left_of(self.folder) | self.spared
        self.close()
        if power_cut:
            self.synced.cut(self.folder, left)
        return self._again(world)


class Synced:
    """What a power cut is sure to leave of files: their content when somebody last synced them."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}  # by inode

    def note(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_file():
            self._contents[path.stat().st_ino] = path.read_bytes()

    def left_of(self, folder: Path) -> dict[Path, bytes]:
        found = {file: self._contents.get(file.stat().st_ino) for file in folder.iterdir()}
        return {file: content for file, content in found.items() if content is not None}

    def cut(self, folder: Path, left: dict[Path, bytes]) -> None:
        """Bring the folder back to what was left."""
        for file in list(folder.iterdir()):
            self._contents.pop(file.stat().st_ino, None)
            file.unlink()
        for file, content in left.items():
            file.write_bytes(content)
            self._contents[file.stat().st_ino] = content

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note fsync, fdatasync and the msync of the library's journal."""
        note = self.note

        class Mapping(mmap.mmap):
            def __init__(self, descriptor: int, size: int) -> None:
                self._descriptor = descriptor

            def flush(self, *arguments: Any) -> None:
                super().flush(*arguments)
                note(self._descriptor)

        def seen(sync: Callable[[int], None], descriptor: int) -> None:
            sync(descriptor)
            note(descriptor)

        with (
            mock.patch.object(os, "fsync", partial(seen, os.fsync)),
            mock.patch.object(os, "fdatasync", partial(seen, os.fdatasync)),
            mock.patch.object(pysyncobj.journal, "mmap", SimpleNamespace(mmap=Mapping)),
        ):
            yield


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


@contextmanager
def plain_world(ids: str = "ABC", *, founders: str | None = None, **options: Any) -> Iterator[World]:
    """A started world of plain nodes. The library's election timeouts come from the module's generator."""
    random.seed(1)
    synced = Synced()
    world = World(partial(PlainNode, synced=synced, **options), ids, founders=founders)
    with plain_time(world.clock), synced.watching(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the library leaves files open
        try:
            yield world.start()
        finally:
            for node in world.nodes.values():
                node.close()
