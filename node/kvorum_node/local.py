"""Consensus of one: the embedded store's stand-in for Raft, without a log.

An entry is durable when the state machine's own synced transaction is, so there is nothing to replay: the next index
is applied + 1. Applying ends with a disk sync, which must not hold up the event loop, so entries are applied in one
writer thread, in order. The proposer above has few entries in flight; what arrives while the thread syncs shares the
next one.

Rejected: applying on the loop and syncing in a thread (an LMDB write transaction belongs to the thread that began
it); `asyncio.to_thread` (its pool gives no order and grows by itself).
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import lmdb

from kvorum_raft.errors import NoSpace, NotLeader, Overloaded, UnknownOutcome
from kvorum_raft.isolation import Isolation
from kvorum_raft.seams import Applied, Member, Status

logger = logging.getLogger("kvorum.node")

MAX_WAITING = 64
"""Entries that may wait for the writer thread."""

_Job = tuple[bytes, int, "asyncio.Future[Applied]"]


class Machine(Protocol):
    """As much of `kvorum_raft.seams.StateMachine` as is needed without a log and without snapshots."""

    @property
    def applied_index(self) -> int: ...

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]: ...


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LocalConsensus:
    """`kvorum_raft.seams.Consensus` over one state machine.

    After a fault in apply nothing more is taken: see `fault`.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        last_time_ms: int = 0,
        clock_ms: Callable[[], int] = wall_clock_ms,
        max_waiting: int = MAX_WAITING,
        check: Callable[[], object] = bool,
        is_full: Callable[[], bool] = bool,
    ) -> None:
        """`check` reads something of the state, and raises if it cannot be used any more. `is_full` says whether the
        disk is nearly full."""
        self._machine = machine
        self._is_full = is_full
        self._check = check
        self._clock_ms = clock_ms
        self._last_time_ms = last_time_ms
        self._max_waiting = max_waiting
        self._waiting = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._on_applied: list[Callable[[Applied], None]] = []
        self._on_leadership: list[Callable[[bool], None]] = []
        self._isolation = Isolation("local")
        self._stopping = False
        self.fault: Exception | None = None
        """What ended the writer thread, if something did: the disk or the state machine failed."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kvorum-writer", daemon=True)
        self._thread.start()
        for callback in self._on_leadership:
            callback(True)

    async def stop(self) -> None:
        """Apply what was taken, then end the thread."""
        if self._thread is None or self._stopped is None:
            return
        if not self._stopping:
            self._stopping = True
            self._jobs.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()

    def propose(self, payload: bytes) -> "asyncio.Future[Applied]":
        if self._loop is None or self._stopping:
            raise NotLeader("the database is closed")
        if self.fault is not None:
            raise NotLeader(f"the database stopped: {self.fault}")
        if self._waiting >= self._max_waiting:
            raise Overloaded("too many entries wait for the disk")
        self._waiting += 1
        self._last_time_ms = self.now_ms()
        future: asyncio.Future[Applied] = self._loop.create_future()
        self._jobs.put((payload, self._last_time_ms, future))
        return future

    async def read_index(self) -> int:
        """Answers come after their entry is applied, so the state always holds everything that was acknowledged."""
        return self._machine.applied_index

    def now_ms(self) -> int:
        return max(self._last_time_ms, self._clock_ms())

    @property
    def is_leader(self) -> bool:
        return not self._stopping and self.fault is None

    @property
    def leader(self) -> Member | None:
        return Member("local", "", "") if self.is_leader else None

    @property
    def commit_index(self) -> int:
        return self._machine.applied_index

    def status(self) -> Status:
        index = self._machine.applied_index
        return Status("local", b"", "local", 0, self.leader, index, index, index, index)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        self._on_leadership.append(callback)

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        self._on_applied.append(callback)

    def on_installed(self, callback: Callable[[int], None]) -> None:
        """Never: nobody sends snapshots to a consensus of one."""

    def _run(self) -> None:
        """The writer thread."""
        loop = self._loop
        assert loop is not None
        while (job := self._jobs.get()) is not None:
            payload, time_ms, future = job
            try:
                index = self._machine.applied_index + 1
                since = time.perf_counter()
                result = self._apply(index, time_ms, payload)
                applied = Applied(index, time_ms, result, time.perf_counter() - since)
            except Exception as error:  # noqa: BLE001 - whatever it was, the state may not be written to any more
                if self._was_full(error):
                    loop.call_soon_threadsafe(self._refused, future, error)
                    continue
                self.fault = error
                loop.call_soon_threadsafe(self._failed, future, error)
                break
            loop.call_soon_threadsafe(self._done, future, applied)
        loop.call_soon_threadsafe(self._ended)

    def _was_full(self, error: Exception) -> bool:
        """Whether an entry only found no room: its transaction was given up, and the state is as it was.

        A write that the disk took a part of is EIO to LMDB. If the last step of a commit broke, LMDB takes the
        environment out of service, and nobody can say what it holds: that is no want of room any more.
        """
        try:
            if isinstance(error, (lmdb.DiskError, lmdb.MapFullError)):
                self._check()
                return True
            if type(error) is lmdb.Error and self._is_full():
                self._check()
                return True
        except Exception:
            logger.exception("the state cannot be used after an entry that found no room")
        return False

    def _apply(self, index: int, time_ms: int, payload: bytes) -> Any:
        slices = self._machine.apply(index, time_ms, payload)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return end.value

    def _done(self, future: "asyncio.Future[Applied]", applied: Applied) -> None:
        self._waiting -= 1
        for callback in self._on_applied:
            with self._isolation:  # the entry is durable: whoever waits for it must hear of that
                callback(applied)
        if not future.done():
            future.set_result(applied)

    def _refused(self, future: "asyncio.Future[Applied]", error: Exception) -> None:
        """There was no room for the entry."""
        self._waiting -= 1
        logger.error("an entry found no room: %s", error)
        if not future.done():
            future.set_exception(NoSpace(f"no room for this write: {error}; free space, or delete keys"))

    def _failed(self, future: "asyncio.Future[Applied]", error: Exception) -> None:
        logger.critical("the database stops: applying an entry failed: %s: %s", type(error).__name__, error)
        if not future.done():
            # The sync may have failed after the data went out: nobody can say what a reopened folder will show.
            future.set_exception(UnknownOutcome(f"{type(error).__name__}: {error}"))
        for callback in self._on_leadership:
            callback(False)

    def _ended(self) -> None:
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None and not job[2].done():
                job[2].set_exception(NotLeader("the database stopped before this entry was applied"))
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)


__all__ = ["LocalConsensus", "wall_clock_ms"]
