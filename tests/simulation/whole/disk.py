"""Replacements of the node's two threads: the one that writes the log, and the one that reads lists."""

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import lmdb

from kvorum_node.lists import ListReader
from kvorum_node.read_jobs import ListJob
from kvorum_node.store import Store
from kvorum_node.timers import Alarm
from kvorum_raft.entry import Entry
from kvorum_raft.errors import RaftFault
from kvorum_raft.histogram import Histogram
from kvorum_raft.journal import Batch
from kvorum_raft.log_store import LogStore
from tests.simulation.whole.clock import ProcessLoop
from tests.simulation.whole.storage import Storage


class Platter:
    """How fast a machine's disk is at the moment, and whether it is broken."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.slow = 0.0
        """Seconds added to each sync."""
        self.stalled_until = 0.0
        self.fail_next = False
        self.full = False
        """Whatever needs more room fails."""
        self.base = rng.choice((0.002, 0.002, 0.01, 0.03))
        """Seconds that a sync takes, about: cheap disks promise nothing for longer."""
        self.on_write: Callable[[], None] | None = None
        """Called once, at some moment within the next sync."""
        self.on_vote: Callable[[str], None] | None = None
        """Called once, within the sync of a vote for another node, with its name. That sync takes long."""

        self.at_cut: Callable[[], None] | None = None
        """Called once, when a log has been cut and the cut is synced."""

    def calm(self) -> None:
        self.slow = self.stalled_until = 0.0
        self.fail_next = self.full = False
        self.on_write = self.on_vote = self.at_cut = None

    def sync_time(self, now: float) -> float:
        time = self.rng.uniform(0.2, 2.0) * self.base + self.slow * self.rng.uniform(0.5, 1.0)
        return max(time, self.stalled_until - now)


class SimDisk:
    """Stands for `LmdbDisk`: what queued up is written by the shipped `LogStore.write`, its sync takes a while, and the
    report comes after it."""

    def __init__(
        self,
        loop: ProcessLoop,
        platter: Platter,
        storage: Storage,
        store: LogStore,
        report: Callable[[int, RaftFault | None], None],
    ) -> None:
        self._loop = loop
        self._platter = platter
        self._storage = storage
        self._store = store
        self._report = report
        self._queue: deque[Batch | None] = deque()
        self._busy = False
        self._last_vote = ""
        self.ended = True
        self.transactions = 0
        self.seconds = Histogram()

    def start(self) -> None:
        self.ended = False

    def submit(self, batch: Batch) -> None:
        self._put(batch)

    def finish(self) -> None:
        self._put(None)

    def join(self) -> None:
        """There is no thread."""

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        return self._store.read(first, count, max_bytes)

    def _put(self, item: Batch | None) -> None:
        self._queue.append(item)
        if not self._busy:
            self._busy = True
            self._loop.clock.after(self._platter.rng.uniform(1e-5, 1e-4), self._write)

    def _write(self) -> None:
        if self._loop.dead or self.ended:
            return
        batches: list[Batch] = []
        while self._queue and (batch := self._queue[0]) is not None:
            batches.append(batch)
            self._queue.popleft()
        if not batches:
            self._end(-1, None)
            return
        try:
            if self._platter.fail_next:
                self._platter.fail_next = False
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._platter.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._loop.clock.enter(None)
            with self._storage.held_sync():
                self._store.write(batches)
        except (lmdb.Error, OSError) as error:
            self._end(0, RaftFault(f"writing the log failed: {error}"))
            return
        clock, platter = self._loop.clock, self._platter
        time = platter.sync_time(clock.now)
        vote = batches[-1].state.vote
        if platter.on_vote is not None and vote not in ("", self._loop.name, self._last_vote):
            time += 0.05
            clock.after(platter.rng.uniform(0.003, 0.05), platter.on_vote, vote)
            platter.on_vote = None
        self._last_vote = vote
        cut = any(batch.truncate_from is not None for batch in batches)
        clock.after(time, self._synced, batches[-1].seq, cut)
        if platter.on_write is not None:
            clock.after(time * platter.rng.random(), platter.on_write)
            platter.on_write = None

    def _synced(self, seq: int, cut: bool) -> None:
        if self._loop.dead:
            return
        self._storage.finish_sync()
        if cut and self._platter.at_cut is not None:
            call, self._platter.at_cut = self._platter.at_cut, None
            self._loop.clock.after(0.0, call)
        self.transactions += 1
        self._loop.run(self._report, seq, None)
        if self._queue:
            self._loop.clock.after(1e-6, self._write)
        else:
            self._busy = False

    def _end(self, seq: int, fault: RaftFault | None) -> None:
        self.ended = True
        self._loop.run(self._report, seq, fault)


class _Line:
    """The queue of the list thread."""

    def __init__(self, put: Callable[[Any], None]) -> None:
        self.put = put


class SimLists(ListReader):
    """The shipped reader with a thread that is none."""

    def __init__(self, loop: ProcessLoop, store: Store, rng: random.Random) -> None:
        super().__init__(store)
        self._sim_loop = loop
        self._rng = rng

    def start(self) -> None:
        self._loop = self._sim_loop
        self._alarm = Alarm(self._sim_loop, self._look_for_old)
        self._jobs = _Line(self._take)  # type: ignore[assignment]

    def _take(self, job: ListJob | None) -> None:
        if job is not None:
            loop = self._sim_loop
            loop.clock.after(self._rng.uniform(1e-4, 2e-3), loop.run, self._slice, job)

    def _slice(self, job: ListJob) -> None:
        if self._stopped:
            return
        part = job.step(self._store)
        if not part.more:
            job.release()
        self._stepped(job, part)
