"""Moves against what machines hold: folders, members, room, disks and clocks."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from kvorum_raft.admission import Admissions
from kvorum_raft.faults import REBUILD_MARKER, write_marker
from tests.simulation.whole.clients import Clients
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Backup, Machine
from tests.simulation.whole.network import Network
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.plots import PLOTS, Stage

YEAR_MS: Final = 365 * 86_400_000


class Tampering:
    """A move returns whether it was really made; `counters` counts those."""

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
        self._doubtful_until = 0.0
        """A folder that has a double may be refused at any time."""
        self._quiet_until = 0.0
        self._pace = self.rng.choice((0.3, 0.8, 2.0))
        """Seconds between moves, on average: some schedules are wild, others leave time to do something."""
        self.plot = self.rng.choice(("", "", "", *PLOTS))
        """What the schedule begins with."""
        self._stage = Stage(
            clock, network, [machine for machine in machines if not machine.out], clients, judge, self.rng
        )

    @property
    def _clients(self) -> list[str]:
        return self._crowd.names

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

    @staticmethod
    def _leads(machine: Machine) -> bool:
        return machine.leads

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
        machine = self._loses()
        if machine is None:
            return False
        self._note(f"the state of {machine.name} must be rebuilt")
        machine.kill()
        write_marker(machine.folder / "raft", REBUILD_MARKER, "a test")
        machine.start()
        return True

    def _rot(self) -> bool:
        """A bit of each checkpoint, or of the newest one, is flipped where nobody looks; and then the state is lost."""
        machine = self._loses()
        found = sorted(machine.folder.glob("checkpoints/*-*/state")) if machine is not None else []
        if machine is None or not found:
            return False
        for file in found if self.rng.random() < 0.5 else found[-1:]:
            data = bytearray(file.read_bytes())
            if data:
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                file.write_bytes(data)
                machine.files.sync(file)
        self._note(f"checkpoints of {machine.name} are damaged, and its power is cut")
        machine.rotten = True
        self._doubtful_until = self._clock.now + 8.0
        machine.cut_power()
        self._later(0.2, 1.0, machine.start)
        return True

    def _loses(self) -> Machine | None:
        """Whose folder may get lost: everybody is whole, and at most one of them may not be."""
        if not self._operator.sound() or self._clock.now < self._doubtful_until:
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
        if self._loses() is None:
            return False
        members = self._operator.members()
        found = [machine for machine in members if machine.name in self._backups and _known_to_all(machine, members)]
        if not found:
            return False
        machine = self.rng.choice(found)
        backup = self._backups.pop(machine.name)
        self._note(f"the folder of {machine.name} is what it was when it was copied")
        self._judge.may_be_refused.add(machine.name)
        self._doubtful_until = self._clock.now + 8.0  # it looks like a member until somebody refuses it
        machine.bring_back(backup)
        self._later(0.0, 1.0, machine.start)
        return True

    def _copy_folder(self) -> bool:
        """Two machines with the same files for a while, in which nothing else goes wrong. Whoever has no connection to
        the original takes its copy for a restart, and what the copy lacks may be lost then: nobody could tell."""
        machine = self._loses()
        if machine is None or machine.process is None or not machine.process.serving or self._double.up:
            return False
        self._quiet_until = self._clock.now + 6.0
        self._judge.on_commit = None
        self._stage.calm()
        self._later(1.5, 2.0, self._start_double, machine)
        return True

    def _start_double(self, machine: Machine) -> None:
        double = self._double
        if self._loses() is None or machine.process is None or not machine.process.serving or self.over:
            return
        self._note(f"{double.name} is a copy of {machine.name}")
        self.counters["doubles"] += 1
        self._judge.may_be_refused |= {double.name, machine.name}
        double.node_id, double.out = machine.node_id, False
        double.bring_back(machine.back_up())
        double.start()
        self._doubtful_until = self._clock.now + 8.0
        self._later(1.0, 3.0, self._no_double)

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
        if self._loses() is None:
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

    def _burst(self) -> bool:
        """Far more writes at a time than usual."""
        self._note("everybody writes at once")
        self._crowd.burst(25)
        return bool(self._crowd.alive)

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


def _known_to_all(machine: Machine, members: Sequence[Machine]) -> bool:
    """Whether all others have stored the newest start of its folder. Whoever has not may take an older state of the
    folder for a restart, if nobody who knows better can be reached: nobody could tell (docs/guarantees.md)."""
    own = _admissions(machine)
    if own is None:
        return False
    incarnation, generation = own.identity.incarnation, own.identity.generation
    for other in (_admissions(one) for one in members if one is not machine):
        kept = None if other is None else other._kept.get(incarnation)
        if other is None or kept is None or kept.generation != generation:
            return False
        if other._stored_at.get(incarnation, 0) > other._journal.durable_seq:
            return False
    return True


def _admissions(machine: Machine) -> Admissions | None:
    """Of a node that is up and has read its log."""
    raft = machine.process.raft if machine.process is not None and machine.process.serving else None
    return getattr(raft, "_admissions", None)
