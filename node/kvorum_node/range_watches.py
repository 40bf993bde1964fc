"""Range watches: every change of a range of keys, in the order of the commits, each once.

A watch is a range and a place in the replicated history (see `store.history`), nothing else: it holds no changes. While
its place is behind the state and whoever serves it has room, it is given what the history holds for it, a bounded slice
in its turn; a watcher that does not read leaves its place where it is, and costs nothing, until the history that it
would need is gone. Then it ends, and is told from where on it could go on.

An applied entry moves the watches in whose ranges it changed something to the line of those to be served. All others
move forward for free: they are known to have missed nothing up to the newest entry, and are told so now and then, so
that they can go on from there after a break however quiet their range was.

A commit's changes come together, in one event. Only those of a commit far above what a client may write (a sweep, say)
may take several; all but the last of these come without `through`, which moves over whole commits only.

Since followers, restarted nodes and installed snapshots have the same history, a place means the same on all of them.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kvorum._proto import kvorum_pb2 as pb

from .ranges import Ranges
from .store import Snapshot, Store, StoreFault, history
from .store.history import DELETED, EXPIRED, Place
from .store.reads import write_bare_entry, write_entry
from .timers import Alarm, Timers

logger = logging.getLogger("kvorum.node")

MAX_WATCHES: Final = 20_000
"""Range watches of one node."""
SLICE_CHANGES: Final = 1_024
"""Changes looked at in one turn of the loop, for all watches together: about 2 ms."""
MAX_LOOKED: Final = 16_384
"""Ranges looked at for one entry: some 8 ms. Where that does not do, every watch looks at the history, in its turn."""
EVENT_CHANGES: Final = 256
EVENT_BYTES: Final = 256 * 1024
"""An event ends with the commit that reaches one of these."""
MOST_CHANGES: Final = 1_024
MOST_BYTES: Final = 1_536 * 1024
"""A commit is split where it reaches one of these; a client's own commit cannot."""
MARK_INTERVAL: Final = 3.0
"""Seconds between progress marks."""
MARKS: Final = 256
"""Watches looked at for marks in one turn of the loop."""
CACHED_BYTES: Final = 4 * 1_048_576
_EACH: Final = 8
"""What serving a watch weighs besides the changes."""
_KINDS: Final = {DELETED[0]: pb.CHANGE_KIND_DELETE, EXPIRED[0]: pb.CHANGE_KIND_EXPIRE}
_LAST: Final = b"\xff\xff"

Deliver = Callable[["RangeWatch", pb.WatchEvent], None]
HasRoom = Callable[["RangeWatch"], bool]


class RangeWatch:
    """One range under watch. Its owner is given events by `deliver`, without an id; one with an error is the last.

    `has_room` is asked before; False means that the owner keeps the watch, to hand it to `RangeHub.resume`.
    """

    __slots__ = (
        "bounds",
        "deliver",
        "has_room",
        "keys_only",
        "line",
        "mark_due",
        "open",
        "part",
        "place",
        "placed",
        "through",
        "touched",
    )

    def __init__(
        self, bounds: tuple[bytes, bytes], since: bytes, *, keys_only: bool, deliver: Deliver, has_room: HasRoom
    ) -> None:
        self.bounds = bounds
        self.keys_only = keys_only
        self.deliver = deliver
        self.has_room = has_room
        self.through = since
        """All changes up to here were delivered; of an idle watch there are none up to the newest entry either."""
        self.place: Place | None = None
        """Where to read on, if that is known better than by `through`."""
        self.part = b""
        """The commit of which only a part was told yet. Its end is told for itself, be there anything left of it in the
        range or not: else a watcher that comes back could not tell what it has."""
        self.open = False
        self.placed = False
        """The hub knows of its range."""
        self.line = False
        """It waits to be served, in the line or with its owner."""
        self.touched = False
        """Something may have changed in its range after `through`."""
        self.mark_due = True
        """Its owner waits for a first `through`."""


class RangeHub:
    """All range watches of a node."""

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._watches: dict[RangeWatch, None] = {}
        self._ranges: Ranges[RangeWatch] = Ranges()
        self._newest = b""
        """The versionstamp of the newest entry that `applied` was told of: watches that were not touched have missed
        nothing up to it."""
        self._ready: deque[RangeWatch] = deque()
        self._serving = False
        self._to_mark: deque[RangeWatch] = deque()
        self._mark_alarm = Alarm(timers, self._begin_marks)
        self._cache: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """Rows of history as they were read last, for those who come to them next."""
        self._cached = 0
        self._events = self._changes = self._compacted = 0

    def add(
        self, bounds: tuple[bytes, bytes], since: bytes, *, keys_only: bool, deliver: Deliver, has_room: HasRoom
    ) -> RangeWatch:
        """Watch the keys of start <= key < end for changes after `since` (10 bytes; empty = after what is applied at
        its first event, which has no changes and says so). Nothing comes before `begin`."""
        watch = RangeWatch(bounds, since, keys_only=keys_only, deliver=deliver, has_room=has_room)
        self._watches[watch] = None
        return watch

    @property
    def is_full(self) -> bool:
        return len(self._watches) >= MAX_WATCHES

    def begin(self, watch: RangeWatch) -> None:
        """The state is new enough: let events go out. The first one comes soon, and says where the watch stands."""
        if watch not in self._watches or watch.open:
            return
        watch.open = True
        self._mark_alarm.set_no_later(MARK_INTERVAL)
        self._queue(watch)

    def _place(self, watch: RangeWatch, newest: bytes) -> None:
        """When it is served for the first time, so that a thousand that begin together take several turns."""
        watch.placed = True
        if watch.through:
            watch.touched = watch.through < newest
        else:
            watch.through = newest
        self._ranges.add(watch.bounds, watch)

    def remove(self, watch: RangeWatch) -> None:
        """Nothing more comes. Idempotent."""
        if self._watches.pop(watch, watch) is None:
            watch.open = False
            self._ranges.remove(watch.bounds, watch)
            if not self._watches:
                self._mark_alarm.cancel()
                self._forget_rows()

    def end(self, watch: RangeWatch, reason: str) -> None:
        """The watcher should start again, elsewhere or later, from where it stands."""
        self._end(watch, pb.WatchEvent(error=reason, retryable=True))

    def end_all(self, reason: str) -> None:
        for watch in list(self._watches):
            self.end(watch, reason)

    def _end(self, watch: RangeWatch, event: pb.WatchEvent) -> None:
        if watch in self._watches:
            self.remove(watch)
            watch.deliver(watch, event)

    def resume(self, watches: Iterable[RangeWatch]) -> None:
        """Serve watches whose owner had no room."""
        for watch in watches:
            if watch.open:
                watch.line = False
                self._queue(watch)

    # ---- news

    def applied(self, index: int, changed_keys: Iterable[bytes]) -> None:
        """An entry has touched these keys. To be told of every entry, in order."""
        number = index + self._store.stamp_base
        before, self._newest = self._newest, number.to_bytes(8, "big") + _LAST
        if not len(self._ranges):
            return
        before = max(before, (number - 1).to_bytes(8, "big") + _LAST)
        told: set[int] = set()
        """Ranges, all of whose watches are touched by now."""
        looked = 0
        for key in changed_keys:
            for watches in self._ranges.holding(key):
                looked += 1
                if id(watches) not in told:
                    told.add(id(watches))
                    self._touch_all(watches, before)
            if len(told) == len(self._ranges):
                return
            if looked > MAX_LOOKED:
                self._touch_all((watch for watch in self._watches if watch.placed), before)
                return

    def _touch_all(self, watches: Iterable[RangeWatch], before: bytes) -> None:
        for watch in watches:
            if not watch.touched:
                self._catch_up(watch, before)
                self._touch(watch)

    def installed(self) -> None:
        """A snapshot became the state, and its history the history: read on in it from where each watch stands. What
        was read before may have been that of a replica that had to be replaced (rules A6)."""
        self._forget_rows()
        for watch in self._watches:
            if watch.placed and not watch.touched:
                self._catch_up(watch, self._newest)
                self._touch(watch)

    def _touch(self, watch: RangeWatch) -> None:
        watch.touched = True
        self._queue(watch)

    @staticmethod
    def _catch_up(watch: RangeWatch, stamp: bytes) -> None:
        """A watch that was not touched has missed nothing up to `stamp`."""
        if stamp > watch.through:
            watch.through, watch.place = stamp, None

    # ---- serving

    def _queue(self, watch: RangeWatch) -> None:
        if not watch.line:
            watch.line = True
            self._ready.append(watch)
        if self._ready and not self._serving:
            self._serving = True
            self._timers.call_soon(self._serve)

    def _serve(self) -> None:
        """One turn: a slice for each of the first in the line."""
        self._serving = False
        left = SLICE_CHANGES
        ready = self._ready
        while ready and not ready[0].open:
            ready.popleft()
        if not ready:
            return
        with self._store.snapshot() as snapshot:
            newest, oldest = snapshot.versionstamp, snapshot.oldest
            for _ in range(len(ready)):
                watch = ready.popleft()
                if watch.open and watch.has_room(watch):
                    watch.line = False
                    try:
                        left -= self._step(snapshot, watch, newest, oldest)
                    except StoreFault as fault:
                        logger.critical("the change history cannot be read: %s", fault)
                        self.end(watch, str(fault))
                        break  # the snapshot is of no more use
                if left <= 0:
                    break
        if ready and not self._serving:
            self._serving = True
            self._timers.call_soon(self._serve)

    def _step(self, snapshot: Snapshot, watch: RangeWatch, newest: bytes, oldest: bytes) -> int:
        """Give a watch its slice; returns the number of changes looked at."""
        if not watch.placed:
            if watch.through > newest:
                self._end(watch, _unknown(watch.through, newest))
                return _EACH
            self._place(watch, newest)
        if not watch.touched:
            self._catch_up(watch, self._newest)
        elif watch.through < (oldest or newest):
            self._compacted += 1
            self._end(watch, _compacted(watch.through, oldest or newest))
            return _EACH
        if watch.mark_due:
            # alone, so that a watcher knows from its first event where it began
            watch.mark_due = False
            self._tell(watch, pb.WatchEvent(through=watch.through))
            if watch.touched:
                self._queue(watch)
            return _EACH
        if not watch.touched:
            return _EACH
        event, seen, watch.touched = self._slice(snapshot, watch, newest)
        if watch.touched:
            self._queue(watch)
        else:
            self._catch_up(watch, newest)
            event.through = watch.through
        if event.changes or (watch.part and event.through):
            watch.part = b"" if event.through else event.changes[-1].entry.versionstamp
            self._tell(watch, event)
        return seen + _EACH

    def _tell(self, watch: RangeWatch, event: pb.WatchEvent) -> None:
        self._events += 1
        self._changes += len(event.changes)
        watch.deliver(watch, event)

    def _slice(self, snapshot: Snapshot, watch: RangeWatch, newest: bytes) -> tuple[pb.WatchEvent, int, bool]:
        """An event, the number of changes looked at, and whether there is more."""
        place = watch.place or history.first_place(watch.through)
        start, end = watch.bounds
        found: list[tuple[bytes, bytes]] = []
        size = seen = read = 0
        previous = commit = watch.through
        commit_place, commit_found = place, 0
        for name, packed in snapshot.history(place):
            changes = self._unpacked(name, packed)
            read += len(packed)
            for at in range(place.changes if name == place.name else 0, len(changes)):
                key, row = changes[at]
                stamp = row[1:11]
                if stamp <= watch.through:
                    continue
                if stamp != commit:
                    if commit == watch.part or seen >= EVENT_CHANGES or max(size, read // 4) >= EVENT_BYTES:
                        watch.through, watch.place = commit, Place(name, at)
                        return _event(found, watch, commit), seen, True
                    commit_found, commit_place = len(found), Place(name, at)
                    previous, commit = commit, stamp
                elif len(found) >= MOST_CHANGES or size >= MOST_BYTES or seen >= 2 * MOST_CHANGES:
                    watch.through = previous
                    if commit_found:  # what is whole goes first
                        watch.place = commit_place
                        return _event(found[:commit_found], watch, previous), seen, True
                    watch.place = Place(name, at)
                    return _event(found, watch, b""), seen, True
                seen += 1
                if start <= key < end:
                    found.append((key, row))
                    size += len(key) + (0 if watch.keys_only else len(row))
        return _event(found, watch, newest), seen, False

    def _unpacked(self, name: bytes, packed: bytes) -> list[tuple[bytes, bytes]]:
        changes = self._cache.get(name)
        if changes is None:
            if self._cached > CACHED_BYTES:
                self._forget_rows()
            changes = self._cache[name] = history.unpack(packed)
            self._cached += len(packed)
        return changes

    def _forget_rows(self) -> None:
        self._cache.clear()
        self._cached = 0

    # ---- progress marks

    def _begin_marks(self) -> None:
        self._mark_alarm.set(MARK_INTERVAL)
        if not self._to_mark:
            self._to_mark.extend(self._watches)
            self._mark()

    def _mark(self) -> None:
        for _ in range(min(MARKS, len(self._to_mark))):
            watch = self._to_mark.popleft()
            if watch.open and not watch.line and watch.through < self._newest:
                watch.mark_due = True
                self._queue(watch)
        if self._to_mark:
            self._timers.call_soon(self._mark)

    def statistics(self) -> dict[str, float]:
        return {
            "range_watches": len(self._watches),
            "watched_ranges": len(self._ranges),
            "range_watch_events": self._events,
            "range_watch_changes": self._changes,
            "range_watches_compacted": self._compacted,
            "range_watches_waiting": len(self._ready),
        }


def _event(found: list[tuple[bytes, bytes]], watch: RangeWatch, through: bytes) -> pb.WatchEvent:
    event = pb.WatchEvent(through=through)
    add = event.changes.add
    for key, row in found:
        kind = _KINDS.get(row[0])
        change = add()
        change.kind = pb.CHANGE_KIND_SET if kind is None else kind
        write = write_entry if kind is None and not watch.keys_only else write_bare_entry
        write(change.entry, key, row)
    return event


def _unknown(since: bytes, newest: bytes) -> pb.WatchEvent:
    """The barrier was passed, so nothing with this versionstamp was ever committed. To wait for it would be to be
    silent for ever; and its watcher would take it for what the state has come to."""
    return pb.WatchEvent(error=f"{since.hex()} is no versionstamp of this database: the newest is {newest.hex()}")


def _compacted(since: bytes, oldest: bytes) -> pb.WatchEvent:
    return pb.WatchEvent(
        error=f"changes after {since.hex()} are not kept any more: list what there is, and go on from {oldest.hex()}",
        oldest=oldest,
    )
