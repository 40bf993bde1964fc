"""The format of a backup's file, and of a segment of the log.

Eight bytes that say what it is, then frames: a header, data, an end. Each frame is kind (1 byte), 3 zero bytes, size of
its payload and CRC-32 of all that (4 bytes each, big-endian), and the payload. The end holds a BLAKE2b-256 of all that
is before it, and nothing follows it: so a changed bit is found in the frame where it is, and a cut at any place too.

Nothing of a file is believed before its checksum was seen to be right, and no size in it makes anybody allocate more
than `MAX_FRAME`.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb

FORMAT: Final = 1
BACKUP: Final = b"KVORUMB\x01"
SEGMENT: Final = b"KVORUMS\x01"
MAX_HEADER: Final = 1 << 20
MAX_FRAME: Final = 8 << 20
"""Bytes of a data frame: an entry of the log, or a piece of a state."""
HASH_SIZE: Final = 32
CLUSTER_ID_SIZE: Final = 16
STAMP_SIZE: Final = 10
MAX_NUMBER: Final = 0xFFFF

_HEADER, _DATA, _END = 1, 2, 3
_HEAD: Final = struct.Struct(">BxxxI")
_CRC: Final = struct.Struct(">I")
_FRAME_HEAD: Final = _HEAD.size + _CRC.size
_MAX_SIZES: Final = {_HEADER: MAX_HEADER, _DATA: MAX_FRAME, _END: 4_096}
_NAMES: Final = {BACKUP: "backup", SEGMENT: "segment of the log"}

Header = TypeVar("Header", pb.BackupHeader, pb.SegmentHeader)


class BadFile(ValueError):
    """It is no such file, or not a whole one; one line that says what is wrong."""


class Encoder:
    """Makes the bytes of one file: `begin`, `data` as often as needed, `end`."""

    def __init__(self, magic: bytes) -> None:
        self._magic = magic
        self._hash = hashlib.blake2b(digest_size=HASH_SIZE)
        self._frames = self._size = 0

    def begin(self, header: pb.BackupHeader | pb.SegmentHeader) -> bytes:
        """The first bytes. Raises ValueError if the header is too large."""
        payload = header.SerializeToString(deterministic=True)
        if len(payload) > MAX_HEADER:
            raise ValueError(f"a header of {len(payload):,} bytes; at most {MAX_HEADER:,}")
        return self._seen(self._magic + frame(_HEADER, payload))

    def data(self, payload: bytes | memoryview) -> bytes:
        """The next ones. Raises ValueError for more than `MAX_FRAME`, and for nothing."""
        if not 0 < len(payload) <= MAX_FRAME:
            raise ValueError(f"a data frame of {len(payload):,} bytes; 1 to {MAX_FRAME:,} are possible")
        self._frames += 1
        self._size += len(payload)
        return self._seen(frame(_DATA, payload))

    def end(self) -> bytes:
        """The last ones."""
        end = pb.FileEnd(frames=self._frames, size=self._size, hash=self._hash.digest())
        return frame(_END, end.SerializeToString(deterministic=True))

    def _seen(self, data: bytes) -> bytes:
        self._hash.update(data)
        return data


def frame(kind: int, payload: bytes | memoryview) -> bytes:
    """One frame."""
    head = _HEAD.pack(kind, len(payload))
    return b"".join((head, _CRC.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


class Decoder(Generic[Header]):
    """Takes a file's bytes in any pieces and hands out what is in its data frames. `feed` and `finish` raise BadFile.

    `header` is there as soon as its frame was read; that the file is whole is known when `finish` has returned."""

    def __init__(self, magic: bytes, kind: type[Header]) -> None:
        self._magic = magic
        self._kind: type[Header] = kind
        self._what = _NAMES[magic]
        self._hash = hashlib.blake2b(digest_size=HASH_SIZE)
        self._buffer = bytearray()
        self._begun = False
        self._end: pb.FileEnd | None = None
        self._frames = 0
        self.header: Header | None = None
        self.size = 0
        """Bytes of data so far."""
        self.taken = 0
        """Bytes of the file that were understood so far."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Payloads of the data frames that these bytes complete. To be exhausted."""
        self._buffer += data
        if not self._begun and len(self._buffer) >= len(self._magic):
            self._begin()
        while self._begun and len(self._buffer) >= _FRAME_HEAD:
            kind, size = _HEAD.unpack_from(self._buffer)
            self._check_order(kind, size)
            if len(self._buffer) < _FRAME_HEAD + size:
                return
            payload = self._take(kind, size)
            if payload is not None:
                yield payload
        if self._end is not None and self._buffer:
            raise self._bad(f"something follows its end ({len(self._buffer):,} bytes at least)")

    def finish(self) -> Header:
        """There are no further bytes: the header of a file that is whole."""
        if self.header is None or self._end is None:
            if not self._begun and self._buffer and not self._magic.startswith(self._buffer):
                raise BadFile(f"this is no {self._what} of kvorum")
            raise self._bad(f"it ends after {self.taken + len(self._buffer):,} bytes, in the middle")
        return self.header

    def _begin(self) -> None:
        if self._buffer[: len(self._magic)] != self._magic:
            raise BadFile(f"this is no {self._what} of kvorum")
        self._hash.update(self._magic)
        self.taken = len(self._magic)
        del self._buffer[: len(self._magic)]
        self._begun = True

    def _check_order(self, kind: int, size: int) -> None:
        if self._end is not None:
            raise self._bad("something follows its end")
        if (kind == _HEADER) == (self.header is not None) or kind not in _MAX_SIZES:
            raise self._bad(f"there is no frame where one should begin, at byte {self.taken:,}")
        if size > _MAX_SIZES[kind]:
            raise self._bad(f"a frame of {size:,} bytes at byte {self.taken:,}")

    def _take(self, kind: int, size: int) -> bytes | None:
        whole = _FRAME_HEAD + size
        raw = bytes(self._buffer[:whole])
        del self._buffer[:whole]
        (checksum,) = _CRC.unpack_from(raw, _HEAD.size)
        payload = raw[_FRAME_HEAD:]
        if zlib.crc32(payload, zlib.crc32(raw[: _HEAD.size])) != checksum:
            raise self._bad(f"wrong checksum of the {size:,} bytes at byte {self.taken:,}")
        if kind == _END:
            self._close(payload)
        else:
            self._hash.update(raw)
        self.taken += whole
        if kind == _HEADER:
            self._open(payload)
        if kind != _DATA:
            return None
        self._frames += 1
        self.size += size
        return payload

    def _open(self, payload: bytes) -> None:
        try:
            header = self._kind.FromString(payload)
        except DecodeError as error:
            raise self._bad("its header cannot be read") from error
        if header.format > FORMAT:
            raise BadFile(
                f"this {self._what} has format {header.format}; this version of kvorum knows formats up to {FORMAT}"
            )
        if isinstance(header, pb.BackupHeader):
            problem = _backup_problem(header)
        else:
            problem = _segment_problem(header)
        if header.format < 1 or problem:
            raise self._bad(f"its header makes no sense: {problem or 'it has no format'}")
        self.header = header

    def _close(self, payload: bytes) -> None:
        try:
            end = pb.FileEnd.FromString(payload)
        except DecodeError as error:
            raise self._bad("its end cannot be read") from error
        if (end.frames, end.size, end.hash) != (self._frames, self.size, self._hash.digest()):
            raise self._bad(f"it has {self._frames:,} frames of {self.size:,} bytes, or others than were written")
        self._end = end

    def _bad(self, what: str) -> BadFile:
        return BadFile(f"the {self._what} is damaged: {what}")


def _backup_problem(header: pb.BackupHeader) -> str:
    if len(header.cluster_id) not in (0, CLUSTER_ID_SIZE) or len(header.content_hash) != CLUSTER_ID_SIZE:
        return "a cluster id or content hash of a wrong length"
    if len(header.state_hash) != HASH_SIZE or len(header.bookmark) != STAMP_SIZE:
        return "a hash or bookmark of a wrong length"
    if not 1 <= header.index < 1 << 62 or header.stamp_base > 1 << 62 or not 1 <= header.size < 1 << 46:
        return f"entry {header.index}, stamp base {header.stamp_base}, {header.size} bytes"
    return ""


def _segment_problem(header: pb.SegmentHeader) -> str:
    if len(header.cluster_id) != CLUSTER_ID_SIZE or len(header.content_hash) not in (0, CLUSTER_ID_SIZE):
        return "a cluster id or content hash of a wrong length"
    if not 1 <= header.first <= header.last < 1 << 62 or header.stamp_base > 1 << 62:
        return f"entries {header.first} to {header.last}, stamp base {header.stamp_base}"
    return ""


def encode(magic: bytes, header: pb.BackupHeader | pb.SegmentHeader, payloads: Iterable[bytes]) -> Iterator[bytes]:
    """A whole file, in pieces."""
    encoder = Encoder(magic)
    yield encoder.begin(header)
    for payload in payloads:
        yield encoder.data(payload)
    yield encoder.end()
