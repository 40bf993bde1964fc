"""Watches of ranges: every change of the keys below a prefix, commit by commit, and where to go on from.

A key watch shows the newest state and skips what it missed; this one skips nothing. It reads from the history of
changes that the database keeps for a while, so it can be stopped and gone on with later, by its `resume`, as long as
that history reaches back so far; else `Compacted` says that it does not. `Follower` then lists anew by itself.

As with a key watch, a wait that is cancelled loses nothing: the fetch goes on, and the next wait takes it over.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Self

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import Entry, found, parse_versionstamp
from kvorum.errors import Closed, Compacted, DataError, InvalidArgument, InvalidKey
from kvorum.fetching import Fetches
from kvorum.keys import Key, KeyPart, decode_key
from kvorum.link import Link
from kvorum.misuse import ReadByAsyncFor
from kvorum.selector import KeyRange, select
from kvorum.values import decode_value

Kind = Literal["set", "delete", "expire"]

MAX_LISTINGS: Final = 5
"""Times that a follower lists in a row because the history did not reach back to the list."""
_KINDS: Final[dict[int, Kind]] = {
    pb.CHANGE_KIND_SET: "set",
    pb.CHANGE_KIND_DELETE: "delete",
    pb.CHANGE_KIND_EXPIRE: "expire",
}


class Change(NamedTuple):
    """What a commit did to a key in the end."""

    kind: Kind
    key: Key
    value: Any
    """What was set; None of a key that is gone, and with `keys_only`."""
    versionstamp: str
    """Of the commit, 20 hex digits."""


class Changes(NamedTuple):
    """A commit's changes of the watched keys; without changes, a mark of progress."""

    versionstamp: str
    """Of the commit, 20 hex digits; of a mark, that up to which there is nothing that was not told."""
    changes: tuple[Change, ...]
    """One for each key, in a fixed order."""
    complete: bool = True
    """False: the commit is so large that more of its changes follow, under the same versionstamp (or none, if it has
    turned out that these were the last)."""


class Listing(NamedTuple):
    """All entries of a range as they were at one versionstamp."""

    entries: list[Entry]
    versionstamp: str


class RangeWatch(ReadByAsyncFor):
    """Changes of a range, for `async for`. Made by `Kv.watch_prefix`."""

    _how = "use `async for changes in kv.watch_prefix(…)`"

    def __init__(self, selected: KeyRange, since: str | None, link: Link, *, keys_only: bool, progress: bool) -> None:
        stamp = b"" if since is None else parse_versionstamp(since)
        self._progress = progress
        events = link.backend.watch_range(selected.start, selected.end, since=stamp, keys_only=keys_only)
        self._events: Fetches[pb.WatchEvent] = Fetches(events, link)
        self._waiting: deque[tuple[bytes, list[pb.Change], bool]] = deque()
        self._part = b""
        """The commit of which the last part has not been handed out."""
        self._resume = stamp

    @property
    def resume(self) -> str | None:
        """The versionstamp up to which everything was handed out: give it as `since` to go on. None before `ready`."""
        return self._resume.hex() or None

    async def ready(self) -> str:
        """Wait until it is known from which versionstamp on changes are told, and return that: what is committed
        afterwards is told for certain. Errors: as iterating; Closed."""
        while not self._resume:
            if not await self._take_in():
                raise Closed(outcome=None)
        return self._resume.hex()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> Changes | None:
        """The next commit (or mark of progress, if those were asked for); None when the watch or the client is closed.

        Errors: Compacted, Unavailable, InvalidArgument; DataError, naming the key: that commit is passed over.
        """
        while True:
            while self._waiting:
                stamp, rows, complete = self._waiting.popleft()
                if complete:
                    self._resume = stamp
                part, self._part = self._part, b""
                if rows:
                    self._part = b"" if complete else rows[0].entry.versionstamp
                    return Changes(rows[0].entry.versionstamp.hex(), tuple(map(_change, rows)), complete)
                if part:
                    return Changes(part.hex(), ())
                if self._progress:
                    return Changes(stamp.hex(), ())
            if not await self._take_in():
                return None

    async def _take_in(self) -> bool:
        """Fetch an event, and cut it into commits; False at the end."""
        event = await self.next_raw()
        if event is None:
            return False
        if not self._resume and not event.changes:
            self._resume = event.through
        commits: list[tuple[bytes, list[pb.Change]]] = []
        for change in event.changes:
            stamp = change.entry.versionstamp
            if not commits or commits[-1][0] != stamp:
                commits.append((stamp, []))
            commits[-1][1].append(change)
        waiting = self._waiting
        waiting.extend((stamp, rows, True) for stamp, rows in commits)
        if not event.through:
            stamp, rows, _ = waiting.pop()
            waiting.append((stamp, rows, False))
        elif not commits or commits[-1][0] < event.through:
            waiting.append((event.through, [], True))
        return True

    async def next_raw(self) -> pb.WatchEvent | None:
        """The next event as the backend gives it; None at the end. Not to be mixed with the other ways to read."""
        return await self._events.next()

    def begin_at(self, stamp: bytes) -> None:
        """All up to here was read by `next_raw`."""
        self._resume = stamp

    async def aclose(self) -> None:
        """End the watch, also for a task that waits for its next event."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _change(row: pb.Change) -> Change:
    entry = row.entry
    kind = _KINDS.get(row.kind)
    if kind is None:
        raise DataError(f"a change of a kind that this version does not know: {row.kind}")
    try:
        key = decode_key(entry.key)
    except InvalidKey as error:
        raise DataError(f"the stored key {entry.key.hex()} cannot be decoded: {error}") from error
    value = None
    if kind == "set" and entry.encoding:
        try:
            value = decode_value(entry.value, entry.encoding)
        except DataError as error:
            raise DataError(f"{key!r}: {error}") from error
    return Change(kind, key, value, entry.versionstamp.hex())


class Follower(ReadByAsyncFor):
    """All entries of a range, and then every change of it, for `async for`. Made by `Kv.follow`.

    The listing is exact: its pages are read at different moments, and brought to one by the changes in between.
    """

    _how = "use `async for event in kv.follow(…)`"

    def __init__(self, selected: KeyRange, link: Link, timeout: float, *, keys_only: bool) -> None:
        self._selected = selected
        self._link = link
        self._timeout = timeout
        self._keys_only = keys_only
        self._watch: RangeWatch | None = None
        self._catching_up: RangeWatch | None = None
        """That of a listing which is not complete yet."""
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Listing | Changes:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> Listing | Changes | None:
        """A listing first, and whenever changes were missed (forget what was known then); else the next commit. None
        when this or the client is closed.

        Errors: Unavailable, DataError; Compacted: changes come so fast that no list could be brought up to date.
        """
        if self._closed:
            return None
        if self._watch is not None:
            try:
                return await self._watch.next_event()
            except Compacted:
                await self._watch.aclose()
                self._watch = None
        for left in range(MAX_LISTINGS - 1, -1, -1):
            try:
                return await self._list()
            except Compacted:
                if not left:
                    raise
            except Closed:
                if self._closed or self._link.closed:
                    return None
                raise
        return None

    async def _list(self) -> Listing | None:
        rows: dict[bytes, pb.KvEntry] = {}
        lasts: list[bytes] = []
        stamps: list[bytes] = []
        start = self._selected.start
        while True:
            read = pb.Read()
            read.ranges.add(start=start, end=self._selected.end, limit=limits.MAX_READ_ENTRIES)
            read.ranges[0].keys_only = self._keys_only
            answer = await self._link.backend.read(read, timeout=self._timeout)
            if self._closed:
                return None
            page = answer.ranges[0].entries
            rows.update((row.key, row) for row in page)
            stamps.append(answer.read_versionstamp)
            if len(page) < limits.MAX_READ_ENTRIES:
                break
            lasts.append(page[-1].key)
            start = page[-1].key + b"\0"
        watch = RangeWatch(self._selected, stamps[0].hex(), self._link, keys_only=self._keys_only, progress=False)
        self._catching_up = watch
        through = stamps[0]
        try:
            while True:
                event = await watch.next_raw()
                if event is None or self._closed:
                    return None
                for change in event.changes:
                    key = change.entry.key
                    if change.entry.versionstamp <= stamps[bisect_left(lasts, key)]:
                        continue  # its page was read later
                    if change.kind == pb.CHANGE_KIND_SET:
                        rows[key] = change.entry
                    else:
                        rows.pop(key, None)
                through = max(through, event.through)
                if event.through and through >= stamps[-1]:
                    break
            entries = [found(rows[key], keys_only=self._keys_only) for key in sorted(rows)]
        except BaseException:
            await watch.aclose()
            raise
        finally:
            self._catching_up = None
        watch.begin_at(through)
        self._watch = watch
        return Listing(entries, through.hex())

    async def aclose(self) -> None:
        """End it, also for a task that waits for its next event."""
        self._closed = True
        for watch in (self._watch, self._catching_up):
            if watch is not None:
                await watch.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def select_watched(
    prefix: Sequence[KeyPart] | None, start: Sequence[KeyPart] | None, end: Sequence[KeyPart] | None
) -> KeyRange:
    """As `select`. Errors: also InvalidArgument where nothing could ever change."""
    selected = select(prefix, start, end)
    if selected.start >= selected.end:
        raise InvalidArgument("a watched range must hold something: its start must be less than its end")
    return selected


__all__ = ["Change", "Changes", "Follower", "Listing", "RangeWatch", "select_watched"]
