"""A machine: disk, clock, network name and files. Its processes come and go."""

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

from kvorum_node.store.host import FileId
from kvorum_raft import Timing
from kvorum_raft.config import Limits
from kvorum_raft.errors import Refused
from kvorum_raft.seams import Applied, Member
from tests.simulation.whole import files
from tests.simulation.whole.background import Killed
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.disk import Platter
from tests.simulation.whole.files import Files, Tree
from tests.simulation.whole.network import Network
from tests.simulation.whole.process import Process
from tests.simulation.whole.ranges import BOUNDS
from tests.simulation.whole.storage import AheadFile, Storage
from tests.simulation.whole.vault import Vault

EPOCH_MS: Final = 1_700_000_000_000
"""Unix time of the beginning of the world."""


class Observer(Protocol):
    """Who watches the nodes."""

    def started(self, process: Process, applied_index: int) -> None: ...

    def applied(self, process: Process, applied: Applied) -> None: ...

    def installed(self, process: Process, index: int) -> None: ...

    def role_changed(self, process: Process, leading: bool) -> None: ...

    def fault(self, process: Process, error: Exception) -> None: ...

    def refused(self, process: Process, error: Refused) -> None: ...

    def error(self, name: str, context: dict[str, Any]) -> None: ...

    def broken(self, what: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of all files of a machine."""

    tree: Tree
    storages: dict[str, Storage]
    starts: int


class Machine:
    """Outlives its processes. `wall_offset_ms` is how wrong its clock is, `drift` how fast its seconds are."""

    def __init__(
        self, name: str, clock: Clock, network: Network, members: list[Member], folder: Path, seed: str, watch: Observer
    ) -> None:
        self.name = name
        self.node_id = name
        """Of whose folder it holds."""
        self.clock = clock
        self.network = network
        self.members = members
        self.folder = folder
        self.rng = random.Random(f"{seed}-{name}")
        self.observer = watch
        self.platter = Platter(random.Random(f"{seed}-{name}-disk"))
        self.files = Files(folder)
        self.vault = Vault()
        self.wall_offset_ms = 0
        self.drift = 1.0
        self.timing = Timing()
        self.limits = Limits()
        self.watches = True
        self.join = False
        """Its folder waits to be added to the cluster."""
        self.peer_port = 1
        self.slice_commits = 16
        self.history_bounds = BOUNDS[-1]
        """The same on all machines."""
        self.narrow = False
        """Takes few writes at a time."""
        self.slowness = 0.02
        """Seconds between two jobs in the background, on average."""
        self.low_space = False
        self.rotten = False
        """Somebody has damaged its checkpoints: they need not lead to anything."""
        self.out = False
        """It is no member, or its folder is refused: it is not started again by itself."""
        self.process: Process | None = None
        self.buried: list[Process] = []
        self.at_lead: Callable[[Machine], None] | None = None
        """Called once, in the moment in which it is elected."""
        self.at_commit: Callable[[], None] | None = None
        """Called once, in the moment in which it commits something as a leader."""
        self.at_install: Callable[[], None] | None = None
        """Called once, in the moment in which a snapshot has become its state."""
        self.counters: Counter[str] = Counter()
        self.boots = 0
        self.starts = 0
        self._epochs = 0
        self._inodes: dict[int, int] = {}
        self._syncs_left = 0
        self._cut_inside = False
        self._released: list[int] = []

    # ---- what the process asks its machine

    @property
    def peer_address(self) -> str:
        return f"{self.name}:{self.peer_port}"

    @property
    def client_address(self) -> str:
        return f"{self.name}:2"

    @property
    def member(self) -> Member:
        return Member(self.node_id, self.peer_address, self.client_address)

    def listed(self) -> list[Member]:
        """What its configuration file says."""
        if self.join:
            return [self.member]
        return [*(one for one in self.members if one.node_id != self.node_id), self.member]

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.clock.now * 1000 * self.drift) + self.wall_offset_ms

    def open_env(self, path: str, **options: Any) -> Any:
        """As `lmdb.open`."""
        return self.vault.open(path, **options)

    def open_ahead(self, path: Path, whole: bool) -> AheadFile:
        """As `kvorum_raft.write_ahead.SyncedFile`."""
        return self.vault.open_ahead(path, whole)

    def new_epoch(self, size: int) -> bytes:
        """Never the same again, on any machine. Without a random number, of which there would be others then."""
        self._epochs += 1
        return blake2b(f"{self.name} {self._epochs}".encode(), digest_size=size).digest()

    def log_storage(self) -> Storage:
        storage = self.vault.find(self.folder / "raft" / "log" / "data.mdb")
        assert storage is not None
        return storage

    def boot_id(self) -> str | None:
        return f"boot {self.boots}"

    def mount_id(self, path: Path) -> int | None:
        return self.boots

    def file_id(self, path: Path) -> FileId:
        # Numbers of its own: real ones differ from run to run.
        return FileId(1, self._inodes.setdefault(path.stat().st_ino, len(self._inodes) + 1))

    def remote_kind(self, path: Path) -> str | None:
        return None

    def sync_file(self, path: Path) -> None:
        """fsync; the process may die just before or just after it."""
        if self._syncs_left and self.process is not None and not self.process.loop.dead:
            self._syncs_left -= 1
            if not self._syncs_left:
                if self.rng.random() < 0.5:
                    self.files.sync(path)
                self._die_here(self.process)
        if self.platter.full and self.rng.random() < 0.3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.files.sync(path)

    def new_uuid(self) -> str:
        return self.rng.randbytes(16).hex()

    # ---- dying in the middle of something

    def kill_in_sync(self, count: int, *, power: bool) -> None:
        """Die within the `count`-th sync of a file from now on."""
        self._syncs_left, self._cut_inside = count, power

    def _die_here(self, process: Process) -> None:
        tree = self.files.tree()
        process.loop.kill()
        self.clock.after(0.0, self._died, process, tree)
        raise Killed

    def _died(self, process: Process, tree: Tree) -> None:
        if self.process is process:
            self.files.restore(tree)
            self.counters["deaths within a sync of a file"] += 1
            if self._cut_inside:
                self.cut_power()
            else:
                self.kill()
            self.clock.after(self.rng.uniform(0.05, 1.0), self.start)

    # ---- what the schedule asks

    def last_index(self) -> int:
        """Of the log in memory; 0 without a process."""
        core = self.process.core if self.process is not None else None
        return core.journal.last_index if core else 0

    def durable_index(self) -> int:
        core = self.process.core if self.process is not None else None
        return core.journal.durable_index if core else 0

    def base_index(self) -> int:
        """Behind which its log begins."""
        core = self.process.core if self.process is not None else None
        return core.journal.base_index if core else 0

    def make_checkpoint(self) -> None:
        """Soon, as for a follower that could use none of those that are there."""
        snapshots = getattr(self.process.raft, "_snapshots", None) if self.process is not None else None
        if snapshots is not None:
            snapshots.checkpointer.force()

    @property
    def leads(self) -> bool:
        return bool(self.process and self.process.raft and self.process.raft.is_leader)

    def leading(self) -> None:
        if self.at_lead is not None:
            call, self.at_lead = self.at_lead, None
            call(self)

    def committing(self) -> None:
        if self.at_commit is not None:
            call, self.at_commit = self.at_commit, None
            # the step that it is in goes on, but nothing that it sends is faster than this
            self.clock.after(0.0, call)

    def installed(self, index: int) -> None:
        if self.at_install is not None:
            call, self.at_install = self.at_install, None
            self.clock.after(0.0, call)  # before what it answers arrives anywhere

    # ---- trouble

    def calm(self) -> None:
        """Nothing more goes wrong with it."""
        self.at_lead = self.at_commit = self.at_install = None
        self._syncs_left = 0
        self.low_space = False
        self.platter.calm()
        if self.process is not None and self.process.stopping:
            self.kill()
        if self.process is not None:
            self.process.loop.go_on(timers_first=False)

    @property
    def up(self) -> bool:
        """A process is there, paused or not."""
        return self.process is not None

    def start(self) -> None:
        """Begin a process, unless one is there."""
        self.network.without_power.discard(self.name)
        if self.process is None and not self.out:
            self.starts += 1
            self.process = Process(self)
            self.process.begin()

    def kill(self) -> bool:
        """kill -9. True if a transaction that was under way is lost."""
        lost = False
        for path, storage in self.vault.storages(self.folder).items():
            lost |= storage.lose_process(self.rng, atomic=self._is_log(path))
        self._bury(power=False)
        return lost

    def cut_power(self) -> bool:
        """True if something that was not synced is lost from the log."""
        lost = False
        for path, storage in self.vault.storages(self.folder).items():
            here = storage.lose_power(self.rng, atomic=self._is_log(path))
            lost |= here and self._is_log(path)
        self.boots += 1
        self.network.without_power.add(self.name)
        self._bury(power=True)
        before = self.files.lost
        self.files.lose_power(self.rng)
        self.counters["files lost by cuts"] += self.files.lost - before
        return lost

    def _is_log(self, data: Path) -> bool:
        return data.parent.name == "log"

    def _bury(self, *, power: bool) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.die(power=power)
            self.buried.append(process)
            self._released += files.release(self.folder)

    def ended(self, process: Process) -> None:
        """The process ended by itself."""
        if self.process is process:
            self._bury(power=False)

    def close(self) -> None:
        """The end of the world."""
        for process in self.buried:
            process.loop.bury()
        files.close_released(self._released)

    # ---- its folder

    def wipe(self) -> None:
        """Its files are gone, and its process with them."""
        if self.up:
            self.kill()
        self.rotten = False
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = Files(self.folder)
        self.vault = Vault()

    def back_up(self) -> Backup:
        """A copy of everything as it is, unsynced data too."""
        storages = self.vault.storages(self.folder)
        copies = {str(path.relative_to(self.folder)): storage.copy() for path, storage in storages.items()}
        return Backup(self.files.tree(), copies, self.starts)

    def bring_back(self, backup: Backup) -> None:
        """What was, here or on another machine, is here now. Without a process."""
        self.wipe()
        self.folder.mkdir(parents=True)
        self.boots += 1
        self.files.restore(backup.tree)
        for name, storage in backup.storages.items():
            self.vault.keep(self.folder / name, storage.copy())
        self.files.sync_all()
