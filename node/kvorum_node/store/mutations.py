"""One mutation of a commit. It writes only after everything that can refuse it was looked at, so that a commit of one
mutation needs no savepoint."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_DELETED_RANGE_KEYS, MAX_READ_KEY_SIZE, MAX_WRITE_KEY_SIZE

from . import checked, keyspace, sums, trie
from .errors import Refused
from .records import MAX_DURATION, value_of

if TYPE_CHECKING:
    from .entry import Entry

_SET: Final = int(pb.MUTATION_TYPE_SET)
_DELETE: Final = int(pb.MUTATION_TYPE_DELETE)
_SET_SUFFIX: Final = int(pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY)
_TOUCH: Final = int(pb.MUTATION_TYPE_TOUCH)
DELETE_RANGE: Final = int(pb.MUTATION_TYPE_DELETE_RANGE)
BEYOND_VERSION_1: Final = frozenset((_TOUCH, DELETE_RANGE))
"""Kinds that an entry of data version 1 does not know, and refuses as it refuses any other unknown one."""
_ARITHMETIC: Final = frozenset((sums.SUM, sums.MAX, sums.MIN, sums.ADD))
_ENCODINGS: Final = frozenset((int(pb.VALUE_ENCODING_V8), sums.LE64, int(pb.VALUE_ENCODING_BYTES)))
_PLAIN: Final = _ENCODINGS - {sums.LE64}
_INVALID: Final = int(pb.OUTCOME_INVALID)
_OUT_OF_RANGE: Final = int(pb.OUTCOME_RANGE_ERROR)

SUFFIX_SIZE: Final = 22
"""What a versionstamp adds to a key: one more string part."""


def suffixed_key(key: bytes, stamp: bytes) -> bytes:
    """The key under which a SET_SUFFIX_VERSIONSTAMPED_KEY stores: one more string part, the stamp in hexadecimal."""
    return key + b"\x02" + stamp.hex().encode() + b"\x00"


def mutate(entry: "Entry", mutation: pb.Mutation, stamp: bytes, number: int) -> None:
    """Carry out one mutation, the `number`th of the commit `stamp`, other than a DELETE_RANGE; raises Refused with
    nothing changed."""
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
    elif kind == _TOUCH and entry.data_version > 1:
        _touch(entry, mutation, key, stamp, number)
    else:
        raise Refused(_INVALID, "unknown mutation type")


def is_sure(mutation: pb.Mutation) -> bool:
    """Whether it is certain that it is not refused, whatever is stored; of the commonest ones only."""
    if not 0 < len(mutation.key) <= MAX_WRITE_KEY_SIZE:
        return False
    kind = mutation.type
    return kind == _DELETE or (kind == _SET and mutation.encoding in _PLAIN and not mutation.HasField("expire_in_ms"))


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


def _touch(entry: "Entry", mutation: pb.Mutation, key: bytes, stamp: bytes, number: int) -> None:
    expire_at_ms = None
    if mutation.HasField("expire_in_ms"):
        if mutation.expire_in_ms > MAX_DURATION:
            raise Refused(_INVALID, "expire_in is too large")
        expire_at_ms = entry.time_ms + mutation.expire_in_ms
    keyspace.touch(entry, key, expire_at_ms, stamp, number)


def delete_range(entry: "Entry", mutation: pb.Mutation) -> Generator[None, None, None]:
    """Delete the keys of a range, or the first few of them; raises Refused with nothing changed. All ranges of a commit
    together may hold as many keys as one entry can well bear."""
    start, end, limit = mutation.key, mutation.end, mutation.limit
    if not end or max(len(start), len(end)) > MAX_READ_KEY_SIZE or limit > MAX_DELETED_RANGE_KEYS:
        raise Refused(_INVALID, "a range that is to be deleted has no end, or is beyond the limits")
    left = MAX_DELETED_RANGE_KEYS - entry.deleted
    most = min(limit or left + 1, left + 1)
    found: list[bytes] = []
    # collected first: deleting would move them from under the cursor
    for key in trie.keys(entry.rows.txn, start, end):
        found.append(key)
        if len(found) == most:
            break
        if len(found) & 0x3F == 0 and entry.spend(8):
            yield
    if len(found) > left:
        raise Refused(
            _OUT_OF_RANGE,
            f"the ranges hold more than {MAX_DELETED_RANGE_KEYS:,} keys (MAX_DELETED_RANGE_KEYS): nothing was deleted",
        )
    for key in found:
        if not keyspace.delete(entry, key):
            raise checked.missing(trie.ROOT + key)
        entry.deleted += 1
        if entry.spend(2):
            yield


def _combine(entry: "Entry", mutation: pb.Mutation, key: bytes, stamp: bytes) -> None:
    """The result is stored without expiry, dropping an earlier one."""
    operand = operand_of(mutation)
    row = keyspace.read_row(entry.rows, key)
    encoding, value = sums.combine(mutation.type, operand, None if row is None else sums.Stored(*value_of(row)))
    keyspace.write(entry, key, encoding, value, stamp)


def operand_of(mutation: pb.Mutation) -> sums.Operand:
    return sums.Operand(mutation.value, mutation.encoding, mutation.sum_min, mutation.sum_max, mutation.sum_clamp)
