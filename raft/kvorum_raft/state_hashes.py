"""Comparison of the nodes' content hashes (rules A6).

Replicas that applied the same entries hold the same content; one that does not is broken, by a flipped bit or a defect,
and the others can tell. Only a majority of equal hashes says who is right: without one nothing is decided.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

HASH_SIZE: Final = 16
_MAX_NODES: Final = 32


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something is wrong at an index."""

    index: int
    content_hash: bytes
    """What the majority of the voters has; empty if there is no majority."""
    minority: frozenset[str]
    """Voters with another one; if there is no majority, all that have reported."""
    own: bool
    """This node is one of them."""

    @property
    def decided(self) -> bool:
        """A majority is equal, so that the others are known to be wrong."""
        return bool(self.content_hash)


class StateHashes:
    """Hashes at every `every`th index; the last `keep` of each node are remembered, whatever it sends."""

    def __init__(self, every: int = 256, keep: int = 64) -> None:
        self._every, self._keep = every, keep
        self._own: OrderedDict[int, bytes] = OrderedDict()
        self._reports: OrderedDict[str, OrderedDict[int, bytes]] = OrderedDict()

    def due(self, index: int) -> bool:
        """True where hashes are compared."""
        return index > 0 and index % self._every == 0

    def own(self, index: int, content_hash: bytes) -> None:
        """This node's state after that entry."""
        self._remember(self._own, index, content_hash)

    def own_at(self, index: int) -> bytes | None:
        """What `own` said, if it is remembered."""
        return self._own.get(index)

    def reported(self, node_id: str, index: int, content_hash: bytes) -> None:
        """A peer's. What makes no sense is ignored."""
        if not self.due(index) or len(content_hash) != HASH_SIZE:
            return
        if node_id not in self._reports and len(self._reports) >= _MAX_NODES:
            self._reports.popitem(last=False)
        self._remember(self._reports.setdefault(node_id, OrderedDict()), index, content_hash)

    def _remember(self, known: OrderedDict[int, bytes], index: int, content_hash: bytes) -> None:
        known[index] = content_hash
        known.move_to_end(index)
        if len(known) > self._keep:
            known.popitem(last=False)

    def forget(self, node_id: str) -> None:
        """Its state is another one now (it was rebuilt, or its folder replaced)."""
        self._reports.pop(node_id, None)

    def clear(self) -> None:
        """At the beginning of office, or when a snapshot became the state."""
        self._own.clear()
        self._reports.clear()

    def judge(self, index: int, voters: frozenset[str], own_id: str) -> Verdict | None:
        """What the voters' hashes at that index say; None if all that are known agree, or too few are known. The same
        answer until another hash arrives."""
        for node_id in [one for one in self._reports if one not in voters]:
            del self._reports[node_id]
        found = {node_id: known[index] for node_id, known in self._reports.items() if index in known}
        found.pop(own_id, None)
        if own_id in voters and index in self._own:
            found[own_id] = self._own[index]
        counts = Counter(found.values())
        if len(counts) < 2:
            return None
        most, count = counts.most_common(1)[0]
        quorum = len(voters) // 2 + 1
        if count >= quorum:
            minority = frozenset(node_id for node_id, content_hash in found.items() if content_hash != most)
            return Verdict(index, most, minority, own_id in minority)
        if count + len(voters) - len(found) >= quorum:
            return None  # those who have not reported may still make a majority
        return Verdict(index, b"", frozenset(found), own_id in found)
