"""The bytes of an image arrive whole or not at all, no faster than they should."""

import hashlib
import os
import threading
from collections import deque
from pathlib import Path

import pytest

from kvorum_raft.background import Stopping
from kvorum_raft.copier import ALONE, RATE, Pace, PipeCopier, PlainCopier
from kvorum_raft.seams import StateImage
from tests.unit.raft.fake_state import FakeMachine, no_space


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def copy(copier: PipeCopier | PlainCopier, image: StateImage, file: Path) -> tuple[int, bytes]:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        return copier.copy(image, fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_001])
def test_both_copiers_write_the_same(tmp_path: Path, size: int) -> None:
    machine = FakeMachine(os.urandom(size), 7)
    piped = copy(PipeCopier(rate=1e12), machine.image(), tmp_path / "piped")
    plain = copy(PlainCopier(), machine.image(), tmp_path / "plain")
    written = (tmp_path / "piped").read_bytes()
    assert piped == plain == (len(written), hashlib.blake2b(written, digest_size=32).digest())
    assert written == (tmp_path / "plain").read_bytes()
    assert machine.inspect(tmp_path / "piped") == machine.image().facts


def test_an_image_that_ends_early_is_an_error_though_the_pipe_ends_in_order(tmp_path: Path) -> None:
    machine = FakeMachine(b"x" * 10, 7)
    machine.copy_errors.append(RuntimeError("a lock is held"))
    with pytest.raises(RuntimeError, match="a lock is held"):
        copy(PipeCopier(), machine.image(), tmp_path / "state")


def test_a_full_disk_ends_the_image_too(tmp_path: Path) -> None:
    machine = FakeMachine(b"x" * 10_000_000, 7)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as error:
            PipeCopier(rate=1e12).copy(machine.image(), fd)
    finally:
        os.close(fd)
    assert error.value.errno == no_space().errno
    assert not any(thread.name == "kvorum-image" for thread in threading.enumerate())
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_it_stops_in_the_middle(tmp_path: Path) -> None:
    machine = FakeMachine(b"x" * 50_000_000, 7)
    answers = deque([False, False, True])
    with pytest.raises(Stopping):
        copy(PipeCopier(rate=1e12, stopping=answers.popleft), machine.image(), tmp_path / "state")
    assert 0 < (tmp_path / "state").stat().st_size < 50_000_000
    assert not any(thread.name == "kvorum-image" for thread in threading.enumerate())


def test_the_pace_is_kept_and_a_pause_is_not_made_up_by_a_burst() -> None:
    clock = Clock()
    pace = Pace(1000.0, clock=lambda: clock.now, sleep=clock.sleep)
    for _ in range(10):
        pace.took(100)
    assert clock.now == pytest.approx(101.0)
    clock.now += 60
    before = clock.now
    for _ in range(10):
        pace.took(100)
    assert clock.now - before >= 0.9


def test_who_copies_alone_is_faster() -> None:
    clock = Clock()
    copier = PipeCopier(clock=lambda: clock.now, sleep=clock.sleep)
    seconds = []
    for alone in (False, True, False):
        copier.hurry(alone=alone)
        before = clock.now
        for _ in range(100):
            copier.pause(1 << 20)
        seconds.append(clock.now - before)
    slow, fast = (100 << 20) / RATE, (100 << 20) / ALONE
    assert seconds == pytest.approx([slow, fast, slow])
    assert fast < slow


def test_a_slow_log_stretches_the_pace_but_never_stops_it() -> None:
    clock = Clock()
    pace = Pace(1000.0, clock=lambda: clock.now, sleep=clock.sleep)
    slow_until = 100.35
    pace.latency = lambda: 0.05 if clock.now < slow_until else 0.005
    pace.took(100)
    assert clock.now == pytest.approx(slow_until, abs=0.01)
    assert pace.stretched == pytest.approx(0.25, abs=0.01)
    pace.took(100)
    assert clock.now == pytest.approx(slow_until + 0.1, abs=0.01), "what was lost is not made up for"
    slow_until = float("inf")
    before = clock.now
    for _ in range(10):
        pace.took(100)
    assert clock.now - before == pytest.approx(4, abs=0.1), "a quarter of the rate"


def test_a_paced_copy_takes_its_time(tmp_path: Path) -> None:
    clock = Clock()
    machine = FakeMachine(b"x" * 10_000_000, 7)
    copier = PipeCopier(rate=1e6, clock=lambda: clock.now, sleep=clock.sleep)
    size, _ = copy(copier, machine.image(), tmp_path / "state")
    assert sum(clock.slept) == pytest.approx(size / 1e6, rel=0.02)
    assert max(clock.slept) <= 1.1, "a stop is noticed between two blocks"
