"""Whole states: images, files, prepared states, and the swap; readers across it, and a crash at each of its steps."""

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Store, StoreFault
from kvorum_node.store import files as store_files
from kvorum_node.store import home as store_home
from kvorum_node.store.host import FileId, LinuxHost
from kvorum_raft.background import Stopping, check_stopping
from kvorum_raft.seams import PreparedState, StateFacts, StateImage, StateMachine
from tests.unit.store.harness import START_MS, Replica, batch, group, init_cluster, put, write
from tests.unit.store.test_determinism import Traffic

EVERYTHING = pb.ReadRange(start=b"", end=b"\xff" * 8, limit=1 << 31)


def inline(job: Callable[[], None]) -> None:
    job()


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old states are deleted at once, so that tests see when."""
    defaults = Store.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    monkeypatch.setitem(defaults, "run_aside", inline)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Replica]:
    """A replica with something of everything in it, in a data folder of its own."""
    (tmp_path / "data").mkdir()
    made = Replica(tmp_path / "data" / "state")
    Traffic(made, 1).run(40)
    yield made
    made.check_hash()
    made.store.close()


def take_image(store: Store, file: Path) -> StateFacts:
    image = store.image()
    try:
        with file.open("wb") as target:
            image.copy_to(target.fileno())
        return image.facts
    finally:
        image.close()


def rows(store: Store) -> list[tuple[bytes, bytes, bytes]]:
    with store.snapshot() as snapshot:
        return [(row.key, row.value, row.versionstamp) for row in snapshot.range(EVERYTHING)]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def facts(store: Store) -> StateFacts:
    return StateFacts(store.applied_index, store.applied_time_ms, store.state_hash())


def test_it_implements_the_seam(busy: Replica, tmp_path: Path) -> None:
    machine: StateMachine = busy.store
    image: StateImage = machine.image()
    with (tmp_path / "file").open("wb") as target:
        image.copy_to(target.fileno())
    image.close()
    assert machine.inspect(tmp_path / "file") == image.facts
    prepared: PreparedState = machine.prepare(tmp_path / "file")
    assert prepared.facts == image.facts
    machine.adopt(prepared)


# ---- images


def test_an_image_is_the_state_as_it_was_when_it_was_taken(busy: Replica, tmp_path: Path) -> None:
    was = facts(busy.store)
    image = busy.store.image()
    busy.commit(put(b"later"))
    assert image.facts == was
    with (tmp_path / "file").open("wb") as target:
        image.copy_to(target.fileno())
    image.close()
    image.close()
    assert busy.store.inspect(tmp_path / "file") == was != facts(busy.store)


def test_an_image_goes_through_a_pipe_from_another_thread(busy: Replica, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    image = busy.store.image()

    def copy() -> None:
        image.copy_to(writing)
        os.close(writing)

    thread = threading.Thread(target=copy)
    thread.start()
    with (tmp_path / "file").open("wb") as target:
        while chunk := os.read(reading, 1 << 16):
            target.write(chunk)
    os.close(reading)
    thread.join()
    image.close()
    assert busy.store.inspect(tmp_path / "file") == image.facts


def test_a_descriptor_that_takes_nothing_is_an_os_error(busy: Replica, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    image = busy.store.image()
    with (tmp_path / "file").open("rb") as target, pytest.raises(OSError, match="cannot be copied"):
        image.copy_to(target.fileno())
    image.close()


def test_the_size_is_that_of_a_checkpoint(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    size = (tmp_path / "file").stat().st_size
    assert size <= busy.store.size() <= size + 8 * 4_096


# ---- files


def test_damaged_files_are_refused_in_one_line(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    for content in (b"", b"x", bytes(100_000), whole[:4_096], whole[:8_192], whole[:-1], whole[: len(whole) // 2]):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ValueError, match="bad") as caught:
            busy.store.inspect(tmp_path / "bad")
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match="bad"):
            busy.store.prepare(tmp_path / "bad")
    with pytest.raises((ValueError, OSError)):
        busy.store.inspect(tmp_path / "missing")
    assert names(tmp_path / "data") == ["state"]


def test_a_file_of_another_format_is_refused(busy: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_image(busy.store, tmp_path / "file")
    monkeypatch.setattr("kvorum_node.store.records.KNOWN_FORMATS", (77,))
    with pytest.raises(ValueError, match="data format"):
        busy.store.inspect(tmp_path / "file")


def test_looking_into_a_file_changes_nothing(busy: Replica, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    file = tmp_path / "checkpoint" / "state"
    take_image(busy.store, file)
    whole = file.read_bytes()
    file.chmod(0o400)
    busy.store.inspect(file)
    busy.store.adopt(busy.store.prepare(file))
    busy.commit(put(b"later"))
    assert names(tmp_path / "checkpoint") == ["state"]
    assert file.read_bytes() == whole
    assert file.stat().st_nlink == 1


# ---- prepare and adopt


@pytest.mark.parametrize("seed", range(4))
def test_another_store_goes_on_from_an_image_as_this_one_does(tmp_path: Path, seed: int) -> None:
    first = Replica(tmp_path / "first")
    traffic = Traffic(first, seed)
    traffic.run(60)
    was = take_image(first.store, tmp_path / "file")
    rng = random.Random(seed)
    tail = len(first.log)
    for _ in range(40):
        first.now_ms += rng.randrange(10)
        result = first.apply(*traffic.commands())
        traffic.held += [grant.delivery for grant in result.granted]
    other = Replica(tmp_path / "other")
    Traffic(other, seed + 100).run(rng.choice((1, 90)))
    other.store.adopt(other.store.prepare(tmp_path / "file"))
    assert facts(other.store) == was
    other.check_hash()
    assert (other.store.cluster_id, other.store.stamp_base) == (first.store.cluster_id, first.store.stamp_base)
    replica = Replica(tmp_path / "replayed")
    for index, time_ms, payload in first.log[tail:]:
        if index == first.log[tail][0]:
            replica.replay(first.log[:tail])
        assert repr(other.store.apply_now(index, time_ms, payload)) == repr(
            replica.store.apply_now(index, time_ms, payload)
        )
    assert facts(other.store) == facts(first.store)
    other.check_hash()
    assert rows(other.store) == rows(first.store)
    assert other.store.leases() == first.store.leases()
    for one in (first, other, replica):
        one.store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_adopted_state_outlives_the_process(busy: Replica, tmp_path: Path, clean: bool) -> None:
    was = take_image(busy.store, tmp_path / "file")
    busy.commit(put(b"later"))
    busy.store.adopt(busy.store.prepare(tmp_path / "file"))
    assert names(tmp_path / "data") == ["state"]
    busy.commit(put(b"after"))
    now = facts(busy.store)
    assert now.index == was.index + 1
    busy.reopen(clean=clean)
    assert not busy.store.rebuilt
    assert facts(busy.store) == now


def test_a_discarded_state_leaves_nothing(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    prepared = busy.store.prepare(tmp_path / "file")
    assert names(tmp_path / "data") == ["state", "state.new"]
    prepared.discard()
    prepared.discard()
    assert names(tmp_path / "data") == ["state"]
    with pytest.raises(ValueError, match="discarded"):
        busy.store.adopt(prepared)


def test_a_second_prepared_state_takes_the_place_of_the_first(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    first = busy.store.prepare(tmp_path / "file")
    second = busy.store.prepare(tmp_path / "file")
    with pytest.raises(ValueError, match="another one"):
        busy.store.adopt(first)
    busy.store.adopt(second)
    with pytest.raises(ValueError, match="not this store's"):
        busy.store.adopt(second)


def test_closing_discards_what_was_prepared(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    busy.store.prepare(tmp_path / "file")
    busy.reopen()
    assert names(tmp_path / "data") == ["state"]


def test_throwing_the_state_away(busy: Replica, tmp_path: Path) -> None:
    with busy.store.snapshot() as snapshot:
        before = len(snapshot.range(EVERYTHING))
        busy.store.discard_state()
        assert facts(busy.store) == (0, 0, bytes(16))
        assert (busy.store.cluster_id, rows(busy.store), busy.store.leases()) == (b"", [], [])
        assert len(snapshot.range(EVERYTHING)) == before > 0
    log = busy.log.copy()
    busy.replay(log)
    busy.reopen(clean=False)
    assert busy.store.applied_index == log[-1][0]


def test_an_entry_that_is_being_applied_forbids_it(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    prepared = busy.store.prepare(tmp_path / "file")
    busy.store._slice = 1
    payload = batch(group(write(put(b"a")), write(put(b"b"))))
    steps = busy.store.apply(busy.store.applied_index + 1, START_MS, payload)
    next(steps)
    with pytest.raises(StoreFault, match="middle of an entry"):
        busy.store.adopt(prepared)
    steps.close()
    busy.store.adopt(prepared)


def test_an_embedded_database_cannot_be_replaced(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "db", durable=True, map_size=1 << 26)
    store.apply_now(1, START_MS, batch(init_cluster()))
    take_image(store, tmp_path / "file")
    assert store.inspect(tmp_path / "file") == facts(store)
    with pytest.raises(ValueError, match="own truth"):
        store.prepare(tmp_path / "file")
    with pytest.raises(ValueError, match="own truth"):
        store.discard_state()
    store.close()


def test_what_lies_beside_an_embedded_database_is_not_touched(tmp_path: Path) -> None:
    for name in ("db.new", "db.old-1", "db.older", "dbx.new"):
        (tmp_path / name).mkdir()
    Store.open(tmp_path / "db", durable=True, map_size=1 << 26).close()
    assert names(tmp_path) == ["db", "db.new", "db.old-1", "db.older", "dbx.new"]
    Store.open(tmp_path / "db2", durable=False, map_size=1 << 26).close()
    assert len(names(tmp_path)) == 6


# ---- readers across it


def test_readers_and_images_outlive_the_state_that_they_read(busy: Replica, tmp_path: Path) -> None:
    old = rows(busy.store)
    was = take_image(busy.store, tmp_path / "file")
    busy.commit(put(b"later"))
    image, late = busy.store.image(), facts(busy.store)
    with busy.store.snapshot() as snapshot:
        ranged = snapshot.iter_range(EVERYTHING)
        next(ranged)
        busy.store.adopt(busy.store.prepare(tmp_path / "file"))
        assert names(tmp_path / "data") == ["state", "state.old-1"]
        busy.store.adopt(busy.store.prepare(tmp_path / "file"))
        assert names(tmp_path / "data") == ["state", "state.old-1"], "nobody read the second one"
        assert len(list(ranged)) == len(old)
        assert snapshot.get(b"later").versionstamp
    assert names(tmp_path / "data") == ["state", "state.old-1"]
    with (tmp_path / "late").open("wb") as target:
        image.copy_to(target.fileno())
    image.close()
    assert names(tmp_path / "data") == ["state"]
    assert busy.store.inspect(tmp_path / "late") == late
    assert facts(busy.store) == was
    assert rows(busy.store) == old


def test_a_thread_of_readers_never_meets_a_closed_state(busy: Replica, tmp_path: Path) -> None:
    """A use after close would end the process, or raise in the thread."""
    expected = rows(busy.store)
    take_image(busy.store, tmp_path / "file")
    ended = threading.Event()
    reads = [0]

    def read() -> None:
        while not ended.is_set():  # whatever it raises fails the test, as all of pytest's warnings do
            assert rows(busy.store) == expected
            reads[0] += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        busy.store.adopt(busy.store.prepare(tmp_path / "file"))
    ended.set()
    for thread in threads:
        thread.join()
    assert reads[0] > 0
    assert names(tmp_path / "data") == ["state"]


def test_old_states_are_deleted_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Callable[[], None]] = []
    store = Store.open(tmp_path / "state", durable=False, map_size=1 << 26, run_aside=jobs.append)
    store.discard_state()
    assert names(tmp_path) == ["state", "state.old-1"]
    jobs.pop()()
    assert names(tmp_path) == ["state"]
    before = threading.active_count()
    store._home._run_aside = store_home.run_in_thread
    store.discard_state()
    for thread in threading.enumerate():
        if thread.name == "kvorum-old-state":
            thread.join()
    assert threading.active_count() == before
    assert names(tmp_path) == ["state"]
    store.close()


# ---- copying


@pytest.mark.parametrize("size", [0, 4_096, 4_097, 5 << 20])
@pytest.mark.parametrize("paced", [True, False])
def test_a_copy_is_paced_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, paced: bool) -> None:
    content = random.Random(1).randbytes(size)
    (tmp_path / "source").write_bytes(content)
    pauses: list[int] = []
    synced: list[int] = []

    class Host(LinuxHost):
        def sync_file(self, path: Path) -> None:
            synced.append(path.stat().st_size)
            super().sync_file(path)

    monkeypatch.setattr(store_files, "_FICLONE", 0)  # as on a file system that cannot
    pause = pauses.append if paced else None
    store_files.copy_file(tmp_path / "source", tmp_path / "target", Host(), pause=pause)
    assert (tmp_path / "target").read_bytes() == content
    assert synced == [size]
    assert sum(pauses) == (size if paced else 0)
    assert max(pauses, default=0) <= 1 << 20


def test_a_copy_that_is_stopped_leaves_nothing(busy: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "_FICLONE", 0)
    take_image(busy.store, tmp_path / "file")
    with pytest.raises(Stopping):
        busy.store.prepare(tmp_path / "file", lambda size: check_stopping(lambda: True))
    assert names(busy.path.parent) == ["state"]


# ---- crashes


class Crash(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


class Crasher:
    """Ends the process before the n-th thing that it does to the disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        self.steps = 0
        for owner, name in (
            (Path, "rename"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (Path, "write_text"),
            (os, "write"),
            (os, "pwrite"),
            (shutil, "rmtree"),
            (CrashHost, "sync_file"),
        ):
            self._wrap(patch, owner, name)

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(*args: Any, **options: Any) -> Any:
            self.steps += 1
            self.left -= 1
            if self.left < 0:
                raise Crash
            return real(*args, **options)

        patch.setattr(owner, name, step)


class CrashHost(LinuxHost):
    def file_id(self, path: Path) -> FileId:
        """The disk is looked at as a copy, whose files have other inodes."""
        return FileId(1, 1)


def crash_run(folder: Path, at: int | None, change: Callable[[Store], None]) -> tuple[int, StateFacts, StateFacts]:
    """Replace the state, ending before step `at`; the steps done, and the facts before and after. What is then on the
    disk is copied to `<folder>.disk`."""
    host = CrashHost()
    state = folder / "state"
    store = Store.open(state, durable=False, map_size=1 << 26, host=host)
    for index in range(1, 20):
        store.apply_now(index, START_MS, batch(group(write(put(b"k%d" % index)))))
    before = facts(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_files, "_FICLONE", 0)
        crasher = Crasher(patch)
        if at is not None:
            crasher.left = at
        crashed = False
        try:
            change(store)
        except Crash:
            crashed = True
    assert crashed == (at is not None)
    shutil.copytree(folder, folder.with_suffix(".disk"))
    after = facts(store)
    store.close(clean=False)
    return crasher.steps, before, after


@pytest.mark.parametrize("how", ["adopt", "discard"])
def test_a_crash_at_any_step_leaves_a_state_or_none(tmp_path: Path, how: str) -> None:
    source = Replica(tmp_path / "source")
    Traffic(source, 3).run(10)
    was = take_image(source.store, tmp_path / "file")
    source.store.close()

    def change(store: Store) -> None:
        if how == "adopt":
            store.adopt(store.prepare(tmp_path / "file"))
        else:
            store.discard_state()

    (tmp_path / "whole").mkdir()
    steps, before, after = crash_run(tmp_path / "whole", None, change)
    empty = StateFacts(0, 0, bytes(16))
    assert after == (was if how == "adopt" else empty)
    assert steps > 10
    seen = set()
    for at in range(steps):
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        crash_run(folder, at, change)
        disk = folder.with_suffix(".disk")
        store = Store.open(disk / "state", durable=False, map_size=1 << 26, host=CrashHost())
        assert facts(store) in (before, after, empty)
        seen.add(facts(store))
        assert store.recompute_hash() == store.state_hash()
        assert names(disk) == ["state"]
        store.apply_now(store.applied_index + 1, START_MS, b"")
        store.close()
        shutil.rmtree(folder)
        shutil.rmtree(disk)
    assert seen == {before, after, empty}, "each kind of crash was met"


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_is_a_fault(
    busy: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    take_image(busy.store, tmp_path / "file")
    before = facts(busy.store)
    prepared = busy.store.prepare(tmp_path / "file")
    renames = [0]
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        renames[0] += 1
        if renames[0] == failing:
            raise OSError(5, "Input/output error")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(StoreFault, match="cannot be replaced"):
            busy.store.adopt(prepared)
    busy.store.close()
    busy.store = Store.open(busy.path, durable=False, map_size=1 << 30)
    assert facts(busy.store) == (before if failing == 1 else (0, 0, bytes(16)))
    assert names(tmp_path / "data") == ["state"]


def test_a_file_that_no_map_can_hold_is_an_error(busy: Replica, tmp_path: Path) -> None:
    take_image(busy.store, tmp_path / "file")
    size = (tmp_path / "file").stat().st_size
    small = Store.open(tmp_path / "small" / "state", durable=False, map_size=size)
    with pytest.raises(OSError, match="cannot be made the state"):
        small.prepare(tmp_path / "file")
    assert names(tmp_path / "small") == ["state"]
    small.close()
