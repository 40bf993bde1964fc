"""Misfortunes in a row that chance alone would hardly ever line up: each plot plays one known way in which a consensus
that lacks a rule loses what it has promised. To one that has all its rules a plot is just an unlucky day.

A plot is a generator that yields what it waits for: seconds, or a condition with the seconds after which it gives up.
While one runs nothing else goes wrong. Exact moments come from the hooks of machines and disks (`at_lead`, `at_commit`,
`at_cut`), because what is to be hit is often a millisecond wide.
"""

import random
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from kvorum_raft import RaftNode
from kvorum_raft.config import Limits
from tests.simulation.whole.clients import Clients
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.network import Network

ONE_BY_ONE: Final = Limits(append_entries=1, window_messages=1, log_cache=4096)
"""Each entry waits for the acknowledgement of the one before, so that a follower can be left at any of them."""
_POLL: Final = 0.002

Condition = tuple[Callable[[], bool], float]
Steps = Generator[float | Condition, bool, bool]
"""Gets back whether the condition came true; returns whether the plot was played to its end."""


class Stage:
    """Where plots are played."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        machines: list[Machine],
        crowd: Clients,
        judge: Judge,
        rng: random.Random,
    ) -> None:
        self.machines = machines
        self.crowd = crowd
        self._clock = clock
        self._network = network
        self._judge = judge
        self.rng = rng
        self.over = False

    # ---- what plots do

    def note(self, what: str) -> None:
        self._judge.note("plot", what)

    def suspect(self, machine: Machine) -> None:
        """Its folder may be refused from now on."""
        self._judge.may_be_refused.add(machine.name)

    def cut(self, some: list[Machine], others: list[Machine]) -> None:
        self._network.cut.update(_pairs(some, others))

    def join(self, some: list[Machine], others: list[Machine]) -> None:
        self._network.cut.difference_update(_pairs(some, others))
        self._network.mend()

    def slow(self, source: Machine, target: Machine, delay: float) -> None:
        self._network.slow[source.name, target.name] = delay

    def reset(self, one: Machine, other: Machine) -> None:
        self.note(f"connections between {one.name} and {other.name} are reset")
        self._network.break_connections(one.name, other.name)

    def send_away(self, clients: list[str], machines: list[Machine]) -> None:
        """They must go to the others, and know it at once."""
        for client in clients:
            for machine in machines:
                self._network.break_connections(machine.name, client)
                self._network.refused.add((client, machine.name))

    @property
    def written(self) -> int:
        """So many writes were acknowledged."""
        return self._judge.counters["writes acknowledged"]

    def down(self, *machines: Machine) -> None:
        for machine in machines:
            if machine.up:
                self.note(f"power of {machine.name} is cut")
                machine.cut_power()

    def leader(self) -> Machine | None:
        """The one that leads with its term's first entry committed."""
        found = [m for m in self.machines if m.process and m.process.raft and m.process.raft.is_leader]
        return found[0] if len(found) == 1 else None

    def level(self) -> bool:
        """All are up and have nearly the same log."""
        places = [machine.durable_index() for machine in self.machines]
        return min(places) > 0 and max(places) - min(places) <= 5

    def calm(self) -> None:
        """Everything works."""
        self._network.cut.clear()
        self._network.slow.clear()
        self._network.refused.clear()
        for machine in self.machines:
            machine.calm()
            machine.start()
        self._network.mend()

    def play(self, plot: Callable[["Stage"], Steps], done: Callable[[bool], None]) -> None:
        steps = plot(self)

        def advance(answer: bool | None) -> None:
            try:
                wanted = steps.send(answer)  # type: ignore[arg-type]  # the first one must be None
            except StopIteration as end:
                self.calm()
                done(end.value)
                return
            if isinstance(wanted, float):
                self._clock.after(wanted, go_on, True)
            else:
                poll(wanted[0], self._clock.now + wanted[1])

        def go_on(answer: bool) -> None:
            if not self.over:
                advance(answer)

        def poll(condition: Callable[[], bool], end: float) -> None:
            if self.over:
                return
            if condition() or self._clock.now >= end:
                advance(condition())
            else:
                self._clock.after(_POLL, poll, condition, end)

        advance(None)


def _pairs(some: list[Machine], others: list[Machine]) -> list[tuple[str, str]]:
    pairs = [(one.name, two.name) for one in some for two in others if one is not two]
    return [*pairs, *((two, one) for one, two in pairs)]


def _cast(stage: Stage) -> Generator[float | Condition, bool, tuple[Machine, list[Machine]] | None]:
    """Calm down; the leader, and the others in any order. None if there is none within seconds."""
    stage.calm()
    yield 0.5
    if not (yield (lambda: stage.leader() is not None and stage.level(), 4.0)):
        return None
    leader = stage.leader()
    if leader is None:
        return None
    others = [machine for machine in stage.machines if machine is not leader]
    stage.rng.shuffle(others)
    return leader, others


def _wins(stage: Stage, candidates: list[Machine], then: Callable[[Machine], None]) -> Condition:
    """Wait until one of them is elected, and do something in the same moment."""
    winners: list[Machine] = []

    def won(machine: Machine) -> None:
        for other in candidates:
            other.at_lead = None
        winners.append(machine)
        then(machine)

    for machine in candidates:
        machine.at_lead = won
    return lambda: bool(winners), 4.0


def _commits(machine: Machine) -> Condition:
    """Wait until it commits something as a leader."""
    seen: list[bool] = []
    machine.at_commit = lambda: seen.append(True)
    return lambda: bool(seen), 3.0


def figure_8(stage: Stage) -> Steps:
    """An entry of an older term lies on a majority, and yet another leader may replace it: figure 8 of the Raft
    paper."""
    cast = yield from _cast(stage)
    if cast is None:
        return False
    first, others = cast
    stage.note(f"{first.name} writes what nobody hears")
    stage.cut([first], others)
    before = first.last_index()
    if not (yield lambda: first.durable_index() > before, 0.8):
        return False
    stage.down(first)
    winners: list[Machine] = []

    def alone(machine: Machine) -> None:
        winners.append(machine)
        stage.cut([machine], stage.machines)

    if not (yield _wins(stage, others, alone)):
        return False
    second = winners[0]
    stage.note(f"{second.name} leads, and nobody hears")
    if not (yield lambda: second.durable_index() == second.last_index() > before, 1.0):
        return False
    stage.down(second)
    rest = [machine for machine in others if machine is not second]
    stage.join([first], rest)
    first.start()

    def arm(machine: Machine) -> None:
        # in the moment in which it counts the first copies, before it can send what comes next
        machine.at_commit = lambda: stage.down(machine)

    if not (yield _wins(stage, [first], arm)):
        return False
    if not (yield lambda: not first.up, 3.0):
        return False
    stage.join([second], rest)
    second.start()
    return (yield _wins(stage, [second, *rest], lambda machine: None))


def surplus(stage: Stage) -> Steps:
    """A node has acknowledged more than the next leader has, does not know how much of it is committed, and dies in the
    middle of being brought into line."""
    cast = yield from _cast(stage)
    if cast is None:
        return False
    first, others = cast
    half = len(stage.machines) // 2
    copies, rest = others[:half], others[half:]
    stage.note(f"{first.name} has copies on {[machine.name for machine in copies]} only, and late ones")
    stage.cut([first], rest)
    for copy in copies:
        stage.slow(first, copy, 0.2)
    yield stage.rng.uniform(0.25, 0.4)
    if not (yield _commits(first)):
        return False
    yield 0.002  # whose write it was is told
    second = copies[0]
    stage.down(first, *copies[1:])
    for _ in range(2):
        # in its second term its log ends with an entry that the first leader contradicts
        stage.join([second], rest)
        if not (yield _wins(stage, [second], lambda machine: stage.cut([machine], rest))):
            return False
        if not (yield lambda: second.durable_index() == second.last_index(), 1.0):
            return False
        if _ == 0:
            stage.down(second)
            second.start()
    stage.join([first], [second])
    cuts: list[bool] = []
    first.platter.at_cut = lambda: cuts.append(True)
    first.start()
    if not (yield lambda: bool(cuts), 2.0):
        return False
    stage.note(f"{first.name} has cut its log")
    stage.down(first, second)
    stage.join([first], rest)
    first.start()
    return (yield _wins(stage, [first, *rest], lambda machine: None))


def two_changes(stage: Stage) -> Steps:
    """A leader that is alone is told to remove everybody else, one after the other."""
    cast = yield from _cast(stage)
    if cast is None:
        return False
    first, others = cast
    process = first.process
    if process is None:
        return False
    stage.cut([first], others)
    for other in others:
        stage.note(f"{first.name}, alone, is to remove {other.name}")
        stage.suspect(other)
        process.ask(partial(RaftNode.remove, node_id=other.name), lambda error: None)
        yield 0.01
    if not (yield _wins(stage, others, lambda machine: None)):
        return False
    yield stage.rng.uniform(0.1, 1.0)
    stage.join([first], others)
    yield 0.5
    return True


def stale_leader(stage: Stage) -> Steps:
    """A leader that hears nobody any more, or was asleep for a while, is asked for what the others have changed
    meanwhile, by a client that knows no better. The other clients are not let in any more where it is."""
    cast = yield from _cast(stage)
    if cast is None or len(stage.crowd.names) < 2:
        return False
    first, others = cast
    here, there = [first, *others[: len(others) // 2 - 1]], others[len(others) // 2 - 1 :]
    friend, *strangers = stage.rng.sample(stage.crowd.names, len(stage.crowd.names))
    asleep = stage.rng.random() < 0.5
    stage.note(f"{first.name} is alone with {friend}{' and falls asleep' if asleep else ''}")
    stage.cut(here, there)
    stage.send_away(strangers, here)
    loop = first.process.loop if first.process is not None else None
    if loop is None:
        return False
    if asleep:
        loop.pause()
    if not (yield _wins(stage, there, lambda machine: None)):
        return False
    before = stage.written
    if asleep:
        if not (yield lambda: stage.written > before + 3, 3.0):
            return False
        for _ in range(5):
            stage.crowd.look(friend, stage.rng.choice(here).name)
        yield 0.01
        stage.note(f"{first.name} goes on")
        loop.go_on(timers_first=stage.rng.random() < 0.3)
    for _ in range(60):  # it steps down meanwhile
        stage.crowd.look(friend, stage.rng.choice(here).name)
        yield 0.005
    return True


def old_snapshot(stage: Stage) -> Steps:
    """A follower has installed a snapshot, and its leader does not hear of it: it is offered another time, and while
    that is looked at, entries come that lie behind it."""
    cast = yield from _cast(stage)
    if cast is None:
        return False
    first, others = cast
    late = others[0]
    stage.note(f"{late.name} is away until {first.name} has cut its log")
    last = late.last_index()
    stage.down(late)
    for _ in range(12):
        stage.crowd.burst(4)
        first.make_checkpoint()
        if (yield lambda: first.base_index() > last, 0.3):
            break
    else:
        return False
    installed: list[bool] = []

    def reset() -> None:
        installed.append(True)
        stage.reset(first, late)

    late.at_install = reset
    late.slowness = 0.3
    late.start()
    if not (yield lambda: bool(installed), 6.0):
        return False
    for _ in range(20):
        stage.crowd.burst(1)
        yield 0.1
    return True


PLOTS: Final[dict[str, Callable[[Stage], Steps]]] = {
    "figure_8": figure_8,
    "surplus": surplus,
    "two_changes": two_changes,
    "stale_leader": stale_leader,
    "old_snapshot": old_snapshot,
}
