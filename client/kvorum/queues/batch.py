"""Several messages that are handled together."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration
from kvorum.errors import StaleLease
from kvorum.queues.delivered import Delivered
from kvorum.queues.message import Message

M = TypeVar("M", bound=Delivered)


class Messages(Sequence[M], Generic[M]):
    """What `Batch` is in both clients: a sequence of messages, possibly empty."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Iterable[M]) -> None:
        self._messages = tuple(messages)

    @overload
    def __getitem__(self, at: int) -> M: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[M]: ...
    def __getitem__(self, at: int | slice) -> M | Sequence[M]:
        return self._messages[at]

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def values(self) -> list[Any]:
        """The messages' values."""
        return [message.value for message in self._messages]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"

    async def _settle_all(
        self, kind: "pb.SettleKind", *, delay: Duration | None, reason: str, timeout: Duration | None
    ) -> None:
        left = [message for message in self._messages if not message.settled]
        if not left:
            return
        hold = left[0]._hold  # messages of a batch came through one consumer
        verdicts = [message._verdict(kind, delay=delay, reason=reason) for message in left]
        outcomes = await hold.verdicts(verdicts, hold.link.within(timeout))
        for message, error in zip(left, outcomes, strict=True):
            message._settled(kind, error)
        failed = [error for error in outcomes if error is not None]
        for error in failed:
            if not isinstance(error, StaleLease):
                error.add_note(f"{len(failed)} of {len(left)} messages of the batch were not settled")
                raise error
        if failed:
            raise StaleLease(
                f"{len(failed)} of {len(left)} messages are not in these hands any more, the others are settled:"
                f" {failed[0]}"
            )


class Batch(Messages[Message]):
    """Messages that came together. Those that are settled one by one are left out by `ack_all` and its like.

    Errors of these: StaleLease if some are not in these hands any more; the others are settled. Others as of `Message`.
    """

    __slots__ = ()

    async def ack_all(self, *, timeout: Duration | None = None) -> None:
        """All are done."""
        await self._settle_all(pb.SETTLE_KIND_ACK, delay=None, reason="", timeout=timeout)

    async def retry_all(
        self, *, delay: Duration | None = None, reason: str = "", timeout: Duration | None = None
    ) -> None:
        """All failed; see `Message.retry`."""
        await self._settle_all(pb.SETTLE_KIND_RETRY, delay=delay, reason=reason, timeout=timeout)

    async def reject_all(self, *, reason: str = "", timeout: Duration | None = None) -> None:
        """All failed for good; see `Message.reject`."""
        await self._settle_all(pb.SETTLE_KIND_REJECT, delay=None, reason=reason, timeout=timeout)
