"""Policies of queues: how they treat their messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, TypedDict

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, LimitExceeded, shown
from kvorum.queues.outgoing import backoff_delays, queue_name

_ENDS: Final = {
    pb.DEAD_LETTERS_UNSPECIFIED: None,
    pb.DEAD_LETTERS_KEEP: "keep",
    pb.DEAD_LETTERS_DROP: "drop",
    pb.DEAD_LETTERS_QUEUE: "queue",
}
_MAX_CAP: Final = limits.MAX_BACKOFF_INTERVAL


class Named(Protocol):
    """A queue."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Exponential:
    """Pauses that grow: `base`, then each `factor` times the one before, `cap` at most.

    Up to the share `jitter` is taken off each, by message and attempt, so that what failed together comes apart.
    """

    base: Duration
    factor: float = 2.0
    cap: Duration = limits.MAX_BACKOFF_INTERVAL
    jitter: float = 0.1


class PolicyOptions(TypedDict, total=False):
    """See `QueuePolicy`. What is left out has its default."""

    lease: Duration | None
    max_attempts: int | None
    backoff: Sequence[Duration] | Exponential | None
    dead_letters: "Named | str | None"
    max_batch: int | None
    max_wait: Duration | None
    retention: Duration | None
    max_backlog: int | None
    max_in_flight: int | None
    ordered: bool


@dataclass(frozen=True, kw_only=True)
class QueuePolicy:
    """How a queue treats its messages, as it was defined; None: the default."""

    lease: timedelta | None = None
    """How long a message stays with a consumer that was lost, or does not extend it (500 ms … 12 h); 30 s."""
    max_attempts: int | None = None
    """Attempts until a message is dead; one more than there are backoff steps, 20 of an exponential backoff."""
    backoff: tuple[timedelta, ...] | Exponential | None = None
    """Pauses between attempts of messages that bring none, the last one repeated; 100 ms, 1 s, 5 s, 30 s, 60 s."""
    dead_letters: Literal["keep", "drop", "queue"] | None = None
    """Where dead messages go: they are kept with their queue (`Queue.dead`), dropped, or become messages of another
    queue; named queues keep them."""
    dead_letter_queue: str | None = None
    """That other queue."""
    max_batch: int | None = None
    """What a batch consumer takes at a time, unless it asks otherwise; 10."""
    max_wait: timedelta | None = None
    """How long it waits for more; 5 s."""
    retention: timedelta | None = None
    """After this time messages that bring no ttl are dropped, of those that are sent from now on; never."""
    max_backlog: int | None = None
    """Messages, leased ones included; more are refused with QueueFull."""
    max_in_flight: int | None = None
    """Messages in the hands of all consumers together."""
    ordered: bool = False
    """Messages without a group are one group."""


def policy_message(options: PolicyOptions) -> pb.QueuePolicy:
    """Errors: InvalidArgument, LimitExceeded; they name the option."""
    unknown = [name for name in options if name not in PolicyOptions.__annotations__]
    if unknown:
        raise TypeError(
            f"unknown option {unknown[0]!r} of a policy; there are {', '.join(PolicyOptions.__annotations__)}"
        )
    made = pb.QueuePolicy(ordered=bool(options.get("ordered", False)))
    if (lease := options.get("lease")) is not None:
        made.lease_ms = milliseconds(lease, "lease", "MAX_LEASE", limits.MAX_LEASE)
        if made.lease_ms < limits.MIN_LEASE:
            raise InvalidArgument(f"lease: {made.lease_ms} ms is below the least of {limits.MIN_LEASE} ms (MIN_LEASE)")
    for name, limit, allowed in (
        ("max_attempts", "MAX_ATTEMPTS", limits.MAX_ATTEMPTS),
        ("max_batch", "MAX_BATCH", limits.MAX_BATCH),
        ("max_backlog", "MAX_BACKLOG", limits.MAX_BACKLOG),
        ("max_in_flight", "MAX_BACKLOG", limits.MAX_BACKLOG),
    ):
        number: Any = options.get(name)
        if number is not None:
            setattr(made, name, _count(number, name, limit, allowed))
    if (max_wait := options.get("max_wait")) is not None:
        made.max_wait_ms = milliseconds(max_wait, "max_wait", "MAX_BATCH_WAIT", limits.MAX_BATCH_WAIT)
    if (retention := options.get("retention")) is not None:
        made.retention_ms = milliseconds(retention, "retention", "MAX_RETENTION", limits.MAX_RETENTION)
        if not made.retention_ms:
            raise InvalidArgument("retention must be above zero: received 0 ms")
    backoff = options.get("backoff")
    if isinstance(backoff, Exponential):
        made.exponential.CopyFrom(_exponential(backoff))
    elif backoff is not None:
        made.backoff.delays_ms.extend(backoff_delays(backoff, "backoff"))
        made.backoff.SetInParent()
    if (ends := options.get("dead_letters")) is not None:
        _dead_letters(made, ends)
    return made


def policy_of(data: bytes) -> QueuePolicy:
    """The policy in a serialised `pb.QueuePolicy`."""
    made = pb.QueuePolicy.FromString(data)

    def time(name: str) -> timedelta | None:
        return timedelta(milliseconds=getattr(made, name)) if made.HasField(name) else None

    def number(name: str) -> int | None:
        return getattr(made, name) if made.HasField(name) else None

    backoff: tuple[timedelta, ...] | Exponential | None = None
    if made.HasField("exponential"):
        own = made.exponential
        backoff = Exponential(
            timedelta(milliseconds=own.base_ms),
            own.factor_percent / 100,
            timedelta(milliseconds=own.cap_ms),
            own.jitter_percent / 100,
        )
    elif made.HasField("backoff"):
        backoff = tuple(timedelta(milliseconds=step) for step in made.backoff.delays_ms)
    ends: Any = _ENDS.get(made.dead_letters)
    return QueuePolicy(
        lease=time("lease_ms"),
        max_attempts=number("max_attempts"),
        backoff=backoff,
        dead_letters=ends,
        dead_letter_queue=made.dead_letter_queue if ends == "queue" else None,
        max_batch=number("max_batch"),
        max_wait=time("max_wait_ms"),
        retention=time("retention_ms"),
        max_backlog=number("max_backlog"),
        max_in_flight=number("max_in_flight"),
        ordered=made.ordered,
    )


def _count(number: object, name: str, limit: str, allowed: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidArgument(f"{name} must be an int of at least 1: received {shown(number)}")
    if number > allowed:
        raise LimitExceeded(limit, allowed, number, name)
    return number


def _dead_letters(made: pb.QueuePolicy, ends: "Named | str") -> None:
    if ends == "keep":
        made.dead_letters = pb.DEAD_LETTERS_KEEP
    elif ends == "drop":
        made.dead_letters = pb.DEAD_LETTERS_DROP
    else:
        made.dead_letters = pb.DEAD_LETTERS_QUEUE
        name = ends if isinstance(ends, str) else getattr(ends, "name", None)
        if not isinstance(name, str):
            raise InvalidArgument(f'dead_letters is "keep", "drop", a queue or its name, got {type(ends).__name__}')
        if not name:
            raise InvalidArgument(
                'dead_letters is "keep", "drop", or a queue with a name: the nameless one cannot be it'
            )
        made.dead_letter_queue = queue_name(name)


def _exponential(backoff: Exponential) -> pb.Exponential:
    base = milliseconds(backoff.base, "backoff.base", "MAX_BACKOFF_INTERVAL", _MAX_CAP)
    cap = milliseconds(backoff.cap, "backoff.cap", "MAX_BACKOFF_INTERVAL", _MAX_CAP)
    for name, number, least, most in (
        ("factor", backoff.factor, 1.0, 100.0),
        ("jitter", backoff.jitter, 0.0, 1.0),
    ):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number <= most:
            raise InvalidArgument(f"backoff.{name} must be from {least:g} to {most:g}: received {shown(number)}")
    return pb.Exponential(
        base_ms=base, factor_percent=round(backoff.factor * 100), cap_ms=cap, jitter_percent=round(backoff.jitter * 100)
    )
