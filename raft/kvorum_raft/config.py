"""Settings of a `RaftNode`. Times are seconds, sizes bytes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvorum_raft.configuration import MAX_MEMBERS
from kvorum_raft.entry import HEADER_SIZE
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.seams import Member
from kvorum_raft.tls import PeerTls

MIB: Final = 1 << 20
PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1
"""Versions of the peers' protocol that this program speaks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of every queue and buffer of the consensus layer."""

    entry: int = 4 * MIB
    """Payload of one entry."""
    uncommitted: int = 64 * MIB
    """Records in a leader's log that are not committed; beyond it `propose` raises Overloaded."""
    append_bytes: int = MIB
    """Entries of one message; a larger entry goes alone."""
    append_entries: int = 1024
    window_bytes: int = 8 * MIB
    """Sent to a peer and not acknowledged."""
    window_messages: int = 64
    log_cache: int = 64 * MIB
    """Newest part of the log kept in memory; older entries are read from the disk."""
    out_buffer: int = 32 * MIB
    """Waiting in the socket of one peer; beyond it the connection is closed and made anew."""
    reads: int = 65_536
    """Linearizable reads that wait at a time."""
    checkpoint_log: int = 32 * MIB
    """A checkpoint is due when the log behind the newest one is larger than this and than a quarter of the state."""
    far_behind: int = 1_000
    """Entries not applied yet, beyond which a node leaves office to others: it would lead, and take nothing."""
    hash_every: int = 256
    """Nodes compare their states after every so many entries."""
    handshakes: int = 64
    """Connections to the peer port that have not said who they are."""
    guests: int = 16
    """Nodes of this cluster that talk with this one though it does not know them as members."""
    admissions: int = 256
    """Folders whose newest start is remembered."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Settings of the election and of the disk watch."""

    election_min: float = 0.5
    election_max: float = 1.0
    heartbeat: float = 0.1
    tick: float = 0.05
    commit_notice: float = 0.002
    """A leader without new entries tells its followers this long after a commit that it happened."""
    slow_sync: float = 0.5
    """A leader whose oldest unsynced log write is older than this steps down."""
    apply_slice: float = 0.003
    """Applying gives the loop back after about this long."""
    handshake: float = 5.0
    reconnect_min: float = 0.05
    reconnect_max: float = 1.0
    guest_idle: float = 30.0
    """A guest that has been silent for so long is forgotten."""

    def check(self) -> None:
        """Raises ConfigurationError."""
        if not 0 < self.heartbeat * 3 < self.election_min < self.election_max:
            raise ConfigurationError(
                "election timeouts must satisfy 3 × heartbeat < minimum < maximum; "
                f"got heartbeat {self.heartbeat}, minimum {self.election_min}, maximum {self.election_max} s"
            )


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One node. `members` lists every node of a new cluster, this one included, the same on all of them; later the
    log says who is a member, and the list is only where to find them."""

    node_id: str
    members: list[Member]
    data_dir: Path
    """The node's folder; the consensus layer owns `raft/` in it."""
    listen: str | None = None
    """host:port to bind for peers, if it differs from the peer address that the members list names."""
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    join: bool = False
    """An empty folder forms no cluster: it waits until the leader of one is told to take it in. `members` need list
    only this node. Means nothing once the folder belongs to a cluster."""
    data_version: int = 1
    """Newest apply semantics that this program knows."""
    protocols: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)
    """Oldest and newest protocol version spoken with peers; others than the program's own are for tests."""
    map_size: int = 1 << 42
    """Address space of the log's LMDB environment; never grown at run time."""
    tls: PeerTls | None = None
    """None: peers are spoken to in clear."""
    tls_required: bool = True
    """False: with `tls`, peers that speak none are spoken to in clear all the same (`peer_security`)."""

    @property
    def own(self) -> Member:
        return next(member for member in self.members if member.node_id == self.node_id)

    @property
    def peers(self) -> list[Member]:
        return [member for member in self.members if member.node_id != self.node_id]

    def check(self) -> None:
        """Raises ConfigurationError with one line that names what is wrong."""
        ids = [member.node_id for member in self.members]
        if not all(ids) or any(len(node_id.encode()) > 128 for node_id in ids):
            raise ConfigurationError("every member needs an id of 1 to 128 bytes")
        if not all(node_id.isprintable() for node_id in ids):
            raise ConfigurationError("a member's id has characters that cannot be printed")
        if len(ids) > MAX_MEMBERS:
            raise ConfigurationError(f"{len(ids)} members; at most {MAX_MEMBERS} are supported")
        for what, names in (("id", ids), ("peer address", [member.peer_address for member in self.members])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigurationError(f"two members have the same {what}: {twice[0]}")
        if self.node_id not in ids:
            raise ConfigurationError(f"node {self.node_id} is not among the members: {', '.join(sorted(ids))}")
        for address in [member.peer_address for member in self.members] + ([self.listen] if self.listen else []):
            split_address(address)
        self.timing.check()

    @property
    def max_frame(self) -> int:
        """Largest frame between peers."""
        return max(self.limits.append_bytes, self.limits.entry + HEADER_SIZE) + 64 * 1024


def split_address(address: str) -> tuple[str, int]:
    """host:port or [v6]:port → (host, port). Raises ConfigurationError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65_535:
        raise ConfigurationError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
