"""A second connection of a client's session, in a thread of its own, so that a busy event loop loses no leases.

A node renews the leases of a session as long as one of its connections lives. While a program blocks its event loop
(`time.sleep(10)` in a handler, a long computation), the connection as such lives on, since gRPC's own threads answer
the node's pings. What nobody does meanwhile is to go where a *new leader* is, and that one gives the leases a full
period and no more. So this thread holds a connection of its own, which carries no messages, to whichever node leads,
and follows the leadership.

It covers whatever lets other Python threads run. It cannot help where the whole process stands still: stopped by a
signal or a debugger, or in a C function that keeps the interpreter's lock while there is a new leader. Where such
pauses are to be expected the queue's lease must be longer than they are.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.connection import OPTIONS, PATIENCE, SILENCE
from kvorum.cluster.route import Address, name, parse
from kvorum.tls import ChannelTls

logger = logging.getLogger("kvorum")

_LEADERLESS: Final = 1.0
"""Seconds to stay with a node that does not lead, waiting for it to tell who does."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
"""Seconds before the next node is tried; doubled with each failure."""
_HINTS: Final = 3
"""Hints in a row that are followed at once: nodes may point at each other."""
_STEADY: Final = 0.5
"""Seconds that a stream to a leader must last to make failures forgotten."""
_PULSE: Final = 0.25
"""Seconds between looks at a connection."""
_MAX_DEAD: Final = 64
_END: Final = 2.0
"""Seconds in which the thread must end."""


class Wanted(NamedTuple):
    """What to keep alive, and where the leader was last."""

    session: bytes
    address: Address
    cluster_id: bytes


class Heartbeat:
    """See the module. All methods are for the loop's thread, and none of them blocks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        addresses: Sequence[Address],
        *,
        client_name: str,
        token: str,
        tls: ChannelTls | None,
        place: Callable[[str, Address | None], Address | None] = lambda _, advertised: advertised,
    ) -> None:
        """`place` tells where a node is, by its id and its advertised address; it is called in the thread."""
        self._loop = loop
        self._place = place
        self._addresses = tuple(addresses)
        self._client_name = client_name
        self._token = token
        self._tls = tls
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._stream: _Stream | None = None
        self._running = False
        """A thread is there that will look at `_wanted` once more."""
        self._changed = threading.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    def beat(self, wanted: Wanted) -> None:
        """Keep a session alive from now on."""
        with self._lock:
            before, self._wanted = self._wanted, wanted
            stream = self._stream
            self._changed.clear()
            if not self._running:
                self._start()
        if before is not None and before.session != wanted.session and stream is not None:
            stream.end()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="kvorum-heartbeat", daemon=True).start()
        except RuntimeError as error:
            # No thread is left. The client's own connection goes on, and the next `beat` tries again.
            logger.warning("no heartbeat of leases: %s; they may lapse while the event loop is blocked", error)
            return
        self._running = True
        self._ended.clear()

    def rest(self) -> None:
        """Nothing is to be kept alive any more."""
        with self._lock:
            self._wanted = None
            stream = self._stream
            self._changed.set()
        if stream is not None:
            stream.end()

    async def close(self) -> None:
        """Rest, and wait for the thread's end."""
        self.rest()
        try:
            async with asyncio.timeout(_END):
                await self._ended.wait()
        except TimeoutError:
            return  # it is a daemon, and holds nothing that matters

    # ---- the thread

    def _run(self) -> None:
        try:
            self._keep_alive()
        except Exception:
            # No thread is left for gRPC, say. The client's own connection goes on, and the next `beat` tries again.
            logger.exception("the heartbeat of leases has failed: they may lapse while the event loop is blocked")
            with self._lock:
                self._running = False
                self._stream = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._thread_ended)

    def _keep_alive(self) -> None:
        """Hold connections as long as something is wanted."""
        turn, failures = 0, 0
        hint: Address | None = None
        seen: Wanted | None = None
        dead: dict[Address, int] = {}
        """Addresses where nobody answered, and the newest term that was known then."""
        term = 0
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted is None:
                    self._running = False
                    break
                if wanted is not seen:
                    seen, hint = wanted, wanted.address  # the client knows better
                address = hint or self._addresses[turn % len(self._addresses)]
                stream = self._stream = _Stream(address, self._hello(wanted), self._tls, dead, self._place)
            turn += hint is None
            begun = time.monotonic()
            stream.hold()
            with self._lock:
                self._stream = None
            hint, term = stream.hint, max(term, stream.term)
            if stream.answered:
                dead.pop(address, None)
            else:
                if len(dead) > _MAX_DEAD:  # hints are the nodes' to choose, memory is ours
                    dead.clear()
                dead[address] = term
            failures = 0 if stream.led and time.monotonic() - begun >= _STEADY else failures + 1
            if failures > (1 if hint is None else _HINTS):
                self._changed.wait(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 2, 10)))

    def _thread_ended(self) -> None:
        if not self._running:
            self._ended.set()

    def _hello(self, wanted: Wanted) -> pb.Hello:
        return pb.Hello(
            protocol=1,
            client=f"{self._client_name} (heartbeat)",
            token=self._token,
            cluster_id=wanted.cluster_id,
            session=wanted.session,
        )


class _Stream:
    """One connection to one node. `hold` is for the heartbeat's thread, `end` for any.

    Where the node does not lead it is left for the leader that it tells of, unless that one is known to be `dead` since
    it was elected: then the node will soon tell of another.
    """

    def __init__(
        self,
        address: Address,
        hello: pb.Hello,
        tls: ChannelTls | None,
        dead: Mapping[Address, int],
        place: Callable[[str, Address | None], Address | None],
    ) -> None:
        self.answered = False
        """It spoke to us."""
        self.led = False
        """It did, at some moment."""
        self.hint: Address | None = None
        """Where to go next."""
        self.term = 0
        """The newest that it told of."""
        self._dead = dead
        self._place = place
        self._address = address
        self._hello = hello
        self._tls = tls
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Something in it: look at once."""
        self._over = threading.Event()
        self._call: Any = None
        self._node_id = ""
        self._leading = False
        self._heard_at = self._begun_at = time.monotonic()
        """When the last frame came; since when it is not known to be the leader."""

    def end(self) -> None:
        """Leave the node."""
        self._over.set()
        self._signals.put(None)
        call = self._call
        if call is not None:
            call.cancel()

    def hold(self) -> None:
        """Stay while the node leads."""
        channel = self._open_channel()
        try:
            self._call = channel.stream_stream(
                "/kvorum.v1.Kv/Stream",
                request_serializer=pb.ClientFrame.SerializeToString,
                response_deserializer=pb.ServerFrame.FromString,
            )(self._frames())
            if self._over.is_set():
                self._call.cancel()
            for frame in self._call:
                self._take(frame)
                if frame.error or self._over.is_set() or self.hint is not None:
                    break
        except grpc.RpcError:
            pass  # whatever it was: another node is asked, and the client itself tells what is wrong
        finally:
            self._over.set()
            self._signals.put(None)
            if self._call is not None:
                self._call.cancel()
            channel.close()

    def _open_channel(self) -> grpc.Channel:
        target = name(self._address)
        if self._tls is None:
            return grpc.insecure_channel(target, options=OPTIONS)
        return grpc.secure_channel(target, self._tls.credentials(), options=(*OPTIONS, *self._tls.options))

    def _take(self, frame: pb.ServerFrame) -> None:
        self.answered = True
        self._heard_at = time.monotonic()
        if frame.HasField("hello"):
            self._node_id, self._begun_at = frame.hello.node_id, self._heard_at
            self._leader_is(frame.hello.leader)
        if frame.HasField("leader"):
            self._leader_is(frame.leader)

    def _leader_is(self, leader: pb.Leader) -> None:
        was_leading = self._leading
        self.term = max(self.term, leader.term)
        self._leading = bool(leader.node_id) and leader.node_id == self._node_id
        self.led |= self._leading
        if was_leading and not self._leading:
            self._begun_at = time.monotonic()
        hint = None
        if leader.node_id and not self._leading:
            hint = self._place(leader.node_id, parse(leader.address))
        if hint is not None and hint != self._address and leader.term > self._dead.get(hint, -1):
            self.hint = hint

    def _frames(self) -> Iterator[pb.ClientFrame]:
        """What is sent, and the watch over what is heard; runs in a thread of gRPC's."""
        yield pb.ClientFrame(hello=self._hello)
        pings, pinged_at = 0, 0.0
        while not self._over.is_set():
            try:
                self._signals.get(timeout=_PULSE)
                continue
            except queue.Empty:
                now = time.monotonic()
            heard_at = self._heard_at
            silent = now - heard_at > SILENCE + PATIENCE and pinged_at > heard_at
            useless = not self._leading and now - self._begun_at > (_LEADERLESS if self._node_id else PATIENCE)
            if silent or useless:
                self.end()
                return
            if now - max(heard_at, pinged_at) > SILENCE:
                pings, pinged_at = pings + 1, now
                yield pb.ClientFrame(ping=pings)
