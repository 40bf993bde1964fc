"""Whether checkpoint and log are enough (rules A2, A5): the state of a copy of a node's folder is thrown away, and what
shipped code makes of the rest must be what everybody had."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum_node.store import Store
from kvorum_node.store.host import LinuxHost
from kvorum_raft.checkpoints import Checkpoints, PlainCopier
from kvorum_raft.entry import Kind
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_store import LogStore
from kvorum_raft.snapshotting import restore
from tests.simulation.whole.vault import Vault

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge
    from tests.simulation.whole.machines import Machine


class _NoDisk:
    """A journal that is only read."""

    def __init__(self, store: LogStore) -> None:
        self.read = store.read


class _Elsewhere(LinuxHost):
    """The machine of the copy."""

    def remote_kind(self, path: Path) -> str | None:
        return None

    def sync_file(self, path: Path) -> None:
        """It is thrown away anyway."""

    def new_uuid(self) -> str:
        return "copy"


def audit(machine: "Machine", judge: "Judge", folder: Path) -> None:
    """`folder` is for the copy, and is deleted."""
    core = machine.process.core if machine.process is not None else None
    raft = machine.process.raft if machine.process is not None else None
    if core is None or raft is None or core.hollow or core.configuration is None or machine.rotten:
        return
    _look(machine, judge)
    try:
        _rebuild(machine, judge, folder)
    except Exception as error:  # noqa: BLE001  whatever it is, the node could not be restarted either
        judge.broken(f"the state of {machine.name} cannot be rebuilt: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _look(machine: "Machine", judge: "Judge") -> None:
    """At the live node."""
    assert machine.process is not None and machine.process.raft is not None and machine.process.core is not None
    core, manifests = machine.process.core, machine.process.raft._snapshots._checkpoints.manifests
    base = core.journal.base_index
    oldest = manifests[0].base.index if manifests else 0
    if base > max([0, *(manifest.base.index for manifest in manifests)]) and not core.installing:
        judge.broken(f"the log of {machine.name} begins at {base}, its newest checkpoint lies before: {oldest}")
    bound = min(core.commit_index, core.journal.durable_index)
    if not core.installing and core.applied_index > bound:
        judge.broken(f"node {machine.name} has applied entry {core.applied_index} beyond {bound}")


def _rebuild(machine: "Machine", judge: "Judge", folder: Path) -> None:
    vault = Vault()
    for name, content in sorted(machine.files.tree().items()):
        if not name.startswith("state"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if content is None else path.write_bytes(content)
    log = folder / "raft" / "log" / "data.mdb"
    if log.exists():
        vault.keep(log, machine.log_storage().copy())
    store = LogStore.open(
        folder / "raft" / "log",
        map_size=1 << 20,
        open_env=vault.open,
        open_file=vault.open_ahead,
        new_epoch=bytes,
    )
    stored = store.verify(cache=1 << 20)
    journal = RaftJournal(_NoDisk(store), stored, cache=1 << 20, clock=lambda: 0.0)  # type: ignore[arg-type]
    checkpoints = Checkpoints(folder / "checkpoints", sync=lambda path: None, copier=PlainCopier())
    checkpoints.load()
    host = _Elsewhere()
    state = Store.open(
        folder / "state",
        durable=False,
        host=host,
        open_env=vault.open,
        run_aside=lambda job: job(),
        history_bounds=machine.history_bounds,
    )
    try:
        restore(state, checkpoints, journal)
        if state.applied_index < journal.base_index:
            judge.broken(f"no checkpoint of {machine.name} reaches the beginning of its log at {journal.base_index}")
            return
        for index in range(state.applied_index + 1, min(journal.commit_bound, journal.last_index) + 1):
            entry = journal.entry(index)
            payload = entry.payload if entry.kind is Kind.COMMAND else b""
            state.apply_now(entry.index, entry.time_ms, payload)
        known = judge.entries.get(state.applied_index)
        if state.applied_index and known is not None and known[1] != state.state_hash():
            judge.broken(f"checkpoint and log of {machine.name} lead to another state at entry {state.applied_index}")
        judge.counters["states rebuilt on a copy"] += 1
        judge.counters["of them from a checkpoint"] += bool(checkpoints.manifests)
    finally:
        state.close(clean=False)
        store.close()
