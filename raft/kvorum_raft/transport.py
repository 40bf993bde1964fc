"""The peers' connections: a server for those who dial us, one dialler for each of the others."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig, split_address
from kvorum_raft.connection import Inbound, Outbound
from kvorum_raft.errors import ConfigurationError, ProtocolError
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Member

_log = logging.getLogger("kvorum.raft")


class Owner(Protocol):
    """The node that the transport works for."""

    def hello(self, target: str) -> pb.Hello: ...

    def admit(self, hello: pb.Hello, done: Callable[[pb.Reject | None], None]) -> None:
        """Judge a peer; `done` is called when the answer is durable."""
        ...

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None: ...

    def peer_connected(self, node: Node, hello: pb.Hello) -> None: ...

    def peer_disconnected(self, node: Node) -> None: ...

    def received(self, node: Node, incarnation: bytes, envelope: pb.Envelope) -> None:
        """Raises ProtocolError to have the connection closed."""
        ...


@dataclass(slots=True)
class _Peer:
    member: Member
    node: Node
    retry: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    outbound: Outbound | None = None
    inbound: Inbound | None = None


class PeerTransport(Transport):  # type: ignore[misc]  # PySyncObj is untyped
    """PySyncObj's Transport over asyncio. `send` never blocks; a peer that does not read loses its connection, and
    nobody else waits for it."""

    def __init__(self, config: RaftConfig, owner: Owner, rng: random.Random) -> None:
        super().__init__(None, Node(config.node_id), [])
        self._config = config
        self._owner = owner
        self._rng = rng
        self._peers = {member.node_id: _Peer(member, Node(member.node_id)) for member in config.peers}
        self._server: asyncio.Server | None = None
        self._strangers: set[Inbound] = set()
        self._quiet: QuietLog | None = None
        self._closed = False
        self.counters = dict.fromkeys(
            ("frames_in", "frames_out", "bytes_in", "bytes_out", "bad_inputs", "rejects", "connects", "disconnects"), 0
        )

    # -- life

    async def start(self) -> None:
        """Bind and begin to dial. Raises ConfigurationError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._quiet = QuietLog(_log, loop.time)
        address = self._config.listen or self._config.own.peer_address
        host, port = split_address(address)
        try:
            self._server = await loop.create_server(
                lambda: Inbound(self), host or None, port, ssl=self._config.server_tls, backlog=128
            )
        except OSError as error:
            raise ConfigurationError(f"cannot listen for peers on {address}: {error.strerror or error}") from error
        for peer in self._peers.values():
            peer.task = loop.create_task(self._dial(peer), name=f"kvorum-dial-{peer.member.node_id}")

    async def stop(self) -> None:
        """Close everything; callbacks end."""
        self.destroy()
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def destroy(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for peer in self._peers.values():
            if peer.task is not None:
                peer.task.cancel()
            for connection in (peer.outbound, peer.inbound):
                if connection is not None:
                    connection.close()
        for stranger in list(self._strangers):
            stranger.abort()

    async def _dial(self, peer: _Peer) -> None:
        timing, delay = self._config.timing, self._config.timing.reconnect_min
        host, port = split_address(peer.member.peer_address)
        while not self._closed:
            peer.retry.clear()
            opened = await self._connect(peer, host, port, self._config.client_tls)
            delay = timing.reconnect_min if opened else min(delay * 2, timing.reconnect_max)
            try:
                async with asyncio.timeout(delay * self._rng.uniform(0.5, 1.0)):
                    await peer.retry.wait()
            except TimeoutError:
                continue

    async def _connect(self, peer: _Peer, host: str, port: int, tls: ssl.SSLContext | None) -> bool:
        """True if the connection had been open."""
        outbound = Outbound(self, peer.member.node_id)
        try:
            async with asyncio.timeout(self.handshake_timeout):
                await asyncio.get_running_loop().create_connection(lambda: outbound, host, port, ssl=tls)
        except (OSError, TimeoutError, UnicodeError):  # a name that cannot be one is as good as an unknown one
            return False
        try:
            return await outbound.ended
        finally:
            outbound.abort()

    # -- PySyncObj's contract

    def send(self, node: Node, message: pb.Envelope) -> bool:
        peer = self._peers.get(node.id)
        if peer is None or peer.outbound is None:
            return False
        size = peer.outbound.write(message)
        self.counters["frames_out"] += size > 0
        self.counters["bytes_out"] += size
        return size > 0

    def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:
        """Utility messages let anybody who reaches the port administrate the library: there are none here."""

    def is_connected(self, node_id: str) -> bool:
        peer = self._peers.get(node_id)
        return peer is not None and peer.outbound is not None

    def deliver(self, node: Node, envelope: pb.Envelope) -> None:
        """To the core."""
        self._onMessageReceived(node, envelope)

    # -- what connections ask and report (connection.Host)

    @property
    def max_frame(self) -> int:
        return self._config.max_frame

    @property
    def handshake_timeout(self) -> float:
        return self._config.timing.handshake

    @property
    def max_out_buffer(self) -> int:
        return self._config.limits.out_buffer

    def hello(self, target: str) -> pb.Hello:
        return self._owner.hello(target)

    def admit(self, hello: pb.Hello, done: Callable[[pb.Reject | None], None]) -> None:
        def judged(reject: pb.Reject | None) -> None:
            if reject is not None:
                self.counters["rejects"] += 1
                self._warn(f"reject {pb.Reject.Code.Name(reject.code)}", f"refused a peer: {reject.text}")
            done(reject)

        self._owner.admit(hello, judged)

    def inbound_made(self, connection: Inbound) -> bool:
        if self._closed or len(self._strangers) >= self._config.limits.handshakes:
            return False
        self._strangers.add(connection)
        return True

    def inbound_open(self, connection: Inbound) -> None:
        assert connection.hello is not None
        self._strangers.discard(connection)
        peer = self._peers.get(connection.hello.node_id)
        if peer is None or self._closed:
            connection.abort()
            return
        if peer.inbound is not None:
            peer.inbound.abort()
        peer.inbound = connection
        peer.retry.set()  # it lives: dial it now, if we wait to do so

    def inbound_lost(self, connection: Inbound) -> None:
        self._strangers.discard(connection)
        peer = self._peers.get(connection.hello.node_id) if connection.hello is not None else None
        if peer is not None and peer.inbound is connection:
            peer.inbound = None

    def outbound_open(self, connection: Outbound, hello: pb.Hello) -> None:
        peer = self._peers[connection.node_id]
        peer.outbound = connection
        self.counters["connects"] += 1
        self._owner.peer_connected(peer.node, hello)

    def outbound_lost(self, connection: Outbound) -> None:
        peer = self._peers[connection.node_id]
        if peer.outbound is connection:
            peer.outbound = None
            self.counters["disconnects"] += 1
            if not self._closed:
                self._owner.peer_disconnected(peer.node)

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None:
        reject.text = " ".join(reject.text[:500].split())  # it goes to the operator as one line
        self._warn(f"rejected {node_id}", f"node {node_id} refuses this node: {reject.text}")
        self._owner.rejected_by(node_id, reject)

    def received(self, connection: Inbound, envelope: pb.Envelope, size: int) -> None:
        assert connection.hello is not None
        peer = self._peers.get(connection.hello.node_id)
        if peer is None or peer.inbound is not connection:
            return
        self.counters["frames_in"] += 1
        self.counters["bytes_in"] += size
        self._owner.received(peer.node, connection.hello.incarnation, envelope)

    def bad_input(self, where: str, error: ProtocolError) -> None:
        self.counters["bad_inputs"] += 1
        self._warn("bad input", f"closed a connection with {where} on the peer port: {error}")

    def _warn(self, key: str, text: str) -> None:
        if self._quiet is not None:
            self._quiet.warning(key, text)
