"""The change history: what each commit did to which keys in the end, kept for a while, so that a watch of a range can
tell every change, and go on where it stopped on any node (rules E1).

It is a part of the replicated state. An entry's changes are written by the transaction that makes them, as rows
HISTORY ‖ stamp prefix of the entry ‖ number of the row; they are covered by the content hash, by checksums and by the
scrub, and checkpoints carry them. So a follower, a node that was killed, and one that got a snapshot all have the same
history, and a cut-off commit leaves nothing in it.

A row holds the changes of many commits, up to 8,000 bytes of them, which is two of LMDB's pages. A row for each change
would cost as much as the change itself; longer rows cost no less than these, and need more pages in one piece, which
LMDB must find among the free ones. A change that is larger stands alone, as its value does in the state. All in all
history makes applying a batch of small writes about a twentieth slower.

The history is bounded in bytes and rows. What an entry adds to it takes the oldest rows away, a bounded number of them,
but more than it adds. `State.oldest` is the versionstamp behind which everything is still there: who has seen all up to
it, or more, can go on. An entry of which a row was taken away counts as gone.

It begins with the first entry of data version 2. From then on every entry writes to it, whatever its own version: no
node that knows version 1 only can have come past that entry, and a gap in a history is worse than none.

Rejected: values left out, to be read from the state when they are sent (a value that was overwritten meanwhile would be
missing or wrong); one row for each entry (see above); a file beside the state (it would need an agreement of its own).
"""

import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from . import checked
from .records import HISTORY, STAMP_SIZE

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry

FIRST_VERSION: Final = 2
"""Data version from which on entries write history."""

DELETED: Final = b"\x40"
EXPIRED: Final = b"\x41"
"""In place of a row's first byte, followed by the stamp of the commit, where there is no row any more."""

NEW: Final = 0x8000
"""Added to the size of a key that was absent before."""
_SIZES: Final = struct.Struct(">HI")
pack_sizes: Final = _SIZES.pack
"""A change begins with the sizes of its key (NEW added) and of its row; both follow."""
# What follows belongs to the data version, as do the limits: all nodes must cut and trim alike.
_ROW_SIZE: Final = 8_000
_LAST: Final = b"\xff\xff"
_NUMBER_SIZE: Final = 4
_STEPS: Final = 16
_BYTES_FOR_STEP: Final = 256


class Bounds(NamedTuple):
    """How much history is kept."""

    size: int
    """Bytes of its rows."""
    rows: int


def stamp_before(prefix: bytes) -> bytes:
    """The last versionstamp before those of an entry."""
    return (int.from_bytes(prefix, "big") - 1).to_bytes(8, "big") + _LAST


def settle(changes: list[bytes], mark: int) -> None:
    """Make what one commit has added since `mark` one change for each key: the last one. Nothing is left of a key that
    was absent before and is absent again."""
    added = len(changes) - mark
    if added < 2:
        return
    last: dict[bytes, tuple[bool, bytes]] = {}
    for change in changes[mark:]:
        is_new, key, row = _split(change)
        first = last.get(key)
        last[key] = (is_new if first is None else first[0], row)
    if len(last) < added:
        changes[mark:] = [
            pack_sizes(len(key) | (NEW if is_new else 0), len(row)) + key + row
            for key, (is_new, row) in last.items()
            if not (is_new and row[0] >= DELETED[0])
        ]


def _split(change: bytes) -> tuple[bool, bytes, bytes]:
    size, _ = _SIZES.unpack_from(change)
    end = _SIZES.size + (size & ~NEW)
    return bool(size & NEW), change[_SIZES.size : end], change[end:]


def write(entry: "Entry", bounds: Bounds) -> Generator[None, None, None]:
    """Write what the entry changed, and drop what is too much."""
    rows = entry.rows
    if not rows.oldest:
        rows.oldest = stamp_before(entry.prefix)
    if not entry.changes:
        return
    head = HISTORY + entry.prefix
    added = 0
    for number, row in enumerate(_join(entry.changes)):
        rows.add_history(head + number.to_bytes(_NUMBER_SIZE, "big"), row)
        added += len(row)
        if entry.spend_bytes(len(row)):
            yield
    if rows.history_size > bounds.size or rows.history_rows > bounds.rows:
        yield from _trim(entry, bounds, _STEPS + added // _BYTES_FOR_STEP)


def _join(changes: list[bytes]) -> Iterator[bytes]:
    """Rows of history: as many changes in each as it may hold, and one at least."""
    if len(changes) == 1:  # an entry of one write, whose cost nobody shares
        yield changes[0]
        return
    ends = [*accumulate(map(len, changes), initial=0)]
    begin = 0
    while begin < len(changes):
        end = max(bisect_right(ends, ends[begin] + _ROW_SIZE, begin + 1) - 1, begin + 1)
        yield b"".join(changes[begin:end])
        begin = end


def _trim(entry: "Entry", bounds: Bounds, steps: int) -> Generator[None, None, None]:
    """Delete the oldest rows until a little less than the bounds is left, so that not each entry has to."""
    rows = entry.rows
    size, count = bounds.size - (bounds.size >> 8), bounds.rows - (bounds.rows >> 8)
    with rows.txn.cursor() as cursor:
        found = cursor.set_range(HISTORY)
        while found and steps and (rows.history_size > size or rows.history_rows > count):
            name, stored = cursor.item()
            if not name.startswith(HISTORY) or name[1:9] == entry.prefix:
                break
            rows.drop_history(name, stored)
            cursor.delete()
            rows.oldest = max(rows.oldest, name[1:9] + _LAST)
            steps -= 1
            if entry.spend():
                yield


# ---- reading


class Place(NamedTuple):
    """A place in the history: the name of a row, and how many of its changes lie before it."""

    name: bytes
    changes: int


def first_place(since: bytes) -> Place:
    """Where the changes after a versionstamp begin, or a little before."""
    return Place(HISTORY + since[: STAMP_SIZE - 2], 0)


def rows_from(txn: "lmdb.Transaction[bytes]", place: Place) -> Iterator[tuple[bytes, bytes]]:
    """Names and rows from a place on. Raises Damaged."""
    with txn.cursor() as cursor:
        if cursor.set_range(place.name):
            for name, stored in cursor.iternext(keys=True, values=True):
                if not name.startswith(HISTORY):
                    return
                yield name, checked.unseal(name, stored)


def unpack(row: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and rows (or DELETED, EXPIRED and stamp) of the changes in a row, in order."""
    changes = []
    at, end = 0, len(row)
    while at < end:
        key_size, row_size = _SIZES.unpack_from(row, at)
        key_at = at + _SIZES.size
        row_at = key_at + (key_size & ~NEW)
        at = row_at + row_size
        changes.append((row[key_at:row_at], row[row_at:at]))
    return changes
