"""Range watches that outlive connections. No I/O, no clock.

A range watch must lose nothing and repeat nothing, so what it was sent is kept until it is fetched. To keep that within
bounds, a watch whose consumer lags is stopped at the node, and started again, from where its last event ends, when the
consumer has caught up: the changes wait in the node's history, where they are anyway, and not here. After a reconnect
it goes on from there in the same way.

A commit that is too large for one event comes in several. If the connection breaks in between, the node begins that
commit anew; the changes of it that were taken in before are known by their number, since their order is always the
same, and dropped.
"""

import asyncio
from collections import deque
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.fetched import Fetched

MAX_KEPT: Final = 1_048_576
"""Bytes of events that a watch keeps for its consumer; it is stopped when they are more."""
_EACH: Final = 64
"""What an event weighs besides its bytes."""


class RangeWatch(Fetched[pb.WatchEvent]):
    """One watch: `next` waits for an event. `registered`: on the stream; `paused`: stopped until it is read."""

    __slots__ = (
        "_bounds",
        "_kept",
        "_keys_only",
        "_part",
        "_size",
        "_skip",
        "id",
        "paused",
        "registered",
        "through",
    )

    def __init__(
        self, watch_id: int, bounds: tuple[bytes, bytes], since: bytes, keys_only: bool, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop)
        self.id = watch_id
        self.registered = False
        self.paused = False
        self.through = since
        """All changes up to here were taken in; empty before the first event of a watch from now on."""
        self._bounds = bounds
        self._keys_only = keys_only
        self._kept: deque[pb.WatchEvent] = deque()
        self._size = 0
        self._part = (b"", 0)
        """The commit that was taken in up to some of its changes, and how many."""
        self._skip = 0
        """Changes of that commit that will come once more."""

    def registration(self, newest: bytes) -> pb.StartWatch:
        start, end = self._bounds
        return pb.StartWatch(
            id=self.id,
            start=start,
            end=end,
            since=self.through,
            keys_only=self._keys_only,
            min_versionstamp=max(newest, self.through),
        )

    def restart(self) -> None:
        """It is to be registered again: the node begins behind `through`."""
        self.registered = False
        self._skip = self._part[1]

    def event(self, event: pb.WatchEvent) -> None:
        """Take in an event, without what was taken in before."""
        if event.through and event.through < self.through:
            return
        if self._part[0] and event.through == self.through:
            return  # where the node begins anew, behind the last whole commit: the one that was cut is still to come
        changes = self._new(event)
        if len(changes) < len(event.changes):
            event = pb.WatchEvent(through=event.through, changes=changes)
        if event.through:
            self.through, self._part, self._skip = event.through, (b"", 0), 0
        elif changes:
            stamp = changes[-1].entry.versionstamp
            self._part = (stamp, len(changes) + (self._part[1] if stamp == self._part[0] else 0))
        else:
            return
        if not changes and self._kept and not self._kept[-1].changes:
            self._kept[-1].through = event.through  # a newer mark of progress
            return
        self._kept.append(event)
        self._size += event.ByteSize() + _EACH
        self._wake()

    def _new(self, event: pb.WatchEvent) -> list[pb.Change]:
        stamp = self._part[0]
        changes = []
        for change in event.changes:
            if self._skip and change.entry.versionstamp == stamp:
                self._skip -= 1
            elif change.entry.versionstamp > self.through:
                changes.append(change)
        return changes

    @property
    def overfull(self) -> bool:
        return self._size > MAX_KEPT

    @property
    def has_caught_up(self) -> bool:
        """Little enough is kept that a paused watch may go on."""
        return self._size <= MAX_KEPT // 4

    def _take(self) -> pb.WatchEvent | None:
        if not self._kept:
            return None
        event = self._kept.popleft()
        self._size -= event.ByteSize() + _EACH
        return event
