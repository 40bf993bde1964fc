"""Topics: a message for a topic becomes one in the queue of each of its subscriptions, in the same commit.

A topic may retain what was published for subscriptions that start in the past. Such a one gets its copies by and by; as
long as it has not got all of them, everything that is published is retained and comes to it in its turn, so that it
gets each message once and in order, whoever asked for it lives on or not.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import (
    MAX_COPIES,
    MAX_QUEUE_NAME_SIZE,
    MAX_SUBSCRIPTIONS,
    MAX_TOPIC_MESSAGES,
    MAX_TOPIC_SIZE,
    MAX_TOPICS,
    QUEUE_CHUNK,
)

from .. import checked
from ..errors import Refused
from ..records import MAX_DURATION, RETAINED, SUBSCRIPTION, TOPIC
from ..results import Denied
from . import sending, topic_formats, walks
from .formats import (
    FILL_TIMER,
    REST_TIMER,
    RETENTION_TIMER,
    timer_key,
)
from .topic_formats import (
    Subscription,
    Topic,
    retained_at,
    retained_key,
    retained_prefix,
    subscription_prefix,
)

if TYPE_CHECKING:
    from ..entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_RANGE: Final = int(pb.OUTCOME_RANGE_ERROR)
_FULL: Final = int(pb.OUTCOME_QUEUE_FULL)
MAX_COPIED_SIZE: Final = 32 << 20
"""Bytes of the copies that one commit makes. Part of the data version, as the next two."""
_TRIMMED_BY_PUBLISH: Final = 4
_TRIMMED_BY_SWEEP: Final = 256
_FILLED_AT_ONCE: Final = 4 << 20


def load(entry: "Entry", name: bytes) -> Topic | None:
    row = entry.rows.get(TOPIC + name)
    return None if row is None else topic_formats.unpack_topic(row)


def store(entry: "Entry", name: bytes, topic: Topic) -> None:
    entry.rows.put(TOPIC + name, topic_formats.pack_topic(topic))


class Copies:
    """What the topics of one commit may still make of it."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = self.size = 0

    def add(self, size: int) -> None:
        """Raises Refused beyond the limits."""
        self.count += 1
        self.size += size
        if self.count > MAX_COPIES:
            raise Refused(_RANGE, f"topics make more than {MAX_COPIES:,} messages of this write (MAX_COPIES)")
        if self.size > MAX_COPIED_SIZE:
            raise Refused(
                _RANGE, f"the copies that topics make of this write take more than {MAX_COPIED_SIZE:,} bytes in all"
            )


def publish(
    entry: "Entry", message: pb.Enqueue, stamp: bytes, number: int, copies: Copies, *, bounded: bool = True,
    headers: bytes = b"",
) -> Generator[None, None, None]:  # fmt: skip
    """Copy a message to all subscriptions; nobody gets it if there are none. Raises Refused midway: the commit needs a
    savepoint."""
    sending.check(message)
    name = message.topic.encode()
    if len(name) > MAX_QUEUE_NAME_SIZE:
        raise Refused(_INVALID, "a topic's name is too long")
    topic = load(entry, name)
    if topic is None:
        return
    prefix = subscription_prefix(topic.topic_id)
    names = [*walks.keys_below(entry.rows.txn, prefix)]
    for key in names:
        if topic.filling and _is_filling(entry, key):
            continue
        copies.add(len(message.payload))
        sending.take_in(entry, message, key[len(prefix) :], entry.next_id(stamp), headers=headers, bounded=bounded)
        if entry.spend_bytes(len(message.payload)):
            yield
    if topic.retention_ms or topic.filling:
        _retain(entry, name, topic, message, stamp + number.to_bytes(2, "big"), headers)


def _is_filling(entry: "Entry", key: bytes) -> bool:
    row = entry.rows.get(key)
    if row is None:
        raise checked.missing(key)
    return topic_formats.unpack_subscription(row).filling


def _retain(entry: "Entry", name: bytes, topic: Topic, message: pb.Enqueue, message_id: bytes, headers: bytes) -> None:
    kept = pb.Enqueue()
    kept.CopyFrom(message)
    kept.ClearField("topic")
    kept.headers = message.headers + headers
    row = kept.SerializeToString(deterministic=True)
    entry.rows.put(retained_key(topic.topic_id, entry.time_ms, message_id), row)
    timer_ms = topic.timer_ms
    if not timer_ms:
        timer_ms = _set_timer(entry, name, entry.time_ms + topic.retention_ms)
    topic = topic._replace(retained=topic.retained + 1, retained_size=topic.retained_size + len(row), timer_ms=timer_ms)
    store(entry, name, _trim(entry, topic, _TRIMMED_BY_PUBLISH))


def _set_timer(entry: "Entry", name: bytes, at_ms: int) -> int:
    entry.rows.txn.put(timer_key(at_ms, RETENTION_TIMER, name), b"")
    entry.note_expiry(at_ms)
    return at_ms


def _is_too_much(entry: "Entry", topic: Topic, key: bytes) -> bool:
    return (
        topic.retained > MAX_TOPIC_MESSAGES
        or topic.retained_size > MAX_TOPIC_SIZE
        or retained_at(key) + topic.retention_ms <= entry.time_ms
    )


def _trim(entry: "Entry", topic: Topic, most: int) -> Topic:
    """Delete the oldest messages that a topic need not retain any more; none while a subscription waits for them."""
    if topic.filling or topic.retained <= 1:
        return topic
    for key in _first(entry, retained_prefix(topic.topic_id), most):
        if not _is_too_much(entry, topic, key):
            break
        row = entry.rows.remove(key)
        if row is None:
            raise checked.missing(key)
        topic = topic._replace(retained=topic.retained - 1, retained_size=topic.retained_size - len(row))
    return topic


def _first(entry: "Entry", prefix: bytes, most: int, after: bytes = b"") -> list[bytes]:
    found: list[bytes] = []
    for key in walks.keys_below(entry.rows.txn, prefix, after):
        if len(found) == most:
            break
        found.append(key)
    return found


# ---- commands


def define(entry: "Entry", command: pb.DefineTopic, stamp: bytes) -> Generator[None, None, Denied | None]:
    """Make, change or remove a topic."""
    name = command.name.encode()
    topic = load(entry, name)
    if command.retention_ms > MAX_DURATION:
        return Denied(_INVALID, f"the retention of the topic is too long: {command.retention_ms:,} ms")
    if command.remove:
        if topic is not None:
            yield from _remove(entry, name, topic)
        return None
    if topic is None:
        made = _make(entry, stamp, command.retention_ms)
        if isinstance(made, Denied):
            return made
        topic = made
    elif topic.timer_ms:
        # the timer looks at what is there, and goes on from that
        entry.rows.txn.delete(timer_key(topic.timer_ms, RETENTION_TIMER, name))
        topic = topic._replace(timer_ms=_set_timer(entry, name, entry.time_ms))
    store(entry, name, topic._replace(retention_ms=command.retention_ms))
    return None


def _make(entry: "Entry", stamp: bytes, retention_ms: int) -> Topic | Denied:
    if entry.rows.topics >= MAX_TOPICS:
        return Denied(_FULL, f"there are {MAX_TOPICS:,} topics (MAX_TOPICS): remove some first")
    entry.rows.topics += 1
    return Topic(stamp, retention_ms)


def _remove(entry: "Entry", name: bytes, topic: Topic) -> Generator[None, None, None]:
    rows = entry.rows
    for key in _first(entry, subscription_prefix(topic.topic_id), MAX_SUBSCRIPTIONS):
        row = rows.remove(key)
        if row is not None:
            _stop_filling(entry, key, topic_formats.unpack_subscription(row))
        if entry.spend():
            yield
    if topic.timer_ms:
        rows.txn.delete(timer_key(topic.timer_ms, RETENTION_TIMER, name))
    rows.remove(TOPIC + name)
    rows.topics -= 1
    if topic.retained:
        rows.txn.put(timer_key(entry.time_ms, REST_TIMER, topic.topic_id), b"")
        entry.note_expiry(entry.time_ms)


def _stop_filling(entry: "Entry", key: bytes, subscription: Subscription) -> None:
    if subscription.filling:
        entry.rows.txn.delete(timer_key(subscription.timer_ms, FILL_TIMER, key[len(SUBSCRIPTION) :]))


def subscribe(entry: "Entry", command: pb.Subscribe, stamp: bytes) -> Generator[None, None, int | Denied]:
    """Begin, go on with, or end a subscription; makes the topic if there is none. Returns how many retained messages it
    has copied now: repeated until nothing is left to copy; the sweep does what nobody repeats."""
    name = command.topic.encode()
    topic = load(entry, name)
    if command.remove:
        if topic is not None:
            _unsubscribe(entry, name, topic, command.queue.encode())
        return 0
    if topic is None:
        made = _make(entry, stamp, 0)
        if isinstance(made, Denied):
            return made
        topic = made
        store(entry, name, topic)
    key = subscription_prefix(topic.topic_id) + command.queue.encode()
    row = entry.rows.get(key)
    if row is not None:
        subscription = topic_formats.unpack_subscription(row)
        return (yield from _fill(entry, key, subscription, stamp)) if subscription.filling else 0
    if topic.subscriptions >= MAX_SUBSCRIPTIONS:
        return Denied(
            _FULL,
            f"topic {command.topic!r} has {MAX_SUBSCRIPTIONS:,} subscriptions (MAX_SUBSCRIPTIONS): remove some first",
        )
    subscription = Subscription(name)
    if command.HasField("since_ms") and topic.retained:
        begin = max(0, entry.time_ms - command.since_ms).to_bytes(8, "big")
        subscription = Subscription(name, True, entry.time_ms, retained_prefix(topic.topic_id) + begin)
        entry.rows.txn.put(timer_key(entry.time_ms, FILL_TIMER, key[len(SUBSCRIPTION) :]), b"")
        entry.note_expiry(entry.time_ms)
    entry.rows.put(key, topic_formats.pack_subscription(subscription))
    store(
        entry,
        name,
        topic._replace(subscriptions=topic.subscriptions + 1, filling=topic.filling + subscription.filling),
    )
    return (yield from _fill(entry, key, subscription, stamp)) if subscription.filling else 0


def _unsubscribe(entry: "Entry", name: bytes, topic: Topic, queue: bytes) -> None:
    key = subscription_prefix(topic.topic_id) + queue
    row = entry.rows.remove(key)
    if row is None:
        return
    subscription = topic_formats.unpack_subscription(row)
    _stop_filling(entry, key, subscription)
    store(
        entry,
        name,
        topic._replace(subscriptions=topic.subscriptions - 1, filling=topic.filling - subscription.filling),
    )


def _fill(entry: "Entry", key: bytes, subscription: Subscription, stamp: bytes) -> Generator[None, None, int]:
    """Copy the next retained messages to a subscription; returns how many."""
    topic = load(entry, subscription.topic)
    if topic is None:
        raise checked.missing(TOPIC + subscription.topic)
    prefix = retained_prefix(topic.topic_id)
    queue = key[len(SUBSCRIPTION) + len(topic.topic_id) :]
    after = subscription.after
    count = size = 0
    found = _first(entry, prefix, QUEUE_CHUNK + 1, after)
    for place in found[:QUEUE_CHUNK]:
        row = entry.rows.get(place)
        if row is None:
            raise checked.missing(place)
        message = pb.Enqueue.FromString(row)
        sending.take_in(entry, message, queue, entry.next_id(stamp), bounded=False)
        after = place
        count += 1
        size += len(row)
        if entry.spend_bytes(len(row)):
            yield
        if size > _FILLED_AT_ONCE:
            break
    if count == len(found):
        _stop_filling(entry, key, subscription)
        entry.rows.put(key, topic_formats.pack_subscription(Subscription(subscription.topic)))
        store(entry, subscription.topic, topic._replace(filling=topic.filling - 1))
    else:
        entry.rows.put(key, topic_formats.pack_subscription(subscription._replace(after=after)))
    return count


# ---- timers


def retention_is_over(entry: "Entry", at_ms: int, name: bytes) -> Generator[None, None, None]:
    """Something that a topic retains may be too old."""
    topic = load(entry, name)
    if topic is None or topic.timer_ms != at_ms:
        raise checked.damaged(timer_key(at_ms, RETENTION_TIMER, name))
    entry.rows.txn.delete(timer_key(at_ms, RETENTION_TIMER, name))
    topic = topic._replace(timer_ms=0)
    for key in _first(entry, retained_prefix(topic.topic_id), _TRIMMED_BY_SWEEP):
        if topic.filling or not _is_too_much(entry, topic, key):
            break
        row = entry.rows.remove(key)
        if row is None:
            raise checked.missing(key)
        topic = topic._replace(retained=topic.retained - 1, retained_size=topic.retained_size - len(row))
        if entry.spend_bytes(len(row)):
            yield
    if topic.retained:
        (oldest,) = _first(entry, retained_prefix(topic.topic_id), 1)
        at_ms = max(retained_at(oldest) + topic.retention_ms, entry.time_ms + (_FILL_PAUSE if topic.filling else 0))
        topic = topic._replace(timer_ms=_set_timer(entry, name, at_ms))
    store(entry, name, topic)


_FILL_PAUSE: Final = 1_000
"""Milliseconds before a topic that keeps everything for a subscription is looked at again."""


def fill(entry: "Entry", at_ms: int, place: bytes, stamp: bytes) -> Generator[None, None, None]:
    """Go on copying to a subscription."""
    key = SUBSCRIPTION + place
    row = entry.rows.get(key)
    subscription = None if row is None else topic_formats.unpack_subscription(row)
    if subscription is None or not subscription.filling or subscription.timer_ms != at_ms:
        raise checked.damaged(timer_key(at_ms, FILL_TIMER, place))
    yield from _fill(entry, key, subscription, stamp)


def clear_rest(entry: "Entry", at_ms: int, topic_id: bytes) -> Generator[None, None, None]:
    """Delete what a removed topic had retained."""
    found = _first(entry, RETAINED + topic_id, _TRIMMED_BY_SWEEP + 1)
    for key in found[:_TRIMMED_BY_SWEEP]:
        row = entry.rows.remove(key)
        if entry.spend_bytes(0 if row is None else len(row)):
            yield
    if len(found) <= _TRIMMED_BY_SWEEP:
        checked.delete_index(entry.rows.txn, timer_key(at_ms, REST_TIMER, topic_id))
