"""What goes wrong: moves that a schedule makes at random moments, each with its undoing."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.simulation.whole.clock import ProcessLoop
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.plots import PLOTS
from tests.simulation.whole.queues.plan import SCHEDULE
from tests.simulation.whole.tampering import Tampering

WEIGHTS: Final = {
    "kill": 10,
    "power": 8,
    "kill_all": 2,
    "power_all": 3,
    "stop": 4,
    "pause": 8,
    "isolate": 8,
    "one_way": 6,
    "split_clients": 4,
    "reset": 8,
    "slow_link": 5,
    "slow_disk": 4,
    "stall": 6,
    "broken_disk": 2,
    "jump": 4,
    "trap": 5,
    "kill_after_commit": 4,
    "old_leader": 6,
    "pause_client": 4,
    "kill_client": 3,
    "kill_inside": 8,
    "remake": 3,
    "wipe": 4,
    "rot": 4,
    "copy_folder": 3,
    "back_up": 6,
    "roll_back": 15,
    "add": 4,
    "remove": 4,
    "move": 2,
    "transfer": 4,
    "set_time": 2,
    "burst": 3,
    "repeat_tick": 4,
    "low_space": 3,
    "disk_full": 2,
}


class Troubles(Tampering):
    """Of one schedule: processes, power and links here, the rest in `tampering`."""

    def begin(self) -> None:
        self._clock.after(self.rng.uniform(2.0, 3.0), self._begin)

    def _begin(self) -> None:
        if self.plot:
            self._note(f"the plot is {self.plot}")
            self._operator.attentive = False
            self._stage.play(PLOTS[self.plot], self._plot_ended)
        else:
            self._next()

    def _plot_ended(self, played: bool) -> None:
        self._note(f"the plot {'is over' if played else 'came to nothing'}")
        self.counters[f"plot {self.plot}"] += played
        self._operator.attentive = True
        self._later(0.0, 1.0, self._next)

    def _next(self) -> None:
        if self.over:
            return
        if self._clock.now < self._quiet_until:
            self._clock.at(self._quiet_until, self._next)
            return
        names = list(WEIGHTS)
        move = self.rng.choices(names, list(WEIGHTS.values()))[0]
        made: bool = getattr(self, f"_{move}")()
        self.counters[move] += made
        self._clock.after(self.rng.expovariate(1 / self._pace), self._next)

    # ---- processes and power

    def _kill(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        self._at_once_or_in_a_sync(machine, self._kill_now)
        return True

    def _power(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        self._at_once_or_in_a_sync(machine, self._power_now)
        return True

    def _at_once_or_in_a_sync(self, machine: Machine, call: Callable[[Machine], None]) -> None:
        """Most of a disk's time nothing is under way, and nothing can be lost."""
        if self.rng.random() < 0.6:
            machine.platter.on_write = partial(call, machine)
        else:
            call(machine)

    def _kill_now(self, machine: Machine) -> None:
        if machine.up and not self.over:
            self._note(f"kill -9 {machine.name}")
            self.counters["transactions lost by kills"] += machine.kill()
            self._later(0.01, 1.5, machine.start)

    def _power_now(self, machine: Machine) -> None:
        if machine.up and not self.over:
            self._note(f"power of {machine.name} is cut")
            self.counters["unsynced data lost by cuts"] += machine.cut_power()
            self._later(0.2, 3.0, machine.start)

    def _kill_all(self) -> bool:
        self._note("kill -9 everybody")
        for machine in self._machines:
            if machine.up:
                self.counters["transactions lost by kills"] += machine.kill()
                self._later(0.01, 1.0, machine.start)
        return True

    def _power_all(self) -> bool:
        machine = self._victim()
        if machine is not None:
            self._at_once_or_in_a_sync(machine, self._all_dark)
        return machine is not None

    def _all_dark(self, _: Machine) -> None:
        if self.over:
            return
        self._note("power is cut everywhere")
        for machine in self._machines:
            if machine.up:
                self.counters["unsynced data lost by cuts"] += machine.cut_power()
                self._later(0.2, 2.0, machine.start)

    def _stop(self) -> bool:
        machine = self._victim()
        if machine is None or machine.process is None or not machine.process.serving:
            return False
        self._note(f"SIGTERM to {machine.name}")
        machine.process.stop()
        self._later(2.5, 4.0, self._after_stop, machine)
        return True

    def _after_stop(self, machine: Machine) -> None:
        """Whoever has not ended by now (it was paused, say) is killed."""
        if machine.process is not None and machine.process.stopping:
            machine.kill()
        machine.start()

    def _pause(self) -> bool:
        machine = self._victim()
        if machine is None or machine.process is None or machine.process.loop.paused:
            return False
        self._pause_loop(machine.process.loop)
        return True

    def _pause_client(self) -> bool:
        if not self._crowd.alive:
            return False
        loop = self.rng.choice(self._crowd.alive).loop
        if loop.paused:
            return False
        self._pause_loop(loop)
        return True

    def _pause_loop(self, loop: ProcessLoop) -> None:
        self._note(f"{loop.name} is paused")
        loop.pause()
        time = self.rng.choice((0.1, 0.3, 0.8, 1.5, 6.0)) * self.rng.uniform(0.8, 1.2)
        self._clock.after(time, self._go_on, loop, self.rng.random() < 0.5)

    def _go_on(self, loop: ProcessLoop, timers_first: bool) -> None:
        self._note(f"{loop.name} goes on")
        loop.go_on(timers_first=timers_first)

    def _trap(self) -> bool:
        """Two halves that cannot hear each other need one node's vote. It is killed in the middle of giving it, and
        cut from whom it gave it to: if it forgets, it may give it again, to the other half."""
        node, *others = self.rng.sample(self._machines, len(self._machines))
        half = len(others) // 2
        self._note(f"a trap for the vote of {node.name}")
        pairs = [
            pair
            for one in others[:half]
            for two in others[half:]
            for pair in ((one.name, two.name), (two.name, one.name))
        ]
        self._network.cut.update(pairs)
        self._clock.after(5.0, self._uncut, pairs)
        for machine in self._machines:
            if machine.process is not None and (machine is node or self._leads(machine)):
                machine.kill()
                machine.start()
        node.platter.on_vote = partial(self._spring, node)
        return True

    def _spring(self, node: Machine, candidate: str) -> None:
        if not node.up or self.over:
            return
        self.counters["votes lost"] += node.kill()
        self._note(f"kill -9 {node.name}, which votes for {candidate}")
        pairs = [(node.name, candidate), (candidate, node.name)]
        self._network.cut.update(pairs)
        self._clock.after(2.5, self._uncut, pairs)
        self._later(0.005, 0.1, node.start)

    def _kill_after_commit(self) -> bool:
        """The leader, when it has answered a client and nobody else may know of the commit yet."""
        self._judge.on_commit = self._committed
        return True

    def _committed(self, name: str) -> None:
        machine = next(machine for machine in self._machines if machine.name == name)
        if machine.up and not self.over:
            self._note(f"{name} has committed")
            if self.rng.random() < 0.5:
                self._kill_now(machine)
            else:
                self._power_now(machine)

    def _old_leader(self) -> bool:
        """It is alone with one client, perhaps asleep for a while, and the others go on without it. Their connections
        break at once, so that they lose no time."""
        leaders = [machine for machine in self._machines if self._leads(machine)]
        if not leaders:
            return False
        leader = leaders[0].name
        friend = self.rng.choice(self._clients or ["nobody"])
        nodes = [machine.name for machine in self._machines if machine.name != leader]
        clients = [client for client in self._clients if client != friend]
        self._note(f"{leader} is alone with {friend}")
        sides = [(leader, other) for other in [*nodes, *clients]] + [(friend, node) for node in nodes]
        pairs = [pair for one, two in sides for pair in ((one, two), (two, one))]
        for client in clients:
            self._network.break_connections(leader, client)
        self._cut(pairs)
        process = leaders[0].process
        if process is not None and not process.loop.paused and self.rng.random() < 0.6:
            process.loop.pause()
            self._later(0.9, 2.2, self._go_on, process.loop, self.rng.random() < 0.5)
        return True

    def _repeat_tick(self) -> bool:
        leaders = [
            machine.process for machine in self._machines if self._leads(machine) and machine.process is not None
        ]
        return bool(leaders) and leaders[0].repeat_tick(SCHEDULE)

    def _kill_client(self) -> bool:
        name = self._crowd.kill_one()
        if name:
            self._note(f"kill -9 {name}")
        return bool(name)

    # ---- links

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self._network.cut.update(pairs)
        self._clock.after(self.rng.choice((0.2, 0.8, 2.0, 7.0)) * self.rng.uniform(0.8, 1.2), self._uncut, pairs)

    def _uncut(self, pairs: list[tuple[str, str]]) -> None:
        self._note(f"links {pairs} are whole again")
        self._network.cut.difference_update(pairs)
        self._network.mend()

    def _isolate(self) -> bool:
        """One node from the other nodes; clients may reach it or not."""
        machine = self._victim(up=False)
        assert machine is not None
        others = [other.name for other in self._machines if other is not machine]
        if self.rng.random() < 0.5:
            others += self._clients
        self._note(f"{machine.name} is cut from {others}")
        self._cut([pair for other in others for pair in ((machine.name, other), (other, machine.name))])
        return True

    def _one_way(self) -> bool:
        machine = self._victim(up=False)
        assert machine is not None
        others = [other.name for other in self._machines if other is not machine]
        others = others if self.rng.random() < 0.5 else [self.rng.choice(others)]
        out = self.rng.random() < 0.5
        self._note(f"{machine.name} {'is not heard by' if out else 'does not hear'} {others}")
        self._cut([(machine.name, other) if out else (other, machine.name) for other in others])
        return True

    def _split_clients(self) -> bool:
        if not self._clients:
            return False
        client = self.rng.choice(self._clients)
        nodes = self.rng.sample([machine.name for machine in self._machines], self.rng.choice((1, 2)))
        self._note(f"{client} is cut from {nodes}")
        self._cut([pair for node in nodes for pair in ((client, node), (node, client))])
        return True

    def _reset(self) -> bool:
        a = self.rng.choice(self._machines).name
        b = self.rng.choice([other for other in [*(m.name for m in self._machines), *self._clients] if other != a])
        self._note(f"connections between {a} and {b} are reset")
        before = self._network.counters["resets"]
        self._network.break_connections(a, b)
        return self._network.counters["resets"] > before

    def _slow_link(self) -> bool:
        a, b = self.rng.sample([machine.name for machine in self._machines], 2)
        delay = self.rng.choice((0.02, 0.1, 0.4))
        self._note(f"{a} to {b} takes {delay} s")
        self._network.slow[a, b] = delay
        if self.rng.random() < 0.5:
            self._network.slow[b, a] = delay
        self._later(1.0, 4.0, self._fast_link, a, b)
        return True

    def _fast_link(self, a: str, b: str) -> None:
        self._network.slow.pop((a, b), None)
        self._network.slow.pop((b, a), None)

    # ---- the end

    def heal(self) -> None:
        """Everything works again; clocks stay as wrong as they are."""
        self.over = self._stage.over = True
        self._note("healing")
        self._operator.attentive = True
        self._no_double()
        self._stage.machines = self._machines
        self._stage.calm()
        for client in self._crowd.alive:
            client.loop.go_on(timers_first=False)
        self._judge.forgiven.clear()
