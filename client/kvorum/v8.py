"""V8's structured-clone format, as far as plain data needs it: the form in which values and messages are stored.

Deno and Node read what this writes, and this reads what they write. `v8serialize` knows the whole format but takes more
than 100 µs for a small dict, so everything that is data is done here, and what is left (RegExp, Error, typed arrays,
sparse arrays, boxed primitives, cyclic structures, Maps and Sets that no dict or set can hold) is handed to
`kvorum.v8_rest`, value by value.

The rule of writing: what is read back equals what was written, or it is refused. Hence no tuples (they would come back
as lists) and no naive datetimes. The one loss is documented: a float of integral value from 2^31 to 2^53 comes back as
an equal int, because JavaScript stores large integers in that form.

Writing appends to one buffer, because the format aligns two-byte strings to absolute positions. Reading passes
`(value, position)` around; a class with a cursor costs twice as much. Errors collect their path while they unwind:
`try` is free in the normal case, carrying a path along is not. Rejected: a table of functions by tag (a chain of `if`
in order of frequency is faster for small values).

Back references count all objects in the order in which they begin, as V8 does, so `refs` gets an element wherever
V8's deserialiser assigns an id.
"""

import struct
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from kvorum.errors import DataError, InvalidValue, LimitExceeded
from kvorum.limits import MAX_VALUE_DEPTH, MAX_VALUE_SIZE

HEADER: Final = b"\xff\x0f"
"""What is written; Node up to 26 and Deno before 2.8 read nothing newer."""
READABLE: Final = (15, 16)
"""Version 16 differs in nothing that a value under 4 GiB could show."""
MAX_EXACT: Final = 1 << 53
MAX_ENCODED: Final = 1 << 20
"""Bytes at which writing is given up, long after the limit of a value: shared lists can grow without bound."""

_DOUBLE: Final = struct.Struct("<d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SMALL_INTS: Final = tuple(bytes((0x49, number << 1)) for number in range(64))
_SHORT: Final = tuple(bytes((0x22, size)) for size in range(128))
_BUFFER: Final = object()
"""Stands in `refs` for an ArrayBuffer whose view is what counts."""


class Rest(Exception):
    """Not for this module: the whole value has to be done by `kvorum.v8_rest`."""


# ---------------------------------------------------------------------- writing


def dumps(value: object, name: str = "value") -> bytes:
    """The V8 bytes of a value; `name` begins the path in messages.

    Errors: InvalidValue, with the path to the part that cannot be represented; LimitExceeded for values so large that
    encoding them was given up. The caller judges the size of the result.
    """
    out = bytearray(HEADER)
    try:
        _write(out, value, 1)
    except Rest:
        from kvorum import v8_rest

        return v8_rest.dumps(value, name)
    except Refused as refused:
        raise refused.as_error(name) from None
    except RecursionError:
        raise InvalidValue("nested too deeply", name) from None
    return bytes(out)


class Refused(Exception):
    """A part that cannot be represented; its path is put together from the inside out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def as_error(self, name: str) -> InvalidValue:
        return InvalidValue(self.problem, name + "".join(reversed(self.path)))


def key_step(key: object) -> str:
    """How a path shows a step into a dict."""
    text = repr(key)
    return f"[{text if len(text) <= 40 else text[:37] + '...'}]"


def _write(out: bytearray, value: object, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _write_str(out, value)  # type: ignore[arg-type]
    elif kind is int:
        _write_int(out, value)  # type: ignore[arg-type]
    elif value is None:
        out.append(0x30)
    elif value is True:
        out.append(0x54)
    elif value is False:
        out.append(0x46)
    elif kind is float:
        out.append(0x4E)
        out += _DOUBLE.pack(value)
    elif kind is dict:
        _write_dict(out, value, depth)  # type: ignore[arg-type]
    elif kind is list:
        _write_list(out, value, depth)  # type: ignore[arg-type]
    else:
        _write_other(out, value, depth)


def _write_str(out: bytearray, text: str) -> None:
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError:
        data = encode_utf16(text)
        size = varint(len(data))
        if len(out) + 1 + len(size) & 1:
            out.append(0)  # readers expect the characters at an even position
        out.append(0x63)
        out += size
    else:
        size_of = len(data)
        if size_of < 128:
            out += _SHORT[size_of]
        else:
            out.append(0x22)
            out += varint(size_of)
    out += data


def encode_utf16(text: str) -> bytes:
    """UTF-16 as JavaScript keeps it, lone surrogates included."""
    try:
        return text.encode("utf-16-le")
    except UnicodeEncodeError:
        data = text.encode("utf-16-le", "surrogatepass")
        if data.decode("utf-16-le", "surrogatepass") != text:
            raise Refused("a surrogate pair as two characters would come back as one") from None
        return data


def _write_int(out: bytearray, number: int) -> None:
    if 0 <= number < 64:
        out += _SMALL_INTS[number]
    elif -0x8000_0000 <= number <= 0x7FFF_FFFF:
        out.append(0x49)
        out += varint((number << 1) ^ (number >> 31))
    elif -MAX_EXACT <= number <= MAX_EXACT:
        out.append(0x4E)
        out += _DOUBLE.pack(number)
    else:
        magnitude = abs(number)
        size = (magnitude.bit_length() + 63) // 64 * 8
        out.append(0x5A)
        out += varint(size << 1 | (number < 0))
        out += magnitude.to_bytes(size, "little")


def varint(number: int) -> bytes:
    """Little-endian groups of 7 bits."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _write_list(out: bytearray, items: list[object], depth: int) -> None:
    _check_size(out, depth)
    size = varint(len(items))
    out.append(0x41)
    out += size
    done = 0
    try:
        for item in items:
            _write(out, item, depth + 1)
            done += 1
    except Refused as refused:
        refused.path.append(f"[{done}]")
        raise
    out += b"$\x00"
    out += size


def _write_dict(out: bytearray, items: dict[object, object], depth: int) -> None:
    _check_size(out, depth)
    begin = len(out)
    out.append(0x6F)
    key: object = None
    try:
        for key, item in items.items():
            if type(key) is not str and not isinstance(key, str):
                break
            _write_str(out, key)
            if type(item) is str:
                _write_str(out, item)
            else:
                _write(out, item, depth + 1)
        else:
            out.append(0x7B)
            out += varint(len(items))
            return
    except Refused as refused:
        refused.path.append(key_step(key))
        raise
    del out[begin:]
    _write_map(out, items, depth)


def _write_map(out: bytearray, items: dict[object, object], depth: int) -> None:
    out.append(0x3B)
    step = ""
    try:
        for key, item in items.items():
            step = f"{{key {key_step(key)[1:-1]}}}"
            _write(out, key, depth + 1)
            step = key_step(key)
            _write(out, item, depth + 1)
    except Refused as refused:
        refused.path.append(step)
        raise
    out.append(0x3A)
    out += varint(2 * len(items))


def _write_set(out: bytearray, items: frozenset[object] | set[object], depth: int) -> None:
    _check_size(out, depth)
    out.append(0x27)
    item: object = None
    try:
        for item in items:
            _write(out, item, depth + 1)
    except Refused as refused:
        refused.path.append(f"{{{key_step(item)[1:-1]}}}")
        raise
    out.append(0x2C)
    out += varint(len(items))


def _check_size(out: bytearray, depth: int) -> None:
    if depth > MAX_VALUE_DEPTH:
        raise Rest  # a cycle can be written, mere depth is refused there
    if len(out) > MAX_ENCODED:
        raise LimitExceeded("MAX_VALUE_SIZE", MAX_VALUE_SIZE, len(out), "value, given up half-way,")


def _write_other(out: bytearray, value: object, depth: int) -> None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        size = varint(len(data))
        out += b"B" + size + data + b"VB\x00" + size + b"\x00"
    elif isinstance(value, datetime):
        out.append(0x44)
        out += _DOUBLE.pack(date_of(value))
    elif isinstance(value, (set, frozenset)):
        _write_set(out, value, depth)
    elif type(value).__module__.startswith("v8serialize."):
        raise Rest
    elif isinstance(value, (int, float, str, dict, list)):
        _write_subclass(out, value, depth)
    else:
        refuse(value)


def _write_subclass(out: bytearray, value: int | float | str | dict[object, object] | list[object], depth: int) -> None:
    """Enumerations, default dicts and the like are written as what they are derived from, and equal it."""
    if isinstance(value, int):
        if type(value).__name__ == "KvU64":
            refuse(value)
        _write_int(out, int(value))
    elif isinstance(value, float):
        out.append(0x4E)
        out += _DOUBLE.pack(value)
    elif isinstance(value, str):
        _write_str(out, value)
    elif isinstance(value, dict):
        _write_dict(out, value, depth)
    else:
        _write_list(out, value, depth)


def refuse(value: object) -> NoReturn:
    """Say what is wrong with a value of a type that cannot be stored, and what to do instead."""
    name = type(value).__name__
    if name == "KvU64":
        raise Refused("a KvU64 can only be a value of its own, not a part of one; store int(…) here")
    if isinstance(value, tuple):
        raise Refused("a tuple would come back as a list; store a list")
    raise Refused(f"{name} cannot be stored")


def date_of(moment: datetime) -> float:
    """Milliseconds since 1970. Microseconds are kept as a fraction, which JavaScript cuts off."""
    if moment.utcoffset() is None:
        raise Refused("a datetime needs a time zone")
    number = (moment - _EPOCH) / _MICROSECOND / 1000
    if moment_of(number) != moment:
        raise Refused("a datetime this far from 1970 cannot have microseconds")
    return number


def moment_of(number: float) -> datetime:
    """The moment of a Date. Errors: ValueError or OverflowError outside the years 1 … 9999, and for an invalid Date."""
    whole, fraction = divmod(number, 1.0)
    return _EPOCH + timedelta(milliseconds=whole, microseconds=round(fraction * 1000))


# ---------------------------------------------------------------------- reading


def loads(data: bytes) -> object:
    """The value of V8 bytes. `undefined` is read as None, Map as dict, Uint8Array as bytes, Date as a datetime in UTC.

    What plain types cannot hold, or would write back as something else (a Map of strings, which would become an
    Object), comes as the types of `v8serialize.jstypes`. Errors: DataError.
    """
    if len(data) < 3 or data[0] != 0xFF or data[1] not in READABLE:
        raise DataError("this value cannot be decoded: it is not version 15 or 16 of V8's format")
    try:
        return _read(data, 2, [], 1)[0]
    except Rest:
        from kvorum import v8_rest

        return v8_rest.loads(data)
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
        return number_of(_DOUBLE.unpack_from(data, pos)[0]), pos + 8
    if tag == 0x54:  # T
        return True, pos
    if tag == 0x46:  # F
        return False, pos
    if tag in (0x30, 0x5F):  # 0 null, _ undefined
        return None, pos
    return _read_other(data, tag, pos, refs, depth)


def number_of(number: float) -> int | float:
    """A JS Number: large integers are stored as doubles."""
    if (0x8000_0000 <= number <= MAX_EXACT or -MAX_EXACT <= number <= -0x8000_0000) and number.is_integer():
        return int(number)
    return number


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
            name, pos = _read(data, pos, refs, depth)
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
            moment = moment_of(_DOUBLE.unpack_from(data, pos)[0])
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
    content, pos = _read_bytes(data, pos)
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
