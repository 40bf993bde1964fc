"""Expiry: a key exists until a sweep deletes it. The index is (expiry time, stamp of the commit that set it, number of
the mutation) → key."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from kvorum.limits import SWEEP_LIMIT

from . import checked, keyspace
from .history import EXPIRED
from .records import EXPIRY
from .trie import ROOT

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry


def next_expiry(txn: "lmdb.Transaction[bytes]") -> int | None:
    """The earliest expiry time in the state, Unix milliseconds."""
    with txn.cursor() as cursor:
        if cursor.set_range(EXPIRY) and cursor.key().startswith(EXPIRY):
            return int.from_bytes(cursor.key()[1:9], "big")
    return None


def sweep(entry: "Entry", limit: int) -> Generator[None, None, int]:
    """Delete up to `limit` keys that are due at the entry's time, earliest first; returns how many. 0 or too many =
    1,000."""
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
    return len(due)
