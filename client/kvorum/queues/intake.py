"""What one consumer was sent: messages that wait to be handed out, and those that are out.

A message that waits is leased, so that nobody else gets it, but its attempt has not begun, and it goes back without
counting when the consumer ends. It begins when it is handed out. Of what is received *at most once* nothing is leased:
it is gone from its queue when it comes, and it gives its credit back when whoever got it asks for more, so that nothing
is taken ahead of its time.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Consumer
from kvorum.errors import DataError, InvalidArgument, KvorumError, LimitExceeded, Unavailable, shown
from kvorum.link import Link
from kvorum.queues.delivered import Delivered, Hold, cut_reason
from kvorum.queues.settling import Outcome, Settler

logger = logging.getLogger("kvorum")

M = TypeVar("M", bound=Delivered)
Make = Callable[[pb.Delivery, Hold], M]
"""Makes a client's kind of message."""


class Intake(Generic[M]):
    """See the module. `news` is called when a message came, or no more can come (`problem`)."""

    def __init__(
        self,
        link: Link,
        settler: Settler,
        make: Make[M],
        *,
        queue: str,
        credits: int,
        concurrency: int,
        take: bool = False,
        expiring: bool = False,
        news: Callable[[], None],
    ) -> None:
        self.link = link
        self.problem: KvorumError | None = None
        """No more can come, for this reason."""
        self.waiting: deque[pb.Delivery] = deque()
        self.take = take
        self._backend = link.backend
        self._settler = settler
        self._make = make
        self._queue = queue
        self._credits = credits
        self._concurrency = concurrency
        self._expiring = expiring
        self._news = news
        self._aside: set[asyncio.Task[None]] = set()
        """Messages on their way back that nobody waits for."""
        self._consumer: Consumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if credits > limits.MAX_CREDITS:
            raise LimitExceeded("MAX_CREDITS", limits.MAX_CREDITS, credits, "messages in a consumer's hands")

    async def open(self) -> None:
        """Have messages sent. Errors: those of `Backend.consume`."""
        self._loop = asyncio.get_running_loop()
        # Both are left out where they are not asked for: so a backend of earlier days will do for what it can.
        more = {name: True for name, wanted in (("take", self.take), ("expiring", self._expiring)) if wanted}
        self._consumer = await self._backend.consume(
            self._queue,
            credits=self._credits,
            concurrency=self._concurrency,
            deliver=self._deliver,
            failed=self._cut_off,
            **more,
        )
        if self.waiting:
            self._news()

    def _deliver(self, delivery: pb.Delivery) -> None:
        if self.take and not delivery.taken:
            # A node of an earlier version, which does not know what was asked for.
            self._aside_do(self._give_back_one(delivery))
            self._cut_off(Unavailable("the leader's version does not know deliveries at most once: upgrade all nodes"))
            return
        self.waiting.append(delivery)
        if self._consumer is not None:
            self._news()

    def _cut_off(self, problem: KvorumError) -> None:
        self.problem = problem
        self._news()

    # ---- handing out

    def begin(self, delivery: pb.Delivery) -> None:
        """Its handling begins."""
        if not self.take:
            self._report(delivery)

    def finish(self, delivery: pb.Delivery) -> None:
        """Whoever got it is ready for another one; matters only to what is received at most once."""
        if self.take:
            self._report(delivery)

    def _report(self, delivery: pb.Delivery) -> None:
        assert self._consumer is not None
        self._consumer.started(delivery.lease_id)

    def message(self, delivery: pb.Delivery) -> M:
        """What is handed out. Errors: DataError if it cannot be decoded; see `undecodable`."""
        return self._make(delivery, self)

    # ---- verdicts

    def verdict(self, settle: pb.Settle, timeout: float) -> Awaitable[Outcome]:
        """See `Settler.settle`."""
        return self._settler.settle(settle, timeout)

    def verdicts(self, settles: Sequence[pb.Settle], timeout: float) -> Awaitable[list[Outcome]]:
        """See `Settler.settle_all`."""
        return self._settler.settle_all(settles, timeout)

    def ended(self, lease_id: bytes) -> None:
        """A message is out of these hands."""
        if self._consumer is not None:
            self._consumer.settled(lease_id)

    def forgotten(self, delivery: pb.Delivery) -> None:
        """Nobody can settle a message any more that was handed out; may be called in any thread."""
        if self._loop is not None and not self.link.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._forget, delivery)

    def _forget(self, delivery: pb.Delivery) -> None:
        if self.link.closed:
            return
        if self._expiring:
            self.going_on(delivery)
            return
        # Its lease would be renewed as long as this client lives.
        logger.warning("message %s was forgotten without a verdict: it is tried again", delivery.message_id.hex())
        self._aside_do(self._give_up(delivery))

    def _aside_do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _give_back_one(self, delivery: pb.Delivery) -> None:
        await self._insist((verdict_on(delivery, pb.SETTLE_KIND_RETURN),), _never)
        self.ended(delivery.lease_id)

    async def _give_up(self, delivery: pb.Delivery) -> None:
        reason = "its consumer forgot it without a verdict"
        await self.insist((verdict_on(delivery, pb.SETTLE_KIND_RETRY, reason),), _never)
        self.ended(delivery.lease_id)

    def going_on(self, delivery: pb.Delivery) -> None:
        """Whoever has a message, whose lease expires, asks for more although it is not settled: when its lease ends,
        another one may come in its place.
        """
        if self._expiring:
            self._report(delivery)

    async def insist(self, settles: Sequence[pb.Settle], gave_up: Callable[[], bool]) -> None:
        """Insist on verdicts; why one was not taken is logged. What was taken is done."""
        if not self.take:
            await self._insist(settles, gave_up)

    async def _insist(self, settles: Sequence[pb.Settle], gave_up: Callable[[], bool]) -> None:
        for settle, error in zip(settles, await self._settler.insist(settles, gave_up), strict=True):
            if error is None:
                continue
            if error.outcome == "not applied" and not error.retryable:
                logger.info("the verdict on message %s came too late: %s", settle.message_id.hex(), error)
            else:
                logger.warning("the verdict on message %s was not taken: %s", settle.message_id.hex(), error)

    async def undecodable(self, delivery: pb.Delivery, error: DataError, gave_up: Callable[[], bool]) -> None:
        """A message that this client cannot read: another one may, unless it was taken. It is still to be finished."""
        logger.error("message %s cannot be decoded: %s", delivery.message_id.hex(), error)
        if not self.take:
            await self.insist((verdict_on(delivery, pb.SETTLE_KIND_RETRY, reason_of(error)),), gave_up)
            self.ended(delivery.lease_id)

    # ---- the end

    async def close(self) -> None:
        """Take no more messages."""
        if self._consumer is not None:
            await self._consumer.close()

    async def give_back(self) -> None:
        """Return what was never handed out."""
        waiting, self.waiting = list(self.waiting), deque()
        if not waiting:
            return
        if self.take:
            logger.warning("%d messages that were taken at most once are lost", len(waiting))
            return
        await self.insist([verdict_on(delivery, pb.SETTLE_KIND_RETURN) for delivery in waiting], _never)
        for delivery in waiting:
            self.ended(delivery.lease_id)


def _never() -> bool:
    return False


def verdict_on(delivery: pb.Delivery, kind: "pb.SettleKind", reason: str = "") -> pb.Settle:
    return pb.Settle(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind, reason=cut_reason(reason))


def reason_of(error: BaseException) -> str:
    """What is told of a failure."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def whole_number(number: int, name: str, least: int) -> int:
    """Errors: InvalidArgument."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InvalidArgument(f"{name} must be an int of at least {least}: received {shown(number)}")
    return number
