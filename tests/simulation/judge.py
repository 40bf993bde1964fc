"""What was promised in one schedule so far, and whether it was kept: seen from outside, for both kinds of nodes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import Broken, SafeNode, World


@dataclass
class Judge:
    """`look` after whatever a node did."""

    history: dict[int, Any] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Values that were certainly not applied, as their proposers were told."""
    acked_index: int = 0
    reads: int = 0
    _adopted: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def look(self, node: Any) -> None:
        if node.leads and self.leaders.setdefault(node.term, node.node_id) != node.node_id:
            raise Broken(f"two leaders in term {node.term}")
        applied, start = node.applied, self.judged.get(node.node_id, 0)
        if isinstance(node, SafeNode) and self._replaced(node):
            start = 0
        if len(applied) == start:
            return
        for index, value in applied[start:]:
            if self.history.setdefault(index, value) != value:
                raise Broken(f"entry {index} is applied differently")
        indices = [index for index, _ in applied[max(start - 1, 0) :]]
        if indices != sorted(set(indices)):
            raise Broken("entries are applied twice or out of order")
        self.judged[node.node_id] = len(applied)

    def _replaced(self, node: SafeNode) -> bool:
        """The state is another one than it was, by a snapshot or a restart."""
        seen = self._adopted.get(node.node_id)
        self._adopted[node.node_id] = now = (node.machine, node.machine.adopted)
        return now != seen

    def answered(self, value: str, ok: bool, node: Any) -> None:
        if ok:
            self.acked.add(value)
            self.acked_index = max(self.acked_index, node.applied_index)

    def end(self, world: World, nodes: list[Any]) -> None:
        """Of those who are members at the end."""
        if len({tuple(node.applied) for node in nodes}) > 1:
            raise Broken("the states differ")
        values = Counter(value for _, value in nodes[0].applied)
        if lost := self.acked - set(values):
            raise Broken(f"{len(lost)} acknowledged writes are lost")
        if self.refused & set(values):
            raise Broken("a write was applied of which its proposer was told that it certainly was not")
        if values and max(values.values()) > 1:
            raise Broken("a write was applied twice")
        for node in nodes:
            if isinstance(node, SafeNode):
                times = node.machine.times
                if times != sorted(times):
                    raise Broken("entry time went back")
                self._judge_time(world, times)

    def _judge_time(self, world: World, times: list[int]) -> None:
        """With a minority of clocks wrong, time may lag behind until a quorum's clocks are known, but never runs
        ahead."""
        true_ms = int(world.clock.now * 1000) + 1_700_000_000_000
        if times and times[-1] > true_ms + 10_000:
            raise Broken(f"entry time is {times[-1] - true_ms} ms ahead of every sound clock")
