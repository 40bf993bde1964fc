"""What a follower does when a snapshot takes the place of entries that its leader does not have any more.

The order is what makes it safe: first the snapshot is a verified checkpoint on the disk (that is done when `install` is
called), then the log begins behind it, then, as soon as *that* is durable, it becomes the state. Whenever the process
ends, checkpoint and log alone rebuild the state. A snapshot never moves the commit index back, nor the state.
"""

import logging
from collections.abc import Callable

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.base import Base
from kvorum_raft.core_partners import Install
from kvorum_raft.core_state import LEADER, CoreState
from kvorum_raft.errors import RaftFault

_log = logging.getLogger("kvorum.raft")


class SnapshotSide(CoreState):
    """See `pysyncobj_fixes`."""

    @property
    def installing(self) -> bool:
        return self._install is not None

    def wants_snapshot(self, index: int) -> bool:
        """True if a snapshot up to this entry would help. What is committed here already is acknowledged and ignored,
        unless the state has been lost."""
        if self.hollow:
            return index >= self.journal.base_index
        return index > self._SyncObj__raftCommitIndex

    def install(self, base: Base, adopt: Callable[[], None], done: Callable[[], None]) -> bool:
        """A verified checkpoint up to `base` is on this node's disk: let the log begin behind it, then `adopt` it.

        `done` is called when that is durable. False if it is not wanted (any more): nothing was changed.
        """
        leads = self._SyncObj__raftState == LEADER  # then everything up to there is in its log
        if self.stopped or leads or self._install is not None or not self.wants_snapshot(base.index):
            return False
        journal = self.journal
        self._give_up_work()
        if journal.term_at(base.index) != base.term:
            journal.reset_to(base)
            self._forget_owed()
        journal.flush()
        self._install = Install(base, journal.seq, adopt, done)
        self._verified = max(self._verified, base.index)
        self.entry_clock.entry_seen(base.time_ms)
        self._configure()
        if base.index > self._SyncObj__raftCommitIndex:
            self._set_commit(base.index)
        self._finish_install()
        return True

    def _finish_install(self) -> None:
        """The state changes only when the log that goes with it is durable."""
        install, journal = self._install, self.journal
        if install is None or journal.durable_seq < install.seq or journal.durable_index < install.base.index:
            return
        self._install = None
        install.adopt()
        index = install.base.index
        if self.machine.applied_index != index:
            raise RaftFault(f"the snapshot up to entry {index} left the state at entry {self.machine.applied_index}")
        self._SyncObj__raftLastApplied = index
        self.hollow = False
        self.counters["installs"] += 1
        _log.info("node %s begins at entry %d, from a snapshot", self.node_id, index)
        install.done()

    def decline_snapshot(self, node: Node, file_hash: bytes) -> None:
        """What it covers is here already: say how far the log is known to be complete."""
        index = min(self._SyncObj__raftCommitIndex, self.journal.durable_index)
        useless = self.hollow  # it is older than the beginning of the log
        self.reply_snapshot(
            node, pb.SnapshotReply(file_hash=file_hash, installed=not useless, failed=useless, index=index)
        )

    def reply_snapshot(self, node: Node, reply: pb.SnapshotReply) -> None:
        self._send(node, pb.Envelope(term=self.term, wall_ms=self.entry_clock.wall_ms(), snapshot_reply=reply))

    def _receive_snapshot(self, node: Node, envelope: pb.Envelope) -> None:
        self._hear_leader(node)
        if self.snapshots is not None:
            self.snapshots.received(node, envelope)

    def _hear_leader(self, node: Node) -> None:
        raise NotImplementedError
