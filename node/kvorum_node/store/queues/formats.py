"""Formats of the rows and index keys of queues. See `records` for what all rows have in common.

PAYLOAD ‖ id      what never changes of a message
MESSAGE ‖ id      the small row that each delivery rewrites
READY ‖ queue ‖ due time ‖ id         ready and scheduled messages; of a group its head only
LEASED ‖ id                           messages in somebody's hands
FAILURES ‖ id     attempts that failed: the first one and the last ones
GROUPED ‖ queue ‖ group ‖ id          all messages of a group that are neither dead nor dying, in order
DEAD ‖ queue ‖ place ‖ id             dead letters, in the order of their deaths
QUEUE ‖ name      policy and pause
TALLY ‖ name      counters
DEDUP ‖ queue ‖ deduplication id      who has it, and until when
TIMER ‖ time ‖ kind ‖ what            what the sweep has to look at, besides keys
TOPIC ‖ name, SUBSCRIPTION ‖ topic id ‖ queue, RETAINED ‖ topic id ‖ time ‖ id, SCHEDULE ‖ name

Within a key the length of a queue's name stands before it, so that no queue's rows lie between those of another; no key
is longer than 400 bytes. Where rows are listed by name (QUEUE, TALLY, TOPIC, SCHEDULE), the name stands alone.
"""

import struct
from typing import Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb

from ..records import DEAD, DEDUP, GROUPED, LEASED, MESSAGE_ID_SIZE, READY, TIMER

# ---- PAYLOAD


class Payload(NamedTuple):
    enqueued_at_ms: int
    backoff: tuple[int, ...] | None
    """Milliseconds before each retry; None = as the queue's policy says when it is needed."""
    undelivered_keys: tuple[bytes, ...]
    payload: bytes
    group: bytes | None = None
    own_group: bool = False
    """It has no group, but its queue was ordered when it came."""
    dedup_id: bytes = b""
    until_done: bool = False
    """Its deduplication id is remembered until it is done."""
    expires_ms: int = 0
    """0 = never."""
    headers: bytes = b""
    origin: "Origin | None" = None


class Origin(NamedTuple):
    """Where a dead letter comes from."""

    queue: bytes
    message_id: bytes
    enqueued_at_ms: int
    died_at_ms: int
    attempts: int

    def message(self) -> pb.Origin:
        return pb.Origin(
            queue=self.queue.decode(),
            message_id=self.message_id,
            enqueued_at_ms=self.enqueued_at_ms,
            died_at_ms=self.died_at_ms,
            attempts=self.attempts,
        )


_OLD_PAYLOAD: Final = struct.Struct(">QHH")


def pack_old_payload(payload: Payload) -> bytes:
    """The layout of data versions 1 and 2, whose first byte is 0, being the highest one of a time."""
    steps, keys = payload.backoff or (), payload.undelivered_keys
    parts = [_OLD_PAYLOAD.pack(payload.enqueued_at_ms, len(steps), len(keys)), struct.pack(f">{len(steps)}I", *steps)]
    for key in keys:
        parts += (len(key).to_bytes(2, "big"), key)
    parts.append(payload.payload)
    return b"".join(parts)


def _unpack_old_payload(row: bytes) -> Payload:
    enqueued_at_ms, steps, count = _OLD_PAYLOAD.unpack_from(row)
    at = _OLD_PAYLOAD.size + 4 * steps
    backoff = struct.unpack_from(f">{steps}I", row, _OLD_PAYLOAD.size)
    keys, at = _unpack_keys(row, at, count)
    return Payload(enqueued_at_ms, backoff, keys, row[at:])


def _unpack_keys(row: bytes, at: int, count: int) -> tuple[tuple[bytes, ...], int]:
    keys = []
    for _ in range(count):
        end = at + 2 + int.from_bytes(row[at : at + 2], "big")
        keys.append(row[at + 2 : end])
        at = end
    return tuple(keys), at


_PAYLOAD: Final = struct.Struct(">BHQ")
_PAYLOAD_AT: Final = _PAYLOAD.size
_ORIGIN: Final = struct.Struct(">12sQQI")
_BACKOFF, _KEYS, _GROUP, _OWN_GROUP, _DEDUP, _UNTIL_DONE, _EXPIRES, _HEADERS, _ORIGIN_FLAG = (
    1 << bit for bit in range(9)
)
_TIES: Final = _GROUP | _OWN_GROUP | _UNTIL_DONE | _EXPIRES | _ORIGIN_FLAG


PLAIN: Final = b"\x01\x00\x00"
"""How a row of the layout that begins with 1 begins if there is nothing but enqueue time and payload."""


PLAIN_SIZE: Final = _PAYLOAD_AT
"""Where the payload begins in such a row."""


def plain_head(enqueued_at_ms: int) -> bytes:
    """What stands before the payload in such a row."""
    return PLAIN + enqueued_at_ms.to_bytes(8, "big")


def plain_payload(row: bytes) -> tuple[int, bytes] | None:
    """Enqueue time and payload of such a row, None if there is more in it."""
    if row[:3] != PLAIN:
        return None
    return int.from_bytes(row[3:_PAYLOAD_AT], "big"), row[_PAYLOAD_AT:]


def has_ties(row: bytes) -> bool:
    """Whether other rows belong to this message: its group, its deduplication id, a timer, what it brought along from
    where it died."""
    return row[0] == 1 and bool(int.from_bytes(row[1:3], "big") & _TIES)


def has_origin(row: bytes) -> bool:
    """Whether the message has died elsewhere."""
    return row[0] == 1 and bool(int.from_bytes(row[1:3], "big") & _ORIGIN_FLAG)


def expires(row: bytes) -> bool:
    return row[0] == 1 and bool(int.from_bytes(row[1:3], "big") & _EXPIRES)


def pack_payload(payload: Payload) -> bytes:
    """The layout of data version 3, which begins with 1."""
    flags = 0
    parts = [b""]
    if payload.backoff is not None:
        flags |= _BACKOFF
        parts.append(struct.pack(f">H{len(payload.backoff)}I", len(payload.backoff), *payload.backoff))
    if payload.undelivered_keys:
        flags |= _KEYS
        parts.append(len(payload.undelivered_keys).to_bytes(2, "big"))
        for key in payload.undelivered_keys:
            parts += (len(key).to_bytes(2, "big"), key)
    if payload.group is not None:
        flags |= _GROUP
        parts += (bytes((len(payload.group),)), payload.group)
    if payload.own_group:
        flags |= _OWN_GROUP
    if payload.dedup_id:
        flags |= _DEDUP | (_UNTIL_DONE if payload.until_done else 0)
        parts += (bytes((len(payload.dedup_id),)), payload.dedup_id)
    if payload.expires_ms:
        flags |= _EXPIRES
        parts.append(payload.expires_ms.to_bytes(8, "big"))
    if payload.headers:
        flags |= _HEADERS
        parts += (len(payload.headers).to_bytes(2, "big"), payload.headers)
    if payload.origin is not None:
        flags |= _ORIGIN_FLAG
        queue, *rest = payload.origin
        parts += (len(queue).to_bytes(2, "big"), queue, _ORIGIN.pack(*rest))
    parts[0] = _PAYLOAD.pack(1, flags, payload.enqueued_at_ms)
    parts.append(payload.payload)
    return b"".join(parts)


def unpack_payload(row: bytes) -> Payload:
    """A row of either layout."""
    if row[0] == 0:
        return _unpack_old_payload(row)
    _, flags, enqueued_at_ms = _PAYLOAD.unpack_from(row)
    if not flags:
        return Payload(enqueued_at_ms, None, (), row[_PAYLOAD_AT:])
    at = _PAYLOAD_AT
    backoff: tuple[int, ...] | None = None
    keys: tuple[bytes, ...] = ()
    group, dedup_id, headers, expires_ms, origin = None, b"", b"", 0, None
    if flags & _BACKOFF:
        (steps,) = struct.unpack_from(">H", row, at)
        backoff = struct.unpack_from(f">{steps}I", row, at + 2)
        at += 2 + 4 * steps
    if flags & _KEYS:
        keys, at = _unpack_keys(row, at + 2, int.from_bytes(row[at : at + 2], "big"))
    if flags & _GROUP:
        group, at = _short(row, at)
    if flags & _DEDUP:
        dedup_id, at = _short(row, at)
    if flags & _EXPIRES:
        expires_ms = int.from_bytes(row[at : at + 8], "big")
        at += 8
    if flags & _HEADERS:
        (headers,), at = _unpack_keys(row, at, 1)
    if flags & _ORIGIN_FLAG:
        (queue,), at = _unpack_keys(row, at, 1)
        origin = Origin(queue, *_ORIGIN.unpack_from(row, at))
        at += _ORIGIN.size
    own_group, until_done = bool(flags & _OWN_GROUP), bool(flags & _UNTIL_DONE)
    return Payload(
        enqueued_at_ms, backoff, keys, row[at:], group, own_group, dedup_id, until_done, expires_ms, headers, origin
    )


def _short(row: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + row[at]
    return row[at + 1 : end], end


# ---- MESSAGE

READY_STATE: Final = 0
"""Ready or scheduled."""
LEASED_STATE: Final = 1
WAITING_STATE: Final = 2
"""Behind others of its group."""
DEAD_STATE: Final = 3
DYING_STATE: Final = 4
"""To be undelivered by the next sweep: what that writes was too much for the entry that decided it."""
TIMED_STATE: Final = 5
"""In rows only: leased, and there is more to say of when the lease ends."""


class Message(NamedTuple):
    queue: bytes
    """UTF-8 name."""
    due_ms: int
    """When it became or becomes ready; kept while it is leased, so that a returned message goes back to its old
    place. Of a dead or dying one: since when it is."""
    attempt: int
    """Leases so far that were not given back."""
    lease_id: bytes = b""
    """12 bytes; LEASED only, as the next two."""
    consumer: int = 0
    session: bytes = b""
    state: int = READY_STATE
    place: bytes = b""
    """12 bytes, DEAD only: its place among the dead letters, the stamp of the commit that buried it and a number."""
    expiring: bool = False
    """LEASED: the lease ends after its period, whether its holder lives or not."""
    extended_at: int = 0
    """LEASED: the first 8 bytes of the stamp of the entry that extended the lease last, as a number; 0 = none has."""
    extended_ms: int = 0
    """By how much it did so; 0 = by the period of a queue whose policy names none."""


_MESSAGE: Final = struct.Struct(">BIQH")
_LEASE: Final = struct.Struct(">12sQ")
_TIMED: Final = struct.Struct(">BQQ12sQ")
_TIMES_SIZE: Final = _TIMED.size - _LEASE.size


def pack_message(message: Message) -> bytes:
    queue, due_ms, attempt, lease_id, consumer, session, state, place, expiring, extended_at, extended_ms = message
    if expiring or extended_at:
        row = _MESSAGE.pack(TIMED_STATE, attempt, due_ms, len(queue)) + queue
        return row + _TIMED.pack(expiring, extended_at, extended_ms, lease_id, consumer) + session
    if lease_id:
        row = _MESSAGE.pack(LEASED_STATE, attempt, due_ms, len(queue)) + queue
        return row + _LEASE.pack(lease_id, consumer) + session
    return _MESSAGE.pack(state, attempt, due_ms, len(queue)) + queue + place


UNTRIED: Final = bytes(5)
"""How the row of a ready or scheduled message begins that nobody has had; due time and queue follow."""
FIRST_ATTEMPT: Final = (1).to_bytes(4, "big")
"""What stands behind the state of a message that is leased for the first time."""
EXPIRING: Final = b"\x01" + bytes(_TIMES_SIZE - 1)
"""What stands before the lease id of a TIMED one that expires and was not extended."""
STATE_END: Final = 5
DUE_END: Final = _MESSAGE.size - 2
"""Where the due time ends, and the queue with its length begins; all the rest of READY."""


def queue_of(stored: bytes) -> bytes:
    """The queue of a row, which may still have its checksum."""
    at = _MESSAGE.size
    return stored[at : at + int.from_bytes(stored[at - 2 : at], "big")]


def lease_of(stored: bytes) -> bytes:
    """The lease id of a row, which may still have its checksum; empty if it is not leased."""
    state = stored[0]
    if state not in (LEASED_STATE, TIMED_STATE):
        return b""
    at = _MESSAGE.size + int.from_bytes(stored[_MESSAGE.size - 2 : _MESSAGE.size], "big")
    if state == TIMED_STATE:
        at += _TIMES_SIZE
    return stored[at : at + 12]


def unpack_message(row: bytes) -> Message:
    state, attempt, due_ms, size = _MESSAGE.unpack_from(row)
    at = _MESSAGE.size + size
    queue = row[_MESSAGE.size : at]
    if state == READY_STATE:
        return Message(queue, due_ms, attempt)
    if state == TIMED_STATE:
        expiring, extended_at, extended_ms, lease_id, consumer = _TIMED.unpack_from(row, at)
        holder = lease_id, consumer, row[at + _TIMED.size :]
        return Message(queue, due_ms, attempt, *holder, LEASED_STATE, b"", bool(expiring), extended_at, extended_ms)
    if state != LEASED_STATE:
        return Message(queue, due_ms, attempt, state=state, place=row[at:])
    lease_id, consumer = _LEASE.unpack_from(row, at)
    return Message(queue, due_ms, attempt, lease_id, consumer, row[at + _LEASE.size :], LEASED_STATE)


# ---- indexes of messages


def named(queue: bytes) -> bytes:
    return len(queue).to_bytes(2, "big") + queue


def ready_prefix(queue: bytes) -> bytes:
    return READY + len(queue).to_bytes(2, "big") + queue


def ready_key(message_id: bytes, message: Message) -> bytes:
    return ready_prefix(message.queue) + message.due_ms.to_bytes(8, "big") + message_id


def dead_key(message_id: bytes, message: Message) -> bytes:
    return DEAD + named(message.queue) + message.place + message_id


def group_of(payload: Payload) -> bytes | None:
    """The message's group as it stands in keys: its length and itself, or what no length is."""
    if payload.group is not None:
        return bytes((len(payload.group),)) + payload.group
    return b"\xff" if payload.own_group else None


def grouped_prefix(queue: bytes, group: bytes) -> bytes:
    return GROUPED + named(queue) + group


def index_key(message_id: bytes, message: Message) -> bytes | None:
    """Where a message stands by its state; None = in its group only."""
    if message.state == LEASED_STATE:
        return LEASED + message_id
    if message.state == DEAD_STATE:
        return dead_key(message_id, message)
    if message.state == DYING_STATE:
        return timer_key(message.due_ms, DYING_TIMER, message_id)
    return None if message.state == WAITING_STATE else ready_key(message_id, message)


# ---- FAILURES

_FAILURE: Final = struct.Struct(">IQBH")


class Failure(NamedTuple):
    attempt: int
    at_ms: int
    kind: int
    """Of `pb.FailureKind`."""
    reason: bytes
    """UTF-8, possibly cut within a character."""

    def message(self) -> pb.Failure:
        return pb.Failure(
            attempt=self.attempt,
            at_ms=self.at_ms,
            kind=self.kind,  # type: ignore[arg-type]
            reason=self.reason.decode(errors="ignore"),
        )


def pack_failures(failures: list[Failure]) -> bytes:
    return b"".join(
        _FAILURE.pack(attempt, at_ms, kind, len(reason)) + reason for attempt, at_ms, kind, reason in failures
    )


def unpack_failures(row: bytes) -> list[Failure]:
    found = []
    at = 0
    while at < len(row):
        attempt, at_ms, kind, size = _FAILURE.unpack_from(row, at)
        at += _FAILURE.size
        found.append(Failure(attempt, at_ms, kind, row[at : at + size]))
        at += size
    return found


# ---- QUEUE


class Settings(NamedTuple):
    """What an operator has said about a queue."""

    paused: bool = False
    policy: bytes | None = None
    """As it was defined; None = it was not."""


def pack_settings(settings: Settings) -> bytes:
    return bytes((settings.paused, settings.policy is not None)) + (settings.policy or b"")


def unpack_settings(row: bytes) -> Settings:
    return Settings(bool(row[0]), row[2:] if row[1] else None)


# ---- DEDUP


def dedup_key(queue: bytes, dedup_id: bytes) -> bytes:
    return DEDUP + named(queue) + dedup_id


def pack_dedup(message_id: bytes, end_ms: int) -> bytes:
    """`end_ms`: 0 = until the message is done."""
    return message_id + end_ms.to_bytes(8, "big")


def unpack_dedup(row: bytes) -> tuple[bytes, int]:
    return row[:MESSAGE_ID_SIZE], int.from_bytes(row[MESSAGE_ID_SIZE:], "big")


# ---- TIMER

DEDUP_TIMER: Final = 0
"""With the key of a DEDUP row, without its table: its window ends."""
TTL_TIMER: Final = 1
"""With a message's id: it expires."""
DYING_TIMER: Final = 2
"""With a message's id: it is dying."""
RETENTION_TIMER: Final = 3
"""With a topic's name: what it retains may be too old."""
FILL_TIMER: Final = 4
"""With the key of a SUBSCRIPTION row, without its table: retained messages are to be copied."""
REST_TIMER: Final = 5
"""With the id of a topic that was removed: what it retained goes."""


def timer_key(at_ms: int, kind: int, what: bytes) -> bytes:
    return TIMER + at_ms.to_bytes(8, "big") + bytes((kind,)) + what


def unpack_timer(name: bytes) -> tuple[int, int, bytes]:
    """Time, kind, what."""
    return int.from_bytes(name[1:9], "big"), name[9], name[10:]


# ---- SCHEDULE


class Recurring(NamedTuple):
    """A recurring message."""

    next_ms: int
    """0 = never."""
    last_ms: int
    """0 = not yet."""
    definition: bytes


_RECURRING: Final = struct.Struct(">QQ")


def pack_recurring(recurring: Recurring) -> bytes:
    return _RECURRING.pack(recurring.next_ms, recurring.last_ms) + recurring.definition


def unpack_recurring(row: bytes) -> Recurring:
    next_ms, last_ms = _RECURRING.unpack_from(row)
    return Recurring(next_ms, last_ms, row[_RECURRING.size :])
