"""Recurring messages. The leader works out when the next tick is; here it is compared and set, so that however many
leaders propose a tick there is exactly one message for it."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_SCHEDULES

from ..errors import Refused
from ..records import SCHEDULE
from ..results import Denied
from . import formats, sending, topics
from .formats import Recurring

if TYPE_CHECKING:
    from ..entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_FULL: Final = int(pb.OUTCOME_QUEUE_FULL)


def define(entry: "Entry", command: pb.DefineSchedule) -> Denied | None:
    """Make, change or remove a recurring message. The last tick of one that is changed stays known."""
    rows = entry.rows
    name = SCHEDULE + command.name.encode()
    row = rows.get(name)
    if not command.definition:
        if row is not None:
            rows.remove(name)
            rows.schedules -= 1
            entry.result.schedules_changed = True
        return None
    try:
        pb.Schedule.FromString(command.definition)
    except DecodeError:
        return Denied(_INVALID, "the definition cannot be decoded")
    if row is None:
        if rows.schedules >= MAX_SCHEDULES:
            return Denied(_FULL, f"there are {MAX_SCHEDULES:,} schedules (MAX_SCHEDULES): remove some first")
        rows.schedules += 1
    last_ms = 0 if row is None else formats.unpack_recurring(row).last_ms
    rows.put(name, formats.pack_recurring(Recurring(command.next_ms, last_ms, command.definition)))
    entry.result.schedules_changed = True
    return None


def tick(entry: "Entry", command: pb.Tick, stamp: bytes) -> Generator[None, None, bool]:
    """The message of a tick, if it is the next one and due; False = it is not. A full queue takes it all the same."""
    name = SCHEDULE + command.schedule.encode()
    row = entry.rows.get(name)
    recurring = None if row is None else formats.unpack_recurring(row)
    if recurring is None or not recurring.next_ms or recurring.next_ms != command.tick_ms:
        return False
    if command.tick_ms > entry.time_ms:
        return False
    # A definition whose first tick was worked out before the last one came names that one again.
    skip = command.skip or command.tick_ms <= recurring.last_ms
    last_ms = recurring.last_ms if skip else command.tick_ms
    entry.rows.put(name, formats.pack_recurring(Recurring(command.next_ms, last_ms, recurring.definition)))
    if not skip:
        message = pb.Schedule.FromString(recurring.definition).message
        # Serialised messages may be joined: fields of the later one are added to those of the earlier one.
        headers = pb.Headers(tick_ms=command.tick_ms).SerializeToString()
        try:
            if message.topic:
                yield from topics.publish(entry, message, stamp, 0, topics.Copies(), bounded=False, headers=headers)
            else:
                sending.check(message)
                sending.take_in(
                    entry, message, message.queue.encode(), entry.next_id(stamp), headers=headers, bounded=False
                )
        except Refused:
            return True  # beyond what the formats hold, which nothing that was validated is
    return True
