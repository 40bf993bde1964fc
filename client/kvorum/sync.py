"""The same client for programs without asyncio: `with kvorum.sync.open_kv(target) as kv`.

Each client has one background thread with an event loop, on which the asynchronous client does all the work; a method
here hands its call over and waits. Any number of threads may share a client, and their calls travel together like
those of as many tasks. What holds no connection (builders, the walk of a list) is shared code and stays in the
calling thread.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from kvorum import kv as asynchronous
from kvorum._proto import kvorum_pb2 as pb
from kvorum.atomic import AtomicBuilder
from kvorum.changes import Changes, Listing
from kvorum.changes import Follower as AsyncFollower
from kvorum.changes import RangeWatch as AsyncRangeWatch
from kvorum.commit import CommitResult
from kvorum.consistency import Consistency
from kvorum.durations import Duration
from kvorum.entry import Entry
from kvorum.errors import Closed, InvalidArgument, OutcomeUnknown
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.listing import Walk
from kvorum.message import Message
from kvorum.mutation import SetKey
from kvorum.queue import DEFAULT_CONCURRENCY, check_handler
from kvorum.transaction import (
    DEFAULT_ATTEMPTS,
    FINAL,
    Attempts,
    TransactionBuilder,
    check_function,
    check_many,
    nothing_written,
)
from kvorum.watch import Watch as AsyncWatch

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Background:
    """A thread with an event loop. `call` may be used by all other threads until `stop`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._accepting = False
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        # A daemon, so that a program that forgot to close ends nevertheless.
        self._thread = threading.Thread(target=self._run, name="kvorum-sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._accepting = True
        self._ready.set()
        await self._stop.wait()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def submit(self, call: Call[T]) -> "Future[T]":
        """Begin a call. Errors: Closed after `stop`, in the child of a fork, and on the loop's own thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the client's own thread would wait for ever")
        if os.getpid() != self._pid:
            raise Closed("this client was opened before the process was forked; open another one")
        # Under the lock, so that nothing is handed over behind the order to stop: it would never be answered.
        with self._lock:
            if not self._accepting:
                raise Closed
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def call(self, call: Call[T]) -> T:
        """The result of a call. An interrupt cancels it."""
        future = self.submit(call)
        try:
            return future.result()
        except CancelledError:
            raise Closed(outcome="unknown") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, *, wait: bool = True) -> None:
        """End the loop and its thread; calls under way end with Closed. May be called again."""
        with self._lock:
            if self._accepting:
                self._accepting = False
                self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join()


class AtomicOperation(AtomicBuilder):
    """As `kvorum.AtomicOperation`, with a `commit` that blocks."""

    __slots__ = ("_background",)

    def __init__(self, link: Link, background: Background) -> None:
        super().__init__(link)
        self._background = background

    def commit(self, *, timeout: Duration | None = None) -> CommitResult:
        """See `kvorum.AtomicOperation.commit`."""
        op, within = self._serialise(), self._link.within(timeout)

        async def write() -> CommitResult:
            return self._judge(await self._link.backend.write(op, timeout=within))

        return self._result(self._background.call(write))


class Transaction(TransactionBuilder):
    """As `kvorum.Transaction`, with reads that block. For the thread that runs the transaction's function."""

    __slots__ = ("_attempts", "_background")

    def __init__(self, link: Link, attempts: Attempts, background: Background) -> None:
        super().__init__(link)
        self._attempts = attempts
        self._background = background

    def get(self, key: Sequence[KeyPart]) -> Entry:
        """See `kvorum.Transaction.get`."""
        self._read((key,))
        return self._entry(key)

    def get_many(self, keys: Sequence[Sequence[KeyPart]]) -> "list[Entry]":
        """See `kvorum.Transaction.get_many`."""
        check_many(keys)
        self._read(keys)
        return [self._entry(key) for key in keys]

    def _read(self, keys: Sequence[Sequence[KeyPart]]) -> None:
        read = self._wanted(keys)
        if read is not None:
            self._take(read, self._answer(read))

    def _answer(self, read: pb.Read) -> pb.ReadResult:
        backend, left = self._link.backend, self._attempts.left()

        async def answer() -> pb.ReadResult:
            return await backend.read(read, timeout=left)

        return self._background.call(answer)

    def _write_out(self, op: bytes) -> CommitResult:
        backend, left = self._link.backend, self._attempts.left()

        async def write() -> CommitResult:
            return self._judge(await backend.write(op, timeout=left))

        return self._background.call(write)

    def _commit(self) -> bool:
        """False: a conflict."""
        if not self._changes_something:
            return self._holds()
        return self._result(self._write_out(self._whole())).ok

    def _holds(self) -> bool:
        """Whether what was read is of one moment."""
        if self._belongs_together:
            return True
        read = self._reread()
        if read is not None:
            return self._unchanged(self._answer(read))
        try:
            return self._write_out(self._checks_alone()).ok
        except OutcomeUnknown as error:
            raise nothing_written(error) from error


class ListIterator:
    """As `kvorum.ListIterator`, for `for`. For one thread at a time."""

    def __init__(self, walk: Walk, link: Link, timeout: float, background: Background) -> None:
        self._walk = walk
        self._link = link
        self._timeout = timeout
        self._background = background

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        entry = self._step()
        if entry is None:
            raise StopIteration
        return entry

    def page(self) -> list[Entry]:
        """See `kvorum.ListIterator.page`."""
        entries = []
        while (entry := self._step()) is not None:
            entries.append(entry)
        return entries

    @property
    def cursor(self) -> str:
        """See `kvorum.ListIterator.cursor`."""
        return self._walk.cursor

    @property
    def has_more(self) -> bool:
        """See `kvorum.ListIterator.has_more`."""
        return self._walk.has_more

    def _step(self) -> Entry | None:
        while (read := self._walk.next_read()) is not None:
            self._walk.take(read, self._background.call(lambda read=read: self._read(read)))  # type: ignore[misc]
        return self._walk.pop()

    async def _read(self, read: pb.Read) -> pb.ReadResult:
        return await self._link.backend.read(read, timeout=self._timeout)


class Watch:
    """As `kvorum.Watch`, for `for`: waits for each emission. `close`, from any thread, ends it."""

    def __init__(self, watch: AsyncWatch, background: Background) -> None:
        self._watch = watch
        self._background = background

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Entry]:
        try:
            entries = self._background.call(self._watch.next_emission)
        except Closed:
            entries = None
        if entries is None:
            raise StopIteration
        return entries

    def close(self) -> None:
        """See `kvorum.Watch.aclose`."""
        try:
            self._background.call(self._watch.aclose)
        except Closed:
            return  # closed with its client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RangeWatch:
    """As `kvorum.RangeWatch`, for `for`: waits for each commit. `close`, from any thread, ends it."""

    def __init__(self, watch: AsyncRangeWatch, background: Background) -> None:
        self._watch = watch
        self._background = background

    @property
    def resume(self) -> str | None:
        """See `kvorum.RangeWatch.resume`."""
        return self._watch.resume

    def ready(self) -> str:
        """See `kvorum.RangeWatch.ready`."""
        return self._background.call(self._watch.ready)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Changes:
        try:
            event = self._background.call(self._watch.next_event)
        except Closed:
            event = None
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """See `kvorum.RangeWatch.aclose`."""
        try:
            self._background.call(self._watch.aclose)
        except Closed:
            return  # closed with its client

    def __enter__(self) -> Self:
        self.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Follower:
    """As `kvorum.Follower`, for `for`. `close`, from any thread, ends it."""

    def __init__(self, follower: AsyncFollower, background: Background) -> None:
        self._follower = follower
        self._background = background

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Listing | Changes:
        try:
            event = self._background.call(self._follower.next_event)
        except Closed:
            event = None
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """See `kvorum.Follower.aclose`."""
        try:
            self._background.call(self._follower.aclose)
        except Closed:
            return  # closed with its client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Kv:
    """As `kvorum.Kv`, with methods that block. May be shared by threads. Made by `kvorum.sync.open_kv`."""

    def __init__(self, kv: asynchronous.Kv, background: Background) -> None:
        self._kv = kv
        self._background = background
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self._handling = threading.local()

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
        check_function(function)
        link = self._kv.link
        tries = Attempts(attempts, link.within(timeout))
        while True:
            transaction = Transaction(link, tries, self._background)
            try:
                result = function(transaction)
                if inspect.iscoroutine(result):
                    result.close()
                    raise InvalidArgument("the function of a transaction of kvorum.sync must be a plain one (def)")
                if transaction._commit():
                    return result
            except FINAL:
                raise
            except Exception:
                if transaction._holds():
                    raise
            finally:
                transaction._end()
            pause = tries.pause()
            self._background.call(lambda pause=pause: asyncio.sleep(pause))  # type: ignore[misc]

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
        with HandlerThreads(handler, concurrency, self._handling) as threads:
            self._background.call(
                lambda: self._kv.listen_queue(
                    threads,
                    queue=queue,
                    concurrency=concurrency,
                    prefetch=prefetch,
                    with_message=cast(Literal[False], with_message),  # the threads take either
                )
            )

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class HandlerThreads:
    """Runs a handler in threads; awaitable calls, as the asynchronous listener makes them."""

    def __init__(self, handler: Callable[[Any], object], concurrency: int, handling: threading.local) -> None:
        self._handler = check_handler(handler)
        self._handling = handling
        # A wrong concurrency is the listener's to refuse.
        workers = concurrency if isinstance(concurrency, int) and concurrency > 0 else 1
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kvorum-handler")

    async def __call__(self, message: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._handle, message)

    def _handle(self, message: Any) -> None:
        self._handling.active = True
        try:
            self._handler(message)
        except StopIteration as error:
            raise RuntimeError("the handler raised StopIteration") from error  # which no future can carry
        finally:
            self._handling.active = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def open_kv(
    target: str | os.PathLike[str] | None = None,
    *,
    token: str | None = None,
    tls: "grpc.ChannelCredentials | None" = None,
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


__all__ = ["AtomicOperation", "Kv", "ListIterator", "Transaction", "Watch", "open_kv"]
