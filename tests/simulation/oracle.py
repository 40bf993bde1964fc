"""Sees everything: each message when it leaves, each disk, each commit. Broken promises show here long before a write
is lost, which may take a second and a third misfortune.

It knows what no node can know (all disks, all logs), and is asked about kvorum's core only.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import RaftFault
from tests.simulation.world import TIMING, Broken

if TYPE_CHECKING:
    from tests.simulation.world import SafeNode, SimDisk, World

_SLACK = 0.01
"""Seconds that looking at the clock may take within one step."""


@dataclass
class Oracle:
    """`sent` is called for each message that goes onto a link, `look` after whatever a node did."""

    world: "World"
    votes: dict[tuple[str, int], str] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    """(node, term) → highest index that the node acknowledged in that term."""
    committed: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Index → (the term in which a node first took it for committed, its record)."""
    _answers: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """(node, leader, term) → when the node last answered."""
    _offices: dict[str, tuple[tuple[int, frozenset[str]], float]] = field(default_factory=dict)
    """Leader → ((term, voters), since when that is so)."""
    _commits: dict[str, tuple["SafeNode", int]] = field(default_factory=dict)
    _judged_leaders: set[tuple[str, int]] = field(default_factory=set)

    def wiped(self, node_id: str) -> None:
        """Another folder under the same name, which has promised nothing."""
        self.votes = {key: vote for key, vote in self.votes.items() if key[0] != node_id}
        self.acknowledged = {key: match for key, match in self.acknowledged.items() if key[0] != node_id}
        self._offices.pop(node_id, None)
        self._commits.pop(node_id, None)

    # ---- messages

    def sent(self, source: str, target: str, envelope: pb.Envelope) -> None:
        node, body = self.world.nodes[source], envelope.WhichOneof("body")
        if body in ("pre_vote", "pre_vote_reply"):
            return
        if node.disk.state.term < envelope.term:
            raise Broken(f"node {source} sends {body} of term {envelope.term}, which is not synced")
        if body == "append_reply":
            self._answers[source, target, envelope.term] = self.world.clock.now
        if body == "request_vote":
            self._voted(node, source, envelope.term)
        elif body == "vote" and envelope.vote.granted:
            self._voted(node, target, envelope.term)
        elif body == "append_reply" and envelope.append_reply.success:
            self._acknowledges(node, target, envelope.term, envelope.append_reply.match_index)

    def _voted(self, node: "SafeNode", candidate: str, term: int) -> None:
        if (node.disk.state.term, node.disk.state.vote) != (term, candidate):
            raise Broken(f"node {node.node_id} votes for {candidate} in term {term} before that is synced")
        if self.votes.setdefault((node.node_id, term), candidate) != candidate:
            raise Broken(f"node {node.node_id} votes twice in term {term}")

    def _acknowledges(self, node: "SafeNode", target: str, term: int, match: int) -> None:
        holder = (node.node_id, term)
        self.acknowledged[holder] = max(self.acknowledged.get(holder, 0), match)
        record = node.disk.entries.get(match)
        if match > node.disk.state.base_index and record is None:
            raise Broken(f"node {node.node_id} acknowledges entry {match}, which is not synced")
        leader = self.world.nodes[target]
        theirs = _record(leader, match) if match else None
        if None not in (record, theirs) and leader.leads and leader.term == term and theirs != record:
            raise Broken(f"node {node.node_id} acknowledges entry {match}, which is not the leader's")

    # ---- nodes

    def look(self, node: "SafeNode") -> None:
        if node.journal.kept_index < self.acknowledged.get((node.node_id, node.term), 0):
            raise Broken(f"node {node.node_id} gave up what it acknowledged in term {node.term}")
        seen, before = self._commits.get(node.node_id, (node, node.core.commit_index if node.leads else 0))
        commit = node.core.commit_index
        if seen is not node:  # started again: the bound that it stored
            before = 0
        if commit < before:
            raise Broken(f"the commit index of node {node.node_id} went back")
        if commit > before:
            self._commits[node.node_id] = (node, commit)
            self._judge_commit(node, before, commit)
        if node.leads and (node.node_id, node.term) not in self._judged_leaders:
            self._judged_leaders.add((node.node_id, node.term))
            self._judge_leader(node)

    def look_at_office(self, node: "SafeNode") -> None:
        """After a step that judged the timers: a leader whom no quorum answered for so long has stepped down."""
        if not node.leads:
            self._offices.pop(node.node_id, None)
            return
        now, term = self.world.clock.now, node.term
        office = (term, node.voters)  # a new voter gets as much time as a new leader
        found, since = self._offices.setdefault(node.node_id, (office, now))
        if found != office:
            since = now
            self._offices[node.node_id] = (office, since)
        limit = now - TIMING.election_max - _SLACK
        heard = self._heard(node, term, limit)
        if since <= limit and heard <= len(node.voters) // 2:
            raise Broken(f"node {node.node_id} leads, and only {heard} of {len(node.voters)} are known to follow")

    def read_served(self, node: "SafeNode", term: int, begun: float) -> None:
        """A leader answers a read: it must have heard since then that a quorum still followed it."""
        heard = self._heard(node, term, begun)
        if heard <= len(node.voters) // 2:
            raise Broken(f"node {node.node_id} answers a read, and only {heard} voters confirmed it since it began")

    def _heard(self, node: "SafeNode", term: int, since: float) -> int:
        """Voters that have followed this leader since then, itself included if it is one."""
        others = node.voters - {node.node_id}
        own = node.node_id in node.voters
        return own + sum(self._answers.get((other, node.node_id, term), 0.0) > since for other in others)

    def _judge_commit(self, node: "SafeNode", before: int, commit: int) -> None:
        for index in range(max(before, node.journal.base_index) + 1, commit + 1):
            record = _record(node, index)
            if record is None or self.committed.setdefault(index, (node.term, record))[1] != record:
                raise Broken(f"node {node.node_id} takes another entry {index} for committed")
        if not node.leads:
            return
        # What an older term left is committed only by an entry of this term on top of it (Raft, figure 8).
        if node.journal.term_at(commit) != node.term:
            raise Broken(f"the leader of term {node.term} counts copies of an entry of an older term")
        record = _record(node, commit)
        meant = node.core.configuration.incarnations if node.core.configuration is not None else {}
        # Of a folder that is lost by now an acknowledgement may have come before; it is one failure among the many.
        disks = [self._disk(other, meant[other]) for other in node.voters]
        copies = sum(disk.state.base_index >= commit or disk.entries.get(commit) == record for disk in disks)
        if copies <= len(node.voters) // 2:
            raise Broken(f"the leader of term {node.term} commits entry {commit}, which {copies} disks hold")

    def _disk(self, node_id: str, incarnation: bytes) -> "SimDisk":
        here = self.world.incarnations[node_id] == incarnation
        return self.world.nodes[node_id].disk if here else self.world.lost_disks[incarnation]

    def _judge_leader(self, node: "SafeNode") -> None:
        """A leader holds whatever was committed in earlier terms. Logs that are equal at an index are so before it."""
        earlier = [index for index, (term, _) in self.committed.items() if term < node.term]
        covered = earlier and max(earlier) <= node.journal.base_index
        if earlier and not covered and _record(node, max(earlier)) != self.committed[max(earlier)][1]:
            raise Broken(f"the leader of term {node.term} lacks the committed entry {max(earlier)}")


def _record(node: "SafeNode", index: int) -> bytes | None:
    try:
        return node.journal.entry(index).record
    except RaftFault:
        return None
