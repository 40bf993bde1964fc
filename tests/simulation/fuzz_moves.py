"""The moves of a schedule that change who belongs to the cluster, and what its nodes keep on their disks."""

import random
from collections import Counter
from typing import Any

from kvorum_raft import configuration as cf
from kvorum_raft.errors import NotLeader, RaftError
from tests.simulation.judge import Judge
from tests.simulation.oracle import Oracle
from tests.simulation.world import SafeNode, World

MINIMUM = {
    "acknowledged": 100,
    "reads": 20,
    "terms": 3,
    "added": 0.4,
    "promoted": 0.1,
    "removed": 0.4,
    "removed leaders": 0.01,
    "replaced": 0.06,
    "wiped": 0.5,
    "refused changes": 3,
    "transfers": 1,
    "handed over": 0.4,
    "checkpoints": 4,
    "cuts": 1,
    "installs": 0.3,
    "restores": 0.3,
    "damaged": 0.06,
    "hollow": 0.01,
    "power cuts": 0.8,
    "unsynced losses": 0.6,
}
"""For each kind of event, how many there are in one seed on average at least, about a third of what is usual: with
fewer, the fuzz is blind."""


class MemberMoves:
    """Of kvorum's core only; mixed into `Schedule`."""

    rng: random.Random
    world: World
    judge: Judge
    oracle: Oracle
    count: Counter[str]
    _rotten: str | None
    dwindles: bool
    """The last voter but one may be removed too: not where the one that is left may lie or lose its state."""

    def _leaders(self) -> list[Any]:
        raise NotImplementedError

    def _act_members(self, node_id: str) -> None:
        ready = [node for node in self._leaders() if node.core.leads]
        leaders = ready if self.rng.random() < 0.95 else self._leaders()
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        for _ in range(3 if self.rng.random() < 0.1 else 1):  # at once: all but the first must be refused
            steps = self._steps(leader)
            if steps:
                self._change(leader, *self.rng.choice(steps))

    def _change(self, leader: SafeNode, name: str, target: str) -> None:
        steps = {"added": leader.add, "promoted": leader.promote, "replaced": leader.replace}

        def done(ok: bool) -> None:
            self.count[name if ok else "refused changes"] += 1
            if ok and name in ("added", "replaced"):
                for other in self.world.ids:
                    self.world.connect(target, other)

        steps.get(name, leader.remove)(target, done)

    def _steps(self, leader: SafeNode) -> list[tuple[str, str]]:
        """What an operator might reasonably ask for, and some of what they should not."""
        configuration = leader.core.configuration
        assert configuration is not None
        known, voters = configuration.incarnations, configuration.voters
        fresh = [i for i in self.world.ids if self.world.nodes[i].core.configuration is None]
        steps = [("added", i) for i in fresh if i not in known]
        steps += [("replaced", i) for i in fresh if i in known and known[i] != self.world.incarnations[i]]
        if any(i not in voters for i in known) and self.rng.random() < 0.9:
            steps = []  # one after the other: the last one that was added is not done yet
        behind = max(leader.core.commit_index - 40, 0)
        whole = [i for i in known if known[i] == self.world.incarnations[i]]
        steps += [("promoted", i) for i in whole if i not in voters and leader.core.match_index(i) > behind] * 4
        if len(known) > 2:
            lost = [i for i in known if known[i] != self.world.incarnations[i]]
            removable = (lost or list(known)) if self.rng.random() < 0.15 else []
            if len(voters) == 2 and not self.dwindles:
                removable = [i for i in removable if i not in voters]
            steps += [("removed leaders" if i == leader.node_id else "removed", i) for i in removable]
        return steps

    def _may_lose(self, node_id: str) -> bool:
        """Losing that folder leaves every majority that anybody may count on enough whole folders. One whose
        checkpoints have rotted may lose its state at any time, and is not one of them any more."""
        if self.count["damaged"] and node_id != self._rotten and self._votes(node_id):
            return False
        for node in self.world.nodes.values():
            for configuration in self._possible(node):
                if node_id not in configuration.voters:
                    continue
                incarnations = configuration.incarnations
                whole = [i for i in configuration.voters if incarnations[i] == self.world.incarnations[i]]
                if len(configuration.voters) < 3 or len(whole) < len(configuration.voters):
                    return False
        return True

    def _votes(self, node_id: str) -> bool:
        return any(node_id in one.voters for node in self.world.nodes.values() for one in self._possible(node))

    def _possible(self, node: SafeNode) -> list[cf.Configuration]:
        """What may be in force there yet: the newest configuration that is committed, and all later ones."""
        entries = node.journal.configurations
        committed = [entry for entry in entries if entry.index <= node.core.commit_index][-1:]
        later = [entry for entry in entries if entry.index > node.core.commit_index]
        return [cf.decode(entry.payload) for entry in committed + later]

    def _act_wipe(self, node_id: str) -> None:
        """A folder is lost, or a removed node comes back with an empty one."""
        node = self._removed() or self.world.nodes[node_id]
        node_id = node.node_id
        if not self.judge.acked or not self._may_lose(node_id):
            return
        self.count["wiped"] += 1
        self._account(node)
        self.world.wipe(node_id)
        self.world.nodes[node_id].release_election()
        self.oracle.wiped(node_id)
        self.judge.judged[node_id] = 0

    def _removed(self) -> SafeNode | None:
        """One that can come back only with an empty folder."""
        gone = {one for node in self.world.nodes.values() if node.core.leads for one in self._possible(node)[0].removed}
        return next((self.world.nodes[i] for i, one in self.world.incarnations.items() if one in gone), None)

    def _account(self, node: SafeNode) -> None:
        """The process of this node ends: what it counted counts for the schedule."""
        self.count["installs"] += node.core.counters["installs"]
        self.count["handed over"] += node.handed_over
        self.count["checkpoints"] += node.checkpoints_made
        self.count["cuts"] += node.journal.base_index > node.base_at_start

    def _act_transfer(self, node_id: str) -> None:
        leaders = self._leaders()
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        to = self.rng.choice([None, *self.world.ids])

        def done(error: RaftError | None) -> None:
            leader.handed_over += error is None

        try:
            leader.core.transfer(to, done)
        except (NotLeader, ValueError):
            return
        self.count["transfers"] += 1

    def _act_jobs(self, node_id: str) -> None:
        """Long work of a node goes on."""
        node = self.world.nodes[node_id]
        node.jobs.run(self.rng.choice([1, 1, 2, 8]))
        node.snapshots.tick()

    def _damage(self, node: SafeNode) -> None:
        """Checkpoints rot on the disk; their node finds out when it wants to read them."""
        assert node.checkpoints is not None
        for manifest in node.checkpoints.manifests:
            if self.rng.random() < 0.1:
                continue
            self.count["damaged"] += 1
            file = node.checkpoints.path(manifest)
            content = bytearray(file.read_bytes())
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
            file.write_bytes(content)
