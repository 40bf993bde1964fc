"""Whatever moment the node dies at, only whole checkpoints are found afterwards, and one that was published stays."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum_raft.base import Base, sealed
from kvorum_raft.checkpoints import MANIFEST, STATE, Checkpoints, PipeCopier, sync_path, write_manifest
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.manifest import Manifest
from kvorum_raft.seams import StateFacts
from tests.unit.raft.fake_state import (
    CONFIGURATION,
    FakeMachine,
    assert_all_whole,
    broken_disk,
    checkpoints_in,
    describe,
    no_space,
    write,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Mirror:
    """A `sync` that keeps what a power cut at that moment would leave: at each call, a copy of the folder in which
    every file holds what it held when it was last synced. Renames and deletions are there as soon as they were made."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self._copies = folder, copies
        self._synced: dict[int, bytes] = {}
        self.moments: list[Path] = []

    def __call__(self, path: Path) -> None:
        self.take()
        sync_path(path)
        if path.is_file():
            self._synced[path.stat().st_ino] = path.read_bytes()
        self.take()

    def take(self) -> None:
        copy = self._copies / str(len(self.moments))
        shutil.copytree(self.folder, copy)
        for file in self.folder.rglob("*"):
            if file.is_file():
                kept = self._synced.get(file.stat().st_ino, b"")
                (copy / file.relative_to(self.folder)).write_bytes(kept)
        self.moments.append(copy)


def test_a_checkpoint_comes_back_after_a_restart(tmp_path: Path) -> None:
    machine = FakeMachine(b"content", 41)
    made = write(checkpoints_in(tmp_path), machine)
    assert made.base == Base(41, 1, 410, CONFIGURATION)
    again = checkpoints_in(tmp_path)
    assert again.manifests == (made,) and again.newest == made
    again.verify(made)
    assert machine.inspect(again.path(made)).index == 41
    assert names(tmp_path) == ["00000000000000000041-0000000001"]


def test_they_are_sorted_by_entry(tmp_path: Path) -> None:
    checkpoints = checkpoints_in(tmp_path)
    for index in (1000, 99, 250):
        write(checkpoints, FakeMachine(b"x", index))
    assert [one.base.index for one in checkpoints.manifests] == [99, 250, 1000]
    assert [one.base.index for one in Checkpoints(tmp_path).load()] == [99, 250, 1000]


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_between_two_steps_leaves_the_older_one_alone(tmp_path: Path, steps: int) -> None:
    machine = FakeMachine(b"older", 10)
    checkpoints = checkpoints_in(tmp_path)
    older = write(checkpoints, machine)
    machine.put(b"newer")
    image = machine.image()
    draft = checkpoints.draft(image, describe(image.facts))
    for step in [draft.copy, lambda: draft.verify(machine.inspect), draft.publish][:steps]:
        step()
    found = checkpoints_in(tmp_path)
    assert len(found.manifests) == (2 if steps == 3 else 1) and found.manifests[0] == older
    assert_all_whole(found, machine)
    assert len(names(tmp_path)) == len(found.manifests), "drafts are deleted"


@pytest.mark.parametrize("same_entry", [False, True])
def test_a_power_cut_at_any_moment_leaves_whole_ones(tmp_path: Path, same_entry: bool) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    mirror = Mirror(folder, tmp_path / "copies")
    machine = FakeMachine(b"first" * 1000, 10)
    checkpoints = checkpoints_in(folder, mirror)
    first = write(checkpoints, machine)
    published = len(mirror.moments)
    if not same_entry:
        machine.put(b"second" * 1000)
    second = write(checkpoints, machine)
    machine.put(b"third" * 1000)
    third = write(checkpoints, machine)
    dropped = len(mirror.moments)
    checkpoints.keep(1)
    mirror.take()
    assert len(mirror.moments) > 20
    for number, moment in enumerate(mirror.moments):
        found = checkpoints_in(moment)
        assert_all_whole(found, machine)
        assert set(found.manifests) <= {first, second, third}
        if published <= number < dropped:
            assert first in found.manifests
        assert not any(name.startswith(("damaged", "draft")) for name in names(moment))
    assert checkpoints_in(mirror.moments[-1]).manifests == (third,)


def test_what_was_written_is_compared_with_what_the_image_said(tmp_path: Path) -> None:
    machine = FakeMachine(b"content", 5)
    checkpoints = checkpoints_in(tmp_path)

    def other(file: Path) -> StateFacts:
        return machine.inspect(file)._replace(content_hash=b"?" * 16)

    image = machine.image()
    with pytest.raises(ValueError, match="not what the state was"):
        checkpoints.write(image, describe, other)
    with pytest.raises(ValueError, match="does not know entry 5"):
        checkpoints.write(image, lambda facts: None, machine.inspect)
    with pytest.raises(ValueError, match="description of entry 4"):
        checkpoints.draft(image, Base(4, 1, 40, CONFIGURATION))
    assert checkpoints.manifests == () and names(tmp_path) == []


def test_bytes_that_change_between_writing_and_reading_back_are_found(tmp_path: Path) -> None:
    machine = FakeMachine(b"content", 5)
    checkpoints = checkpoints_in(tmp_path)
    image = machine.image()
    draft = checkpoints.draft(image, describe(image.facts))
    draft.copy()
    (file,) = tmp_path.glob(f"draft-*/{STATE}")
    flip_a_bit(file)
    with pytest.raises(ValueError, match="damaged"):
        draft.verify(machine.inspect)
    assert names(tmp_path) == []
    with pytest.raises(RuntimeError):
        checkpoints.draft(image, describe(image.facts)).publish()


@pytest.mark.parametrize("error", [no_space(), broken_disk(), RuntimeError("locked")], ids=["full", "broken", "locked"])
def test_what_was_begun_is_deleted_when_it_fails_and_the_next_one_works(tmp_path: Path, error: Exception) -> None:
    machine = FakeMachine(b"content", 5)
    checkpoints = checkpoints_in(tmp_path)
    machine.copy_errors.append(error)
    with pytest.raises(type(error)) as caught:
        write(checkpoints, machine)
    assert caught.value is error and names(tmp_path) == []
    assert write(checkpoints, machine) == checkpoints.newest


def test_a_sync_that_fails_publishes_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(b"content", 5)
    calls = 0
    for fails_at in range(1, 10):
        calls = 0

        def sync(path: Path, fails_at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise broken_disk()

        folder = tmp_path / str(fails_at)
        folder.mkdir()
        checkpoints = Checkpoints(folder, sync=sync, copier=PipeCopier(rate=1e12))
        try:
            checkpoints.load()
            write(checkpoints, machine)
        except OSError as error:
            assert error.errno == errno.EIO
            assert checkpoints.manifests == ()
            continue
        assert fails_at > calls == 5  # the parent, the file, its manifest, its folder, the rename
        return
    raise AssertionError("no call of the last round was the last one")


def flip_a_bit(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def test_flipped_bits_in_the_file_are_found_by_verify(tmp_path: Path) -> None:
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, FakeMachine(b"content", 5))
    flip_a_bit(checkpoints.path(made))
    (again,) = checkpoints_in(tmp_path).manifests
    with pytest.raises(ValueError, match="damaged"):
        checkpoints.verify(again)
    checkpoints.path(made).unlink()
    with pytest.raises(ValueError, match="gone"):
        checkpoints.verify(again)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: flip_a_bit(folder / MANIFEST),
        lambda folder: cut(folder / MANIFEST),
        lambda folder: (folder / MANIFEST).write_bytes(b""),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: cut(folder / STATE),
        lambda folder: (folder / STATE).unlink(),
        lambda folder: write_manifest(folder, Manifest(Base(6, 1, 60, CONFIGURATION), b"h" * 16, 39, b"f" * 32)),
    ],
)
def test_a_damaged_one_is_put_aside_and_the_older_one_is_found(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    machine = FakeMachine(b"content", 3)
    checkpoints = checkpoints_in(tmp_path)
    older = write(checkpoints, machine)
    for index in (5, 7):
        machine.applied_index = index
        newer = write(checkpoints, machine)
        spoil(tmp_path / newer.name)
        checkpoints = checkpoints_in(tmp_path)
        assert checkpoints.manifests == (older,)
        assert names(tmp_path) == [older.name, f"damaged-{newer.name}"], "the last one stays for whoever wants to look"
    assert write(checkpoints, machine) in checkpoints_in(tmp_path).manifests


def test_one_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, FakeMachine(b"content", 3))
    message = made.message()
    message.format = 2
    (tmp_path / made.name / MANIFEST).write_bytes(sealed(message.SerializeToString()))
    with pytest.raises(ConfigurationError, match="format 2"):
        checkpoints_in(tmp_path)
    assert names(tmp_path) == [made.name]


def test_a_damaged_one_of_the_same_entry_is_replaced(tmp_path: Path) -> None:
    machine = FakeMachine(b"content", 3)
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, machine)
    flip_a_bit(checkpoints.path(made))
    assert write(checkpoints, machine) == made
    assert checkpoints.manifests == (made,)
    assert_all_whole(checkpoints, machine)
    machine.data = b"other content"  # this one had the wrong content
    other = write(checkpoints, machine)
    assert checkpoints.manifests == checkpoints_in(tmp_path).manifests == (other,)
    assert_all_whole(checkpoints, machine)


def test_an_open_file_survives_its_checkpoint(tmp_path: Path) -> None:
    machine = FakeMachine(b"content" * 1000, 3)
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, machine)
    with checkpoints.path(made).open("rb") as file:
        for index in (5, 7, 9):
            machine.applied_index = index
            write(checkpoints, machine)
            checkpoints.keep()
        assert len(file.read()) == made.size
    assert [one.base.index for one in checkpoints.manifests] == [7, 9]
    with pytest.raises(ValueError):
        checkpoints.keep(0)


def test_a_crash_in_the_middle_of_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, FakeMachine(b"content", 3))

    def dies(path: Path) -> None:
        (path / STATE).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("kvorum_raft.checkpoints.shutil.rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.drop(made)
    monkeypatch.undo()
    assert len(names(tmp_path)) == 1
    assert checkpoints_in(tmp_path).manifests == () and names(tmp_path) == []


def test_clear_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = checkpoints_in(tmp_path)
    made = write(checkpoints, FakeMachine(b"content", 3))
    unfinished = tmp_path / f"incoming-{'0' * 64}"
    unfinished.mkdir()
    write_manifest(unfinished, made)
    checkpoints.clear()
    assert checkpoints.manifests == () and names(tmp_path) == []


def test_the_newest_unfinished_snapshot_is_kept_for_resuming(tmp_path: Path) -> None:
    for number, index in enumerate((5, 9, 7)):
        folder = tmp_path / f"incoming-{number:064}"
        folder.mkdir()
        write_manifest(folder, Manifest(Base(index, 1, 1, CONFIGURATION), b"h" * 16, 10, bytes(32)))
    (tmp_path / f"incoming-{3:064}").mkdir()  # its manifest is missing
    checkpoints_in(tmp_path)
    assert names(tmp_path) == [f"incoming-{1:064}"]
