"""KV Connect's messages ↔ kvorum's. Pure functions; what a client did wrong is a Refusal with status 400.

The texts are those of `stock_texts`. Where it errs we do better: 100 checks, any deadline in the
past means now, ten zero bytes in a check mean "absent" (versionstamp zero is never issued), and what cannot be carried
out is 400 instead of 500, which clients repeat for ever.

Absolute times become durations against the cluster's time (rules D1), here and not later: what they mean was decided
when the request came.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb

from .._proto import datapath_pb2 as dp
from ..stock_texts import (
    BAD_DEADLINE,
    BAD_EXPIRY,
    BAD_LIMIT,
    BAD_MUTATION,
    BAD_VERSIONSTAMP,
    INTERVAL_TOO_LONG,
    KEY_TOO_LARGE,
    TOO_MANY_CHECKS,
    TOO_MANY_DEAD_LETTER_KEYS,
    TOO_MANY_ENTRIES,
    TOO_MANY_INTERVALS,
    TOO_MANY_MUTATIONS,
    TOO_MANY_RANGES,
    TOO_MANY_WATCHED,
    TOTAL_TOO_LARGE,
    VALUE_TOO_LARGE,
)
from ..store import sums
from ..store.errors import Refused
from .message import Refusal

M = TypeVar("M", bound=Message)

STAMP_SIZE: Final = 10
ABSENT: Final = bytes(STAMP_SIZE)
SUFFIX_SIZE: Final = 22
"""What a versionstamp adds to a key."""

MAX_READ_BODY: Final = 65_536
"""Bytes of a snapshot read or watch: ten ranges of two bounds take some 41 KiB."""
MAX_WRITE_BODY: Final = limits.MAX_ENTRY_SIZE
"""Bytes of an atomic write. What the other limits allow is less: 800 KiB of keys and values, and the framing of 1,000
mutations."""
MAX_PARTS: Final = limits.MAX_CHECKS + limits.MAX_MUTATIONS
_UNSUSPICIOUS: Final = 4_096
"""Bytes of a message that need no counting before it is parsed."""

_KINDS: Final = {
    dp.M_SET: pb.MUTATION_TYPE_SET,
    dp.M_DELETE: pb.MUTATION_TYPE_DELETE,
    dp.M_SUM: pb.MUTATION_TYPE_SUM,
    dp.M_MAX: pb.MUTATION_TYPE_MAX,
    dp.M_MIN: pb.MUTATION_TYPE_MIN,
    dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY: pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY,
}
_SETS: Final = (dp.M_SET, dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY)
_ENCODINGS: Final = (dp.VE_V8, dp.VE_LE64, dp.VE_BYTES)


def decode(kind: type[M], body: bytes) -> M:
    """Parse a body."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise Refusal(400, f"The body is not a {kind.DESCRIPTOR.name} message.") from None


# ---- reading


def read_of(body: bytes) -> dp.SnapshotRead:
    """Parse and check a snapshot read."""
    request = decode(dp.SnapshotRead, body)
    if len(request.ranges) > limits.MAX_READ_RANGES:
        raise Refusal(400, TOO_MANY_RANGES)
    total = 0
    for selected in request.ranges:
        if selected.limit <= 0:
            raise Refusal(400, BAD_LIMIT)
        total += selected.limit
        if max(len(selected.start), len(selected.end)) > limits.MAX_READ_KEY_SIZE:
            raise Refusal(400, KEY_TOO_LARGE)
    if total > limits.MAX_READ_ENTRIES:
        raise Refusal(400, TOO_MANY_ENTRIES)
    return request


class Points(NamedTuple):
    """A read as one of keys: most reads are, and they need no cursor."""

    read: pb.Read
    certain: bool
    """Every range can hold its one key only. Else the answer counts if all keys are there: each is the first row of its
    range, and no more was asked for."""


def points_of(request: dp.SnapshotRead) -> Points | None:
    """The read as one of keys, if it can be. Some clients ask for one key by "the first row from here on"."""
    keys, certain = [], True
    for selected in request.ranges:
        start, end = selected.start, selected.end
        if not 0 < len(start) <= limits.MAX_WRITE_KEY_SIZE:
            return None
        if end[-1:] != b"\0" or end[:-1] != start:
            if selected.limit != 1 or selected.reverse or start >= end:
                return None
            certain = False
        keys.append(start)
    return Points(pb.Read(keys=keys), certain)


def ranges_of(request: dp.SnapshotRead) -> pb.Read:
    """The read as one of ranges."""
    read = pb.Read()
    for selected in request.ranges:
        read.ranges.add(start=selected.start, end=selected.end, limit=selected.limit, reverse=selected.reverse)
    return read


_READ_TAIL: Final = dp.SnapshotReadOutput(read_is_strongly_consistent=True, status=dp.SR_SUCCESS).SerializeToString()
_RANGE_TAG: Final = b"\x0a"


def points_output(entries: Sequence[pb.KvEntry]) -> bytes:
    """The answer to a read of keys. Rows have the same numbers in both protocols."""
    output: list[bytes] = []
    for entry in entries:
        if entry.versionstamp:
            row = entry.SerializeToString()
            _delimited(output, _delimited([], row))
        else:
            output.append(_RANGE_TAG + b"\0")
    output.append(_READ_TAIL)
    return b"".join(output)


def ranges_output(ranges: Iterable[Sequence[bytes]]) -> list[bytes]:
    """The answer to a read of ranges, in pieces; each range comes as pieces of an encoded RangeResult."""
    output: list[bytes] = []
    for pieces in ranges:
        _delimited(output, pieces)
    output.append(_READ_TAIL)
    return output


def _delimited(output: list[bytes], content: bytes | Sequence[bytes]) -> list[bytes]:
    """Append field 1 with this content."""
    pieces = (content,) if isinstance(content, bytes) else content
    output.append(_RANGE_TAG + varint(sum(map(len, pieces))))
    output.extend(pieces)
    return output


def varint(number: int) -> bytes:
    """Protobuf's base-128 number."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# ---- writing


def write_of(body: bytes) -> dp.AtomicWrite:
    """Parse an atomic write. One of millions of tiny parts would hold up the loop and take many times its size."""
    if len(body) > _UNSUSPICIOUS and fields_exceed(body, MAX_PARTS):
        raise Refusal(400, TOO_MANY_MUTATIONS)
    return decode(dp.AtomicWrite, body)


def fields_exceed(message: bytes, most: int) -> bool:
    """Whether an encoded message has more than `most` fields, as far as it can be read."""
    at, count, size = 0, 0, len(message)
    while at < size:
        count += 1
        if count > most:
            return True
        tag = message[at]
        while at < size and message[at] & 0x80:
            at += 1
        at += 1
        wire = tag & 7
        if wire == 2:
            length = shift = 0
            while at < size and message[at] & 0x80 and shift < 63:
                length |= (message[at] & 0x7F) << shift
                shift += 7
                at += 1
            at += 1 + (length | (message[at] << shift) if at < size else 0)
        elif wire == 0:
            while at < size and message[at] & 0x80:
                at += 1
            at += 1
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            return False  # groups, or nonsense: the parser judges
    return False


def has_times(request: dp.AtomicWrite) -> bool:
    """Whether the cluster's time is needed to carry it out."""
    return any(mutation.expire_at_ms > 0 for mutation in request.mutations) or any(
        message.deadline_ms > 0 for message in request.enqueues
    )


def operation_of(request: dp.AtomicWrite, now_ms: int) -> pb.AtomicWrite:
    """Check an atomic write and say it in kvorum's words. `now_ms` is the cluster's time."""
    if len(request.checks) > limits.MAX_CHECKS:
        raise Refusal(400, TOO_MANY_CHECKS)
    if len(request.mutations) + len(request.enqueues) > limits.MAX_MUTATIONS:
        raise Refusal(400, TOO_MANY_MUTATIONS)
    operation = pb.AtomicWrite()
    total = 0
    for check in request.checks:
        total += _check(operation, check)
    for mutation in request.mutations:
        total += _mutation(operation, mutation, now_ms)
    for message in request.enqueues:
        total += _enqueue(operation, message, now_ms)
    if total > limits.MAX_TOTAL_WRITE_SIZE:
        raise Refusal(400, TOTAL_TOO_LARGE)
    return operation


def _key(key: bytes, most: int) -> int:
    if not key:
        raise Refusal(400, "key cannot be empty")
    if len(key) > most:
        raise Refusal(400, KEY_TOO_LARGE)
    return len(key)


def _check(operation: pb.AtomicWrite, check: dp.Check) -> int:
    size = _key(check.key, limits.MAX_WRITE_KEY_SIZE)
    stamp = check.versionstamp
    if stamp == ABSENT:
        stamp = b""
    elif len(stamp) not in (0, STAMP_SIZE):
        raise Refusal(400, BAD_VERSIONSTAMP)
    operation.checks.add(key=check.key, versionstamp=stamp)
    return size


def _mutation(operation: pb.AtomicWrite, mutation: dp.Mutation, now_ms: int) -> int:
    kind = mutation.mutation_type
    known = _KINDS.get(kind)
    if known is None:
        raise Refusal(400, BAD_MUTATION)
    suffix = SUFFIX_SIZE if kind == dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY else 0
    size = _key(mutation.key, limits.MAX_WRITE_KEY_SIZE - suffix)
    if mutation.expire_at_ms < -1:
        raise Refusal(400, BAD_EXPIRY)
    made = operation.mutations.add(key=mutation.key, type=known)
    if kind == dp.M_DELETE:
        return size  # some clients send an empty value along
    if not mutation.HasField("value"):
        raise Refusal(400, BAD_MUTATION)
    value, encoding = mutation.value.data, mutation.value.encoding
    if len(value) > limits.MAX_VALUE_SIZE:
        raise Refusal(400, VALUE_TOO_LARGE)
    if encoding not in _ENCODINGS:
        raise Refusal(400, f"The value encoding {encoding} is unknown.")
    if encoding == dp.VE_LE64 and len(value) != 8:
        raise Refusal(400, BAD_MUTATION)
    made.value = value
    made.encoding = encoding  # type: ignore[assignment]  # the same numbers
    if kind in _SETS:
        if mutation.expire_at_ms > 0:
            made.expire_in_ms = _duration(mutation.expire_at_ms, now_ms, limits.MAX_EXPIRE_IN)
        return size + len(value)
    if kind == dp.M_SUM and encoding != dp.VE_LE64:
        made.sum_min, made.sum_max, made.sum_clamp = mutation.sum_min, mutation.sum_max, mutation.sum_clamp
        if max(len(mutation.sum_min), len(mutation.sum_max)) > limits.MAX_VALUE_SIZE:
            raise Refusal(400, VALUE_TOO_LARGE)
    try:
        sums.check_operand(known, sums.Operand(value, encoding, made.sum_min, made.sum_max, made.sum_clamp))
    except Refused as refused:
        raise Refusal(400, refused.message) from None
    return size + len(value)


def _enqueue(operation: pb.AtomicWrite, message: dp.Enqueue, now_ms: int) -> int:
    if len(message.payload) > limits.MAX_VALUE_SIZE:
        raise Refusal(400, VALUE_TOO_LARGE)
    keys, steps = message.keys_if_undelivered, message.backoff_schedule
    if len(keys) > limits.MAX_UNDELIVERED_KEYS:
        raise Refusal(400, TOO_MANY_DEAD_LETTER_KEYS)
    if len(steps) > limits.MAX_BACKOFF_STEPS:
        raise Refusal(400, TOO_MANY_INTERVALS)
    if any(step > limits.MAX_BACKOFF_INTERVAL for step in steps):
        raise Refusal(400, INTERVAL_TOO_LONG)
    delay = message.deadline_ms - now_ms if message.deadline_ms > 0 else 0
    if delay > limits.MAX_ENQUEUE_DELAY:
        raise Refusal(400, BAD_DEADLINE)
    made = operation.enqueues.add(payload=message.payload, delay_ms=max(0, delay), keys_if_undelivered=keys)
    if steps:  # an empty schedule cannot be told from none
        made.backoff.delays_ms.extend(steps)
    return len(message.payload) + sum(_key(key, limits.MAX_WRITE_KEY_SIZE) for key in keys) + 4 * len(steps)


def _duration(at_ms: int, now_ms: int, most: int) -> int:
    """Until then; what is past is due now. Farther away than can be stored is as good as the farthest."""
    return min(max(0, at_ms - now_ms), most)


def write_output(result: pb.WriteResult, versionstamp: bytes) -> bytes:
    """The answer to a write that was carried out, or whose checks failed."""
    if result.outcome == pb.OUTCOME_DONE:
        output = dp.AtomicWriteOutput(status=dp.AW_SUCCESS, versionstamp=versionstamp)
    else:
        output = dp.AtomicWriteOutput(status=dp.AW_CHECK_FAILURE, failed_checks=result.failed_checks)
    return output.SerializeToString()


# ---- watching


def watch_of(body: bytes) -> list[bytes]:
    """Parse and check a watch: its keys."""
    keys = [watched.key for watched in decode(dp.Watch, body).keys]
    if len(keys) > limits.MAX_WATCHED_KEYS:
        raise Refusal(400, TOO_MANY_WATCHED)
    if any(len(key) > limits.MAX_READ_KEY_SIZE for key in keys):
        raise Refusal(400, KEY_TOO_LARGE)
    return keys


def watch_frame(entries: Sequence[pb.KvEntry], relabel: Callable[[bytes], bytes] | None) -> bytes:
    """A full snapshot: every key counts as changed, since one client takes those that did not for deleted."""
    output = dp.WatchOutput(status=dp.SR_SUCCESS)
    for entry in entries:
        part = output.keys.add(changed=True)
        if entry.versionstamp:
            row = part.entry_if_changed
            row.key, row.versionstamp = entry.key, entry.versionstamp
            row.encoding = entry.encoding  # type: ignore[assignment]  # the same numbers
            row.value = (
                entry.value if relabel is None or entry.encoding != pb.VALUE_ENCODING_V8 else relabel(entry.value)
            )
    data = output.SerializeToString()
    return len(data).to_bytes(4, "little") + data
