"""Reads: who may be answered from the local state, when, and with what.

Strong reads wait at the barrier, together. Reads that name the newest versionstamp their client has seen wait until
it is applied here. Point reads are then served on the loop, many from one snapshot, in slices; reads with ranges go
to the list thread.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import Overloaded, RaftError

from .barrier import Barrier
from .lists import ListJob, ListReader
from .metrics.operations import OK, Meter, code_of_read
from .store import Store, StoreFault
from .timers import Alarm, Timers

logger = logging.getLogger("kvorum.node")

SLICE_KEYS = 256
"""Keys read in one callback: about 2 ms."""
MAX_WAITING = 65_536
"""Reads that may be under way."""
MAX_BYTES = 64 * 1_048_576
"""Bytes of their requests."""
MAX_WAIT = 5.0
"""Seconds that a read waits for a versionstamp to be applied here."""

Reply = Callable[[pb.ReadResult], None]
Taker = Callable[[ListJob, pb.ReadResult], None]


class PendingRead:
    """A read and where its answer goes: `reply` takes a whole answer, `taker` the slices of a list.

    `has_room` is asked just before a point read is served; False means that its owner keeps it, to hand it to
    `Reads.resume` when there is room for its answer. The later it is served the newer the state it shows, so nothing
    is lost by that.
    """

    __slots__ = ("deadline", "has_room", "job", "read", "reply", "size", "taker")

    def __init__(
        self, read: pb.Read, reply: Reply, taker: Taker, has_room: "Callable[[PendingRead], bool] | None" = None
    ) -> None:
        self.read = read
        self.reply = reply
        self.taker = taker
        self.has_room = has_room
        self.size = 0
        self.deadline = 0.0
        self.job: ListJob | None = None


class Reads:
    """All reads of a node."""

    def __init__(
        self,
        store: Store,
        barrier: Barrier,
        lists: ListReader,
        timers: Timers,
        *,
        now_ms: Callable[[], int],
        max_wait: float = MAX_WAIT,
        unreadable: Callable[[], str] = str,
    ) -> None:
        """`now_ms` is the cluster's time, as far as it is known here. `unreadable` says why nothing may be read here
        now, whatever is asked for; empty: it may."""
        self._store = store
        self._barrier = barrier
        self._lists = lists
        self._timers = timers
        self._now_ms = now_ms
        self._max_wait = max_wait
        self._unreadable = unreadable
        self._under_way = self._bytes = 0
        self._ready: deque[PendingRead] = deque()
        self._serving = False
        self._behind: list[tuple[int, int, PendingRead]] = []
        """Heap of reads whose versionstamp is not applied yet: (index, tie, read)."""
        self._tie = 0
        self._overdue = Alarm(timers, self._drop_overdue)
        self._served = 0
        self.meter = Meter()
        """Of point reads; the times are those of linearizable ones."""
        self.damage = ""
        """What was found in the data file, if it is damaged."""

    def submit(self, items: Sequence[PendingRead]) -> None:
        """Take the reads of a frame; answers may come before this returns."""
        strong: list[PendingRead] = []
        unreadable = self._unreadable()
        for item in items:
            problem = check_read(item.read)
            if problem:
                self._refuse(item, pb.READ_STATUS_INVALID, problem)
            elif unreadable:
                self._refuse(item, pb.READ_STATUS_NO_LEADER, unreadable)
            elif self._under_way >= MAX_WAITING or self._bytes > MAX_BYTES:
                self._refuse(item, pb.READ_STATUS_OVERLOADED, "too many reads are under way")
            else:
                self._under_way += 1
                item.size = item.read.ByteSize()
                self._bytes += item.size
                if self._needs_barrier(item.read):
                    strong.append(item)
                else:
                    self._when_applied(item)
        if strong:
            since = perf_counter()
            self._barrier.wait(lambda error: self._passed(strong, since, error))
        self._serve_soon()

    def resume(self, items: Sequence[PendingRead]) -> None:
        """Serve reads whose owner had no room for their answers."""
        self._ready.extend(items)
        self._serve_soon()

    def forget(self, items: Sequence[PendingRead]) -> None:
        """Reads whose owner had no room, and is gone."""
        for item in items:
            self._leave(item)

    def applied(self, index: int) -> None:
        """The state has moved on."""
        behind = self._behind
        if not behind:
            return
        while behind and behind[0][0] <= index:
            self._ready.append(heapq.heappop(behind)[2])
        self._serve_soon()

    def stop(self) -> None:
        """Answer what waits for a versionstamp. The barrier and the lists are stopped by their owner."""
        self._overdue.cancel()
        for _, _, item in self._behind:
            self._leave(item)
            self._refuse(item, pb.READ_STATUS_NO_LEADER, "the node stops")
        self._behind.clear()

    def statistics(self) -> dict[str, float]:
        return {"reads_served": self._served, "reads_under_way": self._under_way, "reads_behind": len(self._behind)}

    def codes(self) -> dict[str, int]:
        """How many point reads were answered with what."""
        return {OK: self._served, **self.meter.others}

    def _leave(self, item: PendingRead) -> None:
        self._under_way -= 1
        self._bytes -= item.size

    def _needs_barrier(self, read: pb.Read) -> bool:
        if read.consistency == pb.CONSISTENCY_EVENTUAL:
            return False
        if read.consistency == pb.CONSISTENCY_BOUNDED:
            return self._barrier.fresh_at < self._timers.time() - read.max_age_ms / 1000
        return True

    def _passed(self, items: Sequence[PendingRead], since: float, error: RaftError | None) -> None:
        if error is None:
            for item in items:
                self._when_applied(item)
            self.serve()
            self.meter.seconds.observe(perf_counter() - since, sum([item.job is None for item in items]))
            return
        status = pb.READ_STATUS_OVERLOADED if isinstance(error, Overloaded) else pb.READ_STATUS_NO_LEADER
        for item in items:
            self._leave(item)
            self._refuse(item, status, str(error))

    def _when_applied(self, item: PendingRead) -> None:
        least = item.read.min_versionstamp
        if least:
            index = int.from_bytes(least[:8], "big") - self._store.stamp_base
            if index > self._store.applied_index:
                self._tie += 1
                item.deadline = self._timers.time() + self._max_wait
                heapq.heappush(self._behind, (index, self._tie, item))
                self._overdue.set_no_later(self._max_wait)
                return
        self._ready.append(item)

    def _drop_overdue(self) -> None:
        now = self._timers.time()
        late = [entry for entry in self._behind if entry[2].deadline <= now]
        self._behind = [entry for entry in self._behind if entry[2].deadline > now]
        heapq.heapify(self._behind)
        for _, _, item in late:
            self._leave(item)
            self._refuse(
                item,
                pb.READ_STATUS_NO_LEADER,
                "this node has not caught up with the newest state that the client has seen",
            )
        if self._behind:
            self._overdue.set(min(entry[2].deadline for entry in self._behind) - now)

    def _serve_soon(self) -> None:
        if self._ready and not self._serving:
            self._serving = True
            self._timers.call_soon(self._serve_next)

    def _serve_next(self) -> None:
        self._serving = False
        self.serve()

    def serve(self) -> None:
        """Answer a slice of what is ready, without waiting for the loop's next turn."""
        ready = self._ready
        if not ready:
            return
        left = SLICE_KEYS
        with self._store.snapshot() as snapshot:
            stamp = snapshot.versionstamp
            while ready and left > 0:
                item = ready.popleft()
                read = item.read
                if not read.ranges and item.has_room is not None and not item.has_room(item):
                    continue
                self._leave(item)
                if read.ranges:
                    item.job = self._lists.submit(read, item.taker, self._now_ms() if read.with_expiry else 0)
                    if item.job is None:
                        self._refuse(item, pb.READ_STATUS_OVERLOADED, "too many lists wait")
                    continue
                answer = pb.ReadResult(id=read.id, status=pb.READ_STATUS_OK, read_versionstamp=stamp)
                keys = read.keys
                add = answer.entries.append
                try:
                    if read.with_expiry:
                        answer.time_ms = self._now_ms()
                        answer.entries.extend(snapshot.get(key, with_expiry=True) for key in keys)
                    else:
                        for key in keys:
                            add(snapshot.get(key))
                except StoreFault as fault:
                    self._found_damage(item, fault)
                    break  # the snapshot is of no more use
                left -= len(keys) or 1
                self._served += 1
                item.reply(answer)
        self._serve_soon()

    def _refuse(self, item: PendingRead, status: "pb.ReadStatus", message: str) -> None:
        self.meter.refused(code_of_read(status))
        item.reply(pb.ReadResult(id=item.read.id, status=status, message=message))

    def _found_damage(self, item: PendingRead, fault: StoreFault) -> None:
        """Another node may have what cannot be read here, so the client is sent on."""
        logger.critical("a key cannot be read: %s", fault)
        self.damage = str(fault)
        self._refuse(item, pb.READ_STATUS_NO_LEADER, self.damage)


def check_read(read: pb.Read) -> str:
    """What is wrong with a read; empty if nothing."""
    keys, ranges = read.keys, read.ranges
    parts = len(keys) + len(ranges)
    if parts > limits.MAX_READ_RANGES:
        return f"a read has at most {limits.MAX_READ_RANGES} keys and ranges (MAX_READ_RANGES), got {parts}"
    for key in keys:
        if len(key) > limits.MAX_READ_KEY_SIZE:
            return f"a key has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE), got {len(key):,}"
    total = len(keys)
    for selected in ranges:
        if not selected.count_only:
            if not selected.limit:
                return "the limit of a range must be greater than 0"
            total += selected.limit
        longest = max(len(selected.start), len(selected.end))
        if longest > limits.MAX_READ_KEY_SIZE:
            return f"a range bound has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE), got {longest:,}"
    if total > limits.MAX_READ_ENTRIES:
        return f"a read asks for at most {limits.MAX_READ_ENTRIES:,} rows (MAX_READ_ENTRIES), got {total:,}"
    if len(read.min_versionstamp) not in (0, 10):
        return f"a versionstamp has 10 bytes, got {len(read.min_versionstamp)}"
    return ""
