"""kvorum's core as a node of a `World`, with its real journal and checkpoints."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.checkpoints import Checkpoints, PlainCopier
from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.errors import ChangePending, NotLeader, RaftError, RaftFault
from kvorum_raft.journal import RaftJournal
from kvorum_raft.node import _REPLIES
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.seams import Applied
from kvorum_raft.snapshotting import Snapshotting, restore
from tests.simulation.links import LIMITS, TIMING, Broken, LinkTransport
from tests.simulation.machine import Jobs, Machine
from tests.simulation.simdisk import SimDisk

if TYPE_CHECKING:
    from tests.simulation.world import World


class SafeNode:
    """kvorum's core with a journal on a `SimDisk`. `auto_sync` syncs in every tick."""

    def __init__(
        self,
        node_id: str,
        world: "World",
        disk: SimDisk | None = None,
        machine: Machine | None = None,
        *,
        first_payload: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.node_id = node_id
        self._world = world
        self.disk = disk if disk is not None else SimDisk()
        self.machine = machine if machine is not None else Machine()
        self.transport = LinkTransport(world.links, node_id, lambda envelope: envelope.SerializeToString())
        self.reads: dict[int, Callable[[int | None], None]] = {}
        self._deleted = 0
        self._held = False
        self.fault: RaftFault | None = None
        self.journal = RaftJournal(self.disk, self.disk.stored(), cache=LIMITS.log_cache, clock=world.clock)
        truncate = self.journal.truncate_from

        def counted(index: int) -> None:
            self._deleted += self.journal.last_index - index + 1
            truncate(index)

        self.journal.truncate_from = counted  # type: ignore[method-assign]
        self.checkpoints: Checkpoints | None = None
        if world.folder is not None:
            self.checkpoints = Checkpoints(world.folder / node_id, sync=lambda path: None, copier=PlainCopier())
            self.checkpoints.load()
            restore(self.machine, self.checkpoints, self.journal)
        rng = random.Random(world.rng.random())
        self.core = SafeSyncObj(
            node_id,
            self.journal,
            self.transport,
            self.machine,
            _Listening(self),
            EntryClock(node_id, lambda: world.wall_ms(node_id), world.clock),
            timing=TIMING,
            limits=LIMITS,
            clock=world.clock,
            rng=rng,
            new_id=lambda: rng.randbytes(16),
            first_payload=first_payload,
            joining=self.journal.last_index == 0 and not world.forms(node_id),
            incarnation=world.incarnations[node_id],
        )
        self.jobs = Jobs()
        self.handed_over = 0
        self.base_at_start = self.journal.base_index
        self.snapshots: Snapshotting | None = None
        if self.checkpoints is not None:
            self.snapshots = self._snapshotting(self.checkpoints)
            self.core.snapshots = self.snapshots
        if world.forms(node_id):
            self.core.form(world.formation)
        elif self.journal.configurations:
            self.core.form(cf.decode(self.journal.configurations[-1].payload))

    def _snapshotting(self, checkpoints: Checkpoints) -> Snapshotting:
        return Snapshotting(
            self.core,
            self.journal,
            self.machine,
            checkpoints,
            self.jobs,
            clock=self._world.clock,
            send=self.core._send,
            installed=lambda index: None,
            fault=self._fail,
            minimum=self._world.checkpoint_bytes,
        )

    def _fail(self, error: Exception) -> None:
        raise Broken(f"node {self.node_id} fails: {error}") from error

    @property
    def applied(self) -> list[tuple[int, Any]]:
        return self.machine.applied

    @property
    def leads(self) -> bool:
        return self.core.state == LEADER

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def applied_index(self) -> int:
        return self.core.applied_index

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def deleted(self) -> int:
        return self._deleted

    def propose(
        self, value: str, done: Callable[[bool], None], refused: Callable[[RaftError], None] | None = None
    ) -> None:
        """`refused` hears why it was not done."""

        def finished(applied: Applied | None, error: RaftError | None) -> None:
            if error is not None and refused is not None:
                refused(error)
            done(error is None)

        self.core.propose(value.encode(), finished)

    @property
    def members(self) -> set[str]:
        """Ids of all members that this node knows of."""
        return set(self.core.configuration.incarnations) if self.core.configuration is not None else set()

    @property
    def voters(self) -> frozenset[str]:
        return self.core.configuration.voters if self.core.configuration is not None else frozenset()

    def change(self, step: Callable[[cf.Configuration], cf.Configuration], done: Callable[[bool], None]) -> None:
        """`done(False)` if it is refused, now or later."""
        configuration = self.core.configuration
        try:
            if configuration is None:
                raise NotLeader("no member of anything")
            self.core.change(step(configuration), lambda applied, error: done(error is None))
        except (ChangePending, NotLeader, ValueError):
            done(False)

    def add(self, node_id: str, done: Callable[[bool], None]) -> None:
        """As a learner."""
        self.change(lambda now: now.with_learner(*self._world.member(node_id)), done)

    def promote(self, node_id: str, done: Callable[[bool], None]) -> None:
        self.change(lambda now: now.with_promoted(node_id), done)

    def remove(self, node_id: str, done: Callable[[bool], None]) -> None:
        self.change(lambda now: now.without(node_id), done)

    def replace(self, node_id: str, done: Callable[[bool], None]) -> None:
        """By the folder that the node has now."""
        self.change(lambda now: now.with_replaced(*self._world.member(node_id)), done)

    def compact(self) -> None:
        """Make a checkpoint; the log is cut behind the one before it."""
        self.begin_compaction()
        self.jobs.run()
        for _ in range(20):
            self._world.clock.now += 0.021
            self.snapshots.tick()  # type: ignore[union-attr]
        self.sync()

    def begin_compaction(self) -> None:
        """The checkpoint is begun and not done."""
        if self.snapshots is None:
            raise RuntimeError("this world has no folder for checkpoints")
        self.snapshots.checkpointer.force()
        self._world.clock.now += 0.3
        self.snapshots.tick()

    def tick(self, *, judge: bool = True) -> None:
        """`judge=False`: a step that comes late, as `RaftNode` takes it before it has read its sockets."""
        if self._held:
            self.hold_election()
        more = True
        while more:  # a step ends with an entry that somebody waits for, and asks for another one
            before = self.core.applied_index
            more = self.core.tick(judge=judge) and self.core.applied_index > before
        if self.snapshots is not None:
            self.snapshots.tick()
        if self._world.auto_sync:
            self.sync()
            self.jobs.run()
        covered = min(self.core.commit_index, self.journal.durable_index)
        if self.applied_index > covered and not self.core.installing:
            raise Broken(f"node {self.node_id} applied beyond its durable log")

    def campaign(self) -> None:
        self._held = False
        self.core._SyncObj__raftElectionDeadline = 0.0
        self.core._contact = float("-inf")
        self.core.tick()
        self.core._SyncObj__raftElectionDeadline = 1e18
        if self._world.auto_sync:
            self.sync()

    def release_election(self) -> None:
        """Campaign when it is time."""
        self._held = False
        self.core._rearm(self._world.clock())

    def hold_election(self) -> None:
        self._held = True
        self.core._SyncObj__raftElectionDeadline = 1e18

    def restarted(self, world: "World", *, power_cut: bool) -> "SafeNode":
        """The next process: what was not synced is lost; the state too if the machine was."""
        self.stop()
        self.disk.crash()
        return SafeNode(self.node_id, world, self.disk, Machine() if power_cut else self.machine)

    def stop(self) -> None:
        """The process ends."""
        self.core.stop("crash")
        if self.snapshots is not None:
            self.snapshots.stop()

    @property
    def checkpoints_made(self) -> int:
        return int(self.snapshots.checkpointer.statistics()["checkpoints"]) if self.snapshots is not None else 0

    def admits(self, node_id: str) -> bool:
        """As the peer port does (`kvorum_raft.identity`): what this node's own configuration says may be old."""
        incarnation = self._world.incarnations[node_id]
        formed = self._world.nodes[node_id].core.configuration is not None
        if incarnation in self._removed():
            return False
        return formed or self.names(node_id)

    def names(self, node_id: str) -> bool:
        """The configuration in force means the folder that the node has now."""
        return self.core.configuration is not None and (
            self.core.configuration.incarnations.get(node_id) == self._world.incarnations[node_id]
        )

    def _removed(self) -> tuple[bytes, ...]:
        for entry in reversed(self.journal.configurations):
            if entry.index <= self.core.commit_index:
                return cf.decode(entry.payload).removed
        return ()

    def keep_oldest_log(self) -> None:
        """Cannot happen: log, term, vote and commit bound are written in one transaction."""

    def close(self) -> None:
        pass

    def sync(self, batches: int | None = None) -> None:
        self.journal.flush()
        while self.disk.pending and batches != 0:
            self.core.durable(self.disk.write_one())
            batches = None if batches is None else batches - 1

    def deliver(self, source: str, message: bytes) -> None:
        envelope = pb.Envelope.FromString(message)
        if envelope.WhichOneof("body") not in _REPLIES or self.names(source):
            self.transport.deliver(source, envelope)

    def read(self, read_id: int, done: Callable[[int | None], None]) -> None:
        """Linearizable: `done` gets the index that the read may see, or None."""
        if self.leads:
            self.core.read_index(lambda index, error: done(None if error else index))
        elif self.core.ask_leader(read_id):
            self.reads[read_id] = done
        else:
            done(None)

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        done = self.reads.pop(read_id, None)
        if done is not None:
            done(index if ok else None)


class _Listening:
    """The core's listener: `SafeNode.applied` is a list, the listener's `applied` a method."""

    def __init__(self, node: SafeNode) -> None:
        self._node = node

    def applied(self, applied: Applied) -> None:
        pass

    def state_hash(self, node: Node, message: pb.StateHash) -> None:
        pass

    def role_changed(self) -> None:
        pass

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        pass

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        self._node.read_answered(read_id, ok, index)
