"""One life of a node on a machine, made of shipped parts as `kvorum_node.assembly` makes it."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.handover import HandOver
from kvorum_node.proposer import ProposerLimits, proposal
from kvorum_node.service import NodeService, ServiceSettings
from kvorum_node.store import DATA_VERSION, Store
from kvorum_raft import RaftConfig, RaftNode, report
from kvorum_raft.checkpoints import Checkpoints, PlainCopier
from kvorum_raft.entry import Entry
from kvorum_raft.errors import RaftError, Refused
from kvorum_raft.faults import FAULT_MARKER, REBUILD_MARKER, has_marker, write_marker
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_store import LogStore
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from tests.simulation.whole.background import SimBackground
from tests.simulation.whole.clock import ProcessLoop
from tests.simulation.whole.disk import SimDisk, SimLists
from tests.simulation.whole.rpc import ROOT_HASH, StreamServer

if TYPE_CHECKING:
    from tests.simulation.whole.machines import Machine

LEASE = 1.0
DRAIN_PATIENCE = 2.0
NARROW = ProposerLimits(entry_commits=4, entry_weight=8, queued_weight=16)
"""Of nodes that are soon overloaded."""


class Process:
    """See the module."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.name = machine.name
        rng = self.rng = random.Random(machine.rng.randbytes(8))
        self.loop = ProcessLoop(
            machine.clock,
            machine.name,
            machine.network,
            rate=machine.drift,
            began=rng.uniform(10.0, 1e6),
            on_error=machine.observer.error,
        )
        self.store: Store | None = None
        self.raft: RaftNode | None = None
        self.service: NodeService | None = None
        self.server: StreamServer | None = None
        self.hand_over: HandOver | None = None
        self.applied_index: int | None = None
        """The last entry whose effects its state holds, once the judge has seen it apply something."""
        self.serving = False
        self.stopping = False

    @property
    def core(self) -> SafeSyncObj | None:
        """Once it has read its log."""
        return getattr(self.raft, "_core", None)

    def begin(self) -> None:
        self.loop.run(self._spawn, self._main)

    def stop(self) -> None:
        """SIGTERM."""
        if not self.stopping and self.serving:
            self.stopping = True
            self.loop.run(self._spawn, self._stop)

    def repeat_tick(self, schedule: str) -> bool:
        """Propose the last tick of a recurring message once more, as a leader may that does not know what became of it.
        False if there was none."""
        store, service = self.store, self.service
        if store is None or service is None or not self.serving:
            return False
        with store.snapshot() as snapshot:
            info = snapshot.schedule_info(schedule)
        if info is None or not info.last_ms:
            return False
        command = pb.Command(tick=pb.Tick(schedule=schedule, tick_ms=info.last_ms, next_ms=info.next_ms))
        self.loop.run(service.proposer.submit, proposal(command, lambda output, error: None))
        return True

    def ask(self, question: Callable[[RaftNode], Any], answered: Callable[[Exception | None], None]) -> None:
        """Let an administrator ask this node for something."""

        async def asking() -> None:
            error: Exception | None = None
            try:
                await question(self.raft)  # type: ignore[arg-type]
            except (RaftError, ValueError, OSError) as refusal:
                error = refusal
            answered(error)

        self.loop.run(self._spawn, asking)

    def _spawn(self, main: Callable[[], Any]) -> None:
        self.loop.create_task(main()).add_done_callback(self._over)

    def _over(self, task: Any) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(error)

    async def _main(self) -> None:
        machine, loop = self.machine, self.loop
        store = self.store = Store.open(
            machine.folder / "state",
            durable=False,
            force_rebuild=has_marker(machine.folder / "raft", REBUILD_MARKER),
            host=machine,
            open_env=machine.open_env,
            slice_commits=machine.slice_commits,
            history_bounds=machine.history_bounds,
            run_aside=self._run_aside,
        )
        if machine.starts > 1:
            machine.counters["states rebuilt" if store.rebuilt else "states trusted"] += 1
        raft = self.raft = self._make_raft(store)
        raft.on_applied(partial(machine.observer.applied, self))
        raft.on_leadership(partial(machine.observer.role_changed, self))
        raft.on_installed(partial(machine.observer.installed, self))
        raft.on_installed(machine.installed)
        longest = machine.timing.election_max
        self.hand_over = HandOver(raft, raft, loop, patience=longest, too_late=machine.timing.election_min / 2)
        service = self.service = NodeService(
            store,
            raft,
            loop,
            ServiceSettings(
                lease=LEASE, max_election_timeout=longest, proposer=NARROW if machine.narrow else ProposerLimits()
            ),
            lists=SimLists(loop, store, self.rng),
            no_space=lambda: raft.cluster_low_on_space() or "",
            unreadable=lambda: "" if store.cluster_id and not raft.hollow else "there is no state here",
            common_data_version=raft.common_data_version,
            root_hash=ROOT_HASH,
            on_late=self.hand_over.late,
        )
        await service.start()
        machine.observer.started(self, store.applied_index)
        self._hook(raft._core)
        if machine.watches:
            self._watch_cuts(raft._journal)
            self._watch_commits(raft._core)
        self.server = StreamServer(machine.network, loop, service, machine.node_id, machine.client_address)
        self.server.start()
        loop.call_later(5.0, store.proved_good)
        self.serving = True

    def _make_raft(self, store: Store) -> RaftNode:
        machine = self.machine
        return RaftNode(
            RaftConfig(
                machine.node_id,
                machine.listed(),
                machine.folder,
                listen=machine.peer_address,
                timing=machine.timing,
                limits=machine.limits,
                join=machine.join,
                data_version=DATA_VERSION,
            ),
            store,
            first_payload=_first_payload,
            on_fault=self.fault,
            wall=machine.wall_ms,
            stopwatch=self.loop.time,
            rng=self.rng,
            random_bytes=self.rng.randbytes,
            open_log=partial(
                LogStore.open,
                open_env=machine.open_env,
                open_file=machine.open_ahead,
                new_epoch=machine.new_epoch,
            ),
            make_disk=self._make_disk,  # type: ignore[arg-type]
            make_background=self._make_background,
            make_checkpoints=self._make_checkpoints,
            low_space=lambda: machine.low_space,
        )

    def _make_background(self, loop: Any) -> SimBackground:
        return SimBackground(self.loop, self.rng, self.machine.slowness)

    def _make_checkpoints(self, folder: Path, stopping: Callable[[], bool]) -> Checkpoints:
        return Checkpoints(folder, sync=self.machine.sync_file, copier=PlainCopier())

    def _make_disk(self, store: LogStore, report: Callable[..., None]) -> SimDisk:
        return SimDisk(self.loop, self.machine.platter, self.machine.log_storage(), store, report)

    def _run_aside(self, job: Callable[[], None]) -> None:
        self.loop.clock.after(self.rng.uniform(0.0, 0.05), lambda: None if self.loop.dead else job())

    def _hook(self, core: SafeSyncObj) -> None:
        """Moments that schedules wait for."""
        lead, commit = core._SyncObj__onBecomeLeader, core._set_commit

        def leading() -> None:
            lead()
            self.machine.leading()

        def set_commit(index: int) -> None:
            commit(index)
            if core.state == LEADER:
                self.machine.committing()

        core._SyncObj__onBecomeLeader = leading  # type: ignore[method-assign]
        core._set_commit = set_commit  # type: ignore[method-assign]

    def _watch_cuts(self, journal: RaftJournal) -> None:
        """A log is cut at a conflict, so what is written where it was cut is of another term. To cut more is to forget
        what may have been acknowledged, which does harm too rarely to wait for it."""
        cut, append = journal.truncate_from, journal.append
        last_cut: list[tuple[int, int | None]] = []

        def truncate_from(index: int) -> None:
            last_cut[:] = [(index, journal.term_at(index))]
            cut(index)

        def observed(entry: Entry) -> None:
            if last_cut and (entry.index, entry.term) == last_cut[0]:
                self.machine.observer.broken(f"node {self.name} cut off entry {entry.index} and wrote it again")
            last_cut.clear()
            append(entry)

        journal.truncate_from = truncate_from  # type: ignore[method-assign]
        journal.append = observed  # type: ignore[method-assign]

    def _watch_commits(self, core: SafeSyncObj) -> None:
        """A leader counts copies of its own term's entries only; the loss that follows takes three more failures."""
        commit = core._set_commit

        def set_commit(index: int) -> None:
            if core.state == LEADER and core.journal.term_at(index) != core.term:
                self.machine.observer.broken(f"node {self.name} leads term {core.term} and counts older entry {index}")
            commit(index)

        core._set_commit = set_commit  # type: ignore[method-assign]

    async def _stop(self) -> None:
        """As `Replica.retire` and the end of its `async with`."""
        assert self.service is not None and self.server is not None and self.store is not None
        assert self.hand_over is not None
        self.machine.counters["leaderships handed over"] += await self.hand_over.now()
        await self.service.drain(DRAIN_PATIENCE)
        await self.server.stop()
        await self.hand_over.stop()
        await self.service.stop()
        self.store.close()
        self.machine.clock.after(0.0, self.machine.ended, self)

    def fault(self, error: BaseException) -> None:
        """What `exit_process` does."""
        if self.loop.dead:
            return
        if isinstance(error, Refused):
            self.machine.observer.refused(self, error)
        else:
            write_marker(self.machine.folder / "raft", FAULT_MARKER, str(error))
            self.machine.observer.fault(self, error if isinstance(error, Exception) else RaftError(repr(error)))
        self.machine.ended(self)

    def die(self, *, power: bool) -> None:
        counters = self.machine.counters
        if self.core is not None and self.raft is not None:
            for name, value in report.statistics(self.raft._parts).items():
                if name in COUNTED:
                    counters[COUNTED[name]] += int(value)
        self.loop.kill()
        self.machine.network.process_died(self.loop, power=power)


COUNTED = {
    "log_truncations": "log truncations",
    "checkpoints": "checkpoints made",
    "checkpoint_failures": "checkpoint failures",
    "installs": "snapshots installed",
    "elections_left": "elections left to others",
}


def _first_payload(cluster_id: bytes) -> bytes:
    batch = pb.Batch(data_version=1)
    batch.commands.add().init_cluster.cluster_id = cluster_id
    return batch.SerializeToString()
