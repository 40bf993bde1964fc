"""Receiving at most once: credits come back whatever becomes of a message, and nothing is leased."""

import asyncio
from collections.abc import Callable
from typing import Any

from kvorum import Kv
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.consumers import ClusterConsumer, Consumers
from kvorum.cluster.counters import Counters
from kvorum.values import encode_payload
from tests.unit.client.fake_backend import FakeBackend

SESSION = bytes(10)


class ClusterLike(FakeBackend):
    """With the consumers of a cluster's client."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Consumers(Counters(), lambda: None, lambda delivery: None)
        self.opened = asyncio.Event()

    async def consume(self, queue: str, *, credits: int, **more: Any) -> ClusterConsumer:  # type: ignore[override]
        more.pop("concurrency")
        deliver: Callable[[pb.Delivery], None] = more.pop("deliver")
        failed = more.pop("failed", None)
        consumer = self.part.start(queue, credits, 1, deliver, failed, **more)
        self.part.fill(pb.ClientFrame(), SESSION, 10)
        self.opened.set()
        return consumer

    def deliver(self, number: int, payload: bytes) -> bytes:
        """Returns the lease id."""
        name = number.to_bytes(12, "big")
        delivery = pb.Delivery(consumer=1, message_id=name, lease_id=name, attempt=1, payload=payload, taken=True)
        self.part.deliveries([delivery], SESSION)
        return name

    def reported(self) -> list[bytes]:
        """What was told the node as begun since the last time."""
        frame = pb.ClientFrame()
        self.part.fill(frame, SESSION, 10)
        return [lease_id for started in frame.started for lease_id in started.lease_ids]


async def test_a_listener_reports_it() -> None:
    backend = ClusterLike()
    kv = Kv(backend, timeout=5.0)
    values: list[object] = []
    stop = asyncio.Event()
    listening = asyncio.ensure_future(
        kv.queue("mail").listen(lambda message: values.append(message.value), at_most_once=True, stop=stop)
    )
    await backend.opened.wait()
    await asyncio.sleep(0)
    bad, good = backend.deliver(1, b"\x00foreign"), backend.deliver(2, encode_payload("a"))
    async with asyncio.timeout(30):
        while not values:  # noqa: ASYNC110
            await asyncio.sleep(0)
    stop.set()
    await listening
    assert sorted(backend.reported()) == [bad, good]
    assert values == ["a"]
    assert backend.writes == [], "there is nothing to settle"
    await kv.close()


async def test_a_receiver_reports_it() -> None:
    backend = ClusterLike()
    kv = Kv(backend, timeout=5.0)
    receiver = kv.queue("mail").receive(at_most_once=True)
    following = asyncio.ensure_future(receiver.next())
    await backend.opened.wait()
    await asyncio.sleep(0)
    bad = backend.deliver(1, b"\x00foreign")
    backend.deliver(2, encode_payload("a"))
    message = await following
    assert message is not None
    assert message.value == "a"
    assert backend.reported() == [bad]
    await receiver.aclose()
    await kv.close()


async def test_a_batch_at_most_once_is_taken_although_a_line_of_leases_lingers(kv: Kv, backend: FakeBackend) -> None:
    queue = kv.queue("mail")
    assert len(await queue.receive_batch(max=1, wait=20)) == 0
    assert [consumer.closed for consumer in backend.consumers] == [False], "it lingers"
    assert len(await queue.receive_batch(max=1, wait=20, at_most_once=True)) == 0
    assert [consumer.take for consumer in backend.consumers] == [False, True]
    await kv.close()
