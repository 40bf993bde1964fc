"""Stands for the node's background thread: each job is one moment of virtual time, some time after the one before, and
its process may be killed before, between job and answer, or in the middle of the job, at any sync."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from kvorum_raft.errors import Overloaded
from tests.simulation.whole.clock import ProcessLoop

_MAX_JOBS = 64


class Killed(BaseException):
    """The process died in the middle of a job. Not for shipped code to handle: what its `finally` blocks do to the disk
    is undone."""


class SimBackground:
    """See `kvorum_raft.background.Background`. `slowness` is the seconds between two jobs, on average."""

    def __init__(self, loop: ProcessLoop, rng: random.Random, slowness: float) -> None:
        self._loop = loop
        self._rng = rng
        self._slowness = slowness
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = deque()
        self._waiting = False
        self._stopped = False

    def stopping(self) -> bool:
        return self._stopped

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        if self._stopped:
            return
        if len(self._jobs) >= _MAX_JOBS:
            raise Overloaded(f"{_MAX_JOBS} jobs wait")
        self._jobs.append((job, done))
        self._wait()

    def _wait(self) -> None:
        if not self._waiting and self._jobs:
            self._waiting = True
            self._loop.clock.after(self._rng.expovariate(1 / self._slowness), self._run)

    def _run(self) -> None:
        self._waiting = False
        if self._loop.dead or self._stopped:
            return
        if self._loop.paused:
            self._wait()
            return
        job, done = self._jobs.popleft()
        result: Any = None
        error: Exception | None = None
        self._loop.clock.enter(None)
        try:
            result = job()
        except Killed:
            return
        except Exception as caught:  # noqa: BLE001  as the real one: it belongs to whoever asked for the work
            error = caught
        self._loop.clock.after(self._rng.uniform(1e-5, 0.01), self._loop.run, self._tell, done, result, error)
        self._wait()

    def _tell(self, done: Callable[[Any, Exception | None], None], result: Any, error: Exception | None) -> None:
        if not self._stopped:
            done(result, error)

    def stop(self) -> None:
        self._stopped = True
        self._jobs.clear()
