"""A message, as handlers and receivers of the asynchronous client get it."""

from kvorum._proto import kvorum_pb2 as pb
from kvorum.atomic import AtomicOperation
from kvorum.durations import Duration
from kvorum.queues.delivered import Delivered


class Message(Delivered):
    """A message in these hands. It has to be settled: by `ack`, `retry` or `reject`, or in a commit (`atomic`).

    Errors of all of these: StaleLease if it is not in these hands any more: its lease has lapsed, or it was settled.
    OutcomeUnknown; with nothing changed Unavailable (also DeadlineExceeded, Overloaded), NoSpace, Closed.
    """

    __slots__ = ()

    async def ack(self, *, timeout: Duration | None = None) -> None:
        """It is done, and leaves its queue."""
        await self._settle(self._verdict(pb.SETTLE_KIND_ACK), timeout)

    async def retry(self, *, delay: Duration | None = None, reason: str = "", timeout: Duration | None = None) -> None:
        """It failed, and comes again after `delay`, or after the next step of its backoff; after the last attempt it
        becomes a dead letter. `reason` is kept with it (≤ 1,024 bytes)."""
        await self._settle(self._verdict(pb.SETTLE_KIND_RETRY, delay=delay, reason=reason), timeout)

    async def reject(self, *, reason: str = "", timeout: Duration | None = None) -> None:
        """It failed for good: it becomes a dead letter now."""
        await self._settle(self._verdict(pb.SETTLE_KIND_REJECT, reason=reason), timeout)

    async def extend(self, by: Duration | None = None, *, timeout: Duration | None = None) -> None:
        """Keep it: its lease ends `by` from now (≤ 12 hours), or a full period from now.

        For consumers with `renew=False`; the others' leases are renewed as long as their client lives.
        """
        await self._settle(self._verdict(pb.SETTLE_KIND_EXTEND, delay=by, what="by"), timeout)

    def atomic(self) -> AtomicOperation:
        """An atomic operation in which `ack`, `retry`, `reject` and `reply` mean this message."""
        return AtomicOperation(self._hold.link, self)
