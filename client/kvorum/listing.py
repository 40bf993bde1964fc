"""Lists: a selector walked over in batches, each of them one read and one snapshot.

One row more than was asked for is read, and the next batch is fetched before the last row in hand is given out. So
whether anything follows is known at each row: `has_more` and `cursor` never send anybody to an empty page.

`Walk` decides what to read next and holds the rows; it does no I/O, so that the async and the blocking iterator share
it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Self

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.consistency import Consistency, relax
from kvorum.durations import Duration
from kvorum.entry import Entry, found
from kvorum.errors import InvalidArgument, LimitExceeded, shown
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.misuse import ReadByAsyncFor
from kvorum.selector import cursor_at, resume, select


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
        else:
            self._batch = _positive(batch_size, "batch_size")
            if self._batch > limits.MAX_READ_ENTRIES:
                raise LimitExceeded("MAX_READ_ENTRIES", limits.MAX_READ_ENTRIES, self._batch, "batch_size")
        self._reverse = bool(reverse)
        self._keys_only = bool(keys_only)
        self._start, self._end = resume(self._selected, "" if cursor is None else cursor, reverse=self._reverse)
        self._template = pb.Read()
        relax(self._template, consistency, max_age)
        self._rows: deque[pb.KvEntry] = deque()
        self._fetched = 0
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

    def next_read(self) -> pb.Read | None:
        """What has to be read before a row can be given out; None: nothing."""
        if self._exhausted or len(self._rows) > 1 or self._done:
            return None
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        entry = await self._step()
        if entry is None:
            raise StopAsyncIteration
        return entry

    async def page(self) -> list[Entry]:
        """All that is left of this list, up to its limit; then see `cursor` and `has_more`."""
        entries = []
        while (entry := await self._step()) is not None:
            entries.append(entry)
        return entries

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

    async def _step(self) -> Entry | None:
        while (read := self._walk.next_read()) is not None:
            self._walk.take(read, await self._link.backend.read(read, timeout=self._timeout))
        return self._walk.pop()
