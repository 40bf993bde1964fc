"""Lists: a selector walked over in batches, each of them one read and one snapshot.

One row more than was asked for is read, and the next batch is fetched before the last row in hand is given out. So
whether anything follows is known at each row: `has_more` and `cursor` never send anybody to an empty page.

Who has come to the second batch of a list probably wants the others as well. So from then on a cluster is asked for the
next batch while the program works on the one before it, instead of one waiting for the other: a list of 40,000 entries
takes little more than half of the time. What is written meanwhile may be missed by one batch more; a program that wants
to see what it has just written asks for small batches, which are fetched when they are needed. In this process there
is nobody to wait for. And unless it was told otherwise a list asks for twice as many rows each time.

`Walk` decides what to read next and holds the rows; it does no I/O, so that the async and the blocking iterator share
it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Self

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.consistency import Consistency, relax
from kvorum.durations import Duration
from kvorum.entry import Entry, found
from kvorum.errors import InvalidArgument, LimitExceeded, shown
from kvorum.fetching import retrieve
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.misuse import ReadByAsyncFor
from kvorum.selector import cursor_at, resume, select

MIN_AHEAD: Final = limits.DEFAULT_BATCH_SIZE
"""Rows of a batch that is asked for before it is needed; smaller ones are not."""
LARGE: Final = 4 << 20
"""Bytes of a batch behind which none is asked for before it is needed, so that no two such are held, and from half of
which on batches do not grow."""
_TURNS: Final = 2
"""Of the loop, until a read is on its way: a program that awaits nothing else gives it none while it has rows."""


class Walk:
    """See the module. Call `next_read` until it gives None, passing each answer to `take`; then `pop` gives a row."""

    def __init__(
        self,
        prefix: Sequence[KeyPart] | None,
        start: Sequence[KeyPart] | None,
        end: Sequence[KeyPart] | None,
        *,
        limit: int | None,
        reverse: bool,
        cursor: str | None,
        batch_size: int | None,
        consistency: Consistency,
        max_age: Duration | None,
        keys_only: bool = False,
    ) -> None:
        self._selected = select(prefix, start, end)
        self._limit = None if limit is None else _positive(limit, "limit")
        if batch_size is None:
            self._batch = min(self._limit or limits.DEFAULT_BATCH_SIZE, limits.MAX_DEFAULT_BATCH_SIZE)
            self._grows = self._limit is None
        else:
            self._batch = _positive(batch_size, "batch_size")
            self._grows = False
            if self._batch > limits.MAX_READ_ENTRIES:
                raise LimitExceeded("MAX_READ_ENTRIES", limits.MAX_READ_ENTRIES, self._batch, "batch_size")
        self._reverse = bool(reverse)
        self._keys_only = bool(keys_only)
        self._start, self._end = resume(self._selected, "" if cursor is None else cursor, reverse=self._reverse)
        self._template = pb.Read()
        relax(self._template, consistency, max_age)
        self._rows: deque[pb.KvEntry] = deque()
        self._fetched = 0
        self._batches = 0
        self._size = 0
        """Bytes of the batch that came last."""
        self._given = 0
        self._begun = False
        self._exhausted = self._start >= self._end
        self._last = b""

    @property
    def has_more(self) -> bool:
        """Whether anything follows what was given out so far. Errors: InvalidArgument before the first row was asked
        for."""
        self._check_begun("has_more")
        return bool(self._rows) or not self._exhausted

    @property
    def cursor(self) -> str:
        """Where to go on, for another list with the same selector and direction; empty if nothing is left.

        Errors: InvalidArgument before the first row was asked for.
        """
        self._check_begun("cursor")
        return cursor_at(self._selected, self._last) if self.has_more else ""

    def _check_begun(self, what: str) -> None:
        if not self._begun:
            raise InvalidArgument(f"Cannot get {what} before first iteration")

    @property
    def _done(self) -> bool:
        return self._limit is not None and self._given >= self._limit

    @property
    def hungry(self) -> bool:
        """`next_read` may have something that has to be read before a row can be given out."""
        return len(self._rows) <= 1 and not self._exhausted and not self._done

    def next_read(self) -> pb.Read | None:
        """What has to be read before a row can be given out; None: nothing."""
        return self._following() if self.hungry else None

    def read_ahead(self) -> pb.Read | None:
        """What `next_read` will want when the rows in hand have been given out; None: nothing, or it can wait."""
        if self._exhausted or self._batches < 2 or self._batch < MIN_AHEAD or self._size > LARGE:
            return None
        return self._following()

    def _following(self) -> pb.Read | None:
        size = min(self._batch + (self._fetched == 0), limits.MAX_READ_ENTRIES)
        if self._limit is not None:
            size = min(size, self._limit + 1 - self._fetched)
            if size <= 0:
                return None
        read = pb.Read()
        read.CopyFrom(self._template)
        read.ranges.add(start=self._start, end=self._end, limit=size, reverse=self._reverse, keys_only=self._keys_only)
        return read

    def take(self, read: pb.Read, answer: pb.ReadResult) -> None:
        """The answer to a read of `next_read`."""
        rows = answer.ranges[0].entries
        self._rows.extend(rows)
        self._fetched += len(rows)
        self._batches += 1
        self._size = answer.ByteSize()
        if self._grows and self._size <= LARGE // 2:
            self._batch = min(2 * self._batch, limits.MAX_READ_ENTRIES)
        if len(rows) < read.ranges[0].limit:
            self._exhausted = True
        elif self._reverse:
            self._end = rows[-1].key
        else:
            self._start = rows[-1].key + b"\0"

    def pop(self) -> Entry | None:
        """The next row; None at the end. Errors: DataError, naming the key; the row is passed over."""
        self._begun = True
        if not self._rows or self._done:
            return None
        row = self._rows.popleft()
        self._given += 1
        self._last = row.key
        return found(row, keys_only=self._keys_only)


def count_read(
    prefix: Sequence[KeyPart] | None,
    start: Sequence[KeyPart] | None,
    end: Sequence[KeyPart] | None,
    consistency: Consistency,
    max_age: Duration | None,
) -> pb.Read:
    """A read that counts what a list with the same selector would show. Errors: as `Kv.list`."""
    selected = select(prefix, start, end)
    read = pb.Read()
    read.ranges.add(start=selected.start, end=selected.end, count_only=True)
    relax(read, consistency, max_age)
    return read


def _positive(number: int, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        raise InvalidArgument(f"{name} must be a positive integer: received {shown(number)}")
    return number


class ListIterator(ReadByAsyncFor):
    """The entries of a list, for `async for`. Made by `Kv.list`."""

    _how = "use `async for entry in kv.list(…)`, or `await kv.list(…).page()` for all of them at once"

    def __init__(self, walk: Walk, link: Link, timeout: float) -> None:
        self._walk = walk
        self._link = link
        self._timeout = timeout
        self._ahead: tuple[pb.Read, asyncio.Future[pb.ReadResult]] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if self._walk.hungry:
            await self._fetch()
        entry = self._walk.pop()
        if entry is None:
            raise StopAsyncIteration
        return entry

    async def page(self) -> list[Entry]:
        """All that is left of this list, up to its limit; then see `cursor` and `has_more`."""
        return [entry async for entry in self]

    @property
    def cursor(self) -> str:
        """Where another list with the same selector and direction can go on; empty if nothing is left.

        Errors: InvalidArgument before the first iteration.
        """
        return self._walk.cursor

    @property
    def has_more(self) -> bool:
        """Whether anything follows what was iterated over so far, beyond the limit included.

        Errors: InvalidArgument before the first iteration.
        """
        return self._walk.has_more

    async def _fetch(self) -> None:
        """Until a row can be given out, or none is left."""
        walk = self._walk
        while (read := walk.next_read()) is not None:
            if self._ahead is None or self._link.closed:
                answer = await self._link.backend.read(read, timeout=self._timeout)
            else:
                await asyncio.wait([self._ahead[1]])  # whoever is cancelled here finds it again
                (read, fetch), self._ahead = self._ahead, None
                answer = fetch.result()
            walk.take(read, answer)
            if self._link.remote and (following := walk.read_ahead()) is not None:
                fetch = asyncio.ensure_future(self._link.backend.read(following, timeout=self._timeout))
                fetch.add_done_callback(retrieve)
                self._ahead = following, fetch
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
