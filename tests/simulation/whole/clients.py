"""Clients: the shipped `ClusterBackend` in processes of their own, doing random things to few keys and one queue.

Every write also counts up a key of its own, its *mark*, so that the judge can tell from the final state what happened.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from chaos.history import Action, Check, Effect, Operation, Seen
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.client import ClusterBackend
from tests.simulation.whole.any_node import AnyNode
from tests.simulation.whole.bulk import Bulk
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.network import End, Network
from tests.simulation.whole.queues.hands import Hands
from tests.simulation.whole.queues.jobs import QUEUE, Jobs
from tests.simulation.whole.queues.moves import Moves
from tests.simulation.whole.queues.questions import Questions
from tests.simulation.whole.ranges import EXPIRING, WATCHED, RangeWatcher
from tests.simulation.whole.rpc import ROOT, SimConnection

KEYS = ("ka", "kb", "kc", "kn")
CREW = (False, True, True)
"""Who of them consumes."""
WRITE_TIMEOUT = 3.0
ABSENT = Seen(None, None)
_LE64 = pb.VALUE_ENCODING_LE64
_NAMES: tuple[Action, ...] = ("set", "delete", "sum")
_ACTIONS: dict[str, Any] = {
    "set": pb.MUTATION_TYPE_SET,
    "delete": pb.MUTATION_TYPE_DELETE,
    "sum": pb.MUTATION_TYPE_SUM,
}


class Clients:
    """Those that live, and those that were killed."""

    def __init__(self, clock: Clock, network: Network, nodes: list[str], judge: Judge, seed: str) -> None:
        self._world = clock, network, nodes, judge, seed
        self._rng = random.Random(f"{seed}-clients")
        self.alive: list[Client] = []
        self._dead: list[Client] = []
        self._working = True
        self._ranges = [
            RangeWatcher(f"the watcher of {start!r}", (start, end), judge, random.Random(f"{seed}-{start!r}"))
            for start, end in (WATCHED, EXPIRING)
        ]
        rng = random.Random(f"{seed}-any-node")
        self._ranges.append(RangeWatcher("the watcher of any node", WATCHED, judge, rng, of_any=True))
        """Of the client that does not consume, whoever that is now."""
        self.members: Callable[[], list[str]] = lambda: nodes
        """Those that watchers of any node choose from in the end."""

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.alive]

    @property
    def idle(self) -> bool:
        return len(self.alive) == len(CREW) and all(client.idle for client in self.alive)

    def begin(self, rng: random.Random) -> None:
        for consume in CREW:
            self._world[0].after(rng.uniform(0.0, 1.0), self._start, consume)

    def _start(self, consume: bool) -> None:
        client = Client(len(self.alive) + len(self._dead), *self._world, consume=consume)
        self.alive.append(client)
        if not consume:
            client.ranges = self._ranges
            client.choose = lambda: self._rng.choice(self._world[2] if self._working else self.members())
        client.begin(2)
        if not self._working:
            client.finish()

    def look(self, client: str, node: str) -> None:
        """That client reads that node now, if it lives."""
        for one in self.alive:
            if one.name == client:
                one.look(node)

    def burst(self, writes: int) -> None:
        """So many at a time, from each."""
        for client in self.alive:
            client.burst(writes)

    def kill_one(self) -> str:
        """Another one takes its place. Its name, or "" if none is there yet."""
        if not self.alive:
            return ""
        client = self._rng.choice(self.alive)
        self.alive.remove(client)
        self._dead.append(client)
        client.die()
        self._world[0].after(self._rng.uniform(0.1, 1.5), self._start, client.consume)
        return client.name

    def finish(self) -> None:
        self._working = False
        for client in self.alive:
            client.finish()

    def kill(self) -> None:
        for client in self.alive:
            client.loop.kill()

    def bury(self) -> None:
        for client in [*self.alive, *self._dead]:
            client.loop.bury()


class Client:
    """One process. `number` names it; its operations go to the judge's history."""

    def __init__(
        self, number: int, clock: Clock, network: Network, nodes: list[str], judge: Judge, seed: str, *, consume: bool
    ) -> None:
        self.consume = consume
        self.name = f"c{number}"
        self.number = number
        self.clock = clock
        self.judge = judge
        self.rng = random.Random(f"{seed}-{self.name}")
        self.loop = ProcessLoop(clock, self.name, network, began=self.rng.uniform(10, 1e6), on_error=judge.error)
        self._network = network
        self._nodes = nodes
        self._next = 0
        self.backend: ClusterBackend | None = None
        self.working = True
        self._over = asyncio.Event()
        self.ranges: list[RangeWatcher] = []
        self.choose: Callable[[], str] = lambda: self.rng.choice(nodes)
        """The next node to be watched."""
        self.handling = 0
        self.busy = 0
        self.closed = False
        self._newest = b""
        self.watched: list[pb.KvEntry] = []
        self._under_way: dict[str, Operation] = {}
        """Writes that nobody has answered yet, as they are if nobody ever does."""
        self._moves, self._hands, self._jobs = Moves(self), Hands(self), Jobs(self)
        self.questions = Questions(self)
        self._bulk = Bulk(self.name, judge, self.rng)
        self._written: dict[str, bytes] = {}
        """Versionstamp of the newest acknowledged write of each key."""

    def begin(self, workers: int) -> None:
        self.loop.run(self.spawn, partial(self._main, workers))

    def die(self) -> None:
        """kill -9."""
        self.loop.kill()
        self._network.process_died(self.loop, power=False)
        for operation in self._under_way.values():
            self._record(operation)
        self.judge.ledger.lost(self.name, self.clock.now)
        self._moves.die()
        self._hands.die()

    def spawn(self, main: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            try:
                await main()
            except Exception as error:  # noqa: BLE001  whatever comes out of the client is a finding
                if not self.loop.dead:
                    self.judge.broken(f"client {self.name} failed: {type(error).__name__}: {error}")

        self.loop.create_task(guarded())

    async def _main(self, workers: int) -> None:
        while True:
            backend = self.backend = ClusterBackend(
                [(node, 2) for node in self._nodes],
                token=ROOT,
                rng=self.rng,
                connect=partial(SimConnection, self._network),
            )
            # The real one holds the id of this process.
            backend._keeper._client_name = self.name
            try:
                await backend.open(30.0)
                break
            except errors.ConnectFailed:
                continue
        if self.consume:
            await self._jobs.open()
            await self._hands.open()
            await self.questions.open()
        else:
            self.spawn(self._watch)
            anybody = AnyNode(self._network, self.loop, self.choose)
            for watcher in self.ranges:
                self.spawn(partial(watcher.run, anybody if watcher.of_any else backend, self._over))
            self.spawn(self._probe)
        self.spawn(self._moves.prepare)
        for _ in range(workers):
            self.spawn(self._work)

    async def _probe(self) -> None:
        """Strong reads of any node, leader or not."""
        rng = self.rng
        while self.working:
            await self._get(rng.choice(self._nodes), tuple(rng.sample(KEYS, 2)))
            await asyncio.sleep(rng.expovariate(1 / 0.08))

    def look(self, node: str) -> None:
        """A strong read of one node, now."""
        self.loop.run(self.spawn, partial(self._get, node, KEYS))

    async def _get(self, node: str, keys: tuple[str, ...]) -> None:
        """As the unary Get serves it."""
        end: End | None = None
        self.busy += 1
        invoked = self.now()
        try:
            async with asyncio.timeout(2.0):
                end = await self._network.connect(self.loop, f"{node}:3")
                answered: asyncio.Future[bytes] = self.loop.create_future()
                end.attach(partial(_resolve, answered), lambda error: None)
                end.send(pb.Read(keys=[key.encode() for key in keys]).SerializeToString())
                answer = pb.ReadResult.FromString(await answered)
            if answer.status == pb.READ_STATUS_OK:
                seen = tuple(_seen(entry) for entry in answer.entries)
                self._record(Operation(self.number, "get", invoked, self.now(), "ok", reads=keys, seen=seen))
                self.judge.counters["reads of any node"] += 1
        except (OSError, TimeoutError):
            self.judge.counters["failed reads"] += 1
        finally:
            self.busy -= 1
            if end is not None:
                end.close()

    async def _watch(self) -> None:
        """What a watch shows never goes back."""
        assert self.backend is not None
        try:
            async for entries in self.backend.watch([key.encode() for key in KEYS]):
                self.judge.counters["watch events"] += 1
                for old, new in zip(self.watched, entries, strict=False):
                    if new.versionstamp and new.versionstamp < old.versionstamp:
                        self.judge.broken(f"client {self.name} watched {new.key!r} go back in time")
                self.watched = list(entries)
        except errors.Closed:
            self.judge.note(self.name, "its watch is closed")

    def finish(self) -> None:
        """Begin nothing new."""
        self.working = False
        self.loop.run(self._over.set)
        self.loop.run(self.spawn, self._wind_up)

    @property
    def idle(self) -> bool:
        return not self.busy and not self.handling

    def close(self) -> None:
        self.loop.run(self.spawn, self._close)

    async def _close(self) -> None:
        if self.backend is not None:
            await self.backend.close()
        self.closed = True

    # ---- what it does

    async def _work(self) -> None:
        rng = self.rng
        while self.working:
            self.busy += 1
            try:
                kind = rng.choices(
                    (
                        "get",
                        "many",
                        "old",
                        "range",
                        "write",
                        "cas",
                        "atomic",
                        "enqueue",
                        "expire",
                        "glance",
                        "bulk",
                        "queues",
                    ),
                    (4, 2, 2, 1, 6, 5, 4, 3, 1, 1, 1, 5),
                )[0]
                await getattr(self, f"_do_{kind}")()
            finally:
                self.busy -= 1
            await asyncio.sleep(rng.expovariate(1 / 0.08))

    def burst(self, writes: int) -> None:
        """So many at a time."""
        if self.backend is None or not self.working:
            return
        for _ in range(writes):
            self.loop.run(self.spawn, self._once)

    async def _once(self) -> None:
        self.busy += 1
        try:
            await self._do_write()
        finally:
            self.busy -= 1

    async def final_read(self) -> None:
        await self._read("get", KEYS)

    def last_words(self, done: Callable[[], None]) -> None:
        async def speak() -> None:
            await self.final_read()
            done()

        self.loop.run(self.spawn, speak)

    async def _do_bulk(self) -> None:
        assert self.backend is not None
        await self._bulk.act(self.backend)

    async def _do_queues(self) -> None:
        await self._moves.act()

    async def _wind_up(self) -> None:
        self.busy += 1
        try:
            if self.backend is not None:
                await self._moves.wind_up()
                await self.questions.insist()
        finally:
            self.busy -= 1

    async def _do_get(self) -> None:
        await self._read("get", (self.rng.choice(KEYS),))

    async def _do_many(self) -> None:
        await self._read("get", tuple(self.rng.sample(KEYS, 3)))

    async def _do_old(self) -> None:
        """A read that may be old, but never older than what this client has seen."""
        assert self.backend is not None
        newest = self._newest
        read = pb.Read(keys=[KEYS[0].encode()], consistency=pb.CONSISTENCY_EVENTUAL)
        try:
            answer = await self.backend.read(read, timeout=WRITE_TIMEOUT)
        except errors.KvorumError:
            return
        self.judge.counters["eventual reads"] += 1
        if answer.read_versionstamp < newest:
            self.judge.broken(f"client {self.name} saw state {answer.read_versionstamp.hex()} after {newest.hex()}")
        self._newest = max(self._newest, answer.read_versionstamp)

    async def _do_glance(self) -> None:
        """The first frame of a watch holds what this client has had acknowledged."""
        assert self.backend is not None
        written = dict(self._written)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                async with contextlib.aclosing(self.backend.watch([key.encode() for key in KEYS])) as frames:
                    async for entries in frames:
                        self.judge.counters["first frames"] += 1
                        for key, entry in zip(KEYS, entries, strict=True):
                            if b"" < entry.versionstamp < written.get(key, b""):
                                self.judge.broken(f"client {self.name} watches {key} from before its own write on")
                        break
        except (TimeoutError, errors.KvorumError) as error:
            self.judge.note(self.name, f"no first frame: {error}")

    async def _do_range(self) -> None:
        """All keys in one list."""
        await self._read("get", KEYS, as_range=True)

    async def _read(self, kind: Any, keys: tuple[str, ...], *, as_range: bool = False) -> list[pb.KvEntry] | None:
        assert self.backend is not None
        read = pb.Read(keys=[] if as_range else [key.encode() for key in keys])
        if as_range:
            read.ranges.add(start=b"k", end=b"l", limit=100)
            read.ranges.add(start=b"k", end=b"l", count_only=True)
        invoked = self.now()
        try:
            answer = await self.backend.read(read, timeout=WRITE_TIMEOUT)
        except errors.KvorumError as error:
            self.judge.note(self.name, f"{kind} {keys} failed: {error}")
            self.judge.counters["failed reads"] += 1
            return None
        self._newest = max(self._newest, answer.read_versionstamp)
        entries = list(answer.entries)
        if as_range:
            found = {entry.key: entry for entry in answer.ranges[0].entries}
            if answer.ranges[1].count != len(found):
                self.judge.broken(f"client {self.name} counted {answer.ranges[1].count} keys of {len(found)}")
            entries = [found.get(key.encode(), pb.KvEntry()) for key in keys]
        seen = tuple(_seen(entry) for entry in entries)
        self._record(Operation(self.number, kind, invoked, self.now(), "ok", reads=keys, seen=seen))
        self.judge.counters["reads"] += 1
        return entries

    async def _do_write(self) -> None:
        rng = self.rng
        action: Action = rng.choices(_NAMES, (4, 1, 4))[0]
        key = KEYS[-1] if action == "sum" else rng.choice(KEYS)
        await self._write(action, (), (Effect(key, action, 0 if action == "delete" else rng.randrange(1, 1000)),))

    async def _do_cas(self) -> None:
        """Read one key, and change it if nobody did meanwhile."""
        key = self.rng.choice(KEYS)
        entries = await self._read("get", (key,))
        if entries is not None:
            stamp = entries[0].versionstamp.hex() or None
            await self._write("cas", (Check(key, stamp),), (Effect(key, "set", self.rng.randrange(1000)),))

    async def _do_atomic(self) -> None:
        """Read two keys, change both if nobody did meanwhile, or without asking."""
        keys = tuple(self.rng.sample(KEYS, 2))
        checks: tuple[Check, ...] = ()
        if self.rng.random() < 0.6:
            entries = await self._read("get", keys)
            if entries is None:
                return
            checks = tuple(
                Check(key, entry.versionstamp.hex() or None) for key, entry in zip(keys, entries, strict=True)
            )
        await self._write("atomic", checks, tuple(Effect(key, "set", self.rng.randrange(1000)) for key in keys))

    async def _do_enqueue(self) -> None:
        delay = self.rng.choice((0, 0, 0, 30, 400))
        await self._write("enqueue", (), (), message=f"{self.name}.{self._next}", delay=delay)

    async def _do_expire(self) -> None:
        """The judge reads from the key's name how long it must live."""
        time = self.rng.choice((200, 600, 1500))
        self._next += 1
        op = pb.AtomicWrite()
        op.mutations.add(
            key=f"x/{self.name}.{self._next}/{time}".encode(),
            type=_ACTIONS["set"],
            value=bytes(8),
            encoding=_LE64,
            expire_in_ms=time,
        )
        if self._next % 2:  # it gets the time that its name says only by being touched
            op.mutations[0].expire_in_ms = 20
            op.mutations.add(key=op.mutations[0].key, type=pb.MUTATION_TYPE_TOUCH, expire_in_ms=time)
        try:
            await self.backend.write(op.SerializeToString(), timeout=WRITE_TIMEOUT)  # type: ignore[union-attr]
        except errors.KvorumError as error:
            self.judge.note(self.name, f"expiring key {self._next}: {error}")

    async def _write(
        self,
        kind: Any,
        checks: tuple[Check, ...],
        effects: tuple[Effect, ...],
        *,
        message: str = "",
        delay: int = 0,
    ) -> None:
        assert self.backend is not None
        self._next += 1
        mark = f"m/{self.name}.{self._next}"
        op = pb.AtomicWrite()
        for check in checks:
            op.checks.add(key=check.key.encode(), versionstamp=bytes.fromhex(check.versionstamp or ""))
        for effect in effects:
            value = b"" if effect.action == "delete" else effect.argument.to_bytes(8, "little")
            if effect.action == "delete" and self._next % 2:
                key = effect.key.encode()
                op.mutations.add(key=key, type=pb.MUTATION_TYPE_DELETE_RANGE, end=key + b"\0")
                continue
            op.mutations.add(key=effect.key.encode(), type=_ACTIONS[effect.action], value=value, encoding=_LE64)
        op.mutations.add(key=mark.encode(), type=_ACTIONS["sum"], value=(1).to_bytes(8, "little"), encoding=_LE64)
        if message:
            enqueue = op.enqueues.add(
                queue=QUEUE,
                payload=f"{message} {delay}".encode(),
                delay_ms=delay,
                keys_if_undelivered=[f"d/{message}".encode()],
            )
            enqueue.backoff.delays_ms.extend([20] * 20)
        self._under_way[mark] = operation = Operation(
            self.number, kind, self.now(), None, "unknown", checks=checks, effects=effects, mark=mark, message=message
        )
        try:
            result = await self.backend.write(op.SerializeToString(), timeout=WRITE_TIMEOUT)
        except errors.KvorumError as error:
            operation = replace(operation, outcome=error.outcome)
            self.judge.note(self.name, f"{mark} {error.outcome}: {error}")
            self.judge.counters[f"writes {error.outcome}"] += 1
        else:
            stamp, failed = result.versionstamp.hex() or None, tuple(result.result.failed_checks)
            operation = replace(operation, outcome="ok", returned=self.now(), versionstamp=stamp, failed_checks=failed)
            self._newest = max(self._newest, result.versionstamp)
            self.judge.counters["writes acknowledged" if stamp else "writes refused by checks"] += 1
            if stamp:
                self._written.update({effect.key: result.versionstamp for effect in effects})
                if message:
                    self.judge.messages[message] = mark
        del self._under_way[mark]
        self._record(operation)

    # ---- small things

    def now(self) -> int:
        return round(self.clock.now * 1e9)

    def _record(self, operation: Operation) -> None:
        self.judge.note(self.name, operation)
        self.judge.history.append(operation)


def _seen(entry: pb.KvEntry) -> Seen:
    return Seen(int.from_bytes(entry.value, "little"), entry.versionstamp.hex()) if entry.versionstamp else ABSENT


def _resolve(future: "asyncio.Future[bytes]", data: bytes) -> None:
    if not future.done():
        future.set_result(data)
