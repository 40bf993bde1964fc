"""Time that can be put forward, for an embedded database: its clock and that of its event loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from kvorum_node import local

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is `ahead` seconds ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Jumps:
    """Puts the time forward. Nothing should be under way meanwhile: its deadline would pass."""

    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop

    def pass_by(self, duration: timedelta) -> None:
        self._loop.ahead += duration.total_seconds()


def play(function: Callable[[Jumps], Coroutine[Any, Any, T]], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run a coroutine function in such a time."""

    async def run() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        clock = SimpleNamespace(time_ns=lambda: time.time_ns() + int(loop.ahead * 1e9), perf_counter=time.perf_counter)
        monkeypatch.setattr(local, "time", clock)
        return await function(Jumps(loop))

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())
