"""What the sweep does besides keys: whatever stands in the table of timers, by time."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from .. import checked
from ..records import DEDUP, TIMER
from . import deaths, formats, messages, topics, walks
from .formats import (
    DEDUP_TIMER,
    DYING_STATE,
    DYING_TIMER,
    FILL_TIMER,
    LEASED_STATE,
    RETENTION_TIMER,
    TTL_TIMER,
    index_key,
    timer_key,
)

if TYPE_CHECKING:
    import lmdb

    from ..entry import Entry

_COPIED_AT_ONCE: Final = 16
"""Timers of one sweep that delete or copy messages of topics: each does hundreds."""


def next_timer(txn: "lmdb.Transaction[bytes]") -> int | None:
    """The earliest timer in the state, Unix milliseconds."""
    with txn.cursor() as cursor:
        if cursor.set_range(TIMER) and cursor.key().startswith(TIMER):
            return int.from_bytes(cursor.key()[1:9], "big")
    return None


def ring(entry: "Entry", limit: int, stamp: bytes) -> Generator[None, None, int]:
    """Do up to `limit` of what is due, the earliest first; returns how many. Stops early when much has been
    written."""
    after = TIMER + (entry.time_ms + 1).to_bytes(8, "big")
    due: list[bytes] = []
    for name in walks.keys_below(entry.rows.txn, TIMER):
        if name >= after or len(due) == limit:
            break
        due.append(name)
        if entry.spend():
            yield
    done = heavy = 0
    for name in due:
        at_ms, kind, what = formats.unpack_timer(name)
        mark = len(entry.changes)
        if entry.rows.txn.get(name) is None:
            continue  # one before it has set another in its place
        if kind == DEDUP_TIMER:
            checked.delete_index(entry.rows.txn, name)
            entry.rows.remove(DEDUP + what)
        elif kind in (TTL_TIMER, DYING_TIMER):
            _end(entry, name, kind, what, stamp)
        else:
            heavy += 1
            if kind == RETENTION_TIMER:
                yield from topics.retention_is_over(entry, at_ms, what)
            elif kind == FILL_TIMER:
                yield from topics.fill(entry, at_ms, what, stamp)
            else:
                yield from topics.clear_rest(entry, at_ms, what)
        done += 1
        if entry.spend_on(mark):
            yield
        if heavy == _COPIED_AT_ONCE or entry.undelivered_size > deaths.WRITTEN_AT_ONCE:
            break
    return done


def _end(entry: "Entry", name: bytes, kind: int, message_id: bytes, stamp: bytes) -> None:
    """A message has expired, or dies at last. What is in somebody's hands expires when its lease ends."""
    txn = entry.rows.txn
    checked.delete_index(txn, name)
    message = messages.load(txn, message_id)
    if message is None or (kind == DYING_TIMER and message.state != DYING_STATE):
        raise checked.damaged(name)
    if message.state == LEASED_STATE:
        return
    payload = messages.load_payload(txn, message_id)
    if kind == DYING_TIMER:
        deaths.finish_dying(entry, message_id, message, payload, stamp)
        return
    if name != timer_key(payload.expires_ms, TTL_TIMER, message_id):
        raise checked.damaged(name)
    place = index_key(message_id, message)
    if place is not None:
        checked.delete_index(txn, place)
    deaths.expire(entry, message_id, message, payload, stamp)
