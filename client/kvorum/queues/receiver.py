"""Receiving: whoever wants a message asks for it.

`Receiver` is an iterator over the messages of a queue, `receive_batch` gathers some. Both hold what was handed out only
by its lease: messages may be settled long after the iterator has ended.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Final, Generic, Self, TypeVar

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import Closed, DataError, KvorumError, LimitExceeded
from kvorum.link import Link
from kvorum.misuse import ReadByAsyncFor
from kvorum.queues.delivered import Delivered
from kvorum.queues.intake import Intake, Make, whole_number
from kvorum.queues.settling import Settler

M = TypeVar("M", bound=Delivered)

_FAREWELL: Final = 2.0
"""Seconds for which whoever closes a line waits for what goes back, which goes on by itself then: it may take until
there is a leader again."""


class Line(Generic[M]):
    """The part of a receiver that its backend holds on to, so that the receiver itself can be forgotten."""

    def __init__(
        self,
        link: Link,
        settler: Settler,
        make: Make[M],
        *,
        queue: str,
        credits: int,
        concurrency: int,
        take: bool,
        expiring: bool,
        closed: "Callable[[Line[M]], None]",
    ) -> None:
        self._closed = closed
        self._tracing = link.tracing
        self._queue = queue
        self.intake = Intake(
            link,
            settler,
            make,
            queue=queue,
            credits=credits,
            concurrency=concurrency,
            take=take,
            expiring=expiring,
            news=self._news,
        )
        self.ending = False
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._aside: set[asyncio.Task[None]] = set()
        """Messages that cannot be decoded, on their way back."""
        self._back: asyncio.Task[None] | None = None
        """What was put back."""
        self._out: pb.Delivery | None = None
        """The message that was handed out last."""
        self._held: weakref.WeakSet[M] = weakref.WeakSet()
        """Messages that were handed out, where their leases expire."""
        self._expiring = expiring
        self.batch: weakref.WeakSet[M] = weakref.WeakSet()
        """What `gather` has handed out last."""

    def _news(self) -> None:
        self._wake.set()

    def has_room(self) -> bool:
        """Whether a whole batch may come: none of the one before is still in hand."""
        return all(message.settled for message in self.batch)

    async def open(self) -> None:
        """Have messages sent; may be called again."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.intake.open())
        await asyncio.shield(self._opening)

    def pop(self) -> M | None:
        """The next message that is here; None: there is none."""
        intake = self.intake
        while intake.waiting and not self.ending:
            delivery = intake.waiting.popleft()
            intake.begin(delivery)
            try:
                message = intake.message(delivery)
            except DataError as error:
                task = asyncio.ensure_future(intake.undecodable(delivery, error, self._gave_up))
                self._aside.add(task)
                task.add_done_callback(self._aside.discard)
                intake.finish(delivery)
                continue
            self._out = delivery
            if self._expiring:
                self._held.add(message)
            return message
        return None

    def _gave_up(self) -> bool:
        """With the client all that is not settled goes back."""
        return self.intake.link.closed

    async def next(self) -> M | None:
        """Wait for the next message; None at the end. A wait that is cancelled loses nothing.

        Errors: those of `Backend.consume`, and why no more can come.
        """
        if self._out is not None:
            self.intake.finish(self._out)
            self._out = None
        for held in list(self._held):
            if not held.settled:
                self.intake.going_on(held._delivery)
            self._held.discard(held)
        try:
            if not self.ending:
                await self.open()
        except Closed:
            if self.intake.link.closed:
                return None
            raise
        while not self.ending:
            if (message := self.pop()) is not None:
                self.handed_out((message,))
                return message
            if (problem := self.intake.problem) is not None:
                if isinstance(problem, Closed) and self.intake.link.closed:
                    return None
                raise problem
            self._wake.clear()
            await self._wake.wait()
        return None

    def handed_out(self, messages: Sequence[M]) -> None:
        """Somebody has them now."""
        if self._tracing is not None and messages:
            self._tracing.received(self._queue, messages)

    async def news(self) -> None:
        """Wait until more have come. Errors: why no more can come."""
        self._wake.clear()
        if self.intake.problem is None:
            await self._wake.wait()
        if self.intake.problem is not None:
            raise self.intake.problem

    def close(self) -> "asyncio.Task[None]":
        """Take no more, and return what was not handed out."""
        if self._closing is None:
            self.ending = True
            self._wake.set()
            self._closing = asyncio.ensure_future(self._close())
        return self._closing

    async def leave(self) -> None:
        """Close, and wait a while for what goes back."""
        await asyncio.wait([self.close()], timeout=_FAREWELL)

    async def put_back(self, messages: Sequence[M]) -> None:
        """As `leave`, and return also these, which were handed out to nobody."""
        for message in reversed(messages):
            message.settled = True  # by going back
            self.intake.waiting.appendleft(message._delivery)
        self._back = asyncio.ensure_future(self._put_back())
        await asyncio.wait([self._back], timeout=_FAREWELL)

    async def _put_back(self) -> None:
        await asyncio.wait([self.close()])
        await self.intake.give_back()  # what closing was too late for

    async def _close(self) -> None:
        try:
            if self._opening is None:
                return
            try:
                await self._opening
            except KvorumError:
                return
            await self.intake.close()
            await self.intake.give_back()
            if self._aside:
                await asyncio.wait(self._aside)
        finally:
            self._closed(self)


class Receiver(ReadByAsyncFor, Generic[M]):
    """Messages of a queue, for `async for`. Made by `Queue.receive`.

    Ends when it or the client is closed. Messages that were not handed out go back at once when it is closed, or
    forgotten, as when the loop is left by `break`; those that were have to be settled.
    """

    _how = "use `async for message in queue.receive()`"

    def __init__(self, line: Line[M]) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        message = await self.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next(self) -> M | None:
        """The next message; None when this or the client is closed.

        Errors: InvalidArgument, Unavailable, WrongCluster.
        """
        return await self._line.next()

    async def aclose(self) -> None:
        """End it, also for a task that waits for its next message. What goes back is waited for two seconds at most."""
        await self._line.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Missing after an __init__ that did not end.
        line = getattr(self, "_line", None)
        if line is not None and not line.ending and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(line.close)


def receiver_credits(prefetch: int | None, *, at_most_once: bool) -> int:
    """Messages that a receiver may have in hand. Errors: InvalidArgument."""
    if prefetch is None:
        return 1 if at_most_once else 2
    return 1 + whole_number(prefetch, "prefetch", 0)


async def gather(line: Line[M], most: int, wait: float) -> list[M]:
    """Up to `most` messages: as soon as they are there, or what is there after `wait` seconds.

    The line stays open, unless this is cut off: then what came goes back. Errors: those of `Backend.consume`, and why
    no more can come, if nothing came.
    """
    messages: list[M] = []
    handed_out = False
    try:
        try:
            async with asyncio.timeout(wait):
                await line.open()
                while len(messages) < most:
                    if (message := line.pop()) is not None:
                        messages.append(message)
                    else:
                        await line.news()
        except TimeoutError:
            pass
        except KvorumError:
            if not messages:
                raise
        handed_out = True
    finally:
        if not handed_out:
            await asyncio.shield(line.put_back(messages))
    line.handed_out(messages)
    line.batch = weakref.WeakSet(messages)
    return messages


def batch_size(most: int, name: str) -> int:
    """Errors: InvalidArgument, LimitExceeded."""
    whole_number(most, name, 1)
    if most > limits.MAX_BATCH:
        raise LimitExceeded("MAX_BATCH", limits.MAX_BATCH, most, name)
    return most
