"""One log entry and its record: the bytes that go to the disk and over the wire unchanged, so that one checksum covers
both ways."""

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

from kvorum_raft.errors import ConfigurationError

FORMAT: Final = 1
_HEADER: Final = struct.Struct(">BBxxQQQ")
_CHECKSUM: Final = struct.Struct(">I")
HEADER_SIZE: Final = _HEADER.size + _CHECKSUM.size
"""Bytes that a record is longer than its payload."""


MAX_TIME_MS: Final = 253_402_300_800_000
"""Unix milliseconds of the year 10000: no entry is of a later time."""


class Kind(IntEnum):
    """What an entry's payload is."""

    COMMAND = 0
    NO_OP = 1
    CONFIGURATION = 2


_KINDS: Final = {kind.value: kind for kind in Kind}


class DamagedRecord(ValueError):
    """The bytes are not a record, or its checksum does not fit."""


class Entry(NamedTuple):
    """A log entry; the order of the first three fields is the one that PySyncObj's journals use."""

    record: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    time_ms: int
    kind: Kind

    @property
    def payload(self) -> bytes:
        return self.record[HEADER_SIZE:]

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return len(self.record)


def make(kind: Kind, index: int, term: int, time_ms: int, payload: bytes) -> Entry:
    """A new entry with its record."""
    header = _HEADER.pack(FORMAT, kind, index, term, time_ms)
    checksum = zlib.crc32(payload, zlib.crc32(header))
    return Entry(b"".join((header, _CHECKSUM.pack(checksum), payload)), index, term, time_ms, kind)


def parse(record: bytes) -> Entry:
    """Check a record and return its entry.

    Raises DamagedRecord, or ConfigurationError for a record of a newer version of this program.
    """
    if len(record) < HEADER_SIZE:
        raise DamagedRecord(f"a record of {len(record)} bytes")
    version, kind, index, term, time_ms = _HEADER.unpack_from(record)
    (checksum,) = _CHECKSUM.unpack_from(record, _HEADER.size)
    if zlib.crc32(memoryview(record)[HEADER_SIZE:], zlib.crc32(memoryview(record)[: _HEADER.size])) != checksum:
        raise DamagedRecord(f"wrong checksum in the record of entry {index}")
    if version > FORMAT:
        raise ConfigurationError(
            f"log entry {index} has record format {version}; this version knows formats up to {FORMAT}"
        )
    known = _KINDS.get(kind)
    if version < 1 or known is None:
        raise DamagedRecord(f"entry {index} has format {version} and kind {kind}")
    return Entry(record, index, term, time_ms, known)
