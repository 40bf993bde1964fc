"""Keys: tuples of parts, and their binary encoding, whose byte order is the order of keys.

The encoding is Deno KV's (the tuple layer of FoundationDB restricted to its types), byte for byte, so that programs in
both languages meet under the same keys. Each part says its own type and end, parts are concatenated, and a key that
begins with another one sorts behind it. Across types: bytes < str < int < float < False < True.

The trap for users: a Python `int` is JavaScript's *bigint*, a Python `float` its *number*. `["a", 1]` in JavaScript is
`("a", 1.0)` here, and `("a", 1)` is another key. Guessing would be worse: `1` and `1n` are different keys there too.
"""

import math
import struct
from collections.abc import Sequence
from typing import Final

from kvorum.errors import InvalidKey, shown
from kvorum.limits import MAX_BIGINT_BYTES

KeyPart = bytes | bytearray | memoryview | str | int | float | bool
"""What a key consists of. `bytearray` and `memoryview` come back as `bytes`."""
Key = tuple[bytes | str | int | float | bool, ...]
"""A key as it comes back."""
KeyLike = Sequence[KeyPart]
"""What is taken as a key: a tuple, or a list."""

BYTES: Final = 0x01
STRING: Final = 0x02
INT_ZERO: Final = 0x14
INT_LONG: Final = 0x1D
INT_LONG_NEGATIVE: Final = 0x0B
FLOAT: Final = 0x21
FALSE: Final = 0x26
TRUE: Final = 0x27

_TEXTS: Final = (STRING, BYTES)
_from_bytes: Final = int.from_bytes
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_INT_HEADS: Final = tuple(bytes((INT_ZERO + size,)) for size in range(9))
"""Of positive ints, by their size in bytes."""
_NAN: Final = b"\x21\xff\xf8\x00\x00\x00\x00\x00\x00"
_NEGATIVE_NAN: Final = b"\x21\x00\x07\xff\xff\xff\xff\xff\xff"


def encode_key(key: KeyLike) -> bytes:
    """The bytes of a key; empty for the empty one.

    Errors: InvalidKey, naming the part: a type that has no encoding, an int of more than 255 bytes, or a string with a
    lone surrogate (JavaScript silently turns those into U+FFFD).
    """
    if type(key) is not tuple and not isinstance(key, (tuple, list)):
        raise InvalidKey(f"a key is a tuple of parts, got {type(key).__name__}: {shown(key)}")
    encoded = b""
    for part in key:
        if type(part) is str:
            try:
                text = part.encode()
            except UnicodeEncodeError:
                raise _lone_surrogate(key) from None
            if b"\0" in text:
                text = text.replace(b"\0", b"\0\xff")
            encoded += b"\x02" + text + b"\0"
        elif type(part) is int:
            size = (part.bit_length() + 7) >> 3
            if part > 0 and size <= 8:  # without a call: 0.2 µs
                encoded += _INT_HEADS[size] + part.to_bytes(size, "big")
            else:
                encoded += _encode_int(part, key)
        else:
            encoded += _encode_other(part, key)
    return encoded


def _encode_other(part: KeyPart, key: KeyLike) -> bytes:
    if isinstance(part, bool):
        return b"\x27" if part else b"\x26"
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"\x01" + bytes(part).replace(b"\0", b"\0\xff") + b"\0"
    if isinstance(part, float):
        return _encode_float(part)
    if isinstance(part, int):
        return _encode_int(int(part), key)
    if isinstance(part, str):
        try:
            return b"\x02" + part.encode().replace(b"\0", b"\0\xff") + b"\0"
        except UnicodeEncodeError:
            raise _lone_surrogate(key) from None
    raise _unencodable(part, key)


def _encode_int(number: int, key: KeyLike) -> bytes:
    if number == 0:
        return b"\x14"
    size = (number.bit_length() + 7) >> 3
    if number > 0:
        if size <= 8:
            return _INT_HEADS[size] + number.to_bytes(size, "big")
        if size <= MAX_BIGINT_BYTES:
            return bytes((INT_LONG, size)) + number.to_bytes(size, "big")
    elif size <= MAX_BIGINT_BYTES:
        complement = ((1 << 8 * size) - 1 + number).to_bytes(size, "big")
        if size <= 8:
            return (INT_ZERO - size).to_bytes(1, "big") + complement
        return bytes((INT_LONG_NEGATIVE, size ^ 0xFF)) + complement
    at = next(at for at, part in enumerate(key) if isinstance(part, int) and int(part) == number)
    raise InvalidKey(f"key part {at}: an int of {size} bytes; at most {MAX_BIGINT_BYTES} can be encoded")


def _encode_float(number: float) -> bytes:
    if number != number:
        return _NAN if math.copysign(1.0, number) > 0 else _NEGATIVE_NAN
    bits = int.from_bytes(_DOUBLE.pack(number), "big")
    bits ^= _ALL if bits & _SIGN else _SIGN
    return b"\x21" + bits.to_bytes(8, "big")


def _lone_surrogate(key: KeyLike) -> InvalidKey:
    for at, part in enumerate(key):
        if isinstance(part, str):
            try:
                part.encode()
            except UnicodeEncodeError as problem:
                return InvalidKey(f"key part {at}: a lone surrogate at {problem.start} of {shown(part)} has no UTF-8")
    raise AssertionError("no part has a surrogate")


def _unencodable(part: object, key: KeyLike) -> InvalidKey:
    at = next(at for at, other in enumerate(key) if other is part)
    return InvalidKey(
        f"key part {at}: expected str, int, float, bool or bytes, got {type(part).__name__}: {shown(part)}"
    )


def decode_key(data: bytes) -> Key:
    """The key of some bytes.

    Errors: InvalidKey: unknown tag, missing terminator, cut off, invalid UTF-8, or an int that is not encoded in the
    shortest way (it would come back as a key that is stored elsewhere).
    """
    parts: list[bytes | str | int | float | bool] = []
    pos, size = 0, len(data)
    while pos < size:
        tag = data[pos]
        pos += 1
        if tag in _TEXTS:
            end = data.find(b"\0", pos)
            if end >= 0 and data[end + 1 : end + 2] != b"\xff":  # without a call: 0.1 µs
                content, pos = data[pos:end], end + 1
            else:
                content, pos = _terminated(data, pos)
            if tag == BYTES:
                parts.append(content)
            else:
                try:
                    parts.append(content.decode())
                except UnicodeDecodeError as problem:
                    raise InvalidKey(f"key part {len(parts)}: invalid UTF-8 ({problem.reason})") from None
        elif INT_ZERO < tag < INT_LONG and (end := pos + tag - INT_ZERO) <= size and data[pos]:
            # the same: most ints are positive and short
            parts.append(_from_bytes(data[pos:end], "big"))
            pos = end
        elif INT_LONG_NEGATIVE <= tag <= INT_LONG:
            number, pos = _decode_int(data, tag, pos, len(parts))
            parts.append(number)
        elif tag == FLOAT:
            if pos + 8 > size:
                raise InvalidKey(f"key part {len(parts)}: a number is cut off")
            parts.append(_decode_float(data[pos : pos + 8]))
            pos += 8
        elif tag in (FALSE, TRUE):
            parts.append(tag == TRUE)
        else:
            raise InvalidKey(f"key part {len(parts)}: unknown tag {tag:#04x}")
    return tuple(parts)


def _terminated(data: bytes, pos: int) -> tuple[bytes, int]:
    """Content up to the terminator, and the position behind it."""
    end = data.find(b"\0", pos)
    while end >= 0:
        if data[end + 1 : end + 2] != b"\xff":
            return data[pos:end].replace(b"\0\xff", b"\0"), end + 1
        end = data.find(b"\0", end + 2)
    raise InvalidKey("a string or bytes part has no terminator")


def _decode_int(data: bytes, tag: int, pos: int, at: int) -> tuple[int, int]:
    negative = tag < INT_ZERO
    size = abs(tag - INT_ZERO)
    if size > 8:
        if pos >= len(data):
            raise InvalidKey(f"key part {at}: an int is cut off")
        size = data[pos] ^ (0xFF if negative else 0)
        pos += 1
        if size <= 8:
            raise InvalidKey(f"key part {at}: an int is not encoded in the shortest way")
    end = pos + size
    if end > len(data):
        raise InvalidKey(f"key part {at}: an int is cut off")
    number = int.from_bytes(data[pos:end], "big")
    if negative:
        number = (1 << 8 * size) - 1 - number
    if size and not number >> 8 * (size - 1):
        raise InvalidKey(f"key part {at}: an int is not encoded in the shortest way")
    return -number if negative else number, end


def _decode_float(data: bytes) -> float:
    bits = int.from_bytes(data, "big")
    bits ^= _SIGN if bits & _SIGN else _ALL
    number: float = _DOUBLE.unpack(bits.to_bytes(8, "big"))[0]
    return number
