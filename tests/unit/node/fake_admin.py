"""A node's API server over a made-up cluster: as much of a service as the Admin methods look at."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.access import Access
from kvorum_node.api.server import ApiServer
from kvorum_node.service import NodeService, ServiceSettings
from kvorum_node.slow import SlowLog
from kvorum_node.store import Store
from kvorum_node.store.auth import NONE
from kvorum_node.unread import Unread
from kvorum_raft.seams import Member, PeerView, Status

CLUSTER = bytes(range(16))


class FakeAdministration:
    """`kvorum_raft.seams.Administration` that notes what was asked and fails as told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.failures: list[Exception] = []
        """Raised by the next calls, in order."""
        self.on_call: Callable[[str], None] = lambda what: None
        self.transferred_to = "n2"

    async def add(self, member: Member) -> None:
        self._take("add", member)

    async def promote(self, node_id: str) -> None:
        self._take("promote", node_id)

    async def remove(self, node_id: str) -> None:
        self._take("remove", node_id)

    async def replace(self, member: Member) -> None:
        self._take("replace", member)

    async def transfer(self, node_id: str | None = None) -> str:
        self._take("transfer", node_id)
        return node_id or self.transferred_to

    async def set_time(self, unix_ms: int) -> None:
        self._take("set_time", unix_ms)

    def _take(self, *asked: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.asked.append(asked)
        self.on_call(asked[0])


class _Service:
    """What the server and the Admin methods read of a service."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self.settings = ServiceSettings()
        self.slow = SlowLog(0.0, float)
        self.tracing = None
        self.consensus = SimpleNamespace(status=node.status)
        self.store = SimpleNamespace(cluster_id=node.cluster, auth=NONE)
        self.access = Access(cast("Store", self.store), asyncio.get_running_loop(), lambda: 0)
        self.unread = Unread(1 << 30, asyncio.get_running_loop())

    @property
    def leader(self) -> pb.Leader:
        return self._node.leader()

    def unreadable(self) -> str:
        return ""

    async def behind(self, patience: float) -> str:
        return ""

    def no_space(self) -> str:
        return self._node.no_space

    def on_leader(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class FakeNode:
    """One node of a cluster: `async with FakeNode("n1") as node`. It leads unless `leader` names another one."""

    def __init__(
        self,
        node_id: str,
        *,
        peers: tuple[PeerView, ...] = (),
        leader: Member | None = None,
        cluster: bytes = CLUSTER,
    ) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.peers = peers
        self.other_leader = leader
        self.leaderless = False
        self.advertised = ""
        """What it tells as its address, if not that at which it listens."""
        self.no_space = ""
        self.last_index = 1_000
        self.on_status: Callable[[], None] = lambda: None
        """Before each look at it; what it raises is what the caller gets."""
        self.administration = FakeAdministration()
        self.server = ApiServer(
            cast("NodeService", _Service(self)), node_id, "127.0.0.1:0", administration=self.administration
        )

    async def __aenter__(self) -> "FakeNode":
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def member(self) -> Member:
        return Member(self.node_id, f"{self.node_id}.example:7403", self.advertised or self.address)

    @property
    def leads(self) -> bool:
        return self.other_leader is None and not self.leaderless

    def _known_leader(self) -> Member | None:
        if self.leaderless:
            return None
        return self.other_leader or self.member

    def leader(self) -> pb.Leader:
        leader = self._known_leader()
        if leader is None:
            return pb.Leader(term=7)
        return pb.Leader(node_id=leader.node_id, address=leader.client_address, term=7)

    def status(self) -> Status:
        self.on_status()
        return Status(
            self.node_id,
            self.cluster,
            "leader" if self.leads else "follower",
            7,
            self._known_leader(),
            self.last_index,
            self.last_index,
            self.last_index,
            self.last_index,
            peers=self.peers,
            own=self.member,
        )
