"""One TCP connection between two nodes, from either end: handshake, frames, bounds.

The dialling side speaks first and is afterwards the only one that sends; the accepting side answers the handshake and
listens. So each pair of nodes has one connection for each direction, neither has to be chosen, and a broken one says
something about one direction only.

With TLS the other side's certificate names its node, and what a hello says must agree with it: whoever has one node's
key cannot speak for another. The dialling side looks before it says anything.

The handshake agrees on the newest protocol version that both sides speak; it is kept per connection, for a program that
speaks more than one.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from kvorum_raft import identity as ids
from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ProtocolError
from kvorum_raft.tls import node_name, node_names
from kvorum_raft.tls_port import reason

_USER_TIMEOUT_MS: Final = 5000
_TLS: Final = b"\x16\x03"
"""How TLS begins. As the begin of a frame it would be one of 369 MB."""


class Host(Protocol):
    """What a connection needs of the transport."""

    @property
    def max_frame(self) -> int: ...

    @property
    def handshake_timeout(self) -> float: ...

    @property
    def max_out_buffer(self) -> int: ...

    def hello(self, target: str) -> pb.Hello: ...

    def admit(self, hello: pb.Hello, done: Callable[[pb.Reject | None], None], *, dialled: bool) -> None: ...

    def inbound_open(self, connection: "Inbound") -> None: ...

    def inbound_made(self, connection: "Inbound") -> bool:
        """False if too many connections have not said who they are."""
        ...

    def inbound_lost(self, connection: "Inbound") -> None: ...

    def outbound_open(self, connection: "Outbound", hello: pb.Hello) -> None: ...

    def outbound_lost(self, connection: "Outbound") -> None: ...

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None: ...

    def received(self, connection: "Inbound", envelope: pb.Envelope, size: int) -> None: ...

    def bad_input(self, where: str, error: ProtocolError) -> None: ...

    def wrong_name(self, where: str, text: str) -> None:
        """A certificate names another node than the one that speaks."""
        ...

    def tls_failed(self, where: str, text: str) -> None: ...


def _protocols(hello: pb.Hello) -> tuple[int, int]:
    return hello.protocol_min, hello.protocol_max


class Connection(asyncio.Protocol):
    """What both ends share."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reader = wire.FrameReader(wire.MAX_HELLO)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.where = "?"
        self.is_open = False
        self.hello: pb.Hello | None = None
        """What the other side said of itself."""
        self.protocol = 0
        """Version that both sides speak; 0 before they have agreed."""
        self._names: frozenset[str] | None = None
        """Nodes that the other side's certificate names; None without TLS."""

    @property
    def is_clear(self) -> bool:
        """Without TLS."""
        return self._names is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # not isinstance: uvloop's transports have the methods of asyncio.Transport, but do not inherit from it
        self._transport = cast("asyncio.Transport", transport)
        self.where = str(transport.get_extra_info("peername"))
        if transport.get_extra_info("ssl_object") is not None:
            self._names = node_names(transport.get_extra_info("peercert"))
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A connection that still seems open to a process that is gone keeps its successor out (transport.admit).
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        self._timer = asyncio.get_running_loop().call_later(self._host.handshake_timeout, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_open = False
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._received(wire.decode(frame), len(frame))
                if self._transport is None or self._transport.is_closing():
                    return
        except ProtocolError as error:
            if self._names is None and self.hello is None and data.startswith(_TLS):
                text = "it speaks TLS, and this node does not: peer_cert, peer_key and peer_ca are not set"
                self._host.bad_input(self.where, ProtocolError(text))
            else:
                self._host.bad_input(self.where, error)
            self.abort()

    def _received(self, envelope: pb.Envelope, size: int) -> None:
        raise NotImplementedError

    def _is_named(self, node_id: str) -> bool:
        """Whether the other side may speak for that node. If not, the connection is cut."""
        if self._names is None or node_name(node_id) in self._names:
            return True
        shown = ", ".join(sorted(self._names)) or "no node"
        self._host.wrong_name(
            self.where, f"the certificate of whoever speaks for node {node_id[:128]!r} names {shown[:500]}"
        )
        self.abort()
        return False

    def _opened(self) -> None:
        self._stop_timer()
        self.is_open = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self._host.bad_input(self.where, ProtocolError("no handshake in time"))
        self.abort()

    def write(self, envelope: pb.Envelope) -> int:
        """Bytes queued; 0 if the connection is gone or its buffer is full (then it is closed: what it lost can be sent
        again)."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        if transport.get_write_buffer_size() > self._host.max_out_buffer:
            transport.abort()
            return 0
        frame = wire.encode(envelope)
        transport.write(frame)
        return len(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Inbound(Connection):
    """A peer that dialled us."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._host.inbound_made(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._host.inbound_lost(self)

    def _received(self, envelope: pb.Envelope, size: int) -> None:
        if self.is_open:
            self._host.received(self, envelope, size)
            return
        if self.hello is not None or envelope.WhichOneof("body") != "hello":
            raise ProtocolError("a peer that does not begin with one hello")
        if not self._is_named(envelope.hello.node_id):
            return
        self.hello = envelope.hello
        self._host.admit(envelope.hello, self._judged, dialled=False)

    def _judged(self, reject: pb.Reject | None) -> None:
        assert self.hello is not None
        if self._transport is None:
            return
        if reject is not None:
            self.write(pb.Envelope(reject=reject))
            self.close()
            return
        own = self._host.hello("")
        self.protocol = ids.negotiated(_protocols(own), self.hello) or 0
        welcome = pb.Envelope(welcome=pb.Welcome(protocol=self.protocol, hello=own))
        if self.hello.meeting:
            self.write(welcome)
            self.close()
            return
        self._opened()
        self._reader.limit = self._host.max_frame
        self.write(welcome)
        self._host.inbound_open(self)


class Dialled(Connection):
    """Our side of a connection that we made, up to the other's answer. `ended` resolves when the connection is gone,
    with True if it had been open."""

    def __init__(self, host: Host, node_id: str, *, meeting: bool = False) -> None:
        super().__init__(host)
        self.node_id = node_id
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_refused = False
        """The other side ended it without a word. That is what becomes of TLS with somebody who does not accept our
        certificate: with TLS 1.3 our handshake is done before the other side has judged it."""
        self._is_answered = self._is_given_up = False
        self._meeting = meeting

    def abort(self) -> None:
        self._is_given_up = True
        super().abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._is_named(self.node_id):
            return
        hello = self._host.hello(self.node_id)
        hello.meeting = self._meeting
        self.write(pb.Envelope(hello=hello))

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self.is_open
        super().connection_lost(exc)
        self.is_refused = not (self._is_answered or self._is_given_up)
        if isinstance(exc, ssl.SSLError) and self.hello is None:
            self._host.tls_failed(self.where, reason(exc))
        if was_open:
            self._lost()
        if not self.ended.done():
            self.ended.set_result(was_open)

    def _received(self, envelope: pb.Envelope, size: int) -> None:
        self._is_answered = True
        body = envelope.WhichOneof("body")
        if body == "reject":
            self._rejected(envelope.reject)
            self.close()
        elif body != "welcome" or self.hello is not None:
            raise ProtocolError("an answer to a hello that is neither a welcome nor a reject")
        elif envelope.welcome.hello.node_id != self.node_id:
            raise ProtocolError(
                f"the address of node {self.node_id} leads to node {envelope.welcome.hello.node_id[:128]!r}"
            )
        else:
            welcome = envelope.welcome
            agreed = ids.negotiated(_protocols(self._host.hello("")), welcome.hello)
            if agreed is not None and welcome.protocol != agreed:
                raise ProtocolError(f"a welcome in protocol {welcome.protocol}; version {agreed} is what both speak")
            self.hello, self.protocol = welcome.hello, agreed or 0
            self._welcomed(welcome.hello)

    def _welcomed(self, hello: pb.Hello) -> None:
        raise NotImplementedError

    def _rejected(self, reject: pb.Reject) -> None:
        raise NotImplementedError

    def _lost(self) -> None:
        """It had been open."""


class Outbound(Dialled):
    """A peer that we dialled."""

    def _lost(self) -> None:
        self._host.outbound_lost(self)

    def _rejected(self, reject: pb.Reject) -> None:
        self._host.rejected_by(self.node_id, reject)

    def _welcomed(self, hello: pb.Hello) -> None:
        self._host.admit(hello, self._judged, dialled=True)

    def _judged(self, reject: pb.Reject | None) -> None:
        if self._transport is None or self.hello is None:
            return
        if reject is not None:
            self.close()
            return
        self._opened()
        self._host.outbound_open(self, self.hello)


class Meeting(Dialled):
    """Asks who is at an address, and nothing else. `answer` resolves with the other's hello or its reject."""

    def __init__(self, host: Host, node_id: str) -> None:
        super().__init__(host, node_id, meeting=True)
        self.answer: asyncio.Future[pb.Hello | pb.Reject] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.answer.done():
            self.answer.set_exception(ProtocolError("no kvorum node of that id answers there"))

    def _rejected(self, reject: pb.Reject) -> None:
        if not self.answer.done():
            self.answer.set_result(reject)

    def _welcomed(self, hello: pb.Hello) -> None:
        if not self.answer.done():
            self.answer.set_result(hello)
        self.close()
