"""The seams of the consensus layer: what it drives, and what others see of it."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Applied(NamedTuple):
    """An entry that the state machine has applied and committed to its store."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    time_ms: int
    """The entry's time, Unix milliseconds; never goes back from entry to entry."""
    result: Any
    """What the state machine returned; None for entries of the consensus layer itself."""


class StateMachine(Protocol):
    """Deterministic: the same entries give the same state and the same results on every node, whatever the clock or
    hash seed."""

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry, stored in the same transaction as its effects; 0 when nothing was
        applied."""
        ...

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[None, None, Any]:
        """Apply one entry: a generator that yields between slices of at most a few milliseconds and returns the result.

        Indices come in order; an empty payload is an entry of the consensus layer, and only moves `applied_index`. The
        effects are visible and stored when the generator returns. Any exception is a fault: the process stops.
        """
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster, as its configuration names it."""

    node_id: str
    peer_address: str
    """host:port of its peer port."""
    client_address: str
    """host:port that its clients use."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """What a node knows of another one."""

    member: Member
    connected: bool
    match_index: int


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot for status pages and tests."""

    node_id: str
    cluster_id: bytes
    """16 bytes; empty while the cluster is being formed."""
    role: str
    """leader, follower, candidate, or local (embedded)."""
    term: int
    leader: Member | None
    commit_index: int
    applied_index: int
    last_log_index: int
    durable_index: int
    peers: tuple[PeerView, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)


class Consensus(Protocol):
    """What a node needs of its consensus layer: `RaftNode` in a cluster, a local one in the embedded store. One event
    loop, no threads seen.

    Errors are those of `kvorum_raft.errors`: NotLeader, Overloaded and Discarded are definite (certainly not applied),
    UnknownOutcome is not.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def propose(self, payload: bytes) -> "asyncio.Future[Applied]":
        """Append one entry; the future completes when it is committed and applied here. Raises NotLeader or Overloaded
        at once."""
        ...

    async def read_index(self) -> int:
        """Return once the local state holds everything that was committed when the call began: its applied index.
        NotLeader if no leader is known or reachable; the caller bounds the wait."""
        ...

    def now_ms(self) -> int:
        """The time that an entry proposed now would carry (leader), or the best guess of it."""
        ...

    @property
    def is_leader(self) -> bool:
        """True on a leader that has committed an entry of its own term, and so has applied all earlier ones."""
        ...

    @property
    def leader(self) -> Member | None: ...

    def status(self) -> Status: ...

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call back when `is_leader` changes, and `leader` of others."""
        ...

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        """Call back after each applied entry, on every node, in order, before the entry's future completes."""
        ...
