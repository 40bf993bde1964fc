"""A client of etcd that is measured: started by `bench.sides`, under an interpreter that has aetcd.

It talks to the server that leads, which spares etcd the way over a follower.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aetcd  # type: ignore[import-not-found]

from bench.kv_ends import run

OPTIONS = {"grpc.max_receive_message_length": -1}
"""gRPC's own limit of 4 MiB would refuse a list of 40,000 entries."""
PUTS = 100
"""Of one transaction, of which etcd allows 128."""
TRANSACTIONS = 8


def name(space: str, key: int) -> bytes:
    return b"bench/%s/%08d" % (space.encode(), key)


class Client:
    """See `bench.kv_ends.Store`."""

    overhead = 0

    def __init__(self, client: Any, address: str, stack: contextlib.AsyncExitStack) -> None:
        self._client = client
        self._address = address
        self._stack = stack
        self._tasks: list[asyncio.Task[None]] = []

    async def set(self, space: str, key: int, value: str) -> None:
        await self._client.put(name(space, key), value.encode())

    async def get(self, space: str, key: int) -> str | None:
        found = await self._client.get(name(space, key))
        return None if found is None else found.value.decode()

    async def get_local(self, space: str, key: int) -> str | None:
        found = await self._client.get(name(space, key), serializable=True)
        return None if found is None else found.value.decode()

    async def read(self, space: str, key: int) -> tuple[str | None, Any]:
        found = await self._client.get(name(space, key))
        return (None, 0) if found is None else (found.value.decode(), found.version)

    async def swap(self, space: str, key: int, version: Any, value: str) -> Any:
        path, steps = name(space, key), self._client.transactions
        done, _ = await self._client.transaction(
            compare=[steps.version(path) == version], success=[steps.put(path, value.encode())], failure=[]
        )
        return version + 1 if done else None

    async def add(self, space: str, key: int) -> int:
        """etcd has no sum: read, and write if nobody was faster, until it is so."""
        conflicts = 0
        while True:
            value, version = await self.read(space, key)
            if await self.swap(space, key, version, str(int(value or 0) + 1)) is not None:
                return conflicts
            conflicts += 1

    async def list(self, space: str) -> dict[int, str]:
        found = await self._client.get_prefix(b"bench/%s/" % space.encode())
        return {int(entry.key.rpartition(b"/")[2]): entry.value.decode() for entry in found}

    async def fill(self, space: str, keys: range, value: Callable[[int], str]) -> None:
        gate = asyncio.Semaphore(TRANSACTIONS)
        put = self._client.transactions.put

        async def part(numbers: range) -> None:
            async with gate:
                steps = [put(name(space, number), value(number).encode()) for number in numbers]
                await self._client.transaction(compare=[], success=steps, failure=[])

        each = max(1, min(PUTS, 1_000_000 // len(value(0))))
        await asyncio.gather(*(part(keys[at : at + each]) for at in range(0, len(keys), each)))

    async def watch(self, space: str, keys: Sequence[int], seen: Callable[[str], None]) -> None:
        async def follow(watch: Any) -> None:
            async for event in watch:
                seen(event.kv.value.decode())

        for key in keys:
            watch = await self._client.watch(name(space, key))
            self._tasks.append(asyncio.create_task(follow(watch)))

    async def another(self) -> "Client":
        return Client(await self._stack.enter_async_context(connected(self._address)), self._address, self._stack)


def connected(address: str) -> Any:
    host, _, port = address.rpartition(":")
    return aetcd.Client(host, int(port), options=OPTIONS)


@contextlib.asynccontextmanager
async def opened(servers: list[str]) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(servers[0]))
        yield Client(client, servers[0], stack)


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(asyncio.CancelledError):
        run(opened, uvloop.run)
