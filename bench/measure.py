"""Callers that each await their answer before they call again, and what they saw.

Only the standard library: programs of other systems, which run under interpreters of their own, measure with it too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

clock: Final = time.monotonic
"""The same in all processes of a machine."""
PATIENCE: Final = 3.0
"""Seconds after the end in which calls that were begun before may still be answered."""


def quantile(times: Sequence[float], part: float) -> float:
    """Of sorted times; 0 if there are none."""
    return times[min(len(times) - 1, int(len(times) * part))] if times else 0.0


def figures(times: Sequence[float], calls: int, seconds: float) -> dict[str, float]:
    """Of calls that began in `seconds` and took `times` (seconds, sorted); `calls` of any ended in them."""
    return {
        "rate": calls / seconds,
        "calls": calls,
        "p50_ms": quantile(times, 0.5) * 1e3,
        "p99_ms": quantile(times, 0.99) * 1e3,
        "max_ms": times[-1] * 1e3 if times else 0.0,
    }


async def between(call: Callable[[int], Awaitable[object]], callers: int, begin: float, end: float) -> dict[str, float]:
    """Call from now to `end`; what is told is of the time from `begin` on, in which the system is warm.

    `call` is given the number of its caller. With `client_cpu_s`, the CPU seconds of this process, and `given_up`, the
    calls that had no answer long after the end; what they took counts as if they had then.
    """
    took: list[float] = []
    open_calls: dict[int, float] = {}
    ended = 0
    cpu = 0.0

    async def caller(number: int) -> None:
        nonlocal ended
        while (began := clock()) < end:
            open_calls[number] = began
            await call(number)
            after = clock()
            if began >= begin:
                took.append(after - began)
            ended += begin <= after < end

    async def watch_cpu() -> None:
        nonlocal cpu
        await asyncio.sleep(begin - clock())
        before = time.process_time()
        await asyncio.sleep(end - clock())
        cpu = time.process_time() - before

    watching = asyncio.create_task(watch_cpu())
    tasks = {asyncio.create_task(caller(number)): number for number in range(callers)}
    patience = end - clock() + PATIENCE
    done, late = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_EXCEPTION)
    for task in late:
        task.cancel()
        took.append(clock() - open_calls.get(tasks[task], end))
    if late:
        await asyncio.wait(late)
    for error in filter(None, (task.exception() for task in done)):
        watching.cancel()
        raise error
    await watching
    took.sort()
    return {**figures(took, ended, end - begin), "client_cpu_s": cpu, "given_up": len(late)}
