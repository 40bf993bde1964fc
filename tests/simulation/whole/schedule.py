"""One seed: form a cluster, work under troubles, heal, converge, judge."""

import gc
import logging
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Final
from unittest import mock

from chaos.history import Operation
from kvorum.queues import replies, requests
from kvorum_node.store import Store
from kvorum_node.store.queues import clearing, topics
from kvorum_raft import Timing
from kvorum_raft.config import Limits
from kvorum_raft.direct import DirectWriter
from kvorum_raft.pysyncobj_fixes import LEADER
from kvorum_raft.seams import Member
from tests.simulation.whole.audit import audit
from tests.simulation.whole.clients import Clients
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.gates import Gates
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.network import Network
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.plots import ONE_BY_ONE
from tests.simulation.whole.queues.ledger import living
from tests.simulation.whole.queues.plan import CHUNK, REPLY_TTL
from tests.simulation.whole.ranges import BOUNDS
from tests.simulation.whole.trace import Trace
from tests.simulation.whole.troubles import Troubles

WORK = 14.0
"""Seconds of true time in which clients work and things go wrong."""
PATIENCE = 60.0
"""Seconds after healing within which everything must have come to rest."""
LEADERLESS = 10.0
"""Seconds after healing within which somebody must lead."""
TIMINGS = (Timing(), Timing(), Timing(election_min=0.25, election_max=0.35, heartbeat=0.05))
"""The last one is so narrow that elections are often contested."""
LIMITS = (
    Limits(),
    Limits(append_entries=2, window_messages=4, log_cache=4096),
    Limits(append_bytes=700, window_bytes=2000, log_cache=20_000),
)
"""Small ones take logs apart into many messages, and make entries be read from the disk."""
CHECKPOINTS = (8_000, 20_000, 60_000)
"""Bytes of the log after which one is made."""
HASH_EVERY = 16
LATE_LOSS = 0.3
"""How often a client is killed although everything works again."""
ROOM: Final = {"room": 1 << 16}
"""Bytes that are allocated ahead for a file. Usually it is so much that the kernel's clearing it (in a folder in memory
these are pages) took a twenty-fifth of a seed's time."""
DOUBLE = "Z"
"""The machine to which somebody copies another one's folder."""


@dataclass(frozen=True)
class Settings:
    """How seeds are played."""

    nodes: int = 0
    """0: five in every third seed, three in the others."""
    watches: bool = True
    """Look at what nodes do, not only at what comes of it."""
    plot: str = ""
    """What every seed begins with; "": what its own chance says."""

    def size(self, seed: int) -> int:
        return self.nodes or (5 if seed % 3 == 2 else 3)


@dataclass
class Result:
    """What became of a seed."""

    seed: int
    findings: list[str]
    unconverged: bool
    counters: Counter[str]
    trace: Trace
    history: list[Operation]
    undecided: bool = False
    """A checker gave up."""
    converged_in: float = 0.0

    @property
    def digest(self) -> str:
        """Of everything that happened: a seed has the same one each time."""
        lines = [*self.trace.lines(), str(self.counters["happenings"])]
        return blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()

    @property
    def ok(self) -> bool:
        return not (self.findings or self.unconverged or self.undecided)


class Schedule:
    """See the module."""

    def __init__(self, seed: int, folder: Path, settings: Settings) -> None:
        name = f"seed {seed}"
        rng = random.Random(name)
        self.seed = seed
        self.clock = Clock()
        self.network = Network(self.clock, random.Random(f"{name}-network"))
        self.judge = Judge(self.clock, random.Random(f"{name}-judge"))
        size = settings.size(seed)
        names = list("ABCDEFG"[:size])
        members = [Member(node, f"{node}:1", f"{node}:2") for node in names]
        spare = "ABCDEFG"[size]
        self.machines = [
            Machine(node, self.clock, self.network, members, folder / node, name, self.judge)
            for node in [*names, spare]
        ]
        self.machines[-1].join = self.machines[-1].out = True
        self.double = Machine(DOUBLE, self.clock, self.network, members, folder / DOUBLE, name, self.judge)
        self.double.out = True
        self.clients = Clients(self.clock, self.network, [*names, spare], self.judge, name)
        self.gates = Gates(self.clock, self.network, [*names, spare], self.judge, name)
        self.operator = Operator(self.clock, self.machines, self.judge, random.Random(f"{name}-operator"), size)
        self.clients.members = lambda: [machine.name for machine in self.operator.members()] or names
        self.troubles = Troubles(
            self.clock, self.network, self.machines, self.clients, self.judge, self.operator, self.double, name
        )
        self.troubles.plot = settings.plot or self.troubles.plot
        limits = rng.choice(LIMITS)
        if self.troubles.plot:
            limits = ONE_BY_ONE
        limits = replace(limits, checkpoint_log=rng.choice(CHECKPOINTS), hash_every=HASH_EVERY)
        timing, slowness = rng.choice(TIMINGS), rng.choice((0.005, 0.05, 0.3))
        if self.troubles.plot == "old_snapshot":  # which waits for two checkpoints
            slowness = 0.02
        narrow = rng.random() < 0.3
        if rng.random() < 0.2:  # applying takes no time here, so a single entry is much
            limits = replace(limits, far_behind=0)
        bounds = rng.choice(BOUNDS)
        for machine in [*self.machines, self.double]:
            machine.timing, machine.limits, machine.watches = timing, limits, settings.watches
            machine.slowness, machine.narrow, machine.history_bounds = slowness, narrow, bounds
            machine.slice_commits = rng.choice((1, 3, 64))
            machine.drift = rng.uniform(0.999, 1.001)
            machine.wall_offset_ms = rng.randrange(-200, 200)
            if self.troubles.plot:
                machine.platter.base = 0.002
        self._folder = folder
        self._rng = rng
        self.converged_in = 0.0
        self._led = False

    def run(self) -> Result:
        unconverged = False
        try:
            unconverged = not self._play()
        except Exception as error:  # noqa: BLE001  a store that cannot be read, say, is a finding like any other
            self.judge.broken("".join(traceback.format_exception(error)))
        self._tear_down()
        counters = self.judge.counters + self.troubles.counters + self.network.counters + self.operator.counters
        for machine in self.machines:
            counters += machine.counters
        counters += self.double.counters
        counters["terms"] = len(self.judge.leaders)
        counters["entries"] = len(self.judge.entries)
        counters["happenings"] = self.clock.happenings
        return Result(
            self.seed,
            self.judge.findings,
            unconverged,
            counters,
            self.judge.trace,
            self.judge.history,
            self.judge.undecided,
            self.converged_in,
        )

    def _play(self) -> bool:
        """False if the cluster does not come to rest in time."""
        for machine in self.machines:
            self.clock.after(self._rng.uniform(0.0, 0.3), machine.start)
        self.clients.begin(self._rng)
        self.gates.begin()
        self.operator.begin()
        self.troubles.begin()
        self.clock.after(self._rng.uniform(1.0, 4.0), self._audit)
        self._watch_roles()
        self.clock.run_until(WORK)
        self.troubles.heal()
        healed = self.clock.now
        self.judge.ledger.healed(healed)
        if self._rng.random() < LATE_LOSS:
            # Before it is told to end, so that it holds something; others get that in time.
            self.clock.run_until(healed + self._rng.uniform(0.5, 1.5))
            self.clients.kill_one()
        self.clients.finish()
        self.gates.finish()
        while not self._at_rest():
            if self.clock.now > healed + LEADERLESS and not self._led:
                self.judge.broken(f"nobody leads {LEADERLESS} s after everything was mended")
                self._led = True
            if self.clock.now > healed + PATIENCE:
                self.judge.note("judge", self._describe())
                return False
            self.clock.run_until(self.clock.now + 0.1)
            self._led |= self.operator.leader() is not None
        self.operator.quiet = True
        self.converged_in = self.clock.now - healed
        return self._last_words() and self._judge_end()

    def _audit(self) -> None:
        """Of some node, now and then."""
        machine = self._rng.choice(self.machines)
        if machine.process is not None and machine.process.serving and not machine.process.loop.dead:
            audit(machine, self.judge, self._folder / "copy")
        if not self.troubles.over:
            self.clock.after(self._rng.expovariate(1 / 5.0), self._audit)

    def _watch_roles(self) -> None:
        """Also leaders that never got to commit anything."""
        for machine in self.machines:
            core = machine.process.core if machine.process is not None else None
            if core is not None and core.state == LEADER and not core.stopped:
                self.judge.saw_leader(core.term, machine.name)
        self.clock.after(0.02, self._watch_roles)

    def _at_rest(self) -> bool:
        members = self.operator.members()
        if not members or not self.operator.sound() or not (self.clients.idle and self.gates.idle):
            return False
        stores = [machine.process.store for machine in members if machine.process is not None]
        places = {(store.applied_index, store.next_expiry_ms()) if store else (-1, -1) for store in stores}
        if len(places) != 1 or places.pop()[1] is not None or stores[0] is None:
            return False
        return living(stores[0]) == 0

    def _describe(self) -> str:
        parts = []
        for machine in self.machines:
            process = machine.process
            if process is None or process.core is None or process.raft is None or process.store is None:
                parts.append(f"{machine.name} down{' and out' if machine.out else ''}")
                continue
            status = process.raft.status()
            parts.append(
                f"{machine.name} {status.role} term {status.term} applied {status.applied_index} commit "
                f"{status.commit_index} last {status.last_log_index} durable {status.durable_index} "
                f"messages {living(process.store)} leases {len(process.store.leases())}"
            )
        parts.append(f"members {[machine.name for machine in self.operator.members()]} sound {self.operator.sound()}")
        parts += [f"{client.name} busy {client.busy} handling {client.handling}" for client in self.clients.alive]
        return "not at rest: " + "; ".join(parts)

    def _last_words(self) -> bool:
        """Everybody reads everything once more, and says goodbye."""
        clients = self.clients.alive
        waiting = {client.name for client in clients}
        for client in clients:
            client.last_words(lambda name=client.name: waiting.discard(name))  # type: ignore[misc]
        end = self.clock.now + 10.0
        while waiting and self.clock.now < end:
            self.clock.run_until(self.clock.now + 0.1)
        self.clock.run_until(self.clock.now + 1.0)
        for client in clients:
            for store in self._stores()[:1]:
                self.judge.watches(store, client.name, client.watched)
            client.close()
        while not all(client.closed for client in clients) and self.clock.now < end + 10:
            self.clock.run_until(self.clock.now + 0.1)
        self.clock.run_until(self.clock.now + 1.0)
        return not waiting

    def _stores(self) -> list[Store]:
        """Of the members."""
        members = self.operator.members()
        return [machine.process.store for machine in members if machine.process and machine.process.store]

    def _judge_end(self) -> bool:
        stores = self._stores()
        if not stores or len(stores) < len(self.operator.members()):
            return False
        self.judge.states(stores)
        self.judge.outcomes(stores[0])
        with stores[0].snapshot() as snapshot:
            self.gates.judge_counters(lambda key: int.from_bytes(snapshot.get(key).value, "little"))
        self.judge.queues(stores[0])
        self.judge.check_history()
        audit(self._rng.choice(self.operator.members()), self.judge, self._folder / "copy")
        return True

    def _tear_down(self) -> None:
        machines = [*self.machines, self.double]
        for machine in machines:
            if machine.process is not None:
                machine.kill()
        self.clients.kill()
        self.gates.kill()
        self.clock.drop_everything()
        for machine in machines:
            machine.close()
        self.clients.bury()
        self.gates.bury()


@contextmanager
def _small(seed: int) -> Iterator[None]:
    """Less room, smaller chunks and shorter times than usual; what clients draw by themselves comes from the seed."""
    rng = random.Random(f"seed {seed}-secrets")
    drawn = SimpleNamespace(token_bytes=rng.randbytes, token_hex=lambda size: rng.randbytes(size).hex())
    with (
        mock.patch.dict(DirectWriter.__init__.__kwdefaults__, ROOM),
        mock.patch.object(topics, "QUEUE_CHUNK", CHUNK),
        mock.patch.object(clearing, "QUEUE_CHUNK", CHUNK),
        mock.patch.object(replies, "REPLY_TTL", REPLY_TTL),
        mock.patch.object(requests, "secrets", drawn),
    ):
        yield


def run(seed: int, settings: Settings = Settings()) -> Result:
    """Play one seed."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="kvorum-sim-", dir=shm if shm.is_dir() else None))
    # What the collector finds depends on what ran before; nothing of a schedule may.
    gc.disable()
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with _small(seed):
            return Schedule(seed, folder, settings).run()
    finally:
        logging.disable(quiet)
        gc.enable()
        gc.collect(1)  # what the schedule left is young
        shutil.rmtree(folder, ignore_errors=True)
