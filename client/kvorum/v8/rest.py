"""The V8 values that `kvorum.v8` leaves alone, by way of `v8serialize`. Loaded when the first one turns up.

Both modules must agree on what plain data looks like, since a value is always done by one of them as a whole: the same
int and float rules, Objects and Arrays as dict and list, and so on. So plain types are handled by a step of our own in
front of the library's, and what it read is turned into plain types where they can hold it. Cycles and shared objects
survive, as back references.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any, Final

import v8serialize
from v8serialize.constants import SerializationTag
from v8serialize.decode import DecodeContext, DecodeNextFn, TagReader
from v8serialize.encode import (
    DefaultEncodeContext,
    EncodeContext,
    EncodeNextFn,
    TagWriter,
    WritableTagStream,
)
from v8serialize.extensions import NodeJsArrayBufferViewHostObjectHandler
from v8serialize.jstypes import (
    JSArray,
    JSArrayBuffer,
    JSBigInt,
    JSErrorData,
    JSHole,
    JSMap,
    JSObject,
    JSRegExp,
    JSSet,
    JSUint8Array,
    JSUndefined,
)

from kvorum.errors import DataError, InvalidValue
from kvorum.kvu64 import KvU64
from kvorum.limits import MAX_RARE_VALUE_DEPTH, MAX_VALUE_DEPTH
from kvorum.v8.format import HEADER, MAX_EXACT, Refused, date_of, moment_of, number_of
from kvorum.v8.writing import STORABLE, encode_utf16, key_step, refuse, varint

_MALFORMED: Final = (
    v8serialize.V8SerializeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    struct.error,
)
"""What `v8serialize` raises for bytes that are no value."""
_BUFFERS: Final = (SerializationTag.kArrayBuffer, SerializationTag.kResizableArrayBuffer)
_OF_A_PROCESS: Final = (
    SerializationTag.kSharedArrayBuffer,
    SerializationTag.kArrayBufferTransfer,
    SerializationTag.kSharedObject,
)
"""Tags that refer to what another process holds in memory; no program can store them."""
_DENO_HOST: Final = b"\xff\xff\xff\xff\x0f"
"""How Deno begins its host objects; those of Node begin with the number of a type of views."""


# ---------------------------------------------------------------------- writing


def dumps(value: object, name: str) -> bytes:
    """See `kvorum.v8.dumps`."""
    _check(value, name)
    try:
        stream = _Stream()
        stream.write_header()
        steps = (_write_reference, _write_plain, TagWriter())
        DefaultEncodeContext(steps, stream=stream).encode_object(value)
        return bytes(stream.data)
    except Refused as refused:
        raise refused.as_error(name) from None
    except RecursionError:
        raise InvalidValue("nested too deeply", name) from None
    except (v8serialize.V8SerializeError, ValueError, TypeError) as problem:
        raise InvalidValue(f"cannot be stored: {problem}", name) from problem


def _check(root: object, name: str) -> None:
    """Depth and types, before anything is written, so that errors have a path. Each object is visited once."""
    seen: set[int] = set()
    todo: list[tuple[object, str, int]] = [(root, name, 1)]
    while todo:
        value, path, depth = todo.pop()
        if isinstance(value, (tuple, KvU64)):
            try:
                refuse(value)
            except Refused as refused:
                raise refused.as_error(path) from None
        children = _children(value, path)
        if children is None:
            _check_leaf(value, path)
            continue
        if id(value) in seen:
            continue
        if depth > MAX_VALUE_DEPTH:
            raise InvalidValue(f"nested more than {MAX_VALUE_DEPTH} deep", name)
        seen.add(id(value))
        todo.extend((child, step, depth + 1) for child, step in children)


def _children(value: object, path: str) -> Iterator[tuple[object, str]] | None:
    """Parts of a container with their paths; None for everything else."""
    if isinstance(value, Mapping):
        return (
            pair
            for key, item in value.items()
            if not (item is JSHole and isinstance(value, JSArray))
            for pair in ((key, f"{path}{{key {key_step(key)[1:-1]}}}"), (item, path + key_step(key)))
        )
    if isinstance(value, Set):
        return ((item, f"{path}{{{key_step(item)[1:-1]}}}") for item in value)
    if isinstance(value, list):
        return ((item, f"{path}[{at}]") for at, item in enumerate(value) if item is not JSHole)
    return None


def _check_leaf(value: object, path: str) -> None:
    if value is JSHole:
        raise InvalidValue("a hole can only stand in an array", path)
    known = value is None or isinstance(value, (str, int, float, bytes, bytearray, memoryview, datetime))
    if not known and not type(value).__module__.startswith("v8serialize."):
        raise InvalidValue(f"{type(value).__name__} cannot be stored; {STORABLE}", path)


def _write_reference(value: object, /, ctx: EncodeContext, next: EncodeNextFn) -> None:
    """Objects that were written before, by identity. The library's own step goes by equality: it makes -0.0 of a 0.0
    that comes later, and one object of two.
    """
    stream = ctx.stream
    assert isinstance(stream, _Stream)
    if value in stream.objects:
        stream.write_object_reference(obj=value)
        return
    if stream.depth > MAX_RARE_VALUE_DEPTH:
        raise Refused(f"nested more than {MAX_RARE_VALUE_DEPTH} deep, with parts that are no plain data")
    stream.depth += 1
    next(value)
    stream.depth -= 1


def _write_plain(value: object, /, ctx: EncodeContext, next: EncodeNextFn) -> None:
    """Plain types as `kvorum.v8` writes them."""
    stream = ctx.stream
    if isinstance(value, (bool, type(None))) or type(value).__module__.startswith("v8serialize."):
        next(value)
    elif isinstance(value, int):
        number = int(value)  # of an enumeration, say: the library looks for others in a range, one by one
        if -0x8000_0000 <= number <= 0x7FFF_FFFF:
            stream.write_int32(number)
        elif abs(number) <= MAX_EXACT:
            stream.write_double(number)
        else:
            stream.write_bigint(number)
    elif isinstance(value, float):
        stream.write_double(float(value))
    elif isinstance(value, str):
        _write_string(value, stream)
    elif isinstance(value, datetime):
        stream.objects.record_reference(value)
        stream.write_tag(SerializationTag.kDate)
        stream.write_double(date_of(value), tag=None)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        next(JSUint8Array(JSArrayBuffer(bytes(value))))
    elif isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            stream.write_js_object(value.items(), ctx=ctx, identity=value)
        else:
            stream.write_jsmap(value.items(), ctx=ctx, identity=value)
    elif isinstance(value, list):
        stream.write_js_array_dense(value, ctx=ctx, identity=value, properties=None)
    elif isinstance(value, (set, frozenset)):
        stream.write_jsset(value, ctx=ctx, identity=value)
    else:
        next(value)


class _Stream(WritableTagStream):
    """Two habits of the library's are mended. Strings within RegExp, Error and boxed String objects are written as V8
    writes them, not as UTF-8, which has no lone surrogates. And every object takes a number, as V8 gives them out: the
    library forgets RegExps and Errors, so that references behind one would lead to another object.
    """

    depth = 0
    """Values that are being written, within each other."""

    def write_string_utf8(self, value: str, *, tag: object = None) -> None:
        _write_string(value, self)

    def write_js_regexp(self, regexp: JSRegExp, *, identity: object | None = None) -> None:
        self.objects.record_reference(regexp)
        super().write_js_regexp(regexp, identity=identity)

    def write_js_error(self, error: Any, ctx: EncodeContext, *, identity: object | None = None) -> None:
        if error.cause is None:
            self.objects.record_reference(error)
        super().write_js_error(error, ctx, identity=identity)


def _write_string(value: str, stream: WritableTagStream) -> None:
    """Two-byte strings not by the library: it refuses lone surrogates."""
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError:
        data = encode_utf16(value)
        size = varint(len(data))
        if len(stream.data) + 1 + len(size) & 1:
            stream.data.append(0)
        stream.write_tag(SerializationTag.kTwoByteString)
    else:
        size = varint(len(data))
        stream.write_tag(SerializationTag.kOneByteString)
    stream.data += size + data


# ---------------------------------------------------------------------- reading


def loads(data: bytes) -> object:
    """See `kvorum.v8.loads`; the header was checked there."""
    reader = TagReader(
        jsmap_type=_WholeMap,
        jsset_type=_WholeSet,
        js_primitive_objects=True,
        host_object_deserializer=NodeJsArrayBufferViewHostObjectHandler(),
        default_timezone=UTC,
    )
    try:
        found = v8serialize.loads(HEADER + data[2:], decode_steps=(_read_plain, reader))
        if found is JSHole:
            raise _Unreadable("it is a hole without an array")
        return _Plain().convert(found)
    except RecursionError:
        raise DataError("this value cannot be decoded: it is nested too deeply") from None
    except _Unreadable as problem:
        raise DataError(f"this value cannot be decoded: {problem}") from None
    except _MALFORMED as problem:
        text = getattr(problem, "message", None) or f"{type(problem).__name__}: {problem}"
        raise DataError(f"this value cannot be decoded: {text}") from None


def _read_plain(tag: SerializationTag, /, ctx: DecodeContext, next: DecodeNextFn) -> object:
    """Numbers, dates and strings as `kvorum.v8` reads them."""
    stream = ctx.stream
    if tag is SerializationTag.kDouble:
        return number_of(stream.read_double())
    if tag is SerializationTag.kDate:
        try:
            moment = moment_of(stream.read_double())
        except (ValueError, OverflowError):
            raise _Unreadable("a Date is invalid or outside the years 1 to 9999") from None
        stream.objects.record_reference(moment)
        return moment
    if tag is SerializationTag.kTwoByteString:
        size = stream.read_varint()
        return bytes(stream.read_bytes(size)).decode("utf-16-le", "surrogatepass")
    if tag in _BUFFERS:
        buffer = next(tag)
        ahead = stream.pos
        while ahead < len(stream.data) and stream.data[ahead] == 0:
            ahead += 1
        if ahead > stream.pos and stream.data[ahead : ahead + 1] == b"V":
            raise _Unreadable("there is padding between a buffer and its view")  # V8 would read one, and writes none
        return buffer
    if tag in _OF_A_PROCESS:
        raise _Unreadable(f"{tag.name} means nothing outside of the process that wrote it")
    if tag is SerializationTag.kHostObject:
        if bytes(stream.data[stream.pos : stream.pos + len(_DENO_HOST)]) == _DENO_HOST:
            raise _Unreadable("it holds a Blob, File, CryptoKey or DOMException")
        # V8 counts it, the library does not: every reference behind it would lead to another object.
        view = next(tag)
        stream.objects.record_reference(view)
        return view
    return next(tag)


class _Unreadable(Exception):
    """Python has nothing of the kind; says of what."""


_MERGED: Final = "a Map or Set holds the same number also as a BigInt"


class _WholeMap(JSMap[object, object]):
    """Notices that it lost a pair: the library's Map follows JavaScript's rules except that it takes 1n for 1."""

    def update(self, pairs: Iterable[tuple[object, object]]) -> None:  # type: ignore[override]
        count = 0
        for key, item in pairs:
            self[key] = item
            count += 1
        if count != len(self):
            raise _Unreadable(_MERGED)


class _WholeSet(JSSet[object]):
    """Notices that it lost an element, like `_WholeMap`."""

    def __ior__(self, items: Iterable[object]) -> "_WholeSet":
        count = 0
        for item in items:
            self.add(item)
            count += 1
        if count != len(self):
            raise _Unreadable(_MERGED)
        return self


class _Plain:
    """Turns the library's containers into plain ones, each object once, so that cycles stay cycles."""

    def __init__(self) -> None:
        self._done: dict[int, object] = {}

    def convert(self, value: object) -> object:
        """The plain form of a value, or the value itself."""
        if value is JSUndefined:
            return None
        if isinstance(value, JSUint8Array):
            return _content(value)
        if isinstance(value, JSBigInt):
            return int(value)
        if not isinstance(value, (JSObject, JSMap, JSSet, JSErrorData)):
            return value
        known = self._done.get(id(value))
        if known is not None:
            return known
        if isinstance(value, JSErrorData):
            self._done[id(value)] = value
            value.cause = self.convert(value.cause)
            return value
        if isinstance(value, JSArray):
            return self._array(value)
        if isinstance(value, JSObject):
            made: dict[str, object] = {}
            self._done[id(value)] = made
            for key, item in value.items():
                made[str(key)] = self.convert(item)
            return made
        return self._map(value) if isinstance(value, JSMap) else self._set(value)

    def _array(self, array: JSArray[object]) -> object:
        if array.properties or any(item is JSHole for item in array.array):
            self._done[id(array)] = array
            for key, item in list(array.items()):
                array[key] = self.convert(item)
            return array
        made: list[object] = []
        self._done[id(array)] = made
        made.extend(self.convert(item) for item in array.array)
        return made

    def _map(self, pairs: JSMap[object, object]) -> object:
        made: dict[object, object] | JSMap[object, object]
        keys = [_plain_key(key) for key in pairs]
        made = {} if _fit(keys) and not all(isinstance(key, str) for key in keys) else JSMap()
        self._done[id(pairs)] = made
        for key, item in pairs.items():
            made[self._member(key, made)] = self.convert(item)
        return made

    def _set(self, items: JSSet[object]) -> object:
        made: set[object] | JSSet[object]
        made = set() if _fit([_plain_key(item) for item in items]) else JSSet()
        self._done[id(items)] = made
        for item in items:
            made.add(self._member(item, made))
        return made

    def _member(self, key: object, made: object) -> object:
        """Where 1 and 1n may be two keys, a BigInt stays one; likewise undefined, and views, which are keys by identity
        there."""
        if (isinstance(key, (JSBigInt, JSUint8Array)) or key is JSUndefined) and isinstance(made, (JSMap, JSSet)):
            return key
        return self.convert(key)


def _plain_key(key: object) -> object:
    if key is JSUndefined:
        return None
    return _content(key) if isinstance(key, JSUint8Array) else key


def _fit(keys: Collection[object]) -> bool:
    """Whether a dict or set can hold these keys without loss: plain values, no two of them equal for Python."""
    kinds = (str, int, float, bytes, datetime, type(None))
    return all(isinstance(key, kinds) for key in keys) and len(set(keys)) == len(keys)


def _content(view: JSUint8Array) -> bytes:
    with view.get_buffer() as buffer:
        return bytes(buffer)
