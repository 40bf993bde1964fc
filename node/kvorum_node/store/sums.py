"""Arithmetic on stored values: SUM, MIN and MAX as KV Connect has them, ADD as Python users mean it.

Pure functions from operands and the stored value to the new value. Of the V8 format only what a number needs is known
here: header 15 or 16, and the tags I (int32, zigzag), U (uint32), N (double) and Z (bigint). A `float` stands for a JS
Number and an `int` for a BigInt; results are written with header 15, Numbers always as doubles, as the stock engine
does.
"""

import math
import struct
from typing import Final, NamedTuple, NoReturn

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_VALUE_SIZE

from .errors import Refused

V8: Final = int(pb.VALUE_ENCODING_V8)
LE64: Final = int(pb.VALUE_ENCODING_LE64)

SUM: Final = int(pb.MUTATION_TYPE_SUM)
MAX: Final = int(pb.MUTATION_TYPE_MAX)
MIN: Final = int(pb.MUTATION_TYPE_MIN)
ADD: Final = int(pb.MUTATION_TYPE_ADD)

_NAMES: Final = {SUM: "sum", MAX: "max", MIN: "min"}
_U64: Final = (1 << 64) - 1
_INT32: Final = 1 << 31
_EXACT: Final = 1 << 53
_DOUBLE: Final = struct.Struct("<d")

NOT_V8: Final = "Some of the parameters are not valid V8 values"
BOUNDS_DIFFER: Final = "Min/max parameters have different types than the operand"
OUT_OF_RANGE: Final = "The result of a Sum operation would exceed its range limit"
UNSUPPORTED: Final = "unsupported value type"


class Operand(NamedTuple):
    """What a mutation brings along."""

    value: bytes
    encoding: int
    minimum: bytes = b""
    """V8 number or bigint; empty = none."""
    maximum: bytes = b""
    clamp: bool = False


class Stored(NamedTuple):
    """The value that is there now."""

    encoding: int
    value: bytes


def combine(kind: int, operand: Operand, stored: Stored | None) -> tuple[int, bytes]:
    """Encoding and value that a SUM, MIN, MAX or ADD leaves behind; raises Refused with TYPE_ERROR or RANGE_ERROR."""
    if kind == ADD:
        return _add(operand, stored)
    if operand.encoding == LE64:
        return _u64(kind, operand, stored)
    if kind != SUM:
        _mismatch(f"Failed to perform '{_NAMES[kind]}' mutation on a non-U64 operand")
    return _v8_sum(operand, stored)


def check_operand(kind: int, operand: Operand) -> None:
    """Refuse what can be refused without the stored value; raises Refused with TYPE_ERROR."""
    if kind == ADD:
        addend(operand)
        _bound(operand.minimum)
        _bound(operand.maximum)
    elif operand.encoding == LE64:
        _u64_operand(kind, operand)
    elif kind != SUM:
        _mismatch(f"Failed to perform '{_NAMES[kind]}' mutation on a non-U64 operand")
    else:
        _v8_operands(operand)


def _mismatch(message: str) -> NoReturn:
    raise Refused(int(pb.OUTCOME_TYPE_ERROR), message)


def _beyond() -> NoReturn:
    raise Refused(int(pb.OUTCOME_RANGE_ERROR), OUT_OF_RANGE)


# ---- the V8 format


def parse_number(data: bytes) -> int | float | None:
    """A BigInt as int, a Number as float; None = something else, or malformed."""
    if len(data) < 3 or data[0] != 0xFF or data[1] not in (15, 16):
        return None
    tag, body = data[2], data[3:]
    if tag == 0x4E:  # N
        return float(_DOUBLE.unpack(body)[0]) if len(body) == 8 else None
    head = _varint(body)
    if head is None:
        return None
    number, size = head
    if tag == 0x5A:  # Z: bit 0 = sign, the rest = number of bytes, times 2
        if number > 0xFFFFFFFF or len(body) - size != number >> 1:
            return None
        magnitude = int.from_bytes(body[size:], "little")
        return -magnitude if number & 1 else magnitude
    if size != len(body) or number > 0xFFFFFFFF:
        return None
    if tag == 0x55:  # U
        return float(number)
    if tag == 0x49:  # I
        return float((number >> 1) ^ -(number & 1))
    return None


def _varint(data: bytes) -> tuple[int, int] | None:
    """Value and size of the varint that `data` begins with."""
    number = 0
    for at, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return number, at + 1
    return None


def emit_number(number: int | float) -> bytes:
    """V8 bytes of a BigInt (int) or Number (float)."""
    if isinstance(number, float):
        return b"\xff\x0fN" + _DOUBLE.pack(number)
    magnitude = abs(number)
    size = (magnitude.bit_length() + 63) // 64 * 8
    head = size << 1 | (number < 0)
    encoded = bytearray(b"\xff\x0fZ")
    while head >= 0x80:
        encoded.append(head & 0x7F | 0x80)
        head >>= 7
    encoded.append(head)
    return bytes(encoded) + magnitude.to_bytes(size, "little")


# ---- KV Connect: unsigned 64-bit operands


def _u64_operand(kind: int, operand: Operand) -> int:
    if len(operand.value) != 8:
        _mismatch(f"Failed to perform '{_NAMES.get(kind, 'sum')}' mutation on a non-U64 operand")
    return int.from_bytes(operand.value, "little")


def _u64(kind: int, operand: Operand, stored: Stored | None) -> tuple[int, bytes]:
    number = _u64_operand(kind, operand)
    if stored is None:
        return LE64, operand.value
    if stored.encoding != LE64 or len(stored.value) != 8:
        _mismatch(f"Failed to perform '{_NAMES[kind]}' mutation on a non-U64 value in the database")
    current = int.from_bytes(stored.value, "little")
    if kind == SUM:
        result = (current + number) & _U64
    else:
        result = max(current, number) if kind == MAX else min(current, number)
    return LE64, result.to_bytes(8, "little")


# ---- KV Connect: V8 operands


def _v8_operands(operand: Operand) -> tuple[int | float, int | float | None, int | float | None]:
    """Operand, minimum and maximum, all of one type."""
    number = parse_number(operand.value) if operand.encoding == V8 else None
    if number is None:
        _mismatch(NOT_V8)
    bounds: list[int | float | None] = []
    for data in (operand.minimum, operand.maximum):
        bound = parse_number(data) if data else None
        if data and bound is None:
            _mismatch(NOT_V8)
        if bound is not None and type(bound) is not type(number):
            _mismatch(BOUNDS_DIFFER)
        bounds.append(bound)
    return number, bounds[0], bounds[1]


def _v8_sum(operand: Operand, stored: Stored | None) -> tuple[int, bytes]:
    number, minimum, maximum = _v8_operands(operand)
    if stored is None:
        return V8, operand.value
    if stored.encoding == LE64:
        bounded = operand.minimum or operand.maximum or operand.clamp
        if isinstance(number, float):
            _mismatch("Cannot sum KvU64 with Number")
        if bounded or not 0 <= number <= _U64:
            _mismatch("Cannot sum KvU64 with BigInt")
        current = int.from_bytes(stored.value, "little")
        return LE64, ((current + number) & _U64).to_bytes(8, "little")
    current_number = _stored_number(stored)
    if type(current_number) is not type(number):
        _mismatch(f"Cannot sum {_kind(current_number)} with {_kind(number)}")
    return V8, _emit_bounded(_within(current_number + number, minimum, maximum, operand.clamp))


def _stored_number(stored: Stored) -> int | float:
    number = parse_number(stored.value) if stored.encoding == V8 else None
    if number is None:
        _mismatch(UNSUPPORTED)
    return number


def _kind(number: int | float) -> str:
    return "Number" if isinstance(number, float) else "BigInt"


def _within(result: int | float, minimum: int | float | None, maximum: int | float | None, clamp: bool) -> int | float:
    """The result, clamped or refused where it leaves its bounds."""
    for bound, beyond in (
        (minimum, minimum is not None and result < minimum),
        (maximum, maximum is not None and result > maximum),
    ):
        if beyond and bound is not None:
            if not clamp:
                _beyond()
            result = bound
    return result


def _emit_bounded(number: int | float) -> bytes:
    value = emit_number(number)
    if len(value) > MAX_VALUE_SIZE:  # a bigint that grew bit by bit
        _beyond()
    return value


# ---- ADD: the stored kind decides


def _reads_as_int(data: bytes) -> bool:
    """Whether Python's codec reads these bytes of a Number as an int: int32 and uint32 tags, and the doubles in which
    JavaScript stores larger integers."""
    if data[2] != 0x4E:
        return True
    number = float(_DOUBLE.unpack(data[3:])[0])
    return _INT32 <= abs(number) <= _EXACT and number.is_integer()


def _emit_integral(number: float) -> bytes:
    """V8 bytes of an integral Number, so that Python reads an int again: JavaScript sees no difference."""
    if not -_INT32 <= number < _INT32:
        return emit_number(number)
    integer = int(number)
    zigzag = integer << 1 if integer >= 0 else (-integer << 1) - 1
    encoded = bytearray(b"\xff\x0fI")
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def addend(operand: Operand) -> int | float:
    """The operand as Python sees it: an integral number is an int, whatever its encoding.

    The wire cannot tell a Python int above 2^31 from a float of the same value (both are doubles), so all integral
    numbers are taken alike.
    """
    if operand.encoding == LE64:
        return _u64_operand(ADD, operand)
    number = parse_number(operand.value) if operand.encoding == V8 else None
    if number is None:
        _mismatch(NOT_V8)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _bound(data: bytes) -> int | float | None:
    if not data:
        return None
    bound = parse_number(data)
    if bound is None or bound != bound:  # NaN bounds nothing
        _mismatch(NOT_V8)
    return bound


def _add(operand: Operand, stored: Stored | None) -> tuple[int, bytes]:
    number = addend(operand)
    minimum, maximum = _bound(operand.minimum), _bound(operand.maximum)
    clamp = operand.clamp
    if stored is None and isinstance(number, float):
        return V8, emit_number(_add_number(0.0, number, minimum, maximum, clamp))
    if stored is None or stored.encoding == LE64:
        if isinstance(number, float):
            _mismatch("Cannot sum KvU64 with Number")
        current = 0 if stored is None else int.from_bytes(stored.value, "little")
        low = _at_least(minimum)
        high = _at_most(maximum)
        result = _within_int(
            current + number, 0 if low is None else max(low, 0), _U64 if high is None else min(high, _U64), clamp
        )
        return LE64, result.to_bytes(8, "little")
    stored_number = _stored_number(stored)
    if isinstance(stored_number, float):
        total = _add_number(stored_number, number, minimum, maximum, clamp)
        # int + int = int, as Python users expect of a counter that began as a plain number
        integral = isinstance(number, int) and total.is_integer() and _reads_as_int(stored.value)
        return V8, _emit_integral(total) if integral else emit_number(total)
    if isinstance(number, float):
        _mismatch("Cannot sum BigInt with Number")
    return V8, _emit_bounded(_within_int(stored_number + number, _at_least(minimum), _at_most(maximum), clamp))


def _add_number(
    current: float, number: int | float, minimum: int | float | None, maximum: int | float | None, clamp: bool
) -> float:
    try:
        result = _within(current + float(number), minimum, maximum, clamp)
        return float(result)
    except OverflowError:  # a bigint beyond the range of a double, as operand or bound
        _beyond()


def _at_least(bound: int | float | None) -> int | None:
    """The lowest int that a lower bound allows; None = unbounded."""
    if bound is None or bound == -math.inf:
        return None
    if bound == math.inf:
        _beyond()
    return math.ceil(bound)


def _at_most(bound: int | float | None) -> int | None:
    """The highest int that an upper bound allows; None = unbounded."""
    if bound is None or bound == math.inf:
        return None
    if bound == -math.inf:
        _beyond()
    return math.floor(bound)


def _within_int(result: int, low: int | None, high: int | None, clamp: bool) -> int:
    """Like `_within`; bounds that exclude each other allow nothing, clamped or not."""
    if low is not None and high is not None and low > high:
        _beyond()
    if low is not None and result < low:
        if not clamp:
            _beyond()
        return low
    if high is not None and result > high:
        if not clamp:
            _beyond()
        return high
    return result
