"""What goes wrong: moves that a schedule makes at random moments, each with its undoing."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from kvorum_raft.faults import REBUILD_MARKER, write_marker
from tests.simulation.whole.clients import Clients
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Backup, Machine
from tests.simulation.whole.network import Network
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.plots import PLOTS, Stage

YEAR_MS: Final = 365 * 86_400_000

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
    "copy_folder": 3,
    "back_up": 6,
    "roll_back": 6,
    "add": 4,
    "remove": 4,
    "move": 2,
    "transfer": 4,
    "set_time": 2,
    "low_space": 3,
    "disk_full": 2,
}


class Troubles:
    """Of one schedule. `counters` says how often each move was really made."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        machines: list[Machine],
        clients: Clients,
        judge: Judge,
        operator: Operator,
        double: Machine,
        seed: str,
    ) -> None:
        self.rng = random.Random(f"{seed}-troubles")
        self.counters: Counter[str] = Counter()
        self.over = False
        self._clock = clock
        self._network = network
        self._machines = machines
        self._crowd = clients
        self._judge = judge
        self._operator = operator
        self._double = double
        self._backups: dict[str, Backup] = {}
        self._pace = self.rng.choice((0.3, 0.8, 2.0))
        """Seconds between moves, on average: some schedules are wild, others leave time to do something."""
        self.plot = self.rng.choice(("", "", "", *PLOTS))
        """What the schedule begins with."""
        self._stage = Stage(clock, network, [machine for machine in machines if not machine.out], judge, self.rng)

    @property
    def _clients(self) -> list[str]:
        return self._crowd.names

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
        names = list(WEIGHTS)
        move = self.rng.choices(names, list(WEIGHTS.values()))[0]
        made: bool = getattr(self, f"_{move}")()
        self.counters[move] += made
        self._clock.after(self.rng.expovariate(1 / self._pace), self._next)

    def _later(self, low: float, high: float, call: Callable[..., object], *arguments: object) -> None:
        self._clock.after(self.rng.uniform(low, high), call, *arguments)

    def _note(self, what: str) -> None:
        self._judge.note("trouble", what)

    def _victim(self, *, up: bool = True) -> Machine | None:
        """The leader twice as often as chance would have it."""
        found = [machine for machine in self._machines if machine.up or not up]
        leaders = [machine for machine in found if self._leads(machine)]
        if leaders and self.rng.random() < 0.4:
            return self.rng.choice(leaders)
        return self.rng.choice(found) if found else None

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

    @staticmethod
    def _leads(machine: Machine) -> bool:
        return machine.leads

    def _kill_client(self) -> bool:
        name = self._crowd.kill_one()
        if name:
            self._note(f"kill -9 {name}")
        return bool(name)

    # ---- folders

    def _kill_inside(self) -> bool:
        """In the middle of a checkpoint, of an installation, or of a start."""
        machine = self._victim()
        if machine is None:
            return False
        power = self.rng.random() < 0.5
        self._note(f"{machine.name} will {'lose power' if power else 'be killed'} in the middle of something")
        machine.kill_in_sync(self.rng.randrange(1, 8), power=power)
        if self.rng.random() < 0.3:
            machine.kill()
            machine.start()
        return True

    def _remake(self) -> bool:
        """The state differs from the others', or so the mark says: state and checkpoints are thrown away."""
        machine = self._victim()
        if machine is None or not self._operator.sound():
            return False
        self._note(f"the state of {machine.name} must be rebuilt")
        machine.kill()
        write_marker(machine.folder / "raft", REBUILD_MARKER, "a test")
        machine.start()
        return True

    def _loses(self) -> Machine | None:
        """Whose folder may get lost: everybody is whole, and at most one of them may not be."""
        if not self._operator.sound():
            return None
        return self.rng.choice(self._operator.members())

    def _wipe(self) -> bool:
        machine = self._loses()
        if machine is None:
            return False
        machine.wipe()
        self._judge.may_be_refused.add(machine.name)
        # Most people notice; the others start it as if nothing had happened.
        machine.join = self.rng.random() < 0.4
        self._note(f"the folder of {machine.name} is emptied{' and shall join' if machine.join else ''}")
        self._later(0.0, 1.0, machine.start)
        return True

    def _back_up(self) -> bool:
        machine = self._victim()
        if machine is None or machine.process is None or not machine.process.serving:
            return False
        self._note(f"the folder of {machine.name} is copied")
        self._backups[machine.name] = machine.back_up()
        # A copy of the newest start could not be told from the folder itself; see `identity`.
        machine.kill()
        machine.start()
        return True

    def _roll_back(self) -> bool:
        found = [m for m in self._operator.members() if m.name in self._backups]
        if not found or not self._operator.sound():
            return False
        machine = self.rng.choice(found)
        backup = self._backups.pop(machine.name)
        self._note(f"the folder of {machine.name} is what it was when it was copied")
        self._judge.may_be_refused.add(machine.name)
        machine.bring_back(backup)
        self._later(0.0, 1.0, machine.start)
        return True

    def _copy_folder(self) -> bool:
        """Two machines with the same files, for a while."""
        machine = self._loses()
        if machine is None or machine.process is None or not machine.process.serving or self._double.up:
            return False
        double = self._double
        self._note(f"{double.name} is a copy of {machine.name}")
        self._judge.may_be_refused |= {double.name, machine.name}
        double.node_id, double.out = machine.node_id, False
        double.bring_back(machine.back_up())
        double.start()
        self._later(1.0, 5.0, self._no_double)
        return True

    def _no_double(self) -> None:
        if self._double.up:
            self._note(f"{self._double.name} is switched off")
            self._double.kill()
        self._double.out = True

    # ---- members

    def _add(self) -> bool:
        return self._operator.grow()

    def _remove(self) -> bool:
        """Somebody, the leader often. If that leaves too few, another one is added."""
        members = self._operator.members()
        if len(members) < 3:
            return False
        leader = self._operator.leader()
        name = leader.name if leader is not None and self.rng.random() < 0.4 else self.rng.choice(members).name
        return self._operator.remove(name)

    def _move(self) -> bool:
        """To another address."""
        machine = self._loses()
        if machine is None:
            return False
        machine.kill()
        machine.peer_port += 10
        self._note(f"{machine.name} moves to {machine.peer_address}")
        self._later(0.0, 0.5, machine.start)
        return True

    def _transfer(self) -> bool:
        members = self._operator.members()
        name = self.rng.choice(members).name if members and self.rng.random() < 0.5 else None
        return self._operator.ask(f"transfer to {name}", lambda raft: raft.transfer(name))

    def _set_time(self) -> bool:
        jump = self.rng.randrange(100, 3000)
        self._judge.ahead_ms += jump
        return self._operator.ask(f"set_time {jump} ms ahead", lambda raft: raft.set_time(raft.now_ms() + jump))

    # ---- room

    def _low_space(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        self._note(f"{machine.name} is low on space")
        machine.low_space = True
        self._later(0.3, 2.0, setattr, machine, "low_space", False)
        return True

    def _disk_full(self) -> bool:
        machine = self._victim()
        if machine is None or machine.process is None or not machine.process.serving:
            return False
        self._note(f"the disk of {machine.name} is full")
        machine.platter.full = True
        self._judge.forgiven.add(machine.name)
        self._later(0.5, 2.0, self._new_disk, machine)
        return True

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

    # ---- disks and clocks

    def _slow_disk(self) -> bool:
        machine = self.rng.choice(self._machines)
        machine.platter.slow = self.rng.choice((0.02, 0.08, 0.3))
        self._note(f"the disk of {machine.name} takes {machine.platter.slow} s")
        self._later(1.0, 4.0, self._fast_disk, machine)
        return True

    def _fast_disk(self, machine: Machine) -> None:
        machine.platter.slow = 0.0

    def _stall(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        stall = self.rng.choice((0.3, 0.7, 2.0))
        self._note(f"the disk of {machine.name} stalls for {stall} s")
        machine.platter.stalled_until = self._clock.now + stall
        return True

    def _broken_disk(self) -> bool:
        """A sync fails once: the process must end, and may come back."""
        machine = self._victim()
        if machine is None or machine.process is None or not machine.process.serving:
            return False
        self._note(f"the next sync of {machine.name} fails")
        machine.platter.fail_next = True
        self._judge.forgiven.add(machine.name)
        self._later(0.5, 2.0, self._new_disk, machine)
        return True

    def _new_disk(self, machine: Machine) -> None:
        machine.platter.fail_next = machine.platter.full = False
        self._judge.forgiven.discard(machine.name)
        machine.start()

    def _jump(self) -> bool:
        """Of a minority's clocks."""
        machine = self._machines[0]
        machine.wall_offset_ms = self.rng.choice((-YEAR_MS, -5_000, -700, 700, 5_000, YEAR_MS))
        self._note(f"the clock of {machine.name} is {machine.wall_offset_ms} ms off")
        return True

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
