"""How late the loop calls back: the metric of rules J1, since consensus timers and the API share one loop."""

from collections.abc import Callable

from kvorum_raft.histogram import Histogram

from .timers import Handle, Timers

PERIOD = 0.1
"""Seconds between looks: a blockade of the loop of any length shows, one shorter than that with some luck."""


class LoopLag:
    """Measures while it runs. `worst` is the longest lateness since `statistics` was last asked.

    `on_late` hears of each lateness, in seconds.
    """

    def __init__(self, timers: Timers, *, on_late: Callable[[float], None] | None = None) -> None:
        self._timers = timers
        self._on_late = on_late
        self._handle: Handle | None = None
        self._due = 0.0
        self._last = self._worst = self._worst_ever = 0.0
        self.seconds = Histogram()

    def start(self) -> None:
        self._plan()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def statistics(self) -> dict[str, float]:
        """Seconds."""
        worst, self._worst = self._worst, self._last
        return {"loop_lag": self._last, "loop_lag_worst": worst, "loop_lag_worst_ever": self._worst_ever}

    def _plan(self) -> None:
        self._due = self._timers.time() + PERIOD
        self._handle = self._timers.call_later(PERIOD, self._look)

    def _look(self) -> None:
        self._last = max(0.0, self._timers.time() - self._due)
        self._worst = max(self._worst, self._last)
        self._worst_ever = max(self._worst_ever, self._last)
        self.seconds.observe(self._last)
        self._plan()
        if self._on_late is not None:
            self._on_late(self._last)
