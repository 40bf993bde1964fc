"""The people who run the cluster: they change its members, and put right what has been refused.

They ask the leader's `Administration` in its own process, as the admin API does, know nothing but what it answers, and
try again later. A folder that was refused is emptied and started anew with `join`.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kvorum_raft import RaftNode
from kvorum_raft.configuration import Configuration
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine

PATIENCE: Final = 4.0
"""Seconds until a question that nobody answers is asked again."""
_LOOK: Final = 0.25


class Operator:
    """`machines` are all there are, members or not."""

    def __init__(self, clock: Clock, machines: list[Machine], judge: Judge, rng: random.Random, size: int) -> None:
        self.counters: Counter[str] = Counter()
        self.attentive = True
        """Puts right what he sees."""
        self._clock = clock
        self._machines = {machine.name: machine for machine in machines}
        self._judge = judge
        self._rng = rng
        self._size = self.target = size
        """So many members there should be."""
        self._asked_at = float("-inf")
        self._question = 0
        self.quiet = False

    # ---- what he knows

    def leader(self) -> Machine | None:
        found = [machine for machine in self._machines.values() if machine.leads]
        return found[0] if len(found) == 1 else None

    def configuration(self) -> Configuration | None:
        """As the leader has it, if it has committed it."""
        leader = self.leader()
        core = leader.process.core if leader is not None and leader.process is not None else None
        if core is None or core.configuration is None or not core.journal.configurations:
            return None
        newest = core.journal.configurations[-1].index
        return core.configuration if newest <= core.commit_index else None

    def members(self) -> list[Machine]:
        """Machines of the committed configuration; empty if it is not known."""
        configuration = self.configuration()
        if configuration is None:
            return []
        return [self._machines[one.member.node_id] for one in configuration.members]

    def sound(self) -> bool:
        """Everybody is a voter with his own folder, and all are up: one of them may get lost."""
        configuration = self.configuration()
        if configuration is None or self.busy:
            return False
        voters = [self._machines[one.member.node_id] for one in configuration.members if not one.learner]
        whole = len(voters) == len(configuration.members) >= 3
        return whole and all(machine.up and not machine.out and self._own(machine, configuration) for machine in voters)

    @staticmethod
    def _own(machine: Machine, configuration: Configuration) -> bool:
        raft = machine.process.raft if machine.process is not None else None
        admissions = getattr(raft, "_admissions", None)
        mine = configuration.incarnations.get(machine.name)
        return admissions is not None and admissions.identity.incarnation == mine

    @property
    def busy(self) -> bool:
        """A question is under way."""
        return self._clock.now - self._asked_at < PATIENCE

    # ---- what he does

    def begin(self) -> None:
        self._clock.after(1.0, self._look)

    def _look(self) -> None:
        if not self.quiet:
            if not self.busy and self.attentive:
                self._put_right()
            self._clock.after(_LOOK, self._look)

    def ask(self, what: str, question: Callable[[RaftNode], Any]) -> bool:
        """False if there is nobody to ask, or another question is not answered yet."""
        leader = self.leader()
        if leader is None or leader.process is None or self.busy:
            return False
        self._question += 1
        number = self._question
        self._asked_at = self._clock.now
        self._judge.note("operator", f"asks {leader.name}: {what}")

        def answered(error: Exception | None) -> None:
            self._judge.note("operator", f"{what}: {'done' if error is None else error}")
            self.counters[f"{what.split()[0]} done" if error is None else "changes refused"] += 1
            if number == self._question:
                self._asked_at = float("-inf")

        leader.process.ask(question, answered)
        return True

    def _put_right(self) -> None:
        configuration = self.configuration()
        if configuration is None:
            return
        for one in configuration.members:
            machine = self._machines[one.member.node_id]
            if machine.out:
                self._empty(machine)
                return
            if machine.join and machine.up and not self._own(machine, configuration):
                self.ask(f"replace {machine.name}", partial(RaftNode.replace, member=machine.member))
                return
            if one.learner:
                self.ask(f"promote {machine.name}", partial(RaftNode.promote, node_id=machine.name))
                return
            if machine.up and one.member.peer_address != machine.peer_address:
                self.ask(f"move {machine.name}", partial(RaftNode.add, member=machine.member))
                return
        self._fill(configuration)
        for machine in self._machines.values():
            if machine.name not in configuration.incarnations and machine.up and not machine.join:
                self._retire(machine, configuration)

    def _empty(self, machine: Machine) -> None:
        self._judge.note("operator", f"empties {machine.name}, which shall join again")
        machine.wipe()
        self._judge.may_be_refused.discard(machine.name)
        machine.join, machine.out = True, False
        machine.start()

    def _fill(self, configuration: Configuration) -> None:
        if len(configuration.members) >= self.target:
            return
        free = [machine for machine in self._machines.values() if machine.name not in configuration.incarnations]
        if free:
            self._add(self._rng.choice(free))

    def _add(self, machine: Machine) -> None:
        """A machine that is no member: with an empty folder, which waits."""
        if machine.join and machine.up:
            self.ask(f"add {machine.name}", partial(RaftNode.add, member=machine.member))
        else:
            self._empty(machine)

    def grow(self) -> bool:
        """By one, soon."""
        grows = self.target == self._size
        self.target = self._size + 1
        return grows

    def remove(self, name: str) -> bool:
        self.target = self._size
        self._judge.may_be_refused.add(name)
        return self.ask(f"remove {name}", partial(RaftNode.remove, node_id=name))

    def _retire(self, machine: Machine, configuration: Configuration) -> None:
        """It was removed."""
        raft = machine.process.raft if machine.process is not None else None
        admissions = getattr(raft, "_admissions", None)
        if admissions is not None and admissions.identity.incarnation in configuration.removed:
            self._judge.note("operator", f"switches {machine.name} off, which was removed")
            machine.out = True
            machine.kill()
