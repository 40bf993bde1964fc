"""A range watch for a reader on this node's loop: it is asked for one event at a time, and holds no more than one."""

import asyncio
from collections.abc import Callable

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb

from .range_watches import RangeWatch
from .service import NodeService


class RangeReader:
    """`next` until it raises, then `close`. `check` raises what is wrong with the database, if something is."""

    def __init__(
        self,
        service: NodeService,
        bounds: tuple[bytes, bytes],
        since: bytes,
        *,
        keys_only: bool,
        check: Callable[[], None],
    ) -> None:
        self._service = service
        self._check = check
        self._wake = asyncio.Event()
        self._event: pb.WatchEvent | None = None
        self._end: pb.WatchEvent | None = None
        self._waits: list[RangeWatch] = []
        self._watch = service.watch_range(
            bounds, since, keys_only=keys_only, deliver=self._deliver, has_room=self._has_room
        )

    def _has_room(self, watch: RangeWatch) -> bool:
        if self._event is None:
            return True
        self._waits.append(watch)
        return False

    def _deliver(self, watch: RangeWatch, event: pb.WatchEvent) -> None:
        if event.error:
            self._end = event
        else:
            self._event = event
        self._wake.set()

    async def next(self) -> pb.WatchEvent:
        """Errors: Compacted, InvalidArgument, Unavailable, and those of `check`."""
        while True:
            self._check()
            event, self._event = self._event, None
            if event is not None:
                waits, self._waits = self._waits, []
                self._service.ranges.resume(waits)
                return event
            if self._end is not None:
                if self._end.oldest:
                    raise errors.Compacted(self._end.oldest.hex())
                if not self._end.retryable:
                    raise errors.InvalidArgument(self._end.error)
                raise errors.Unavailable(self._end.error)
            self._wake.clear()
            await self._wake.wait()

    def wake(self) -> None:
        """`check` has something to say."""
        self._wake.set()

    def close(self) -> None:
        self._service.ranges.remove(self._watch)
