"""Hashed rows over a write transaction.

The content hash of the state is the sum, modulo 2^128, of BLAKE2b over all logical rows (name and value). A sum can be
kept up to date in any order and in constant time for each changed row, where a hash over the whole state would have to
be computed anew; it depends neither on page layout nor on the history that led to the rows. It is meant to find
differences between replicas, not to withstand someone who builds rows to collide: who can write arbitrary rows needs no
collision.
"""

import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING

from .checked import RESIDUE, SEAL_SIZE, damaged, pack_seal, seal, unseal
from .records import HASH_MASK, State

if TYPE_CHECKING:
    import lmdb

_from_bytes = int.from_bytes
_crc32 = zlib.crc32


def row_hash(name: bytes, row: bytes) -> int:
    """Hash of one logical row. The name's length stands first, so that no bytes can move between name and row
    unnoticed."""
    return _from_bytes(blake2b(len(name).to_bytes(2, "big") + name + row, digest_size=16).digest(), "little")


def history_hash(name: bytes, stored: bytes) -> int:
    """Hash of a row of history as it is stored: of its name, size and checksum. The row itself would cost each write
    twice, when it comes and when it goes, as much as the write's own row; and whatever could make two replicas write
    different histories makes their rows differ as well."""
    return row_hash(name, len(stored).to_bytes(4, "big") + stored[-SEAL_SIZE:])


class Rows:
    """One entry's view of the state: the transaction, and the counters that go into the state row at its end.

    `txn` is the entry's transaction or, inside a commit, its child.
    """

    __slots__ = (
        "digest",
        "has_auth",
        "has_queues",
        "history_rows",
        "history_size",
        "keys",
        "messages",
        "next_namespace",
        "oldest",
        "queues",
        "schedules",
        "sessions",
        "tokens",
        "topics",
        "txn",
    )

    def __init__(self, txn: "lmdb.Transaction[bytes]", state: State) -> None:
        self.txn = txn
        self.digest = state.digest
        self.next_namespace = state.next_namespace
        self.keys = state.keys
        self.messages = state.messages
        self.sessions = state.sessions
        self.history_rows = state.history_rows
        self.history_size = state.history_size
        self.oldest = state.oldest
        self.has_queues = state.has_queues
        self.queues = state.queues
        self.topics = state.topics
        self.schedules = state.schedules
        self.has_auth = state.has_auth
        self.tokens = state.tokens

    def get(self, name: bytes) -> bytes | None:
        return self.read(name, name)

    def read(self, place: bytes, name: bytes) -> bytes | None:
        """The logical row `name` that stands at the LMDB key `place`."""
        stored = self.txn.get(place)
        return None if stored is None else unseal(name, stored)

    def put(self, name: bytes, row: bytes) -> bytes | None:
        """Write a logical row; returns the one it replaces."""
        return self.swap(name, name, row)

    def swap(self, place: bytes, name: bytes, row: bytes) -> bytes | None:
        """Write a logical row `name` at the LMDB key `place`; returns the one it replaces."""
        # seal(), unseal() and row_hash(), without calls: these are the hottest lines of the store
        crc = _crc32(name)
        txn = self.txn
        stored = txn.get(place)
        txn.put(place, row + pack_seal(_crc32(row, crc)))  # replace() takes 0.5 µs more where there is a row
        head = len(name).to_bytes(2, "big") + name
        digest = _from_bytes(blake2b(head + row, digest_size=16).digest(), "little")
        if stored is None:
            self.digest += digest
            return None
        if _crc32(stored, crc) != RESIDUE:
            raise damaged(name)
        old = stored[:-SEAL_SIZE]
        self.digest += digest - _from_bytes(blake2b(head + old, digest_size=16).digest(), "little")
        return old

    # A row that is read and then replaced or deleted need not be looked up and checked twice, and one that is new
    # replaces nothing: these three are for rows of which each message has some.

    def add(self, name: bytes, row: bytes) -> None:
        """Write a row that cannot be there yet."""
        if not self.txn.put(name, row + pack_seal(_crc32(row, _crc32(name))), overwrite=False):
            raise damaged(name)
        head = len(name).to_bytes(2, "big") + name
        self.digest += _from_bytes(blake2b(head + row, digest_size=16).digest(), "little")

    def add_all(self, rows: list[tuple[bytes, bytes]]) -> list[int]:
        """Write rows, names first, all as long as one another, that cannot be there yet; returns their hashes."""
        put = self.txn.put
        head = len(rows[0][0]).to_bytes(2, "big")
        hashes = []
        for name, row in rows:
            if not put(name, row + pack_seal(_crc32(row, _crc32(name))), overwrite=False):
                raise damaged(name)
            hashes.append(_from_bytes(blake2b(head + name + row, digest_size=16).digest(), "little"))
        self.digest += sum(hashes)
        return hashes

    def add_index(self, names: list[bytes]) -> None:
        """Write index rows, which are empty and no part of the content hash."""
        put = self.txn.put
        for name in names:
            put(name, b"")

    def fetch(self, name: bytes) -> bytes | None:
        """A row as it is stored, with its checksum, which is right; for the next two."""
        stored = self.txn.get(name)
        if stored is not None and _crc32(stored, _crc32(name)) != RESIDUE:
            raise damaged(name)
        return stored

    def rewrite(self, name: bytes, stored: bytes, row: bytes) -> int:
        """Replace a row that was fetched as `stored`; returns the hash of the new one."""
        self.txn.put(name, row + pack_seal(_crc32(row, _crc32(name))))
        head = len(name).to_bytes(2, "big") + name
        digest = _from_bytes(blake2b(head + row, digest_size=16).digest(), "little")
        self.digest += digest - _from_bytes(blake2b(head + stored[:-SEAL_SIZE], digest_size=16).digest(), "little")
        return digest

    def drop(self, name: bytes, stored: bytes) -> None:
        """Delete a row that was fetched as `stored`."""
        self.txn.delete(name)
        head = len(name).to_bytes(2, "big") + name
        self.digest -= _from_bytes(blake2b(head + stored[:-SEAL_SIZE], digest_size=16).digest(), "little")

    def remove(self, name: bytes) -> bytes | None:
        """Delete a logical row; returns it."""
        return self.take(name, name)

    def take(self, place: bytes, name: bytes) -> bytes | None:
        """Delete the logical row `name` that stands at the LMDB key `place`; returns it."""
        stored = self.txn.pop(place)
        if stored is None:
            return None
        old = unseal(name, stored)
        self.digest -= row_hash(name, old)
        return old

    def add_history(self, name: bytes, row: bytes) -> None:
        """Write a new row of history."""
        stored = seal(name, row)
        self.txn.put(name, stored)
        self.digest += history_hash(name, stored)
        self.history_rows += 1
        self.history_size += len(row)

    def drop_history(self, name: bytes, stored: bytes) -> None:
        """Count a row of history out; the caller deletes it."""
        self.digest -= history_hash(name, stored)
        self.history_rows -= 1
        self.history_size -= len(stored) - SEAL_SIZE

    def counters(self) -> tuple[int, int, int, int, int]:
        """What a savepoint must keep. History is written outside of commits, as are sessions, topics, schedules
        and tokens."""
        return self.digest, self.next_namespace, self.keys, self.messages, self.queues

    def restore(self, counters: tuple[int, int, int, int, int]) -> None:
        self.digest, self.next_namespace, self.keys, self.messages, self.queues = counters

    def state(self, index: int, time_ms: int) -> State:
        return State(
            index,
            time_ms,
            self.digest & HASH_MASK,
            self.next_namespace,
            self.keys,
            self.messages,
            self.sessions,
            self.history_rows,
            self.history_size,
            self.oldest,
            self.has_queues,
            self.queues,
            self.topics,
            self.schedules,
            self.has_auth,
            self.tokens,
        )
