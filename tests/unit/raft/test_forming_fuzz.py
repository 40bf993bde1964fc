"""Random first starts: folders that are emptied at any moment, connections that break, reports that are late."""

import random
from collections import defaultdict, deque

import pytest

from kvorum_raft.forming import Forming

LISTED = frozenset("ABC")


class Start:
    """Three nodes that want to become one cluster. A stored set is lost only with its folder."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes: dict[str, Forming] = {}
        self.incarnations: dict[str, bytes] = {}
        self.stored: dict[str, dict[str, bytes]] = {}
        self.links: defaultdict[tuple[str, str], deque[tuple[bytes, dict[str, bytes], bool]]] = defaultdict(deque)
        self.up: set[tuple[str, str]] = set()
        self.wipes = 0
        for node_id in sorted(LISTED):
            self.empty(node_id)

    def empty(self, node_id: str) -> None:
        self.incarnations[node_id] = self.rng.randbytes(16)
        self.nodes[node_id] = Forming(node_id, self.incarnations[node_id], LISTED)
        self.stored.pop(node_id, None)
        for other in LISTED - {node_id}:
            self.drop(node_id, other)
            self.drop(other, node_id)

    def drop(self, source: str, target: str) -> None:
        self.up.discard((source, target))
        self.links[source, target].clear()

    def connect(self, source: str, target: str) -> None:
        """Both judge the other, as a handshake does: who has formed lets only its own folders in."""
        for one, other in ((source, target), (target, source)):
            if one in self.stored and self.stored[one][other] != self.incarnations[other]:
                return
        self.up.add((source, target))
        for one, other in ((source, target), (target, source)):
            if one not in self.stored and self.nodes[one].saw(other, self.incarnations[other]):
                self.report(one)
        self.send(source, target)

    def send(self, source: str, target: str) -> None:
        if (source, target) in self.up:
            report = self.stored.get(source) or self.nodes[source].seen
            self.links[source, target].append((self.incarnations[source], report, source in self.stored))

    def report(self, node_id: str) -> None:
        for other in sorted(LISTED - {node_id}):
            self.send(node_id, other)
        self.decide(node_id)

    def decide(self, node_id: str) -> None:
        if node_id not in self.stored and self.nodes[node_id].agreed():
            self.store(node_id, self.nodes[node_id].seen)

    def store(self, node_id: str, seen: dict[str, bytes]) -> None:
        self.stored[node_id] = seen
        self.report(node_id)

    def deliver(self, source: str, target: str) -> None:
        if not self.links[source, target]:
            return
        incarnation, seen, stored = self.links[source, target].popleft()
        node = self.nodes[target]
        if target in self.stored:
            return
        if stored:
            if node.may_adopt(seen):
                self.store(target, seen)
        else:
            node.reported(source, incarnation, seen)
            self.decide(target)

    def step(self, wipe: float) -> None:
        source, target = self.rng.sample(sorted(LISTED), 2)
        chance = self.rng.random()
        if chance < wipe:
            self.wipes += 1
            self.empty(source)
        elif chance < wipe + 0.05:
            self.drop(source, target)
        elif chance < 0.4:
            if (source, target) not in self.up:
                self.connect(source, target)
        else:
            self.deliver(source, target)
        sets = list(self.stored.values())
        assert all(one == sets[0] for one in sets), "two clusters could come out of one first start"


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_no_two_sets_are_ever_stored_side_by_side(first: int) -> None:
    formed = wipes = 0
    for seed in range(first, first + 50):
        start = Start(seed)
        for _ in range(300):
            start.step(wipe=0.02)
        formed += bool(start.stored)
        wipes += start.wipes
    assert formed > 10
    assert wipes > 100


def test_without_trouble_everybody_stores_the_same_set() -> None:
    start = Start(1)
    for _ in range(300):
        start.step(wipe=0.0)
    assert start.stored.keys() == LISTED
