"""A queue: what programs send to, receive from, and look at."""

import asyncio
import signal as signals_module
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Unpack, overload

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.commit import Sent, commit_result, sent_alone
from kvorum.durations import Duration, milliseconds
from kvorum.errors import LimitExceeded, MessageGone
from kvorum.queues.batch import Batch
from kvorum.queues.dead import DeadLetters
from kvorum.queues.desk import Desk
from kvorum.queues.infos import Kind, MessageInfo, QueueStats, message_info, one_queue, peeked, queue_stats
from kvorum.queues.listener import DEFAULT_CONCURRENCY, Handler, Listener, Terms, check_handler
from kvorum.queues.message import Message
from kvorum.queues.outgoing import SendOptions, outgoing, outgoing_batch, queue_name, size_of
from kvorum.queues.plain import join_plain, plain_head
from kvorum.queues.policy import PolicyOptions, QueuePolicy, policy_message, policy_of
from kvorum.queues.receiver import Receiver, batch_size, receiver_credits
from kvorum.queues.signals import Signals
from kvorum.queues.verdicts import cancel_settle, message_id, reschedule_settle
from kvorum.values import encode_payload

_POLICY_AGE: Final = 5.0
"""Seconds for which batch consumers remember the policy."""


class Queue:
    """A queue by its name. Made by `Kv.queue`, without any I/O: queues are there as soon as they are used.

    Errors of all calls that write: as those of `Kv`; of those that look: Unavailable, Closed.
    """

    def __init__(self, desk: Desk, name: str) -> None:
        self._desk = desk
        self._name = queue_name(name)
        self._head = plain_head(name)
        self._batching: tuple[float, int, int] | None = None
        """When the policy was read, and its `max_batch` and `max_wait` in milliseconds."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def dead(self) -> DeadLetters:
        """The messages that failed for good, where the policy keeps them with their queue."""
        return DeadLetters(self._desk, self._name)

    def __repr__(self) -> str:
        return f"<kvorum.Queue {self._name!r}>"

    # ---- sending

    async def send(self, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]) -> Sent:
        """Put a message on the queue; see `SendOptions`.

        If the queue remembers its `dedup_id`, nothing is sent: `duplicate` is True, and `id` that of the earlier one.

        Errors: InvalidValue, InvalidKey, InvalidArgument, LimitExceeded, QueueFull.
        """
        if options:
            return (await self._write([outgoing(value, self._name, options)], timeout))[0]
        # The most frequent kind of message by far. To join its bytes takes 0.7 µs, to make a message in a message 3.4;
        # to tell of one result 0.4 instead of 2.7 µs.
        link = self._desk.link
        op = join_plain(self._head, encode_payload(value))
        return sent_alone(await link.backend.write(op, timeout=link.within(timeout)))

    async def send_batch(
        self, messages: Sequence[object], *, timeout: Duration | None = None, **common: Unpack[SendOptions]
    ) -> list[Sent]:
        """Put up to 1,000 messages, of 800 KiB together, on the queue in one commit: all or none.

        Messages are values, or `Outgoing` with options of their own, for which `common` are the defaults.

        Errors, which name the message: as `send`.
        """
        made = outgoing_batch(messages, self._name, common)
        return list(await self._write(made, timeout)) if made else []

    async def _write(self, made: Sequence[pb.Enqueue], timeout: Duration | None) -> Sequence[Sent]:
        link = self._desk.link
        op = checked_size(pb.AtomicWrite(enqueues=made))
        return commit_result(await link.backend.write(op, timeout=link.within(timeout)), made).messages

    async def cancel(self, id: str, *, timeout: Duration | None = None) -> bool:
        """Delete a message that is in nobody's hands, ready, scheduled, waiting or dead. False: there is none such.

        Errors: InvalidArgument.
        """
        return await self._settle(cancel_settle(id), timeout)

    async def reschedule(self, id: str, *, delay: Duration, timeout: Duration | None = None) -> bool:
        """Let a message that is in nobody's hands be due `delay` from now on (0: now). False: there is none such.

        Errors: InvalidArgument, LimitExceeded.
        """
        return await self._settle(reschedule_settle(id, delay), timeout)

    async def _settle(self, settle: pb.Settle, timeout: Duration | None) -> bool:
        link = self._desk.link
        op = pb.AtomicWrite(settles=(settle,)).SerializeToString()
        try:
            commit_result(await link.backend.write(op, timeout=link.within(timeout)))
        except MessageGone:
            return False
        return True

    # ---- receiving

    def receive(
        self, *, prefetch: int | None = None, at_most_once: bool = False, renew: bool = True
    ) -> Receiver[Message]:
        """Messages as they come, for `async for`; each has to be settled (`Message.ack` and its like).

        `prefetch` more may be in hand, waiting or unsettled (≤ 999; 1 by default, with `at_most_once` none). What was
        not handed out goes back when the loop is left. `at_most_once`: messages are done when they come, and lost with
        this process. `renew=False`: the lease ends after the queue's lease time unless it is extended, although this
        client lives.

        Errors: InvalidArgument, LimitExceeded, at once; Unavailable, WrongCluster while iterating.
        """
        line = self._desk.line(
            Message,
            queue=self._name,
            credits=receiver_credits(prefetch, at_most_once=at_most_once),
            concurrency=1,
            take=at_most_once,
            expiring=not renew,
        )
        return Receiver(line)

    async def receive_batch(
        self,
        *,
        max: int | None = None,
        wait: Duration | None = None,
        at_most_once: bool = False,
        renew: bool = True,
    ) -> Batch:
        """Up to `max` messages: as soon as so many are there, or what is there when `wait` has passed, maybe none.

        By default the queue's `max_batch` and `max_wait`, else 10 and 5 s. Cancelling returns what had come, except
        with `at_most_once`: that is lost. For a moment (200 ms) after a full batch of 32 or more this client may be
        sent others, for the next call; if there is none they go back.

        Errors: InvalidArgument, LimitExceeded, Unavailable, WrongCluster, Closed.
        """
        most, seconds = await self.batching(max, wait)
        messages = await self._desk.receive_batch(
            Message, queue=self._name, most=most, wait=seconds, take=at_most_once, expiring=not renew
        )
        return Batch(messages)

    async def batching(self, most: int | None, wait: Duration | None) -> tuple[int, float]:
        """Size and seconds of a batch, where they are not given by the policy."""
        milli = None if wait is None else milliseconds(wait, "wait", "MAX_BATCH_WAIT", limits.MAX_BATCH_WAIT)
        if most is not None:
            batch_size(most, "max")
        if most is None or milli is None:
            now = asyncio.get_running_loop().time()
            if self._batching is None or now - self._batching[0] > _POLICY_AGE:
                reply = await self._desk.call(queues=pb.ListQueues(name=self._name, one=True, limit=1))
                own = pb.QueuePolicy.FromString(reply.queues[0].policy) if reply.queues else pb.QueuePolicy()
                self._batching = (
                    now,
                    own.max_batch if own.HasField("max_batch") else limits.DEFAULT_BATCH,
                    own.max_wait_ms if own.HasField("max_wait_ms") else limits.DEFAULT_BATCH_WAIT,
                )
            most = self._batching[1] if most is None else most
            milli = self._batching[2] if milli is None else milli
        return most, milli / 1000

    @overload
    async def listen(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        batch: None = None,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: asyncio.Event | None = None,
    ) -> None: ...
    @overload
    async def listen(
        self,
        handler: Callable[[Batch], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        batch: int,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: asyncio.Event | None = None,
    ) -> None: ...
    async def listen(
        self,
        handler: Handler,
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        batch: int | None = None,
        batch_wait: Duration | None = None,
        renew: bool = True,
        at_most_once: bool = False,
        signals: Iterable[int] = (),
        stop: asyncio.Event | None = None,
    ) -> None:
        """Have a handler called with each `Message`, up to `concurrency` at a time, until the client is closed.

        When it returns, a message that it has not settled is done; when it raises, that is logged, and the message
        comes again by its backoff. With `batch` it is called with a `Batch` of up to so many, one at a time by default;
        a batch that is not full waits `batch_wait` for more. `prefetch` more messages are held ready (by default as
        many as are handled). For `renew` and `at_most_once` see `receive`.

        Ends in order when `stop` is set, when the process gets one of `signals` (`(signal.SIGTERM,)`), and when the
        client is closed: what waits goes back at once, running handlers get time to finish, the client's timeout.
        Cancelling this call cancels them, and their messages are ready again at once.

        Errors: InvalidArgument, LimitExceeded, Unavailable, Closed; WrongCluster, at any time, when the cluster was
        made anew.
        """
        if concurrency is None:
            concurrency = DEFAULT_CONCURRENCY if batch is None else 1
        check_handler(handler)
        if batch is not None:
            batch_size(batch, "batch")
        if batch is not None and batch_wait is None:
            batch_wait = (await self.batching(batch, None))[1] * 1000
        terms = Terms(
            queue=self._name,
            concurrency=concurrency,
            prefetch=prefetch,
            batch=batch,
            batch_wait=0 if batch_wait is None else batch_wait,
            renew=renew,
            at_most_once=at_most_once,
        )
        stopping = Stopping(signals, stop, self._desk.signals)
        try:
            argument: Callable[[Sequence[Message]], object] = Batch if batch is not None else _first
            await self._desk.listen(Message, handler, terms, argument, stopping.begun)
        finally:
            stopping.end()

    async def serve(
        self,
        function: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        signals: Iterable[int] = (),
        stop: asyncio.Event | None = None,
    ) -> None:
        """Answer requests (`Kv.request`): what the function returns is sent in the commit that acknowledges.

        A function that answers itself, by `message.atomic().reply(…).ack().commit()`, returns what it likes. When it
        raises, the request is tried again by its backoff; `AtomicOperation.reply_error` tells whoever asked. Messages
        that ask nothing are acknowledged. For the rest see `listen`.
        """
        check_handler(function)

        async def handle(message: Message) -> None:
            answer = function(message)
            if isinstance(answer, Awaitable):
                answer = await answer
            if message.wants_reply and not message.settled:
                await message.atomic().reply(answer).ack().commit()

        await self.listen(handle, concurrency=concurrency, prefetch=prefetch, signals=signals, stop=stop)

    # ---- looking at it, and after it

    async def define(self, *, timeout: Duration | None = None, **policy: Unpack[PolicyOptions]) -> None:
        """Set its policy, which replaces the one before as a whole; see `QueuePolicy`.

        A change acts at once, also on messages that are there; what they brought, or were given by `retention`, stays.

        Errors: InvalidArgument, LimitExceeded, QueueFull (there are too many queues).
        """
        data = policy_message(policy).SerializeToString(deterministic=True)
        await self._desk.call(timeout, define=pb.DefineQueue(name=self._name, policy=data))

    async def policy(self, *, timeout: Duration | None = None) -> QueuePolicy | None:
        """Its policy; None: it was not defined, all is by default."""
        reply = await self._desk.call(timeout, queues=pb.ListQueues(name=self._name, one=True, limit=1))
        if not reply.queues or not reply.queues[0].defined:
            return None
        return policy_of(reply.queues[0].policy)

    async def stats(self, *, timeout: Duration | None = None) -> QueueStats:
        """What is in it, and what happened in it. Counting takes a look at each message."""
        found = await one_queue(self._desk, self._name, timeout, counts=True)
        return queue_stats(pb.QueueInfo(name=self._name), 0) if found is None else found

    async def peek(self, *, limit: int = 10, kind: Kind = "all", timeout: Duration | None = None) -> list[MessageInfo]:
        """The first messages, which stay where they are: all but the dead in the order in which they were sent, or
        `ready` ones (and scheduled ones, by the time when they are due), `leased`, or `dead` ones.

        Errors: InvalidArgument, DataError.
        """
        return [info async for info in peeked(self._desk, self._name, kind, timeout, limit)]

    async def find(self, id: str, *, timeout: Duration | None = None) -> MessageInfo | None:
        """A message by its id, whatever its state and queue; None: it is done, or never was.

        Errors: InvalidArgument, DataError.
        """
        reply = await self._desk.call(timeout, peek=pb.Peek(message_id=message_id(id), limit=1))
        return message_info(reply.messages[0]) if reply.messages else None

    async def pause(self, *, timeout: Duration | None = None) -> None:
        """Hand out no more messages, until `resume`; those that are out may be settled."""
        await self._desk.call(timeout, pause=pb.PauseQueue(name=self._name, paused=True))

    async def resume(self, *, timeout: Duration | None = None) -> None:
        """Hand out messages again."""
        await self._desk.call(timeout, pause=pb.PauseQueue(name=self._name, paused=False))

    async def purge(self, *, timeout: Duration | None = None) -> int:
        """Delete all messages that are in nobody's hands; returns how many. Not atomic: in many commits."""
        return (await self._desk.call(timeout, purge=pb.Purge(queue=self._name))).count

    async def remove(self, *, timeout: Duration | None = None) -> int:
        """Delete the queue: messages, leased ones too, dead letters and policy; returns how many messages."""
        return (await self._desk.call(timeout, remove=pb.RemoveQueue(name=self._name))).count

    async def requeue_to_origin(self, *, timeout: Duration | None = None) -> int:
        """Of a dead letter queue: send all its messages back to where they came from; returns how many."""
        return (await self._desk.call(timeout, requeue=pb.Requeue(queue=self._name, to_origin=True))).count


class Stopping:
    """Stops a listener when it is told to."""

    def __init__(self, signals: Iterable[int], stop: asyncio.Event | None, shared: Signals) -> None:
        self._signals = [signals_module.Signals(number) for number in signals]
        self._shared = shared
        self._handled: list[tuple[signals_module.Signals, Callable[[], None]]] = []
        self._stop = stop
        self._waiter: asyncio.Task[None] | None = None

    def begun(self, listener: Listener[Any]) -> None:
        """Stop this one."""
        for number in self._signals:
            self._shared.add(number, listener.stop)
            self._handled.append((number, listener.stop))
        if self._stop is not None:
            self._waiter = asyncio.ensure_future(_stop_when(self._stop, listener))

    def end(self) -> None:
        """It has ended."""
        for number, tell in self._handled:
            self._shared.remove(number, tell)
        if self._waiter is not None:
            self._waiter.cancel()


async def _stop_when(stop: asyncio.Event, listener: Listener[Any]) -> None:
    await stop.wait()
    listener.stop()


def _first(messages: Sequence[Message]) -> object:
    return messages[0]


def checked_size(write: pb.AtomicWrite) -> bytes:
    """A write of messages alone, serialised. Errors: LimitExceeded."""
    size = write.ByteSize()
    if size > limits.MAX_TOTAL_WRITE_SIZE:
        size = sum(map(size_of, write.enqueues))  # what the limit counts, which is a little less
    if size > limits.MAX_TOTAL_WRITE_SIZE:
        raise LimitExceeded(
            "MAX_TOTAL_WRITE_SIZE", limits.MAX_TOTAL_WRITE_SIZE, size, f"size of {len(write.enqueues)} messages"
        )
    return write.SerializeToString()
