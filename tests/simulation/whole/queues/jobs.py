"""A client's consumer of the queue of jobs, whose messages are written to a key where they cannot be delivered."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from tests.simulation.whole.queues.hands import WRITE_TIMEOUT

if TYPE_CHECKING:
    from tests.simulation.whole.clients import Client

QUEUE: Final = "jobs"


class Jobs:
    """Of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._consumer: Any = None

    async def open(self) -> None:
        """Consume it."""
        self._consumer = await self._client.backend.consume(  # type: ignore[union-attr]
            QUEUE, credits=4, concurrency=2, deliver=self._deliver
        )

    def _deliver(self, delivery: pb.Delivery) -> None:
        self._client.handling += 1
        self._client.spawn(partial(self._handle, delivery))

    async def _handle(self, delivery: pb.Delivery) -> None:
        rng, judge = self._client.rng, self._client.judge
        name = delivery.payload.rpartition(b" ")[0]
        kind = rng.choices((pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_RETURN), (8, 1, 1))[0]
        op = pb.AtomicWrite()
        settle = op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind)
        if kind == pb.SETTLE_KIND_RETRY:
            settle.delay_ms = 50
        if kind == pb.SETTLE_KIND_ACK:
            op.mutations.add(
                key=b"h/" + name,
                type=pb.MUTATION_TYPE_SUM,
                value=(1).to_bytes(8, "little"),
                encoding=pb.VALUE_ENCODING_LE64,
            )
        if kind != pb.SETTLE_KIND_RETURN:
            self._consumer.started(delivery.lease_id)
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        judge.counters["deliveries"] += 1
        judge.counters["redeliveries"] += delivery.attempt > 1
        await self._settle(delivery, op)
        self._consumer.settled(delivery.lease_id)
        self._client.handling -= 1

    async def _settle(self, delivery: pb.Delivery, op: pb.AtomicWrite) -> None:
        judge = self._client.judge
        while True:
            try:
                result = await self._client.backend.write(  # type: ignore[union-attr]
                    op.SerializeToString(), timeout=WRITE_TIMEOUT
                )
            except errors.Closed:
                return
            except errors.KvorumError:
                # Judged by its lease alone, it may be asked again: it was applied at most once.
                judge.counters["settles repeated"] += 1
                await asyncio.sleep(0.05)
                continue
            break
        outcome = result.result.outcome
        judge.counters["settles stale" if outcome == pb.OUTCOME_STALE_LEASE else "settles"] += 1
        index = int.from_bytes(result.versionstamp[:8], "big")
        if outcome == pb.OUTCOME_DONE and judge.ended.get(delivery.lease_id) != index:
            judge.broken(f"entry {index} carried out a settle that named another lease than the current one")
        if outcome not in (pb.OUTCOME_DONE, pb.OUTCOME_STALE_LEASE):
            judge.broken(f"a settle was answered with outcome {outcome}: {result.result.message}")
