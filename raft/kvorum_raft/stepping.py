"""When the core takes its steps: once for all that happened in one turn of the loop, and at the latest when a timer of
its own is due.

A step that comes late (the process was frozen, the machine was busy) must not judge timers at first: what would answer
them may lie unread in the sockets. So the loop gets some turns to read before the core may judge.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_LATE: Final = 0.15
_MAX_DRAINS: Final = 64
_EARLY: Final = 0.001
"""Seconds by which a step may come too soon."""


class Stepper:
    """`tick(judge)` is one step, True if there is more to do at once; `wakeup(now)` the seconds until the next one is
    due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tick: Callable[[bool], bool],
        wakeup: Callable[[float], float],
    ) -> None:
        self._loop = loop
        self._tick = tick
        self._wakeup = wakeup
        self._running = False
        self._asked = False
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._due = 0.0
        """When the last step wanted the next one; the timer may be set for an earlier one's wish."""
        self._last = 0.0
        self._drains_left = 0
        self._drained_at = 0
        self.messages = 0
        """Count of what has been read from peers."""
        self.late = 0
        """Steps that came late."""
        self.longest = 0.0
        """Seconds."""

    def start(self) -> None:
        self._running = True
        self._last = self._loop.time()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ask(self) -> None:
        """A step at the end of this turn of the loop."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._step)

    def at_once(self) -> None:
        """A step now instead of at the end of this turn, unless one comes anyway or is under way."""
        if self._asked or self._stepping:
            self.ask()
        else:
            self._step()

    def _on_timer(self) -> None:
        self._timer = None
        if self._asked:
            return  # one comes within this turn or the next, and two of them in one turn would count as two turns
        now = self._loop.time()
        due = min(self._due, now + self._wakeup(now))
        if due > now + _EARLY:
            self._timer_due, self._timer = due, self._loop.call_at(due, self._on_timer)
        else:
            self._step()

    def _step(self) -> None:
        self._asked = False
        if not self._running:
            return
        now = self._loop.time()
        judge = self._caught_up(now)
        self._stepping = True
        try:
            more = self._tick(judge)
        finally:
            self._stepping = False
        if not judge:
            self.ask()
        elif more and not self._asked:
            # One turn for whoever was answered in this step, and one for the connections that they have written to.
            self._loop.call_soon(self.ask)
        end = self._loop.time()
        self.longest = max(self.longest, end - now)
        if self._running:
            self._set_timer(end)

    def _caught_up(self, now: float) -> bool:
        """False while input may lie unread after a pause of the process: another turn of the loop reads it first."""
        if now - self._last > _LATE:
            self.late += 1
            self._drains_left, self._drained_at = _MAX_DRAINS, -1
        self._last = now
        if not self._drains_left:
            return True
        if self._drained_at == self.messages and self._drains_left <= _MAX_DRAINS - 2:
            self._drains_left = 0
            return True
        self._drained_at = self.messages
        self._drains_left -= 1
        return False

    def _set_timer(self, now: float) -> None:
        self._due = due = now + self._wakeup(now)
        if self._timer is not None:
            if self._timer_due <= due + _EARLY and self._timer_due > now:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._on_timer)
