"""A client of kvorum that is measured: started by `bench.sides`."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import kvorum
import kvorum.sync
from bench.kv_ends import Job, Runner, run
from bench.measure import clock, figures

SETS: Final = 500
"""Of one atomic operation, in filling."""
OPERATIONS: Final = 16
BATCH: Final = 1_000
"""Entries of one step of a list, the most that a node gives."""


class Client:
    """See `bench.kv_ends.Store`."""

    overhead = 4
    """Bytes that V8's format puts before a string of 84 characters and more."""

    def __init__(self, kv: kvorum.Kv, servers: list[str], stack: contextlib.AsyncExitStack) -> None:
        self._kv = kv
        self.servers = servers
        self._stack = stack
        self._tasks: list[asyncio.Task[None]] = []

    async def set(self, space: str, key: int, value: str) -> None:
        await self._kv.set((space, key), value)

    async def get(self, space: str, key: int) -> str | None:
        found: str | None = (await self._kv.get((space, key))).value
        return found

    async def get_local(self, space: str, key: int) -> str | None:
        found: str | None = (await self._kv.get((space, key), consistency="eventual")).value
        return found

    async def read(self, space: str, key: int) -> tuple[str | None, Any]:
        entry = await self._kv.get((space, key))
        return entry.value, entry

    async def swap(self, space: str, key: int, version: Any, value: str) -> Any:
        atomic = self._kv.atomic()
        if isinstance(version, str):
            atomic.check((space, key), version)
        else:
            atomic.check(version)
        return (await atomic.set((space, key), value).commit()).versionstamp

    async def add(self, space: str, key: int) -> int:
        await self._kv.atomic().sum((space, key), 1).commit()
        return 0

    async def list(self, space: str) -> dict[int, str]:
        found: dict[Any, str] = {}
        async for entry in self._kv.list((space,), batch_size=BATCH):
            found[entry.key[1]] = entry.value if type(entry.value) is str else str(int(entry.value))
        return found

    async def fill(self, space: str, keys: range, value: Callable[[int], str]) -> None:
        gate = asyncio.Semaphore(OPERATIONS)

        async def part(numbers: range) -> None:
            async with gate:
                atomic = self._kv.atomic()
                for number in numbers:
                    atomic.set((space, number), value(number))
                await atomic.commit(timeout=60_000)

        each = max(1, min(SETS, 600_000 // len(value(0))))
        await asyncio.gather(*(part(keys[at : at + each]) for at in range(0, len(keys), each)))

    async def watch(self, space: str, keys: Sequence[int], seen: Callable[[str], None]) -> None:
        begun = asyncio.Semaphore(0)

        async def follow(key: int) -> None:
            first = True
            async for (entry,) in self._kv.watch([(space, key)]):
                if first:  # how it stands, before anything is written
                    first = False
                    begun.release()
                else:
                    seen(entry.value)

        self._tasks += [asyncio.create_task(follow(key)) for key in keys]
        for _ in keys:
            await begun.acquire()

    async def another(self) -> "Client":
        """With the leader only, so that all watches are on one node."""
        kv = await self._stack.enter_async_context(kvorum.open_kv(f"kvorum://{self.servers[0]}"))
        return Client(kv, self.servers, self._stack)


async def threads(runner: Runner, job: Job) -> Callable[[float, float], Awaitable[dict[str, Any]]]:
    """Sets by the client without asyncio, from several threads that share it."""
    assert isinstance(runner.store, Client)
    target = "kvorum://" + ",".join(runner.store.servers)
    await runner.fill("threads", job)
    runner.written.add("threads")
    turns = itertools.count()

    def caller(kv: kvorum.sync.Kv, begin: float, end: float) -> tuple[list[float], int]:
        took, ended = [], 0
        while (began := clock()) < end:
            key = next(turns) % job.keys
            number, value = runner.value(job.size)
            kv.set(("threads", key), value)
            after = clock()
            runner.acknowledged.wrote("threads", key, number)
            if began >= begin:
                took.append(after - began)
            ended += begin <= after < end
        return took, ended

    async def measured(begin: float, end: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        # The loop's own pool has fewer threads than there are callers.
        with await asyncio.to_thread(kvorum.sync.open_kv, target) as kv, ThreadPoolExecutor(job.callers) as pool:
            calls = (loop.run_in_executor(pool, caller, kv, begin, end) for _ in range(job.callers))
            rows = await asyncio.gather(*calls)
        times = sorted(itertools.chain.from_iterable(took for took, _ in rows))
        return figures(times, sum(ended for _, ended in rows), end - begin)

    return measured


@contextlib.asynccontextmanager
async def opened(servers: list[str]) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        kv = await stack.enter_async_context(kvorum.open_kv("kvorum://" + ",".join(servers)))
        yield Client(kv, servers, stack)


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(asyncio.CancelledError):
        run(opened, uvloop.run, {"threads": threads})
