"""What tests of queues on a fake backend do again and again."""

import asyncio
from typing import Any

import kvorum
from kvorum import Kv
from kvorum._proto import kvorum_pb2 as pb
from tests.unit.client.fake_backend import FakeBackend, FakeConsumer
from tests.unit.client.test_listener import until

ACK, RETRY, REJECT, RETURN = (
    pb.SETTLE_KIND_ACK,
    pb.SETTLE_KIND_RETRY,
    pb.SETTLE_KIND_REJECT,
    pb.SETTLE_KIND_RETURN,
)


async def opened(backend: FakeBackend) -> FakeConsumer:
    """The newest consumer."""
    await until(lambda: bool(backend.consumers))
    return backend.consumers[-1]


async def received(kv: Kv, backend: FakeBackend, **more: Any) -> tuple[kvorum.Message, FakeConsumer]:
    """A message in hand, and its consumer."""
    receiver = kv.queue("mail").receive()
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    consumer.deliver("a", **more)
    message = await waiting
    assert message is not None
    return message, consumer
