"""What a simulated machine's files go through: power cuts, deaths in the middle of a step, copies."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum_raft.seams import Member
from tests.simulation.whole.background import Killed, SimBackground
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.files import Files
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.network import Network
from tests.simulation.whole.process import Process


def _outcomes(folder: Path, prepare: Callable[[Files], None]) -> list[dict[str, bytes | None]]:
    """All that cuts leave."""
    found: list[dict[str, bytes | None]] = []
    for seed in range(200):
        files = Files(folder / str(seed))
        files.folder.mkdir(parents=True)
        prepare(files)
        files.lose_power(random.Random(seed))
        tree = files.tree()
        if tree not in found:
            found.append(tree)
    return found


def test_a_synced_file_with_a_synced_name_stays(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        (files.folder / "one").write_bytes(b"1")
        files.sync(files.folder / "one")
        files.sync(files.folder)

    assert _outcomes(tmp_path, prepare) == [{"one": b"1"}]


def test_what_was_not_synced_is_whole_torn_or_gone(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        (files.folder / "one").write_bytes(b"12")
        files.sync(files.folder)

    assert {tree["one"] for tree in _outcomes(tmp_path, prepare)} == {b"", b"1", b"12", b"\0\0"}


def test_a_name_that_was_not_synced_may_be_gone(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        files.sync(files.folder)
        (files.folder / "one").write_bytes(b"1")
        files.sync(files.folder / "one")

    outcomes = _outcomes(tmp_path, prepare)
    assert {} in outcomes and {"one": b"1"} in outcomes and len(outcomes) == 2


def test_a_rename_may_be_undone_until_its_folder_is_synced(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        draft = files.folder / "draft"
        draft.mkdir()
        (draft / "f").write_bytes(b"1")
        for path in (draft / "f", draft, files.folder):
            files.sync(path)
        draft.rename(files.folder / "done")

    outcomes = _outcomes(tmp_path / "a", prepare)
    assert {"draft": None, "draft/f": b"1"} in outcomes and {"done": None, "done/f": b"1"} in outcomes
    assert len(outcomes) == 2

    def prepare_well(files: Files) -> None:
        prepare(files)
        files.sync(files.folder)

    assert _outcomes(tmp_path / "b", prepare_well) == [{"done": None, "done/f": b"1"}]


def test_a_removal_may_be_undone(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        (files.folder / "one").write_bytes(b"1")
        files.sync(files.folder / "one")
        files.sync(files.folder)
        (files.folder / "one").unlink()

    outcomes = _outcomes(tmp_path, prepare)
    assert {} in outcomes and {"one": b"1"} in outcomes and len(outcomes) == 2


# ---- machines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    clock = Clock()
    judge = Judge(clock, random.Random(1))
    made = Machine(
        "A", clock, Network(clock, random.Random(1)), [Member("A", "A:1", "A:2")], tmp_path / "A", "seed", judge
    )
    made.folder.mkdir()
    return made


def _live(machine: Machine) -> Process:
    """A process that does nothing."""
    process = machine.process = Process(machine)
    machine.out = True
    return process


def test_a_death_within_a_sync_leaves_what_was_there(machine: Machine) -> None:
    process = _live(machine)
    path = machine.folder / "f"
    machine.kill_in_sync(2, power=False)
    path.write_bytes(b"1")
    machine.sync_file(path)
    with pytest.raises(Killed):
        try:
            machine.sync_file(machine.folder)
        finally:
            path.unlink()  # what shipped code tidies up on its way out, a killed process does not
    assert process.loop.dead
    machine.clock.run_until(0.01)
    assert path.read_bytes() == b"1"
    assert machine.process is None


def test_a_folder_is_brought_back(machine: Machine) -> None:
    env = machine.open_env(str(machine.folder))
    with env.begin(write=True) as txn:
        txn.put(b"k", b"old")
    (machine.folder / "f").write_bytes(b"old")
    backup = machine.back_up()
    with env.begin(write=True) as txn:
        txn.put(b"k", b"new")
    (machine.folder / "f").unlink()
    machine.bring_back(backup)
    with machine.open_env(str(machine.folder)).begin() as txn:
        assert txn.get(b"k") == b"old"
    assert (machine.folder / "f").read_bytes() == b"old"
    machine.wipe()
    assert not machine.folder.exists()


# ---- the background


def test_jobs_run_later_one_after_the_other() -> None:
    clock = Clock()
    loop = ProcessLoop(clock, "p")
    background = SimBackground(loop, random.Random(1), 0.1)
    seen: list[object] = []
    background.submit(lambda: seen.append("one"), lambda result, error: seen.append("one done"))
    background.submit(lambda: 1 // 0, lambda result, error: seen.append(type(error)))
    assert seen == []
    clock.run_until(5.0)
    assert sorted(map(str, seen)) == sorted(["one", "one done", str(ZeroDivisionError)])


def test_a_killed_process_runs_no_job_and_hears_of_none() -> None:
    for seed in range(30):
        clock = Clock()
        loop = ProcessLoop(clock, "p")
        background = SimBackground(loop, random.Random(seed), 0.1)
        seen: list[str] = []
        background.submit(lambda: seen.append("job"), lambda result, error: seen.append("done"))  # noqa: B023
        clock.run_until(0.05)
        loop.kill()
        before = list(seen)
        clock.run_until(5.0)
        assert seen == before
