"""What both kinds of nodes of a `World` share: virtual time, FIFO links that can break, and what a node must offer."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kvorum_raft.config import Limits, Timing

if TYPE_CHECKING:
    from tests.simulation.world import World

TIMING = Timing(election_min=0.5, election_max=1.0, heartbeat=0.1)
BATCH = 200
"""Bytes of entries in one message: small, so that short schedules reach the cases that busy clusters reach."""
LIMITS = Limits(
    append_bytes=BATCH, append_entries=8, window_bytes=4 * BATCH, window_messages=6, log_cache=2000, uncommitted=100_000
)


class Broken(AssertionError):
    """A promise of consensus was broken."""


class Clock:
    """Virtual time; every look at it costs 20 µs, so that no loop waits for ever."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 2e-5
        return self.now


class Links:
    """One FIFO queue for each direction of each pair; a message exists only while its connection does."""

    def __init__(self) -> None:
        self.queues: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
        self.up: set[tuple[str, str]] = set()
        self.witness: Callable[[str, str, Any], None] | None = None
        """Called with each message that goes onto a link."""

    def send(self, source: str, target: str, message: Any) -> bool:
        if (source, target) not in self.up:
            return False
        self.queues[source, target].append(message)
        return True


class LinkTransport(Transport):
    """The library's Transport contract on `Links`, for both kinds of nodes."""

    def __init__(self, links: Links, node_id: str, copier: Callable[[Any], Any]) -> None:
        super().__init__(None, None, [])
        self._links = links
        self._node_id = node_id
        self._copier = copier

    def send(self, node: Node, message: Any) -> bool:
        links = self._links
        if links.witness is not None and (self._node_id, node.id) in links.up:
            links.witness(self._node_id, node.id, message)
        return links.send(self._node_id, node.id, self._copier(message))

    def deliver(self, source: str, message: Any) -> None:
        self._onMessageReceived(Node(source), message)

    def dropNode(self, node: Node) -> None:
        links, pair = self._links, (self._node_id, node.id)
        if pair in links.up:
            links.up.discard(pair)
            links.queues[pair].clear()
            self.connected(node.id, False)

    def connected(self, target: str, up: bool) -> None:
        (self._onNodeConnected if up else self._onNodeDisconnected)(Node(target))


class SimNode(Protocol):
    """What scenarios need of a node. `applied` lists (index, value) in the order of applying, over the whole life of
    the state."""

    node_id: str
    applied: list[tuple[int, Any]]
    transport: LinkTransport

    @property
    def leads(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def deleted(self) -> int:
        """Entries that were cut off this node's log."""
        ...

    def propose(self, value: str, done: Callable[[bool], None]) -> None: ...

    def tick(self) -> None: ...

    def campaign(self) -> None:
        """Let the election deadline pass."""
        ...

    def hold_election(self) -> None:
        """Never campaign by itself."""
        ...

    def sync(self, batches: int | None = None) -> None: ...

    def restarted(self, world: "World", *, power_cut: bool) -> "SimNode":
        """The next process on the same folder."""
        ...

    def admits(self, node_id: str) -> bool:
        """A connection with that node may come about."""
        ...

    def keep_oldest_log(self) -> None:
        """The next power cut takes the log and leaves the rest, if the two are written apart."""
        ...

    def close(self) -> None: ...


def poison(value: str) -> str:
    """The application of both kinds: one sort of command is an error."""
    if value.startswith("poison"):
        raise ValueError(value)
    return value
