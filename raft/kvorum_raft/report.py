"""What a node says about itself, for status pages, metrics and tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pysyncobj.node import Node

from kvorum_raft.admission import Admissions
from kvorum_raft.comparing import Comparing
from kvorum_raft.config import RaftConfig
from kvorum_raft.copier import no_latency
from kvorum_raft.follower_reads import FollowerReads
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_reader import LogReader
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.seams import Member, PeerView, StateMachine, Status
from kvorum_raft.snapshotting import Snapshotting
from kvorum_raft.stepping import Stepper
from kvorum_raft.transport import PeerTransport
from kvorum_raft.waiters import StateWaiters

ROLES: Final = ("follower", "candidate", "leader")


@dataclass(slots=True)
class Parts:
    """Of a running node."""

    core: SafeSyncObj
    journal: RaftJournal
    disk: LmdbDisk
    transport: PeerTransport
    admissions: Admissions
    snapshots: Snapshotting
    comparing: Comparing
    reads: FollowerReads
    waiters: StateWaiters
    stepper: Stepper
    listed: dict[str, Member]
    """The members of the configuration file."""
    clock: Callable[[], float]


def member(parts: Parts, node_id: str) -> Member | None:
    """As the configuration in the log names it, else as the file does."""
    configuration = parts.core.configuration
    known = configuration.find(node_id) if configuration is not None else None
    return known.member if known is not None else parts.listed.get(node_id)


def status(parts: Parts, leader: Member | None) -> Status:
    core, journal = parts.core, parts.journal
    configuration, own_id = core.configuration, core.node_id
    others = [one for one in (configuration.incarnations if configuration else parts.listed) if one != own_id]
    own = configuration.find(own_id) if configuration is not None else None
    return Status(
        node_id=own_id,
        cluster_id=parts.admissions.identity.cluster_id,
        role=ROLES[core.state],
        term=core.term,
        leader=leader,
        commit_index=core.commit_index,
        applied_index=core.applied_index,
        last_log_index=journal.last_index,
        durable_index=journal.durable_index,
        peers=tuple(_view(parts, one) for node_id in others if (one := member(parts, node_id)) is not None),
        statistics=statistics(parts),
        own=own.member if own is not None else None,
        own_learner=own is not None and own.learner,
        histograms={
            "raft_commit_seconds": core.commit_seconds,
            "raft_apply_seconds": core.apply_seconds,
            "storage_fsync_seconds": parts.disk.seconds,
        },
    )


def _view(parts: Parts, one: Member) -> PeerView:
    core, node_id = parts.core, one.node_id
    known = core.configuration.find(node_id) if core.configuration is not None else None
    return PeerView(
        one,
        parts.transport.is_connected(node_id),
        core.match_index(node_id),
        learner=known is not None and known.learner,
        snapshot=parts.snapshots.progress(Node(node_id)),
        round_trip=core.round_trips.get(node_id),
    )


def statistics(parts: Parts) -> dict[str, float]:
    """Counters since the start, and gauges; seconds and bytes."""
    core = parts.core
    offset = core.clock_offset_ms()
    return {
        **({} if offset is None else {"clock_offset_ms": offset}),
        "term": core.term,
        "commit_index": core.commit_index,
        "applied_index": core.applied_index,
        "uncommitted_bytes": core.uncommitted_bytes,
        "reads_served": core.rounds.served,
        "reads_waiting": len(core.rounds) + len(parts.reads) + len(parts.waiters),
        "rounds": core.rounds.round,
        "log_transactions": parts.disk.transactions,
        "log_unsynced_age": parts.journal.unsynced_age(parts.clock()),
        "late_steps": parts.stepper.late,
        "longest_step": parts.stepper.longest,
        "state_alarms": parts.comparing.alarms,
        **parts.journal.statistics(),
        **core.counters,
        **parts.snapshots.statistics(),
        **{f"peer_{name}": value for name, value in parts.transport.statistics().items()},
    }


class Reporting:
    """The part of `RaftNode` that only tells how things stand, also before its start and after its end."""

    _config: RaftConfig
    _machine: StateMachine
    _wall: Callable[[], int]
    _running: bool
    _failed: bool
    # since it was opened
    _parts: Parts
    _core: SafeSyncObj
    _journal: RaftJournal
    _disk: LmdbDisk
    _admissions: Admissions

    def now_ms(self) -> int:
        if not self._running:
            return self._wall()
        return self._core.entry_clock.now_ms()

    @property
    def is_leader(self) -> bool:
        return self._running and not self._failed and self._core.takes_proposals

    @property
    def leader(self) -> Member | None:
        leader_id = self._core.leader_id if self._running and not self._failed else None
        return member(self._parts, leader_id) if leader_id is not None else None

    @property
    def commit_index(self) -> int:
        return self._core.commit_index if self._running else self._machine.applied_index

    @property
    def log(self) -> LogReader | None:
        """What was applied, as far as it is in the log; None while the node does not run."""
        return LogReader(self._journal, lambda: self._core.applied_index) if self._running else None

    def log_latency(self) -> float:
        """Seconds for which the log's write that is under way has lasted. From any thread."""
        latency: Callable[[], float] = getattr(self._disk, "latency", no_latency) if self._running else no_latency
        return latency()

    @property
    def hollow(self) -> bool:
        """True while this node's state is gone and the cluster's has not come yet: it must not be read."""
        return self._running and self._core.hollow

    @property
    def others_vote(self) -> bool:
        """True if this node is not the only voter: what it loses can be had from others. From any thread."""
        configuration = self._core.configuration
        return configuration is not None and bool(configuration.voters - {self._config.node_id})

    def cluster_low_on_space(self) -> str | None:
        """Leader: a voter (or this node) whose disk is nearly full."""
        if not self._running:
            return None
        if self._core.low_space:
            return self._config.node_id
        return min(self._core.low_on_space, default=None)

    def common_data_version(self) -> int:
        """Newest apply semantics that all members know."""
        return self._admissions.common_data_version(self._core.configuration) if self._running else 1

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; empty until the cluster's first entry is committed, and while the node does not run."""
        if not self._running:
            return b""
        return self._admissions.identity.cluster_id

    @property
    def forming_waits_for(self) -> list[str]:
        """Listed nodes that were not met yet, while the cluster is being formed."""
        return self._admissions.forming_waits_for if self._running else []

    def status(self) -> Status:
        if not self._running:
            return Status(self._config.node_id, b"", ROLES[0], 0, None, 0, self._machine.applied_index, 0, 0)
        return status(self._parts, self.leader)

    def statistics(self) -> dict[str, float]:
        """Counters since the start, and gauges; seconds and bytes."""
        return statistics(self._parts) if self._running else {}
