"""Reading the whole state over: is it still what was written?"""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from . import checked, records, trie
from .errors import Damaged
from .records import (
    CLUSTER_KEY,
    EXPIRES,
    EXPIRY,
    HASH_MASK,
    HASHED_TABLES,
    HISTORY,
    LEASED,
    MESSAGE,
    READY,
    SESSION,
    STATE_KEY,
    State,
    expiry_index_key,
)
from .rows import history_hash, row_hash

if TYPE_CHECKING:
    import lmdb


class Counts(NamedTuple):
    """What a state says, or turns out, to hold."""

    digest: int = 0
    keys: int = 0
    messages: int = 0
    sessions: int = 0
    history_rows: int = 0
    history_size: int = 0


def logical_rows(txn: "lmdb.Transaction[bytes]") -> Iterator[tuple[bytes, bytes]]:
    """Names and rows that the content hash covers. Raises Damaged.

    Each row that a cursor comes by is looked up as well: behind a branch page whose keys were changed a row may be
    there for a range, and missing for a get."""
    cluster = checked.get(txn, CLUSTER_KEY)
    if cluster is not None:
        yield CLUSTER_KEY, cluster
    for key, row in trie.scan(txn):
        place = trie.locate(txn, key)
        if place is None or txn.get(place) is None:
            raise checked.missing(trie.ROOT + key)
        yield trie.ROOT + key, row
    for table in HASHED_TABLES:
        for name, row in checked.table(txn, table):
            if txn.get(name) is None:
                raise checked.missing(name)
            yield name, row


def content_hash(txn: "lmdb.Transaction[bytes]") -> bytes:
    """16 bytes."""
    total = sum(_hash(name, row) for name, row in logical_rows(txn))
    return (total & HASH_MASK).to_bytes(16, "big")


def _hash(name: bytes, row: bytes) -> int:
    return history_hash(name, checked.seal(name, row)) if name.startswith(HISTORY) else row_hash(name, row)


def scrub(txn: "lmdb.Transaction[bytes]", slice_rows: int) -> Iterator[int]:
    """See `Store.scrub`."""
    seen = 0
    for step in chain(_check_rows(txn), _check_indexes(txn)):
        seen += step
        if seen % slice_rows == 0:
            yield seen
    yield seen


def _check_rows(txn: "lmdb.Transaction[bytes]") -> Iterator[int]:
    """One step for each logical row."""
    row = checked.get(txn, STATE_KEY)
    state = State() if row is None else records.unpack_state(row)
    digest = keys = messages = session_count = history_rows = history_size = 0
    for name, row in logical_rows(txn):
        digest += _hash(name, row)
        if name.startswith(b"\x00"):
            keys += 1
            if row[0] & EXPIRES and checked.get(txn, expiry_index_key(row)) != name[len(trie.ROOT) :]:
                raise checked.missing(expiry_index_key(row))
        elif name.startswith(MESSAGE):
            messages += 1
            _check_message(txn, name[len(MESSAGE) :], records.unpack_message(row))
        elif name.startswith(SESSION):
            session_count += 1
        elif name.startswith(HISTORY):
            history_rows += 1
            history_size += len(row)
        yield 1
    found = Counts(digest & HASH_MASK, keys, messages, session_count, history_rows, history_size)
    expected = Counts(state.digest, state.keys, state.messages, state.sessions, state.history_rows, state.history_size)
    if found != expected:
        raise Damaged(
            f"the data file is damaged: it holds {found.keys} keys, {found.messages} messages, {found.sessions}"
            f" sessions and {found.history_rows} rows of history, and says {expected.keys}, {expected.messages},"
            f" {expected.sessions} and {expected.history_rows}; its content hash is"
            f" {'right' if found.digest == expected.digest else 'wrong'}"
        )


def _check_message(txn: "lmdb.Transaction[bytes]", message_id: bytes, message: records.Message) -> None:
    index_key = _index_key(message_id, message)
    if txn.get(index_key) is None:
        raise checked.missing(index_key)


def _check_indexes(txn: "lmdb.Transaction[bytes]") -> Iterator[int]:
    """One step for each index row: none that nothing belongs to."""
    for name, key in checked.table(txn, EXPIRY):
        place = trie.locate(txn, key)
        stored = None if place is None else txn.get(place)
        row = None if stored is None else checked.unseal(trie.ROOT + key, stored)
        if row is None or not row[0] & EXPIRES or expiry_index_key(row) != name:
            raise checked.damaged(name)
        yield 1
    for table in (READY, LEASED):
        with txn.cursor() as cursor:
            going = cursor.set_range(table)
            for name in cursor.iternext(keys=True, values=False) if going else ():
                if not name.startswith(table):
                    break
                message_id = name[-records.MESSAGE_ID_SIZE :]
                row = checked.get(txn, MESSAGE + message_id)
                if row is None or name != _index_key(message_id, records.unpack_message(row)):
                    raise checked.damaged(name)
                yield 1


def _index_key(message_id: bytes, message: records.Message) -> bytes:
    return LEASED + message_id if message.lease_id else records.ready_key(message_id, message)
