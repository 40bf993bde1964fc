"""Random schedules of messages, delays, resets, slow disks, crashes and wrong clocks, judged by the promises of
consensus.

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

from kvorum_raft.errors import RaftFault
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
    "cut": 7,
    "crash": 8,
}
"""How often each happens; the last three less in calm seeds."""
YEAR_MS = 365 * 86_400_000


@dataclass
class Judge:
    """What was promised so far."""

    history: dict[int, Any] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
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
        self._try(node.tick)
        self.judge.look(node)

    def _propose(self, node: Any) -> None:
        for _ in range(self.rng.choice([1, 3, 8])):
            self._values += 1
            value = f"{self._values}." + "x" * 30
            node.propose(value, lambda ok, value=value: self.judge.answered(value, ok, node))

    def _read(self, node: SafeNode) -> None:
        self._reads += 1
        floor = self.judge.acked_index

        def done(index: int | None) -> None:
            if index is not None:
                self.judge.reads += 1
                if index < floor:
                    raise Broken(f"a read that began after entry {floor} was acknowledged saw entry {index}")

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
        node_id = rng.choice(world.ids)
        if node_id == self._sleeper and rng.random() < 0.9:
            return
        (action,) = rng.choices(list(ACTIONS), list(ACTIONS.values()))
        if action in ("reset", "cut", "crash") and rng.random() > self._trouble:
            return
        getattr(self, f"_act_{action}")(node_id)

    def _act_tick(self, node_id: str) -> None:
        self.world.clock.now += self.rng.choice([0.005, 0.02, 0.06]) * 3 / len(self.world.ids)
        self._tick(node_id)

    def _act_deliver(self, node_id: str) -> None:
        for a, b in self.rng.sample(self.world.pairs(), len(self.world.ids) // 2):
            self._try(self.world.deliver, a, b, self.rng.choice([1, 2, 5, None]))

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
        if self.safe:
            self._read(self.rng.choice([self.world.nodes[node_id], *self._leaders()]))

    def _act_connect(self, node_id: str) -> None:
        for a, b in self.rng.sample(self.world.pairs(), 2):
            self.world.connect(a, b)

    def _act_reset(self, node_id: str) -> None:
        self.world.disconnect(*self.rng.choice(self.world.pairs()))

    def _act_cut(self, node_id: str) -> None:
        """A leader that does not know yet that it is alone."""
        leaders = self._leaders()
        if leaders:
            cut = self.rng.choice(leaders).node_id
            for other in self.world.ids:
                if other != cut:
                    self.world.disconnect(cut, other)

    def _act_crash(self, node_id: str) -> None:
        self._crash(node_id)

    def run(self) -> None:
        """Raises Broken or RaftFault."""
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
