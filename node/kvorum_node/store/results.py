"""What applying an entry hands back."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvorum._proto import kvorum_pb2 as pb


class Grant(NamedTuple):
    """A message that was leased to a consumer in this entry."""

    session: bytes
    consumer: int
    delivery: pb.Delivery


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


@dataclass(slots=True)
class ApplyResult:
    """The answers and side news of one entry. All of it is the same on every node."""

    index: int
    time_ms: int
    """The entry's time as applied, Unix milliseconds."""
    outputs: list[Any] = field(default_factory=list)
    """One for each command: `pb.ResultGroup` for writes, the session id for open_session (b"" = refused, too many
    sessions), the number of leases for lease, of deleted keys for sweep, None otherwise."""
    changed_keys: list[bytes] = field(default_factory=list)
    """User keys touched, in order, possibly repeated; a suffixed set also names the key without its suffix."""
    granted: list[Grant] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    """Lease ids that ended: settled or released."""
    ready: dict[str, int] = field(default_factory=dict)
    """Queue → earliest due time among the messages that became ready or scheduled."""
    closed_sessions: list[bytes] = field(default_factory=list)
    earliest_expiry_ms: int | None = None
    """Earliest expiry that was set."""
