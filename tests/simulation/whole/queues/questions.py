"""A client's requests, as the shipped `Requester` makes them, and its answers to requests, in the commit of their
effects."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.link import Link
from kvorum.queues.delivered import Delivered
from kvorum.queues.outgoing import RESERVED
from kvorum.queues.replies import reply_to
from kvorum.queues.requests import Requester
from kvorum.queues.settling import Settler
from kvorum.values import encode_payload
from tests.simulation.whole.queues.answers import key
from tests.simulation.whole.queues.hands import WRITE_TIMEOUT
from tests.simulation.whole.queues.plan import ASKED

if TYPE_CHECKING:
    from tests.simulation.whole.clients import Client

BACKOFF: Final = (20,) * 20
"""Milliseconds between the attempts to handle a request."""


class Questions:
    """Of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._judge = client.judge
        self._answers = client.judge.ledger.answers
        self._consumer: Any = None
        self._link: Link | None = None
        self._requester: Requester | None = None
        self._next = 0

    # ---- asking

    async def ask(self) -> None:
        """Some things at a time; or one, and be gone before the answer comes."""
        rng = self._client.rng
        if rng.random() < 0.15:
            await self._ask_and_go()
            return
        timeouts = [rng.choice((300, 1_000, 2_500)) for _ in range(rng.choice((1, 2, 3)))]
        await asyncio.gather(*(self._ask(timeout) for timeout in timeouts))

    async def insist(self) -> None:
        """Until somebody answers."""
        while True:
            if await self._ask(2_000):
                return
            await asyncio.sleep(0.1)

    async def _ask(self, timeout: int) -> bool:
        """Whether an answer came within so many milliseconds."""
        self._next += 1
        name = f"{self._client.name}.r{self._next}"
        requester = self._opened()
        self._answers.asked(name, self._client.name)
        outcome, answer = "ok", ""
        try:
            answer = await requester.request(ASKED, name, timeout, {"backoff_schedule": BACKOFF})
        except errors.RemoteError as error:
            answer = str(error)
        except errors.KvorumError as error:
            self._judge.note(self._client.name, f"request {name} {error.outcome}: {error}")
            outcome = error.outcome or "unknown"
        self._answers.told(name, outcome, answer)
        if requester._inbox:
            self._answers.inbox(requester._inbox, self._client.name)
        return outcome == "ok"

    async def _ask_and_go(self) -> None:
        """By hand: its inbox is nobody's."""
        self._next += 1
        name = f"{self._client.name}.r{self._next}"
        self._answers.asked(name, self._client.name)
        headers = pb.Headers(reply_to=f"{RESERVED}reply/{name}", correlation=b"nobody's")
        message = pb.Enqueue(
            queue=ASKED,
            payload=encode_payload(name),
            ttl_ms=1_000,
            headers=headers.SerializeToString(),
            backoff=pb.Backoff(delays_ms=BACKOFF),
        )
        outcome = "unknown"
        try:
            op = pb.AtomicWrite(enqueues=[message]).SerializeToString()
            await self._client.backend.write(op, timeout=WRITE_TIMEOUT)  # type: ignore[union-attr]
        except errors.KvorumError as error:
            outcome = error.outcome or outcome
        self._answers.told(name, outcome)

    def _opened(self) -> Requester:
        """Of the client's connection, which is another one if it could not be opened at first."""
        backend = self._client.backend
        assert backend is not None
        if self._requester is None or self._link is None or self._link.backend is not backend:
            self._link = Link(backend, WRITE_TIMEOUT)
            self._requester = Requester(self._link, Settler(backend, WRITE_TIMEOUT))
        return self._requester

    # ---- answering

    async def open(self) -> None:
        """Consume requests."""
        self._consumer = await self._client.backend.consume(  # type: ignore[union-attr]
            ASKED, credits=4, concurrency=3, deliver=self._deliver
        )

    def _deliver(self, delivery: pb.Delivery) -> None:
        self._client.handling += 1
        self._client.spawn(partial(self._handle, delivery))

    async def _handle(self, delivery: pb.Delivery) -> None:
        op = self._verdict(delivery)
        self._consumer.started(delivery.lease_id)
        await asyncio.sleep(self._client.rng.uniform(0.0, 0.2))
        await self._settle(op)
        self._consumer.settled(delivery.lease_id)
        self._client.handling -= 1

    def _verdict(self, delivery: pb.Delivery) -> bytes:
        """The answer to a request is its name, be it as a value or as an error."""
        op = pb.AtomicWrite()
        settle = op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_ACK)
        how = self._client.rng.choices(("value", "error", "retry"), (6, 2, 2))[0]
        if how == "retry":
            settle.kind, settle.delay_ms = pb.SETTLE_KIND_RETRY, 50
            return op.SerializeToString()
        hold: Any = None
        request = Delivered(delivery, hold)
        request.settled = True  # by this write, of which it knows nothing
        op.mutations.add(
            key=key(request.value),
            type=pb.MUTATION_TYPE_SUM,
            value=(1).to_bytes(8, "little"),
            encoding=pb.VALUE_ENCODING_LE64,
        )
        name = request.value
        answer = reply_to(request, encode_payload(name if how == "value" else None), None if how == "value" else name)
        self._answers.inbox(answer.queue)
        op.enqueues.append(answer)
        return op.SerializeToString()

    async def _settle(self, op: bytes) -> None:
        """Until it is answered: judged by its lease alone, it may be asked again."""
        while True:
            try:
                answer = await self._client.backend.write(op, timeout=WRITE_TIMEOUT)  # type: ignore[union-attr]
            except errors.Closed:
                return
            except errors.KvorumError:
                await asyncio.sleep(0.05)
                continue
            break
        outcome = answer.result.outcome
        self._judge.counters["stale answers"] += outcome == pb.OUTCOME_STALE_LEASE
        if outcome not in (pb.OUTCOME_DONE, pb.OUTCOME_STALE_LEASE):
            self._judge.broken(f"an answer was answered with outcome {outcome}: {answer.result.message}")
