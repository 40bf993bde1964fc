"""What the clients do: random operations on few keys, so that they get into each other's way, and messages.

A *lane* is a process in the sense of the checkers: one call after the other. Lanes share clients, as coroutines of a
program do, so that their calls travel together. All values are counters, so each key is set, summed up, deleted and
fought over by checks alike. Most commits leave a mark, a key of their own with their name, by which the outcome can be
looked up in the end; the others are left without, since single mutations take another way through the nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import kvorum
from kvorum.errors import ConnectFailed

from .history import Check, Effect, Kind, Operation
from .recorder import DONE, HANDLED, MARKS, UNDELIVERED, VALUES, Recorder

KEYS: Final = tuple(f"k{number}" for number in range(6))
QUEUE: Final = "chaos"
MARKED: Final = 0.95
"""Part of the commits that leave a mark. An unknown one without a mark may be put in at any place after its call, or at
none: half an hour of faults with 0.7 left 475 of them among 342,000 commits, too many for the judges."""
TIMEOUTS: Final = (250, 1_000, 3_000)
"""Milliseconds. Short ones give unknown outcomes, long ones give retries over a failover."""
THINKING: Final = 0.01
"""Seconds between two calls of a lane, on average: judging takes time that grows with the history."""
BACKOFF: Final = (100,) * 30
"""Milliseconds. More attempts than faults can use up: a message that is given up would be lost rightly."""
TROUBLE: Final = 0.1
"""Part of the messages whose handler fails at first."""
VISITOR_PATIENCE: Final = 1_000
"""Milliseconds for opening a client."""
HANDLER_PROCESS: Final = 1_000
"""Process numbers of handlers begin here."""

_CHOICES: Final[tuple[tuple[Kind, int], ...]] = (
    ("get", 36),
    ("set", 14),
    ("cas", 14),
    ("sum", 13),
    ("delete", 4),
    ("atomic", 13),
    ("enqueue", 6),
)


class HandlerTrouble(Exception):
    """What handlers raise at times, as real ones do."""


class Lane:
    """One sequential process. Its choices depend on `rng`, and on what it saw."""

    def __init__(
        self, kv: kvorum.Kv | None, process: int, rng: Random, recorder: Recorder, thinking: float = THINKING
    ) -> None:
        """A visitor gives no client. `thinking`: seconds between two calls, on average."""
        self._thinking = thinking
        self._client = kv
        self._process = process
        self._rng = rng
        self._recorder = recorder
        self._number = 0
        self._stamps: dict[str, str | None] = {}
        self._timeouts: tuple[int, ...] = (TIMEOUTS[0],) * 2 + (TIMEOUTS[1],) * 3 + (TIMEOUTS[2],) * 5

    async def run(self, stop: asyncio.Event, most: int, calls: int | None = None) -> None:
        """Work until `stop`, until all lanes together have made `most` calls, or this one has made `calls` choices.

        Errors: those of `Recorder.read`.
        """
        actions: dict[Kind, Callable[[], Awaitable[object]]] = {
            "get": self._read,
            "set": lambda: self._write("set", (self._setting(self._key()),)),
            "delete": lambda: self._write("delete", (Effect(self._key(), "delete"),)),
            "sum": lambda: self._write("sum", (self._adding(self._key()),)),
            "cas": self._compare_and_set,
            "atomic": self._atomic,
            "enqueue": self._enqueue,
        }
        kinds = [kind for kind, _ in _CHOICES]
        weights = [weight for _, weight in _CHOICES]
        last = None if calls is None else self._number + calls
        while not stop.is_set() and len(self._recorder.operations) < most and self._number != last:
            self._number += 1
            await actions[self._rng.choices(kinds, weights)[0]]()
            await asyncio.sleep(self._rng.expovariate(1 / self._thinking))

    async def visit(self, url: str, stop: asyncio.Event, most: int) -> None:
        """As `run`, with a new client every few calls.

        Those who stay hang on to the leader they know, and all notice together that it is frozen or gone. Visitors give
        up sooner and come to the next leader earlier, so that there is something newer to be seen when a frozen leader
        wakes up and those who stayed still ask it.
        """
        self._timeouts = TIMEOUTS[:1]
        while not stop.is_set() and len(self._recorder.operations) < most:
            try:
                kv = await kvorum.open_kv(url, timeout=VISITOR_PATIENCE)
            except ConnectFailed:
                continue
            async with kv:
                self._client = kv
                await self.run(stop, most, self._rng.randrange(3, 20))
        self._client = None

    # ---- kinds of operations

    async def _read(self, keys: tuple[str, ...] | None = None) -> None:
        kv, timeout = self._kv, self._timeout()
        if keys is None:
            keys = tuple(self._rng.sample((*KEYS, HANDLED), self._rng.choice((1, 1, 1, 2, 3, 6))))
        way = self._rng.random()
        call: Awaitable[list[kvorum.Entry]]
        if way < 0.15:
            keys = (*KEYS, HANDLED)  # a list of everything, in one batch, is a snapshot as well
            call = _listed(kv, timeout)
        elif len(keys) == 1 and way < 0.7:
            call = _one(kv, keys[0], timeout)
        else:
            call = kv.get_many([(*VALUES, key) for key in keys], timeout=timeout)
        done = await self._recorder.read(self._draft("get", reads=keys), call)
        for key, seen in zip(done.reads, done.seen, strict=False):
            self._stamps[key] = seen.versionstamp

    async def _compare_and_set(self) -> None:
        key = self._key()
        if self._rng.random() < 0.8:
            await self._read((key,))
        check = Check(key, self._stamps.get(key))
        effect = self._setting(key) if self._rng.random() < 0.8 else self._adding(key)
        await self._write("cas", (effect,), (check,))

    async def _atomic(self) -> None:
        """Several keys at once, some of them under a check."""
        rng = self._rng
        keys = rng.sample(KEYS, rng.choice((2, 2, 3)))
        checks: tuple[Check, ...] = ()
        if rng.random() < 0.5:
            checked = tuple(rng.sample(KEYS, rng.choice((1, 2))))
            await self._read(checked)
            checks = tuple(Check(key, self._stamps.get(key)) for key in checked)
        effects = []
        for key in keys:
            what = rng.random()
            if what < 0.4:
                effects.append(self._setting(key))
            elif what < 0.9:
                effects.append(self._adding(key))
            else:
                effects.append(Effect(key, "delete"))
        await self._write("atomic", tuple(effects), checks)

    async def _write(self, kind: Kind, effects: tuple[Effect, ...], checks: tuple[Check, ...] = ()) -> None:
        kv, timeout = self._kv, self._timeout()
        # A commit of several keys always: what it has changed unseen can be put in at too many places by the checkers.
        mark = self._name() if self._rng.random() < MARKED or kind == "atomic" else ""
        draft = self._draft(kind, effects=effects, checks=checks, mark=mark)
        call: Awaitable[kvorum.CommitResult]
        if mark or kind not in ("set", "delete"):
            call = filled(kv.atomic(), draft).commit(timeout=timeout)
        elif kind == "set":
            call = kv.set((*VALUES, effects[0].key), kvorum.KvU64(effects[0].argument), timeout=timeout)
        else:
            call = kv.delete((*VALUES, effects[0].key), timeout=timeout)
        await self._recorder.commit(draft, call)

    async def _enqueue(self) -> None:
        kv, timeout, message = self._kv, self._timeout(), self._name()
        options: dict[str, Any] = {
            "queue": QUEUE,
            "backoff_schedule": BACKOFF,
            "keys_if_undelivered": [(*UNDELIVERED, message)],
            "delay": self._rng.choice((None, None, 200)),
        }
        call: Awaitable[kvorum.CommitResult]
        if self._rng.random() < MARKED:
            draft = self._draft("enqueue", mark=message, message=message)
            call = filled(kv.atomic(), draft).enqueue(message, **options).commit(timeout=timeout)
        else:
            draft = self._draft("enqueue", message=message)
            call = kv.enqueue(message, timeout=timeout, **options)
        await self._recorder.commit(draft, call)

    # ---- small things

    @property
    def _kv(self) -> kvorum.Kv:
        assert self._client is not None
        return self._client

    def _draft(
        self,
        kind: Kind,
        *,
        reads: tuple[str, ...] = (),
        checks: tuple[Check, ...] = (),
        effects: tuple[Effect, ...] = (),
        mark: str = "",
        message: str = "",
    ) -> Operation:
        return Operation(
            self._process,
            kind,
            0,
            None,
            "unknown",
            reads=reads,
            checks=checks,
            effects=effects,
            mark=mark,
            message=message,
        )

    def _key(self) -> str:
        return self._rng.choice(KEYS)

    def _name(self) -> str:
        return f"{self._process}-{self._number}"

    def _timeout(self) -> int:
        return self._rng.choice(self._timeouts)

    def _setting(self, key: str) -> Effect:
        """A value that nobody else sets, with room for sums below it."""
        return Effect(key, "set", (self._process * 1_000_000 + self._number) << 16)

    def _adding(self, key: str) -> Effect:
        return Effect(key, "sum", self._rng.randrange(1, 10))


class Worker:
    """Handles messages: each may come several times, its effect is recorded once, by a check."""

    def __init__(self, kv: kvorum.Kv, number: int, rng: Random, recorder: Recorder) -> None:
        self._kv = kv
        self._process = HANDLER_PROCESS + number
        self._rng = rng
        self._recorder = recorder
        self._number = 0

    async def run(self) -> None:
        """Until the client is closed."""
        await self._kv.listen_queue(self._handle, queue=QUEUE, concurrency=4, with_message=True)

    async def _handle(self, message: kvorum.Message) -> None:
        name = str(message.value)
        self._recorder.deliveries[name] += 1
        if message.attempt == 1 and self._rng.random() < TROUBLE:
            raise HandlerTrouble(f"{name} has to wait")
        acknowledging = self._rng.random() < 0.5
        while True:
            self._number += 1
            mark = f"{self._process}-{self._number}"
            draft = Operation(
                self._process,
                "handle",
                0,
                None,
                "unknown",
                effects=(Effect(HANDLED, "sum", 1),),
                mark=mark,
                message=name,
            )
            commit = self._kv.atomic().check((*DONE, name), None).set((*DONE, name), mark).sum((*VALUES, HANDLED), 1)
            if acknowledging:
                commit.ack(message)
            done = await self._recorder.commit(draft, commit.commit(timeout=self._rng.choice(TIMEOUTS)))
            if done.outcome == "ok":
                self._recorder.record(name)
                return
            if acknowledging and done.outcome == "not applied":
                acknowledging = False  # perhaps the lease is stale: then the check decides
            await asyncio.sleep(0.05)


def filled(commit: kvorum.AtomicOperation, operation: Operation) -> kvorum.AtomicOperation:
    """An atomic operation with the checks, effects and mark of a recorded one."""
    for check in operation.checks:
        commit.check((*VALUES, check.key), check.versionstamp)
    for effect in operation.effects:
        key = (*VALUES, effect.key)
        if effect.action == "set":
            commit.set(key, kvorum.KvU64(effect.argument))
        elif effect.action == "sum":
            commit.sum(key, effect.argument)
        else:
            commit.delete(key)
    if operation.mark:
        commit.set((*MARKS, operation.mark), operation.mark)
    return commit


async def _one(kv: kvorum.Kv, key: str, timeout: int) -> list[kvorum.Entry]:
    return [await kv.get((*VALUES, key), timeout=timeout)]


async def _listed(kv: kvorum.Kv, timeout: int) -> list[kvorum.Entry]:
    return [entry async for entry in kv.list(prefix=VALUES, batch_size=500, timeout=timeout)]
