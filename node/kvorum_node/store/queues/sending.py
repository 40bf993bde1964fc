"""Messages that come: enqueues of commits, copies of topics, ticks of schedules."""

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import (
    DEFAULT_BACKOFF,
    MAX_DEDUP_ID_SIZE,
    MAX_GROUP_SIZE,
    MAX_HEADERS_SIZE,
    MAX_QUEUE_NAME_SIZE,
    MAX_WRITE_KEY_SIZE,
)

from ..errors import Refused
from ..records import MAX_DURATION, MAX_NUMBER
from . import dedup, formats, messages
from .formats import Payload
from .policies import Policy, policy_of
from .tallies import DUPLICATES, MESSAGES

if TYPE_CHECKING:
    from ..entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_QUEUE_FULL: Final = int(pb.OUTCOME_QUEUE_FULL)
_DUPLICATE: Final = ((DUPLICATES, 1),)


class Taken(NamedTuple):
    """What became of a message that was to be taken."""

    message_id: bytes
    duplicate: bool = False
    """It was not taken, and this one has its deduplication id."""


def enqueue(entry: "Entry", message: pb.Enqueue, stamp: bytes, number: int) -> None:
    """Add a message, the `number`th of the commit `stamp`; raises Refused with nothing changed."""
    queue = message.queue.encode()
    message_id = stamp + number.to_bytes(2, "big")
    if entry.tallies is not None and _is_plain(message) and len(queue) <= MAX_QUEUE_NAME_SIZE:
        policy = policy_of(entry, queue)
        if not (policy.ordered or policy.retention_ms):
            _make_room(entry, queue, policy)
            messages.add_plain(entry, message_id, queue, message)
            if not message.delay_ms:
                most = inf if policy.max_backlog is None else policy.max_backlog
                entry.fresh.open(queue, entry.tallies.of(queue), most, formats.plain_head(entry.time_ms))
            return
    check(message, with_options=entry.tallies is not None)
    if entry.tallies is None:
        backoff = tuple(message.backoff.delays_ms) if message.HasField("backoff") else DEFAULT_BACKOFF
        payload = Payload(entry.time_ms, backoff, tuple(message.keys_if_undelivered), message.payload)
        messages.add(entry, message_id, queue, payload, entry.time_ms + message.delay_ms)
        return
    taken = take_in(entry, message, queue, message_id, in_order=True)
    if taken.duplicate:
        entry.duplicates.append((number, taken.message_id))


def is_sure(entry: "Entry", message: pb.Enqueue) -> bool:
    """Whether it is certain that a message is not refused, whatever came before it in its commit; of the commonest ones
    only."""
    queue = message.queue.encode()
    if entry.tallies is None or not _is_plain(message) or len(queue) > MAX_QUEUE_NAME_SIZE:
        return False
    return entry.tallies.has(queue) and policy_of(entry, queue).max_backlog is None


def _is_plain(message: pb.Enqueue) -> bool:
    """Whether there is nothing but a payload and perhaps a delay: most messages take the short way."""
    return message.delay_ms <= MAX_DURATION and not (
        message.keys_if_undelivered
        or message.dedup_id
        or message.headers
        or message.ttl_ms
        or message.dedup_window_ms
        or message.topic
        or message.HasField("group")
        or message.HasField("backoff")
    )


def _make_room(entry: "Entry", queue: bytes, policy: Policy) -> None:
    """Raise Refused if the queue is full, or would be one too many."""
    if entry.tallies is None:
        raise AssertionError("named queues begin with data version 3")
    counts = entry.tallies.admit(queue)
    if policy.max_backlog is not None and counts[MESSAGES] >= policy.max_backlog:
        raise Refused(
            _QUEUE_FULL,
            f"queue {queue.decode()!r} holds {counts[MESSAGES]:,} messages, and its policy allows"
            f" {policy.max_backlog:,} (max_backlog): wait until some are done",
        )


def check(message: pb.Enqueue, *, with_options: bool = True) -> None:
    """Raise Refused if the formats cannot hold the message; `with_options`: what came with data version 3 counts."""
    backoff, keys = message.backoff.delays_ms, message.keys_if_undelivered
    if (
        len(message.queue.encode()) > MAX_QUEUE_NAME_SIZE
        or message.delay_ms > MAX_DURATION
        or max(len(backoff), len(keys)) > MAX_NUMBER
        or (with_options and not _options_fit(message))
    ):
        raise Refused(_INVALID, "an enqueue is beyond the limits")
    if keys and not all(0 < len(key) <= MAX_WRITE_KEY_SIZE for key in keys):
        raise Refused(_INVALID, "a key is empty or too long")


def _options_fit(message: pb.Enqueue) -> bool:
    return (
        max(message.ttl_ms, message.dedup_window_ms) <= MAX_DURATION
        and len(message.dedup_id) <= MAX_DEDUP_ID_SIZE
        and len(message.headers) <= MAX_HEADERS_SIZE
        and len(message.group.encode()) <= MAX_GROUP_SIZE
    )


def take_in(
    entry: "Entry",
    message: pb.Enqueue,
    queue: bytes,
    message_id: bytes,
    *,
    headers: bytes = b"",
    bounded: bool = True,
    in_order: bool = False,
) -> Taken:
    """Put a message that was checked into a queue, unless the queue remembers its deduplication id. `headers` come
    behind its own. `in_order`: its id is that of an enqueue. Raises Refused with nothing changed if it is `bounded` and
    the queue is full."""
    tallies = entry.tallies
    if tallies is None:
        raise AssertionError("named queues begin with data version 3")
    policy = policy_of(entry, queue)
    dedup_id = message.dedup_id
    if dedup_id:
        holder = dedup.holder(entry, queue, dedup_id)
        if holder is not None:
            tallies.add(queue, _DUPLICATE)
            return Taken(holder, duplicate=True)
    if bounded:
        _make_room(entry, queue, policy)
    payload = _payload(entry, message, policy, message.headers + headers)
    if dedup_id:
        dedup.remember(entry, queue, dedup_id, message_id, message.dedup_window_ms)
    messages.add(entry, message_id, queue, payload, entry.time_ms + message.delay_ms, in_order=in_order)
    return Taken(message_id)


def _payload(entry: "Entry", message: pb.Enqueue, policy: Policy, headers: bytes) -> Payload:
    group = message.group.encode() if message.HasField("group") else None
    ttl_ms = message.ttl_ms or policy.retention_ms
    dedup_id = message.dedup_id
    return Payload(
        enqueued_at_ms=entry.time_ms,
        backoff=tuple(message.backoff.delays_ms) if message.HasField("backoff") else None,
        undelivered_keys=tuple(message.keys_if_undelivered),
        payload=message.payload,
        group=group,
        own_group=policy.ordered and group is None,
        dedup_id=dedup_id,
        until_done=bool(dedup_id) and not message.dedup_window_ms,
        expires_ms=entry.time_ms + ttl_ms if ttl_ms else 0,
        headers=headers,
    )
