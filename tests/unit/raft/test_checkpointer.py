"""Checkpoints are made when they are due, one at a time; a failure is logged, counted and tried again (case P36)."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from kvorum_raft.background import Stopping, ThreadBackground
from kvorum_raft.base import Base
from kvorum_raft.checkpoint_turns import Need, Turn
from kvorum_raft.checkpointer import Checkpointer
from kvorum_raft.checkpoints import Checkpoints, PipeCopier, PlainCopier
from kvorum_raft.errors import RaftFault
from kvorum_raft.manifest import Manifest
from kvorum_raft.seams import StateFacts
from tests.unit.raft.fake_state import (
    FakeMachine,
    StepBackground,
    assert_all_whole,
    broken_disk,
    checkpoints_in,
    describe,
    no_space,
)


class Fixture:
    def __init__(self, folder: Path, *, minimum: int = 1000, jobs: int = 64, rank: int = 0) -> None:
        self.machine = FakeMachine(b"content", 10)
        self.checkpoints = checkpoints_in(folder)
        self.background = StepBackground(jobs)
        self.now = 0.0
        self.known = True
        self.turn = Turn.UNSAID
        self.far_behind = False
        self.made: list[Manifest] = []
        self.failed: list[str] = []
        self.faults: list[RaftFault] = []
        self.one = Checkpointer(
            self.checkpoints,
            self.machine,
            self.background,
            self._describe,
            clock=lambda: self.now,
            on_done=self.made.append,
            on_failed=self.failed.append,
            on_fault=self.faults.append,
            minimum=minimum,
            turn=lambda: self.turn,
            rank=lambda: rank,
            far_behind=lambda: self.far_behind,
        )

    def _describe(self, facts: StateFacts) -> Base | None:
        return describe(facts) if self.known else None

    def grow(self, size: int) -> None:
        self.machine.put(self.machine.data)
        self.one.note_bytes(size)

    def run(self) -> None:
        self.one.tick()
        self.background.run_all()


def test_one_is_made_when_the_log_has_grown(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.grow(999)
    one.run()
    assert one.made == [] and not one.background.waiting
    one.grow(1)
    one.one.tick()
    assert len(one.background.waiting) == 1 and one.made == []
    one.now = 2.5
    one.background.run_all()
    assert not one.one.busy
    assert [manifest.base.index for manifest in one.made] == [12]
    assert one.checkpoints.manifests == tuple(one.made)
    assert_all_whole(one.checkpoints, one.machine)
    assert all(image.closed for image in one.machine.images)
    one.now = 4.0
    assert one.one.statistics() == {
        "checkpoints": 1,
        "checkpoint_failures": 0,
        "checkpoint_seconds": 2.5,
        "checkpoint_age": 1.5,
        "checkpoint_bytes": one.made[0].size,
        "checkpoint_rate": one.made[0].size / 2.5,
        "checkpoint_stretched_seconds": 0,
        "checkpoints_held_back": 0,
        "checkpoints_out_of_turn": 0,
        "replay_bytes": 0,
        "replay_seconds": 0,
    }


def test_one_is_made_when_applying_has_taken_long(tmp_path: Path) -> None:
    """Entries may be small and many: a node that builds its state anew is away as long as applying them takes."""
    one = Fixture(tmp_path)
    one.now = 1.0
    one.grow(1)
    one.one.note_applying(1.9)
    one.run()
    assert one.made == []
    one.one.note_applying(0.1)
    one.one.tick()
    assert one.one.busy
    one.one.note_applying(0.5)
    one.background.run_all()
    assert len(one.made) == 1 and one.one.statistics()["replay_seconds"] == pytest.approx(0.5)
    one.one.note_entries(7_400)
    one.now = 2.0
    one.run()
    assert len(one.made) == 1
    one.one.note_entries(200)
    one.run()
    assert len(one.made) == 2, "what was found at the start counts as well"


def test_short_replays_take_a_bounded_part_of_the_disk(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.machine.data = bytes(40 << 20)
    one.grow(1)
    one.one.note_applying(60.0)
    one.now = 9.9
    one.run()
    assert one.made == []
    one.now = 10.1
    one.run()
    assert len(one.made) == 1


def test_who_has_much_to_apply_does_not_make_one_to_have_less_next_time(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.now, one.far_behind = 1.0, True
    one.one.note_applying(60.0)
    one.run()
    assert one.made == []
    one.grow(1_000)
    one.run()
    assert len(one.made) == 1, "the log must not grow for ever"
    one.one.note_applying(60.0)
    one.now, one.far_behind = 2.0, False
    one.run()
    assert len(one.made) == 2


def test_where_nobody_gives_turns_nodes_begin_at_different_lengths_and_leave_the_disk_to_snapshots(
    tmp_path: Path,
) -> None:
    one = Fixture(tmp_path, rank=2)
    one.grow(1_499)
    one.run()
    assert one.made == []
    one.grow(1)
    one.one.tick(others=True)
    assert not one.one.busy
    one.run()
    assert len(one.made) == 1
    one.grow(2_999)
    one.one.tick(others=True)
    assert not one.one.busy
    one.grow(1)
    one.one.tick(others=True)
    assert one.one.busy, "however long a snapshot takes"


def test_one_that_is_due_waits_for_its_turn(tmp_path: Path) -> None:
    one = Fixture(tmp_path, rank=2)
    one.turn = Turn.GO
    one.grow(999)
    one.run()
    assert one.one.need() is Need.NONE and one.made == []
    one.turn = Turn.WAIT
    one.grow(1)
    one.run()
    assert one.one.need() is Need.DUE and one.made == []
    one.turn = Turn.GO
    one.one.tick()
    assert one.one.need() is Need.BUSY
    one.background.run_all()
    assert len(one.made) == 1 and one.one.need() is Need.NONE
    assert one.one.statistics()["checkpoints_out_of_turn"] == 0


def test_one_that_is_overdue_waits_no_longer(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.turn = Turn.WAIT
    one.grow(2_999)
    one.run()
    assert one.made == []
    one.grow(1)
    one.run()
    assert len(one.made) == 1 and one.one.statistics()["checkpoints_out_of_turn"] == 1


class Paced(PlainCopier):
    """Notes whether it is told to hurry."""

    alone: bool | None = None

    def hurry(self, *, alone: bool) -> None:
        self.alone = alone


@pytest.mark.parametrize("turn", Turn)
@pytest.mark.parametrize("end", ["made", "failed", "abandoned"])
def test_the_copy_is_faster_only_while_it_is_this_nodes_turn(tmp_path: Path, turn: Turn, end: str) -> None:
    one = Fixture(tmp_path)
    copier = one.checkpoints.copier = Paced()
    one.turn = turn
    if end == "failed":
        one.machine.copy_errors.append(no_space())
    one.grow(3_000)
    one.one.tick()
    assert copier.alone is (turn is Turn.GO)
    if end == "abandoned":
        one.one.restart()
    one.background.run_all()
    assert not one.one.busy and copier.alone is False


def test_a_forced_one_waits_for_no_turn(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.turn = Turn.WAIT
    one.one.force()
    one.run()
    assert len(one.made) == 1


def test_one_that_failed_asks_for_no_turn_until_it_can_try_again(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.turn = Turn.GO
    one.machine.copy_errors.append(no_space())
    one.grow(1_000)
    one.run()
    assert len(one.failed) == 1 and one.one.need() is Need.NONE
    one.now = 31.0
    assert one.one.need() is Need.DUE


def test_the_statistics_say_if_the_pace_decides_how_often(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.grow(1_000)
    one.one.tick()
    one.grow(1_000)
    one.background.run_all()
    assert one.one.statistics()["checkpoints_held_back"] == 1
    one.run()
    assert one.one.statistics()["checkpoints_held_back"] == 0


def test_a_large_state_is_copied_less_often(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.machine.data = b"x" * 40_000
    one.grow(9_000)
    one.run()
    assert one.made == []
    one.grow(1_100)
    one.run()
    assert len(one.made) == 1


def test_what_comes_in_while_one_is_made_counts_for_the_next(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.grow(1000)
    one.one.tick()
    one.grow(700)
    one.one.tick()  # only one at a time
    one.background.run_all()
    assert [manifest.base.index for manifest in one.made] == [11]
    assert one.one.statistics()["replay_bytes"] == 700
    one.grow(300)
    one.run()
    assert [manifest.base.index for manifest in one.made] == [11, 13]


def test_two_are_kept(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    for _ in range(5):
        one.grow(1000)
        one.run()
    assert [manifest.base.index for manifest in one.checkpoints.manifests] == [14, 15]


def test_a_failure_is_logged_and_counted_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Fixture(tmp_path)
    one.machine.copy_errors.append(RuntimeError("the state holds a lock"))
    one.grow(1000)
    with caplog.at_level(logging.ERROR):
        one.run()
    assert "the state holds a lock" in caplog.text
    assert len(one.failed) == 1 and one.one.statistics()["checkpoint_failures"] == 1
    assert one.machine.images[0].closed and not one.one.busy
    assert list(tmp_path.iterdir()) == []
    one.now = 29.0
    one.run()
    assert one.made == []
    one.now = 31.0
    one.run()
    assert len(one.made) == 1 and one.faults == []


@pytest.mark.parametrize("fails_at", ["image", "describe", "copy", "inspect"])
def test_each_step_may_fail(tmp_path: Path, fails_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Fixture(tmp_path)

    def raises(*arguments: object) -> None:
        raise ValueError("no")

    if fails_at == "describe":
        one.known = False
    elif fails_at == "copy":
        one.machine.copy_errors.append(no_space())
    else:
        monkeypatch.setattr(one.machine, fails_at, raises)
    one.grow(1000)
    one.run()
    assert len(one.failed) == 1 and one.made == [] and one.faults == []
    assert all(image.closed for image in one.machine.images)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    one.known = True
    one.now = 31.0
    one.run()
    assert len(one.made) == 1


def test_a_broken_disk_is_a_fault(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.machine.copy_errors.append(broken_disk())
    one.grow(1000)
    one.run()
    assert len(one.faults) == 1 and one.failed == []


def test_a_forced_one_is_made_at_once_and_tried_again_without_haste(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.machine.copy_errors.append(no_space())
    one.one.force()
    one.run()
    assert len(one.failed) == 1
    for _ in range(10):
        one.one.force()
        one.run()
    assert len(one.failed) == 1 and one.made == []
    one.now = 31.0
    one.run()
    assert len(one.made) == 1
    one.run()
    assert len(one.made) == 1


def test_forcing_while_one_is_made_makes_another(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.one.force()
    one.one.tick()
    one.grow(1)
    one.one.force()
    one.background.run_all()
    one.run()
    assert [manifest.base.index for manifest in one.made] == [10, 11]


@pytest.mark.parametrize("steps", range(4))
def test_after_an_install_the_running_one_is_not_wanted(tmp_path: Path, steps: int) -> None:
    one = Fixture(tmp_path)
    one.grow(1000)
    one.one.tick()
    for _ in range(steps):
        one.background.run_one()
    one.one.restart(300)
    one.background.run_all()
    assert not one.one.busy and one.one.statistics()["replay_bytes"] == 300
    assert len(one.checkpoints.manifests) == (1 if steps >= 2 else 0), "what was to be published already stays"
    assert all(image.closed for image in one.machine.images)
    one.grow(700)
    one.run()
    assert one.made[-1].base.index == 12


@pytest.mark.parametrize("steps", range(4))
def test_a_stop_between_any_two_steps_leaves_whole_ones(tmp_path: Path, steps: int) -> None:
    one = Fixture(tmp_path)
    one.grow(1000)
    one.one.tick()
    for _ in range(steps):
        one.background.run_one()
    one.background.stop()
    one.one.stop()
    assert all(image.closed for image in one.machine.images)
    one.run()
    found = checkpoints_in(tmp_path)
    assert len(found.manifests) == (1 if steps == 3 else 0)
    assert_all_whole(found, one.machine)


def test_a_copy_that_is_stopped_is_no_failure(tmp_path: Path) -> None:
    one = Fixture(tmp_path)
    one.machine.copy_errors.append(Stopping("the node stops"))
    one.grow(1000)
    one.run()
    assert one.failed == [] and one.one.statistics()["checkpoint_failures"] == 0
    assert one.machine.images[0].closed and list(tmp_path.iterdir()) == []


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def _own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("kvorum-")}


async def test_with_real_threads_a_stop_in_the_middle_of_a_copy_is_quick_and_leaves_nothing(tmp_path: Path) -> None:
    before = _own_threads()
    background = ThreadBackground(asyncio.get_running_loop())
    halfway, never = threading.Event(), threading.Event()
    pauses = 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses > 3:
            halfway.set()
        never.wait(0.001)

    checkpoints = Checkpoints(tmp_path, copier=PipeCopier(1.0, stopping=background.stopping, sleep=sleep))
    checkpoints.load()
    machine = FakeMachine(bytes(100 << 20), 10)
    outcomes: list[object] = []
    one = Checkpointer(
        checkpoints,
        machine,
        background,
        describe,
        clock=lambda: 0.0,
        on_done=outcomes.append,
        on_failed=outcomes.append,
        on_fault=outcomes.append,
    )
    one.force()
    one.tick()
    assert one.busy
    await asyncio.to_thread(halfway.wait)
    background.stop()
    one.stop()
    await asyncio.sleep(0)
    assert machine.images[0].closed and outcomes == [] and pauses < 50
    assert is_empty(tmp_path) and _own_threads() <= before


async def test_with_real_threads_one_is_made(tmp_path: Path) -> None:
    background = ThreadBackground(asyncio.get_running_loop())
    checkpoints = Checkpoints(tmp_path, copier=PipeCopier(1e12, stopping=background.stopping))
    checkpoints.load()
    machine = FakeMachine(bytes(range(256)) * 40_000, 10)
    made: asyncio.Future[Manifest] = asyncio.get_running_loop().create_future()
    one = Checkpointer(
        checkpoints,
        machine,
        background,
        describe,
        clock=lambda: 0.0,
        on_done=made.set_result,
        on_failed=lambda why: made.set_exception(AssertionError(why)),
        on_fault=made.set_exception,
    )
    one.force()
    one.tick()
    assert (await made).base.index == 10
    background.stop()
    one.stop()
    assert_all_whole(checkpoints_in(tmp_path), machine)


def test_a_background_that_takes_no_more_is_a_failure_like_others(tmp_path: Path) -> None:
    one = Fixture(tmp_path, jobs=0)
    one.grow(1000)
    one.run()
    assert len(one.failed) == 1 and one.machine.images[0].closed and not one.one.busy
