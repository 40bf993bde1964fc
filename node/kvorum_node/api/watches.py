"""What one stream watches: keys, whose newest snapshots it gets, and ranges, of which it gets every change."""

from collections.abc import Callable
from functools import partial

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb

from ..access import Refusal
from ..range_watches import RangeWatch
from ..service import NodeService
from ..store.rights import READ, for_keys, for_range
from ..watches import Watch
from .endings import ProtocolError
from .guard import StreamGuard
from .outbox import WATCHES, Outbox

MAX_WATCHES = 10_000


class StreamWatches:
    """Watches of both kinds share their numbers, which the client gives."""

    def __init__(self, service: NodeService, outbox: Outbox, guard: StreamGuard, loadable: Callable[[], int]) -> None:
        """`loadable` tells how many bytes of events may wait; if it is none, `resume` follows."""
        self._loadable = loadable
        self._service = service
        self._outbox = outbox
        self._guard = guard
        self._watches: dict[int, Watch] = {}
        self._ids: dict[Watch, int] = {}
        self._ranges: dict[int, RangeWatch] = {}
        self._stalled_ranges: list[RangeWatch] = []
        self._closed = False

    def close(self) -> None:
        """The stream has ended."""
        self._closed = True
        for watch in self._ids:
            self._service.hub.remove(watch)
        self._ids.clear()
        self._watches.clear()
        for watched in self._ranges.values():
            self._service.ranges.remove(watched)
        self._ranges.clear()
        self._stalled_ranges.clear()

    def start(self, start: pb.StartWatch) -> None:
        """Begin what a client asks for, once its token allows it. Raises ProtocolError."""
        if start.id in self._watches or start.id in self._ranges:
            raise ProtocolError(f"watch {start.id} is open already")
        if self._service.access.on:
            self._guard.start_watch(start, partial(self._begin, start), partial(self._refuse, start.id))
        else:
            self._begin(start)

    def stop(self, number: int) -> None:
        """The client wants no more of it."""
        self._guard.forget_watch(number)
        watched = self._ranges.pop(number, None)
        if watched is not None:
            self._service.ranges.remove(watched)
        watch = self._watches.pop(number, None)
        if watch is not None:
            del self._ids[watch]
            self._service.hub.remove(watch)
            self._outbox.drop_watch(watch)

    def resume(self) -> None:
        """The client has read on."""
        if self._stalled_ranges:
            ranges, self._stalled_ranges = self._stalled_ranges, []
            self._service.ranges.resume(ranges)

    def end_refused(self) -> None:
        """What the token may do can have changed: end what it may not watch."""
        for number, watch in list(self._watches.items()):
            refusal = self._guard.refusal(partial(for_keys, keys=watch.keys))
            if refusal is not None:
                self.stop(number)
                self._refuse(number, refusal)
        for number, watched in list(self._ranges.items()):
            start, end = watched.bounds
            refusal = self._guard.refusal(partial(for_range, right=READ, start=start, end=end))
            if refusal is not None:
                self.stop(number)
                self._refuse(number, refusal)

    def event(self, watch: Watch) -> pb.WatchEvent | None:
        """The newest event of a watch, made when there is room for it."""
        number = self._ids.get(watch)
        if number is None:
            return None
        if watch.ended:
            self.stop(number)
            return pb.WatchEvent(id=number, error=watch.ended, retryable=True)
        entries, stamp = self._service.hub.take(watch)
        return pb.WatchEvent(id=number, entries=entries, read_versionstamp=stamp)

    # ---- how one begins

    def _begin(self, start: pb.StartWatch) -> None:
        self._guard.listen()
        if start.end:
            self._begin_range(start)
            return
        problem = ""
        if not 1 <= len(start.keys) <= limits.MAX_WATCHED_KEYS:
            problem = f"a watch has 1 to {limits.MAX_WATCHED_KEYS} keys (MAX_WATCHED_KEYS), got {len(start.keys)}"
        elif any(len(key) > limits.MAX_READ_KEY_SIZE for key in start.keys):
            problem = f"a watched key has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE)"
        if problem:
            self._end(start.id, problem)
        elif len(self._watches) + len(self._ranges) >= MAX_WATCHES:
            self._end(start.id, f"more than {MAX_WATCHES:,} watches on one connection")
        else:
            # The barrier before its first event makes the state at least as new as anything that the client has seen.
            watch = self._service.watch(list(start.keys), self._outbox.put_watch)
            self._watches[start.id] = watch
            self._ids[watch] = start.id

    def _begin_range(self, start: pb.StartWatch) -> None:
        problem = ""
        longest = max(len(start.start), len(start.end))
        if start.keys:
            problem = "a watch is of keys or of a range, not of both"
        elif longest > limits.MAX_READ_KEY_SIZE:
            problem = (
                f"a range bound has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE), got {longest:,}"
            )
        elif len(start.since) not in (0, 10):
            problem = f"a versionstamp has 10 bytes, got {len(start.since)}"
        elif len(self._watches) + len(self._ranges) >= MAX_WATCHES:
            problem = f"more than {MAX_WATCHES:,} watches on one connection"
        if problem:
            self._end(start.id, problem)
            return
        self._ranges[start.id] = self._service.watch_range(
            (start.start, start.end),
            start.since,
            keys_only=start.keys_only,
            deliver=partial(self._changes, start.id),
            has_room=self._has_room,
        )

    def _has_room(self, watch: RangeWatch) -> bool:
        if self._outbox.size < self._loadable():
            return True
        if len(self._stalled_ranges) >= 2 * MAX_WATCHES:  # most of them were stopped meanwhile
            self._stalled_ranges = [stalled for stalled in self._stalled_ranges if stalled.open]
        self._stalled_ranges.append(watch)
        return False

    def _changes(self, number: int, watch: RangeWatch, event: pb.WatchEvent) -> None:
        if self._closed:
            return
        event.id = number
        self._outbox.put(WATCHES, event.SerializeToString())
        if event.error:
            self._ranges.pop(number, None)

    # ---- how one is ended

    def _end(self, number: int, why: str) -> None:
        self._outbox.put(WATCHES, pb.WatchEvent(id=number, error=why, retryable=False).SerializeToString())

    def _refuse(self, number: int, refusal: Refusal | None) -> None:
        """None: it could not be judged."""
        status, message = refusal or (None, "this node could not confirm what the token may do")
        retryable = status in (None, pb.READ_STATUS_OVERLOADED)
        event = pb.WatchEvent(id=number, error=message, retryable=retryable, status=status)
        self._outbox.put(WATCHES, event.SerializeToString())
