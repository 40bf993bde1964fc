"""Messages that could not be delivered: what becomes of them, and how they come back.

One that names keys for this case is written there. Any other one stays with its queue as a dead letter, or becomes a
message of another queue, or is dropped, as its queue's policy says. A message that has died once already and has come
to a dead letter queue stays there.

Ten keys of 64 KiB for each of a thousand messages that one commit rejects would be more than an entry can bear. Beyond
some megabytes such a message only begins to die: it is out of its holder's hands, nobody gets it any more, and the next
sweeps write its keys.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import QUEUE_CHUNK

from .. import checked, keyspace
from ..records import MESSAGE, MESSAGE_ID_SIZE
from ..results import Unfinished
from . import dedup, formats, messages
from .formats import (
    DEAD_STATE,
    DYING_STATE,
    DYING_TIMER,
    Failure,
    Message,
    Origin,
    Payload,
    index_key,
    timer_key,
)
from .policies import DROP, TO_QUEUE, policy_of
from .tallies import DEAD, DIED, EXPIRED, MESSAGES
from .walks import Walk, first_dead, idle

if TYPE_CHECKING:
    from ..entry import Entry
    from .tallies import Deltas

_V8: Final = int(pb.VALUE_ENCODING_V8)
WRITTEN_AT_ONCE: Final = 4 << 20
"""Bytes of undelivered messages, over all their keys, that one entry writes. Part of the data version, as is the next
one."""
MOVED_AT_ONCE: Final = 4 << 20
"""Bytes of messages that one command moves or deletes, about."""

_DROPPED: Final = ((MESSAGES, -1), (DIED, 1))
_KEPT: Final = ((MESSAGES, -1), (DEAD, 1), (DIED, 1))
_HAS_EXPIRED: Final = ((MESSAGES, -1), (EXPIRED, 1))
_LEFT: Final = ((MESSAGES, -1),)
_NO_LONGER_DEAD: Final = ((DEAD, -1),)


def bury(
    entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes, failure: Failure | None
) -> None:
    """A message has failed for the last time; it stands in no index any more but that of its group."""
    if payload.undelivered_keys:
        if not _put_off(entry, message_id, message, payload):
            _undeliver(entry, message_id, message, payload, stamp, _DROPPED)
        return
    policy = policy_of(entry, message.queue)
    if policy.dead_letters == DROP:
        _drop(entry, message_id, message, _DROPPED)
        return
    found = messages.failures(entry.rows.txn, message_id)
    if failure is not None:
        found.append(failure)
    if policy.dead_letters == TO_QUEUE and payload.origin is None and policy.dead_letter_queue != message.queue:
        _move(entry, message_id, message, payload, stamp, found)
    else:
        _keep(entry, message_id, message, payload, stamp, found)


def expire(entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes) -> None:
    """A message was not done in time; it stands in no index any more but that of its group."""
    if not payload.undelivered_keys:
        _drop(entry, message_id, message, _HAS_EXPIRED)
    elif not _put_off(entry, message_id, message, payload):
        _undeliver(entry, message_id, message, payload, stamp, _HAS_EXPIRED)


def finish_dying(entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes) -> None:
    """What was put off when the message died, or expired."""
    has_expired = payload.expires_ms and payload.expires_ms <= message.due_ms
    _undeliver(entry, message_id, message, payload, stamp, _HAS_EXPIRED if has_expired else _DROPPED)


def _undeliver(
    entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes, deltas: "Deltas"
) -> None:
    """Write a message to its keys, and delete it."""
    for key in payload.undelivered_keys:
        keyspace.write(entry, key, _V8, payload.payload, stamp)
    entry.undelivered_size += _written_size(payload)
    _drop(entry, message_id, message, deltas)


def _written_size(payload: Payload) -> int:
    keys = payload.undelivered_keys
    return sum(map(len, keys)) + len(keys) * len(payload.payload)


def _drop(entry: "Entry", message_id: bytes, message: Message, deltas: "Deltas") -> None:
    messages.forget(entry, message_id, message)
    if entry.tallies is not None:
        entry.tallies.add(message.queue, deltas)


def _put_off(entry: "Entry", message_id: bytes, message: Message, payload: Payload) -> bool:
    """Leave it to the sweep if the entry has written much already. Its group goes on without it."""
    if entry.tallies is None or entry.undelivered_size + _written_size(payload) <= WRITTEN_AT_ONCE:
        return False
    messages.part(entry, message_id, message, payload)
    dying = Message(message.queue, entry.time_ms, message.attempt, state=DYING_STATE)
    entry.rows.put(MESSAGE + message_id, formats.pack_message(dying))
    entry.rows.txn.put(timer_key(entry.time_ms, DYING_TIMER, message_id), b"")
    entry.note_expiry(entry.time_ms)
    return True


def _keep(
    entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes, found: list[Failure]
) -> None:
    messages.part(entry, message_id, message, payload)
    dead = Message(message.queue, entry.time_ms, message.attempt, state=DEAD_STATE, place=entry.next_id(stamp))
    entry.rows.put(MESSAGE + message_id, formats.pack_message(dead))
    entry.rows.txn.put(formats.dead_key(message_id, dead), b"")
    messages.put_failures(entry, message_id, found)
    if entry.tallies is not None:
        entry.tallies.add(message.queue, _KEPT)


def _move(
    entry: "Entry", message_id: bytes, message: Message, payload: Payload, stamp: bytes, found: list[Failure]
) -> None:
    """It becomes a message of the dead letter queue, in the order of deaths."""
    target = policy_of(entry, message.queue).dead_letter_queue
    origin = Origin(message.queue, message_id, payload.enqueued_at_ms, entry.time_ms, message.attempt)
    _drop(entry, message_id, message, _DROPPED)
    new_id = entry.next_id(stamp)
    messages.put_failures(entry, new_id, found)
    messages.add(entry, new_id, target, _anew(entry, payload, target, origin), entry.time_ms)


def _anew(entry: "Entry", payload: Payload, queue: bytes, origin: Origin | None) -> Payload:
    """What a message is in another life: its group, headers and backoff stay, the queue says how long it is kept."""
    policy = policy_of(entry, queue)
    return payload._replace(
        enqueued_at_ms=entry.time_ms,
        own_group=policy.ordered and payload.group is None,
        expires_ms=entry.time_ms + policy.retention_ms if policy.retention_ms else 0,
        origin=origin,
    )


# ---- coming back


def requeue(entry: "Entry", command: pb.Requeue, stamp: bytes) -> Generator[None, None, int | Unfinished]:
    """Make dead letters new messages, behind all others; returns how many. Those of a dead letter queue go to where
    they come from."""
    queue = command.queue.encode()
    limit = min(command.limit or QUEUE_CHUNK, QUEUE_CHUNK)
    ids = [message_id for message_id in command.message_ids if len(message_id) == MESSAGE_ID_SIZE]
    walk = None
    if not command.message_ids and command.to_origin:
        walk = Walk(entry, command.after)
        ids = yield from idle(walk, queue, limit, with_origin=True)
    elif not command.message_ids:
        ids = yield from first_dead(entry, queue, limit)
    count = size = 0
    for message_id in ids:
        moved = _revive(entry, message_id, queue, stamp, to_origin=command.to_origin)
        if moved:
            count += 1
            size += moved
        if entry.spend_bytes(moved):
            yield
        if count == limit or size > MOVED_AT_ONCE:
            break
    return count if walk is None else walk.output(ids, count)


def _revive(entry: "Entry", message_id: bytes, queue: bytes, stamp: bytes, *, to_origin: bool) -> int:
    """Returns the size of the message, 0 if it is not (any longer) what was meant."""
    txn = entry.rows.txn
    message = messages.load(txn, message_id)
    if message is None or message.queue != queue:
        return 0
    if message.lease_id or message.state == DYING_STATE or (message.state != DEAD_STATE) != to_origin:
        return 0
    payload = messages.load_payload(txn, message_id)
    origin = payload.origin
    if to_origin and origin is None:
        return 0
    place = index_key(message_id, message)
    if place is not None:
        checked.delete_index(txn, place)
    target = origin.queue if to_origin and origin is not None else queue
    found = [] if to_origin or origin is None else messages.failures(txn, message_id)
    _drop(entry, message_id, message, _LEFT if to_origin else _NO_LONGER_DEAD)
    new_id = entry.next_id(stamp)
    if payload.until_done and dedup.holder(entry, target, payload.dedup_id) is None:
        dedup.remember(entry, target, payload.dedup_id, new_id, 0)
    if found:  # why it died elsewhere is told with where it comes from
        messages.put_failures(entry, new_id, found)
    messages.add(entry, new_id, target, _anew(entry, payload, target, None if to_origin else origin), entry.time_ms)
    return len(payload.payload) + 1
