"""Something answers at the address, and it is not the port for clients."""

import asyncio

import grpc.aio
import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import connect
from tests.pace import Pace
from tests.unit.cluster.fake_node import FakeNode, FakeState, put
from tests.unit.cluster.steps import value


async def test_a_port_that_is_not_the_clients_is_told_apart() -> None:
    """gRPC without our service is given up at once; what closes the connection may be a node that is just ending."""
    strange = grpc.aio.server()
    port = strange.add_insecure_port("127.0.0.1:0")
    await strange.start()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)  # what is left unread makes the system send a reset, which may overtake everything
        writer.close()

    closing = await asyncio.start_server(close, "127.0.0.1", 0)
    try:
        pace = Pace()
        with pytest.raises(errors.WrongCluster, match="does not look like the client port"):
            await connect([("127.0.0.1", port)], timeout=5)
        assert pace.seconds() < 2
        with pytest.raises(errors.ConnectFailed, match="closed at once: if that lasts, this does not look like the"):
            await connect([("127.0.0.1", closing.sockets[0].getsockname()[1])], timeout=1.5)
    finally:
        closing.close()
        await closing.wait_closed()
        await strange.stop(None)


async def test_a_stranger_in_a_nodes_place_is_not_final_for_a_client_that_was_connected(
    state: FakeState, nodes: list[FakeNode]
) -> None:
    """Say a proxy that answers 404 while it knows no node: the client waits for the node."""
    (node, *others) = nodes
    for other in others:
        await other.kill()
    backend = await connect([node.target], timeout=5)
    await backend.write(put(b"k"), timeout=5)
    await node.kill()
    strange = grpc.aio.server()
    strange.add_insecure_port(f"127.0.0.1:{node.port}")
    await strange.start()
    try:
        told = ""
        async with asyncio.timeout(30):
            # What is told first may still be how the node itself was lost.
            while "does not look like the client port" not in told:
                with pytest.raises(errors.DeadlineExceeded) as caught:
                    await backend.read(pb.Read(keys=[b"k"]), timeout=1)
                told = str(caught.value)
    finally:
        await strange.stop(None)
    await node.start()
    await value(backend, b"k")
    await backend.close()
