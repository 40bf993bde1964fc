"""Expiry: a key exists until a sweep deletes it. The index is (expiry time, stamp of the commit that set it, number of
the mutation) → key. A sweep also does what else has its time (see `queues.timers`)."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from kvorum.limits import SWEEP_LIMIT

from . import checked, history, keyspace
from .history import EXPIRED
from .queues import timers
from .records import EXPIRY
from .trie import ROOT

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry


def next_expiry(txn: "lmdb.Transaction[bytes]") -> int | None:
    """The earliest expiry of a key, or time of a timer, in the state, Unix milliseconds."""
    at_ms = timers.next_timer(txn)
    with txn.cursor() as cursor:
        if cursor.set_range(EXPIRY) and cursor.key().startswith(EXPIRY):
            expire_at_ms = int.from_bytes(cursor.key()[1:9], "big")
            return expire_at_ms if at_ms is None else min(at_ms, expire_at_ms)
    return at_ms


def sweep(entry: "Entry", limit: int, stamp: bytes) -> Generator[None, None, int]:
    """Delete up to `limit` keys that are due at the entry's time, earliest first, and do as many of the things that
    timers are set for; returns how many of both. 0 or too many = 1,000."""
    mark = len(entry.changes)
    limit = min(limit or SWEEP_LIMIT, SWEEP_LIMIT)
    after = EXPIRY + (entry.time_ms + 1).to_bytes(8, "big")
    due: list[bytes] = []
    # collected first: deleting a key also deletes its index row, from under the cursor
    with entry.rows.txn.cursor() as cursor:
        if cursor.set_range(EXPIRY):
            for name, stored in cursor.iternext(keys=True, values=True):
                if name >= after or len(due) == limit:
                    break
                due.append(checked.unseal(name, stored))
    for key in due:
        if not keyspace.delete(entry, key, EXPIRED):
            raise checked.missing(ROOT + key)
        if entry.spend():
            yield
    if entry.tallies is None:
        return len(due)
    rung = yield from timers.ring(entry, limit, stamp)
    if entry.undelivered_size:  # may have written a key that has just expired
        history.settle(entry.changes, mark)
    return len(due) + rung
