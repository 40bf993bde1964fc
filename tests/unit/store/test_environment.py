"""The folder: proof before trust (rules A1), formats, locks, and what `kill -9` leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import lmdb
import pytest

from kvorum.errors import DatabaseCorrupt, DatabaseLocked, InvalidArgument
from kvorum_node.store import Store, StoreFault
from kvorum_node.store.checked import seal
from kvorum_node.store.host import FileId, LinuxHost
from tests.unit.store.harness import START_MS, batch, group, put, write


class Call(NamedTuple):
    name: str
    detail: str


class FakeHost(LinuxHost):
    """A machine whose facts can be changed between two runs; keeps what was synced, in order."""

    def __init__(self) -> None:
        self.boot: str | None = "boot-1"
        self.mount: int | None = 7
        self.file_offset = 0
        self.remote: str | None = None
        self.failing_syncs: set[str] = set()
        self.calls: list[Call] = []

    def boot_id(self) -> str | None:
        return self.boot

    def mount_id(self, path: Path) -> int | None:
        return self.mount

    def file_id(self, path: Path) -> FileId:
        real = super().file_id(path)
        return FileId(real.device, real.inode + self.file_offset)

    def remote_kind(self, path: Path) -> str | None:
        return self.remote

    def sync_file(self, path: Path) -> None:
        if path.name in self.failing_syncs:
            raise OSError(5, "Input/output error")
        names = ",".join(sorted(entry.name for entry in path.iterdir())) if path.is_dir() else ""
        self.calls.append(Call(path.name, names))
        super().sync_file(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def run(folder: Path, host: FakeHost, *, clean: bool, force_rebuild: bool = False) -> tuple[bool, int]:
    """Open, apply one more entry, close: whether it was rebuilt, and the index that it started at."""
    store = Store.open(folder, durable=False, map_size=1 << 26, host=host, force_rebuild=force_rebuild)
    found = store.rebuilt, store.applied_index
    store.apply_now(store.applied_index + 1, START_MS, batch(group(write(put(b"k%d" % store.applied_index)))))
    assert store.state_hash() == store.recompute_hash()
    store.close(clean=clean)
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_the_same_boot_is_proof(folder: Path, clean: bool) -> None:
    host = FakeHost()
    assert run(folder, host, clean=clean) == (False, 0)
    assert run(folder, host, clean=clean) == (False, 1)
    assert run(folder, host, clean=clean) == (False, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"boot": "boot-2"},
        {"mount": 8},
        {"file_offset": 1},
        {"boot": None},
        {"mount": None},
        {"failing_syncs": {"data.mdb"}},
    ],
)
def test_anything_else_after_a_kill_means_rebuild(folder: Path, change: dict[str, object]) -> None:
    host = FakeHost()
    run(folder, host, clean=False)
    for name, value in change.items():
        setattr(host, name, value)
    assert run(folder, host, clean=False) == (True, 0)


@pytest.mark.parametrize("change", [{"boot": "boot-2"}, {"mount": None}, {"file_offset": 1}])
def test_a_clean_end_outlasts_a_reboot(folder: Path, change: dict[str, object]) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    for name, value in change.items():
        setattr(host, name, value)
    assert run(folder, host, clean=False) == (False, 1)
    host.boot = "boot-3"
    assert run(folder, host, clean=False) == (True, 0), "CLEAN is spent by the run that it started"


def test_a_clean_end_needs_a_data_file_that_syncs(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    host.failing_syncs = {"data.mdb"}
    assert run(folder, host, clean=False) == (True, 0)


def test_a_host_that_knows_nothing_rebuilds_each_time(folder: Path) -> None:
    host = FakeHost()
    host.boot = host.mount = None
    run(folder, host, clean=False)
    assert not (folder / "RUN").exists()
    assert run(folder, host, clean=False) == (True, 0)


@pytest.mark.parametrize("field", ["boot", "mount", "device", "inode", "uuid"])
@pytest.mark.parametrize("how", ["missing", "different"])
def test_every_field_of_run_counts(folder: Path, field: str, how: str) -> None:
    host = FakeHost()
    run(folder, host, clean=False)
    fields = json.loads((folder / "RUN").read_text())
    assert sorted(fields) == ["boot", "device", "inode", "mount", "uuid"]
    if how == "missing":
        del fields[field]
    else:
        fields[field] = "other"
    (folder / "RUN").write_text(json.dumps(fields))
    assert run(folder, host, clean=False) == (True, 0)


@pytest.mark.parametrize("name", ["RUN", "CLEAN"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"x"', b"1" * 10_000, b"[" * 4_000])
def test_damaged_proofs_prove_nothing(folder: Path, name: str, content: bytes) -> None:
    host = FakeHost()
    run(folder, host, clean=name == "CLEAN")
    host.boot = "boot-2" if name == "CLEAN" else host.boot
    (folder / name).write_bytes(content)
    assert run(folder, host, clean=False) == (True, 0)


def test_clean_of_another_environment_proves_nothing(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    host.boot = "boot-2"
    (folder / "CLEAN").write_text(json.dumps({**json.loads((folder / "CLEAN").read_text()), "uuid": "0" * 32}))
    assert run(folder, host, clean=False) == (True, 0)


def test_clean_with_a_data_file_that_was_cut_short_proves_nothing(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    host.boot = "boot-2"
    os.truncate(folder / "data.mdb", (folder / "data.mdb").stat().st_size - 4_096)
    assert run(folder, host, clean=False) == (True, 0)


def test_a_folder_that_was_ended_cleanly_can_be_copied(folder: Path, tmp_path: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    host.boot = "boot-2"
    shutil.copytree(folder, tmp_path / "copy")
    assert run(tmp_path / "copy", host, clean=False) == (False, 1)
    shutil.copytree(tmp_path / "copy", tmp_path / "second copy")
    host.mount = 8
    assert run(tmp_path / "second copy", host, clean=False) == (True, 0)


def test_a_data_file_of_another_environment_is_not_used(folder: Path, tmp_path: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    run(tmp_path / "other", host, clean=True)
    shutil.copyfile(tmp_path / "other" / "data.mdb", folder / "data.mdb")
    assert run(folder, host, clean=False) == (True, 0)


def test_a_missing_data_file_means_rebuild(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    (folder / "data.mdb").unlink()
    assert run(folder, host, clean=False) == (True, 0)


def test_a_state_without_an_applied_index_means_rebuild(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    with lmdb.open(str(folder)) as env, env.begin(write=True) as txn:
        txn.delete(b"\x80state")
    assert run(folder, host, clean=False) == (True, 0)


def test_rebuild_can_be_forced(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    assert run(folder, host, clean=True, force_rebuild=True) == (True, 0)
    assert run(folder, host, clean=True) == (False, 1)
    with pytest.raises(ValueError, match="no log"):
        Store.open(folder, durable=True, force_rebuild=True)


def test_the_order_of_proofs(folder: Path) -> None:
    """CLEAN is durably gone before RUN is written, RUN is durable before the first write, CLEAN comes after
    everything."""
    host = FakeHost()
    run(folder, host, clean=True)
    host.calls.clear()
    store = Store.open(folder, durable=False, map_size=1 << 26, host=host)
    names = [call.name for call in host.calls]
    assert names[0] == "data.mdb"
    assert "RUN.new" in names
    run_at = names.index("RUN.new")
    gone = next(at for at, call in enumerate(host.calls) if call.name == "state" and "CLEAN" not in call.detail)
    assert gone < run_at
    assert names[run_at + 1] == "state"
    assert "RUN" in host.calls[run_at + 1].detail.split(",")
    host.calls.clear()
    store.close()
    assert [call.name for call in host.calls] == ["CLEAN.new", "state"]
    assert "CLEAN" in host.calls[-1].detail.split(",")


def test_a_failed_sync_at_the_end_leaves_no_proof(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost()
    store = Store.open(folder, durable=False, map_size=1 << 26, host=host)

    class Failing:
        def __init__(self, env: lmdb.Environment) -> None:
            self.env = env

        def sync(self, force: bool) -> None:
            raise lmdb.DiskError("mdb_env_sync: Input/output error")

        def close(self) -> None:
            self.env.close()

    monkeypatch.setattr(store._environment, "_env", Failing(store._environment.env))
    with pytest.raises(lmdb.DiskError):
        store.close()
    assert not (folder / "CLEAN").exists()
    host.boot = "boot-2"
    assert run(folder, host, clean=True) == (True, 0)


# ---- formats and kinds


def test_a_newer_folder_format_is_refused_by_name(folder: Path) -> None:
    host = FakeHost()
    run(folder, host, clean=True)
    fields = json.loads((folder / "FORMAT").read_text())
    (folder / "FORMAT").write_text(json.dumps({**fields, "format": 3}))
    before = (folder / "data.mdb").read_bytes()
    with pytest.raises(DatabaseCorrupt, match=r"FORMAT has data format 3; this version of kvorum knows 2"):
        Store.open(folder, durable=False)
    assert (folder / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("durable", [True, False])
def test_a_newer_state_format_is_refused_by_name(folder: Path, durable: bool) -> None:
    Store.open(folder, durable=durable, map_size=1 << 26).close()
    with lmdb.open(str(folder)) as env, env.begin(write=True) as txn:
        row = txn.get(b"\x80state", b"")
        txn.put(b"\x80state", seal(b"\x80state", b"\x00\x06" + row[2:-4] + b"more"))
    with pytest.raises(DatabaseCorrupt, match=r"data.mdb has data format 6; this version of kvorum knows 5"):
        Store.open(folder, durable=durable, map_size=1 << 26)
    assert (folder / "data.mdb").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b'{"format": "1", "uuid": "x", "durable": true}', b"\xff"])
def test_an_unreadable_format_file_is_refused(folder: Path, content: bytes) -> None:
    run(folder, FakeHost(), clean=True)
    (folder / "FORMAT").write_bytes(content)
    with pytest.raises(DatabaseCorrupt, match="FORMAT"):
        Store.open(folder, durable=False)
    assert (folder / "data.mdb").exists()


def test_a_foreign_data_file_is_refused(folder: Path) -> None:
    folder.mkdir()
    lmdb.open(str(folder)).close()
    for durable in (True, False):
        with pytest.raises(DatabaseCorrupt, match="no FORMAT file"):
            Store.open(folder, durable=durable)


def test_embedded_and_replica_folders_are_not_mixed_up(folder: Path, tmp_path: Path) -> None:
    Store.open(folder, durable=True, map_size=1 << 26).close()
    with pytest.raises(
        DatabaseCorrupt, match="state of an embedded database and cannot be opened as that of a cluster"
    ):
        Store.open(folder, durable=False)
    run(tmp_path / "node", FakeHost(), clean=True)
    with pytest.raises(DatabaseCorrupt, match="state of a cluster node and cannot be opened as that of an embedded"):
        Store.open(tmp_path / "node", durable=True)


def test_a_damaged_embedded_database_is_refused_not_deleted(folder: Path) -> None:
    store = Store.open(folder, durable=True, map_size=1 << 26)
    store.apply_now(1, START_MS, batch(group(write(put(b"a")))))
    store.close()
    damaged = b"x" * (folder / "data.mdb").stat().st_size
    (folder / "data.mdb").write_bytes(damaged)
    with pytest.raises(DatabaseCorrupt, match="damaged"):
        Store.open(folder, durable=True, map_size=1 << 26)
    assert (folder / "data.mdb").read_bytes() == damaged


def test_an_embedded_database_whose_last_transaction_is_gone_is_refused(folder: Path) -> None:
    store = Store.open(folder, durable=True, map_size=1 << 26)
    for index in (1, 2, 3):
        store.apply_now(index, START_MS, batch(group(write(put(b"a")))))
    before = (folder / "data.mdb").read_bytes()
    store.apply_now(4, START_MS, batch(group(write(put(b"b")))))
    store.close()
    (folder / "data.mdb").write_bytes(before.ljust((folder / "data.mdb").stat().st_size, b"\0"))
    with pytest.raises(DatabaseCorrupt, match="ends at entry 3, and ended at 4 when it was last closed"):
        Store.open(folder, durable=True, map_size=1 << 26)


def test_an_embedded_database_of_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    for path in (folder, tmp_path / "other"):
        Store.open(path, durable=True, map_size=1 << 26).close()
    shutil.copyfile(tmp_path / "other" / "data.mdb", folder / "data.mdb")
    with pytest.raises(DatabaseCorrupt, match="does not belong"):
        Store.open(folder, durable=True, map_size=1 << 26)


def test_a_first_start_cut_off_midway_starts_again(folder: Path) -> None:
    """FORMAT does not say that the database was complete: nothing was ever acknowledged."""
    for data in ("missing", "without a transaction", "whole"):
        Store.open(folder, durable=True, map_size=1 << 26).close()
        fields = json.loads((folder / "FORMAT").read_text())
        (folder / "FORMAT").write_text(json.dumps({**fields, "complete": False}))
        if data != "whole":
            (folder / "data.mdb").unlink()
        if data == "without a transaction":
            lmdb.open(str(folder)).close()
        for _ in range(2):
            store = Store.open(folder, durable=True, map_size=1 << 26)
            assert store.applied_index == 0
            store.close()
        shutil.rmtree(folder)


def test_a_lost_data_file_of_an_embedded_database_is_not_an_empty_database(folder: Path) -> None:
    Store.open(folder, durable=True, map_size=1 << 26).close()
    (folder / "data.mdb").unlink()
    with pytest.raises(DatabaseCorrupt, match=r"data\.mdb is missing"):
        Store.open(folder, durable=True, map_size=1 << 26)
    lmdb.open(str(folder)).close()
    with pytest.raises(
        DatabaseCorrupt, match=r"is damaged: it has 8,192 bytes, and had [\d,]+ when it was last closed"
    ):
        Store.open(folder, durable=True, map_size=1 << 26)
    with lmdb.open(str(folder), map_size=1 << 26) as foreign, foreign.begin(write=True) as txn:
        txn.put(b"x", bytes(100_000))  # no smaller than the lost one
    with pytest.raises(DatabaseCorrupt, match="does not belong"):
        Store.open(folder, durable=True, map_size=1 << 26)


# ---- one owner


def test_a_second_open_in_this_process_is_refused(folder: Path) -> None:
    store = Store.open(folder, durable=True, map_size=1 << 26)
    with pytest.raises(DatabaseLocked, match=r"open in this process: .*; share its Kv"):
        Store.open(folder, durable=True, map_size=1 << 26)
    store.close()
    Store.open(folder, durable=True, map_size=1 << 26).close()


def test_network_file_systems_are_refused(folder: Path) -> None:
    host = FakeHost()
    host.remote = "NFS"
    with pytest.raises(InvalidArgument, match=r"network or user-space file system \(NFS\)"):
        Store.open(folder, durable=False, host=host)


def test_an_impossible_map_is_one_clear_line(folder: Path) -> None:
    with pytest.raises(StoreFault, match=r"cannot open .* with a map of"):
        Store.open(folder, durable=False, map_size=1 << 60)
    Store.open(folder, durable=False, map_size=1 << 26).close()


# ---- the real host


def test_the_real_host(tmp_path: Path) -> None:
    host = LinuxHost()
    boot = host.boot_id()
    assert boot is not None
    assert boot == LinuxHost().boot_id()
    assert host.mount_id(tmp_path) == host.mount_id(tmp_path.parent)
    assert host.mount_id(tmp_path / "missing") is None
    if host.mount_id(tmp_path) is not None:
        assert host.mount_id(Path("/proc")) != host.mount_id(tmp_path)
    assert host.remote_kind(tmp_path) is None
    with pytest.raises(FileNotFoundError):
        host.remote_kind(tmp_path / "missing")
    assert len({host.new_uuid() for _ in range(3)}) == 3


# ---- kill -9

WRITER = """
import sys
from pathlib import Path
from kvorum_node.store import Store
from tests.unit.store.harness import START_MS, add, batch, enqueue, group, put, write
store = Store.open(Path(sys.argv[1]), durable=sys.argv[2] == "durable", map_size=1 << 28)
while True:
    index = store.applied_index + 1
    writes = [write(put(b"key%d" % (at % 50), b"%d" % index), add(b"n", 1)) for at in range(100)]
    store.apply_now(index, START_MS + index, batch(group(*writes, write(enqueue()))))
    print(index, store.state_hash().hex(), flush=True)
"""


@pytest.mark.parametrize("kind", ["durable", "unsynced"])
def test_kill_9_of_a_writer(folder: Path, kind: str) -> None:
    told = (0, "00" * 16)
    for entries in (1, 25, 60):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), kind],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(entries):
            index, digest = writer.stdout.readline().split()
            told = (int(index), digest)
        with pytest.raises(DatabaseLocked, match=f"open in process {writer.pid}"):
            Store.open(folder, durable=kind == "durable")
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        if rest and len(rest[-1].split()) == 2 and len(rest[-1].split()[1]) == 32:
            told = (int(rest[-1].split()[0]), rest[-1].split()[1])
        store = Store.open(folder, durable=kind == "durable", map_size=1 << 28)
        if store.rebuilt:  # a kernel without unique mount ids
            assert LinuxHost().mount_id(folder) is None
            assert store.applied_index == 0
            store.close()
            shutil.rmtree(folder)
            continue
        assert store.applied_index in (told[0], told[0] + 1), "an applied entry is missing"
        if store.applied_index == told[0]:
            assert store.state_hash().hex() == told[1]
        assert store.state_hash() == store.recompute_hash()
        with store.snapshot() as snapshot:
            assert int.from_bytes(snapshot.get(b"n").value, "little") == 100 * store.applied_index
        assert store.statistics()["messages"] == store.applied_index
        store.close()
