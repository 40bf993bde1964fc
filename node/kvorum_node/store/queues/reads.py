"""Looking at queues, topics and schedules: pages of a snapshot. Whatever has to look at many rows does so by slices, so
that other work can be done in between."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_PEEK, MAX_QUEUE_NAME_SIZE

from .. import checked
from ..records import DEAD, LEASED, MESSAGE, MESSAGE_ID_SIZE, QUEUE, SCHEDULE, TALLY, TOPIC
from ..results import QueueFacts
from . import formats, messages, policies, tallies, topic_formats
from .formats import DEAD_STATE, DYING_STATE, LEASED_STATE, WAITING_STATE, Message, Origin, named, ready_prefix
from .walks import keys_below

if TYPE_CHECKING:
    import lmdb

Info = TypeVar("Info")

SCANNED: Final = 1_024
"""Rows that one page looks at, found or not, so that a page costs a few milliseconds; an empty page may have others
behind it."""
_TOPICS: Final = 64
"""Topics on one page: each may have hundreds of subscriptions."""
_PAGE_SIZE: Final = 1 << 20
"""Bytes of messages on one page, about."""


MAX_CURSOR: Final = 400
"""Bytes of a key; what a caller names as the place to go on from may be anything."""


def _fit(*names: bytes) -> bool:
    """Whether rows can have such names: LMDB takes longer keys for a fault."""
    return all(len(name) <= MAX_QUEUE_NAME_SIZE for name in names)


def facts(txn: "lmdb.Transaction[bytes]", queue: bytes) -> QueueFacts:
    """See `Store.queue_facts`."""
    if not _fit(queue):
        return QueueFacts(0, 0, False, 0)
    policy = policies.read(lambda name: checked.get(txn, name), queue)
    row = checked.get(txn, TALLY + queue)
    leased = 0 if row is None else tallies.unpack(row)[tallies.LEASED]
    return QueueFacts(policy.lease_ms, policy.max_in_flight, policy.paused, leased)


# ---- queues


def queue_infos(
    txn: "lmdb.Transaction[bytes]", prefix: str, after: bytes, limit: int, one: str | None
) -> tuple[list[pb.QueueInfo], bytes]:
    """See `Snapshot.queue_infos`."""
    if one is not None:
        info = _queue_info(txn, one.encode()) if _fit(one.encode()) else None
        return [] if info is None else [info], b""
    begin = TALLY + prefix.encode()
    found: list[pb.QueueInfo] = []
    if not _fit(prefix.encode()) or len(after) > MAX_CURSOR:
        return found, b""
    last = b""
    for seen, name in enumerate(keys_below(txn, begin, after)):
        if len(found) == min(limit, MAX_PEEK) or seen == SCANNED:
            return found, last
        last = name  # with its table: the nameless queue would be no place to go on from
        queue = name[len(TALLY) :]
        if not tallies.is_inbox(queue):
            info = _queue_info(txn, queue)
            if info is not None:
                found.append(info)
    return found, b""


def queue_cursor(queue: str) -> bytes:
    """The place from which a page of queues goes on behind this one."""
    return TALLY + queue.encode()


def _queue_info(txn: "lmdb.Transaction[bytes]", queue: bytes) -> pb.QueueInfo | None:
    row = checked.get(txn, TALLY + queue)
    if row is None:
        return None
    settings_row = checked.get(txn, QUEUE + queue)
    settings = formats.Settings() if settings_row is None else formats.unpack_settings(settings_row)
    count, leased, dead, sent, delivered, done, failed, lost, died, expired, duplicates = tallies.unpack(row)
    return pb.QueueInfo(
        name=queue.decode(),
        policy=settings.policy or b"",
        defined=settings.policy is not None,
        paused=settings.paused,
        messages=count,
        leased=leased,
        dead=dead,
        sent=sent,
        delivered=delivered,
        done=done,
        failed=failed,
        lost=lost,
        died=died,
        expired=expired,
        duplicates=duplicates,
        oldest_ms=_first_due(txn, queue) or 0,
    )


def _first_due(txn: "lmdb.Transaction[bytes]", queue: bytes) -> int | None:
    prefix = ready_prefix(queue)
    for name in keys_below(txn, prefix):
        return int.from_bytes(name[len(prefix) : len(prefix) + 8], "big")
    return None


class Counts(NamedTuple):
    """Of one slice; to be added up."""

    ready: int
    scheduled: int
    waiting: int


def queue_counts(txn: "lmdb.Transaction[bytes]", queue: bytes, now_ms: int) -> Iterator[Counts]:
    """See `Snapshot.queue_counts`."""
    if not _fit(queue):
        return
    prefix = ready_prefix(queue)
    after = prefix + (now_ms + 1).to_bytes(8, "big")
    idle = ready = scheduled = 0
    for seen, name in enumerate(keys_below(txn, prefix), 1):
        if name < after:
            ready += 1
        else:
            scheduled += 1
        if seen % SCANNED == 0:
            yield Counts(ready, scheduled, 0)
            idle += ready + scheduled
            ready = scheduled = 0
    idle += ready + scheduled
    row = checked.get(txn, TALLY + queue)
    counts = (0, 0) if row is None else tallies.unpack(row)
    # what is neither leased, nor ready, nor scheduled, waits; or is dying, which is over in a moment
    yield Counts(ready, scheduled, max(0, counts[0] - counts[1] - idle))


# ---- messages


def peek(
    txn: "lmdb.Transaction[bytes]", queue: bytes, kind: int, after: bytes, limit: int, now_ms: int
) -> tuple[list[pb.MessageInfo], bytes]:
    """See `Snapshot.peek`."""
    found: list[pb.MessageInfo] = []
    if not _fit(queue) or len(after) > MAX_CURSOR:
        return found, b""
    if kind == pb.PEEK_KIND_DEAD:
        table, wanted = DEAD + named(queue), _any
    elif kind == pb.PEEK_KIND_READY:
        table, wanted = ready_prefix(queue), _any
    elif kind == pb.PEEK_KIND_LEASED:
        table, wanted = LEASED, _any
    else:
        table, wanted = MESSAGE, _is_not_dead
    last, size = b"", 0
    for seen, name in enumerate(keys_below(txn, table, table[:1] + after if after else b"")):
        if len(found) == min(limit, MAX_PEEK) or seen == SCANNED or size > _PAGE_SIZE:
            return found, last
        last = name[1:]
        message_id = name[-MESSAGE_ID_SIZE:]
        message = messages.load(txn, message_id)
        if message is None:
            raise checked.damaged(name)
        if message.queue == queue and wanted(message):
            info = _message_info(txn, message_id, message, now_ms)
            size += len(info.payload)
            found.append(info)
    return found, b""


def _any(message: Message) -> bool:
    return True


def _is_not_dead(message: Message) -> bool:
    return message.state not in (DEAD_STATE, DYING_STATE)


def message_info(txn: "lmdb.Transaction[bytes]", message_id: bytes, now_ms: int) -> pb.MessageInfo | None:
    """See `Snapshot.message_info`."""
    message = messages.load(txn, message_id)
    return None if message is None else _message_info(txn, message_id, message, now_ms)


_STATES: Final = {
    LEASED_STATE: pb.MESSAGE_STATE_LEASED,
    WAITING_STATE: pb.MESSAGE_STATE_WAITING,
    DEAD_STATE: pb.MESSAGE_STATE_DEAD,
    DYING_STATE: pb.MESSAGE_STATE_DEAD,
}


def _message_info(txn: "lmdb.Transaction[bytes]", message_id: bytes, message: Message, now_ms: int) -> pb.MessageInfo:
    payload = messages.load_payload(txn, message_id)
    idle = pb.MESSAGE_STATE_SCHEDULED if message.due_ms > now_ms else pb.MESSAGE_STATE_READY
    dead = message.state == DEAD_STATE
    info = pb.MessageInfo(
        message_id=message_id,
        queue=message.queue.decode(),
        state=_STATES.get(message.state, idle),
        enqueued_at_ms=payload.enqueued_at_ms,
        due_ms=0 if dead else message.due_ms,
        attempt=message.attempt,
        payload=payload.payload,
        headers=payload.headers,
        group=None if payload.group is None else payload.group.decode(),
        dedup_id=payload.dedup_id,
        session=message.session,
        consumer=message.consumer,
        failures=[failure.message() for failure in messages.failures(txn, message_id)],
        expires_ms=0 if dead else payload.expires_ms,
    )
    origin = payload.origin
    if origin is None and dead:
        origin = Origin(message.queue, message_id, payload.enqueued_at_ms, message.due_ms, message.attempt)
    if origin is not None:
        info.origin.CopyFrom(origin.message())
    return info


# ---- topics and schedules


def topic_infos(txn: "lmdb.Transaction[bytes]", after: bytes, limit: int) -> tuple[list[pb.TopicInfo], bytes]:
    """See `Snapshot.topic_infos`."""

    def info(name: bytes, row: bytes) -> pb.TopicInfo:
        topic = topic_formats.unpack_topic(row)
        prefix = topic_formats.subscription_prefix(topic.topic_id)
        return pb.TopicInfo(
            name=name.decode(),
            retention_ms=topic.retention_ms,
            queues=[key[len(prefix) :].decode() for key in keys_below(txn, prefix)],
            retained=topic.retained,
            retained_bytes=topic.retained_size,
        )

    return _page(txn, TOPIC, after, min(limit, _TOPICS), info)


def schedule_infos(txn: "lmdb.Transaction[bytes]", after: bytes, limit: int) -> tuple[list[pb.ScheduleInfo], bytes]:
    """See `Snapshot.schedule_infos`."""

    def info(name: bytes, row: bytes) -> pb.ScheduleInfo:
        recurring = formats.unpack_recurring(row)
        return pb.ScheduleInfo(
            name=name.decode(),
            definition=recurring.definition,
            next_ms=recurring.next_ms,
            last_ms=recurring.last_ms,
        )

    return _page(txn, SCHEDULE, after, limit, info)


def schedule_info(txn: "lmdb.Transaction[bytes]", name: str) -> pb.ScheduleInfo | None:
    """One schedule."""
    row = checked.get(txn, SCHEDULE + name.encode()) if _fit(name.encode()) else None
    if row is None:
        return None
    recurring = formats.unpack_recurring(row)
    return pb.ScheduleInfo(
        name=name, definition=recurring.definition, next_ms=recurring.next_ms, last_ms=recurring.last_ms
    )


def _page(
    txn: "lmdb.Transaction[bytes]", table: bytes, after: bytes, limit: int, make: Callable[[bytes, bytes], Info]
) -> tuple[list[Info], bytes]:
    """Infos of the rows of a table that come after a name, and the name to go on after; empty = that is all."""
    found: list[Info] = []
    last = b""
    if len(after) > MAX_CURSOR:
        return found, last
    for name in keys_below(txn, table, table + after if after else b""):
        if len(found) == min(limit, MAX_PEEK):
            return found, last
        row = checked.get(txn, name)
        if row is None:
            raise checked.missing(name)
        last = name[len(table) :]
        found.append(make(last, row))
    return found, b""
