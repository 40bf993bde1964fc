"""When steps are taken, and when the timers may be judged."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from kvorum_raft.stepping import Stepper


class _Steps:
    """A stepper on a loop whose clock is set by hand. `reads` counts the turns in which input could be read."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now = 100.0
        self.loop.time = lambda: self.now  # type: ignore[method-assign]
        self.judged: list[bool] = []
        self.more = False
        self.reads = 0
        self.wish = 0.05
        self.in_step: Callable[[], None] = lambda: None
        self.stepper = Stepper(self.loop, self._tick, lambda now: self.wish)
        self.stepper.start()

    def _tick(self, judge: bool) -> bool:
        self.judged.append(judge)
        self.in_step()
        return self.more

    def turn(self, *input_: Callable[[], None]) -> None:
        """One turn of the loop; what is read comes behind what was asked for in the turn before."""
        self.reads += 1
        for call in input_:
            self.loop.call_soon(call)
        self.loop.stop()
        self.loop.run_forever()

    def message(self) -> None:
        self.stepper.messages += 1
        self.stepper.ask()

    def until_judged(self) -> int:
        """Turns that it took."""
        before = self.reads
        while not (self.judged and self.judged[-1]):
            self.turn()
            assert self.reads < before + 20
        return self.reads - before


@pytest.fixture
def steps() -> Iterator[_Steps]:
    """One that is in time so far."""
    made = _Steps()
    made.stepper.ask()
    made.turn()
    assert made.judged == [True]
    made.judged.clear()
    yield made
    made.stepper.stop()
    made.loop.close()


def test_a_step_in_time_judges_at_once(steps: _Steps) -> None:
    steps.now += 0.05
    steps.turn()
    assert steps.judged == [True]


def test_a_late_step_leaves_two_turns_for_reading(steps: _Steps) -> None:
    steps.now += 2.0
    assert steps.until_judged() >= 3


def test_a_message_and_a_timer_of_one_turn_are_one_step(steps: _Steps) -> None:
    """Otherwise the timers would be judged a turn earlier, before what lies behind that message was read."""
    steps.now += 2.0
    steps.turn(steps.message)
    assert steps.judged.count(False) == len(steps.judged)
    assert steps.until_judged() >= 2


def test_it_goes_on_reading_while_messages_come(steps: _Steps) -> None:
    steps.now += 2.0
    for _ in range(10):
        steps.turn(steps.message)
    assert True not in steps.judged
    assert steps.until_judged() <= 4


def test_between_two_steps_there_are_turns_for_whoever_was_answered_in_the_first(steps: _Steps) -> None:
    """One in which a caller writes to its connection, and one in which the connection sends."""
    steps.more = True
    seen: list[int] = []
    steps.stepper.ask()
    steps.loop.call_soon(lambda: steps.loop.call_soon(lambda: steps.loop.call_soon(seen.append, 1)))
    steps.turn()
    assert steps.judged == [True]
    steps.more = False
    steps.turn()
    assert steps.judged == [True]
    steps.turn()
    assert (steps.judged, seen) == ([True, True], [1])
    steps.turn()
    assert steps.judged == [True, True], "there was no more to do"


def test_a_timer_that_was_set_for_an_earlier_wish_makes_no_step(steps: _Steps) -> None:
    steps.now += 0.04
    steps.stepper.ask()
    steps.turn()  # the next one is due in another 50 ms; the timer still rings in 10
    steps.now += 0.011
    steps.turn()
    assert len(steps.judged) == 1
    steps.now += 0.04
    steps.turn()
    assert len(steps.judged) == 2


def test_that_timer_makes_a_step_if_something_has_become_due_meanwhile(steps: _Steps) -> None:
    steps.now += 0.04
    steps.stepper.ask()
    steps.turn()
    steps.now += 0.011
    steps.wish = 0.0005
    steps.turn()
    assert len(steps.judged) == 2


def test_a_step_at_once_is_none_if_one_comes_anyway(steps: _Steps) -> None:
    steps.stepper.at_once()
    assert len(steps.judged) == 1
    steps.stepper.ask()
    steps.stepper.at_once()
    assert len(steps.judged) == 1
    steps.turn()
    assert len(steps.judged) == 2
    steps.turn()
    assert len(steps.judged) == 2


def test_a_step_at_once_inside_a_step_comes_behind_it(steps: _Steps) -> None:
    steps.in_step = steps.stepper.at_once
    steps.stepper.at_once()
    assert len(steps.judged) == 1
    steps.in_step = lambda: None
    steps.turn()
    assert len(steps.judged) == 2
