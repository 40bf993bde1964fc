"""The same client for programs without asyncio: `with kvorum.sync.open_kv(target) as kv`.

Each client has one background thread with an event loop, on which the asynchronous client does all the work; a method
here hands its call over and waits. Any number of threads may share a client, and their calls travel together like
those of as many tasks. What holds no connection (builders, the walk of a list) is shared code and stays in the
calling thread.
"""

import builtins
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from kvorum import kv as asynchronous
from kvorum._proto import kvorum_pb2 as pb
from kvorum.background import Background
from kvorum.blocking import AtomicOperation, Follower, ListIterator, RangeWatch, Transaction, Watch, run_transaction
from kvorum.changes import Follower as AsyncFollower
from kvorum.changes import RangeWatch as AsyncRangeWatch
from kvorum.commit import CommitResult
from kvorum.consistency import Consistency
from kvorum.durations import Duration
from kvorum.entry import Entry
from kvorum.keys import KeyPart
from kvorum.listing import Walk
from kvorum.mutation import SetKey
from kvorum.queues.blocking import Batch, DeadLetters, Message, Queue, Receiver, Topic, message_maker
from kvorum.queues.infos import Misfire, QueueStats, ScheduleInfo, TopicInfo
from kvorum.queues.listener import DEFAULT_CONCURRENCY, Terms
from kvorum.queues.outgoing import SendOptions
from kvorum.queues.threads import HandlerThreads
from kvorum.sync_auth import Auth
from kvorum.tls import TlsOption
from kvorum.transaction import DEFAULT_ATTEMPTS
from kvorum.watch import Watch as AsyncWatch

T = TypeVar("T")


class Kv:
    """As `kvorum.Kv`, with methods that block. May be shared by threads. Made by `kvorum.sync.open_kv`."""

    def __init__(self, kv: asynchronous.Kv, background: Background) -> None:
        self._kv = kv
        self._background = background
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self._handling = threading.local()
        self._make = message_maker(background)
        self.auth = Auth(kv.auth, background)
        """Tokens, of a cluster."""

    # ---- reading

    def get(
        self,
        key: Sequence[KeyPart],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Entry:
        """See `kvorum.Kv.get`."""
        return self._background.call(
            lambda: self._kv.get(key, consistency=consistency, max_age=max_age, timeout=timeout)
        )

    def get_many(
        self,
        keys: Sequence[Sequence[KeyPart]],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> list[Entry]:
        """See `kvorum.Kv.get_many`."""
        return self._background.call(
            lambda: self._kv.get_many(keys, consistency=consistency, max_age=max_age, timeout=timeout)
        )

    def expires_in(
        self,
        key: Sequence[KeyPart],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> timedelta | None:
        """See `kvorum.Kv.expires_in`."""
        return self._background.call(
            lambda: self._kv.expires_in(key, consistency=consistency, max_age=max_age, timeout=timeout)
        )

    def count(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """See `kvorum.Kv.count`."""
        return self._background.call(
            lambda: self._kv.count(
                prefix, start=start, end=end, consistency=consistency, max_age=max_age, timeout=timeout
            )
        )

    def list(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        limit: int | None = None,
        reverse: bool = False,
        cursor: str | None = None,
        batch_size: int | None = None,
        keys_only: bool = False,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> ListIterator:
        """See `kvorum.Kv.list`."""
        walk = Walk(
            prefix,
            start,
            end,
            limit=limit,
            reverse=reverse,
            cursor=cursor,
            batch_size=batch_size,
            consistency=consistency,
            max_age=max_age,
            keys_only=keys_only,
        )
        link = self._kv.link
        return ListIterator(walk, link, link.within(timeout), self._background)

    def watch(self, keys: Sequence[Sequence[KeyPart]], *, raw: bool = False) -> Watch:
        """See `kvorum.Kv.watch`."""

        async def begin() -> AsyncWatch:
            return self._kv.watch(keys, raw=raw)

        return Watch(self._background.call(begin), self._background)

    def watch_prefix(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        since: str | None = None,
        keys_only: bool = False,
        progress: bool = False,
    ) -> RangeWatch:
        """See `kvorum.Kv.watch_prefix`."""

        async def begin() -> AsyncRangeWatch:
            return self._kv.watch_prefix(
                prefix, start=start, end=end, since=since, keys_only=keys_only, progress=progress
            )

        return RangeWatch(self._background.call(begin), self._background)

    def follow(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        keys_only: bool = False,
        timeout: Duration | None = None,
    ) -> Follower:
        """See `kvorum.Kv.follow`."""

        async def begin() -> AsyncFollower:
            return self._kv.follow(prefix, start=start, end=end, keys_only=keys_only, timeout=timeout)

        return Follower(self._background.call(begin), self._background)

    # ---- writing

    def set(
        self, key: SetKey, value: object, *, expire_in: Duration | None = None, timeout: Duration | None = None
    ) -> CommitResult:
        """See `kvorum.Kv.set`."""
        return self._background.call(lambda: self._kv.set(key, value, expire_in=expire_in, timeout=timeout))

    def delete(self, key: Sequence[KeyPart], *, timeout: Duration | None = None) -> CommitResult:
        """See `kvorum.Kv.delete`."""
        return self._background.call(lambda: self._kv.delete(key, timeout=timeout))

    def touch(self, key: Sequence[KeyPart], *, expire_in: Duration | None, timeout: Duration | None = None) -> bool:
        """See `kvorum.Kv.touch`."""
        return self._background.call(lambda: self._kv.touch(key, expire_in=expire_in, timeout=timeout))

    def delete_range(self, start: Sequence[KeyPart], end: Sequence[KeyPart], *, timeout: Duration | None = None) -> int:
        """See `kvorum.Kv.delete_range`."""
        return self._background.call(lambda: self._kv.delete_range(start, end, timeout=timeout))

    def delete_prefix(self, prefix: Sequence[KeyPart], *, timeout: Duration | None = None) -> int:
        """See `kvorum.Kv.delete_prefix`."""
        return self._background.call(lambda: self._kv.delete_prefix(prefix, timeout=timeout))

    def atomic(self) -> AtomicOperation:
        """See `kvorum.Kv.atomic`."""
        return AtomicOperation(self._kv.link, self._background)

    def transaction(
        self,
        function: Callable[[Transaction], T],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: Duration | None = None,
    ) -> T:
        """See `kvorum.Kv.transaction`. Here it is a plain function, called in this thread."""
        return run_transaction(self._kv.link, self._background, function, attempts, timeout)

    # ---- queues

    def enqueue(
        self,
        value: object,
        *,
        queue: str = "",
        delay: Duration | None = None,
        keys_if_undelivered: Sequence[Sequence[KeyPart]] = (),
        backoff_schedule: Sequence[Duration] | None = None,
        timeout: Duration | None = None,
    ) -> CommitResult:
        """See `kvorum.Kv.enqueue`."""
        return self._background.call(
            lambda: self._kv.enqueue(
                value,
                queue=queue,
                delay=delay,
                keys_if_undelivered=keys_if_undelivered,
                backoff_schedule=backoff_schedule,
                timeout=timeout,
            )
        )

    @overload
    def listen_queue(
        self,
        handler: Callable[[Any], object],
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: Literal[False] = False,
    ) -> None: ...
    @overload
    def listen_queue(
        self,
        handler: Callable[[Message], object],
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: Literal[True],
    ) -> None: ...
    def listen_queue(
        self,
        handler: Callable[[Any], object],
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: bool = False,
    ) -> None:
        """See `kvorum.Kv.listen_queue`. Blocks until another thread, or a handler, closes the client.

        Handlers run in up to `concurrency` threads. A handler that is still running when closing has lost its patience
        runs to its end, but its message is delivered again.
        """
        terms = Terms(queue=queue, concurrency=concurrency, prefetch=prefetch)
        argument: Callable[[Sequence[Message]], object] = _message if with_message else _value
        with HandlerThreads(handler, concurrency, self._handling) as threads:
            self._background.call(lambda: self._kv.desk.listen(self._make, threads, terms, argument))

    def queue(self, name: str) -> Queue:
        """See `kvorum.Kv.queue`."""
        return Queue(self._kv.queue(name), self._kv.desk, self._background, self._handling)

    def queues(
        self, prefix: str = "", *, counts: bool = False, timeout: Duration | None = None
    ) -> "builtins.list[QueueStats]":
        """See `kvorum.Kv.queues`."""
        return self._background.call(lambda: self._kv.queues(prefix, counts=counts, timeout=timeout))

    def topic(self, name: str) -> Topic:
        """See `kvorum.Kv.topic`."""
        return Topic(self._kv.topic(name), self._background)

    def topics(self, *, timeout: Duration | None = None) -> "builtins.list[TopicInfo]":
        """See `kvorum.Kv.topics`."""
        return self._background.call(lambda: self._kv.topics(timeout=timeout))

    def request(
        self, queue: str, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> Any:
        """See `kvorum.Kv.request`."""
        return self._background.call(lambda: self._kv.request(queue, value, timeout=timeout, **options))

    def schedule(
        self,
        name: str,
        cron: str,
        *,
        queue: str | None = None,
        topic: str | None = None,
        value: object = None,
        time_zone: str = "UTC",
        misfire: Misfire = "once",
        grace: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """See `kvorum.Kv.schedule`."""
        self._background.call(
            lambda: self._kv.schedule(
                name,
                cron,
                queue=queue,
                topic=topic,
                value=value,
                time_zone=time_zone,
                misfire=misfire,
                grace=grace,
                timeout=timeout,
                **options,
            )
        )

    def unschedule(self, name: str, *, timeout: Duration | None = None) -> None:
        """See `kvorum.Kv.unschedule`."""
        self._background.call(lambda: self._kv.unschedule(name, timeout=timeout))

    def schedules(self, *, timeout: Duration | None = None) -> "builtins.list[ScheduleInfo]":
        """See `kvorum.Kv.schedules`."""
        return self._background.call(lambda: self._kv.schedules(timeout=timeout))

    # ---- the client itself

    def status(self, *, timeout: Duration | None = None) -> pb.StatusResponse:
        """See `kvorum.Kv.status`."""
        return self._background.call(lambda: self._kv.status(timeout=timeout))

    def statistics(self) -> dict[str, float]:
        """See `kvorum.Kv.statistics`."""

        async def figures() -> dict[str, float]:
            return self._kv.statistics()

        return {} if self.closed else self._background.call(figures)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing is not None

    def close(self) -> None:
        """See `kvorum.Kv.close`. Ends the background thread."""
        with self._lock:
            if self._closing is None:
                self._closing = self._background.submit(self._kv.close)
                self._closing.add_done_callback(lambda _: self._background.stop(wait=False))
        if getattr(self._handling, "active", False):
            return  # the handler that calls must end first
        try:
            self._closing.result()
        finally:
            self._background.stop()

    def __repr__(self) -> str:
        return repr(self._kv).replace("kvorum.Kv", "kvorum.sync.Kv", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _value(messages: Sequence[Message]) -> object:
    return messages[0].value


def _message(messages: Sequence[Message]) -> object:
    return messages[0]


def open_kv(
    target: str | os.PathLike[str] | None = None,
    *,
    token: str | None = None,
    tls: TlsOption = None,
    timeout: Duration | None = None,
) -> Kv:
    """Open a database, as `kvorum.open_kv` does, and return when it is open. Close it, or use it in a `with`."""
    opening = asynchronous.open_kv(target, token=token, tls=tls, timeout=timeout)

    async def open_it() -> asynchronous.Kv:
        return await opening

    background = Background()
    try:
        return Kv(background.call(open_it), background)
    except BaseException:
        background.stop()
        raise


__all__ = [
    "AtomicOperation",
    "Batch",
    "DeadLetters",
    "Kv",
    "ListIterator",
    "Message",
    "Queue",
    "Receiver",
    "Topic",
    "Transaction",
    "Watch",
    "open_kv",
]
