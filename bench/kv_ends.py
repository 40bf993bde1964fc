"""A client process that is measured, whichever key-value store it talks to.

Only the standard library is imported, since the clients of another system run under an interpreter of its own. `run` is
the main function of such a process. It prints `ready`, then works off lines of its standard input. Each is a `Job` in
JSON; the process gets ready for it and prints `{}`, reads from when to when it is to be measured, and prints what came
of it as one line, or `{"error": …}`. Connections stay open from one job to the next.

Every write that was acknowledged is remembered, so that a job `check` can look whether it is still there: a value
begins with a number that grows with each write of its key, and a sum must not be less than what was added to it.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bench.measure import between, clock, figures

DIGITS: Final = 12
"""Of the number at the beginning of each value."""
HOT: Final = 16
"""Keys that all callers contend for."""
MANY: Final = "many"
"""The space that may be very large."""
PATIENCE: Final = 60.0
READERS: Final = 256


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done: see `CALLS`, and `Runner.prepare`."""

    call: str
    callers: int = 1
    keys: int = 10_000
    size: int = 100
    """Bytes of a value, as the system stores it."""
    rate: float = 0.0
    """Of `watch`: writes a second."""
    clients: int = 1
    """Of `watch`."""


class Store(Protocol):
    """A client of the system that is measured. A key is a space's name and a number. Versions are the system's own."""

    overhead: int
    """Bytes that the system adds to a value before it stores it."""

    async def set(self, space: str, key: int, value: str) -> None: ...

    async def get(self, space: str, key: int) -> str | None:
        """The newest value."""

    async def get_local(self, space: str, key: int) -> str | None:
        """What the node at hand has, which may be old."""

    async def read(self, space: str, key: int) -> tuple[str | None, Any]:
        """The newest value, and its version for `swap`."""

    async def swap(self, space: str, key: int, version: Any, value: str) -> Any:
        """Set if the key still has this version; the version after it, or None if it has not."""

    async def add(self, space: str, key: int) -> int:
        """Add 1 to a number that is absent at first; how often somebody else was faster."""

    async def list(self, space: str) -> dict[int, str]:
        """All values of a space; numbers as their digits."""

    async def fill(self, space: str, keys: range, value: Callable[[int], str]) -> None:
        """Store many, as fast as the system takes them."""

    async def watch(self, space: str, keys: Sequence[int], seen: Callable[[str], None]) -> None:
        """Tell of each value that is written to these keys from when this has returned; a watch for each key."""

    async def another(self) -> "Store":
        """A further client with its own connection; closed with this one."""


@dataclass(slots=True)
class Acknowledged:
    """Writes that the system has confirmed."""

    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    """By space and key: the largest number written."""
    added: Counter[tuple[str, int]] = field(default_factory=Counter)
    writes: int = 0

    def wrote(self, space: str, key: int, number: int) -> None:
        self.writes += 1
        if number > self.newest.get((space, key), -1):
            self.newest[space, key] = number

    def compare(self, space: str, stored: dict[int, str]) -> tuple[int, int]:
        """How many keys of a space were acknowledged, and how many of them hold that or something newer."""
        wanted = [(key, number) for (of, key), number in self.newest.items() if of == space]
        wanted += [(key, number) for (of, key), number in self.added.items() if of == space]
        return len(wanted), sum(int(stored.get(key, "-1")[:DIGITS]) >= number for key, number in wanted)


class Runner:
    """Works off jobs with one store."""

    def __init__(self, store: Store, more: "dict[str, More] | None" = None) -> None:
        self.store = store
        self.acknowledged = Acknowledged()
        self.numbers: Iterator[int] = itertools.count(1)
        self.filled: dict[str, int] = {}
        self.written: set[str] = set()
        """Spaces written since the last check."""
        self.conflicts = 0
        self.versions: dict[tuple[str, int], Any] = {}
        self._more = more or {}
        self._delays: list[tuple[float, float]] = []
        self._watched = False

    def value(self, size: int, number: int | None = None) -> tuple[int, str]:
        """A value of so many bytes where it is stored, and the number that it begins with."""
        number = next(self.numbers) if number is None else number
        return number, f"{number:0{DIGITS}}".ljust(size - self.store.overhead, "x")

    async def fill(self, space: str, job: Job) -> None:
        """Let all keys of a space exist."""
        have = self.filled.get(space, 0)
        if have < job.keys:
            await self.store.fill(space, range(have, job.keys), lambda _: self.value(job.size, 0)[1])
            self.filled[space] = job.keys

    async def prepare(self, job: Job) -> "Callable[[float, float], Awaitable[dict[str, Any]]]":
        """What is to be measured."""
        match job.call:
            case "ping":
                return self._ping
            case "check":
                return self._check
            case "fill":
                await self.fill(MANY, job)
                return self._nothing
            case "watch":
                await self._begin_watches(job)
                return lambda begin, end: self._watch(job, begin, end)
        if job.call in self._more:
            return await self._more[job.call](self, job)
        call = await CALLS[job.call](self, job)
        return lambda begin, end: self._measure(call, job, begin, end)

    async def _measure(
        self, call: Callable[[int], Awaitable[object]], job: Job, begin: float, end: float
    ) -> dict[str, Any]:
        self.conflicts = 0
        row = await between(call, job.callers, begin, end)
        return {**row, "conflicts": self.conflicts}

    async def _ping(self, begin: float, end: float) -> dict[str, Any]:
        """Wait until the system answers again; seconds since `begin`."""
        while True:
            try:
                await asyncio.wait_for(self.store.get("ping", 0), 1.0)
            except asyncio.CancelledError:
                raise
            except Exception:  # whatever the client of a system says while its servers are away
                if clock() > begin + PATIENCE:
                    raise
                await asyncio.sleep(0.02)
            else:
                return {"seconds": clock() - begin}

    async def _nothing(self, begin: float, end: float) -> dict[str, Any]:
        return {}

    async def _check(self, begin: float, end: float) -> dict[str, Any]:
        """Compare what is stored with what was acknowledged."""
        acknowledged = there = 0
        for space in sorted(self.written):
            wanted, found = self.acknowledged.compare(space, await self._stored(space))
            acknowledged, there = acknowledged + wanted, there + found
        self.written.clear()
        writes, self.acknowledged.writes = self.acknowledged.writes, 0
        return {"writes": writes, "keys": acknowledged, "there": there}

    async def _stored(self, space: str) -> dict[int, str]:
        """What was acknowledged as it is stored now: listed, or read one by one where that is but a part of much."""
        keys = [key for of, key in self.acknowledged.newest if of == space]
        if self.filled.get(space, 0) <= 4 * len(keys):
            return await self.store.list(space)
        found: dict[int, str] = {}
        rest = iter(keys)

        async def reading() -> None:
            for key in rest:
                found[key] = await self.store.get(space, key) or "-1"

        await asyncio.gather(*(reading() for _ in range(READERS)))
        return found

    # ---- watches

    async def _begin_watches(self, job: Job) -> None:
        await self.fill("watch", job)
        if self._watched:
            return
        self._watched = True

        def seen(value: str) -> None:
            now = clock()
            due = int(value[:DIGITS]) / 1e6
            self._delays.append((due, now - due))

        each = job.keys // job.clients
        stores = [await self.store.another() for _ in range(job.clients)]
        await asyncio.gather(
            *(
                store.watch("watch", range(number * each, (number + 1) * each), seen)
                for number, store in enumerate(stores)
            )
        )

    async def _watch(self, job: Job, begin: float, end: float) -> dict[str, Any]:
        """So many writes a second, each when it is due; the times from then until its watch has seen it."""
        self._delays.clear()
        writing: set[asyncio.Task[None]] = set()
        due, key = clock(), 0
        failed: list[BaseException] = []

        def done(task: "asyncio.Task[None]") -> None:
            writing.discard(task)
            if (error := task.exception()) is not None:
                failed.append(error)

        while due < end and not failed:
            due += 1 / job.rate
            key = (key + 1) % job.keys
            if (early := due - clock()) > 0:
                await asyncio.sleep(early)
            task = asyncio.create_task(self.store.set("watch", key, self.value(job.size, int(due * 1e6))[1]))
            writing.add(task)
            task.add_done_callback(done)
        await asyncio.gather(*writing)
        if failed:
            raise failed[0]
        wanted = (end - begin) * job.rate
        for _ in range(50):  # the last events
            times = sorted(took for when, took in self._delays if begin <= when < end)
            if len(times) >= wanted:
                break
            await asyncio.sleep(0.1)
        return {**figures(times, len(times), end - begin), "wanted": round(wanted)}


More = Callable[[Runner, Job], Awaitable[Callable[[float, float], Awaitable[dict[str, Any]]]]]
"""A job that only one system has."""


# ---- calls: each makes what a caller does again and again

Call = Callable[[int], Awaitable[object]]


async def _set(runner: Runner, job: Job, space: str = "set") -> Call:
    await runner.fill(space, job)
    turns = itertools.count()
    runner.written.add(space)

    async def call(caller: int) -> None:
        key = next(turns) % job.keys
        number, value = runner.value(job.size)
        await runner.store.set(space, key, value)
        runner.acknowledged.wrote(space, key, number)

    return call


async def _get(runner: Runner, job: Job, *, local: bool = False) -> Call:
    await runner.fill("set", job)
    turns = itertools.count()
    get = runner.store.get_local if local else runner.store.get

    async def call(caller: int) -> None:
        if await get("set", next(turns) * 7_919 % job.keys) is None and not local:
            raise RuntimeError("a key is not there that was written")

    return call


async def _mixed(runner: Runner, job: Job) -> Call:
    get, put = await _get(runner, job), await _set(runner, job)
    turns = itertools.count()

    async def call(caller: int) -> None:
        await (get(caller) if next(turns) % 10 else put(caller))

    return call


async def _swap(runner: Runner, job: Job) -> Call:
    """Each caller has a key of its own, and knows its version."""
    runner.written.add("swap")

    async def call(caller: int) -> None:
        known = runner.versions.get(("swap", caller))
        if known is None:
            _, known = await runner.store.read("swap", caller)
        number, value = runner.value(job.size)
        version = await runner.store.swap("swap", caller, known, value)
        if version is None:
            raise RuntimeError("a check has failed though nobody else wrote")
        runner.versions["swap", caller] = version
        runner.acknowledged.wrote("swap", caller, number)

    return call


async def _contend(runner: Runner, job: Job) -> Call:
    """All callers share a few keys: read, and set if nobody was faster, until it is so."""
    runner.written.add("contend")
    turns = itertools.count()

    async def call(caller: int) -> None:
        key = next(turns) % HOT
        while True:
            stored, known = await runner.store.read("contend", key)
            number = int(stored[:DIGITS]) + 1 if stored else 1
            if await runner.store.swap("contend", key, known, runner.value(job.size, number)[1]) is not None:
                break
            runner.conflicts += 1
        runner.acknowledged.wrote("contend", key, number)

    return call


async def _add(runner: Runner, job: Job) -> Call:
    space = f"sum{job.keys}"
    runner.written.add(space)
    turns = itertools.count()

    async def call(caller: int) -> None:
        key = next(turns) % job.keys
        runner.conflicts += await runner.store.add(space, key)
        runner.acknowledged.added[space, key] += 1
        runner.acknowledged.writes += 1

    return call


async def _list(runner: Runner, job: Job) -> Call:
    await runner.fill("list", job)

    async def call(caller: int) -> None:
        if len(found := await runner.store.list("list")) != job.keys:
            raise RuntimeError(f"a list of {job.keys} entries has {len(found)}")

    return call


CALLS: Final[dict[str, Callable[[Runner, Job], Awaitable[Call]]]] = {
    "set": _set,
    "big": functools.partial(_set, space="big"),
    "many": functools.partial(_set, space=MANY),
    "get": _get,
    "get_local": functools.partial(_get, local=True),
    "mixed": _mixed,
    "swap": _swap,
    "contend": _contend,
    "add": _add,
    "list": _list,
}


# ---- the process


async def _line() -> dict[str, Any] | None:
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


async def _work(runner: Runner) -> None:
    while (asked := await _line()) is not None:
        try:
            measured = await runner.prepare(Job(**asked))
            _say({})
            moments = await _line()
            if moments is None:
                return
            _say(await measured(moments["begin"], moments["end"]))
        except Exception as error:  # noqa: BLE001  # whatever a client raises is told, and the next job may go well
            _say({"error": f"{type(error).__name__}: {error}"[:500]})


def run(
    opened: Callable[[list[str]], contextlib.AbstractAsyncContextManager[Store]],
    runner: Callable[[Coroutine[Any, Any, None]], None],
    more: dict[str, More] | None = None,
) -> None:
    """The main function of a client. `opened` gives it for the addresses of the servers, the leader's first; `runner`
    runs a coroutine in an event loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", help="host:port, the leader first")
    servers = parser.parse_args().servers

    async def main() -> None:
        async with opened(servers) as store:
            print("ready", flush=True)
            await _work(Runner(store, more))

    runner(main())
