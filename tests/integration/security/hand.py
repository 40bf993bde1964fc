"""What an attacker does with a token of his own and the protocol's frames."""

import contextlib
from typing import Any

import grpc.aio

from kvorum._proto import kvorum_pb2 as pb
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream


def leader_of(cluster: ThreeNodes) -> str:
    """The address of the leader's client port."""
    return cluster.client_address(cluster.leader())


async def hello(stream: RawStream, token: str, session: bytes = b"") -> None:
    await stream.greet(token=token, session=session)


async def opened(stream: RawStream, token: str) -> bytes:
    """Say hello and open a session."""
    await hello(stream, token)
    return await stream.open_session()


async def call(stream: RawStream, number: int, **request: Any) -> pb.QueueReply:
    """Ask for one thing about queues; the answer."""
    await stream.send(pb.ClientFrame(queue_calls=[pb.QueueCall(id=number, **request)]))
    while True:
        for reply in stream.seen.queue_replies:
            if reply.id == number:
                return reply
        assert await stream.next() is not None, f"the stream ended: {stream.seen.error}"


async def consume(stream: RawStream, number: int, queue: str, **more: Any) -> None:
    request = pb.StartConsumer(id=number, queue=queue, credits=10, concurrency=10, **more)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stream.send(pb.ClientFrame(consumers=[request]))


async def settled(stream: RawStream, ping: int) -> pb.ServerFrame:
    """Everything that came until a ping was answered, or the stream ended."""
    with contextlib.suppress(grpc.aio.AioRpcError):  # it has ended
        await stream.send(pb.ClientFrame(ping=ping))
    while stream.seen.pong != ping:
        if await stream.next() is None:
            break
    return stream.seen
