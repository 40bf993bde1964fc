"""What must be refused before the log (rules B3): everything about a write that can be judged without the state.

What stands in the log is executed on every node, so nothing gets there that apply could only refuse. Apply does not
rely on it: what it cannot execute it answers with INVALID.
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, InvalidKey, InvalidValue, LimitExceeded

from . import sums
from .errors import Refused
from .mutations import SUFFIX_SIZE, operand_of
from .records import MESSAGE_ID_SIZE, STAMP_SIZE

_SET: Final = int(pb.MUTATION_TYPE_SET)
_DELETE: Final = int(pb.MUTATION_TYPE_DELETE)
_SET_SUFFIX: Final = int(pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY)
_TOUCH: Final = int(pb.MUTATION_TYPE_TOUCH)
_DELETE_RANGE: Final = int(pb.MUTATION_TYPE_DELETE_RANGE)
_ARITHMETIC: Final = frozenset((sums.SUM, sums.MAX, sums.MIN, sums.ADD))
_VALUELESS: Final = frozenset((_DELETE, _TOUCH, _DELETE_RANGE))
_ENCODINGS: Final = frozenset((int(pb.VALUE_ENCODING_V8), sums.LE64, int(pb.VALUE_ENCODING_BYTES)))
_PLAIN: Final = _ENCODINGS - {sums.LE64}
_CHECKS: Final = frozenset((int(pb.CHECK_KIND_EQUALS), int(pb.CHECK_KIND_EXISTS), int(pb.CHECK_KIND_NOT_NEWER)))
_EQUALS: Final = int(pb.CHECK_KIND_EQUALS)
_EXISTS: Final = int(pb.CHECK_KIND_EXISTS)
_ACK: Final = int(pb.SETTLE_KIND_ACK)
_RETRY: Final = int(pb.SETTLE_KIND_RETRY)
_REJECT: Final = int(pb.SETTLE_KIND_REJECT)
_EXTEND: Final = int(pb.SETTLE_KIND_EXTEND)
_CANCEL: Final = int(pb.SETTLE_KIND_CANCEL)
_RESCHEDULE: Final = int(pb.SETTLE_KIND_RESCHEDULE)
_IDLE: Final = frozenset((_CANCEL, _RESCHEDULE))
_SETTLES: Final = frozenset((_ACK, _RETRY, _REJECT, int(pb.SETTLE_KIND_RETURN), _EXTEND)) | _IDLE
_MOST_DELAY: Final = {
    _RETRY: ("MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY),
    _EXTEND: ("MAX_LEASE", limits.MAX_LEASE),
    _RESCHEDULE: ("MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY),
}
_INTERVAL_SIZE: Final = 4


def validate(write: pb.AtomicWrite) -> int:
    """Raise InvalidArgument or LimitExceeded (of `kvorum.errors`) if the write can never be right; the message names
    the part. Returns how many keys its ranges may delete.

    Fields that this version does not know are refused too: ignoring a kind of check that a newer client relies on would
    be worse than an error. The write is not to be used after it was refused.
    """
    size = write.ByteSize()
    write.DiscardUnknownFields()
    if write.ByteSize() != size:
        raise InvalidArgument("the write has fields that this version does not know")
    mutations, checks, enqueues, settles = write.mutations, write.checks, write.enqueues, write.settles
    if not (checks or write.each) and _is_plain(mutations, enqueues, settles):
        return 0
    if write.each and (not settles or checks or mutations or enqueues):
        raise InvalidArgument("a write of independent settles (each) holds settles, and nothing else")
    parts = len(mutations) + len(enqueues) + len(settles)
    if parts > limits.MAX_MUTATIONS:
        raise LimitExceeded("MAX_MUTATIONS", limits.MAX_MUTATIONS, parts, "mutations, enqueues and settles of a write")
    if len(checks) > limits.MAX_CHECKS:
        raise LimitExceeded("MAX_CHECKS", limits.MAX_CHECKS, len(checks), "checks of a write")
    for at, check in enumerate(checks):
        _check(check, f"check {at}")
    key_size = value_size = deletes = 0
    for at, mutation in enumerate(mutations):
        keys, values = _mutation(mutation, at)
        key_size += keys
        value_size += values
        if mutation.type == _DELETE_RANGE:
            deletes += mutation.limit or limits.MAX_DELETED_RANGE_KEYS
    total = size if size <= limits.MAX_TOTAL_WRITE_SIZE else key_size + value_size + _other_size(write)
    for at, message in enumerate(enqueues):
        if not _is_plain_enqueue(message):
            check_enqueue(message, f"enqueue {at}")
    for at, verdict in enumerate(settles):
        if not _is_plain_ack(verdict):
            _settle(verdict, f"settle {at}")
    if total > limits.MAX_TOTAL_WRITE_SIZE:
        raise LimitExceeded("MAX_TOTAL_WRITE_SIZE", limits.MAX_TOTAL_WRITE_SIZE, total, "size of a write")
    return min(deletes, limits.MAX_DELETED_RANGE_KEYS)


def _is_plain(mutations: Sequence[pb.Mutation], enqueues: Sequence[pb.Enqueue], settles: Sequence[pb.Settle]) -> bool:
    """Whether there is one of the commonest parts and nothing else."""
    if mutations:
        return len(mutations) == 1 and not (enqueues or settles) and _is_plain_set(mutations[0])
    if enqueues:
        return len(enqueues) == 1 and not settles and _is_plain_enqueue(enqueues[0])
    return len(settles) == 1 and _is_plain_ack(settles[0])


def _is_plain_set(mutation: pb.Mutation) -> bool:
    """True for the commonest mutation, if nothing is wrong with it. All others take the long way, which also words the
    errors."""
    return (
        mutation.type == _SET
        and 0 < len(mutation.key) <= limits.MAX_WRITE_KEY_SIZE
        and len(mutation.value) <= limits.MAX_VALUE_SIZE
        and mutation.encoding in _PLAIN
        and not mutation.HasField("expire_in_ms")
        and not _has_bounds(mutation)
        and not mutation.end
        and not mutation.limit
    )


def _other_size(write: pb.AtomicWrite) -> int:
    """Checked, deleted and touched keys, ends of ranges, payloads, queue names, undelivered keys, backoff steps and
    reasons. Looked at only if all bytes together exceed the limit."""
    total = sum(len(check.key) for check in write.checks)
    total += sum(len(mutation.key) + len(mutation.end) for mutation in write.mutations if mutation.type in _VALUELESS)
    for message in write.enqueues:
        total += len(message.payload) + len(message.queue) + sum(map(len, message.keys_if_undelivered))
        total += _INTERVAL_SIZE * len(message.backoff.delays_ms)
        total += len(message.topic) + len(message.group) + len(message.dedup_id) + len(message.headers)
    return total + sum(len(verdict.reason) for verdict in write.settles)


def _key(key: bytes, at: str, extra: int = 0) -> int:
    size = len(key) + extra
    if not key:
        raise InvalidKey(f"key cannot be empty ({at})")
    if size > limits.MAX_WRITE_KEY_SIZE:
        raise LimitExceeded("MAX_WRITE_KEY_SIZE", limits.MAX_WRITE_KEY_SIZE, size, f"key of {at}")
    return size


def _value(value: bytes, at: str) -> int:
    if len(value) > limits.MAX_VALUE_SIZE:
        raise LimitExceeded("MAX_VALUE_SIZE", limits.MAX_VALUE_SIZE, len(value), at)
    return len(value)


def _check(check: pb.Check, at: str) -> None:
    _key(check.key, at)
    kind, stamp = check.kind, check.versionstamp
    if kind not in _CHECKS:
        raise InvalidArgument(f"{at}: unknown kind {kind}")
    if len(stamp) != STAMP_SIZE and not (kind == _EQUALS and not stamp) and kind != _EXISTS:
        raise InvalidArgument(f"{at}: a versionstamp has {STAMP_SIZE} bytes, got {len(stamp)}")
    if kind == _EXISTS and stamp:
        raise InvalidArgument(f"{at}: a check for existence takes no versionstamp")


def _mutation(mutation: pb.Mutation, number: int) -> tuple[int, int]:
    """Sizes of key and value that count towards the totals; the key of one without a value counts only towards the size
    of the whole."""
    at = f"mutation {number}"
    kind, key, value = mutation.type, mutation.key, mutation.value
    if kind in _VALUELESS:
        _valueless(mutation, at)
        return 0, 0
    if mutation.end or mutation.limit:
        raise InvalidArgument(f"{at}: only the deletion of a range takes an end or a limit")
    if kind in (_SET, _SET_SUFFIX):
        key_size = _key(key, at, SUFFIX_SIZE if kind == _SET_SUFFIX else 0)
        _set(mutation, value, at)
        return key_size, len(value)
    _key(key, at)
    if mutation.HasField("expire_in_ms"):
        raise InvalidArgument(f"{at}: only a set or a touch takes an expiry")
    if kind not in _ARITHMETIC:
        raise InvalidArgument(f"{at}: unknown type {kind}")
    for part in (value, mutation.sum_min, mutation.sum_max):
        _value(part, f"operand of {at}")
    try:
        sums.check_operand(kind, operand_of(mutation))
    except Refused as refused:
        raise InvalidValue(refused.message, at) from None
    return len(key), len(value) + len(mutation.sum_min) + len(mutation.sum_max)


def _set(mutation: pb.Mutation, value: bytes, at: str) -> None:
    encoding = mutation.encoding
    if encoding not in _ENCODINGS:
        raise InvalidArgument(f"{at}: unknown value encoding {encoding}")
    if encoding == sums.LE64 and len(value) != 8:
        raise InvalidValue(f"a 64-bit value has 8 bytes, got {len(value)}", at)
    _value(value, f"value of {at}")
    _expiry(mutation, at)
    if _has_bounds(mutation):
        raise InvalidArgument(f"{at}: only a sum takes limits")


def _expiry(mutation: pb.Mutation, at: str) -> None:
    expire_in = mutation.expire_in_ms
    if expire_in > limits.MAX_EXPIRE_IN:
        raise LimitExceeded("MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN, expire_in, f"expire_in of {at}")


def _valueless(mutation: pb.Mutation, at: str) -> None:
    """A delete, a touch, or the deletion of a range."""
    kind = mutation.type
    name = {_DELETE: "a delete", _TOUCH: "a touch"}.get(kind, "the deletion of a range")
    if mutation.value or mutation.encoding or _has_bounds(mutation):
        raise InvalidArgument(f"{at}: {name} takes no value")
    if kind == _DELETE_RANGE:
        _range(mutation, at)
    else:
        _key(mutation.key, at)
        if mutation.end or mutation.limit:
            raise InvalidArgument(f"{at}: {name} takes no end and no limit")
    if kind == _TOUCH:
        _expiry(mutation, at)
        if mutation.HasField("expire_in_ms") and not mutation.expire_in_ms:
            raise InvalidArgument(f"{at}: expire_in of a touch must be above zero; delete the key instead")
    elif mutation.HasField("expire_in_ms"):
        raise InvalidArgument(f"{at}: only a set or a touch takes an expiry")


def _range(mutation: pb.Mutation, at: str) -> None:
    start, end, limit = mutation.key, mutation.end, mutation.limit
    for name, bound in (("start", start), ("end", end)):
        if len(bound) > limits.MAX_READ_KEY_SIZE:
            raise LimitExceeded("MAX_READ_KEY_SIZE", limits.MAX_READ_KEY_SIZE, len(bound), f"{name} of {at}")
    if not end:
        raise InvalidArgument(f"{at}: the deletion of a range needs an end")
    if start > end:
        raise InvalidArgument(f"{at}: the range that is to be deleted ends before it begins")
    if limit > limits.MAX_DELETED_RANGE_KEYS:
        raise LimitExceeded("MAX_DELETED_RANGE_KEYS", limits.MAX_DELETED_RANGE_KEYS, limit, f"limit of {at}")


def _has_bounds(mutation: pb.Mutation) -> bool:
    return bool(mutation.sum_min or mutation.sum_max or mutation.sum_clamp)


def check_queue_name(queue: str) -> None:
    """Raise LimitExceeded if a queue's name is too long."""
    check_size("MAX_QUEUE_NAME_SIZE", limits.MAX_QUEUE_NAME_SIZE, queue, "queue name")


def check_size(limit: str, allowed: int, text: "str | bytes", what: str) -> None:
    size = len(text if isinstance(text, bytes) else text.encode())
    if size > allowed:
        raise LimitExceeded(limit, allowed, size, what)


def at_most(limit: str, allowed: int, got: int, what: str) -> None:
    if got > allowed:
        raise LimitExceeded(limit, allowed, got, what)


def check_backoff(backoff: pb.Backoff, at: str) -> None:
    steps = backoff.delays_ms
    at_most("MAX_BACKOFF_STEPS", limits.MAX_BACKOFF_STEPS, len(steps), f"backoff schedule of {at}")
    for number, step in enumerate(steps):
        at_most("MAX_BACKOFF_INTERVAL", limits.MAX_BACKOFF_INTERVAL, step, f"backoff interval {number} of {at}")


def _is_plain_enqueue(message: pb.Enqueue) -> bool:
    """True for the commonest message, if nothing is wrong with it: a queue and a payload, and perhaps a delay."""
    return (
        len(message.payload) <= limits.MAX_VALUE_SIZE
        and len(message.queue) <= _SHORT
        and message.delay_ms <= limits.MAX_ENQUEUE_DELAY
        and not (
            message.keys_if_undelivered
            or message.dedup_id
            or message.headers
            or message.topic
            or message.ttl_ms
            or message.dedup_window_ms
            or message.HasField("group")
            or message.HasField("backoff")
        )
    )


_SHORT: Final = limits.MAX_QUEUE_NAME_SIZE // 4
"""Characters of a name that is not too long whatever they are."""


def check_enqueue(message: pb.Enqueue, at: str) -> None:
    check_queue_name(message.queue)
    _value(message.payload, f"payload of {at}")
    at_most("MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY, message.delay_ms, f"delay of {at}")
    keys = message.keys_if_undelivered
    at_most("MAX_UNDELIVERED_KEYS", limits.MAX_UNDELIVERED_KEYS, len(keys), f"keys_if_undelivered of {at}")
    for number, key in enumerate(keys):
        _key(key, f"keys_if_undelivered[{number}] of {at}")
    check_backoff(message.backoff, at)
    _options(message, at)


def _options(message: pb.Enqueue, at: str) -> None:
    """What came with data version 3."""
    if message.topic:
        if message.queue:
            raise InvalidArgument(f"{at}: a message goes to a queue or to a topic, not to both")
        check_size("MAX_QUEUE_NAME_SIZE", limits.MAX_QUEUE_NAME_SIZE, message.topic, f"topic of {at}")
    check_size("MAX_GROUP_SIZE", limits.MAX_GROUP_SIZE, message.group, f"group of {at}")
    check_size("MAX_DEDUP_ID_SIZE", limits.MAX_DEDUP_ID_SIZE, message.dedup_id, f"deduplication id of {at}")
    if message.dedup_window_ms and not message.dedup_id:
        raise InvalidArgument(f"{at}: a deduplication window needs an id")
    at_most("MAX_DEDUP_WINDOW", limits.MAX_DEDUP_WINDOW, message.dedup_window_ms, f"deduplication window of {at}")
    at_most("MAX_RETENTION", limits.MAX_RETENTION, message.ttl_ms, f"ttl of {at}")
    if message.headers:
        check_size("MAX_HEADERS_SIZE", limits.MAX_HEADERS_SIZE, message.headers, f"headers of {at}")
        try:
            pb.Headers.FromString(message.headers)
        except DecodeError:
            raise InvalidArgument(f"{at}: the headers cannot be decoded") from None


def _is_plain_ack(verdict: pb.Settle) -> bool:
    return (
        verdict.kind == _ACK
        and len(verdict.message_id) == len(verdict.lease_id) == MESSAGE_ID_SIZE
        and not verdict.reason
        and not verdict.HasField("delay_ms")
    )


def _settle(verdict: pb.Settle, at: str) -> None:
    kind = verdict.kind
    if kind not in _SETTLES:
        raise InvalidArgument(f"{at}: unknown kind {kind}")
    if kind in _IDLE and verdict.lease_id:
        raise InvalidArgument(f"{at}: what is cancelled or rescheduled is in nobody's hands, so there is no lease id")
    for name, data in (("message id", verdict.message_id), ("lease id", verdict.lease_id)):
        if len(data) != MESSAGE_ID_SIZE and not (kind in _IDLE and name == "lease id"):
            raise InvalidArgument(f"{at}: a {name} has {MESSAGE_ID_SIZE} bytes, got {len(data)}")
    if verdict.HasField("delay_ms"):
        most = _MOST_DELAY.get(kind)
        if most is None:
            raise InvalidArgument(f"{at}: only a retry, an extension or a new time takes a delay")
        at_most(*most, verdict.delay_ms, f"delay of {at}")
        if kind == _EXTEND and not verdict.delay_ms:
            raise InvalidArgument(f"{at}: an extension must be above zero")
    elif kind == _RESCHEDULE:
        raise InvalidArgument(f"{at}: a new time needs a delay")
    if verdict.reason:
        if kind not in (_RETRY, _REJECT):
            raise InvalidArgument(f"{at}: only a retry or a rejection takes a reason")
        check_size("MAX_REASON_SIZE", limits.MAX_REASON_SIZE, verdict.reason, f"reason of {at}")
