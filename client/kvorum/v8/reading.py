"""V8 bytes to values."""

import struct
from typing import Final

from kvorum.errors import DataError
from kvorum.limits import MAX_VALUE_DEPTH
from kvorum.v8.format import DOUBLE, HEADER, MAX_EXACT, READABLE, Rest, moment_of, number_of

_BUFFER: Final = object()
"""Stands in `refs` for an ArrayBuffer whose view is what counts."""

_SHORT_STRING: Final = HEADER + b'"'
"""What a string of up to 127 characters below U+0100 begins with; its size follows in one byte."""


def loads(data: bytes) -> object:
    """The value of V8 bytes. `undefined` is read as None, Map as dict, Uint8Array as bytes, Date as a datetime in UTC.

    What plain types cannot hold, or would write back as something else (a Map of strings, which would become an
    Object), comes as the types of `v8serialize.jstypes`. Errors: DataError.
    """
    if data[:3] == _SHORT_STRING and 3 < len(data) == data[3] + 4 < 132:  # and nothing else: 0.4 instead of 0.9 µs
        return str(data[4:], "latin-1")
    if len(data) < 3 or data[0] != 0xFF or data[1] not in READABLE:
        raise DataError("this value cannot be decoded: it is not version 15 or 16 of V8's format")
    try:
        if data[2] == 0x42:  # bytes, and nothing else: 0.7 instead of 1.1 µs
            return _read_buffer(data, 3, [])[0]
        return _read(data, 2, [], 1)[0]
    except Rest:
        from kvorum.v8 import rest

        return rest.loads(data)
    except (_Malformed, UnicodeDecodeError) as problem:
        raise DataError(f"this value cannot be decoded: {problem}") from None
    except (IndexError, struct.error):
        raise DataError("this value cannot be decoded: it is cut off") from None
    except RecursionError:
        raise DataError("this value cannot be decoded: it is nested too deeply") from None


class _Malformed(Exception):
    pass


def _read(data: bytes, pos: int, refs: list[object], depth: int) -> tuple[object, int]:
    tag = data[pos]
    pos += 1
    if tag == 0x22:  # "
        size = data[pos]
        pos += 1
        if size > 127:
            size, pos = _read_varint(data, pos - 1)
        end = pos + size
        if end > len(data):
            raise _Malformed("a string is cut off")
        return str(data[pos:end], "latin-1"), end
    if tag == 0x49:  # I
        number = data[pos]
        pos += 1
        if number > 127:
            number, pos = _read_varint(data, pos - 1)
            number &= 0xFFFF_FFFF
        return (number >> 1) ^ -(number & 1), pos
    if tag == 0x6F:  # o
        return _read_object(data, pos, refs, depth)
    if tag == 0x41:  # A
        return _read_array(data, pos, refs, depth)
    if tag == 0x4E:  # N
        return number_of(DOUBLE.unpack_from(data, pos)[0]), pos + 8
    if tag == 0x54:  # T
        return True, pos
    if tag == 0x46:  # F
        return False, pos
    if tag in (0x30, 0x5F):  # 0 null, _ undefined
        return None, pos
    return _read_other(data, tag, pos, refs, depth)


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, pos
        shift += 7
        if shift > 63:
            raise _Malformed("a number is too long")


def _read_object(data: bytes, pos: int, refs: list[object], depth: int) -> tuple[dict[str, object], int]:
    if depth > MAX_VALUE_DEPTH:
        raise _Malformed(f"it is nested more than {MAX_VALUE_DEPTH} deep")
    items: dict[str, object] = {}
    refs.append(items)
    count = 0
    while True:
        tag = data[pos]
        if tag == 0x22 and data[pos + 1] < 128:
            begin = pos + 2
            pos = begin + data[pos + 1]
            key = str(data[begin:pos], "latin-1")
        elif tag == 0x7B:
            break
        else:
            name, pos = _read(data, pos, refs, depth + 1)
            key = name if type(name) is str else _property(name)
        if data[pos] == 0x22 and data[pos + 1] < 128:
            begin = pos + 2
            pos = begin + data[pos + 1]
            items[key] = str(data[begin:pos], "latin-1")
            if pos >= len(data):  # so that a string cannot be cut off
                raise _Malformed("an object is cut off")
        else:
            items[key], pos = _read(data, pos, refs, depth + 1)
        count += 1
    expected, pos = _read_varint(data, pos + 1)
    if expected != count:
        raise _Malformed(f"an object of {expected} properties has {count}")
    return items, pos


def _property(name: object) -> str:
    """Property names that are array indexes are stored as numbers."""
    if type(name) is int:
        if not -MAX_EXACT <= name <= MAX_EXACT:  # no JS number, and Python may refuse to write it out
            raise _Malformed("a property name is a BigInt")
        return str(name)
    if type(name) is float:
        if name.is_integer():
            return str(int(name))
        raise Rest
    raise _Malformed("a property name is neither string nor number")


def _read_array(data: bytes, pos: int, refs: list[object], depth: int) -> tuple[list[object], int]:
    if depth > MAX_VALUE_DEPTH:
        raise _Malformed(f"it is nested more than {MAX_VALUE_DEPTH} deep")
    size, pos = _read_varint(data, pos)
    items: list[object] = []
    refs.append(items)
    for _ in range(size):
        if data[pos] == 0x2D:  # a hole
            raise Rest
        item, pos = _read(data, pos, refs, depth + 1)
        items.append(item)
    if data[pos] != 0x24:
        if data[pos] in (0x00, 0x22, 0x53, 0x63, 0x49, 0x4E, 0x55):
            raise Rest  # an array with properties
        raise _Malformed("an array has no end")
    properties, pos = _read_varint(data, pos + 1)
    length, pos = _read_varint(data, pos)
    if properties or length != size:
        raise _Malformed(f"an array of {size} says that it has {length}")
    return items, pos


def _read_other(data: bytes, tag: int, pos: int, refs: list[object], depth: int) -> tuple[object, int]:  # noqa: C901
    if tag == 0x00:  # padding
        while data[pos] == 0:
            pos += 1
        return _read(data, pos, refs, depth)
    if tag in (0x63, 0x53):  # c two-byte, S UTF-8
        content, pos = _read_bytes(data, pos)
        if tag == 0x53:
            return content.decode(), pos
        if len(content) & 1:
            raise _Malformed("a two-byte string has an odd size")
        return content.decode("utf-16-le", "surrogatepass"), pos
    if tag == 0x55:  # U
        number, pos = _read_varint(data, pos)
        return number & 0xFFFF_FFFF, pos
    if tag == 0x5A:  # Z
        return _read_bigint(data, pos)
    if tag == 0x5E:  # ^
        number, pos = _read_varint(data, pos)
        if number >= len(refs):
            raise _Malformed("a reference to an object that does not exist")
        if refs[number] is _BUFFER or data[pos : pos + 1] == b"V":
            raise Rest
        return refs[number], pos
    if tag == 0x44:  # D
        try:
            moment = moment_of(DOUBLE.unpack_from(data, pos)[0])
        except (ValueError, OverflowError):
            raise _Malformed("a Date is invalid or outside the years 1 to 9999") from None
        refs.append(moment)
        return moment, pos + 8
    if tag == 0x42:  # B
        return _read_buffer(data, pos, refs)
    if depth > MAX_VALUE_DEPTH:
        raise _Malformed(f"it is nested more than {MAX_VALUE_DEPTH} deep")
    if tag == 0x3B:  # ;
        return _read_map(data, pos, refs, depth)
    if tag == 0x27:  # '
        return _read_set(data, pos, refs, depth)
    raise Rest


def _read_bytes(data: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = _read_varint(data, pos)
    end = pos + size
    if end > len(data):
        raise _Malformed("a string or buffer is cut off")
    return data[pos:end], end


def _read_bigint(data: bytes, pos: int) -> tuple[int, int]:
    head, pos = _read_varint(data, pos)
    end = pos + (head >> 1)
    if end > len(data):
        raise _Malformed("a BigInt is cut off")
    magnitude = int.from_bytes(data[pos:end], "little")
    return -magnitude if head & 1 else magnitude, end


def _read_buffer(data: bytes, pos: int, refs: list[object]) -> tuple[bytes, int]:
    """An ArrayBuffer with the Uint8Array upon it; everything else is for the rest."""
    begin = pos
    content, pos = _read_bytes(data, pos)
    whole = b"VB\x00" + data[begin : pos - len(content)] + b"\x00"
    if data.startswith(whole, pos):
        refs += (_BUFFER, content)
        return content, pos + len(whole)
    if data[pos : pos + 2] != b"VB":
        raise Rest
    offset, pos = _read_varint(data, pos + 2)
    size, pos = _read_varint(data, pos)
    flags, pos = _read_varint(data, pos)
    if flags:
        raise Rest  # follows the length of a resizable buffer
    if offset + size > len(content):
        raise _Malformed("a Uint8Array reaches beyond its buffer")
    view = content[offset : offset + size]
    refs += (_BUFFER, view)
    return view, pos


def _read_map(data: bytes, pos: int, refs: list[object], depth: int) -> tuple[dict[object, object], int]:
    items: dict[object, object] = {}
    refs.append(items)
    count = 0
    names = True
    while data[pos] != 0x3A:
        key, pos = _read(data, pos, refs, depth + 1)
        item, pos = _read(data, pos, refs, depth + 1)
        if isinstance(key, (dict, list, set)):
            raise Rest
        names = names and type(key) is str
        items[key] = item
        count += 2
    expected, pos = _read_varint(data, pos + 1)
    if expected != count:
        raise _Malformed(f"a Map of {expected // 2} pairs has {count // 2}")
    if names or count != 2 * len(items):
        raise Rest  # a dict of strings is an Object; 1, 1n and true are different keys of a Map, and one key of a dict
    return items, pos


def _read_set(data: bytes, pos: int, refs: list[object], depth: int) -> tuple[set[object], int]:
    items: set[object] = set()
    refs.append(items)
    count = 0
    while data[pos] != 0x2C:
        item, pos = _read(data, pos, refs, depth + 1)
        if isinstance(item, (dict, list, set)):
            raise Rest
        items.add(item)
        count += 1
    expected, pos = _read_varint(data, pos + 1)
    if expected != count:
        raise _Malformed(f"a Set of {expected} has {count}")
    if count != len(items):
        raise Rest
    return items, pos
