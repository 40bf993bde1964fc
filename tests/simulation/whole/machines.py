"""A machine with its disk and clock, and the node's process on it, made of shipped parts as `kvorum_node.main` makes
it."""

import os
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.service import NodeService, ServiceSettings
from kvorum_node.store import DATA_VERSION, Store
from kvorum_node.store.host import FileId
from kvorum_raft import RaftConfig, RaftNode, Timing
from kvorum_raft.config import Limits
from kvorum_raft.entry import Entry
from kvorum_raft.errors import RaftError
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_store import LogStore
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.seams import Applied, Member
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.disk import Platter, SimDisk, SimLists
from tests.simulation.whole.environment import Environment, Storage
from tests.simulation.whole.judge import EPOCH_MS
from tests.simulation.whole.network import Network
from tests.simulation.whole.rpc import StreamServer

LEASE = 1.0


class Observer(Protocol):
    """Who watches the nodes."""

    def applied(self, process: "Process", applied: Applied) -> None: ...

    def role_changed(self, process: "Process", leading: bool) -> None: ...

    def fault(self, process: "Process", error: Exception) -> None: ...

    def error(self, name: str, context: dict[str, Any]) -> None: ...

    def broken(self, what: str) -> None: ...


class Machine:
    """Outlives its processes. `wall_offset_ms` is how wrong its clock is, `drift` how fast its seconds are."""

    def __init__(
        self, name: str, clock: Clock, network: Network, members: list[Member], folder: Path, seed: str, watch: Observer
    ) -> None:
        self.name = name
        self.clock = clock
        self.network = network
        self.members = members
        self.folder = folder
        self.rng = random.Random(f"{seed}-{name}")
        self.observer = watch
        self.platter = Platter(random.Random(f"{seed}-{name}-disk"))
        self.wall_offset_ms = 0
        self.drift = 1.0
        self.timing = Timing()
        self.limits = Limits()
        self.process: Process | None = None
        self.buried: list[Process] = []
        self._storages: dict[str, Storage] = {}
        self.counters: Counter[str] = Counter()
        self.boots = 0
        self.starts = 0

    # ---- what the process asks its machine

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.clock.now * 1000 * self.drift) + self.wall_offset_ms

    def open_env(self, path: str, **options: Any) -> Any:
        """As `lmdb.open`. An empty file stands for the data, so that it can be missed and deleted."""
        data = Path(path) / "data.mdb"
        if not data.exists():
            self._storages[path] = Storage()
            data.touch()
        return Environment(self._storages[path], **options)

    def log_storage(self) -> Storage:
        return self._storages[str(self.folder / "raft" / "log")]

    def boot_id(self) -> str | None:
        return f"boot {self.boots}"

    def mount_id(self, path: Path) -> int | None:
        return self.boots

    def file_id(self, path: Path) -> FileId:
        return FileId(1, path.stat().st_ino)

    def remote_kind(self, path: Path) -> str | None:
        return None

    def sync_file(self, path: Path) -> None:
        """Small files are durable at once."""

    def new_uuid(self) -> str:
        return self.rng.randbytes(16).hex()

    # ---- trouble

    @property
    def up(self) -> bool:
        """A process is there, paused or not."""
        return self.process is not None

    def start(self) -> None:
        """Begin a process, unless one is there."""
        self.network.without_power.discard(self.name)
        if self.process is None:
            self.starts += 1
            self.process = Process(self)
            self.process.begin()

    def kill(self) -> bool:
        """kill -9. True if a transaction that was under way is lost."""
        lost = False
        for path, storage in self._storages.items():
            lost |= storage.lose_process(self.rng, atomic=self._is_log(path))
        self._bury(power=False)
        return lost

    def cut_power(self) -> bool:
        """True if something that was not synced is lost from the log."""
        lost = False
        for path, storage in self._storages.items():
            here = storage.lose_power(self.rng, atomic=self._is_log(path))
            lost |= here and self._is_log(path)
        self.boots += 1
        self.network.without_power.add(self.name)
        self._bury(power=True)
        return lost

    def _is_log(self, path: str) -> bool:
        return path.endswith("log")

    def _bury(self, *, power: bool) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.die(power=power)
            self.buried.append(process)

    def ended(self, process: "Process") -> None:
        """The process ended by itself."""
        if self.process is process:
            self._bury(power=False)


class Process:
    """One life of a node."""

    def __init__(self, machine: Machine) -> None:
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
        self.serving = False
        self.stopping = False

    def begin(self) -> None:
        self.loop.run(self._spawn, self._main)

    def stop(self) -> None:
        """SIGTERM."""
        if not self.stopping and self.serving:
            self.stopping = True
            self.loop.run(self._spawn, self._stop)

    def _spawn(self, main: Callable[[], Any]) -> None:
        self.loop.create_task(main()).add_done_callback(self._over)

    def _over(self, task: Any) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(error)

    async def _main(self) -> None:
        machine, loop = self.machine, self.loop
        store = self.store = Store.open(
            machine.folder / "state", durable=False, host=machine, open_env=machine.open_env, slice_commits=16
        )
        if machine.starts > 1:
            machine.counters["states rebuilt" if store.rebuilt else "states trusted"] += 1
        raft = self.raft = RaftNode(
            RaftConfig(machine.name, machine.members, machine.folder, timing=machine.timing, limits=machine.limits),
            store,
            first_payload=_first_payload,
            on_fault=self.fault,
            wall=machine.wall_ms,
            rng=self.rng,
            random_bytes=self.rng.randbytes,
            open_log=partial(LogStore.open, open_env=machine.open_env),
            make_disk=self._make_disk,  # type: ignore[arg-type]
        )
        raft.on_applied(partial(machine.observer.applied, self))
        raft.on_leadership(partial(machine.observer.role_changed, self))
        settings = ServiceSettings(lease=LEASE, max_election_timeout=machine.timing.election_max)
        service = self.service = NodeService(store, raft, loop, settings, lists=SimLists(loop, store, self.rng))
        await service.start()
        self._watch_cuts(raft._journal)
        self._watch_commits(raft._core)
        self.server = StreamServer(machine.network, loop, service, machine.name, f"{machine.name}:2")
        self.server.start()
        self.serving = True

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

    def _make_disk(self, store: LogStore, report: Callable[..., None]) -> SimDisk:
        return SimDisk(self.loop, self.machine.platter, self.machine.log_storage(), store, report)

    async def _stop(self) -> None:
        assert self.service is not None and self.server is not None and self.store is not None
        await self.server.stop()
        await self.service.stop()
        self.store.close()
        self.machine.clock.after(0.0, self.machine.ended, self)

    def fault(self, error: BaseException) -> None:
        """What `exit_process` does."""
        if self.loop.dead:
            return
        self.machine.observer.fault(self, error if isinstance(error, Exception) else RaftError(repr(error)))
        self.machine.ended(self)

    def die(self, *, power: bool) -> None:
        journal = getattr(self.raft, "_journal", None)
        if journal is not None:
            self.machine.counters["log truncations"] += journal.statistics()["log_truncations"]
        self.loop.kill()
        self.machine.network.process_died(self.loop, power=power)
        # The kernel gives a dead process's locks back.
        for owner, name in ((self.raft, "_lock_fd"), (self.store and self.store._environment, "_lock")):
            fd = getattr(owner, name, None)
            if fd is not None:
                os.close(fd)
                setattr(owner, name, None)


def _first_payload(cluster_id: bytes) -> bytes:
    batch = pb.Batch(data_version=DATA_VERSION)
    batch.commands.add().init_cluster.cluster_id = cluster_id
    return batch.SerializeToString()
