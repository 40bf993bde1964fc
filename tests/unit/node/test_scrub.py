"""The slow scan: it looks at everything, tells of damage once, and gives way."""

import random
import threading
from collections.abc import Iterator

import pytest

from kvorum_node.scrub import SLICE_ROWS, Scrubber
from kvorum_node.store import StoreFault


class State:
    """Yields `slices` slices for each scan, then stops the show or is damaged."""

    def __init__(self, slices: int, *, damaged: bool = False) -> None:
        self.slices = slices
        self.damaged = damaged
        self.scans = 0
        self.closed = 0
        self.under_way = threading.Event()
        self.scanned_twice = threading.Event()

    def scrub(self, rows: int) -> Iterator[int]:
        assert rows == SLICE_ROWS
        try:
            for number in range(self.slices):
                self.under_way.set()
                yield rows * (number + 1)
            if self.damaged:
                raise StoreFault("a row is not what was written")
            self.scans += 1
            if self.scans == 2:
                self.scanned_twice.set()
        finally:
            self.closed += 1


def make(state: State, told: list[StoreFault], found: threading.Event | None = None) -> Scrubber:
    def tell(fault: StoreFault) -> None:
        told.append(fault)
        if found is not None:
            found.set()

    return Scrubber(state, 0.01, tell, rng=random.Random(1), pause=0.0001)


def test_it_scans_again_and_again() -> None:
    state, told = State(5), list[StoreFault]()
    scrubber = make(state, told)
    scrubber.start()
    assert state.scanned_twice.wait(60)
    scrubber.stop()
    assert told == []
    assert scrubber.statistics()["scrubs"] >= 1
    assert scrubber.statistics()["scrubbed_rows"] >= 5 * SLICE_ROWS


def test_damage_is_told_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    state, told, found = State(2, damaged=True), list[StoreFault](), threading.Event()
    scrubber = make(state, told, found)
    scrubber.start()
    assert found.wait(60)
    scrubber.stop()
    assert [str(fault) for fault in told] == ["a row is not what was written"]
    assert "the state is damaged" in caplog.text


def test_stopping_gives_up_what_is_under_way_and_lets_go_of_the_state() -> None:
    state, told = State(1 << 60), list[StoreFault]()
    scrubber = make(state, told)
    scrubber.start()
    assert state.under_way.wait(60)
    scrubber.stop()
    assert (state.closed, state.scans, told) == (1, 0, [])
