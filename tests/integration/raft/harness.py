"""Real `RaftNode`s on real sockets and disks, in one event loop; see `replica` for nodes in processes of their own."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kvorum_node.dev_cluster import free_ports
from kvorum_raft.config import Limits, RaftConfig, Timing
from kvorum_raft.errors import RaftError
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Applied, Member, StateFacts
from tests.pace import BUSY

QUICK = Timing(election_min=0.3 * BUSY, election_max=0.6 * BUSY, heartbeat=0.06, slow_sync=10.0)
"""All nodes share one loop, and their machine with others: a loop or a disk that stands still for longer would rightly
cost a leader its office."""


class ListMachine:
    """A state in memory: every start applies the log again, from the newest checkpoint on."""

    def __init__(self, slices: int = 0) -> None:
        self.payloads: list[bytes] = []
        self.times: list[int] = []
        self.adopted: list[int] = []
        """Index of each snapshot that became the state."""
        self._index = 0
        self._slices = slices
        self._digest = bytes(16)

    @property
    def applied_index(self) -> int:
        return self._index

    @property
    def digest(self) -> str:
        return self._digest.hex()

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        for _ in range(self._slices):
            yield
        if index != self._index + 1:
            raise ValueError(f"entry {index} after entry {self._index}")
        yield True
        self._index = index
        self.times.append(time_ms)
        self._digest = hashlib.blake2b(
            self._digest + index.to_bytes(8, "big") + time_ms.to_bytes(8, "big") + payload, digest_size=16
        ).digest()
        if payload:
            self.payloads.append(payload)
        return len(payload)

    def state_hash(self) -> bytes:
        return self._digest

    def size(self) -> int:
        return sum(map(len, self.payloads))

    def image(self) -> "Image":
        content = {"index": self._index, "times": self.times, "digest": self.digest}
        payloads = [payload.decode() for payload in self.payloads]
        return Image(StateFacts(self._index, (self.times or [0])[-1], self._digest), {**content, "payloads": payloads})

    def inspect(self, file: Path) -> StateFacts:
        return self.prepare(file).facts

    def prepare(self, file: Path, pause: Callable[[int], None] | None = None) -> "Image":
        content = json.loads(file.read_text())
        times = content["times"] or [0]
        return Image(StateFacts(content["index"], times[-1], bytes.fromhex(content["digest"])), content)

    def adopt(self, prepared: Any) -> None:
        content = prepared.content
        self._index, self.times = content["index"], list(content["times"])
        self._digest = bytes.fromhex(content["digest"])
        self.payloads = [payload.encode() for payload in content["payloads"]]
        self.adopted.append(self._index)


class Image:
    """Of a `ListMachine`, held or read back."""

    def __init__(self, facts: StateFacts, content: dict[str, Any]) -> None:
        self.facts = facts
        self.content = content
        self._bytes = json.dumps(content).encode()

    def copy_to(self, fd: int) -> None:
        rest = memoryview(self._bytes)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def close(self) -> None:
        pass

    def discard(self) -> None:
        pass


def make_members(count: int = 3, holder: object = None) -> list[Member]:
    ports = free_ports(2 * count, holder)
    return [Member(f"n{i + 1}", f"127.0.0.1:{ports[2 * i]}", f"127.0.0.1:{ports[2 * i + 1]}") for i in range(count)]


async def wait_until(condition: Callable[[], bool], *, within: float = 60.0, what: str = "condition") -> None:
    """Let the loop run until the condition holds."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {within} s")
        await asyncio.sleep(0.005)


class Cluster:
    """`nodes[node_id]` are the running ones."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        timing: Timing = QUICK,
        limits: Limits | None = None,
        slices: int = 0,
        first_payload: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.folder = folder
        self.members = make_members(count, self)
        self.nodes: dict[str, RaftNode] = {}
        self.machines: dict[str, ListMachine] = {}
        self.faults: dict[str, RaftError] = {}
        self.joining: set[str] = set()
        self.prepare: Callable[[str, RaftNode], None] = lambda node_id, node: None
        """Called with each node before it is started."""
        self._timing = timing
        self._limits = limits or Limits()
        self._slices = slices
        self._first_payload = first_payload

    def config(self, node_id: str) -> RaftConfig:
        return RaftConfig(
            node_id,
            self.members,
            self.folder / node_id,
            timing=self._timing,
            limits=self._limits,
            map_size=1 << 34,
            join=node_id in self.joining,
        )

    def joins(self, node_id: str) -> Member:
        """Another node, which waits to be added when it is started."""
        self.joining.add(node_id)
        known = next((member for member in self.members if member.node_id == node_id), None)
        if known is None:
            ports = free_ports(2, self)
            known = Member(node_id, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
            self.members = [*self.members, known]
        return known

    def data(self, node_id: str) -> Path:
        return self.folder / node_id / "raft" / "log" / "data.mdb"

    async def start(self, *node_ids: str) -> None:
        for node_id in node_ids or [member.node_id for member in self.members]:
            machine = ListMachine(self._slices)
            node = RaftNode(
                self.config(node_id),
                machine,
                first_payload=self._first_payload,
                on_fault=lambda error, node_id=node_id: self.faults.__setitem__(node_id, error),
            )
            self.prepare(node_id, node)
            await node.start()
            self.nodes[node_id], self.machines[node_id] = node, machine

    async def stop(self, *node_ids: str) -> None:
        for node_id in node_ids or list(self.nodes):
            await self.nodes.pop(node_id).stop()

    async def leader(self, *, within: float = 60.0) -> RaftNode:
        def leaders() -> list[RaftNode]:
            return [node for node in self.nodes.values() if node.is_leader]

        await wait_until(lambda: bool(leaders()), within=within, what="leader")
        return max(leaders(), key=lambda node: node.status().term)

    async def followers(self) -> list[RaftNode]:
        leader = await self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    async def propose(self, count: int, *, size: int = 20, at_once: int = 200) -> list[Applied]:
        """Entries with distinct payloads, through the leader."""
        leader = await self.leader()
        found: list[Applied] = []
        for start in range(0, count, at_once):
            numbers = range(start, min(start + at_once, count))
            payloads = [f"{len(found)}/{number}/".encode().ljust(size, b".") for number in numbers]
            found += await asyncio.gather(*[leader.propose(payload) for payload in payloads])
        return found

    async def settled(self) -> None:
        """All nodes have applied the same entries."""
        leader = await self.leader()

        def same() -> bool:
            goal = leader.status().last_log_index
            return all(node.status().applied_index == goal for node in self.nodes.values())

        await wait_until(same, what="agreement")
        digests = {self.machines[node_id].digest for node_id in self.nodes}
        assert len(digests) == 1, "the nodes applied different entries"


async def promoted(leader: RaftNode, node_id: str) -> None:
    """Make a learner a voter, once it has caught up."""

    def caught_up() -> bool:
        status = leader.status()
        views = [view for view in status.peers if view.member.node_id == node_id]
        return bool(views) and views[0].connected and views[0].match_index == status.last_log_index

    await wait_until(caught_up, what="caught up learner")
    await leader.promote(node_id)
