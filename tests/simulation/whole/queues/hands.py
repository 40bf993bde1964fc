"""A client's consumers: each message that comes is acknowledged together with its effect, or something else is done
with it, and what became of that is written down."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.queues.history import Settle, Verdict
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from tests.simulation.whole.queues.plan import BRIEF, LEASE, LINES, Line

if TYPE_CHECKING:
    from tests.simulation.whole.clients import Client

WRITE_TIMEOUT = 3.0
_KINDS: dict[Verdict, "pb.SettleKind"] = {
    "ack": pb.SETTLE_KIND_ACK,
    "retry": pb.SETTLE_KIND_RETRY,
    "reject": pb.SETTLE_KIND_REJECT,
    "return": pb.SETTLE_KIND_RETURN,
    "extend": pb.SETTLE_KIND_EXTEND,
}


class Hands:
    """Of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._judge = client.judge
        self._rng = client.rng
        self._consumers: dict[Line, Any] = {}
        self._under_way: dict[int, Settle] = {}
        """Verdicts that nobody has answered yet."""
        self._last = 0

    async def open(self) -> None:
        """Consume everything."""
        for line in LINES:
            self._consumers[line] = await self._client.backend.consume(  # type: ignore[union-attr]
                line.queue,
                credits=line.credits,
                concurrency=line.concurrency,
                deliver=partial(self._deliver, line),
                take=line.take,
                expiring=line.expiring,
            )

    def die(self) -> None:
        """Nobody will ever know."""
        for settle in self._under_way.values():
            self._judge.ledger.settled(settle)

    def _deliver(self, line: Line, delivery: pb.Delivery) -> None:
        self._judge.ledger.handed(delivery.lease_id.hex(), self._client.name)
        self._client.handling += 1
        self._client.spawn(partial(self._handle, line, delivery))

    async def _handle(self, line: Line, delivery: pb.Delivery) -> None:
        try:
            await self._work(line, delivery)
        finally:
            self._client.handling -= 1

    async def _work(self, line: Line, delivery: pb.Delivery) -> None:
        client, rng, consumer = self._client, self._rng, self._consumers[line]
        lease = delivery.lease_id
        # What dies in "work" is there to be requeued.
        rejects = {"rows": 3, BRIEF: 3, "work": 2}.get(line.queue, 1)
        verdict: Verdict = rng.choices(("ack", "retry", "reject", "return"), (18, 3, rejects, 1))[0]
        if not client.working and verdict == "return":
            verdict = "ack"
        if line.take:
            consumer.started(lease)
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            consumer.settled(lease)
            return
        if verdict != "return":
            consumer.started(lease)
            await asyncio.sleep(rng.uniform(0.0, 0.15))
            if line.expiring and client.working and rng.random() < 0.4:
                await self._linger(delivery)
        delay = rng.choice((None, 0, 60)) if verdict == "retry" else None
        await self._settle(delivery, verdict, delay)
        consumer.settled(lease)

    async def _linger(self, delivery: pb.Delivery) -> None:
        """For longer than the lease, extending it or not."""
        if self._rng.random() < 0.5:
            self._judge.counters["leases overstayed"] += 1
            await asyncio.sleep(LEASE / 1000 * self._rng.uniform(0.9, 2.0))
            return
        for _ in range(self._rng.randrange(1, 3)):
            await self._settle(delivery, "extend", self._rng.choice((None, 600)), once=True)
            await asyncio.sleep(LEASE / 1000 * self._rng.uniform(0.5, 0.8))

    async def _settle(self, delivery: pb.Delivery, verdict: Verdict, delay: int | None, *, once: bool = False) -> None:
        """Until it is answered: judged by its lease alone, it may be asked again. `once`: or not."""
        op = pb.AtomicWrite()
        settle = op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=_KINDS[verdict])
        if verdict in ("retry", "reject"):
            settle.reason = "it was so"
        if delay is not None:
            settle.delay_ms = delay
        if verdict == "ack":
            op.mutations.add(
                key=f"e/{delivery.message_id.hex()}".encode(),
                type=pb.MUTATION_TYPE_SUM,
                value=(1).to_bytes(8, "little"),
                encoding=pb.VALUE_ENCODING_LE64,
            )
        data = op.SerializeToString()
        self._last += 1
        number, invoked = self._last, self._client.now()
        self._under_way[number] = asked = Settle(delivery.lease_id.hex(), verdict, invoked, None, "unknown", "", delay)
        doubtful = False
        while True:
            try:
                answer = await self._client.backend.write(data, timeout=WRITE_TIMEOUT)  # type: ignore[union-attr]
            except errors.Closed:
                break
            except errors.KvorumError as error:
                self._judge.counters["queue settles repeated"] += 1
                doubtful |= error.outcome != "not applied"
                if once:
                    break
                if isinstance(error, errors.InvalidArgument):
                    self._judge.broken(f"client {self._client.name}: a {verdict} was refused for good: {error}")
                    break
                await asyncio.sleep(0.05)
                continue
            answered = self._answered(asked, answer)
            if answered.outcome != "stale" or not doubtful:  # else it may be stale because an earlier try was obeyed
                asked = answered
            break
        del self._under_way[number]
        self._judge.ledger.settled(asked)

    def _answered(self, asked: Settle, answer: WriteOutcome) -> Settle:
        outcome = answer.result.outcome
        if outcome == pb.OUTCOME_DONE:
            self._judge.counters[f"queue {asked.verdict}"] += 1
            stamp = answer.versionstamp.hex()
            return Settle(asked.lease, asked.verdict, asked.invoked, self._client.now(), "ok", stamp, asked.delay)
        if outcome != pb.OUTCOME_STALE_LEASE:
            self._judge.broken(f"a {asked.verdict} was answered with outcome {outcome}: {answer.result.message}")
        return Settle(asked.lease, asked.verdict, asked.invoked, self._client.now(), "stale", "", asked.delay)
