"""What a blocking client hands out: operations, transactions, lists and watches that wait for what they ask for.

Each is the twin of an asynchronous one, of which it has all but the waiting; see `kvorum.sync`.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum.atomic import AtomicBuilder
from kvorum.background import Background
from kvorum.changes import Changes, Listing
from kvorum.changes import Follower as AsyncFollower
from kvorum.changes import RangeWatch as AsyncRangeWatch
from kvorum.commit import CommitResult
from kvorum.durations import Duration
from kvorum.entry import Entry
from kvorum.errors import Closed, InvalidArgument, OutcomeUnknown
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.listing import Walk
from kvorum.queues.delivered import Delivered
from kvorum.transaction import FINAL, Attempts, TransactionBuilder, check_function, check_many, nothing_written
from kvorum.watch import Watch as AsyncWatch

T = TypeVar("T")


class AtomicOperation(AtomicBuilder):
    """As `kvorum.AtomicOperation`, with a `commit` that blocks."""

    __slots__ = ("_background",)

    def __init__(self, link: Link, background: Background, own: Delivered | None = None) -> None:
        super().__init__(link, own)
        self._background = background

    def commit(self, *, timeout: Duration | None = None) -> CommitResult:
        """See `kvorum.AtomicOperation.commit`."""
        op, within = self._serialise(), self._link.within(timeout)

        async def write() -> CommitResult:
            # Judged here, since messages that it settles are known to consumers on this loop.
            return self._result(self._judge(await self._link.backend.write(op, timeout=within)))

        return self._background.call(write)


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
            return self._result(self._judge(await backend.write(op, timeout=left)))

        return self._background.call(write)

    def _commit(self) -> bool:
        """False: a conflict."""
        if not self._changes_something:
            return self._holds()
        return self._write_out(self._whole()).ok

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


def run_transaction(
    link: Link, background: Background, function: Callable[[Transaction], T], attempts: int, timeout: Duration | None
) -> T:
    """See `kvorum.sync.Kv.transaction`."""
    check_function(function)
    tries = Attempts(attempts, link.within(timeout))
    while True:
        transaction = Transaction(link, tries, background)
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
        background.call(lambda pause=pause: asyncio.sleep(pause))  # type: ignore[misc]


class ListIterator:
    """As `kvorum.ListIterator`, for `for`. For one thread at a time."""

    def __init__(self, walk: Walk, link: Link, timeout: float, background: Background) -> None:
        self._walk = walk
        self._link = link
        self._timeout = timeout
        self._background = background
        self._ahead: tuple[pb.Read, Future[pb.ReadResult]] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        if self._walk.hungry:
            self._fetch()
        entry = self._walk.pop()
        if entry is None:
            raise StopIteration
        return entry

    def page(self) -> list[Entry]:
        """See `kvorum.ListIterator.page`."""
        return list(self)

    @property
    def cursor(self) -> str:
        """See `kvorum.ListIterator.cursor`."""
        return self._walk.cursor

    @property
    def has_more(self) -> bool:
        """See `kvorum.ListIterator.has_more`."""
        return self._walk.has_more

    def _fetch(self) -> None:
        """Until a row can be given out, or none is left."""
        walk, background = self._walk, self._background
        while (read := walk.next_read()) is not None:
            ahead, self._ahead = self._ahead, None
            if ahead is None or self._link.closed:
                answer = background.call(partial(self._read, read))
            else:
                read, fetch = ahead
                answer = background.result(fetch)
            walk.take(read, answer)
            if self._link.remote and (following := walk.read_ahead()) is not None:
                with suppress(Closed):  # by another thread: the next batch will tell
                    self._ahead = following, background.submit(partial(self._read, following))

    async def _read(self, read: pb.Read) -> pb.ReadResult:
        return await self._link.backend.read(read, timeout=self._timeout)


class Waiting(Generic[T]):
    """For `for`: waits for each item. `close`, from any thread, ends it."""

    def __init__(
        self,
        background: Background,
        next_item: Callable[[], Coroutine[Any, Any, T | None]],
        aclose: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._background = background
        self._next_item = next_item
        self._aclose = aclose

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            item = self._background.call(self._next_item)
        except Closed:
            item = None
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """End it; may be called again."""
        try:
            self._background.call(self._aclose)
        except Closed:
            return  # closed with its client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watch(Waiting[list[Entry]]):
    """As `kvorum.Watch`, for `for`: waits for each emission. `close`, from any thread, ends it."""

    def __init__(self, watch: AsyncWatch, background: Background) -> None:
        super().__init__(background, watch.next_emission, watch.aclose)


class RangeWatch(Waiting[Changes]):
    """As `kvorum.RangeWatch`, for `for`: waits for each commit. `close`, from any thread, ends it."""

    def __init__(self, watch: AsyncRangeWatch, background: Background) -> None:
        super().__init__(background, watch.next_event, watch.aclose)
        self._watch = watch

    @property
    def resume(self) -> str | None:
        """See `kvorum.RangeWatch.resume`."""
        return self._watch.resume

    def ready(self) -> str:
        """See `kvorum.RangeWatch.ready`."""
        return self._background.call(self._watch.ready)

    def __enter__(self) -> Self:
        self.ready()
        return self


class Follower(Waiting[Listing | Changes]):
    """As `kvorum.Follower`, for `for`. `close`, from any thread, ends it."""

    def __init__(self, follower: AsyncFollower, background: Background) -> None:
        super().__init__(background, follower.next_event, follower.aclose)
