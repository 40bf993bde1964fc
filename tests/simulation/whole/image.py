"""A simulated environment as the bytes of a file: what `copyfd` writes and what opening such a file reads.

Tables one after the other, every part with its length before it, a checksum at the end: like a file of LMDB's it says
that it is damaged only where somebody looks, but unlike there everything is looked at when it is opened.
"""

import struct
import zlib
from typing import Final

import lmdb

MAGIC: Final = b"simulmdb"
_MAIN: Final = 0xFFFF
_HEAD: Final = struct.Struct(">8sI")
_TABLE: Final = struct.Struct(">HI")
_ROW: Final = struct.Struct(">HI")
_CHECKSUM_SIZE: Final = 4

Rows = dict[bytes | None, list[tuple[bytes, bytes]]]
"""The rows of each table by its name, in the order of their keys; None is the main one."""


def pack(tables: Rows) -> bytes:
    parts = [_HEAD.pack(MAGIC, len(tables))]
    for name, rows in sorted(tables.items(), key=lambda item: item[0] or b""):
        parts.append(_TABLE.pack(_MAIN if name is None else len(name), len(rows)))
        parts.append(name or b"")
        for key, value in rows:
            parts += (_ROW.pack(len(key), len(value)), key, value)
    body = b"".join(parts)
    return body + zlib.crc32(body).to_bytes(_CHECKSUM_SIZE, "big")


def unpack(data: bytes) -> Rows:
    """Errors: lmdb.InvalidError for something else, lmdb.CorruptedError for a part of it."""
    if not data.startswith(MAGIC):
        raise lmdb.InvalidError("MDB_INVALID: File is not an LMDB file")
    body, checksum = data[:-_CHECKSUM_SIZE], data[-_CHECKSUM_SIZE:]
    if zlib.crc32(body).to_bytes(_CHECKSUM_SIZE, "big") != checksum:
        raise lmdb.CorruptedError("MDB_CORRUPTED: Located page was wrong type")
    tables: Rows = {}
    at = _HEAD.size
    for _ in range(_HEAD.unpack_from(body)[1]):
        name_size, count = _TABLE.unpack_from(body, at)
        at += _TABLE.size
        name = None if name_size == _MAIN else body[at : at + name_size]
        at += len(name or b"")
        rows = tables[name] = []
        for _ in range(count):
            key_size, value_size = _ROW.unpack_from(body, at)
            at += _ROW.size
            rows.append((body[at : at + key_size], body[at + key_size : at + key_size + value_size]))
            at += key_size + value_size
    return tables
