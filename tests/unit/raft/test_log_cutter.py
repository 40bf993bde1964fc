"""How much of the log stays when checkpoints are made often."""

from types import SimpleNamespace
from typing import Any, cast

from kvorum_raft.log_cutter import AT_ONCE, MAX_HELD, PAUSE, LogCutter

KEEP = 1_000


class Log:
    """A journal, checkpoints and a core, as far as a cutter asks them; entries of one byte."""

    def __init__(self) -> None:
        self.now = 0.0
        self.base_index = 0
        self.durable_index = self.applied_index = 0
        self.slowest: int | None = None
        self.manifests: list[Any] = []
        self.cutter = self.restarted()

    def restarted(self) -> LogCutter:
        return LogCutter(cast(Any, self), cast(Any, self), cast(Any, self), lambda: None, lambda: self.now)

    def slowest_follower(self) -> int | None:
        return self.slowest

    def base_at(self, index: int) -> int:
        return index

    def cut_to(self, base: int) -> None:
        self.base_index = base

    def checkpoint(self, entries: int, *, wanted: bool = False) -> None:
        """One more after so many entries, of which two are kept; and time to cut."""
        self.durable_index = self.applied_index = self.applied_index + entries
        base = SimpleNamespace(index=self.applied_index)
        self.manifests = [*self.manifests, SimpleNamespace(base=base)][-2:]
        self.cutter.plan(self.applied_index, 0, KEEP, wanted=wanted)
        for _ in range(entries // AT_ONCE + 2):
            self.now += PAUSE
            self.cutter.tick()


def test_the_log_ends_behind_the_older_of_two() -> None:
    log = Log()
    for number in range(5):
        log.checkpoint(KEEP)
        assert log.base_index == max(0, number) * KEEP


def test_checkpoints_that_are_made_early_leave_the_log_as_long_as_it_would_be() -> None:
    """Else a node that was away for some seconds would need a snapshot."""
    log = Log()
    for _ in range(40):
        log.checkpoint(100)
        assert log.base_index == max(0, log.applied_index - KEEP)


def test_one_that_is_wanted_lets_all_go_that_can() -> None:
    log = Log()
    log.checkpoint(100)
    log.checkpoint(100, wanted=True)
    assert log.base_index == 100


def test_after_a_restart_the_log_stays_until_enough_has_followed() -> None:
    log = Log()
    for _ in range(12):
        log.checkpoint(100)
    log.cutter = log.restarted()
    log.cutter.plan(0, 0, KEEP)  # nothing noted yet
    began = log.applied_index
    log.cutter.plan(0, 0, KEEP)
    assert log.base_index == began - KEEP
    for number in range(1, 13):
        log.applied_index = log.durable_index = began + number * 100
        log.manifests = [log.manifests[-1], SimpleNamespace(base=SimpleNamespace(index=log.applied_index))]
        log.cutter.plan(number * 100, 0, KEEP)
        for _ in range(5):
            log.now += PAUSE
            log.cutter.tick()
    assert log.base_index == began + 200


def test_it_waits_for_a_slow_follower_as_long_as_for_whole_checkpoints() -> None:
    log = Log()
    log.slowest = 50
    cut_after = None
    for number in range(100):
        log.checkpoint(100)
        if log.base_index > 50:
            cut_after = number
            break
        assert log.base_index <= 50
    assert cut_after is not None and MAX_HELD * KEEP <= log.applied_index <= (MAX_HELD + 2) * KEEP
