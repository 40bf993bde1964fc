"""The server's care for its connections."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api.server import ApiServer
from kvorum_node.service import NodeService, ServiceSettings
from kvorum_node.slow import SlowLog
from kvorum_node.unread import Unread

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def _idle_service() -> NodeService:
    def on_leader(listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def behind(patience: float) -> str:
        return ""

    idle: Any = SimpleNamespace(
        leader=pb.Leader(node_id="n1"),
        settings=ServiceSettings(),
        on_leader=on_leader,
        unreadable=str,
        behind=behind,
        slow=SlowLog(0.0, float),
        tracing=None,
        unread=Unread(1 << 30, asyncio.get_running_loop()),
    )
    return cast("NodeService", idle)


async def test_a_client_that_answers_no_ping_is_cut_off() -> None:
    """As one that is frozen: the kernel still takes what is sent to it, so nothing else tells."""
    server = ApiServer(_idle_service(), "n1", "127.0.0.1:0", keepalive=0.3)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + SETTINGS)
        async with asyncio.timeout(30):
            assert await reader.read(), "the server said nothing at all"
            await reader.read(-1)
        writer.close()
    finally:
        await server.stop()
