"""Values: what a Python value is stored as, and back.

`bytes` at the top level are stored raw, a `KvU64` as 8 bytes that `sum` works on, and all else in V8's format, see
`kvorum.v8`. So Deno and Node read what Python writes and the other way round.
"""

from typing import Any, Final

from kvorum import v8
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import DataError, InvalidValue, LimitExceeded
from kvorum.kvu64 import KvU64, pack_u64, unpack_u64
from kvorum.limits import MAX_VALUE_SIZE

V8: Final = int(pb.VALUE_ENCODING_V8)
LE64: Final = int(pb.VALUE_ENCODING_LE64)
BYTES: Final = int(pb.VALUE_ENCODING_BYTES)


def encode_value(value: object) -> tuple[bytes, int]:
    """Stored bytes and their encoding, one of V8, LE64 and BYTES.

    Errors: InvalidValue, with the path to the part that cannot be stored; LimitExceeded (MAX_VALUE_SIZE).
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        encoding = BYTES
    elif type(value) is not str and isinstance(value, KvU64):
        return pack_u64(value), LE64
    else:
        data = v8.dumps(value)
        encoding = V8
    if len(data) > MAX_VALUE_SIZE:
        raise LimitExceeded("MAX_VALUE_SIZE", MAX_VALUE_SIZE, len(data), "value")
    return data, encoding


def decode_value(data: bytes, encoding: int) -> Any:
    """The value of stored bytes. Errors: DataError."""
    if encoding == V8:
        return v8.loads(data)
    if encoding == BYTES:
        return data
    if encoding == LE64:
        try:
            return unpack_u64(data)
        except ValueError as problem:
            raise DataError(str(problem)) from None
    raise DataError(f"the value encoding {encoding} is unknown")


def encode_payload(value: object) -> bytes:
    """A message's bytes: always V8, so `bytes` at the top level are a Uint8Array. Errors: as `encode_value`."""
    data = v8.dumps(value, "payload")
    if len(data) > MAX_VALUE_SIZE:
        raise LimitExceeded("MAX_VALUE_SIZE", MAX_VALUE_SIZE, len(data), "payload")
    return data


def decode_payload(data: bytes) -> Any:
    """The value of a message's bytes. Errors: DataError."""
    return v8.loads(data)


def encode_number(number: int | float, name: str = "operand") -> bytes:
    """The V8 bytes of an operand or a bound of a sum. Errors: InvalidValue; LimitExceeded (MAX_VALUE_SIZE)."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise InvalidValue(f"a sum needs an int or a float, got {type(number).__name__}", name)
    if number != number:
        raise InvalidValue("a sum cannot work on NaN", name)
    data = v8.dumps(int(number) if isinstance(number, int) else float(number), name)
    if len(data) > MAX_VALUE_SIZE:
        raise LimitExceeded("MAX_VALUE_SIZE", MAX_VALUE_SIZE, len(data), name)
    return data
