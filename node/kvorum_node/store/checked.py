"""Rows that carry a CRC-32 over their name and themselves, so that a byte that a disk or a memory has changed is never
taken for the truth.

LMDB checks nothing that it reads. Where damage hits its own structure it may notice, or end the process, or not find a
row; where it hits a row it hands out other bytes than were written. The checksum stands behind the row, little-endian:
then the CRC of row and checksum together is a constant, whatever the row, and reading checks with one call and no copy.
A CRC finds each change of up to 32 bits in a row for certain, and others but for one in four billion.

Under its checksum goes the row's logical name, so that a row that turns up under another key is found out as well. The
content hash (see `rows`) knows nothing of checksums.

Rejected: the first bytes of the row's content hash, which a write has anyway; a read would have to compute it, at three
times the price of a CRC. A checksum for each page needs another LMDB.
"""

import struct
import zlib
from typing import TYPE_CHECKING, Final

from .errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lmdb

SEAL_SIZE: Final = 4
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of anything followed by its own CRC-32."""
_SHOWN: Final = 64

_crc32 = zlib.crc32
pack_seal = struct.Struct("<I").pack


def seal(name: bytes, row: bytes) -> bytes:
    """The row as it is stored."""
    return row + pack_seal(_crc32(row, _crc32(name)))


def unseal(name: bytes, stored: bytes) -> bytes:
    """The row; raises Damaged if it is not what was stored under this name."""
    if _crc32(stored, _crc32(name)) != RESIDUE:
        raise damaged(name)
    return stored[:-SEAL_SIZE]


def damaged(name: bytes) -> Damaged:
    more = "…" if len(name) > _SHOWN else ""
    return Damaged(f"the data file is damaged: the row {name[:_SHOWN].hex()}{more} is not what was written")


def get(txn: "lmdb.Transaction[bytes]", name: bytes) -> bytes | None:
    stored = txn.get(name)
    return None if stored is None else unseal(name, stored)


def put(txn: "lmdb.Transaction[bytes]", name: bytes, row: bytes) -> None:
    txn.put(name, seal(name, row))


def delete_index(txn: "lmdb.Transaction[bytes]", name: bytes) -> None:
    """Delete a row that must be there, because others say so."""
    if not txn.delete(name):
        raise missing(name)


def missing(name: bytes) -> Damaged:
    return Damaged(f"the data file is damaged: the row {name[:_SHOWN].hex()} is missing")


def table(txn: "lmdb.Transaction[bytes]", prefix: bytes) -> "Iterator[tuple[bytes, bytes]]":
    """Names and rows of everything below a prefix, in order. The transaction must not be written to meanwhile."""
    with txn.cursor() as cursor:
        if cursor.set_range(prefix):
            for name, stored in cursor.iternext(keys=True, values=True):
                if not name.startswith(prefix):
                    return
                yield name, unseal(name, stored)
