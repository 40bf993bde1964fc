"""The commonest operations, told from their serialised bytes.

Most operations are a set of one key, with or without a check, a message with nothing but a payload, or an
acknowledgement. To parse such a one as protobuf, and to ask it field by field for what it holds, takes 1.3 to 2.1 µs;
to take it apart here, 0.2 to 0.9. A check with a set takes 10 instead of 18.7 µs in all, since it needs no pauses then.

What these functions know is exactly what protobuf would make of the same bytes; of all others, however they are
written, they say that they do not know.
"""

import struct
from typing import Final

from kvorum._proto import kvorum_pb2 as pb

_MORE: Final = 0x80
"""A length below 128 is one byte; one that goes on in a second byte ends there if it is below 16 KiB."""
_LONGEST: Final = 0x3FFF

_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(_MORE))

# Tags: number of the field << 3 | 2, which is a length and so many bytes, or 0, a number.
CHECK: Final = 0x0A
SET: Final = 0x12
ENQUEUE: Final = 0x1A
SETTLE: Final = 0x22
_FIRST: Final = 0x0A
_PAYLOAD: Final = 0x12
_STAMP: Final = b"\x12\x0a"
_STAMP_SIZE: Final = 10
_SET_AND_VALUE: Final = b"\x10\x01\x1a"
_ENCODINGS: Final = {
    b"\x20" + bytes((encoding,)): int(encoding) for encoding in (pb.VALUE_ENCODING_V8, pb.VALUE_ENCODING_BYTES)
}
"""What may stand behind the value; 64-bit numbers have a size of their own."""
_ACK: Final = struct.Struct("4s12s2s12s2s")
_ACK_SIZE: Final = _ACK.size
_ACK_HEAD: Final = b"\x22\x1e\x0a\x0c"
_ACK_MIDDLE: Final = b"\x12\x0c"
_ACK_END: Final = b"\x18\x01"


PlainSet = tuple[bytes, int, bytes, bytes | None, bytes]
"""Key, encoding, value; then of a check that stands before it: key, None = there is none, and versionstamp, 10 bytes or
none. A plain tuple: a named one takes 0.2 µs more."""


def varint(number: int) -> bytes:
    """A number as it stands in serialised messages."""
    if number < _MORE:
        return _ONE_BYTE[number]
    if number <= _LONGEST:
        return bytes((number & 0x7F | _MORE, number >> 7))
    return bytes((number & 0x7F | _MORE,)) + varint(number >> 7)


def acknowledgement(op: bytes) -> tuple[bytes, bytes] | None:
    """Message id and lease id of a single ACK and nothing else."""
    if len(op) != _ACK_SIZE:
        return None
    head, message_id, middle, lease_id, end = _ACK.unpack(op)
    if head == _ACK_HEAD and middle == _ACK_MIDDLE and end == _ACK_END:
        return message_id, lease_id
    return None


def plain_message(op: bytes) -> tuple[bytes, bytes] | None:
    """Queue, as bytes that need not be UTF-8, and payload of a single enqueue and nothing else."""
    try:
        size, at = op[1], 2
        if size & _MORE:
            size, at = size & 0x7F | op[2] << 7, 3
        if size > _LONGEST or op[at] != _FIRST or at + size != len(op) or op[0] != ENQUEUE:
            return None
        queue_at = at + 2
        payload_at = queue_at + op[at + 1]
        if op[payload_at] != _PAYLOAD or op[at + 1] & _MORE:
            return None
        queue = op[queue_at:payload_at]
        size, at = op[payload_at + 1], payload_at + 2
        if size & _MORE:
            size, at = size & 0x7F | op[at] << 7, at + 1
        return (queue, op[at:]) if at + size == len(op) and size <= _LONGEST else None
    except IndexError:
        return None


def plain_set(op: bytes) -> PlainSet | None:
    """A single SET with key and value, which need not be within the limits."""
    try:
        size = len(op) - 2
        if op[1] == size < _MORE and op[0] == SET and op[2] == _FIRST:
            # Most of them are this short: each length is one byte, or points behind the end.
            end = op[3] + 4
            if op[end : end + 3] == _SET_AND_VALUE:
                at = end + 4
                stop = at + op[end + 3]
                encoding = _ENCODINGS.get(op[stop:])
                if encoding is not None:
                    return op[4:end], encoding, op[at:stop], None, b""
        at = 0
        checked_key, versionstamp = None, b""
        if op[0] == CHECK:
            end = op[1] + 2
            at = op[3] + 4
            if op[2] != _FIRST or (op[1] | op[3]) & _MORE:
                return None
            checked_key = op[4:at]
            if at != end:
                if op[at : at + 2] != _STAMP or at + 2 + _STAMP_SIZE != end:
                    return None
                versionstamp = op[at + 2 : end]
                at = end
        size, tag, at = op[at + 1], op[at], at + 2
        if size & _MORE:
            size, at = size & 0x7F | op[at] << 7, at + 1
        if size > _LONGEST or op[at] != _FIRST or at + size != len(op) or tag != SET:
            return None
        size, at = op[at + 1], at + 2
        if size & _MORE:
            size, at = size & 0x7F | op[at] << 7, at + 1
        end = at + size
        if size > _LONGEST or op[end : end + 3] != _SET_AND_VALUE:
            return None
        key = op[at:end]
        size, at = op[end + 3], end + 4
        if size & _MORE:
            size, at = size & 0x7F | op[at] << 7, at + 1
        end = at + size
        encoding = _ENCODINGS.get(op[end:])
        return None if encoding is None or size > _LONGEST else (key, encoding, op[at:end], checked_key, versionstamp)
    except IndexError:
        return None
