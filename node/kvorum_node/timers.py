"""The seam to time: what components need of an event loop, so that tests can hand them a virtual one."""

from collections.abc import Callable
from typing import Any, Protocol


class Handle(Protocol):
    """A callback that waits to be called."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Monotonic time in seconds and callbacks on the one loop. `asyncio.AbstractEventLoop` fulfils it."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle: ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle: ...


class Alarm:
    """One callback that can be set to an earlier or later moment; never set twice at a time."""

    __slots__ = ("_at", "_callback", "_handle", "_timers")

    MAX_DELAY = 3_600.0
    """Longer waits are cut: the callback must judge for itself whether the moment has come."""

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self._callback = callback
        self._handle: Handle | None = None
        self._at = 0.0

    def set(self, delay: float) -> None:
        """Ring in `delay` seconds instead of any moment set before."""
        delay = min(max(delay, 0.0), self.MAX_DELAY)
        self.cancel()
        self._at = self._timers.time() + delay
        self._handle = self._timers.call_later(delay, self._ring)

    def set_no_later(self, delay: float) -> None:
        """Ring in `delay` seconds unless it is already set to an earlier moment."""
        if self._handle is None or self._timers.time() + delay < self._at:
            self.set(delay)

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._callback()
