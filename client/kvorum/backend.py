"""The seam between the client API and what carries it out: a cluster or a folder in this process.

Requests and answers are the protobuf messages of `proto/kvorum/v1/kvorum.proto`, so that neither side converts what it
only passes on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import KvorumError

QUESTIONS: Final = frozenset(("peek", "queues", "topics", "schedules", "tokens", "who_am_i"))
"""Kinds of queue calls that change nothing."""


class WriteOutcome(NamedTuple):
    """An executed write: `result.outcome` is DONE or says why not, from CHECK_FAILED to DENIED. All else is
    raised.
    """

    result: pb.WriteResult
    versionstamp: bytes
    """10 bytes; empty unless the outcome is DONE."""


class Consumer(Protocol):
    """A queue consumer's end of the line."""

    def started(self, lease_id: bytes) -> None:
        """Report, before its handler is called, that a message's handling starts."""
        ...

    def settled(self, lease_id: bytes) -> None:
        """Report that a message is no longer in hand (after its settle was answered), so that its credit comes back."""
        ...

    async def close(self) -> None:
        """Take no more messages. What was delivered and not settled stays leased until it is settled, returned or
        lapses.
        """
        ...


class PointReader(Protocol):
    """What a backend may have besides: a shorter way to single keys, which are most of what is read."""

    remote: bool
    """Whoever answers is another process, which works while this one does."""

    def point(self, key: bytes, consistency: "pb.Consistency", max_age_ms: int, *, timeout: float) -> Awaitable[bytes]:
        """Read the row of a key, as it stands in `pb.PointAnswers`: encoding (1 byte), versionstamp (10 bytes), value;
        empty if it is absent. Errors: as those of `Backend.read`.
        """
        ...


class Carrier(Protocol):
    """What a backend may have besides: it tells nodes which operations belong to a trace."""

    def carry(self, current: Callable[[], str]) -> None:
        """`current` is asked in each call of `read`, `write` and `queue_call`: the W3C traceparent of its caller; empty
        if there is none, or its trace is not sampled.
        """
        ...

    @property
    def carries(self) -> bool:
        """Whether the node that is connected now wants to know."""
        ...


class Backend(Protocol):
    """All times are seconds; `timeout` is the whole call's."""

    def read(self, read: pb.Read, *, timeout: float) -> Awaitable[pb.ReadResult]:
        """Run a read (its `id` is the backend's to set). The answer's status is OK; all else is raised.

        Errors: InvalidArgument, DeadlineExceeded, Unavailable, Closed.
        """
        ...

    def write(self, op: bytes, *, timeout: float) -> Awaitable[WriteOutcome]:
        """Commit a serialised AtomicWrite, once, repeating it as often as needed within the timeout.

        Errors: OutcomeUnknown if an attempt may have been applied; DeadlineExceeded, Unavailable, Overloaded, NoSpace,
        InvalidArgument, Closed if certainly none was. Cancelling the call leaves the outcome unknown.
        """
        ...

    def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        """Snapshots of the keys, in order, the first at once; newer ones replace what was not fetched. Reconnects by
        itself.
        """
        ...

    def watch_range(self, start: bytes, end: bytes, *, since: bytes, keys_only: bool) -> AsyncIterator[pb.WatchEvent]:
        """Changes of start <= key < end after the versionstamp `since` (10 bytes; empty = from now on), each once, in
        the order of their commits. Those of one commit together; where they are too many for that, all events of the
        commit but the last come without `through`. The first event comes at once, possibly without changes. What was
        not fetched is not gathered without bound. Reconnects by itself.

        Errors: Compacted, InvalidArgument, Unavailable, Closed.
        """
        ...

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
        """Have messages of a queue delivered, at most `credits` unsettled at a time. Survives reconnects.

        `deliver` is called on the event loop, once for each (message, lease); `failed` if no more can come, once, with
        the reason. `take`: at most once; what comes is deleted already, and `started` gives its credit back.
        `expiring`: leases end after the queue's lease unless they are extended, although this client lives.
        """
        ...

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        """Ask or change something about queues (its `id` is the backend's to set). The answer's status is OK.

        Errors: InvalidArgument, Overloaded, NoSpace, DeadlineExceeded, Unavailable, Closed; OutcomeUnknown of a change
        that may have been made, also in part: repeating it is harmless.
        """
        ...

    async def status(self, *, timeout: float) -> pb.StatusResponse: ...

    async def close(self) -> None:
        """Release everything. Waiting calls end with Closed (reads) or OutcomeUnknown / Closed (writes)."""
        ...
