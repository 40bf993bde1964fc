"""Dirty pages leave in small parts with pauses between them, and the kernel is asked no more than it can answer."""

import errno
import logging
import os
from pathlib import Path

import pytest

from kvorum_node.writeback import MAX_RATE, PERIOD, RATE, WINDOW, Pages, Writeback

PAGES = WINDOW // 4_096


class FakePages(Pages):
    def __init__(self, dirty: dict[int, int]) -> None:
        self.counts = dirty
        self.written: list[int] = []

    def dirty(self, fd: int, offset: int, size: int) -> int:
        assert size == WINDOW
        return self.counts.get(offset, 0)

    def write(self, fd: int, offset: int, size: int) -> None:
        assert size == WINDOW
        self.written.append(offset)
        self.counts[offset] = 0


class Waits:
    """Says yes to the end after so many rounds have begun."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> bool:
        if seconds == PERIOD:
            self.rounds -= 1
        else:
            self.pauses.append(seconds)
        return self.rounds < 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.mdb"
    path.touch()
    os.truncate(path, 10 * WINDOW)
    return path


def test_windows_with_many_dirty_pages_are_written_at_a_bounded_rate(file: Path) -> None:
    pages = FakePages({0: PAGES, 3 * WINDOW: PAGES // 2, 5 * WINDOW: 3})
    waits = Waits(rounds=2)
    one = Writeback(file, pages=pages, wait=waits)
    one.run()
    assert pages.written == [0, 3 * WINDOW]
    assert one.statistics() == {"writeback_rounds": 2, "writeback_bytes": 1.5 * WINDOW, "writeback_rate": RATE}
    assert sum(waits.pauses) >= 1.5 * WINDOW / RATE
    assert pages.counts[5 * WINDOW] == 3, "scattered pages are left to the kernel"


@pytest.mark.parametrize("windows", [10, 40, 400])
def test_a_round_that_has_much_to_write_does_not_leave_more_and_more_behind(tmp_path: Path, windows: int) -> None:
    """Each second of a round dirties so many windows; a round at the first rate would last longer than the one before,
    without end."""
    path = tmp_path / "data.mdb"
    path.touch()
    os.truncate(path, 400 * WINDOW)
    pages = FakePages({})
    rounds: list[float] = []

    def wait(seconds: float) -> bool:
        if seconds == PERIOD:
            if rounds:
                dirtied = min(round(windows * (PERIOD + rounds[-1])), 400)
                pages.counts = dict.fromkeys(range(0, dirtied * WINDOW, WINDOW), PAGES)
            rounds.append(0.0)
        else:
            rounds[-1] += seconds
        return len(rounds) > 20

    one = Writeback(path, pages=pages, wait=wait)
    one.run()
    assert rounds[-2] <= max(0.6 * PERIOD, 401 * WINDOW / MAX_RATE)
    assert one.statistics()["writeback_rate"] <= MAX_RATE


def test_a_stop_is_noticed_between_two_windows(file: Path) -> None:
    pages = FakePages(dict.fromkeys(range(0, 10 * WINDOW, WINDOW), PAGES))
    answers = iter([False, False, True, True])
    one = Writeback(file, pages=pages, wait=lambda seconds: next(answers))
    one.run()
    assert pages.written == [0, WINDOW]


def test_a_file_that_is_being_replaced_is_looked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    pages = FakePages({0: PAGES})
    rounds = 0

    def wait(seconds: float) -> bool:
        nonlocal rounds
        rounds += seconds == PERIOD
        if rounds == 2 and not path.exists():
            path.write_bytes(bytes(WINDOW))
        return rounds > 2

    Writeback(path, pages=pages, wait=wait).run()
    assert pages.written == [0]


def test_a_kernel_that_cannot_tell_ends_it(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Old(FakePages):
        def dirty(self, fd: int, offset: int, size: int) -> int:
            raise OSError(38, "Function not implemented")

    with caplog.at_level(logging.INFO):
        Writeback(file, pages=Old({}), wait=Waits(rounds=5)).run()
    assert "by the kernel alone: [Errno 38]" in caplog.text


def test_the_thread_ends_when_it_is_told_to(file: Path) -> None:
    one = Writeback(file, pages=FakePages({}))
    one.start()
    one.stop()
    assert one.statistics()["writeback_rounds"] == 0


def test_the_kernel_writes_what_was_dirty(file: Path) -> None:
    pages = Pages()
    fd = os.open(file, os.O_RDWR)
    try:
        os.pwrite(fd, os.urandom(WINDOW), 2 * WINDOW)
        pages.write(fd, 2 * WINDOW, WINDOW)
        try:
            left = pages.dirty(fd, 2 * WINDOW, WINDOW)
        except OSError as error:
            assert error.errno == errno.ENOSYS  # Linux before 6.5
            left = 0
        assert left == 0
    finally:
        os.close(fd)
