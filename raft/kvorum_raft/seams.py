"""The seams of the consensus layer: what it drives, and what others see of it."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvorum_raft.histogram import Histogram


class Applied(NamedTuple):
    """An entry that the state machine has applied and committed to its store."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    time_ms: int
    """The entry's time, Unix milliseconds; never goes back from entry to entry."""
    result: Any
    """What the state machine returned; None for entries of the consensus layer itself."""
    seconds: float = 0.0
    """How long applying it took, for metrics and logs: another figure on each node."""


class StateFacts(NamedTuple):
    """Where a state stands, as the state itself says."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    """Of the last entry in it."""
    time_ms: int
    content_hash: bytes
    """16 bytes; of the logical content, not of pages."""


class StateImage(Protocol):
    """The state as one entry left it, held while the live one goes on: what a checkpoint is made of."""

    @property
    def facts(self) -> StateFacts: ...

    def copy_to(self, fd: int) -> None:
        """Write all of it as the bytes of one file, as fast as the descriptor (of a file or a pipe) takes them. Not for
        the event loop. Raises OSError."""
        ...

    def close(self) -> None:
        """Let go; required, also after an error."""
        ...


class PreparedState(Protocol):
    """A private copy of a checkpoint, ready to become the live state."""

    @property
    def facts(self) -> StateFacts: ...

    def discard(self) -> None:
        """It is not wanted after all."""
        ...


class StateMachine(Protocol):
    """Deterministic: the same entries give the same state and the same results on every node, whatever the clock or
    hash seed."""

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry, stored in the same transaction as its effects; 0 when nothing was
        applied."""
        ...

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        """Apply one entry: a generator that yields between slices of at most a few milliseconds and returns the result.

        Indices come in order; an empty payload is an entry of the consensus layer, and only moves `applied_index`. The
        effects are visible and stored when the generator returns. It yields True, once, when all is worked out and
        nothing is visible or stored: the entry may wait there until it is committed, while readers come and go, and a
        generator that is closed leaves nothing behind. Any exception is a fault: the process stops.
        """
        ...

    def state_hash(self) -> bytes:
        """Content hash at `applied_index`, 16 bytes."""
        ...

    def size(self) -> int:
        """Bytes that a checkpoint of the state would take, about."""
        ...

    def image(self) -> StateImage:
        """Hold the state as it is now. Called between two entries; quick."""
        ...

    def inspect(self, file: Path) -> StateFacts:
        """Open what `copy_to` has written and say what is in it. Not for the event loop. Raises ValueError with one
        line if it is not a whole state, or of a newer format."""
        ...

    def prepare(self, file: Path, pause: Callable[[int], None] | None = None) -> PreparedState:
        """Make a copy of such a file beside the live state, which goes on. Never the file itself or a hard link to it.
        `pause` is called with the size of each block that is written, and waits until others have had their share of
        the disk; without it, nobody else wants any. Not for the event loop. Raises ValueError, OSError, and what
        `pause` raises."""
        ...

    def adopt(self, prepared: PreparedState) -> None:
        """From now on this is the state. Called between two entries; quick. Snapshots that readers hold stay whole."""
        ...


class FileSystem(Protocol):
    """What `os.statvfs` tells, of which this is read."""

    @property
    def f_bavail(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_frsize(self) -> int: ...


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
    learner: bool = False
    snapshot: tuple[int, int] | None = None
    """(bytes acknowledged, bytes) of the snapshot that is being sent to it."""
    round_trip: Histogram | None = None
    """From the beginning of a leader's round to this peer's first answer; None while this node has not led it."""


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
    own: Member | None = None
    """This node as the configuration names it; None while it is no member."""
    own_learner: bool = False
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """Of seconds, by the name of the metric; they go on counting."""


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
        """True on a leader that has committed an entry of its own term, and so has applied all earlier ones, and that
        is not handing its office over: it takes proposals."""
        ...

    @property
    def leader(self) -> Member | None: ...

    @property
    def commit_index(self) -> int:
        """Last entry that is known here to be committed; not below the applied one."""
        ...

    def status(self) -> Status: ...

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call back when `is_leader` changes, and `leader` of others."""
        ...

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        """Call back after each applied entry, on every node, in order, before the entry's future completes."""
        ...

    def on_installed(self, callback: Callable[[int], None]) -> None:
        """Call back with the applied index after a snapshot became the state: entries up to there were never
        applied here, so whoever follows the state must look at it anew."""
        ...


class Administration(Protocol):
    """What an operator may ask of a cluster's leader.

    All of it raises NotLeader, ChangePending (another change is not committed yet, or too few voters answer; try again)
    or ValueError (with one line for the operator); UnknownOutcome if leadership ended before it was known here what
    became of it: the members tell.
    """

    async def add(self, member: Member) -> None:
        """Reach the empty folder that waits at that address, and make it a learner. Returns when that is committed.
        For a member's own folder that has moved: the change of its addresses."""
        ...

    async def promote(self, node_id: str) -> None:
        """Make a learner a voter. ValueError while it lacks more than a moment's entries."""
        ...

    async def remove(self, node_id: str) -> None:
        """Take a member out, this node included; its folder never comes back."""
        ...

    async def replace(self, member: Member) -> None:
        """Put the empty folder that waits at that address in the place of the member of that id, as a learner."""
        ...

    async def transfer(self, node_id: str | None = None) -> str:
        """Hand leadership to that voter, or to the one that can lead best; returns who was asked, when this node leads
        no more. UnknownOutcome if it did not take over within an election timeout: this node goes on then."""
        ...

    async def set_time(self, unix_ms: int) -> None:
        """Let the cluster's time jump forward to this. Never back: ValueError."""
        ...
