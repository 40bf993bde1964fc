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
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from kvorum_raft.errors import RaftError, RaftFault
from tests.simulation.oracle import Oracle
from tests.simulation.plain import PlainNode, plain_time
from tests.simulation.world import Broken, Machine, SafeNode, World

STEPS = 6000
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
}
"""How often each happens; the last four less in calm seeds."""
_TROUBLES = ("reset", "cut", "stall", "crash")
_AIMED = {"tick": 300, "deliver": 300, "sync": 150, "propose": 80, "read": 120}
"""While a leader that was cut off does not know it yet."""
YEAR_MS = 365 * 86_400_000


@dataclass
class Judge:
    """What was promised so far."""

    history: dict[int, Any] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Values that were certainly not applied, as their proposers were told."""
    acked_index: int = 0
    reads: int = 0

    def look(self, node: Any) -> None:
        if node.leads and self.leaders.setdefault(node.term, node.node_id) != node.node_id:
            raise Broken(f"two leaders in term {node.term}")
        applied, start = node.applied, self.judged.get(node.node_id, 0)
        for index, value in applied[start:]:
            if self.history.setdefault(index, value) != value:
                raise Broken(f"entry {index} is applied differently")
        indices = [index for index, _ in applied[max(start - 1, 0) :]]
        if indices != sorted(set(indices)):
            raise Broken("entries are applied twice or out of order")
        self.judged[node.node_id] = len(applied)

    def answered(self, value: str, ok: bool, node: Any) -> None:
        if ok:
            self.acked.add(value)
            self.acked_index = max(self.acked_index, node.applied_index)


class Schedule:
    """One seed."""

    def __init__(self, kind: type[SafeNode] | type[PlainNode], seed: int, nodes: int) -> None:
        self.rng = random.Random(seed)
        self.safe = kind is SafeNode
        self.world = World(kind, "ABCDEFG"[:nodes], seed=seed, auto_sync=False)
        self.judge = Judge()
        self.crashes = 0
        self._values = 0
        self._reads = 0
        self._trouble = self.rng.choice([0.05, 0.2, 0.6])
        """How many of the resets and crashes happen: calm seeds build long logs, wild ones many terms."""
        self._slow_disk: str | None = None
        self._sleeper: str | None = None
        self._late: set[str] = set()
        self._stalled: set[tuple[str, str]] = set()
        self._cut_off: str | None = None
        self._aimed_until = 0.0
        self.oracle = Oracle(self.world)
        if self.safe and seed % 3 == 0:
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

            if self.safe:
                node.propose(value, done, refused)
            else:
                node.propose(value, done)

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
            node.core.stop("crash")
            node.disk.crash()
            keep = self.rng.random() < 0.5  # the state survives a killed process, not a lost machine
            self.judge.judged[node_id] = self.judge.judged.get(node_id, 0) if keep else 0
            world.nodes[node_id] = SafeNode(node_id, world, node.disk, node.machine if keep else Machine())
        else:
            self.judge.judged[node_id] = 0
            world.nodes[node_id] = PlainNode(node_id, world, node.journal)

    def _step(self) -> None:
        rng, world = self.rng, self.world
        if rng.random() < 0.004:
            self._slow_disk = rng.choice([None, None, *world.ids])
            self._sleeper = rng.choice([None] * 6 + world.ids)
            self._stalled = {pair for pair in self._stalled if rng.random() < 0.5}
        node_id = rng.choice(world.ids)
        if node_id == self._sleeper and rng.random() < 0.9:
            if rng.random() < 0.5:
                self._late.add(node_id)
            return
        actions = _AIMED if world.clock.now < self._aimed_until else ACTIONS
        (action,) = rng.choices(list(actions), list(actions.values()))
        if action in _TROUBLES and rng.random() > self._trouble:
            return
        getattr(self, f"_act_{action}")(node_id)

    def _act_tick(self, node_id: str) -> None:
        self.world.clock.now += self.rng.choice([0.005, 0.02, 0.06]) * 3 / len(self.world.ids)
        self._tick(node_id)

    def _act_deliver(self, node_id: str) -> None:
        pairs = self.world.pairs()
        aimed = self.world.clock.now < self._aimed_until
        if aimed and self._stalled and self.rng.random() < 0.04:
            self._stalled.discard(self.rng.choice(sorted(self._stalled)))
        for a, b in self.rng.sample(pairs, len(pairs) if aimed else len(self.world.ids) // 2):
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
        for a, b in self.rng.sample(self.world.pairs(), 2):
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
        for step in range(500):
            for node_id in world.ids:
                world.clock.now += 0.02
                self._tick(node_id)
                world.nodes[node_id].sync()
            for a, b in world.pairs():
                self._try(world.deliver, a, b, None)
            nodes = list(world.nodes.values())
            if step > 100 and any(node.leads for node in nodes) and len({node.applied_index for node in nodes}) == 1:
                break
        else:
            raise Broken("no convergence")
        self._judge_end()

    def _judge_end(self) -> None:
        nodes = list(self.world.nodes.values())
        if len({tuple(node.applied) for node in nodes}) > 1:
            raise Broken("the states differ")
        values = [value for _, value in nodes[0].applied]
        if self.judge.acked - set(values):
            raise Broken(f"{len(self.judge.acked - set(values))} acknowledged writes are lost")
        if self.judge.refused & set(values):
            raise Broken("a write was applied of which its proposer was told that it certainly was not")
        if len(values) != len(set(values)):
            raise Broken("a write was applied twice")
        for node in nodes:
            if isinstance(node, SafeNode):
                times = node.machine.times
                if times != sorted(times):
                    raise Broken("entry time went back")
                self._judge_time(times)

    def _judge_time(self, times: list[int]) -> None:
        """With a minority of clocks wrong, time may lag behind until a quorum's clocks are known, but never runs
        ahead."""
        true_ms = int(self.world.clock.now * 1000) + 1_700_000_000_000
        if times and times[-1] > true_ms + 10_000:
            raise Broken(f"entry time is {times[-1] - true_ms} ms ahead of every sound clock")


def run(seed: int, *, plain: bool = False, nodes: int = 3) -> tuple[str, Schedule]:
    """("", schedule) if all promises were kept, else what was broken."""
    schedule = Schedule(PlainNode if plain else SafeNode, seed, nodes)
    random.seed(seed)  # the library draws its election timeouts from the module's generator
    with plain_time(schedule.world.clock) if plain else nullcontext():
        try:
            schedule.run()
        except (Broken, RaftFault) as error:
            return str(error), schedule
    return "", schedule


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="the library's own core")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    findings: Counter[str] = Counter()
    bad: list[int] = []
    acked = crashes = reads = terms = 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        finding, schedule = run(seed, plain=options.plain, nodes=options.nodes)
        acked += len(schedule.judge.acked)
        crashes += schedule.crashes
        reads += schedule.judge.reads
        terms += len(schedule.judge.leaders)
        if finding:
            bad.append(seed)
            findings["".join(c for c in finding if not c.isdigit())] += 1
            if not options.plain:
                print(f"seed {seed}: {finding}")
    print(
        f"{options.seeds} seeds, {len(bad)} bad {dict(findings)} first {bad[:5]}; acknowledged {acked}, reads {reads}, "
        f"leaders {terms}, crashes {crashes}, {time.monotonic() - started:.1f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
