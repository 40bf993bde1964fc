"""The peers' connections: a server for those who dial us, one dialler for each of the others.

Whom we dial: the members of the configuration in force (the configuration file's as long as there is none), and
*guests*, nodes of this cluster that dialled us though we do not know them as members. A guest is called back at the
address that it names, because answers travel over a connection of our own. There is a bound on guests, and a silent one
is forgotten. A member that leaves the configuration becomes a guest at first: the change may not be committed yet, and
it may even be the leader that commits its own removal.

A peer has several addresses to try, in turn: where it says itself that it listens, then the configuration's, then the
file's. The names of peers are node ids, and a name has one folder at a time: while an old and a new folder of the same
node both call, the newer call wins, and keeps the name for some elections' time, so that it can get its answers.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig, split_address
from kvorum_raft.connection import Inbound, Meeting, Outbound
from kvorum_raft.errors import ConfigurationError, ProtocolError, Refused
from kvorum_raft.identity import GENERATION_ID_SIZE
from kvorum_raft.peer import Peer
from kvorum_raft.peer_security import PeerSecurity, is_without_handshake
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Member
from kvorum_raft.tls_port import TlsPort, reason

_HOLD_ELECTIONS: Final = 3
"""A folder that took a name over keeps it for this many longest election timeouts."""
_SILENT: Final = 10.0
"""A guest that said nothing for so many seconds makes room for another one."""
_BACKLOG: Final = 128
_log = logging.getLogger("kvorum.raft")
_Done = Callable[[pb.Reject | None], None]


class Owner(Protocol):
    """The node that the transport works for."""

    def hello(self, target: str) -> pb.Hello: ...

    def admit(self, hello: pb.Hello, done: _Done) -> None:
        """Judge a peer; `done` is called when the answer is durable."""
        ...

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None: ...

    def peer_connected(self, node: Node, hello: pb.Hello) -> None: ...

    def peer_disconnected(self, node: Node) -> None: ...

    def received(self, node: Node, incarnation: bytes, envelope: pb.Envelope) -> None:
        """Raises ProtocolError to have the connection closed."""
        ...


class PeerTransport(Transport):  # type: ignore[misc]  # PySyncObj is untyped
    """PySyncObj's Transport over asyncio. `send` never blocks; a peer that does not read loses its connection, and
    nobody else waits for it.

    A folder that joins dials nobody before it was dialled.
    """

    def __init__(self, config: RaftConfig, owner: Owner, rng: random.Random) -> None:
        super().__init__(None, Node(config.node_id), [])
        self._config = config
        self._owner = owner
        self._rng = rng
        self._filed = {member.node_id: member.peer_address for member in config.peers}
        self._peers: dict[str, Peer] = {}
        self._leaving: dict[asyncio.Task[None], None] = {}
        self._security = PeerSecurity(
            config.tls,
            required=config.tls_required,
            patience=config.timing.handshake,
            half_open=config.limits.handshakes,
        )
        self._server: asyncio.Server | TlsPort | None = None
        self._strangers: dict[Inbound, None] = {}
        self._meetings: dict[Meeting, None] = {}
        self._quiet: QuietLog | None = None
        self._serving = False
        self._closed = False
        self.counters = dict.fromkeys(
            (
                *("frames_in", "frames_out", "bytes_in", "bytes_out", "bad_inputs", "rejects", "connects"),
                *("disconnects", "wrong_names", "tls_dials_failed", "clear_connects"),
            ),
            0,
        )
        if not config.join:
            self.update(config.peers)

    # -- life

    async def bind(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if the address cannot be bound."""
        self._quiet = QuietLog(_log, asyncio.get_running_loop().time)
        address = self._config.listen or self._config.own.peer_address
        host, port = split_address(address)
        if self._security.is_preferred:
            _log.warning(
                "peer_tls is prefer: peers without TLS are answered too, and nobody is kept out; set it to require when"
                " no node has clear connections left"
            )
        try:
            self._server = await self._security.listen(
                lambda: Inbound(self), host, port, backlog=_BACKLOG, report=self._tls_refused
            )
        except OSError as error:
            raise ConfigurationError(f"cannot listen for peers on {address}: {error.strerror or error}") from error

    def serve(self) -> None:
        """Answer and dial, from now on."""
        self._serving = True
        self._security.serve()
        for peer in self._peers.values():
            self._begin(peer)

    async def start(self) -> None:
        """`bind` and `serve`."""
        await self.bind()
        self.serve()

    async def stop(self) -> None:
        """Close everything; callbacks end."""
        self.destroy()
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def destroy(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._leaving:
            task.cancel()
        for peer in self._peers.values():
            peer.end_timer()
            if peer.task is not None:
                peer.task.cancel()
            for connection in (peer.outbound, peer.inbound):
                if connection is not None:
                    connection.close()
        for stranger in [*self._strangers, *self._meetings]:
            stranger.abort()

    # -- who is dialled

    def update(self, members: Iterable[Member]) -> None:
        """The members of the configuration in force, this node among them or not; addresses may have changed. Those
        who are no members any more stay as guests for a while."""
        wanted = {member.node_id: member for member in members if member.node_id != self._config.node_id}
        for node_id, peer in list(self._peers.items()):
            if node_id not in wanted and not self._serving:
                del self._peers[node_id]
            elif node_id not in wanted and not peer.guest:
                peer.guest = True
                self._watch_idle(peer)
        for node_id, member in wanted.items():
            known = self._peers.get(node_id)
            if known is None:
                known = self._peers[node_id] = Peer(node_id, filed=self._filed.get(node_id, ""))
                self._begin(known)
            known.guest = False
            known.end_timer()
            if known.configured != member.peer_address:
                known.configured = member.peer_address
                known.retry.set()  # if it waits, it tries the new one now
        self._limit_guests(self._config.limits.guests)

    def expel(self, unwanted: Callable[[pb.Hello], bool]) -> None:
        """Close the connections with those peers; what was written to them still leaves."""
        for peer in list(self._peers.values()):
            for connection in (peer.inbound, peer.outbound):
                if connection is not None and connection.hello is not None and unwanted(connection.hello):
                    if connection is peer.inbound:
                        peer.inbound = None
                    peer.said = ""
                    connection.close()
                    if peer.guest:
                        self._drop(peer)

    async def meet(self, member: Member) -> pb.Hello:
        """Dial that address once, and return what the node there says of itself. Nothing is kept of it.

        Raises ConfigurationError if no node of that id answers, Refused if it does not want to hear from this one.
        """
        where = f"node {member.node_id} at {member.peer_address}"
        answer: pb.Hello | pb.Reject | None = None
        for tls in self._security.ways:
            answer = await self._meet(member, where, tls=tls)
            if answer is not None:
                break
        if answer is None:
            raise ConfigurationError(f"cannot reach {where}: it shakes hands neither with TLS nor without")
        if isinstance(answer, pb.Reject):
            raise Refused(f"{where} refuses this node: {_one_line(answer.text)}")
        return answer

    async def _meet(self, member: Member, where: str, *, tls: bool) -> pb.Hello | pb.Reject | None:
        """None: not in this way, and another is left."""
        host, port = split_address(member.peer_address)
        meeting = Meeting(self, member.node_id)
        self._meetings[meeting] = None
        try:
            async with asyncio.timeout(self.handshake_timeout):
                await self._security.open(meeting, host, port, tls=tls)
                return await meeting.answer
        except TimeoutError as error:
            raise ConfigurationError(f"cannot reach {where}: no answer in {self.handshake_timeout} s") from error
        except (OSError, ValueError, ProtocolError) as error:
            without = meeting.is_refused or (isinstance(error, OSError) and is_without_handshake(error, tls=tls))
            if without and self._security.is_preferred:
                return None
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigurationError(f"cannot reach {where}: {why}") from error
        finally:
            self._meetings.pop(meeting, None)
            meeting.abort()
            if meeting.answer.done() and not meeting.answer.cancelled():
                meeting.answer.exception()  # seen

    def _begin(self, peer: Peer) -> None:
        if self._serving and not self._closed and peer.task is None:
            peer.task = asyncio.get_running_loop().create_task(self._dial(peer), name=f"kvorum-dial-{peer.node_id}")

    def _drop(self, peer: Peer) -> None:
        """Its connections are closed gently, and it is not dialled any more."""
        if self._peers.get(peer.node_id) is peer:
            del self._peers[peer.node_id]
        peer.gone = True
        peer.end_timer()
        peer.retry.set()
        if peer.inbound is not None:
            peer.inbound.close()
            peer.inbound = None
        outbound, peer.outbound = peer.outbound, None
        if outbound is not None:
            outbound.close()
            self.counters["disconnects"] += 1
            # Not at once: this can be called from inside the core.
            asyncio.get_running_loop().call_soon(self._tell_lost, peer.node)
        if peer.task is not None:
            if outbound is None:
                peer.task.cancel()
            self._leaving[peer.task] = None
            peer.task.add_done_callback(lambda task: self._leaving.pop(task, None))

    async def _dial(self, peer: Peer) -> None:
        timing, delay, attempt = self._config.timing, self._config.timing.reconnect_min, 0
        while not self._closed and not peer.gone:
            peer.retry.clear()
            addresses = peer.addresses
            opened = bool(addresses) and await self._connect(peer, addresses[attempt % len(addresses)])
            attempt = 0 if opened else attempt + 1
            if not opened and addresses and attempt % len(addresses):
                continue
            delay = timing.reconnect_min if opened else min(delay * 2, timing.reconnect_max)
            try:
                async with asyncio.timeout(delay * self._rng.uniform(0.5, 1.0)):
                    await peer.retry.wait()
            except TimeoutError:
                continue
            attempt = 0

    async def _connect(self, peer: Peer, address: str) -> bool:
        """True if the connection had been open."""
        for tls in self._security.ways:
            outbound = peer.dialling = Outbound(self, peer.node_id)
            try:
                opened = await self._attempt(outbound, peer, address, tls=tls)
            finally:
                outbound.abort()
            if opened is not None:
                return opened
        return False

    async def _attempt(self, outbound: Outbound, peer: Peer, address: str, *, tls: bool) -> bool | None:
        """True if the connection had been open; None if TLS was what kept it from that."""
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self.handshake_timeout):
                await self._security.open(outbound, host, port, tls=tls)
        except TimeoutError:
            return False
        except OSError as error:  # before ValueError: a certificate that is not accepted is both
            if isinstance(error, ssl.SSLError):
                self.tls_failed(f"node {peer.node_id} at {address}", reason(error))
            return None if is_without_handshake(error, tls=tls) else False
        except (ValueError, ConfigurationError):
            return False  # an impossible name is as good as an unknown one
        opened = await outbound.ended
        return None if outbound.is_refused else opened

    # -- guests

    def _limit_guests(self, most: int) -> bool:
        """Drop silent guests until there are at most so many; False if too many of them talk."""
        guests = [peer for peer in self._peers.values() if peer.guest]
        if len(guests) > most:
            now = asyncio.get_running_loop().time()
            silent = [peer for peer in guests if peer.inbound is None or now - peer.heard_at > _SILENT]
            silent.sort(key=lambda peer: (peer.inbound is not None, peer.heard_at))
            for peer in silent[: len(guests) - most]:
                self._drop(peer)
            return len(guests) - len(silent) <= most
        return True

    def _watch_idle(self, peer: Peer) -> None:
        """Forget a guest that stays away."""
        peer.end_timer()
        if peer.guest and peer.inbound is None and self._serving and not self._closed:
            loop = asyncio.get_running_loop()
            peer.timer = loop.call_later(self._config.timing.guest_idle, self._drop, peer)

    def _refusal(self, hello: pb.Hello) -> pb.Reject | None:
        """Why a node that may take part finds no place now."""
        peer = self._peers.get(hello.node_id)
        if peer is None:
            if self._limit_guests(self._config.limits.guests - 1):
                return None
            return pb.Reject(code=pb.Reject.BUSY, text="too many nodes that are no members talk to this one")
        holder = peer.inbound.hello if peer.inbound is not None else None
        if holder is None or holder.incarnation == hello.incarnation:
            return None
        if asyncio.get_running_loop().time() >= peer.held_until:
            return None
        return pb.Reject(code=pb.Reject.BUSY, text=f"another folder speaks for node {hello.node_id} just now")

    # -- PySyncObj's contract

    def send(self, node: Node, message: pb.Envelope) -> bool:
        peer = self._peers.get(node.id)
        if peer is None or peer.outbound is None:
            return False
        size = peer.outbound.write(message)
        self.counters["frames_out"] += size > 0
        self.counters["bytes_out"] += size
        return size > 0

    def broadcast(self, message: pb.Envelope) -> None:
        """To all that are connected, guests too."""
        for peer in list(self._peers.values()):
            self.send(peer.node, message)

    def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:
        """Utility messages let anybody who reaches the port administrate the library: there are none here."""

    def is_connected(self, node_id: str) -> bool:
        peer = self._peers.get(node_id)
        return peer is not None and peer.outbound is not None

    @property
    def guests(self) -> list[str]:
        """Ids of those who talk with this node and are no members, as far as it knows."""
        return [peer.node_id for peer in self._peers.values() if peer.guest]

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

    def _is_copy(self, hello: pb.Hello) -> bool:
        """True if another process with the same folder is connected: one of the two works on a copy. A folder starts
        again only after its process has ended, which its connections show, at the latest when the kernel finds out
        that nobody answers any more."""
        peer = self._peers.get(hello.node_id)
        holder = peer.inbound.hello if peer is not None and peer.inbound is not None else None
        if holder is None or holder.incarnation != hello.incarnation:
            return False
        return holder.generation_ids[-GENERATION_ID_SIZE:] != hello.generation_ids[-GENERATION_ID_SIZE:]

    def admit(self, hello: pb.Hello, done: _Done, *, dialled: bool) -> None:
        def judged(reject: pb.Reject | None) -> None:
            if reject is None and not dialled and not hello.meeting:
                reject = self._refusal(hello)
            if reject is not None:
                self.counters["rejects"] += 1
                self._warn(f"reject {pb.Reject.Code.Name(reject.code)}", f"refused a peer: {reject.text}")
            done(reject)

        if self._is_copy(hello):  # before its start is remembered: that would shut the other one out
            text = f"another process with the folder of node {hello.node_id[:128]!r} is running, or was until just now"
            judged(pb.Reject(code=pb.Reject.BUSY, text=text))
            return
        self._owner.admit(hello, judged)

    def inbound_made(self, connection: Inbound) -> bool:
        if self._closed or not self._serving or len(self._strangers) >= self._config.limits.handshakes:
            return False
        self._strangers[connection] = None
        return True

    def inbound_open(self, connection: Inbound) -> None:
        hello = connection.hello
        assert hello is not None
        self._strangers.pop(connection, None)
        if self._closed:
            connection.abort()
            return
        self._count_clear(connection, hello.node_id)
        peer = self._peers.get(hello.node_id)
        if peer is None:
            peer = self._peers[hello.node_id] = Peer(
                hello.node_id, guest=True, filed=self._filed.get(hello.node_id, "")
            )
        now = asyncio.get_running_loop().time()
        peer.said, peer.heard_at = hello.peer_address, now
        peer.end_timer()
        self._take_name(peer, connection, hello, now)
        self._begin(peer)
        peer.retry.set()  # it lives: dial it now, if we wait to do so

    def _take_name(self, peer: Peer, connection: Inbound, hello: pb.Hello, now: float) -> None:
        previous, peer.inbound = peer.inbound, connection
        if previous is not None:
            previous.abort()
        for outbound in (peer.outbound, peer.dialling):
            other = outbound.hello if outbound is not None else None
            if outbound is not None and other is not None and other.incarnation != hello.incarnation:
                outbound.close()  # what we answer is for the folder that asks
        if hello.incarnation != peer.incarnation:
            if peer.incarnation:
                peer.held_until = now + _HOLD_ELECTIONS * self._config.timing.election_max
            peer.incarnation = hello.incarnation

    def inbound_lost(self, connection: Inbound) -> None:
        self._strangers.pop(connection, None)
        peer = self._peers.get(connection.hello.node_id) if connection.hello is not None else None
        if peer is not None and peer.inbound is connection:
            peer.inbound = None
            self._watch_idle(peer)

    def outbound_open(self, connection: Outbound, hello: pb.Hello) -> None:
        peer = self._peers.get(connection.node_id)
        if peer is None or peer.dialling is not connection:
            connection.abort()
            return
        if peer.inbound is not None and peer.incarnation != hello.incarnation:
            connection.is_open = False  # the address leads to another folder than the one that talks to us
            connection.close()
            return
        peer.outbound = connection
        self.counters["connects"] += 1
        self._count_clear(connection, peer.node_id)
        self._owner.peer_connected(peer.node, hello)

    def outbound_lost(self, connection: Outbound) -> None:
        peer = self._peers.get(connection.node_id)
        if peer is not None and peer.outbound is connection:
            peer.outbound = None
            self.counters["disconnects"] += 1
            self._tell_lost(peer.node)

    def _tell_lost(self, node: Node) -> None:
        if not self._closed:
            self._owner.peer_disconnected(node)

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None:
        reject.text = _one_line(reject.text)
        self._warn(f"rejected {node_id}", f"node {node_id} refuses this node: {reject.text}")
        self._owner.rejected_by(node_id, reject)

    def received(self, connection: Inbound, envelope: pb.Envelope, size: int) -> None:
        assert connection.hello is not None
        peer = self._peers.get(connection.hello.node_id)
        if peer is None or peer.inbound is not connection:
            return
        if peer.guest:
            peer.heard_at = asyncio.get_running_loop().time()
        self.counters["frames_in"] += 1
        self.counters["bytes_in"] += size
        self._owner.received(peer.node, connection.hello.incarnation, envelope)

    def bad_input(self, where: str, error: ProtocolError) -> None:
        self.counters["bad_inputs"] += 1
        self._warn("bad input", f"closed a connection with {where} on the peer port: {error}")

    def wrong_name(self, where: str, text: str) -> None:
        self.counters["wrong_names"] += 1
        self._warn("wrong name", f"closed a connection with {where}: {text}")

    def tls_failed(self, where: str, text: str) -> None:
        self.counters["tls_dials_failed"] += 1
        self._warn("tls dial", f"no TLS with {where}: {text}")

    def _tls_refused(self, where: str, kind: str, text: str) -> None:
        """Counted by the port."""
        self._warn(f"tls {kind}", f"closed a connection with {where} on the peer port: {text}")

    def _count_clear(self, connection: Inbound | Outbound, node_id: str) -> None:
        """An open connection without TLS, of a node that prefers it."""
        if self._security.is_preferred and connection.is_clear:
            self.counters["clear_connects"] += 1
            way = "to" if isinstance(connection, Outbound) else "from"
            why = "it has no TLS, or does not accept this node's certificate"
            self._warn(f"clear {way} {node_id}", f"a connection {way} node {node_id} is in clear: {why}")

    def statistics(self) -> dict[str, float]:
        """Counts since the start; `clear_connections` are those of now that are in clear and need not be."""
        found = {**self.counters, **self._security.statistics()}
        if self._security.is_preferred:
            open_ones = [end for peer in self._peers.values() for end in (peer.inbound, peer.outbound) if end]
            found["clear_connections"] = sum(end.is_clear for end in open_ones)
        return found

    def _warn(self, key: str, text: str) -> None:
        if self._quiet is not None:
            self._quiet.warning(key, text)


def _one_line(text: str) -> str:
    """It goes to the operator."""
    return " ".join(text[:500].split())
