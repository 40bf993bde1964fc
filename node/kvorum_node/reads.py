"""Reads: who may be answered from the local state, when, and with what.

Strong reads wait at the barrier, together. Reads that name the newest versionstamp their client has seen wait until
it is applied here. Point reads are then served on the loop, many from one snapshot, in slices; reads with ranges go
to the list thread.

Most reads are of one key, and a busy client makes many of them at once. They come together, as `pb.PointReads`, and are
one thing that waits and that is answered: each for itself they take twice the time.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import Overloaded, RaftError

from .barrier import Barrier
from .lists import TOO_MANY, ListReader
from .metrics.operations import OK, Meter, code_of_read
from .read_jobs import NODE, ListJob
from .slow import LOOKED_AT, Facts, SlowLog, milliseconds, of_keys
from .store import Snapshot, Store, StoreFault
from .timers import Alarm, Timers

logger = logging.getLogger("kvorum.node")

SLICE_KEYS = 256
"""Keys read in one callback: about 2 ms."""
SLICE_BYTES = 1_048_576
"""Bytes of rows beyond which the rest of a `PendingPoints` waits for the next callback."""
MAX_WAITING = 65_536
"""Reads that may be under way."""
MAX_BYTES = 64 * 1_048_576
"""Bytes of their requests."""
MAX_WAIT = 5.0
"""Seconds that a read waits for a versionstamp to be applied here."""
MAX_SLOW = 64
"""Owners that have no room for their answers; each may hold some megabytes of them."""
SLOW_PATIENCE = 1.0
"""Seconds for which one that takes nothing is left alone while there is too much."""
BEHIND = "this node has not caught up with the newest state that the client has seen"

Reply = Callable[[pb.ReadResult], None]
Taker = Callable[[ListJob, pb.ReadResult], None]
PointReply = Callable[[pb.PointAnswers], None]


class PendingRead:
    """A read and where its answer goes: `reply` takes a whole answer, `taker` the slices of a list.

    `has_room` is asked just before a point read is served, and tells for how many bytes; 0 means that its owner keeps
    it, to hand it to `Reads.resume` when there is room for its answer. The later it is served the newer the state it
    shows, so nothing is lost by that. Less than 0: an answer of more bytes than that is refused. Lists are asked for by
    `may_begin`, as `owner`'s: see `ReadJob`.
    """

    __slots__ = ("deadline", "has_room", "job", "keys", "may_begin", "owner", "read", "reply", "size", "taker")

    def __init__(
        self, read: pb.Read, reply: Reply, taker: Taker, has_room: "Callable[[Pending], int] | None" = None
    ) -> None:
        self.read = read
        self.reply = reply
        self.taker = taker
        self.has_room = has_room
        self.keys = 1
        """For how many it counts."""
        self.size = 0
        self.deadline = 0.0
        self.job: ListJob | None = None
        self.owner: Hashable = NODE
        self.may_begin: Callable[[ListJob], bool] | None = None

    def refuse(self, status: "pb.ReadStatus", message: str) -> None:
        """Answer that it is not served."""
        self.reply(pb.ReadResult(id=self.read.id, status=status, message=message))


class PendingPoints:
    """Reads of one key each, and where their answers go: `reply` may be called several times. `has_room` is as that of
    `PendingRead`, and asked before each slice."""

    __slots__ = ("deadline", "has_room", "keys", "read", "reply", "rest", "size")

    def __init__(
        self, read: pb.PointReads, reply: PointReply, has_room: "Callable[[Pending], int] | None" = None
    ) -> None:
        self.read = read
        self.reply = reply
        self.has_room = has_room
        self.rest = list(read.keys)
        """Keys that have no answer yet."""
        self.keys = len(self.rest)
        self.size = 0
        self.deadline = 0.0

    def refuse(self, status: "pb.ReadStatus", message: str) -> None:
        """Answer that the rest is not served."""
        self.reply(pb.PointAnswers(id=self.read.id, status=status, message=message))


Pending = PendingRead | PendingPoints


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
        slow: SlowLog | None = None,
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
        self._slow = slow or SlowLog(0.0, timers.time)
        self._under_way = self._bytes = 0
        self._ready: deque[Pending] = deque()
        self._serving = False
        self._behind: list[tuple[int, int, Pending]] = []
        """Heap of reads whose versionstamp is not applied yet: (index, tie, read)."""
        self._tie = 0
        self._overdue = Alarm(timers, self._drop_overdue)
        self._without_room: dict[object, tuple[float, Callable[[], None]]] = {}
        """Owners without room, whoever is that for longest first: since when, and how to end it."""
        self._served = self._gave_up = 0
        self.meter = Meter()
        """Of point reads; the times are those of linearizable ones."""
        self.damage = ""
        """What was found in the data file, if it is damaged."""
        self.full: Callable[[], str] = str
        """What those are told that are refused for want of room for their answers."""

    def submit(self, items: Sequence[Pending]) -> None:
        """Take the reads of a frame; answers may come before this returns."""
        strong: list[Pending] = []
        unreadable = self._unreadable()
        for item in items:
            problem = check_points(item) if isinstance(item, PendingPoints) else check_read(item.read)
            if problem:
                self._refuse(item, pb.READ_STATUS_INVALID, problem)
            elif unreadable:
                self._refuse(item, pb.READ_STATUS_NO_LEADER, unreadable)
            elif self._is_full and not self._make_room():
                self._refuse(item, pb.READ_STATUS_OVERLOADED, "too many reads are under way")
            else:
                self._under_way += item.keys
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

    def at_once(self, key: bytes) -> bytes | None:
        """The row of a key as `pb.PointAnswers` has it, from this node's state as it is now. None: it has to be asked
        for by `submit`, which says what is wrong."""
        if self._unreadable():
            return None
        try:
            with self._store.snapshot() as snapshot:
                (row,) = snapshot.packed((key,), SLICE_BYTES)
        except StoreFault:
            return None
        self._served += 1
        return row

    def resume(self, items: Sequence[Pending]) -> None:
        """Serve reads whose owner had no room for their answers."""
        self._ready.extend(items)
        self._serve_soon()

    def forget(self, items: Sequence[Pending]) -> None:
        """Reads whose owner had no room, and is gone."""
        for item in items:
            self._leave(item)

    def no_room(self, owner: object, give_up: Callable[[], None]) -> None:
        """An owner keeps reads until its client has taken some answers. If others need the room, and it has taken
        nothing for long, it is told to give up: it forgets them, and throws its answers away."""
        self._without_room.setdefault(owner, (self._timers.time(), give_up))
        if len(self._without_room) > MAX_SLOW:
            self._end_slowest()

    def has_room(self, owner: object) -> None:
        """Its client has taken some, or it is gone."""
        self._without_room.pop(owner, None)

    @property
    def _is_full(self) -> bool:
        return self._under_way >= MAX_WAITING or self._bytes > MAX_BYTES

    def _make_room(self) -> bool:
        """At the expense of those who cannot be served now, whatever the reason. False: there is none."""
        while self._is_full and self._end_slowest():
            pass
        if self._is_full:
            self._turn_away_behind(self._behind)
            self._behind = []
        return not self._is_full

    def _end_slowest(self) -> bool:
        """False: nobody is too slow."""
        owner, (since, give_up) = next(iter(self._without_room.items()), (None, (float("inf"), lambda: None)))
        if since > self._timers.time() - SLOW_PATIENCE:
            return False
        del self._without_room[owner]
        self._gave_up += 1
        give_up()
        return True

    def applied(self, index: int) -> None:
        """The state has moved on."""
        behind = self._behind
        if not behind:
            return
        while behind and behind[0][0] <= index:
            self._ready.append(heapq.heappop(behind)[2])
        self._serve_soon()

    def stop(self) -> None:
        """Answer what waits for a versionstamp, or for its turn. Barrier and lists are stopped by their owner."""
        self._overdue.cancel()
        waiting = [*(item for _, _, item in self._behind), *self._ready]
        self._behind.clear()
        self._ready.clear()
        for item in waiting:
            self._leave(item)
            self._refuse(item, pb.READ_STATUS_NO_LEADER, "the node stops")

    def statistics(self) -> dict[str, float]:
        return {
            "reads_served": self._served,
            "reads_under_way": self._under_way,
            "reads_behind": len(self._behind),
            "reads_slow": len(self._without_room),
            "reads_given_up": self._gave_up,
        }

    def codes(self) -> dict[str, int]:
        """How many point reads were answered with what."""
        return {OK: self._served, **self.meter.others}

    def _leave(self, item: Pending) -> None:
        self._under_way -= item.keys
        self._bytes -= item.size

    def _needs_barrier(self, read: pb.Read | pb.PointReads) -> bool:
        if read.consistency == pb.CONSISTENCY_EVENTUAL:
            return False
        if read.consistency == pb.CONSISTENCY_BOUNDED:
            return self._barrier.fresh_at < self._timers.time() - read.max_age_ms / 1000
        return True

    def _passed(self, items: Sequence[Pending], since: float, error: RaftError | None) -> None:
        if error is None:
            proved = perf_counter()
            for item in items:
                self._when_applied(item)
            self.serve()
            points = sum([item.keys if isinstance(item, PendingPoints) else item.job is None for item in items])
            seconds = perf_counter() - since
            self.meter.seconds.observe(seconds, points)
            if seconds >= self._slow.threshold:
                self._slow.took("read", seconds, partial(_slow_facts, items, OK, proved - since), points)
            return
        status = pb.READ_STATUS_OVERLOADED if isinstance(error, Overloaded) else pb.READ_STATUS_NO_LEADER
        for item in items:
            self._leave(item)
            self._refuse(item, status, str(error))
        seconds = perf_counter() - since
        if seconds >= self._slow.threshold:
            self._slow.took("read", seconds, partial(_slow_facts, items, code_of_read(status), seconds), len(items))

    def _when_applied(self, item: Pending) -> None:
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
        self._turn_away_behind(late)
        if self._behind:
            self._overdue.set(min(entry[2].deadline for entry in self._behind) - now)

    def _turn_away_behind(self, entries: "Sequence[tuple[int, int, Pending]]") -> None:
        for _, _, item in entries:
            self._leave(item)
            self._refuse(item, pb.READ_STATUS_NO_LEADER, BEHIND)

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
                if isinstance(item, PendingRead) and item.read.ranges:
                    self._leave(item)
                    self._list(item)
                    continue
                room = SLICE_BYTES if item.has_room is None else item.has_room(item)
                if room:
                    try:
                        if isinstance(item, PendingPoints):
                            left -= self._serve_points(item, snapshot, stamp, left, min(room, SLICE_BYTES))
                        else:
                            self._serve_read(item, snapshot, stamp, room)
                            left -= len(item.read.keys) or 1
                    except StoreFault as fault:
                        self._leave(item)
                        self._found_damage(item, fault)
                        break  # the snapshot is of no more use
        self._serve_soon()

    def _list(self, item: PendingRead) -> None:
        time_ms = self._now_ms() if item.read.with_expiry else 0
        item.job = self._lists.submit(item.read, item.taker, time_ms, owner=item.owner, may_begin=item.may_begin)
        if item.job is None:
            self._refuse(item, pb.READ_STATUS_OVERLOADED, TOO_MANY)

    def _serve_read(self, item: PendingRead, snapshot: Snapshot, stamp: bytes, room: int) -> None:
        read = item.read
        answer = pb.ReadResult(id=read.id, status=pb.READ_STATUS_OK, read_versionstamp=stamp)
        if read.with_expiry:
            answer.time_ms = self._now_ms()
            answer.entries.extend(snapshot.get(key, with_expiry=True) for key in read.keys)
        else:
            add = answer.entries.append
            for key in read.keys:
                add(snapshot.get(key))
        self._leave(item)
        if room < 0 and answer.ByteSize() > -room:
            self._refuse(item, pb.READ_STATUS_OVERLOADED, self.full())
            return
        self._served += 1
        item.reply(answer)

    def _serve_points(self, item: PendingPoints, snapshot: Snapshot, stamp: bytes, most: int, room: int) -> int:
        """Answer up to `most` of its keys, in `room` bytes and the row with which they exceed it, and return the
        number; what is left goes on in the next callback. With a `room` below 0 that row is left out."""
        rest = item.rest
        rows = snapshot.packed(rest[:most], abs(room))
        if room < 0 and sum(map(len, rows)) > -room:
            rows.pop()
            if not rows:
                self._leave(item)
                self._refuse(item, pb.READ_STATUS_OVERLOADED, self.full())
                return 1
        count = len(rows)
        item.rest = rest[count:]
        self._served += count
        if item.rest:
            self._ready.appendleft(item)
        else:
            self._leave(item)
        item.reply(pb.PointAnswers(id=item.read.id, status=pb.READ_STATUS_OK, read_versionstamp=stamp, rows=rows))
        return most if item.rest else count

    def turned_away(self, reads: "Sequence[pb.Read] | Sequence[pb.PointReads]", status: int) -> None:
        """Count reads that do not come as far as `submit`."""
        for read in reads:
            self._meter_of(read).refused(code_of_read(status), len(read.keys) if isinstance(read, pb.PointReads) else 1)

    def took_back(self, read: pb.Read | pb.PointReads, status: int, times: int = 1) -> None:
        """Count reads that were served, and are answered with that status all the same."""
        if isinstance(read, pb.Read) and read.ranges:
            self._lists.meter.others[code_of_read(status)] += 1
        else:
            self._served -= times
            self.meter.refused(code_of_read(status), times)

    def _meter_of(self, read: pb.Read | pb.PointReads) -> Meter:
        return self._lists.meter if isinstance(read, pb.Read) and read.ranges else self.meter

    def _refuse(self, item: Pending, status: "pb.ReadStatus", message: str) -> None:
        times = len(item.rest) if isinstance(item, PendingPoints) else 1
        self._meter_of(item.read).refused(code_of_read(status), times)
        item.refuse(status, message)

    def _found_damage(self, item: Pending, fault: StoreFault) -> None:
        """Another node may have what cannot be read here, so the client is sent on."""
        logger.critical("a key cannot be read: %s", fault)
        self.damage = str(fault)
        self._refuse(item, pb.READ_STATUS_NO_LEADER, self.damage)


def _slow_facts(items: Sequence[Pending], code: str, waited: float) -> Facts:
    """`waited`: for the proof that the leader leads, and until everything committed before was applied."""
    keys = [key for item in items for key in islice(item.read.keys, LOOKED_AT)]
    return {"code": code, "reads": len(items), "waited_ms": milliseconds(waited), **of_keys(keys)}


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


def check_points(item: PendingPoints) -> str:
    """What is wrong with reads of one key each; empty if nothing."""
    longest = max(map(len, item.rest), default=-1)
    if longest < 0:
        return "there is no key to be read"
    if longest > limits.MAX_READ_KEY_SIZE:
        return f"a key has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE), got {longest:,}"
    if len(item.read.min_versionstamp) not in (0, 10):
        return f"a versionstamp has 10 bytes, got {len(item.read.min_versionstamp)}"
    return ""
