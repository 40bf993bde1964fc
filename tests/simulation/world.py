"""A deterministic world for Raft cores: virtual clock, FIFO links that can break, disks that forget what was not
synced.

Two kinds of nodes live in it under one interface: `SafeNode` (kvorum's core, with its real journal, checkpoints and
wire format) and `PlainNode` (the library's own core), so that a scenario or a fuzz can be played to both.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvorum_raft import configuration as cf
from kvorum_raft.seams import Member
from tests.simulation.links import BATCH, LIMITS, TIMING, Broken, Clock, Links, LinkTransport, SimNode, poison
from tests.simulation.machine import Machine
from tests.simulation.safe import SafeNode
from tests.simulation.simdisk import SimDisk

__all__ = [
    "BATCH",
    "LIMITS",
    "TIMING",
    "Broken",
    "Clock",
    "LinkTransport",
    "Links",
    "Machine",
    "SafeNode",
    "SimDisk",
    "SimNode",
    "World",
    "poison",
]


class World:
    """Nodes, links and time. `kind` makes a node; use inside `plain_time` if it is a `PlainNode`."""

    def __init__(
        self,
        kind: Callable[..., Any],
        ids: str = "ABC",
        *,
        founders: str | None = None,
        seed: int = 0,
        auto_sync: bool = True,
        folder: Path | None = None,
        checkpoint_bytes: int = 1 << 40,
    ) -> None:
        """`folder`: where `SafeNode`s keep their checkpoints; without one they make none. `checkpoint_bytes`: of log
        between two of them."""
        self.kind = kind
        self.ids = list(ids)
        self.founders = list(founders if founders is not None else ids)
        """Who forms the cluster; the others wait to be added."""
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.links = Links()
        self.auto_sync = auto_sync
        self.wall_offset_ms: dict[str, int] = {}
        self.folder = folder
        self.checkpoint_bytes = checkpoint_bytes
        self.incarnations = {node_id: node_id.encode() * 16 for node_id in self.ids}
        self.formation = cf.make(b"", [cf.Voter(*self.member(node_id)) for node_id in self.founders])
        self.nodes: dict[str, Any] = {}
        self.lost_disks: dict[bytes, SimDisk] = {}
        """Incarnation → what was on the disk of a folder that is gone."""

    def member(self, node_id: str) -> tuple[Member, bytes]:
        """A node as others name it, with the incarnation of the folder that it has now."""
        return Member(node_id, f"{node_id}:1", f"{node_id}:2"), self.incarnations[node_id]

    def forms(self, node_id: str) -> bool:
        """The folder that the node has now is one of those that form the cluster."""
        return node_id in self.founders and self.incarnations[node_id] == node_id.encode() * 16

    def start(self) -> "World":
        for node_id in self.ids:
            self.nodes[node_id] = self.kind(node_id, self)
        return self

    def restart(self, node_id: str, *, power_cut: bool = False) -> Any:
        """Kill the process, or the machine, and start the next one; it has no connections yet and holds its
        election."""
        for other in self.ids:
            if other != node_id:
                self.disconnect(node_id, other)
        self.nodes[node_id] = self.nodes[node_id].restarted(self, power_cut=power_cut)
        self.nodes[node_id].hold_election()
        return self.nodes[node_id]

    def wipe(self, node_id: str) -> Any:
        """Somebody puts an empty folder in the node's place, and starts it to join."""
        for other in self.ids:
            if other != node_id:
                self.disconnect(node_id, other)
        old = self.nodes[node_id]
        old.stop()
        self.lost_disks[self.incarnations[node_id]] = old.disk
        self.incarnations[node_id] = f"{node_id}{len(self.lost_disks)}".encode().ljust(16, b".")
        if self.folder is not None:
            shutil.rmtree(self.folder / node_id)
        self.nodes[node_id] = SafeNode(node_id, self)
        self.nodes[node_id].hold_election()
        return self.nodes[node_id]

    def wall_ms(self, node_id: str) -> int:
        return int(self.clock.now * 1000) + 1_700_000_000_000 + self.wall_offset_ms.get(node_id, 0)

    def pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for a in self.ids for b in self.ids if a != b]

    def connect(self, a: str, b: str) -> None:
        """Both directions, if both let each other in."""
        if not (self.nodes[a].admits(b) and self.nodes[b].admits(a)):
            return
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
