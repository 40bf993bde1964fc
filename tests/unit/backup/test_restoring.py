"""Backups of a state with everything in it, read back, and folders made of them."""

import os
import random
import shutil
from pathlib import Path

import pytest

from kvorum.errors import DatabaseLocked
from kvorum_node.backup import restoring
from kvorum_node.backup.files import NewFile, check, read_header, unpack
from kvorum_node.backup.frames import BadFile
from kvorum_node.backup.restoring import from_backup, restore_embedded, restore_node
from kvorum_node.backup.saving import bookmark
from kvorum_node.store import Store
from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_store import LogStore
from kvorum_raft.seams import Member
from kvorum_raft.snapshotting import restore
from tests.unit.backup.conftest import backup_of, stream
from tests.unit.store.harness import START_MS, Replica, group, open_session, put, write
from tests.unit.store.test_determinism import Traffic
from tests.unit.store.test_images import rows

NOW_MS = START_MS + 10_000_000_000
MEMBER = Member("n1", "n1.example:7403", "n1.example:7401")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def reopened(data_dir: Path) -> Store:
    """The state that a node finds at its start in a restored folder, through its own code."""
    log = LogStore.open(data_dir / "raft" / "log", map_size=1 << 30)
    try:
        stored = log.verify(cache=1 << 20)
        identity = ids.started(log.get(ids.IDENTITY_KEY), MEMBER.node_id, os.urandom)
        journal = RaftJournal(LmdbDisk(log, lambda *_: None), stored, cache=1 << 20, clock=lambda: 0.0)
        configuration = cf.decode(journal.configurations[-1].payload)
        assert configuration.incarnations == {"n1": identity.incarnation}
        assert configuration.cluster_id == identity.cluster_id
        assert configuration.voters == {"n1"}
        store = Store.open(data_dir / "state", durable=False)
        checkpoints = Checkpoints(data_dir / "checkpoints")
        checkpoints.load()
        manifest = restore(store, checkpoints, journal)
        assert manifest is not None
        assert store.applied_index == journal.base_index == journal.last_index == manifest.base.index
        assert store.cluster_id == identity.cluster_id
    finally:
        log.close()
    return store


def test_a_backup_says_what_it_is_and_passes(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    store = busy.store
    checked = check(stream(backup), tmp_path)
    header = checked.header
    assert header == read_header(stream(backup))
    assert (header.index, header.time_ms) == (store.applied_index, store.applied_time_ms)
    assert header.content_hash == store.state_hash() == checked.facts.facts.content_hash
    assert (header.cluster_id, header.stamp_base) == (store.cluster_id, store.stamp_base)
    assert header.bookmark == bookmark(store.applied_index + store.stamp_base)
    assert (header.node_id, header.term) == ("n1", 7)
    assert names(tmp_path) == ["data", "spool"]
    assert names(tmp_path / "spool") == []


def test_a_restored_node_has_the_same_rows_under_a_new_name(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    old = busy.store
    made = restore_node(from_backup(stream(backup)), tmp_path / "n1", MEMBER, NOW_MS)
    assert names(tmp_path / "n1") == ["checkpoints", "raft"]
    assert made.old_hash == old.state_hash()
    assert made.cluster_id != old.cluster_id
    assert made.stamp_base == NOW_MS << 20
    store = reopened(tmp_path / "n1")
    try:
        assert rows(store) == rows(old)
        assert store.session_ids() == []
        assert [lease.message_id for lease in store.leases()] == [lease.message_id for lease in old.leases()]
        assert (store.cluster_id, store.stamp_base) == (made.cluster_id, made.stamp_base)
        for _ in store.scrub(1_000):
            pass
        written = store.apply_now(store.applied_index + 1, NOW_MS, _one_write(b"after"))
        with store.snapshot() as snapshot:
            stamp = snapshot.get(b"after").versionstamp
        assert stamp > bookmark(old.applied_index + old.stamp_base)
        assert written.index == old.applied_index + 1
    finally:
        store.close()


def _one_write(key: bytes) -> bytes:
    from tests.unit.store.harness import batch

    return batch(group(write(put(key))), data_version=3)


def test_only_the_cluster_and_its_sessions_differ(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    """The content hash of what was restored, with the old id, base and no sessions, is the old one without sessions."""
    old = busy.store
    sessions = old.session_ids()
    assert sessions
    restore_node(from_backup(stream(backup)), tmp_path / "n1", MEMBER, NOW_MS)
    store = reopened(tmp_path / "n1")
    try:
        assert store.state_hash() != old.state_hash()
        store.refound(old.cluster_id, (NOW_MS << 20) + store.applied_index + 1)
        copy = Replica(tmp_path / "copy")
        for index, time_ms, payload in busy.log:
            copy.store.apply_now(index, time_ms, payload)
        copy.store.refound(old.cluster_id, store.stamp_base)
        assert store.state_hash() == copy.store.state_hash()
        copy.store.close()
    finally:
        store.close()


def test_an_embedded_database_and_back(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    restore_embedded(from_backup(stream(backup)), folder, NOW_MS)
    assert names(tmp_path) == ["app.kv", "data", "spool"]
    store = Store.open(folder, durable=True)
    try:
        assert rows(store) == rows(busy.store)
        again = backup_of(store, tmp_path / "spool")
        with pytest.raises(DatabaseLocked):
            Store.open(folder, durable=True)
    finally:
        store.close()
    made = restore_node(from_backup(stream(again)), tmp_path / "n1", MEMBER, NOW_MS + 1)
    assert made.stamp_base == (NOW_MS + 1) << 20
    store = reopened(tmp_path / "n1")
    assert rows(store) == rows(busy.store)
    store.close()


def test_stamps_that_would_not_be_new_are_refused(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    """Rules G1: restored twice within a millisecond, or with a clock that was set back."""
    restore_embedded(from_backup(stream(backup)), tmp_path / "app.kv", NOW_MS)
    store = Store.open(tmp_path / "app.kv", durable=True)
    again = backup_of(store, tmp_path / "spool")
    store.close()
    for moment in (NOW_MS, NOW_MS - 5_000):
        with pytest.raises(ValueError, match="the clock"):
            restore_node(from_backup(stream(again)), tmp_path / "n1", MEMBER, moment)
        assert names(tmp_path / "n1") == []
    restore_node(from_backup(stream(again)), tmp_path / "n1", MEMBER, NOW_MS + 1)


@pytest.mark.parametrize("embedded", [False, True])
def test_nothing_is_restored_over_what_is_there(backup: bytes, tmp_path: Path, embedded: bool) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "lost+found").mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"there is not empty \(it has "):
        if embedded:
            restore_embedded(from_backup(stream(backup)), folder, NOW_MS)
        else:
            restore_node(from_backup(stream(backup)), folder, MEMBER, NOW_MS)
    assert names(folder) == ["lost+found", "notes.txt"]
    with pytest.raises(ValueError, match="is a file"):
        restore_node(from_backup(stream(backup)), folder / "notes.txt", MEMBER, NOW_MS)


def test_damage_leaves_nothing_behind(backup: bytes, tmp_path: Path) -> None:
    rng = random.Random(3)
    for place in [9, 40, len(backup) // 2, len(backup) - 3, *(rng.randrange(len(backup)) for _ in range(10))]:
        changed = bytearray(backup)
        changed[place] ^= 0x10
        with pytest.raises(BadFile):
            restore_node(from_backup(stream(bytes(changed))), tmp_path / "n1", MEMBER, NOW_MS)
        with pytest.raises(BadFile):
            restore_embedded(from_backup(stream(bytes(changed))), tmp_path / "app.kv", NOW_MS)
        with pytest.raises(BadFile):
            check(stream(bytes(changed)), tmp_path)
        assert names(tmp_path / "n1") == []
        assert names(tmp_path) == ["data", "n1", "spool"]


def test_a_backup_whose_header_lies(busy: Replica, backup: bytes, tmp_path: Path) -> None:
    """A file of the right form, with another state's header: found when the state is opened."""
    from kvorum_node.backup.frames import BACKUP, encode

    header = read_header(stream(backup))
    unpack(stream(backup), tmp_path / "state")
    state = (tmp_path / "state").read_bytes()
    for field, value in (("index", header.index + 1), ("content_hash", bytes(16)), ("stamp_base", 5)):
        lying = read_header(stream(backup))
        setattr(lying, field, value)
        data = b"".join(encode(BACKUP, lying, [state]))
        with pytest.raises(BadFile, match="is not what it says"):
            check(stream(data), tmp_path)
    damaged = bytearray(state)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(BadFile, match="not the state that was put in"):
        check(stream(b"".join(encode(BACKUP, header, [bytes(damaged)]))), tmp_path)


def test_a_restore_that_was_killed_is_begun_anew(
    backup: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each rename: what is there is no node's folder, or the whole one."""

    class Killed(BaseException):
        pass

    folder = tmp_path / "n1"
    real = Path.rename
    for survived in (0, 1):
        left = survived

        def rename(self: Path, target: Path) -> Path:
            nonlocal left
            if Path(target).parent == folder:
                if not left:  # a killed process tidies nothing up
                    monkeypatch.setattr(restoring, "_delete", lambda path: None)
                    raise Killed
                left -= 1
            return real(self, target)

        monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            restore_node(from_backup(stream(backup)), folder, MEMBER, NOW_MS)
        monkeypatch.undo()
        assert "raft" not in names(folder)
        assert "restoring" in names(folder)
        if survived:  # a checkpoint without a log: an operator empties the folder, as the next try says
            with pytest.raises(ValueError, match="it has checkpoints"):
                restore_node(from_backup(stream(backup)), folder, MEMBER, NOW_MS)
            shutil.rmtree(folder)
    restore_node(from_backup(stream(backup)), folder, MEMBER, NOW_MS)
    assert names(folder) == ["checkpoints", "raft"]


def test_an_empty_state_cannot_found_a_cluster(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state")
    replica.apply(open_session())
    data = backup_of(replica.store, tmp_path / "spool")
    replica.store.close()
    restore_node(from_backup(stream(data)), tmp_path / "n1", MEMBER, NOW_MS)
    store = reopened(tmp_path / "n1")
    assert store.session_ids() == []
    store.close()


def test_a_new_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.bak"
    with NewFile(target) as file:
        file.write(b"half")
        assert not target.exists()
    assert names(tmp_path) == []
    with pytest.raises(RuntimeError), NewFile(target) as file:
        file.write(b"half")
        raise RuntimeError
    assert names(tmp_path) == []
    with NewFile(target) as file:
        file.write(b"whole")
        file.keep()
    assert target.read_bytes() == b"whole"
    with pytest.raises(FileExistsError), NewFile(target):
        pass
    with NewFile(target, replace=True) as file:
        file.write(b"newer")
        assert target.read_bytes() == b"whole"
        file.keep()
    assert target.read_bytes() == b"newer"
    assert names(tmp_path) == ["a.bak"]


def test_large_and_long(tmp_path: Path) -> None:
    """Values of 64 KiB, keys of 2,048 bytes, some thousands of rows."""
    replica = Replica(tmp_path / "state", data_version=3)
    rng = random.Random(5)
    for number in range(12):
        parts = [put(rng.randbytes(2_040) + bytes([number]), rng.randbytes(65_536)) for _ in range(12)]
        replica.commit(*parts)
        replica.commit(*(put(b"k%d-%d" % (number, at), b"v" * at) for at in range(300)))
    Traffic(replica, 9).run(5)
    data = backup_of(replica.store, tmp_path / "spool")
    assert len(data) > 9 << 20
    restore_node(from_backup(stream(data)), tmp_path / "n1", MEMBER, NOW_MS)
    store = reopened(tmp_path / "n1")
    assert rows(store) == rows(replica.store)
    store.close()
    replica.store.close()
