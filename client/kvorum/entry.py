"""What a read gives back: a key, its value, and the versionstamp of the commit that wrote it."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import DataError, InvalidArgument, InvalidKey, shown
from kvorum.keys import Key, KeyPart, decode_key
from kvorum.values import decode_value

STAMP_DIGITS: Final = 20
_LASTING: Final = frozenset((str, int, float, bool, bytes))


class Entry(NamedTuple):
    """A key with its value and versionstamp. True if the key is present: `if entry := await kv.get(key): ...`."""

    key: Key
    value: Any
    """None if the key is absent; also if None was stored, in which case there is a versionstamp."""
    versionstamp: str | None
    """20 lower-case hex digits, which compare as the commits follow each other; None if the key is absent."""

    @property
    def exists(self) -> bool:
        """Whether the key is present."""
        return self.versionstamp is not None

    def __bool__(self) -> bool:
        return self.versionstamp is not None


_STAMP_END: Final = 11
_new_entry: Final = partial(tuple.__new__, Entry)
"""Without the named tuple's own call, which takes 0.2 µs."""


def own_key(key: Sequence[KeyPart]) -> Key:
    """The key that a caller gave, as it comes back: a tuple, and nothing in it that can still be changed."""
    if type(key) is tuple:
        for part in key:
            if isinstance(part, (bytearray, memoryview)):
                break
        else:
            return key
    return tuple(bytes(part) if isinstance(part, (bytearray, memoryview)) else part for part in key)


def answered(key: Key, row: pb.KvEntry) -> Entry:
    """The entry of a key that was asked for. Errors: DataError, naming the key."""
    stamp = row.versionstamp
    if not stamp:
        return Entry(key, None, None)
    try:
        return _new_entry((key, decode_value(row.value, row.encoding), stamp.hex()))
    except DataError as error:
        raise DataError(f"{key!r}: {error}") from error


def unpacked(key: Sequence[KeyPart], row: bytes) -> Entry:
    """The entry of a key that was asked for, from a row of `pb.PointAnswers`. Errors: DataError, naming the key."""
    if type(key) is not tuple or not _LASTING.issuperset(map(type, key)):
        key = own_key(key)
    if not row:
        return _new_entry((key, None, None))
    if len(row) < _STAMP_END:
        raise DataError(f"{key!r}: the node answered with a row of {len(row)} bytes; at least {_STAMP_END} are needed")
    try:
        return _new_entry((key, decode_value(row[_STAMP_END:], row[0]), row[1:_STAMP_END].hex()))
    except DataError as error:
        raise DataError(f"{key!r}: {error}") from error


def packed(row: pb.KvEntry) -> bytes:
    """A row as it stands in `pb.PointAnswers`."""
    if not row.versionstamp:
        return b""
    return bytes((row.encoding,)) + row.versionstamp + row.value


def found(row: pb.KvEntry, *, keys_only: bool = False) -> Entry:
    """The entry of a row that a range held; with `keys_only` its value is None. Errors: DataError, naming the key."""
    try:
        key = decode_key(row.key)
    except InvalidKey as error:
        raise DataError(f"the stored key {row.key.hex()} cannot be decoded: {error}") from error
    return Entry(key, None, row.versionstamp.hex()) if keys_only else answered(key, row)


def time_left(answer: pb.ReadResult) -> timedelta | None:
    """How long the one key of a read with expiry has to live; None = for ever, or it is absent."""
    expire_at_ms = answer.entries[0].expire_at_ms
    # What is due is there until it is swept, and the node that was asked only knows about what time it is.
    return timedelta(milliseconds=max(0, expire_at_ms - answer.time_ms)) if expire_at_ms else None


def parse_versionstamp(text: str) -> bytes:
    """The 10 bytes of a versionstamp; upper-case digits are taken too. Errors: InvalidArgument."""
    if isinstance(text, str) and len(text) == STAMP_DIGITS and text.isascii() and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise InvalidArgument(f"a versionstamp is {STAMP_DIGITS} hex digits, got {shown(text)}")
