"""What a change of queues becomes in the log: one command, or many small ones after each other."""

from collections.abc import Generator
from typing import Any, Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, LimitExceeded

from .aside import Work
from .cron import Cron
from .queue_jobs import Chunk
from .store import Snapshot, validate_command

_AT_ONCE: Final = {
    "define": "define_queue",
    "pause": "pause_queue",
    "topic": "define_topic",
    "subscribe": "subscribe",
    "put_token": "put_token",
    "remove_token": "remove_token",
    "switch_auth": "switch_auth",
}
"""Kinds of changes, and the commands that they are."""
_BIT_BY_BIT: Final = {"purge": "purge", "requeue": "requeue", "remove": "remove_queue"}
"""Those of many small commands, of which each says where it goes on."""


def command_of(kind: str, request: pb.QueueCall) -> pb.Command:
    """The command of a change. What is the leader's to say is not taken from the caller."""
    asked: Any = getattr(request, kind)
    if kind == "schedule":
        return pb.Command(define_schedule=pb.DefineSchedule(name=asked.name, definition=asked.definition))
    if kind in _AT_ONCE:
        return pb.Command(**{_AT_ONCE[kind]: asked})
    name = _BIT_BY_BIT[kind]
    command = pb.Command(**{name: asked})
    getattr(command, name).ClearField("after")
    return command


def stamped(chunk: Chunk, principal: bytes) -> Chunk:
    def next_chunk(touched: int, progress: bool) -> pb.Command | None:
        command = chunk(touched, progress)
        if command is not None:
            command.principal = principal
        return command

    return next_chunk


def _with_limit(command: pb.Command, limit: int) -> pb.Command:
    chunk = pb.Command()
    chunk.CopyFrom(command)
    kind = command.WhichOneof("command")
    if kind in ("purge", "requeue", "remove_queue"):
        getattr(chunk, kind).limit = limit
    return chunk


def repeated(command: pb.Command) -> Chunk:
    """Until nothing is left."""
    chunk = _with_limit(command, limits.QUEUE_CHUNK)
    return lambda touched, progress: chunk if progress else None


def up_to(command: pb.Command, most: int) -> Chunk:
    """Until nothing is left, or so many messages are done."""

    def next_chunk(touched: int, progress: bool) -> pb.Command | None:
        left = min(most - touched, limits.QUEUE_CHUNK)
        return _with_limit(command, left) if progress and left > 0 else None

    return next_chunk


class ById:
    """Dead letters that were named, in chunks; each is repeated while it moves something, since what one command may
    move is bounded in bytes as well."""

    def __init__(self, requeue: pb.Requeue) -> None:
        self._requeue = requeue
        self._position = 0

    def __call__(self, touched: int, progress: bool) -> pb.Command | None:
        if not progress:
            self._position += limits.QUEUE_CHUNK
        return _chunk_by_id(self._requeue, self._position)


def _chunk_by_id(requeue: pb.Requeue, position: int) -> pb.Command | None:
    ids = requeue.message_ids[position : position + limits.QUEUE_CHUNK]
    if not ids:
        return None
    chunk = pb.Requeue(queue=requeue.queue, message_ids=ids, limit=len(ids), to_origin=requeue.to_origin)
    return pb.Command(requeue=chunk)


def check_by_id(requeue: pb.Requeue) -> None:
    """Raises InvalidArgument."""
    count = len(requeue.message_ids)
    if count > limits.MAX_PEEK:
        raise LimitExceeded("MAX_PEEK", limits.MAX_PEEK, count, "messages of one call")
    for position in range(0, count, limits.QUEUE_CHUNK):
        chunk = _chunk_by_id(requeue, position)
        if chunk is not None:
            validate_command(chunk)


def first_tick(call: pb.DefineSchedule, now_ms: int) -> Work[int | None]:
    """The first tick of a schedule; None if it stands there with this definition already. In the thread of the lists,
    since to find that an expression never matches takes a while."""

    def work(snapshot: Snapshot) -> Generator[None, None, int | None]:
        yield from ()
        schedule = pb.Schedule.FromString(call.definition)
        cron = Cron(schedule.cron, schedule.time_zone)
        before = snapshot.schedule_info(call.name)
        if before is not None and before.definition == call.definition:
            return None
        first = cron.next(now_ms)
        if first is None:
            raise InvalidArgument(f"{schedule.cron!r} names no moment of the next 50 years")
        return first

    return work
