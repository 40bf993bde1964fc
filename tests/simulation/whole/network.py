"""Machines, links, and connections that behave as TCP's do when things go wrong.

What matters for the protocols above, and is therefore modelled: bytes stay in order; a cut link loses nothing at once,
what was written is delivered after the link is whole again, old as it may be by then; only when nothing was
acknowledged for a while the writer's end gives up, and the other end does not hear of it; a killed process's machine
still says goodbye, one without power doesn't, and only answers with a reset when it is back; the kernel accepts
connections for a process that is paused. Delays are random, links can be cut in one direction, or be slow.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from tests.simulation.whole.clock import Clock, ProcessLoop

USER_TIMEOUT: Final = 5.0
"""Seconds without an acknowledgement after which an end gives up."""
SYN_RETRY: Final = 1.0
KEEPALIVE: Final = 1.0
"""Seconds between questions of a machine whether the other end of a connection between nodes is still there."""
_DELAY: Final = 0.0002
_JITTER: Final = 0.0015 - _DELAY
"""Seconds that a message takes at least, and up to so many more; now and then much more."""
_FIN: Final = object()

Accept = Callable[["End"], None]


class End:
    """One end of a connection, in one process. What comes before `attach` waits for it."""

    def __init__(
        self, network: "Network", loop: ProcessLoop, host: str, timeout: float, *, keepalive: bool = False
    ) -> None:
        self._keepalive = keepalive
        self._network = network
        self.loop = loop
        self.host = host
        self.other: End = self
        self.open = True
        self._on_item: Callable[[Any], None] | None = None
        self._on_lost: Callable[[Exception | None], None] | None = None
        self._early: list[tuple[Callable[[Any], None], Any]] = []
        self.bytes_waiting = 0
        self._timeout = timeout
        self._flight: deque[tuple[float, Any, int]] = deque()
        self._last_arrival = 0.0
        self._stalled = False
        self._silent_since: float | None = None

    # ---- what the process does

    def attach(self, on_item: Callable[[Any], None], on_lost: Callable[[Exception | None], None]) -> None:
        """Who hears of what comes, in the loop."""
        self._on_item, self._on_lost = on_item, on_lost
        for call, argument in self._early:
            self.loop.call_soon(call, argument)
        self._early.clear()

    def send(self, item: Any, size: int = 0) -> None:
        if self.open and not self.loop.dead:
            self._put(item, size)

    def close(self) -> None:
        """In order: what was sent arrives before."""
        if self.open and not self.loop.dead:
            self._put(_FIN, 0)
            self._end(None)

    def abort(self) -> None:
        """What was not delivered is thrown away."""
        if self.open and not self.loop.dead:
            self._flight.clear()
            self._reset_other()
            self._end(None)

    # ---- what its machine does

    def process_died(self) -> None:
        """The kernel closes what a killed process had open."""
        if self.open:
            self.open = False
            self._put(_FIN, 0)
            self._watch_other()

    def power_lost(self) -> None:
        self.open = False
        self._watch_other()
        self._flight.clear()
        self._network.forget(self)

    def _watch_other(self) -> None:
        """The other machine's kernel asks now and then whether this end is still there."""
        if self._keepalive:
            self._network.clock.after(KEEPALIVE, self.other._ask_whether_other_lives, USER_TIMEOUT)

    def _ask_whether_other_lives(self, patience: float) -> None:
        network, here, there = self._network, self.host, self.other.host
        if not self.open or self.other.open:
            return
        if network.passes(here, there) and network.passes(there, here):
            self._was_reset(there)
        elif patience <= KEEPALIVE:
            self._end(TimeoutError("nothing was acknowledged"))
            network.forget(self)
        else:
            network.clock.after(KEEPALIVE, self._ask_whether_other_lives, patience - KEEPALIVE)

    def _put(self, item: Any, size: int) -> None:
        network = self._network
        arrival = max(self._last_arrival, network.clock.now + network.delay(self.host, self.other.host))
        self._last_arrival = arrival
        self._flight.append((arrival, item, size))
        self.bytes_waiting += size
        if not self._stalled:
            network.clock.at(arrival, self._arrive)

    def _arrive(self) -> None:
        network, other, flight = self._network, self.other, self._flight
        self._stalled = False
        while flight and flight[0][0] <= network.clock.now:
            troubled = network.cut or network.without_power
            if troubled and not network.passes(self.host, other.host):
                self._stalled = True
                network.counters["stalled"] += 1
                self._silent()
                return
            _, item, size = flight.popleft()
            self.bytes_waiting -= size
            if troubled and not network.passes(other.host, self.host):
                self._silent()
            other._take(item)
        if not self.open and not flight:
            network.forget(self)

    def _take(self, item: Any) -> None:
        if not self.open:
            if item is not _FIN:
                self._network.clock.after(
                    self._network.delay(self.host, self.other.host), self.other._was_reset, self.host
                )
        elif item is _FIN:
            self._end(None)
            self._network.forget(self)
        else:
            self.loop.run(self._deliver, item)

    def _deliver(self, item: Any) -> None:
        if self._on_item is None:
            self._early.append((self._deliver, item))
        elif self.open:
            self._on_item(item)

    def _reset_other(self) -> None:
        self._network.clock.after(self._network.delay(self.host, self.other.host), self.other._was_reset, self.host)

    def _was_reset(self, source: str) -> None:
        """A reset is sent once: where it is lost, the other end stays half open."""
        if self.open and self._network.passes(source, self.host):
            self._flight.clear()
            self._end(ConnectionResetError("connection reset by peer"))
            self._network.forget(self)

    def _silent(self) -> None:
        if self._silent_since is None:
            self._silent_since = self._network.clock.now
            self._network.clock.after(self._timeout, self._judge_silence, self._silent_since)

    def _judge_silence(self, since: float) -> None:
        if self.open and self._silent_since == since:
            self._network.counters["timeouts"] += 1
            self._flight.clear()
            self._end(TimeoutError("nothing was acknowledged"))
            self._network.forget(self)

    def healed(self, wait: float) -> None:
        """A link may be whole again: retransmissions get through after a while."""
        self._silent_since = None
        if self._stalled:
            self._network.clock.after(wait, self._arrive)

    def _end(self, error: Exception | None) -> None:
        self.open = False
        self._watch_other()
        self.loop.run(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        if self._on_lost is None:
            self._early.append((self._tell, error))
        else:
            self._on_lost(error)


class Network:
    """All machines by name. An address is `machine:port`."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.refused: set[tuple[str, str]] = set()
        """Who is not let in where: a wall between them says so at once."""
        self.without_power: set[str] = set()
        self.counters: Counter[str] = Counter()
        self._listening: dict[str, tuple[ProcessLoop, Accept]] = {}
        self._ends: dict[End, None] = {}

    # ---- links

    def passes(self, source: str, target: str) -> bool:
        return target not in self.without_power and (source, target) not in self.cut

    def delay(self, source: str, target: str) -> float:
        random = self.rng.random
        delay = _DELAY + _JITTER * random()
        if random() < 0.01:
            delay += 0.06 * random()
        slow = self.slow.get((source, target)) if self.slow else None
        return delay if slow is None else delay + slow * self.rng.uniform(0.5, 1.0)

    def mend(self) -> None:
        """Links have changed for the better."""
        for end in list(self._ends):
            end.healed(self.rng.uniform(0.001, 0.4))

    def break_connections(self, a: str, b: str) -> None:
        """A middle box forgets them: both ends are reset."""
        for end in list(self._ends):
            if end.host == a and end.other.host == b and end.open:
                self.counters["resets"] += 1
                end._was_reset(b)
                end.other._was_reset(a)

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    # ---- machines

    def listen(self, address: str, loop: ProcessLoop, accept: Accept) -> None:
        self._listening[address] = (loop, accept)

    def stop_listening(self, address: str, loop: ProcessLoop) -> None:
        if address in self._listening and self._listening[address][0] is loop:
            del self._listening[address]

    def process_died(self, loop: ProcessLoop, *, power: bool) -> None:
        for address in [address for address, (owner, _) in self._listening.items() if owner is loop]:
            del self._listening[address]
        for end in list(self._ends):
            if end.loop is loop:
                if power:
                    end.power_lost()
                else:
                    end.process_died()

    # ---- connections

    async def connect(self, loop: ProcessLoop, address: str, timeout: float = USER_TIMEOUT) -> End:
        """Errors: ConnectionRefusedError. Waits for ever where nothing answers."""
        made: asyncio.Future[End] = loop.create_future()
        self._syn(loop, address, made, timeout)
        return await made

    def _syn(self, loop: ProcessLoop, address: str, made: "asyncio.Future[End]", timeout: float) -> None:
        if not made.done() and not loop.dead:
            host = address.rpartition(":")[0]
            self.clock.after(self.delay(loop.name, host), self._syn_arrives, loop, address, made, timeout)

    def _syn_arrives(self, loop: ProcessLoop, address: str, made: "asyncio.Future[End]", timeout: float) -> None:
        host = address.rpartition(":")[0]
        if not self.passes(loop.name, host) or not self.passes(host, loop.name):
            self.clock.after(SYN_RETRY, self._syn, loop, address, made, timeout)
            return
        back = self.delay(host, loop.name)
        listener = self._listening.get(address)
        if listener is None or made.done() or loop.dead or (loop.name, host) in self.refused:
            self.clock.after(back, loop.run, _refuse, made)
            return
        server_loop, accept = listener
        peers = address.endswith("1")  # clients dial ports that end in 2
        near = End(self, loop, loop.name, timeout, keepalive=peers)
        far = End(self, server_loop, host, timeout, keepalive=peers)
        near.other, far.other = far, near
        self._ends[near] = self._ends[far] = None
        self.counters["connections"] += 1
        server_loop.run(accept, far)
        self.clock.after(back, loop.run, _made, made, near)

    # ---- asyncio's streams between peers

    def serve(self, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], address: str) -> "Server":
        if address in self._listening:
            raise OSError(98, "address in use")
        self.listen(address, loop, lambda end: Tcp(end, factory()).begin())
        return Server(self, loop, address)

    async def dial(
        self, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], address: str
    ) -> tuple["Tcp", asyncio.BaseProtocol]:
        protocol = factory()
        tcp = Tcp(await self.connect(loop, address), protocol)
        tcp.begin()
        return tcp, protocol


def _refuse(made: "asyncio.Future[End]") -> None:
    if not made.done():
        made.set_exception(ConnectionRefusedError("connection refused"))


def _made(made: "asyncio.Future[End]", near: End) -> None:
    if made.done():
        near.abort()
    else:
        made.set_result(near)


class Tcp(asyncio.Transport):
    """asyncio's view of an end."""

    def __init__(self, end: End, protocol: Any) -> None:
        super().__init__({"peername": end.other.host})
        self._end = end
        self._protocol = protocol

    def begin(self) -> None:
        self._protocol.connection_made(self)
        self._end.attach(self._protocol.data_received, self._protocol.connection_lost)

    def write(self, data: Any) -> None:
        self._end.send(bytes(data), len(data))

    def is_closing(self) -> bool:
        return not self._end.open

    def close(self) -> None:
        self._end.close()

    def abort(self) -> None:
        self._end.abort()

    def get_write_buffer_size(self) -> int:
        return self._end.bytes_waiting


class Server:
    """asyncio's view of a listening socket."""

    def __init__(self, network: Network, loop: ProcessLoop, address: str) -> None:
        self._network, self._loop, self._address = network, loop, address

    def close(self) -> None:
        self._network.stop_listening(self._address, self._loop)

    async def wait_closed(self) -> None:
        """At once: connections are closed by their owner."""
