"""Listening: messages come in, handlers run, verdicts go out.

A message is in one of three states here. *Waiting*: delivered ahead of its time, so that a free handler need not wait
for a round trip; nobody knows of it yet. *Running*: its handler was called. *Settling*: its handler is done, and the
verdict (acknowledged, or failed with a reason) is on its way. A place among the `concurrency` ones is free again only
when the verdict was answered: the node counts the first `concurrency` unsettled messages of a lost client as begun.

Two ways to an end. *Stopping*, as closing the client does: no more messages, waiting ones go back at once, running
handlers get time to finish. *Cancelling* the call: the same, but running handlers are cancelled; their messages are
ready again at once, with this attempt counted. The same, and an error, when no more messages can come, as from a
cluster that is not the same any more. If the client goes on, so does what is on its way back when the listener has
ended: its leases are renewed for as long as the client lives, and nobody else would get these messages.

One task for each place that was ever in use, none for a message: between messages it is *idle*. A task for each group
of messages that comes into an empty listener, where 256 come at a time, took 1.4 µs a message more.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import DataError, InvalidArgument, KvorumError, LimitExceeded
from kvorum.link import Link
from kvorum.queues.delivered import Delivered, cut_reason
from kvorum.queues.intake import Intake, Make, reason_of, whole_number
from kvorum.queues.outgoing import queue_name
from kvorum.queues.settling import Settler

logger = logging.getLogger("kvorum")

Handler = Callable[[Any], Awaitable[object] | object]
"""Called with a message's value, with the `Message`, or with a batch of them. Returning means that what was not settled
is done, raising that it failed."""

H = TypeVar("H", bound=Callable[[Any], object])
M = TypeVar("M", bound=Delivered)

DEFAULT_CONCURRENCY: Final = 32
_FAREWELL: Final = 2.0
"""Seconds for which the last verdicts are waited for when listening ends."""


_Verdict = tuple["pb.SettleKind", str, int | None]
"""Kind, reason, and the delay in milliseconds."""
_DONE: Final[_Verdict] = (pb.SETTLE_KIND_ACK, "", None)
_CANCELLED: Final[_Verdict] = (pb.SETTLE_KIND_RETRY, "its handler was cancelled", 0)


class Phase(Enum):
    """Of a place."""

    NEW = 0
    """Its task has not seen yet what it shall handle."""
    RUNNING = 1
    SETTLING = 2
    IDLE = 3


@dataclass(frozen=True)
class Terms:
    """How to listen. `batch`: messages that a handler gets at a time; None: it gets one, not a batch."""

    queue: str
    concurrency: int = DEFAULT_CONCURRENCY
    prefetch: int | None = None
    batch: int | None = None
    batch_wait: Duration = limits.DEFAULT_BATCH_WAIT
    renew: bool = True
    at_most_once: bool = False

    def credits(self) -> int:
        """Messages that may be in hand. Errors: InvalidArgument, LimitExceeded."""
        running = whole_number(self.concurrency, "concurrency", 1)
        if self.batch is not None:
            if whole_number(self.batch, "batch", 1) > limits.MAX_BATCH:
                raise LimitExceeded("MAX_BATCH", limits.MAX_BATCH, self.batch, "batch")
            running *= self.batch
        if self.prefetch is not None:
            ahead = whole_number(self.prefetch, "prefetch", 0)
        elif self.at_most_once:
            ahead = 0  # what is taken ahead of its time is lost with this process
        else:
            ahead = max(0, min(running, limits.MAX_CREDITS - running))
        if running + ahead > limits.MAX_CREDITS:
            what = "concurrency and prefetch" if self.batch is None else "concurrency × batch, and prefetch"
            raise LimitExceeded("MAX_CREDITS", limits.MAX_CREDITS, running + ahead, what)
        return running + ahead

    def wait(self) -> float:
        """Seconds that a batch waits for more. Errors: InvalidArgument, LimitExceeded."""
        return milliseconds(self.batch_wait, "batch_wait", "MAX_BATCH_WAIT", limits.MAX_BATCH_WAIT) / 1000


class Listener(Generic[M]):
    """One call of `listen`. `argument` makes what a handler is called with of the messages that it shall have."""

    def __init__(
        self,
        link: Link,
        settler: Settler,
        make: Make[M],
        handler: Handler,
        terms: Terms,
        argument: Callable[[Sequence[M]], object],
    ) -> None:
        self._handler = check_handler(handler)
        self._argument = argument
        self._terms = terms
        self._timeout = link.timeout
        self._tracing = link.tracing
        self._batch_wait = terms.wait()
        self._intake = Intake(
            link,
            settler,
            make,
            queue=queue_name(terms.queue),
            credits=terms.credits(),
            concurrency=terms.concurrency * (terms.batch or 1),
            take=terms.at_most_once,
            expiring=not terms.renew,
            news=self._news,
        )
        self._phases: dict[asyncio.Task[None], Phase] = {}
        self._idle: list[tuple[asyncio.Task[None], asyncio.Future[list[pb.Delivery]]]] = []
        """Tasks that wait for messages. The last one that fell idle goes first."""
        self._overdue = False
        """The batch that gathers has waited long enough."""
        self._clock: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()
        self._finished = asyncio.Event()
        self._problem: KvorumError | None = None
        """What has ended it."""
        self._ending = False
        self._impatient = False
        """Running handlers are being cancelled."""
        self.returning: list[asyncio.Task[None]] = []
        """What is left of it when `run` is through: verdicts, and messages on their way back."""

    async def run(self) -> None:
        """Listen until `stop` is called. Errors: those of `Backend.consume`, also later, when no more can come."""
        patient = False
        intake = self._intake
        try:
            await intake.open()
        except BaseException:
            self._finished.set()
            raise
        try:
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

    def _news(self) -> None:
        if self._intake.problem is not None and not self._stop.is_set():
            self._problem = self._intake.problem
            self._stop.set()
        self._start_more()

    def _start_more(self) -> None:
        while (self._idle or len(self._phases) < self._terms.concurrency) and (group := self._next_group()):
            self._phases[self._hand_over(group)] = Phase.NEW

    def _hand_over(self, group: list[pb.Delivery]) -> "asyncio.Task[None]":
        while self._idle:
            task, work = self._idle.pop()
            if not work.done():  # or it was cancelled a moment ago
                work.set_result(group)
                return task
        task = asyncio.get_running_loop().create_task(self._work(group))
        task.add_done_callback(self._worked)
        return task

    def _next_group(self) -> list[pb.Delivery]:
        """What the next free place shall handle; empty: nothing yet."""
        waiting, most = self._intake.waiting, self._terms.batch
        if self._ending or not waiting:
            return []
        if most is None:
            return [waiting.popleft()]
        if len(waiting) < most and not self._overdue and self._batch_wait:
            if self._clock is None:
                self._clock = asyncio.get_running_loop().call_later(self._batch_wait, self._ring)
            return []
        group = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        self._overdue = False
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        return group

    def _ring(self) -> None:
        self._clock = None
        self._overdue = True
        self._start_more()

    async def _work(self, group: list[pb.Delivery]) -> None:
        """Handle messages, and then others, until there shall be no more."""
        task = asyncio.current_task()
        assert task is not None
        while group:
            if self._ending:
                self._intake.waiting.extend(group)  # not begun: they go back with the others
                return
            self._phases[task] = Phase.RUNNING
            await self._handle(group, task)
            group = self._next_group()
            if not group and not self._ending:
                group = await self._more_work(task)

    async def _more_work(self, task: "asyncio.Task[None]") -> list[pb.Delivery]:
        """Wait until there is something to be handled; empty: it is over."""
        work: asyncio.Future[list[pb.Delivery]] = asyncio.get_running_loop().create_future()
        idle = task, work
        self._phases[task] = Phase.IDLE
        self._idle.append(idle)
        try:
            return await work
        except asyncio.CancelledError:
            if idle in self._idle:
                self._idle.remove(idle)
            elif not work.cancelled():  # it had got something
                self._intake.waiting.extendleft(reversed(work.result()))
            raise

    def _worked(self, task: "asyncio.Task[None]") -> None:
        del self._phases[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not of the handler: those are verdicts. Without a word the place would be missing and nobody know why.
            logger.error("a queue listener's task failed", exc_info=error)
        self._start_more()

    async def _handle(self, group: list[pb.Delivery], task: "asyncio.Task[None]") -> None:
        intake = self._intake
        messages: list[M] = []
        for delivery in group:
            intake.begin(delivery)
            try:
                messages.append(intake.message(delivery))
            except DataError as error:
                self._phases[task] = Phase.SETTLING
                await intake.undecodable(delivery, error, self._gave_up)
                self._phases[task] = Phase.RUNNING
        if messages:
            verdict, tracing, span = _DONE, self._tracing, None
            try:
                if tracing is None:
                    outcome = self._handler(self._argument(messages))
                    if inspect.isawaitable(outcome):
                        await outcome
                else:
                    with tracing.handling(self._terms.queue, messages) as span:
                        outcome = self._handler(self._argument(messages))
                        if inspect.isawaitable(outcome):
                            await outcome
            except asyncio.CancelledError as error:
                verdict = self._cancelled(messages, error, task)
            except Exception as error:  # noqa: BLE001  # whatever a handler raises is the verdict, and logged
                verdict = _failed(messages, error)
            if unsettled := [message for message in messages if not message.settled]:
                self._phases[task] = Phase.SETTLING
                if tracing is None or span is None:
                    await self._settle(unsettled, verdict)
                else:
                    with tracing.settling(span):
                        await self._settle(unsettled, verdict)
        for delivery in group:
            intake.finish(delivery)

    def _cancelled(self, messages: list[M], error: asyncio.CancelledError, task: "asyncio.Task[None]") -> _Verdict:
        if self._impatient:
            task.uncancel()
            return _CANCELLED
        if task.cancelling():
            raise error  # the loop is being shut down: no time for verdicts
        return _failed(messages, error)  # from within the handler

    async def _settle(self, messages: Sequence[M], verdict: _Verdict) -> None:
        kind, reason, delay_ms = verdict
        settles = [
            pb.Settle(
                message_id=message.message_id, lease_id=message.lease_id, kind=kind, reason=reason, delay_ms=delay_ms
            )
            for message in messages
        ]
        await self._intake.insist(settles, self._gave_up)
        for message in messages:
            message._end(acknowledged=kind == pb.SETTLE_KIND_ACK)

    def _gave_up(self) -> bool:
        """With the client all that is not settled goes back."""
        return self._impatient and self._intake.link.closed

    # ---- the end

    async def _wind_up(self, patience: float) -> None:
        self._ending = True
        for _, work in self._idle:
            if not work.done():
                work.set_result([])
        self._idle.clear()
        if self._clock is not None:
            self._clock.cancel()
        returning = asyncio.ensure_future(self._leave())
        try:
            if any(phase is Phase.NEW for phase in self._phases.values()):
                await asyncio.sleep(0)  # their tasks see that it is over, before anybody cancels them
            if patience and self._phases:
                await asyncio.wait(self._phases, timeout=patience)
            self._impatient = True
            for task, phase in self._phases.items():
                if phase is Phase.RUNNING:
                    task.cancel()
            await asyncio.wait([*self._phases, returning], timeout=_FAREWELL)
        finally:
            settling = [task for task, phase in self._phases.items() if phase is Phase.SETTLING]
            self.returning = [task for task in (*settling, returning) if not task.done()]
            for task, phase in self._phases.items():
                if phase is Phase.RUNNING:
                    task.cancel()
            if self._intake.link.closed:
                for task in self.returning:
                    task.cancel()

    async def _leave(self) -> None:
        """Its first step comes after those of all tasks that are new: what they have got goes back as well."""
        await self._intake.close()
        await self._intake.give_back()


def _failed(messages: Sequence[Delivered], error: BaseException) -> _Verdict:
    first = messages[0]
    if len(messages) == 1:
        what = f"message {first.id}, attempt {first.attempt}"
    else:
        what = f"{len(messages)} messages from {first.id} on"
    logger.error("Exception in queue handler: queue %r, %s", first.queue, what, exc_info=error)
    return pb.SETTLE_KIND_RETRY, cut_reason(reason_of(error)), None


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
