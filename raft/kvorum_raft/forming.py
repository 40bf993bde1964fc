"""How the nodes of a new cluster agree on whose folders it is made of, before anybody votes.

Each node tells all others which incarnations it sees behind the listed names, and stores the set when **every** listed
node, itself included, has reported the very same one. Merely having seen everybody is not enough: of {A, B, C}, A and B
could form and elect, B lose its folder, and C, which saw only the new B, form another cluster with it. With the rule
both sets would need the report of a node that had stored the other one already, and such a node never reports anything
else again. An incarnation that was replaced never comes back.

A folder that is emptied after it had reported the set, and before it stored it, cannot be helped here: another node may
have stored the set already, and may even have had the old folder's vote. The others are a majority and form the
cluster; the empty folder joins it by `replace`. If they are no majority nothing was ever promised to anybody: the ones
that stored the set are emptied too, and the first start begins anew.
"""

from collections.abc import Mapping


class Forming:
    """Pure: feed it what arrives, ask it for the decision."""

    def __init__(self, node_id: str, incarnation: bytes, listed: frozenset[str]) -> None:
        self.node_id = node_id
        self._listed = listed
        self._seen: dict[str, bytes] = {node_id: incarnation}
        self._replaced: set[tuple[str, bytes]] = set()
        self._reports: dict[str, dict[str, bytes]] = {}

    @property
    def seen(self) -> dict[str, bytes]:
        """Node id → incarnation, this node included."""
        return dict(self._seen)

    @property
    def missing(self) -> list[str]:
        return sorted(self._listed - self._seen.keys())

    def saw(self, node_id: str, incarnation: bytes) -> bool:
        """A listed node was met; True if that changes the view (and a report is due)."""
        known = self._seen.get(node_id)
        if node_id not in self._listed or known == incarnation or (node_id, incarnation) in self._replaced:
            return False
        if known is not None:
            self._replaced.add((node_id, known))
            self._reports.pop(node_id, None)
        self._seen[node_id] = incarnation
        return True

    def reported(self, node_id: str, incarnation: bytes, seen: Mapping[str, bytes]) -> None:
        """A report; counts only if it comes from the folder that is seen behind that name."""
        if self._seen.get(node_id) == incarnation:
            self._reports[node_id] = dict(seen)

    def agreed(self) -> bool:
        """True if everybody reported the set that this node sees."""
        return self._seen.keys() == self._listed and all(
            self._reports.get(node_id) == self._seen for node_id in self._listed if node_id != self.node_id
        )

    def may_adopt(self, seen: Mapping[str, bytes], *, from_log: bool) -> bool:
        """True if a set that another node has stored names this folder: then this folder had reported that set.

        A formation record must name just the listed nodes. The configuration of a log (`from_log`) may be any later
        one: the others may have changed the members since.
        """
        return (from_log or seen.keys() == self._listed) and seen.get(self.node_id) == self._seen[self.node_id]
