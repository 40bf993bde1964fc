"""Random first starts: folders that are emptied at any moment, connections that break, reports that are late."""

import itertools
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
            if node.may_adopt(seen, from_log="D" in seen):
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
        elif chance < wipe + 0.06 and len(self.stored) > 1 and source in self.stored:
            self.stored[source] = {**self.stored[source], "D": b"d" * 16}  # a later configuration, from its log
        elif chance < 0.4:
            if (source, target) not in self.up:
                self.connect(source, target)
        else:
            self.deliver(source, target)
        sets = [{one: seen[one] for one in LISTED} for seen in self.stored.values()]
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


def _all_have_reported(start: Start) -> None:
    """Everybody sees everybody; all reports are under way."""
    for source, target in itertools.permutations(sorted(LISTED), 2):
        start.connect(source, target)
    for source in sorted(LISTED):
        start.report(source)


def _run(start: Start) -> None:
    for _ in range(20):
        for source, target in itertools.permutations(sorted(LISTED), 2):
            if (source, target) not in start.up:
                start.connect(source, target)
            while start.links[source, target]:
                start.deliver(source, target)


def test_a_folder_emptied_between_report_and_storing_stays_outside_of_what_the_others_form() -> None:
    """They cannot know that it had not stored the set, and voted. It joins them by `replace`."""
    start = Start(1)
    _all_have_reported(start)
    while start.links["C", "A"]:
        start.deliver("C", "A")
    while start.links["B", "A"]:
        start.deliver("B", "A")
    assert "A" in start.stored
    assert "C" not in start.stored
    old = start.stored["A"]["C"]
    start.empty("C")
    _run(start)
    assert start.stored.keys() == {"A", "B"}, "a majority"
    assert start.stored["A"] == start.stored["B"]
    assert start.stored["A"]["C"] == old
    assert start.nodes["C"].missing == ["A", "B"], "who have formed say nothing to it but no"


def test_if_no_majority_is_left_the_first_start_begins_anew_when_the_rest_is_emptied_too() -> None:
    start = Start(2)
    _all_have_reported(start)
    for source in "BC":
        while start.links[source, "A"]:
            start.deliver(source, "A")
    assert start.stored.keys() == {"A"}
    start.empty("B")
    start.empty("C")
    _run(start)
    assert start.stored.keys() == {"A"}, "the others wait, and nobody has condemned them"
    start.empty("A")
    _run(start)
    assert start.stored.keys() == LISTED
