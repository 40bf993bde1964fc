"""Listening: messages come in, handlers run, verdicts go out.

A message is in one of three states here. *Waiting*: delivered ahead of its time, so that a free handler need not wait
for a round trip; nobody knows of it yet. *Running*: its handler was called. *Settling*: its handler is done, and the
verdict (acknowledged, or failed with a reason) is on its way. A place among the `concurrency` ones is free again only
when the verdict was answered: the node counts the first `concurrency` unsettled messages of a lost client as begun.

A verdict must arrive. The lease is renewed as long as the client lives, so a message whose verdict was given up would
stay in these hands for ever. Unknown outcomes and refusals are repeated until the answer is definite; the lease id
makes that safe, an earlier one that did arrive turns up as a stale lease.

Two ways to an end. *Closing* the client: no more messages, waiting ones go back at once, running handlers get time to
finish. *Cancelling* `listen_queue`: the same, but running handlers are cancelled; their messages are ready again at
once, with this attempt counted. The same, and an error, when no more messages can come, as from a cluster that is not
the same any more. One task for each place that is in use, none for a message.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, TypeVar

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Backend, Consumer
from kvorum.errors import (
    Closed,
    DataError,
    InvalidArgument,
    KvorumError,
    LimitExceeded,
    NoSpace,
    OutcomeUnknown,
    shown,
)
from kvorum.message import Message, message_of
from kvorum.mutation import queue_name

logger = logging.getLogger("kvorum")

Handler = Callable[[Any], Awaitable[object] | object]
"""Called with a message's value, or with the `Message`. Returning means that it is done, raising that it failed."""

H = TypeVar("H", bound=Callable[[Any], object])

DEFAULT_CONCURRENCY: Final = 32
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
"""Seconds before a verdict is sent again; doubled each time."""
_FAREWELL: Final = 2.0
"""Seconds in which the last verdicts must be answered when listening ends."""


class Phase(Enum):
    """Of a place that is in use."""

    NEW = 0
    """Its task has not run yet."""
    RUNNING = 1
    SETTLING = 2


class Listener:
    """One call of `listen_queue`. `timeout`: seconds, for each attempt to send a verdict and the wait for handlers."""

    def __init__(
        self,
        backend: Backend,
        handler: Handler,
        *,
        queue: str,
        concurrency: int,
        prefetch: int | None,
        with_message: bool,
        timeout: float,
    ) -> None:
        self._backend = backend
        self._handler = check_handler(handler)
        self._queue = queue_name(queue)
        self._concurrency = _count(concurrency, "concurrency", 1)
        ahead = max(0, min(self._concurrency, limits.MAX_CREDITS - self._concurrency))
        self._credits = self._concurrency + (ahead if prefetch is None else _count(prefetch, "prefetch", 0))
        if self._credits > limits.MAX_CREDITS:
            raise LimitExceeded("MAX_CREDITS", limits.MAX_CREDITS, self._credits, "concurrency and prefetch")
        self._with_message = with_message
        self._timeout = timeout
        self._consumer: Consumer | None = None
        self._waiting: deque[pb.Delivery] = deque()
        self._phases: dict[asyncio.Task[None], Phase] = {}
        self._stop = asyncio.Event()
        self._finished = asyncio.Event()
        self._problem: KvorumError | None = None
        self._ending = False
        self._impatient = False
        """Running handlers are being cancelled."""

    async def run(self) -> None:
        """Listen until `stop` is called. Errors: those of `Backend.consume`, also later, when no more can come."""
        patient = False
        try:
            self._consumer = await self._backend.consume(
                self._queue,
                credits=self._credits,
                concurrency=self._concurrency,
                deliver=self._deliver,
                failed=self._cut_off,
            )
        except BaseException:
            self._finished.set()
            raise
        try:
            self._start_more()
            await self._stop.wait()
            patient = self._problem is None
        finally:
            try:
                await self._wind_up(self._timeout if patient else 0.0)
            finally:
                self._finished.set()
        if self._problem is not None:
            raise self._problem

    async def finished(self) -> None:
        """Wait until `run` is through."""
        await self._finished.wait()

    def stop(self) -> None:
        """Take no more messages; `run` returns when those in hand are done with."""
        self._stop.set()

    def owns(self, task: "asyncio.Task[Any] | None") -> bool:
        """Whether a task is one of this listener's, that is, whether a handler is calling."""
        return task in self._phases

    # ---- messages

    def _cut_off(self, problem: KvorumError) -> None:
        if not self._stop.is_set():
            self._problem = problem
            self._stop.set()

    def _deliver(self, delivery: pb.Delivery) -> None:
        self._waiting.append(delivery)
        if self._consumer is not None:
            self._start_more()

    def _start_more(self) -> None:
        while self._waiting and len(self._phases) < self._concurrency and not self._ending:
            task = asyncio.get_running_loop().create_task(self._work(self._waiting.popleft()))
            self._phases[task] = Phase.NEW
            task.add_done_callback(self._worked)

    async def _work(self, delivery: pb.Delivery) -> None:
        """Handle a message, and then others, until none is waiting."""
        task = asyncio.current_task()
        assert task is not None and self._consumer is not None
        while True:
            if self._ending:
                self._waiting.append(delivery)  # not begun: it goes back with the others
                return
            self._phases[task] = Phase.RUNNING
            self._consumer.started(delivery.lease_id)
            verdict = await self._handle(delivery, task)
            self._phases[task] = Phase.SETTLING
            if verdict is not None:
                await self._settle(verdict)
            self._consumer.settled(delivery.lease_id)
            if not self._waiting:
                return
            delivery = self._waiting.popleft()

    def _worked(self, task: "asyncio.Task[None]") -> None:
        del self._phases[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not of the handler: those are verdicts. Without a word the place would be missing and nobody know why.
            logger.error("a queue listener's task failed", exc_info=error)
        self._start_more()

    async def _handle(self, delivery: pb.Delivery, task: "asyncio.Task[None]") -> pb.Settle | None:
        """Call the handler; returns the verdict, None if the handler has acknowledged the message itself."""
        try:
            message = message_of(delivery)
        except DataError as error:
            logger.error("message %s cannot be decoded: %s", delivery.message_id.hex(), error)
            return _verdict(delivery, pb.SETTLE_KIND_RETRY, _reason(error))
        try:
            outcome = self._handler(message if self._with_message else message.value)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as error:
            if self._impatient:
                if message.acknowledged:
                    task.uncancel()
                    return None
                verdict = _verdict(delivery, pb.SETTLE_KIND_RETRY, "its handler was cancelled")
                verdict.delay_ms = 0
                task.uncancel()
                return verdict
            if task.cancelling():
                raise  # the loop is being shut down: no time for verdicts
            return self._failed(delivery, message, error)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is the verdict, and logged
            return self._failed(delivery, message, error)
        return None if message.acknowledged else _verdict(delivery, pb.SETTLE_KIND_ACK)

    def _failed(self, delivery: pb.Delivery, message: Message, error: BaseException) -> pb.Settle | None:
        logger.error("Exception in queue handler: message %s, attempt %d", message.id, message.attempt, exc_info=error)
        return None if message.acknowledged else _verdict(delivery, pb.SETTLE_KIND_RETRY, _reason(error))

    # ---- verdicts

    async def _settle(self, verdict: pb.Settle) -> None:
        """Send a verdict until the answer is definite. A stale lease is: another has the message, or it is done."""
        op = pb.AtomicWrite(settles=[verdict]).SerializeToString()
        pause = _FIRST_PAUSE
        while True:
            try:
                outcome = await self._backend.write(op, timeout=self._timeout)
            except Closed:
                return  # its lease ends with the client's session
            except KvorumError as error:
                repeatable = error.retryable or isinstance(error, (OutcomeUnknown, NoSpace))
                if not repeatable or self._impatient:
                    logger.warning("the verdict on a message was not taken: %s", error)
                    return
            else:
                if outcome.result.outcome != pb.OUTCOME_DONE:
                    logger.info("the verdict on a message came too late: %s", outcome.result.message)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # ---- the end

    async def _wind_up(self, patience: float) -> None:
        assert self._consumer is not None
        self._ending = True
        await self._consumer.close()
        if any(phase is Phase.NEW for phase in self._phases.values()):
            await asyncio.sleep(0)  # their tasks see that it is over, before anybody cancels them
        returning = asyncio.ensure_future(self._give_back())
        try:
            if patience and self._phases:
                await asyncio.wait(self._phases, timeout=patience)
            self._impatient = True
            for task, phase in self._phases.items():
                if phase is Phase.RUNNING:
                    task.cancel()
            await asyncio.wait([*self._phases, returning], timeout=_FAREWELL)
        finally:
            returning.cancel()
            for task in self._phases:
                task.cancel()

    async def _give_back(self) -> None:
        """Return what was never started. A write for each, since one stale lease would fail them all."""
        waiting, self._waiting = list(self._waiting), deque()
        await asyncio.gather(*(self._give_back_one(delivery) for delivery in waiting))

    async def _give_back_one(self, delivery: pb.Delivery) -> None:
        assert self._consumer is not None
        await self._settle(_verdict(delivery, pb.SETTLE_KIND_RETURN))
        self._consumer.settled(delivery.lease_id)


def _verdict(delivery: pb.Delivery, kind: pb.SettleKind, reason: str = "") -> pb.Settle:
    return pb.Settle(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind, reason=reason)


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.encode(errors="replace")[: limits.MAX_REASON_SIZE].decode(errors="ignore")


def check_handler(handler: H) -> H:
    """Errors: InvalidArgument unless it can be called with one message."""
    if not callable(handler):
        raise InvalidArgument(f"a handler is a function of one message, got {type(handler).__name__}")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        # Each of its messages would fail, through the whole backoff schedule, and be dropped.
        raise InvalidArgument(f"a handler is a function of one message: {error}") from None
    except ValueError:
        pass  # some callables written in C tell nothing of their parameters
    return handler


def _count(number: int, name: str, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InvalidArgument(f"{name} must be an int of at least {least}: received {shown(number)}")
    return number
