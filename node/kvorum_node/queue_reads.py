"""Answers to questions about queues, read from one snapshot by slices.

Each function is the work of an `AsideJob`. A page ends early when it has `PAGE_BYTES`, so that no answer outgrows a
frame, whatever the messages weigh; where the next one begins goes with it.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, LimitExceeded

from .aside import Work
from .store import Snapshot, check_queue_name, queue_cursor

PAGE_BYTES: Final = 1_048_576
DEFAULT_PAGE: Final = 100
"""Rows of a page, if the question names no number."""
SLICE_MESSAGES: Final = 16
"""Messages read at a time: of the largest ones 1.2 MB."""
MAX_SHORT_SLICES: Final = 4
"""Slices of a page that had to look at many messages of others: the page ends with so many, and may be empty."""
SLICE_ROWS: Final = 64
"""Queues, topics or schedules read at a time."""


Sees = Callable[[str], bool]
"""Whether who asks may see what has this name."""


def _everything(_: object) -> bool:
    return True


def page_size(limit: int) -> int:
    """Rows that a question asks for. Raises LimitExceeded."""
    if limit > limits.MAX_PEEK:
        raise LimitExceeded("MAX_PEEK", limits.MAX_PEEK, limit, "rows of a page")
    return limit or DEFAULT_PAGE


def check_peek(call: pb.Peek) -> None:
    """Raises InvalidArgument."""
    page_size(call.limit)
    check_queue_name(call.queue)
    if call.message_id and len(call.message_id) != 12:
        raise InvalidArgument(f"a message id has 12 bytes, got {len(call.message_id)}")


def peek(call: pb.Peek, now_ms: int) -> Work[pb.QueueReply]:
    """Messages, left where they are."""

    def work(snapshot: Snapshot) -> Generator[None, None, pb.QueueReply]:
        reply = pb.QueueReply()
        if call.message_id:
            info = snapshot.message_info(call.message_id, now_ms)
            if info is not None:
                reply.messages.append(info)
            return reply
        limit, after, size, short = page_size(call.limit), call.after, 0, 0
        while True:
            count = min(SLICE_MESSAGES, limit - len(reply.messages))
            found, after = snapshot.peek(call.queue, call.kind, after, count, now_ms)
            reply.messages.extend(found)
            size += sum(info.ByteSize() for info in found)
            short += len(found) < count
            if not after or len(reply.messages) >= limit or size >= PAGE_BYTES or short == MAX_SHORT_SLICES:
                reply.after = after
                return reply
            yield

    return work


def queues(call: pb.ListQueues, now_ms: int, sees: Sees = _everything) -> Work[pb.QueueReply]:
    """Queues and their counters; with `counts` each of their messages is looked at."""

    def work(snapshot: Snapshot) -> Generator[None, None, pb.QueueReply]:
        reply = pb.QueueReply()
        limit, after, size = 1 if call.one else page_size(call.limit), call.after, 0
        while True:
            count = min(SLICE_ROWS, limit - len(reply.queues))
            found, after = snapshot.queue_infos(call.prefix, after, count, one=call.name if call.one else None)
            yield
            found = [info for info in found if sees(info.name)]
            for info in found:
                if call.counts:
                    yield from _count(snapshot, info, now_ms)
            reply.queues.extend(found)
            size += sum(info.ByteSize() for info in found)
            if not after or len(reply.queues) >= limit or size >= PAGE_BYTES:
                reply.after = queue_cursor(reply.queues[-1].name) if after else b""
                return reply

    return work


def _count(snapshot: Snapshot, info: pb.QueueInfo, now_ms: int) -> Generator[None, None, None]:
    for ready, scheduled, waiting in snapshot.queue_counts(info.name, now_ms):
        info.ready += ready
        info.scheduled += scheduled
        info.waiting += waiting
        yield


def topics(call: pb.ListTopics, sees: Sees = _everything) -> Work[pb.QueueReply]:
    """Topics and their subscriptions."""

    def work(snapshot: Snapshot) -> Generator[None, None, pb.QueueReply]:
        reply = pb.QueueReply()
        yield from _page(
            page_size(call.limit),
            call.after,
            reply.topics,
            snapshot.topic_infos,
            lambda info: sees(info.name),
            reply,
        )
        return reply

    return work


def schedules(call: pb.ListSchedules, sees: Callable[[pb.ScheduleInfo], bool] = _everything) -> Work[pb.QueueReply]:
    """Recurring messages."""

    def work(snapshot: Snapshot) -> Generator[None, None, pb.QueueReply]:
        reply = pb.QueueReply()
        yield from _page(
            page_size(call.limit),
            call.after,
            reply.schedules,
            snapshot.schedule_infos,
            sees,
            reply,
        )
        return reply

    return work


def _page(
    limit: int,
    after: bytes,
    infos: Any,
    read: Callable[[bytes, int], tuple[list[Any], bytes]],
    sees: Callable[[Any], bool],
    reply: pb.QueueReply,
) -> Generator[None, None, None]:
    """Put those that are seen into `infos`, which is a part of `reply`. The next page begins after one of them: a place
    that nobody is shown would tell its name."""
    while True:
        # one row may weigh as much as a message
        found, after = read(after, min(SLICE_MESSAGES, limit - len(infos)))
        infos.extend([info for info in found if sees(info)])
        if not after or len(infos) >= limit or reply.ByteSize() >= PAGE_BYTES:
            reply.after = infos[-1].name.encode() if after else b""
            return
        yield


def size_of(name: str, kind: str) -> Work[int]:
    """Rows that a purge, a requeue or a removal of this queue has to do with, as things stand: `kind` is "messages",
    "dead" or "all"."""

    def work(snapshot: Snapshot) -> Generator[None, None, int]:
        yield from ()
        found, _ = snapshot.queue_infos("", b"", 1, one=name)
        if not found:
            return 0
        info = found[0]
        return {"messages": info.messages, "dead": info.dead}.get(kind, info.messages + info.dead)

    return work
