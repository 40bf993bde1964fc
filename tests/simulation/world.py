"""A deterministic world for Raft cores: virtual clock, FIFO links that can break, disks that forget what was not
synced.

Two kinds of nodes live in it under one interface: `SafeNode` (kvorum's core, with its real journal and wire format) and
`PlainNode` (the library's own core), so that a scenario or a fuzz can be played to both.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import Limits, Timing
from kvorum_raft.entry import Entry, Kind, parse
from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.errors import RaftError, RaftFault
from kvorum_raft.journal import Batch, HardState, RaftJournal, Stored
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.seams import Applied, Member

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


def poison(value: str) -> str:
    """The application of both kinds: one sort of command is an error."""
    if value.startswith("poison"):
        raise ValueError(value)
    return value


# ---------------------------------------------------------------------- kvorum's core


@dataclass
class SimDisk:
    """Batches become durable when `sync` says so; `crash` forgets the others."""

    entries: dict[int, bytes] = field(default_factory=dict)
    state: HardState = field(default_factory=HardState)
    records: dict[bytes, bytes] = field(default_factory=dict)
    pending: deque[Batch] = field(default_factory=deque)

    def submit(self, batch: Batch) -> None:
        self.pending.append(batch)

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        while first + len(found) in self.entries and len(found) < count:
            found.append(parse(self.entries[first + len(found)]))
            if sum(entry.size for entry in found) > max_bytes:
                break
        return found

    def write_one(self) -> int:
        batch = self.pending.popleft()
        if batch.truncate_from is not None:
            for index in [index for index in self.entries if index >= batch.truncate_from]:
                del self.entries[index]
        self.entries.update((entry.index, entry.record) for entry in batch.entries)
        self.records.update(batch.records)
        self.state = batch.state
        if sorted(self.entries) != list(range(1, self.state.last_index + 1)):
            raise Broken("the disk holds a log with a hole")
        return batch.seq

    def crash(self) -> None:
        self.pending.clear()

    def stored(self) -> Stored:
        entries = [parse(self.entries[index]) for index in sorted(self.entries)]
        if self.state.commit_bound > len(entries):
            raise Broken("the log ends below its commit bound")
        runs: list[tuple[int, int]] = []
        for entry in entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        commands = [entry.index for entry in entries if entry.kind is Kind.COMMAND]
        configurations = [entry for entry in entries if entry.kind is Kind.CONFIGURATION]
        return Stored(self.state, runs, entries[-3:], configurations, commands[0] if commands else None)


class Machine:
    """Keeps what it applied; application errors are results, as in the real store."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, Any]] = []
        self.times: list[int] = []
        self._index = 0

    @property
    def applied_index(self) -> int:
        return self._index

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[None, None, Any]:
        if index != self._index + 1:
            raise Broken(f"entry {index} is applied after entry {self._index}")
        if index % 7 == 0:
            yield
        self._index = index  # with all effects, as one transaction
        self.times.append(time_ms)
        if not payload:
            return None
        self.applied.append((index, payload.decode()))
        try:
            return poison(payload.decode())
        except ValueError as error:
            return error


class SafeNode:
    """kvorum's core with a journal on a `SimDisk`. `auto_sync` syncs in every tick."""

    def __init__(
        self,
        node_id: str,
        world: "World",
        disk: SimDisk | None = None,
        machine: Machine | None = None,
        *,
        first_payload: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.node_id = node_id
        self._world = world
        self.disk = disk if disk is not None else SimDisk()
        self.machine = machine if machine is not None else Machine()
        self.transport = LinkTransport(world.links, node_id, lambda envelope: envelope.SerializeToString())
        self.reads: dict[int, Callable[[int | None], None]] = {}
        self._deleted = 0
        self._held = False
        self.fault: RaftFault | None = None
        self.journal = RaftJournal(self.disk, self.disk.stored(), cache=LIMITS.log_cache, clock=world.clock)
        truncate = self.journal.truncate_from

        def counted(index: int) -> None:
            self._deleted += self.journal.last_index - index + 1
            truncate(index)

        self.journal.truncate_from = counted  # type: ignore[method-assign]
        rng = random.Random(world.rng.random())
        self.core = SafeSyncObj(
            node_id,
            self.journal,
            self.transport,
            self.machine,
            _Listening(self),
            EntryClock(node_id, lambda: world.wall_ms(node_id), world.clock),
            timing=TIMING,
            limits=LIMITS,
            clock=world.clock,
            rng=rng,
            new_id=lambda: rng.randbytes(16),
            first_payload=first_payload,
        )
        self.core.form(world.formation)

    @property
    def applied(self) -> list[tuple[int, Any]]:
        return self.machine.applied

    @property
    def leads(self) -> bool:
        return self.core.state == LEADER

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def applied_index(self) -> int:
        return self.core.applied_index

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def deleted(self) -> int:
        return self._deleted

    def propose(
        self, value: str, done: Callable[[bool], None], refused: Callable[[RaftError], None] | None = None
    ) -> None:
        """`refused` hears why it was not done."""

        def finished(applied: Applied | None, error: RaftError | None) -> None:
            if error is not None and refused is not None:
                refused(error)
            done(error is None)

        self.core.propose(value.encode(), finished)

    def tick(self, *, judge: bool = True) -> None:
        """`judge=False`: a step that comes late, as `RaftNode` takes it before it has read its sockets."""
        if self._held:
            self.hold_election()
        self.core.tick(judge=judge)
        if self._world.auto_sync:
            self.sync()
        if self.applied_index > min(self.core.commit_index, self.journal.durable_index):
            raise Broken(f"node {self.node_id} applied beyond its durable log")

    def campaign(self) -> None:
        self._held = False
        self.core._SyncObj__raftElectionDeadline = 0.0
        self.core._contact = float("-inf")
        self.core.tick()
        self.core._SyncObj__raftElectionDeadline = 1e18
        if self._world.auto_sync:
            self.sync()

    def hold_election(self) -> None:
        self._held = True
        self.core._SyncObj__raftElectionDeadline = 1e18

    def sync(self, batches: int | None = None) -> None:
        self.journal.flush()
        while self.disk.pending and batches != 0:
            self.core.durable(self.disk.write_one())
            batches = None if batches is None else batches - 1

    def deliver(self, source: str, message: bytes) -> None:
        self.transport.deliver(source, pb.Envelope.FromString(message))

    def read(self, read_id: int, done: Callable[[int | None], None]) -> None:
        """Linearizable: `done` gets the index that the read may see, or None."""
        if self.leads:
            self.core.read_index(lambda index, error: done(None if error else index))
        elif self.core.ask_leader(read_id):
            self.reads[read_id] = done
        else:
            done(None)

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        done = self.reads.pop(read_id, None)
        if done is not None:
            done(index if ok else None)


class _Listening:
    """The core's listener: `SafeNode.applied` is a list, the listener's `applied` a method."""

    def __init__(self, node: SafeNode) -> None:
        self._node = node

    def applied(self, applied: Applied) -> None:
        pass

    def role_changed(self) -> None:
        pass

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        pass

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        self._node.read_answered(read_id, ok, index)


# ---------------------------------------------------------------------- the world


class World:
    """Nodes, links and time. `kind` makes a node; use inside `plain_time` if it is a `PlainNode`."""

    def __init__(self, kind: Callable[..., Any], ids: str = "ABC", *, seed: int = 0, auto_sync: bool = True) -> None:
        self.kind = kind
        self.ids = list(ids)
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.links = Links()
        self.auto_sync = auto_sync
        self.wall_offset_ms: dict[str, int] = {}
        voters = [cf.Voter(Member(i, f"{i}:1", f"{i}:2"), i.encode() * 16) for i in self.ids]
        self.formation = cf.make(b"", voters)
        self.nodes: dict[str, Any] = {}

    def start(self) -> "World":
        for node_id in self.ids:
            self.nodes[node_id] = self.kind(node_id, self)
        return self

    def wall_ms(self, node_id: str) -> int:
        return int(self.clock.now * 1000) + 1_700_000_000_000 + self.wall_offset_ms.get(node_id, 0)

    def pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for a in self.ids for b in self.ids if a != b]

    def connect(self, a: str, b: str) -> None:
        """Both directions."""
        for source, target in ((a, b), (b, a)):
            if (source, target) not in self.links.up:
                self.links.up.add((source, target))
                self.nodes[source].transport.connected(target, True)

    def disconnect(self, a: str, b: str) -> None:
        """A reset: what was under way is lost."""
        for source, target in ((a, b), (b, a)):
            self.links.queues[source, target].clear()
            if (source, target) in self.links.up:
                self.links.up.discard((source, target))
                self.nodes[source].transport.connected(target, False)

    def mesh(self) -> None:
        for a, b in self.pairs():
            self.connect(a, b)

    def deliver(self, source: str, target: str, count: int | None = None) -> int:
        queue = self.links.queues[source, target]
        delivered = 0
        while queue and (count is None or delivered < count):
            self.nodes[target].deliver(source, queue.popleft())
            delivered += 1
        return delivered

    def pump(self, rounds: int, *, dt: float = 0.11, ids: str | None = None) -> None:
        """Tick everybody and deliver everything, so many times; elections only where scenarios ask for them."""
        members = list(ids) if ids is not None else self.ids
        for _ in range(rounds):
            for node_id in members:
                self.clock.now += dt / len(members)
                self.nodes[node_id].tick()
            for a, b in self.pairs():
                if a in members and b in members:
                    self.deliver(a, b)

    def elect(self, node_id: str, ids: str | None = None) -> Any:
        """Make a node the leader among the nodes named."""
        for other in self.ids:
            self.nodes[other].hold_election()
        self.clock.now += 2.0
        self.nodes[node_id].campaign()
        self.pump(4, dt=0.02, ids=ids)
        if not self.nodes[node_id].leads:
            raise RuntimeError(f"the scenario did not get node {node_id} elected")
        return self.nodes[node_id]
