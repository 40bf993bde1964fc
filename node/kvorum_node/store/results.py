"""What applying an entry hands back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvorum._proto import kvorum_pb2 as pb

from .answers import Outputs


class Grant(NamedTuple):
    """A message that was leased to a consumer in this entry."""

    session: bytes
    consumer: int
    delivery: pb.Delivery


class Leased(NamedTuple):
    """A lease that was granted in this entry, without what is delivered with it."""

    session: bytes
    consumer: int
    message_id: bytes
    lease_id: bytes


class LeaseInfo(NamedTuple):
    """A message that is in a consumer's hands."""

    message_id: bytes
    """12 bytes."""
    lease_id: bytes
    """12 bytes."""
    queue: str
    session: bytes
    consumer: int
    attempt: int
    """From 1."""
    lease_ms: int = 0
    """How long it lasts, milliseconds: by its last extension, else by its queue's policy; 0 = neither says."""
    expiring: bool = False
    """It ends then, whether its holder lives or not."""


class QueueFacts(NamedTuple):
    """What delivery asks of a queue before it hands anything out."""

    lease_ms: int
    """Milliseconds; 0 = its policy names none."""
    max_in_flight: int
    """0 = no bound."""
    paused: bool
    leased: int
    """Messages in somebody's hands."""


class Denied(NamedTuple):
    """The output of a command that the state forbids: nothing was changed."""

    outcome: int
    """Of `pb.Outcome`."""
    message: str


class Unfinished(NamedTuple):
    """The output of a command about a queue that has looked at as many rows as one command may: the next one is to go
    on from there."""

    touched: int
    """Messages."""
    after: bytes
    """For the next command; empty = it begins anew."""


@dataclass(slots=True)
class ApplyResult:
    """The answers and side news of one entry. All of it is the same on every node."""

    index: int
    time_ms: int
    """The entry's time as applied, Unix milliseconds."""
    outputs: Sequence[Any] = field(default_factory=Outputs)
    """One for each command: `pb.ResultGroup` for writes, the session id for open_session (b"" = refused, too many
    sessions), the number of leases for lease, of deleted keys and finished timers for sweep; the number of messages
    touched for purge, requeue, remove_queue (0 = nothing is left to be done, if the command began at the beginning;
    or `Unfinished`) and subscribe (copies); whether it happened for tick; `Denied` for a definition or subscription
    that the state has no room for; None otherwise."""
    changed_keys: list[bytes] = field(default_factory=list)
    """User keys touched, in order, possibly repeated; a suffixed set also names the key without its suffix."""
    granted: list[Grant] = field(default_factory=list)
    leased: list[Leased] = field(default_factory=list)
    """In place of `granted` where nobody wanted deliveries when the entry began (see `Store.wants_deliveries`);
    `Store.delivery` has them. Those at most once are in `granted` all the same."""
    delays: list[tuple[int, int]] = field(default_factory=list)
    """For each Lease command that granted some, unless nobody wanted deliveries: for how many milliseconds the first
    one had been due, and how many there are."""
    ended: list[bytes] = field(default_factory=list)
    """Lease ids that ended: settled or released."""
    extended: list[tuple[bytes, int]] = field(default_factory=list)
    """Lease ids that were extended, and by how many milliseconds from now; 0 = by the period of a queue
    whose policy names none."""
    policies_changed: set[str] = field(default_factory=set)
    """Queues whose policy or pause has changed."""
    schedules_changed: bool = False
    auth_changed: bool = False
    """Tokens, or whether they are asked for."""
    denials: int = 0
    denied: list[tuple[bytes, str]] = field(default_factory=list)
    """Principal and what it lacked, of the first ones."""
    ready: dict[str, int] = field(default_factory=dict)
    """Queue → earliest due time among the messages that became ready or scheduled."""
    closed_sessions: list[bytes] = field(default_factory=list)
    earliest_expiry_ms: int | None = None
    """Earliest expiry or timer that was set: a sweep has work then."""
