"""An end of the queue benchmark on NATS JetStream: started by `bench.queues`, under an interpreter that has nats-py.

A queue is a stream of its own with three replicas in files and *work queue* retention: what is acknowledged is deleted.
Both ends connect to the server that leads the stream. Every publish waits for its acknowledgement, and every
acknowledgement (`ack_sync`) for its confirmation. Batches are pulled; one by one, messages are pushed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import nats  # type: ignore[import-not-found]
from nats.js import api  # type: ignore[import-not-found]

from bench.queue_ends import BATCH, HEAD, LOOPS, Plan, run

KEYS = 10_000
"""Written beside the acknowledgements, where there would be a transaction."""
TIMEOUT = 10.0
BUCKET = "effects"


class Client:
    """See `bench.queue_ends.Broker`."""

    def __init__(self, jetstream: Any, queue: str) -> None:
        self._jetstream = jetstream
        self._queue = queue

    async def send(self, payloads: Sequence[bytes]) -> None:
        """There is no commit of several messages: they are sent without waiting for one another."""
        if len(payloads) == 1:
            await self._jetstream.publish(self._queue, payloads[0], timeout=TIMEOUT)
            return
        promises = [await self._jetstream.publish_async(self._queue, payload) for payload in payloads]
        await asyncio.gather(*promises)

    async def consume(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        if plan.way in ("batches", "asking"):
            loops = LOOPS if plan.way == "batches" else 1
            await asyncio.gather(*(self._pull(plan, handled, acked) for _ in range(loops)))
        else:
            await self._push(plan, handled, acked)

    async def _push(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        bucket = await self._jetstream.key_value(BUCKET) if plan.way == "transaction" else None
        running: set[asyncio.Task[None]] = set()

        async def work(message: Any) -> None:
            handled(message.data)
            if bucket is not None:
                await bucket.put(f"key{HEAD.unpack_from(message.data)[1] % KEYS}", message.data)
            await message.ack_sync(timeout=TIMEOUT)
            acked(1)

        async def start(message: Any) -> None:
            task = asyncio.create_task(work(message))
            running.add(task)
            task.add_done_callback(running.discard)

        await self._jetstream.subscribe(
            plan.queue,
            stream=plan.queue,
            durable="bench",
            cb=start,
            manual_ack=True,
            config=api.ConsumerConfig(
                ack_policy=api.AckPolicy.EXPLICIT, ack_wait=30.0, max_ack_pending=2 * plan.in_flight
            ),
        )
        await asyncio.Event().wait()

    async def _pull(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        pulling = await self._jetstream.pull_subscribe(
            plan.queue,
            stream=plan.queue,
            durable="bench",
            config=api.ConsumerConfig(
                ack_policy=api.AckPolicy.EXPLICIT, ack_wait=30.0, max_ack_pending=2 * plan.in_flight
            ),
        )
        while True:
            with contextlib.suppress(nats.errors.TimeoutError):  # nothing was there
                messages = await pulling.fetch(BATCH, timeout=1.0)
                for message in messages:
                    handled(message.data)
                await asyncio.gather(*(message.ack_sync(timeout=TIMEOUT) for message in messages))
                acked(len(messages))


@contextlib.asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Client]:
    if plan.role == "consumer":
        await _prepare(plan)
    leader = await _leader(plan)
    connection = await nats.connect(plan.servers[leader])
    yield Client(connection.jetstream(timeout=TIMEOUT, publish_async_max_pending=4_096), plan.queue)
    await connection.close()


async def _leader(plan: Plan) -> str:
    async with await nats.connect(list(plan.servers.values())) as connection:
        info = await connection.jetstream(timeout=TIMEOUT).stream_info(plan.queue)
        return str(info.cluster.leader)


async def _prepare(plan: Plan) -> None:
    """Make the stream, without those of earlier runs."""
    async with await nats.connect(list(plan.servers.values())) as connection:
        jetstream = connection.jetstream(timeout=TIMEOUT)
        names = [info.config.name for info in await jetstream.streams_info()]
        for name in names:
            if not name.startswith("KV_"):
                await jetstream.delete_stream(name)
        await jetstream.add_stream(
            name=plan.queue,
            subjects=[plan.queue],
            num_replicas=3,
            storage=api.StorageType.FILE,
            retention=api.RetentionPolicy.WORK_QUEUE,
        )
        if plan.way == "transaction" and f"KV_{BUCKET}" not in names:
            await jetstream.create_key_value(bucket=BUCKET, replicas=3, storage=api.StorageType.FILE)


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(asyncio.CancelledError):
        run(opened, uvloop.run)
