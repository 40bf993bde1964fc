"""User keys of up to 2,048 bytes in LMDB, whose keys end at 511: a trie of 495-byte chunks.

A key of at most 495 bytes is one row: namespace (8 bytes) ‖ key. A longer one is cut: a *node* row, namespace ‖ first
495 bytes ‖ 01, holds a child namespace, in which the rest of the key goes on; 2,048 bytes take five levels. A row's
tail has at most 495 bytes and a node's exactly 496, so a length tells them apart, and because all keys below a node are
longer than a row of the same 495 bytes, and share them, LMDB's byte order is the order of the keys: nothing is escaped.
Namespace numbers come from a counter in the state row; 0 is the root, in which all short keys are.

Rejected: one record for all long keys that share a prefix (a write is O(n), and a hostile writer chooses n); hashed
keys (no order); escaping keys so that they sort in several rows (each short key would pay). Here a short key pays one
length comparison.
"""

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from . import checked
from .checked import RESIDUE, SEAL_SIZE

if TYPE_CHECKING:
    import lmdb

    from .rows import Rows

CHUNK: Final = 495
ROOT: Final = bytes(8)
_NODE: Final = b"\x01"
_AFTER_NODE: Final = b"\x02"
_NODE_SIZE: Final = 8 + CHUNK + 1

_crc32 = zlib.crc32


def locate(txn: "lmdb.Transaction[bytes]", key: bytes) -> bytes | None:
    """The LMDB key under which the user key is, if it is there at all; None = certainly absent."""
    if len(key) <= CHUNK:
        return ROOT + key
    namespace = ROOT
    while len(key) > CHUNK:
        child = checked.get(txn, namespace + key[:CHUNK] + _NODE)
        if child is None:
            return None
        namespace, key = child, key[CHUNK:]
    return namespace + key


def make_place(rows: "Rows", key: bytes) -> bytes:
    """The LMDB key under which the user key is to be written; makes the nodes that lead there."""
    namespace = ROOT
    while len(key) > CHUNK:
        node = namespace + key[:CHUNK] + _NODE
        child = checked.get(rows.txn, node)
        if child is None:
            child = rows.next_namespace.to_bytes(8, "big")
            rows.next_namespace += 1
            checked.put(rows.txn, node, child)
        namespace, key = child, key[CHUNK:]
    return namespace + key


def prune(rows: "Rows", key: bytes) -> None:
    """Delete the nodes that lead to a deleted key and to nothing else. Call it after the key's row was deleted."""
    nodes: list[tuple[bytes, bytes]] = []
    namespace = ROOT
    while len(key) > CHUNK:
        node = namespace + key[:CHUNK] + _NODE
        child = checked.get(rows.txn, node)
        if child is None:
            break
        nodes.append((node, child))
        namespace, key = child, key[CHUNK:]
    for node, child in reversed(nodes):
        with rows.txn.cursor() as cursor:
            if cursor.set_range(child) and cursor.key().startswith(child):
                return
        rows.txn.delete(node)


def scan(
    txn: "lmdb.Transaction[bytes]", start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and rows of start <= key < end, in ascending or descending order. `end` None = to the last one.

    Lazy: the transaction must stay open, and must not be written to, while the iterator is in use.
    """
    if end is not None and start >= end:
        return iter(())
    return (_descend if reverse else _ascend)(txn, start, end, ROOT, b"")


def keys(txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes) -> Iterator[bytes]:
    """Keys of start <= key < end, in ascending order. As `scan`, but no row is looked at, so nothing of large values is
    read from the disk, nor is any row's checksum verified."""
    return _ascend_keys(txn, start, end, ROOT, b"") if start < end else iter(())


def _ceiling(namespace: bytes, end: bytes | None) -> bytes:
    """The lowest LMDB key of which everything at or above it lies at or above `end`."""
    if end is None:
        return (int.from_bytes(namespace, "big") + 1).to_bytes(8, "big")
    return namespace + end if len(end) <= CHUNK else namespace + end[:CHUNK] + _AFTER_NODE


def _below(node: bytes, start: bytes, end: bytes | None) -> tuple[bytes, bytes | None]:
    """The bounds inside a node: only a bound that begins with the node's chunk goes on there."""
    chunk = node[8:-1]
    inner_start = start[CHUNK:] if start[:CHUNK] == chunk else b""
    inner_end = end[CHUNK:] if end is not None and len(end) > CHUNK and end[:CHUNK] == chunk else None
    return inner_start, inner_end


def _row(prefix: bytes, name: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The user key and its row; raises Damaged. Below the root, the row's logical name is not its LMDB key."""
    key = prefix + name[8:]
    if _crc32(stored, _crc32(ROOT + key)) != RESIDUE:
        raise checked.damaged(ROOT + key)
    return key, stored[:-SEAL_SIZE]


def _ascend(
    txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes | None, namespace: bytes, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    ceiling = _ceiling(namespace, end)
    cursor = txn.cursor()
    if not cursor.set_range(namespace + start[:CHUNK]):
        return
    # a row that equals the first chunk of a longer bound is the only one here that lies below it
    low = start if len(start) > CHUNK else b""
    for name, stored in cursor.iternext(keys=True, values=True):
        if name >= ceiling:
            return
        if len(name) == _NODE_SIZE:
            inner_start, inner_end = _below(name, start, end)
            child = checked.unseal(name, stored)
            yield from _ascend(txn, inner_start, inner_end, child, prefix + name[8:-1])
        elif not low or name[8:] >= low:
            yield _row(prefix, name, stored)


def _descend(
    txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes | None, namespace: bytes, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    floor = namespace + start[:CHUNK]
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(_ceiling(namespace, end)) else cursor.last()
    if not found:
        return
    for name, stored in cursor.iterprev(keys=True, values=True):
        if name < floor:
            return
        if len(name) == _NODE_SIZE:
            inner_start, inner_end = _below(name, start, end)
            child = checked.unseal(name, stored)
            yield from _descend(txn, inner_start, inner_end, child, prefix + name[8:-1])
        elif name[8:] >= start:
            yield _row(prefix, name, stored)
        else:
            return


def _ascend_keys(
    txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes | None, namespace: bytes, prefix: bytes
) -> Iterator[bytes]:
    """The walk of `_ascend`, over names alone."""
    ceiling = _ceiling(namespace, end)
    cursor = txn.cursor()
    if not cursor.set_range(namespace + start[:CHUNK]):
        return
    low = start if len(start) > CHUNK else b""
    for name in cursor.iternext(keys=True, values=False):
        if name >= ceiling:
            return
        if len(name) == _NODE_SIZE:
            inner_start, inner_end = _below(name, start, end)
            child = checked.unseal(name, cursor.value())
            yield from _ascend_keys(txn, inner_start, inner_end, child, prefix + name[8:-1])
        elif not low or name[8:] >= low:
            yield prefix + name[8:]
