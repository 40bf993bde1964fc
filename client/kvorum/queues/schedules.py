"""Recurring messages: exactly one for each tick."""

from typing import Any

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, LimitExceeded, shown
from kvorum.queues.desk import Desk
from kvorum.queues.infos import MISFIRES, ScheduleInfo, pages, schedule_info
from kvorum.queues.outgoing import SendOptions, outgoing, outgoing_to_topic, queue_name

_PAGE = 100


def schedule_call(
    name: str,
    cron: str,
    queue: str | None,
    topic: str | None,
    value: object,
    time_zone: str,
    misfire: str,
    grace: Duration | None,
    options: SendOptions,
) -> pb.DefineSchedule:
    """Errors: InvalidArgument, LimitExceeded, InvalidValue, InvalidKey."""
    if (queue is None) == (topic is None):
        raise InvalidArgument("a schedule sends to a queue or to a topic: give one of them")
    if options.get("delay") is not None:
        raise InvalidArgument("a recurring message has no delay: its ticks say when it is due")
    if not isinstance(misfire, str) or misfire not in MISFIRES:
        raise InvalidArgument(f"misfire is one of {', '.join(MISFIRES)}: received {shown(misfire)}")
    for text, what in ((cron, "cron"), (time_zone, "time_zone")):
        if not isinstance(text, str):
            raise InvalidArgument(f"{what} must be a str, got {type(text).__name__}")
        if len(text.encode(errors="replace")) > limits.MAX_CRON_SIZE:
            raise LimitExceeded("MAX_CRON_SIZE", limits.MAX_CRON_SIZE, len(text.encode(errors="replace")), what)
    made = pb.Schedule(cron=cron, time_zone="" if time_zone == "UTC" else time_zone, misfire=MISFIRES[misfire])
    if grace is not None:
        made.grace_ms = max(1, milliseconds(grace, "grace", "MAX_RETENTION", limits.MAX_RETENTION))
    if topic is not None:
        made.message.CopyFrom(outgoing_to_topic(value, topic, options))
    else:
        assert queue is not None
        made.message.CopyFrom(outgoing(value, queue, options))
    return pb.DefineSchedule(name=schedule_name(name), definition=made.SerializeToString(deterministic=True))


def schedule_name(name: str) -> str:
    """Errors: InvalidArgument, LimitExceeded."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a schedule's name is a str that is not empty, got {shown(name)}")
    return queue_name(name)


async def listed_schedules(desk: Desk, timeout: Duration | None) -> list[ScheduleInfo]:
    """All schedules, in order of their names."""

    def ask(after: bytes) -> dict[str, Any]:
        return {"schedules": pb.ListSchedules(limit=_PAGE, after=after)}

    return [schedule_info(info) async for reply in pages(desk, ask, timeout) for info in reply.schedules]
