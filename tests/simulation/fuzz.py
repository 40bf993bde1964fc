"""Random schedules of messages, delays, resets, slow disks, crashes and wrong clocks, judged by the promises of
consensus.

Chance alone seldom puts two misfortunes side by side, so some of it is aimed: crashes prefer nodes with unsynced
writes, and when a leader was cut off (or its links stand still, and deliver all at once later), the others hurry to
elect, write and acknowledge while somebody reads from the old one.

    python -m tests.simulation.fuzz --seeds 200 --first-seed 0 [--nodes 3] [--plain]

`--plain` plays the same kind of schedules to the library's own core, with disks that forget nothing: it fails in a good
part of them, which shows that the judge can see.
"""

import argparse
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvorum_raft.errors import RaftError, RaftFault
from tests.simulation.fuzz_moves import MINIMUM, MemberMoves
from tests.simulation.judge import Judge
from tests.simulation.oracle import Oracle
from tests.simulation.plain import PlainNode, plain_time
from tests.simulation.world import Broken, SafeNode, World

STEPS = 5000
ACTIONS = {
    "tick": 300,
    "deliver": 400,
    "sync": 140,
    "propose": 70,
    "read": 30,
    "connect": 30,
    "reset": 15,
    "cut": 9,
    "stall": 4,
    "crash": 8,
    "members": 45,
    "wipe": 3,
    "transfer": 4,
    "jobs": 60,
}
"""How often each happens; troubles less in calm seeds, and the last four with kvorum's core only."""
_TROUBLES = ("reset", "cut", "stall", "crash")
_OURS = ("read", "members", "wipe", "transfer", "jobs")
_AIMED = {"tick": 300, "deliver": 300, "sync": 150, "propose": 80, "read": 120, "members": 30}
"""While a leader that was cut off does not know it yet."""
YEAR_MS = 365 * 86_400_000


class Schedule(MemberMoves):
    """One seed. kvorum's nodes keep their checkpoints in `folder`."""

    def __init__(self, kind: type[SafeNode] | type[PlainNode], seed: int, nodes: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.safe = kind is SafeNode
        founders = "ABCDEFG"[:nodes]
        spare = "XY" if self.safe and seed % 4 else ""
        self.world = World(
            kind,
            founders + spare,
            founders=founders,
            seed=seed,
            auto_sync=False,
            folder=folder if self.safe else None,
            checkpoint_bytes=self.rng.choice([800, 3000, 1 << 40]),
        )
        self._spare = bool(spare)
        self.judge = Judge()
        self.crashes = 0
        self.count: Counter[str] = Counter()
        self._moves = {name: often for name, often in ACTIONS.items() if self.safe or name not in _OURS}
        if not spare:
            self._moves |= {"members": 0, "wipe": 0}
        self._draw = (list(self._moves), list(accumulate(self._moves.values())))
        aimed = {name: often if self._moves.get(name) else 0 for name, often in _AIMED.items()}
        self._aimed_draw = (list(aimed), list(accumulate(aimed.values())))
        self.dwindles = seed % 5 == 0
        self._rotten = None if self.dwindles else self.rng.choice(founders)
        """Whose checkpoints get damaged: one node's, or the data may be gone."""
        self._values = 0
        self._reads = 0
        self._trouble = self.rng.choice([0.02, 0.05, 0.2] if spare else [0.05, 0.2, 0.6])
        """How many of the resets and crashes happen: calm seeds build long logs, wild ones many terms."""
        self._slow_disk: str | None = None
        self._sleeper: str | None = None
        self._late: set[str] = set()
        self._stalled: set[tuple[str, str]] = set()
        self._cut_off: str | None = None
        self._aimed_until = 0.0
        self.oracle = Oracle(self.world)
        if self.safe and seed % 3 == 0 and not self.dwindles:
            self.world.wall_offset_ms[self.rng.choice(self.world.ids)] = self.rng.choice([-YEAR_MS, YEAR_MS, 5000])

    def _try(self, action: Callable[..., Any], *arguments: Any) -> None:
        """The plain class raises in its handlers now and then; for ours every exception is a finding."""
        if self.safe:
            action(*arguments)
            return
        try:
            action(*arguments)
        except Broken:
            raise
        except Exception:  # noqa: BLE001  the library's own exceptions are its behaviour, not ours to judge here
            return

    def _tick(self, node_id: str) -> None:
        node = self.world.nodes[node_id]
        if not self.safe:
            self._try(node.tick)
            self.judge.look(node)
            return
        late = node_id in self._late
        node.tick(judge=not late)
        if self.rng.random() < 0.3:
            self._late.discard(node_id)
        self.judge.look(node)
        self.oracle.look(node)
        if not late:
            self.oracle.look_at_office(node)

    def _propose(self, node: Any) -> None:
        for _ in range(self.rng.choice([1, 3, 8])):
            self._values += 1
            value = f"{self._values}." + "x" * 30

            def done(ok: bool, value: str = value) -> None:
                self.judge.answered(value, ok, node)

            def refused(error: RaftError, value: str = value) -> None:
                if error.definite:
                    self.judge.refused.add(value)

            if not self.safe:
                node.propose(value, done)
                continue
            try:
                node.propose(value, done, refused)
            except RaftError as error:
                refused(error)

    def _read(self, node: SafeNode) -> None:
        self._reads += 1
        floor = max(self.judge.acked_index, max(self.oracle.committed, default=0))
        term = node.term if node.leads else None
        begun = self.world.clock.now

        def done(index: int | None) -> None:
            if index is not None:
                self.judge.reads += 1
                if index < floor:
                    raise Broken(f"a read that began after entry {floor} was committed saw entry {index}")
                if term is not None:
                    self.oracle.read_served(node, term, begun)

        node.read(self._reads, done)

    def _crash(self, node_id: str) -> None:
        self.crashes += 1
        world, node = self.world, self.world.nodes[node_id]
        for other in world.ids:
            if other != node_id:
                world.disconnect(node_id, other)
        if isinstance(node, SafeNode):
            self._crash_ours(node)
        else:
            self.judge.judged[node_id] = 0
            world.nodes[node_id] = PlainNode(node_id, world, node.journal)

    def _crash_ours(self, node: SafeNode) -> None:
        power_cut = self.rng.random() < 0.5  # the state survives a killed process, not a lost machine
        if node.node_id == self._rotten and self.rng.random() < 0.9 and self._may_lose(node.node_id):
            self._damage(node)
            power_cut = power_cut or self.rng.random() < 0.8
        self.count["power cuts"] += power_cut
        self.count["unsynced losses"] += bool(node.disk.pending)
        self._account(node)
        again = self.world.restart(node.node_id, power_cut=power_cut)
        again.release_election()
        self.count["restores"] += again.machine.adopted > 0 and power_cut
        self.count["hollow"] += again.core.hollow
        if power_cut:
            self.judge.judged[node.node_id] = 0

    def _step(self) -> None:
        rng, world = self.rng, self.world
        if rng.random() < 0.004:
            self._slow_disk = rng.choice([None, None, *world.ids])
            self._sleeper = rng.choice([*[None] * 6, *world.ids])
            self._stalled = {pair for pair in self._stalled if rng.random() < 0.5}
        node_id = rng.choice(world.ids if rng.random() < 0.1 else self._active())
        if node_id == self._sleeper and rng.random() < 0.9:
            if rng.random() < 0.5:
                self._late.add(node_id)
            return
        names, weights = self._aimed_draw if world.clock.now < self._aimed_until else self._draw
        (action,) = rng.choices(names, cum_weights=weights)
        if action in _TROUBLES and rng.random() > self._trouble:
            return
        getattr(self, f"_act_{action}")(node_id)

    def _active(self) -> list[str]:
        """Those who belong to the cluster, or have heard of it."""
        if not self._spare:
            return self.world.ids
        nodes = self.world.nodes
        return [i for i in self.world.ids if nodes[i].core.configuration is not None or nodes[i].term]

    def _act_tick(self, node_id: str) -> None:
        self.world.clock.now += self.rng.choice([0.005, 0.02, 0.06]) * 3 / len(self._active())
        self._tick(node_id)

    def _act_deliver(self, node_id: str) -> None:
        queues = self.world.links.queues
        pairs = [pair for pair in self.world.pairs() if queues[pair]] if self._spare else self.world.pairs()
        aimed = self.world.clock.now < self._aimed_until
        if aimed and self._stalled and self.rng.random() < 0.04:
            self._stalled.discard(self.rng.choice(sorted(self._stalled)))
        for a, b in self.rng.sample(pairs, len(pairs) if aimed else -(-len(pairs) // 6)):
            if (a, b) in self._stalled:
                continue
            self._try(self.world.deliver, a, b, self.rng.choice([1, 2, 5, None]))
            if self.safe:
                self.oracle.look(self.world.nodes[b])

    def _act_sync(self, node_id: str) -> None:
        if node_id != self._slow_disk:
            self.world.nodes[node_id].sync(self.rng.choice([1, 2, None, None]))
        elif self.rng.random() < 0.2:
            self.world.nodes[node_id].sync(1)

    def _leaders(self) -> list[Any]:
        return [node for node in self.world.nodes.values() if node.leads]

    def _act_propose(self, node_id: str) -> None:
        leaders = self._leaders()
        if leaders:
            self._propose(self.rng.choice(leaders))

    def _act_read(self, node_id: str) -> None:
        if not self.safe:
            return
        node = self.rng.choice([self.world.nodes[node_id], *self._leaders()])
        if self._cut_off is not None and self.world.clock.now < self._aimed_until and self.rng.random() < 0.7:
            node = self.world.nodes[self._cut_off]
        self._read(node)

    def _act_connect(self, node_id: str) -> None:
        pairs = self.world.pairs()
        for a, b in self.rng.sample(pairs, len(pairs) // 3):
            self.world.connect(a, b)

    def _act_reset(self, node_id: str) -> None:
        self.world.disconnect(*self.rng.choice(self.world.pairs()))

    def _act_cut(self, node_id: str) -> None:
        """A leader that does not know yet that it is alone; what it sent, or what it was sent, may still arrive."""
        leaders = self._leaders()
        if not leaders:
            return
        cut = self.rng.choice(leaders).node_id
        others = [other for other in self.world.ids if other != cut]
        breaks = self.rng.random() < 0.5
        for other in others:
            if breaks:
                self.world.disconnect(cut, other)
            else:
                self._stalled |= set(self.rng.choice([[(cut, other)], [(other, cut)], [(cut, other), (other, cut)]]))
        if self.rng.random() < 0.5:
            self._sleeper = cut
        if self.rng.random() < 0.4:
            self._slow_disk = cut
        self._cut_off = cut
        self._aimed_until = self.world.clock.now + self.rng.choice([0.8, 1.5])

    def _act_stall(self, node_id: str) -> None:
        """A link on which everything waits."""
        self._stalled.add(self.rng.choice(self.world.pairs()))

    def _act_crash(self, node_id: str) -> None:
        """Preferably of a node that has something to lose."""
        nodes = self.world.nodes.values()
        if self.safe and self.rng.random() < 0.5:
            unsynced = [node for node in nodes if not node.journal.term_durable]
            unsynced = unsynced or [node for node in nodes if node.disk.pending]
            node_id = self.rng.choice(unsynced).node_id if unsynced else node_id
        self._crash(node_id)

    def run(self) -> None:
        """Raises Broken or RaftFault."""
        if self.safe:
            self.world.links.witness = self.oracle.sent
        self.world.start().mesh()
        for _ in range(STEPS):
            self._step()
        self._heal()

    def _heal(self) -> None:
        """All connected, nothing lost any more: everybody must come to the same state soon."""
        world = self.world
        world.mesh()
        for step in range(700):
            for node_id in world.ids:
                world.clock.now += 0.02
                self._tick(node_id)
                world.nodes[node_id].sync()
                if self.safe:
                    world.nodes[node_id].jobs.run()
            for a, b in world.pairs():
                self._try(world.deliver, a, b, None)
            if step % 10 == 0:
                world.mesh()  # who is let in may have changed
            members = self._members()
            if step > 100 and members and len({node.applied_index for node in members}) == 1:
                break
        else:
            raise Broken("no convergence")
        for node in world.nodes.values():
            if isinstance(node, SafeNode):
                self._account(node)
        self.judge.end(world, members)

    def _members(self) -> list[Any]:
        """Who must have everything in the end: whom a leader counts as members, if their folders are there."""
        leaders = sorted((node for node in self._leaders()), key=lambda node: node.term)
        if not leaders or not self.safe:
            return list(self.world.nodes.values()) if leaders else []
        incarnations = leaders[-1].core.configuration.incarnations
        found = [self.world.nodes[i] for i, one in incarnations.items() if one == self.world.incarnations[i]]
        return found if leaders[-1] in found else []


def run(seed: int, *, plain: bool = False, nodes: int = 3) -> tuple[str, Schedule]:
    """("", schedule) if all promises were kept, else what was broken."""
    random.seed(seed)  # the library draws its election timeouts from the module's generator
    with TemporaryDirectory(dir=_folder()) as folder:
        schedule = Schedule(PlainNode if plain else SafeNode, seed, nodes, Path(folder))
        with plain_time(schedule.world.clock) if plain else nullcontext():
            try:
                schedule.run()
            except (Broken, RaftFault) as error:
                return str(error), schedule
        return "", schedule


def _folder() -> str | None:
    """In memory, if there is such a place: nothing of it has to last."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="the library's own core")
    parser.add_argument("--minimums", action="store_true", help="fail too if some kind of event came too seldom")
    options = parser.parse_args(arguments)
    if (
        arguments is None and os.environ.get("PYTHONHASHSEED") != "0"
    ):  # the library keeps nodes in sets: only so a seed is one schedule
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.fuzz", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    findings: Counter[str] = Counter()
    bad: list[int] = []
    acked = crashes = reads = terms = 0
    count: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        finding, schedule = run(seed, plain=options.plain, nodes=options.nodes)
        acked += len(schedule.judge.acked)
        crashes += schedule.crashes
        reads += schedule.judge.reads
        count += schedule.count
        terms += len(schedule.judge.leaders)
        if finding:
            bad.append(seed)
            findings["".join(c for c in finding if not c.isdigit())] += 1
            if not options.plain:
                print(f"seed {seed}: {finding}")
    count["acknowledged"], count["reads"], count["terms"] = acked, reads, terms
    print(", ".join(f"{name} {count[name]}" for name in MINIMUM))
    print(
        f"{options.seeds} seeds, {len(bad)} bad {dict(findings)} first {bad[:5]}; acknowledged {acked}, reads {reads}, "
        f"leaders {terms}, crashes {crashes}, {time.monotonic() - started:.1f} s"
    )
    blind = [name for name, least in MINIMUM.items() if count[name] < least * options.seeds]
    if options.minimums and blind:
        print(f"too seldom: {', '.join(blind)}")
    return 1 if bad or (options.minimums and blind) else 0


if __name__ == "__main__":
    sys.exit(main())
