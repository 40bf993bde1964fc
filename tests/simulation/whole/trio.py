"""Three whole nodes under virtual time, to which a test does what it wants to see."""

import random
from collections.abc import Callable
from pathlib import Path

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.seams import Member
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.network import Network


class Trio:
    """Quick disks, no clients, and nothing goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, random.Random("network"))
        self.judge = Judge(self.clock, random.Random("judge"))
        members = [Member(name, f"{name}:1", f"{name}:2") for name in "ABC"]
        self.machines = [
            Machine(one.node_id, self.clock, self.network, members, folder / one.node_id, "trio", self.judge)
            for one in members
        ]
        for machine in self.machines:
            machine.platter.base = 0.002
            machine.start()
        self._others: list[ProcessLoop] = []

    def another_process(self, name: str) -> ProcessLoop:
        """On a machine of its own."""
        loop = ProcessLoop(self.clock, name, self.network, on_error=self.judge.error)
        self._others.append(loop)
        return loop

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = self.clock.now + 20.0
        while not condition():
            assert self.clock.now < end, f"no {what} within 20 s"
            self.clock.run_until(self.clock.now + 0.001)

    def leader(self) -> Machine:
        """When all have what it has."""
        self.until(lambda: sum(machine.leads for machine in self.machines) == 1 and self._level(), "leader")
        return next(machine for machine in self.machines if machine.leads)

    def _level(self) -> bool:
        return len({machine.durable_index() for machine in self.machines}) == 1

    def until_refused(self, machine: Machine) -> None:
        """It has heard that it was removed, and its process has ended."""
        self.judge.may_be_refused.add(machine.name)
        self.until(lambda: not machine.up, "end of the removed node")
        assert self.judge.counters["folders refused"] == 1

    def batch(self) -> bytes:
        """An entry without any command."""
        return pb.Batch(data_version=1).SerializeToString()

    def close(self) -> None:
        for machine in self.machines:
            machine.kill()
        for loop in self._others:
            loop.kill()
        self.clock.drop_everything()
        for machine in self.machines:
            machine.close()
        for loop in self._others:
            loop.bury()
