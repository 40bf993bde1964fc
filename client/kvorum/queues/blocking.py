"""What a blocking client hands out for queues: each is the twin of an asynchronous one; see `kvorum.sync`."""

import signal as signals_module
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from types import FrameType
from typing import Any, Final, Unpack, overload

from kvorum._proto import kvorum_pb2 as pb
from kvorum.background import Background
from kvorum.blocking import AtomicOperation, Waiting
from kvorum.commit import CommitResult, Sent
from kvorum.durations import Duration
from kvorum.errors import InvalidArgument
from kvorum.queues import batch as batches
from kvorum.queues import dead, queue, topic
from kvorum.queues.delivered import Delivered, Hold
from kvorum.queues.desk import Desk
from kvorum.queues.infos import Kind, MessageInfo, QueueStats, TopicInfo, peeked
from kvorum.queues.intake import Make
from kvorum.queues.listener import DEFAULT_CONCURRENCY, Listener, Terms, check_handler
from kvorum.queues.outgoing import SendOptions
from kvorum.queues.policy import Named, PolicyOptions, QueuePolicy
from kvorum.queues.receiver import Receiver as AsyncReceiver
from kvorum.queues.receiver import batch_size, receiver_credits
from kvorum.queues.threads import HandlerThreads

_LOOK: Final = 0.1
"""Seconds between looks at the event that stops a listener."""


class Message(Delivered):
    """As `kvorum.Message`, with methods that block. For one thread at a time."""

    __slots__ = ("_background",)

    def __init__(self, delivery: pb.Delivery, hold: Hold, background: Background) -> None:
        super().__init__(delivery, hold)
        self._background = background

    def ack(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Message.ack`."""
        self._block(self._verdict(pb.SETTLE_KIND_ACK), timeout)

    def retry(self, *, delay: Duration | None = None, reason: str = "", timeout: Duration | None = None) -> None:
        """See `kvorum.Message.retry`."""
        self._block(self._verdict(pb.SETTLE_KIND_RETRY, delay=delay, reason=reason), timeout)

    def reject(self, *, reason: str = "", timeout: Duration | None = None) -> None:
        """See `kvorum.Message.reject`."""
        self._block(self._verdict(pb.SETTLE_KIND_REJECT, reason=reason), timeout)

    def extend(self, by: Duration | None = None, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Message.extend`."""
        self._block(self._verdict(pb.SETTLE_KIND_EXTEND, delay=by, what="by"), timeout)

    def atomic(self) -> AtomicOperation:
        """See `kvorum.Message.atomic`."""
        return AtomicOperation(self._hold.link, self._background, self)

    def _block(self, settle: pb.Settle, timeout: Duration | None) -> None:
        self._background.call(lambda: self._settle(settle, timeout))


def message_maker(background: Background) -> Make[Message]:
    """Makes messages whose calls that thread carries out."""
    return lambda delivery, hold: Message(delivery, hold, background)


class Batch(batches.Messages[Message]):
    """As `kvorum.Batch`, with methods that block."""

    __slots__ = ("_background",)

    def __init__(self, messages: Iterable[Message], background: Background) -> None:
        super().__init__(messages)
        self._background = background

    def ack_all(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Batch.ack_all`."""
        self._block(pb.SETTLE_KIND_ACK, None, "", timeout)

    def retry_all(self, *, delay: Duration | None = None, reason: str = "", timeout: Duration | None = None) -> None:
        """See `kvorum.Batch.retry_all`."""
        self._block(pb.SETTLE_KIND_RETRY, delay, reason, timeout)

    def reject_all(self, *, reason: str = "", timeout: Duration | None = None) -> None:
        """See `kvorum.Batch.reject_all`."""
        self._block(pb.SETTLE_KIND_REJECT, None, reason, timeout)

    def _block(self, kind: "pb.SettleKind", delay: Duration | None, reason: str, timeout: Duration | None) -> None:
        self._background.call(lambda: self._settle_all(kind, delay=delay, reason=reason, timeout=timeout))


class Receiver(Waiting[Message]):
    """As `kvorum.Receiver`, for `for`: waits for each message. `close`, from any thread, ends it."""

    def __init__(self, receiver: AsyncReceiver[Message], background: Background) -> None:
        super().__init__(background, receiver.next, receiver.aclose)

    def next(self) -> Message | None:
        """See `kvorum.Receiver.next`."""
        return self._background.call(self._next_item)


class DeadLetters:
    """As `kvorum.DeadLetters`, for `for`."""

    def __init__(self, desk: Desk, name: str, letters: dead.DeadLetters, background: Background) -> None:
        self._desk = desk
        self._name = name
        self._letters = letters
        self._background = background

    def __iter__(self) -> Iterator[MessageInfo]:
        infos = peeked(self._desk, self._name, "dead", None)

        async def following() -> MessageInfo | None:
            return await anext(infos, None)

        try:
            while (info := self._background.call(following)) is not None:
                yield info
        finally:
            self._background.call(infos.aclose)

    def peek(self, *, limit: int = 10, timeout: Duration | None = None) -> list[MessageInfo]:
        """See `kvorum.DeadLetters.peek`."""
        return self._background.call(lambda: self._letters.peek(limit=limit, timeout=timeout))

    def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[MessageInfo], bool] | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """See `kvorum.DeadLetters.requeue`. `where` is called on the client's own thread: it must not block."""
        return self._background.call(lambda: self._letters.requeue(ids, where=where, timeout=timeout))

    def purge(self, *, timeout: Duration | None = None) -> int:
        """See `kvorum.DeadLetters.purge`."""
        return self._background.call(lambda: self._letters.purge(timeout=timeout))


class Queue:
    """As `kvorum.Queue`, with methods that block. May be shared by threads. Made by `kvorum.sync.Kv.queue`."""

    def __init__(self, own: queue.Queue, desk: Desk, background: Background, handling: threading.local) -> None:
        self._queue = own
        self._desk = desk
        self._background = background
        self._handling = handling
        self._make = message_maker(background)

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def dead(self) -> DeadLetters:
        """See `kvorum.Queue.dead`."""
        return DeadLetters(self._desk, self.name, self._queue.dead, self._background)

    def __repr__(self) -> str:
        return f"<kvorum.sync.Queue {self.name!r}>"

    # ---- sending

    def send(self, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]) -> Sent:
        """See `kvorum.Queue.send`."""
        return self._background.call(lambda: self._queue.send(value, timeout=timeout, **options))

    def send_batch(
        self, messages: Sequence[object], *, timeout: Duration | None = None, **common: Unpack[SendOptions]
    ) -> list[Sent]:
        """See `kvorum.Queue.send_batch`."""
        return self._background.call(lambda: self._queue.send_batch(messages, timeout=timeout, **common))

    def cancel(self, id: str, *, timeout: Duration | None = None) -> bool:
        """See `kvorum.Queue.cancel`."""
        return self._background.call(lambda: self._queue.cancel(id, timeout=timeout))

    def reschedule(self, id: str, *, delay: Duration, timeout: Duration | None = None) -> bool:
        """See `kvorum.Queue.reschedule`."""
        return self._background.call(lambda: self._queue.reschedule(id, delay=delay, timeout=timeout))

    # ---- receiving

    def receive(self, *, prefetch: int | None = None, at_most_once: bool = False, renew: bool = True) -> Receiver:
        """See `kvorum.Queue.receive`."""

        async def begin() -> AsyncReceiver[Message]:
            line = self._desk.line(
                self._make,
                queue=self.name,
                credits=receiver_credits(prefetch, at_most_once=at_most_once),
                concurrency=1,
                take=at_most_once,
                expiring=not renew,
            )
            return AsyncReceiver(line)

        return Receiver(self._background.call(begin), self._background)

    def receive_batch(
        self,
        *,
        max: int | None = None,
        wait: Duration | None = None,
        at_most_once: bool = False,
        renew: bool = True,
    ) -> Batch:
        """See `kvorum.Queue.receive_batch`."""

        async def gathered() -> list[Message]:
            most, seconds = await self._queue.batching(max, wait)
            return await self._desk.receive_batch(
                self._make, queue=self.name, most=most, wait=seconds, take=at_most_once, expiring=not renew
            )

        return Batch(self._background.call(gathered), self._background)

    @overload
    def listen(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        batch: None = None,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: threading.Event | None = None,
    ) -> None: ...
    @overload
    def listen(
        self,
        handler: Callable[[Batch], object],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        batch: int,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: threading.Event | None = None,
    ) -> None: ...
    def listen(
        self,
        handler: Callable[[Any], object],
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        batch: int | None = None,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: threading.Event | None = None,
    ) -> None:
        """See `kvorum.Queue.listen`. Handlers run in up to `concurrency` threads. Blocks until it is stopped.

        `signals` only in the main thread. A handler that is still running when stopping has lost its patience runs to
        its end, but its message is delivered again.
        """
        if concurrency is None:
            concurrency = DEFAULT_CONCURRENCY if batch is None else 1
        self._listen(handler, concurrency, prefetch, batch, batch_wait, renew, at_most_once, signals, stop)

    def serve(
        self,
        function: Callable[[Message], object],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        signals: Iterable[int] = (),
        stop: threading.Event | None = None,
    ) -> None:
        """See `kvorum.Queue.serve`, and `listen`."""
        check_handler(function)

        def handle(message: Message) -> None:
            answer = function(message)
            if message.wants_reply and not message.settled:
                message.atomic().reply(answer).ack().commit()

        self._listen(handle, concurrency, prefetch, None, None, True, False, signals, stop)

    def _listen(
        self,
        handler: Callable[[Any], object],
        concurrency: int,
        prefetch: int | None,
        batch: int | None,
        batch_wait: Duration | None,
        renew: bool,
        at_most_once: bool,
        signals: Iterable[int],
        stop: threading.Event | None,
    ) -> None:
        if batch is not None:
            batch_size(batch, "batch")
        stopping = _Stopping(signals, stop, self._background)

        async def listen(threads: HandlerThreads) -> None:
            wait = batch_wait
            if batch is not None and wait is None:
                wait = (await self._queue.batching(batch, None))[1] * 1000
            terms = Terms(
                queue=self.name,
                concurrency=concurrency,
                prefetch=prefetch,
                batch=batch,
                batch_wait=0 if wait is None else wait,
                renew=renew,
                at_most_once=at_most_once,
            )
            await self._desk.listen(self._make, threads, terms, argument, stopping.begun)

        def argument(messages: Sequence[Message]) -> object:
            return messages[0] if batch is None else Batch(messages, self._background)

        with HandlerThreads(handler, concurrency, self._handling) as threads, stopping:
            stopping.wait(self._background.submit(lambda: listen(threads)))

    # ---- looking at it, and after it

    def define(self, *, timeout: Duration | None = None, **policy: Unpack[PolicyOptions]) -> None:
        """See `kvorum.Queue.define`."""
        self._background.call(lambda: self._queue.define(timeout=timeout, **policy))

    def policy(self, *, timeout: Duration | None = None) -> QueuePolicy | None:
        """See `kvorum.Queue.policy`."""
        return self._background.call(lambda: self._queue.policy(timeout=timeout))

    def stats(self, *, timeout: Duration | None = None) -> QueueStats:
        """See `kvorum.Queue.stats`."""
        return self._background.call(lambda: self._queue.stats(timeout=timeout))

    def peek(self, *, limit: int = 10, kind: Kind = "all", timeout: Duration | None = None) -> list[MessageInfo]:
        """See `kvorum.Queue.peek`."""
        return self._background.call(lambda: self._queue.peek(limit=limit, kind=kind, timeout=timeout))

    def find(self, id: str, *, timeout: Duration | None = None) -> MessageInfo | None:
        """See `kvorum.Queue.find`."""
        return self._background.call(lambda: self._queue.find(id, timeout=timeout))

    def pause(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Queue.pause`."""
        self._background.call(lambda: self._queue.pause(timeout=timeout))

    def resume(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Queue.resume`."""
        self._background.call(lambda: self._queue.resume(timeout=timeout))

    def purge(self, *, timeout: Duration | None = None) -> int:
        """See `kvorum.Queue.purge`."""
        return self._background.call(lambda: self._queue.purge(timeout=timeout))

    def remove(self, *, timeout: Duration | None = None) -> int:
        """See `kvorum.Queue.remove`."""
        return self._background.call(lambda: self._queue.remove(timeout=timeout))

    def requeue_to_origin(self, *, timeout: Duration | None = None) -> int:
        """See `kvorum.Queue.requeue_to_origin`."""
        return self._background.call(lambda: self._queue.requeue_to_origin(timeout=timeout))


class Topic:
    """As `kvorum.Topic`, with methods that block. Made by `kvorum.sync.Kv.topic`."""

    def __init__(self, own: topic.Topic, background: Background) -> None:
        self._topic = own
        self._background = background

    @property
    def name(self) -> str:
        return self._topic.name

    def __repr__(self) -> str:
        return f"<kvorum.sync.Topic {self.name!r}>"

    def send(self, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]) -> CommitResult:
        """See `kvorum.Topic.send`."""
        return self._background.call(lambda: self._topic.send(value, timeout=timeout, **options))

    def define(self, *, retention: Duration | None = None, timeout: Duration | None = None) -> None:
        """See `kvorum.Topic.define`."""
        self._background.call(lambda: self._topic.define(retention=retention, timeout=timeout))

    def remove(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Topic.remove`."""
        self._background.call(lambda: self._topic.remove(timeout=timeout))

    def subscribe(
        self, queue: "str | Named", *, since: timedelta | int | float | None = None, timeout: Duration | None = None
    ) -> int:
        """See `kvorum.Topic.subscribe`."""
        return self._background.call(lambda: self._topic.subscribe(queue, since=since, timeout=timeout))

    def unsubscribe(self, queue: "str | Named", *, timeout: Duration | None = None) -> None:
        """See `kvorum.Topic.unsubscribe`."""
        self._background.call(lambda: self._topic.unsubscribe(queue, timeout=timeout))

    def subscriptions(self, *, timeout: Duration | None = None) -> list[str]:
        """See `kvorum.Topic.subscriptions`."""
        return self._background.call(lambda: self._topic.subscriptions(timeout=timeout))

    def info(self, *, timeout: Duration | None = None) -> TopicInfo | None:
        """See `kvorum.Topic.info`."""
        return self._background.call(lambda: self._topic.info(timeout=timeout))


class _Stopping:
    """Stops a listener when its thread is told to. Entered by the thread that waits."""

    def __init__(self, signals: Iterable[int], stop: threading.Event | None, background: Background) -> None:
        self._signals = [signals_module.Signals(number) for number in signals]
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise InvalidArgument("signals reach the main thread only: listen there, or give stop")
        self._before: dict[int, Any] = {}
        self._stop = stop
        self._background = background
        self._listener: Listener[Any] | None = None
        self._wanted = False

    def begun(self, listener: Listener[Any]) -> None:
        """Stop this one; called on the client's loop."""
        self._listener = listener
        if self._wanted:
            listener.stop()

    def __enter__(self) -> None:
        for number in self._signals:
            self._before[number] = signals_module.signal(number, self._signalled)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signals_module.signal(number, before)

    def wait(self, listening: "Future[None]") -> None:
        """Until it has ended."""
        try:
            while self._stop is not None and not self._wanted:
                try:
                    listening.result(_LOOK)
                except FutureTimeout:
                    if listening.done():
                        break  # it was the listener's own
                    if self._stop.is_set():
                        self._end()
                else:
                    return
            self._background.result(listening)
        except BaseException:
            listening.cancel()
            raise

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._wanted = True
        self._background.loop.call_soon_threadsafe(self._stop_listener)

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.stop()
