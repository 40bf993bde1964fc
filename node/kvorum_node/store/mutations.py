"""One mutation of a commit. It writes only after everything that can refuse it was looked at, so that a commit of one
mutation needs no savepoint."""

from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_WRITE_KEY_SIZE

from . import keyspace, sums
from .errors import Refused
from .records import MAX_DURATION, value_of

if TYPE_CHECKING:
    from .entry import Entry

_SET: Final = int(pb.MUTATION_TYPE_SET)
_DELETE: Final = int(pb.MUTATION_TYPE_DELETE)
_SET_SUFFIX: Final = int(pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY)
_ARITHMETIC: Final = frozenset((sums.SUM, sums.MAX, sums.MIN, sums.ADD))
_ENCODINGS: Final = frozenset((int(pb.VALUE_ENCODING_V8), sums.LE64, int(pb.VALUE_ENCODING_BYTES)))
_PLAIN: Final = _ENCODINGS - {sums.LE64}
_INVALID: Final = int(pb.OUTCOME_INVALID)

SUFFIX_SIZE: Final = 22
"""What a versionstamp adds to a key: one more string part."""


def suffixed_key(key: bytes, stamp: bytes) -> bytes:
    """The key under which a SET_SUFFIX_VERSIONSTAMPED_KEY stores: one more string part, the stamp in hexadecimal."""
    return key + b"\x02" + stamp.hex().encode() + b"\x00"


def mutate(entry: "Entry", mutation: pb.Mutation, stamp: bytes, number: int) -> None:
    """Carry out one mutation, the `number`th of the commit `stamp`; raises Refused with nothing changed."""
    key = mutation.key
    kind = mutation.type
    if not 0 < len(key) <= MAX_WRITE_KEY_SIZE:
        raise Refused(_INVALID, "a key is empty or too long")
    if kind == _SET and mutation.encoding in _PLAIN and not mutation.HasField("expire_in_ms"):
        keyspace.write(entry, key, mutation.encoding, mutation.value, stamp)  # the commonest one
    elif kind == _SET:
        _set(entry, mutation, key, stamp, number)
    elif kind == _DELETE:
        keyspace.delete(entry, key)
    elif kind in _ARITHMETIC:
        _combine(entry, mutation, key, stamp)
    elif kind == _SET_SUFFIX:
        full = suffixed_key(key, stamp)
        if len(full) > MAX_WRITE_KEY_SIZE:
            raise Refused(_INVALID, "a key with its versionstamp is too long")
        _set(entry, mutation, full, stamp, number)
        entry.result.changed_keys.append(key)
    else:
        raise Refused(_INVALID, "unknown mutation type")


def _set(entry: "Entry", mutation: pb.Mutation, key: bytes, stamp: bytes, number: int) -> None:
    encoding = mutation.encoding
    value = mutation.value
    if encoding not in _ENCODINGS or (encoding == sums.LE64 and len(value) != 8):
        raise Refused(_INVALID, "unknown value encoding")
    if not mutation.HasField("expire_in_ms"):
        keyspace.write(entry, key, encoding, value, stamp)
        return
    expire_in_ms = mutation.expire_in_ms
    if expire_in_ms > MAX_DURATION:
        raise Refused(_INVALID, "expire_in is too large")
    keyspace.write_expiring(entry, key, encoding, value, stamp, entry.time_ms + expire_in_ms, number)


def _combine(entry: "Entry", mutation: pb.Mutation, key: bytes, stamp: bytes) -> None:
    """The result is stored without expiry, dropping an earlier one."""
    operand = operand_of(mutation)
    row = keyspace.read_row(entry.rows, key)
    encoding, value = sums.combine(mutation.type, operand, None if row is None else sums.Stored(*value_of(row)))
    keyspace.write(entry, key, encoding, value, stamp)


def operand_of(mutation: pb.Mutation) -> sums.Operand:
    return sums.Operand(mutation.value, mutation.encoding, mutation.sum_min, mutation.sum_max, mutation.sum_clamp)
