"""Commands about queues as a whole."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_QUEUE_NAME_SIZE

from ..errors import Refused
from ..records import MAX_DURATION, QUEUE
from ..results import Denied
from . import clearing, deaths, formats, schedules, topics
from .formats import Settings

if TYPE_CHECKING:
    from ..entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_TOO_LONG: Final = Denied(_INVALID, "a name is too long")
COMMANDS: Final = frozenset(
    (
        "define_queue", "remove_queue", "pause_queue", "purge", "requeue",
        "define_topic", "subscribe", "define_schedule", "tick",
    )
)  # fmt: skip
"""Those that begin with data version 3."""


def run(entry: "Entry", kind: str, command: pb.Command, stamp: bytes) -> Generator[None, None, Any]:
    """Carry out one of COMMANDS; returns its output (see `ApplyResult.outputs`)."""
    if any(len(name.encode()) > MAX_QUEUE_NAME_SIZE for name in _names(kind, command)):
        return _TOO_LONG
    if kind == "define_queue":
        return _define(entry, command.define_queue)
    if kind == "pause_queue":
        return _pause(entry, command.pause_queue)
    if kind == "remove_queue":
        return (yield from clearing.remove(entry, command.remove_queue))
    if kind == "purge":
        return (yield from clearing.purge(entry, command.purge))
    if kind == "requeue":
        return (yield from deaths.requeue(entry, command.requeue, stamp))
    if kind == "define_topic":
        return (yield from topics.define(entry, command.define_topic, stamp))
    if kind == "subscribe":
        return (yield from topics.subscribe(entry, command.subscribe, stamp))
    if kind == "define_schedule":
        return schedules.define(entry, command.define_schedule)
    return (yield from schedules.tick(entry, command.tick, stamp))


def _names(kind: str, command: pb.Command) -> tuple[str, ...]:
    if kind == "subscribe":
        return command.subscribe.topic, command.subscribe.queue
    if kind in ("purge", "requeue"):
        return (getattr(command, kind).queue,)
    return (command.tick.schedule,) if kind == "tick" else (getattr(command, kind).name,)


def _define(entry: "Entry", command: pb.DefineQueue) -> Denied | None:
    try:
        policy = pb.QueuePolicy.FromString(command.policy)
    except DecodeError:
        return Denied(_INVALID, "the policy cannot be decoded")
    longest = max(policy.lease_ms, policy.retention_ms, policy.exponential.base_ms, policy.exponential.cap_ms)
    if longest > MAX_DURATION:
        return Denied(_INVALID, f"a duration of the policy is too long: {longest:,} ms")
    if len(policy.dead_letter_queue.encode()) > MAX_QUEUE_NAME_SIZE:
        return _TOO_LONG
    return _set(entry, command.name, _settings(entry, command.name)._replace(policy=command.policy))


def _pause(entry: "Entry", command: pb.PauseQueue) -> Denied | None:
    return _set(entry, command.name, _settings(entry, command.name)._replace(paused=command.paused))


def _settings(entry: "Entry", name: str) -> Settings:
    row = entry.rows.get(QUEUE + name.encode())
    return Settings() if row is None else formats.unpack_settings(row)


def _set(entry: "Entry", name: str, settings: Settings) -> Denied | None:
    queue = name.encode()
    tallies = entry.tallies
    if tallies is None:
        raise AssertionError("named queues begin with data version 3")
    if settings == _settings(entry, name):
        return None
    try:
        tallies.admit(queue)
    except Refused as refused:
        return Denied(refused.outcome, refused.message)
    tallies.add(queue, ())
    entry.policies.pop(queue, None)
    if settings == Settings():
        entry.rows.remove(QUEUE + queue)
    else:
        entry.rows.put(QUEUE + queue, formats.pack_settings(settings))
    entry.result.policies_changed.add(name)
    return None
