"""Deduplication: a queue remembers ids for a while, or until their messages are done, and takes none of them again."""

from typing import TYPE_CHECKING

from . import formats
from .formats import DEDUP_TIMER, dedup_key, timer_key

if TYPE_CHECKING:
    from ..entry import Entry


def holder(entry: "Entry", queue: bytes, dedup_id: bytes) -> bytes | None:
    """The message that has the id; None = the id is free."""
    row = entry.rows.get(dedup_key(queue, dedup_id))
    if row is None:
        return None
    message_id, end_ms = formats.unpack_dedup(row)
    return None if end_ms and end_ms <= entry.time_ms else message_id


def remember(entry: "Entry", queue: bytes, dedup_id: bytes, message_id: bytes, window_ms: int) -> None:
    """The id is the message's for so long; 0 = until it is done. What was remembered before has ended."""
    rows = entry.rows
    name = dedup_key(queue, dedup_id)
    end_ms = entry.time_ms + window_ms if window_ms else 0
    old = rows.put(name, formats.pack_dedup(message_id, end_ms))
    if old is not None:
        _stop(entry, name, old)
    if end_ms:
        rows.txn.put(timer_key(end_ms, DEDUP_TIMER, name[1:]), b"")
        entry.note_expiry(end_ms)


def free(entry: "Entry", queue: bytes, dedup_id: bytes, message_id: bytes) -> None:
    """The message that had the id until it is done is done."""
    name = dedup_key(queue, dedup_id)
    row = entry.rows.get(name)
    if row is not None and formats.unpack_dedup(row) == (message_id, 0):
        entry.rows.remove(name)


def drop(entry: "Entry", name: bytes) -> None:
    """Forget an id, whoever has it."""
    row = entry.rows.remove(name)
    if row is not None:
        _stop(entry, name, row)


def _stop(entry: "Entry", name: bytes, row: bytes) -> None:
    """The timer of a row that has gone goes as well; if it has rung, it is gone already."""
    _, end_ms = formats.unpack_dedup(row)
    if end_ms:
        entry.rows.txn.delete(timer_key(end_ms, DEDUP_TIMER, name[1:]))
