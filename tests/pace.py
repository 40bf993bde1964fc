"""Bounds in time on a machine that others use as well.

"Within 500 ms" says something about the program only as long as it gets the processor when it asks for it. The kernel
keeps account of how long each thread was ready to run and waited for a core (`/proc/PID/task/TID/schedstat`): that time
is the machine's. On a quiet machine there is next to none of it, and the bounds are as strict as they read.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

NANOSECONDS = 1e9
BUSY = min(8.0, max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))
"""How many want a core of this machine for each that it has, as the tests begin. For timeouts of what is tested that a
test makes short: on a machine where everybody gets less, they must not end what is only slow."""
TURNS = 20
"""Rounds of an event loop from the call of a timer to the end of what has waited for it, and more."""


class Pace:
    """Seconds since it was made, but for those in which this process, or one of those that `pids` names now, waited for
    a core. Of the threads of a process the one that has waited longest counts, since they wait beside each other. Of a
    process that has ended counts what was seen when last asked.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self._pids = pids
        self._before = self._waits()
        self._seen = dict(self._before)
        self._begun = time.monotonic()

    def seconds(self) -> float:
        """May be called again and again."""
        passed = time.monotonic() - self._begun
        self._seen.update(self._waits())
        longest: dict[int, int] = {}
        for (pid, thread), waited in self._seen.items():
            longest[pid] = max(longest.get(pid, 0), waited - self._before.get((pid, thread), 0))
        return max(0.0, passed - sum(longest.values()) / NANOSECONDS)

    def _waits(self) -> dict[tuple[int, str], int]:
        """Nanoseconds, by process and thread; none of processes that have ended, or where no account is kept."""
        found = {}
        for pid in {os.getpid(), *self._pids()} - {0}:
            try:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found[pid, thread.name] = int((thread / "schedstat").read_text().split()[1])
            except (OSError, IndexError):
                continue
        return found


class Witness:
    """The block must end before a timer of so many seconds, set when it began, and some rounds of the loop after it.
    For what is up to this loop alone: what this process does late, it does late for both.

    Usage: `async with Witness(0.25): …`
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        late = self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])
        assert kind is not None or not late, f"it took more than {self._seconds:g} s"

    async def _wait(self) -> None:
        await asyncio.sleep(self._seconds)
        for _ in range(TURNS):
            await asyncio.sleep(0)
