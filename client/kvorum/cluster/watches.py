"""Watches that outlive connections. No I/O, no clock.

A watcher wants the newest snapshot, not each one, so the hand-over holds one: a newer snapshot replaces what was not
fetched. After a reconnect the node sends the current snapshot once more, as it must; it is dropped if it is what the
watcher has seen last. It is asked for a state not older than the newest one seen by this client, so that a watch
never runs backwards.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.fetched import Fetched
from kvorum.cluster.ranges import RangeWatch
from kvorum.rights import refused

MAX_WATCHES: Final = 10_000
"""Open watches of one client."""
MAX_BYTES: Final = 262_144
"""Bytes of registrations in one frame, after which no more go into it."""

Snapshot = Sequence[pb.KvEntry]


class Watch(Fetched[Snapshot]):
    """One watch: `next` waits for a snapshot that is newer than the last one it gave."""

    __slots__ = ("_fresh", "_pending", "_seen", "_stamp", "id", "keys", "registered")

    def __init__(self, watch_id: int, keys: Sequence[bytes], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.id = watch_id
        self.keys = list(keys)
        self.registered = False
        self._pending: Snapshot | None = None
        self._seen: tuple[bytes, ...] | None = None
        self._stamp = b""
        self._fresh = False

    @property
    def stamp(self) -> bytes:
        """The newest state seen; empty before the first event."""
        return self._stamp

    def registration(self, newest: bytes) -> pb.StartWatch:
        return pb.StartWatch(id=self.id, keys=self.keys, min_versionstamp=max(newest, self.stamp))

    def restart(self) -> None:
        """The stream is gone; the next event is the answer to a new registration."""
        self.registered = False
        self._fresh = True

    def event(self, event: pb.WatchEvent) -> None:
        """Take in a snapshot, unless it is older than the last one or repeats it after a reconnect."""
        if event.read_versionstamp < self._stamp or len(event.entries) != len(self.keys):
            return
        self._stamp = event.read_versionstamp
        seen = tuple(entry.versionstamp for entry in event.entries)
        repeated, self._fresh = self._fresh and seen == self._seen, False
        if repeated:
            return
        self._seen = seen
        self._pending = event.entries
        self._wake()

    def _take(self) -> Snapshot | None:
        pending, self._pending = self._pending, None
        return pending


AnyWatch = Watch | RangeWatch


class Watches:
    """All watches of a client."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_id = 0
        self._live: dict[int, AnyWatch] = {}
        self._to_start: dict[int, AnyWatch] = {}
        self._to_stop: deque[int] = deque()
        self._later: dict[int, AnyWatch] = {}
        self._paused: dict[int, RangeWatch] = {}
        self.refusals = 0

    def start(self, keys: Sequence[bytes]) -> Watch:
        """Register a watch. Errors: Overloaded."""
        watch = Watch(self._next_id(), keys, self._loop)
        self._live[watch.id] = self._to_start[watch.id] = watch
        return watch

    def start_range(self, bounds: tuple[bytes, bytes], since: bytes, *, keys_only: bool) -> RangeWatch:
        """Register a watch of a range. Errors: Overloaded."""
        watch = RangeWatch(self._next_id(), bounds, since, keys_only, self._loop)
        self._live[watch.id] = self._to_start[watch.id] = watch
        return watch

    def _next_id(self) -> int:
        if len(self._live) + len(self._paused) >= MAX_WATCHES:
            raise errors.Overloaded(f"{MAX_WATCHES:,} watches are open already")
        self._last_id += 1
        return self._last_id

    def resume(self, watch: RangeWatch) -> bool:
        """Its consumer has fetched something; True if the watch is to be started again."""
        if not watch.paused or not watch.has_caught_up or self._paused.pop(watch.id, None) is None:
            return False
        watch.paused = False
        # under a new id, so that what is still on its way under the old one is not taken for news
        self._last_id += 1
        watch.id = self._last_id
        self._live[watch.id] = self._to_start[watch.id] = watch
        return True

    def stop(self, watch: AnyWatch) -> None:
        """The watcher is gone."""
        self._paused.pop(watch.id, None)
        if self._live.pop(watch.id, None) is None:
            return
        self._to_start.pop(watch.id, None)
        self._later.pop(watch.id, None)
        if watch.registered:
            self._to_stop.append(watch.id)

    def end_all(self, problem: Callable[[], errors.KvorumError]) -> None:
        """End every watch with an error, also those that nobody iterates at the moment."""
        for watch in [*self._live.values(), *self._paused.values()]:
            self.stop(watch)
            watch.fail(problem())

    @property
    def expecting(self) -> bool:
        """Watches are open: the silence of a node matters."""
        return bool(self._live)

    @property
    def has_refused(self) -> bool:
        """Watches that a node ended wait for `retry_refused`."""
        return bool(self._later)

    @property
    def has_stops(self) -> bool:
        """Ends of watches wait to be sent."""
        return bool(self._to_stop)

    def fill(self, frame: pb.ClientFrame, newest: bytes, operations: int) -> int:
        """Put registrations and their ends into a frame. `newest` is the newest state that the client has seen."""
        count = size = 0
        while self._to_stop and count < operations:
            frame.stop_watches.append(self._to_stop.popleft())
            count += 1
        while self._to_start and count < operations and size < MAX_BYTES:
            watch = self._to_start.pop(next(iter(self._to_start)))
            watch.registered = True
            registration = watch.registration(newest)
            frame.watches.append(registration)
            size += registration.ByteSize()
            count += 1
        return count

    def connection_lost(self) -> None:
        """The stream is gone: all are to be registered again."""
        self._to_stop.clear()
        self._later.clear()
        for watch in self._live.values():
            watch.restart()
        self._to_start = dict(self._live)

    def retry_refused(self) -> None:
        """Watches that the node ended are registered again."""
        self._to_start.update(self._later)
        self._later.clear()

    def events(self, events: Iterable[pb.WatchEvent]) -> None:
        """Take events in.

        A watch that the node ended starts again by `retry_refused`, or fails if that is pointless.
        """
        for event in events:
            watch = self._live.get(event.id)
            if watch is None or not watch.registered:
                continue
            if not event.error:
                self.refusals = 0
                watch.event(event)
                if isinstance(watch, RangeWatch) and watch.overfull:
                    self._pause(watch)
            elif event.retryable:
                self.refusals += 1
                watch.restart()
                self._later[watch.id] = watch
            else:
                watch.registered = False
                oldest = event.oldest.hex()
                watch.fail(
                    refused(event.status, event.error)
                    or (errors.Compacted(oldest) if oldest else errors.InvalidArgument(event.error))
                )

    def _pause(self, watch: RangeWatch) -> None:
        """Stop it at the node until its consumer has fetched what it has."""
        del self._live[watch.id]
        self._to_stop.append(watch.id)
        self._paused[watch.id] = watch
        watch.paused = True
        watch.restart()
