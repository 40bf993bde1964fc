"""User keys: reading, writing and deleting one row, with its place in the trie, its expiry index and the counters."""

from typing import TYPE_CHECKING, Final

from . import checked
from .history import DELETED, NEW, pack_sizes
from .records import EXPIRES, STAMP_SIZE, expiry_index_key, lasting_row, touched_row
from .trie import CHUNK, ROOT, locate, make_place, prune

if TYPE_CHECKING:
    from .entry import Entry
    from .rows import Rows

_HEADS: Final = tuple(bytes((encoding,)) for encoding in range(EXPIRES))


def read_row(rows: "Rows", key: bytes) -> bytes | None:
    place = locate(rows.txn, key)
    return None if place is None else rows.read(place, ROOT + key)


def write(entry: "Entry", key: bytes, encoding: int, value: bytes, stamp: bytes) -> None:
    """Write a row that does not expire."""
    row = _HEADS[encoding] + stamp + value
    entry.changes.append(pack_sizes(len(key) | _write_row(entry.rows, key, row), len(row)) + key + row)
    entry.result.changed_keys.append(key)


def write_expiring(
    entry: "Entry", key: bytes, encoding: int, value: bytes, stamp: bytes, expire_at_ms: int, number: int
) -> None:
    """Write a row that a sweep may delete from `expire_at_ms` on. `number` is that of the mutation in its commit."""
    head = bytes((encoding | EXPIRES,)) + stamp + expire_at_ms.to_bytes(8, "big") + number.to_bytes(2, "big")
    row = head + value
    entry.changes.append(pack_sizes(len(key) | _write_row(entry.rows, key, row), len(row)) + key + row)
    checked.put(entry.rows.txn, expiry_index_key(row), key)
    entry.result.changed_keys.append(key)
    entry.note_expiry(expire_at_ms)


def _write_row(rows: "Rows", key: bytes, row: bytes) -> int:
    """NEW if there was none, else 0."""
    name = ROOT + key
    old = rows.swap(name if len(key) <= CHUNK else make_place(rows, key), name, row)
    if old is None:
        rows.keys += 1
        return NEW
    if old[0] & EXPIRES:
        checked.delete_index(rows.txn, expiry_index_key(old))
    return 0


def touch(entry: "Entry", key: bytes, expire_at_ms: int | None, stamp: bytes, number: int) -> None:
    """Give what is stored another expiry, or none, and leave the rest of it; an absent key stays absent. `stamp` and
    `number` are those of the mutation.

    No watch hears of it: what watches show, value and versionstamp, stays as it is."""
    rows = entry.rows
    name = ROOT + key
    place = locate(rows.txn, key)
    old = None if place is None else rows.read(place, name)
    if place is None or old is None or (expire_at_ms is None and not old[0] & EXPIRES):
        return
    row = lasting_row(old) if expire_at_ms is None else touched_row(old, expire_at_ms, number, stamp)
    rows.swap(place, name, row)
    if old[0] & EXPIRES:
        checked.delete_index(rows.txn, expiry_index_key(old))
    if expire_at_ms is not None:
        checked.put(rows.txn, expiry_index_key(row), key)
        entry.note_expiry(expire_at_ms)


def delete(entry: "Entry", key: bytes, kind: bytes = DELETED) -> bool:
    """Delete a row; False if there is none. The key counts as touched either way: a watch hears of each mutation."""
    rows = entry.rows
    entry.result.changed_keys.append(key)
    place = locate(rows.txn, key)
    old = None if place is None else rows.take(place, ROOT + key)
    if old is None:
        return False
    rows.keys -= 1
    entry.changes.append(pack_sizes(len(key), 1 + STAMP_SIZE) + key + kind + entry.stamp(entry.number - 1))
    if old[0] & EXPIRES:
        checked.delete_index(rows.txn, expiry_index_key(old))
    if len(key) > CHUNK:
        prune(rows, key)
    return True
