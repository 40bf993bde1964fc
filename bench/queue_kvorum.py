"""An end of the queue benchmark on kvorum: started by `bench.queues`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Final

import kvorum
from bench.queue_ends import BATCH, HEAD, LOOPS, Plan, run

KEYS: Final = 10_000
"""Written by transactional acknowledgements."""
WAIT: Final = timedelta(milliseconds=20)
"""For a handler's batch to be full."""
PATIENCE: Final = timedelta(seconds=1)
"""For a batch that is asked for."""


class Client:
    """See `bench.queue_ends.Broker`."""

    def __init__(self, kv: kvorum.Kv, plan: Plan) -> None:
        self._queue = kv.queue(plan.queue)
        self._groups = plan.groups

    async def send(self, payloads: Sequence[bytes]) -> None:
        if self._groups:
            await self._queue.send(payloads[0], group=str(HEAD.unpack_from(payloads[0])[1] % self._groups))
        elif len(payloads) == 1:
            await self._queue.send(payloads[0])
        else:
            await self._queue.send_batch(payloads)

    async def consume(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        queue = self._queue

        async def push(message: kvorum.Message) -> None:
            handled(message.value)
            await message.ack()
            acked(1)

        async def transaction(message: kvorum.Message) -> None:
            handled(message.value)
            key = ("effect", HEAD.unpack_from(message.value)[1] % KEYS)
            await message.atomic().set(key, message.value).ack().commit()
            acked(1)

        async def batches(batch: kvorum.Batch) -> None:
            for message in batch:
                handled(message.value)
            await batch.ack_all()
            acked(len(batch))

        match plan.way:
            case "push":
                await queue.listen(push, concurrency=plan.in_flight)
            case "transaction":
                await queue.listen(transaction, concurrency=plan.in_flight)
            case "batches":
                await queue.listen(batches, batch=BATCH, batch_wait=WAIT, concurrency=LOOPS)
            case _:
                while True:
                    await batches(await queue.receive_batch(max=BATCH, wait=PATIENCE))


@contextlib.asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Client]:
    async with kvorum.open_kv("kvorum://" + ",".join(plan.servers.values())) as kv:
        await kv.get(("warm",))
        yield Client(kv, plan)


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(asyncio.CancelledError):
        run(opened, uvloop.run)
