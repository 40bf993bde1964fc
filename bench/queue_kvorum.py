"""An end of the queue benchmark on kvorum: started by `bench.queues`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import kvorum
from bench.queue_ends import HEAD, Plan, run

KEYS = 10_000
"""Written by transactional acknowledgements."""


class Client:
    """See `bench.queue_ends.Broker`."""

    def __init__(self, kv: kvorum.Kv, queue: str) -> None:
        self._kv = kv
        self._queue = queue

    async def send(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await self._kv.enqueue(payloads[0], queue=self._queue)
            return
        commit = self._kv.atomic()
        for payload in payloads:
            commit.enqueue(payload, queue=self._queue)
        await commit.commit()

    async def consume(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        kv = self._kv
        effects = plan.way == "transaction"

        async def handle(message: kvorum.Message) -> None:
            handled(message.value)
            commit = kv.atomic().ack(message)
            if effects:
                commit.set(("effect", HEAD.unpack_from(message.value)[1] % KEYS), message.value)
            await commit.commit()
            acked(1)

        await kv.listen_queue(handle, queue=plan.queue, concurrency=plan.in_flight, with_message=True)


@contextlib.asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Client]:
    async with kvorum.open_kv("kvorum://" + ",".join(plan.servers.values())) as kv:
        await kv.get(("warm",))
        yield Client(kv, plan.queue)


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(asyncio.CancelledError):
        run(opened, uvloop.run)
