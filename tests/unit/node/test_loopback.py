"""A node's session client at its own node."""

import asyncio

from kvorum_node.loopback import LoopbackConnection
from tests.unit.node.harness import Node


async def test_the_nodes_own_account_of_itself_needs_no_socket(node: Node) -> None:
    node.enqueue()
    connection = LoopbackConnection(node.service, "n1", ("127.0.0.1", 1), asyncio.get_running_loop())
    status = await connection.status(1.0)
    assert (status.node_id, status.role, status.applied_index) == ("n1", "leader", node.store.applied_index)
    assert status.statistics["messages"] == 1
    await connection.close()
