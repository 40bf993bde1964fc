"""What a client and the objects that it hands out share: the backend, until it is taken away by closing.

A closed client is a client with another backend, one that refuses. So no call has to ask first whether it is still
open.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Backend, Consumer, WriteOutcome
from kvorum.durations import Duration, seconds
from kvorum.errors import Closed, InvalidArgument, KvorumError
from kvorum.tracing import tracing


class Link:
    """See the module."""

    __slots__ = ("_closed", "backend", "point", "remote", "timeout", "tracing")

    def __init__(self, backend: Backend, timeout: float) -> None:
        self.tracing = tracing()
        """None unless the program traces."""
        if self.tracing is not None:
            backend = self.tracing.around(backend)
        self.backend: Backend = backend
        self.point: Callable[..., Awaitable[bytes]] | None = getattr(backend, "point", None)
        """`PointReader.point`, if the backend has it."""
        self.remote: Final[bool] = getattr(backend, "remote", False)
        """`PointReader.remote`; False if the backend does not say."""
        self.timeout: Final = timeout
        """Seconds, of a call that names none."""
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def cut(self) -> Backend:
        """Refuse all calls from now on; returns the backend, to be closed."""
        backend, self.backend, self.point = self.backend, ClosedBackend(), None
        self._closed = True
        return backend

    def within(self, timeout: Duration | None) -> float:
        """The seconds that a call may take. Errors: InvalidArgument."""
        return self.timeout if timeout is None else seconds(timeout, "timeout")


def wrong_loop() -> InvalidArgument:
    """The error of a call from another event loop: its futures could never complete there, and the call would hang."""
    return InvalidArgument(
        "this database belongs to the event loop that opened it, and was called from another one:"
        " open one for each loop, or use kvorum.sync from other threads"
    )


class ClosedBackend:
    """`kvorum.backend.Backend` that refuses everything with Closed."""

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        raise Closed(outcome=None)

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        raise Closed

    def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        raise Closed(outcome=None)

    def watch_range(self, start: bytes, end: bytes, *, since: bytes, keys_only: bool) -> AsyncIterator[pb.WatchEvent]:
        raise Closed(outcome=None)

    async def consume(
        self,
        queue: str,
        *,
        credits: int,
        concurrency: int,
        deliver: Callable[[pb.Delivery], None],
        failed: Callable[[KvorumError], None] | None = None,
        take: bool = False,
        expiring: bool = False,
    ) -> Consumer:
        raise Closed(outcome=None)

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        raise Closed

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        raise Closed(outcome=None)

    async def close(self) -> None:
        """Nothing is left to be released."""
