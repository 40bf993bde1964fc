"""What can be seen of queues, messages, topics and schedules without touching them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration
from kvorum.errors import DataError, InvalidArgument, shown
from kvorum.queues.delivered import (
    DeadLetterInfo,
    Failure,
    dead_letter_info,
    failures_of,
    moment,
    shown_headers,
)
from kvorum.queues.desk import Desk
from kvorum.queues.intake import whole_number
from kvorum.queues.policy import QueuePolicy, policy_of
from kvorum.values import decode_payload

Kind = Literal["all", "ready", "leased", "dead"]
State = Literal["ready", "scheduled", "waiting", "leased", "dead", "unknown"]
Misfire = Literal["skip", "once", "all"]

KINDS: Final[Mapping[str, "pb.PeekKind"]] = {
    "all": pb.PEEK_KIND_UNSPECIFIED,
    "ready": pb.PEEK_KIND_READY,
    "leased": pb.PEEK_KIND_LEASED,
    "dead": pb.PEEK_KIND_DEAD,
}
_STATES: Final[Mapping[int, State]] = {
    pb.MESSAGE_STATE_READY: "ready",
    pb.MESSAGE_STATE_SCHEDULED: "scheduled",
    pb.MESSAGE_STATE_WAITING: "waiting",
    pb.MESSAGE_STATE_LEASED: "leased",
    pb.MESSAGE_STATE_DEAD: "dead",
}
MISFIRES: Final[Mapping[str, "pb.Misfire"]] = {
    "skip": pb.MISFIRE_SKIP,
    "once": pb.MISFIRE_ONCE,
    "all": pb.MISFIRE_ALL,
}
_PAGE: Final = 100


@dataclass(frozen=True)
class MessageInfo:
    """A message as it stands in its queue."""

    id: str
    queue: str
    state: State
    """`ready`; `scheduled`: due later; `waiting`: behind others of its group; `leased`; `dead`."""
    value: Any
    enqueued_at: datetime
    due_at: datetime | None
    """None of a dead one."""
    attempt: int
    """Attempts so far."""
    group: str | None
    headers: Mapping[str, str]
    dedup_id: str | None
    expires_at: datetime | None
    """When it is dropped if it is not done by then."""
    failures: tuple[Failure, ...]
    """The first attempt that failed, and the last ones."""
    origin: DeadLetterInfo | None
    """Of a dead letter, or a message of a dead letter queue: where it comes from."""
    holder: str | None
    """Of a leased one: the session and consumer that have it."""


@dataclass(frozen=True)
class QueueStats:
    """A queue, and what happened to its messages since it was first used."""

    name: str
    policy: QueuePolicy | None
    """None: it was not defined, all is by default."""
    paused: bool
    messages: int
    """All but the dead."""
    leased: int
    dead: int
    ready: int
    scheduled: int
    """Due later."""
    waiting: int
    """Behind others of their group."""
    oldest_age: timedelta | None
    """How long the message that was due first has been due; None: none is ready."""
    sent: int
    delivered: int
    done: int
    failed: int
    """Attempts."""
    lost: int
    """Attempts whose consumer was lost, or let the lease lapse."""
    died: int
    expired: int
    duplicates: int
    consumers: int
    sent_per_s: float
    """Over the last minute."""
    done_per_s: float


@dataclass(frozen=True)
class TopicInfo:
    """A topic."""

    name: str
    retention: timedelta | None
    """How long messages are kept for subscriptions that start in the past; None: not at all."""
    queues: tuple[str, ...]
    """Its subscriptions."""
    retained: int
    """Messages."""
    retained_bytes: int


@dataclass(frozen=True)
class ScheduleInfo:
    """A recurring message."""

    name: str
    cron: str
    time_zone: str
    queue: str
    topic: str
    value: Any
    misfire: Misfire
    grace: timedelta
    next_at: datetime | None
    """None: never."""
    last_at: datetime | None
    """The moment that its last message stood for; None: there was none yet."""


# ---- from the wire


def message_info(info: pb.MessageInfo) -> MessageInfo:
    """Errors: DataError."""
    failures = failures_of(info.failures)
    try:
        value = decode_payload(info.payload)
    except DataError as error:
        raise DataError(f"message {info.message_id.hex()}: {error}") from error
    return MessageInfo(
        id=info.message_id.hex(),
        queue=info.queue,
        state=_STATES.get(info.state, "unknown"),
        value=value,
        enqueued_at=moment(info.enqueued_at_ms),
        due_at=moment(info.due_ms) if info.due_ms else None,
        attempt=info.attempt,
        group=info.group if info.HasField("group") else None,
        headers=shown_headers(pb.Headers.FromString(info.headers)),
        dedup_id=info.dedup_id.decode(errors="replace") or None,
        expires_at=moment(info.expires_ms) if info.expires_ms else None,
        failures=failures,
        origin=dead_letter_info(info.origin, failures) if info.HasField("origin") else None,
        holder=f"{info.session.hex()}/{info.consumer}" if info.state == pb.MESSAGE_STATE_LEASED else None,
    )


def queue_stats(info: pb.QueueInfo, time_ms: int) -> QueueStats:
    """`time_ms`: the cluster's time when it was asked."""
    due = info.oldest_ms and info.oldest_ms <= time_ms  # the first one may be scheduled
    age = timedelta(milliseconds=time_ms - info.oldest_ms) if due else None
    return QueueStats(
        name=info.name,
        policy=policy_of(info.policy) if info.defined else None,
        paused=info.paused,
        messages=info.messages,
        leased=info.leased,
        dead=info.dead,
        ready=info.ready,
        scheduled=info.scheduled,
        waiting=info.waiting,
        oldest_age=age,
        sent=info.sent,
        delivered=info.delivered,
        done=info.done,
        failed=info.failed,
        lost=info.lost,
        died=info.died,
        expired=info.expired,
        duplicates=info.duplicates,
        consumers=info.consumers,
        sent_per_s=info.sent_per_s,
        done_per_s=info.done_per_s,
    )


def topic_info(info: pb.TopicInfo) -> TopicInfo:
    retention = timedelta(milliseconds=info.retention_ms) if info.retention_ms else None
    return TopicInfo(info.name, retention, tuple(info.queues), info.retained, info.retained_bytes)


def schedule_info(info: pb.ScheduleInfo) -> ScheduleInfo:
    """Errors: DataError."""
    own = pb.Schedule.FromString(info.definition)
    misfires: dict[int, Misfire] = {pb.MISFIRE_SKIP: "skip", pb.MISFIRE_ALL: "all"}
    return ScheduleInfo(
        name=info.name,
        cron=own.cron,
        time_zone=own.time_zone or "UTC",
        queue=own.message.queue,
        topic=own.message.topic,
        value=decode_payload(own.message.payload),
        misfire=misfires.get(own.misfire, "once"),
        grace=timedelta(milliseconds=own.grace_ms or limits.DEFAULT_GRACE),
        next_at=moment(info.next_ms) if info.next_ms else None,
        last_at=moment(info.last_ms) if info.last_ms else None,
    )


# ---- pages


async def pages(
    desk: Desk, ask: Callable[[bytes], dict[str, Any]], timeout: Duration | None
) -> AsyncIterator[pb.QueueReply]:
    """All pages of a list; `ask` makes the call for the page after a place. Each is one snapshot."""
    after = b""
    while True:
        reply = await desk.call(timeout, **ask(after))
        yield reply
        after = reply.after
        if not after:
            return


async def peeked(
    desk: Desk, queue: str, kind: str, timeout: Duration | None, limit: int | None = None
) -> AsyncGenerator[MessageInfo, None]:
    """Messages of a queue, `limit` at most. Errors: InvalidArgument, DataError."""
    wanted = peek_kind(kind)
    left = None if limit is None else whole_number(limit, "limit", 1)

    def ask(after: bytes) -> dict[str, Any]:
        most = _PAGE if left is None else min(left, limits.MAX_PEEK)
        return {"peek": pb.Peek(queue=queue, kind=wanted, limit=most, after=after)}

    async for reply in pages(desk, ask, timeout):
        for info in reply.messages:
            yield message_info(info)
        if left is not None:
            left -= len(reply.messages)
            if left <= 0:
                return


def peek_kind(kind: str) -> "pb.PeekKind":
    """Errors: InvalidArgument."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidArgument(f"kind is one of {', '.join(KINDS)}: received {shown(kind)}")
    return KINDS[kind]


async def listed_queues(desk: Desk, prefix: str, timeout: Duration | None, *, counts: bool) -> list[QueueStats]:
    """All queues whose names begin so, in order of their names."""
    if not isinstance(prefix, str):
        raise InvalidArgument(f"a prefix of queues' names is a str, got {type(prefix).__name__}")

    def ask(after: bytes) -> dict[str, Any]:
        return {"queues": pb.ListQueues(prefix=prefix, limit=_PAGE, after=after, counts=counts)}

    return [queue_stats(info, reply.time_ms) async for reply in pages(desk, ask, timeout) for info in reply.queues]


async def one_queue(desk: Desk, name: str, timeout: Duration | None, *, counts: bool) -> QueueStats | None:
    """None: it is neither defined nor in use."""
    reply = await desk.call(timeout, queues=pb.ListQueues(name=name, one=True, limit=1, counts=counts))
    return queue_stats(reply.queues[0], reply.time_ms) if reply.queues else None
