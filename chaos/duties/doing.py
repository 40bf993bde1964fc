"""The duties themselves, as coroutines that share a client."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Final

import kvorum
from kvorum.errors import Unavailable

from ..recorder import ROOT
from .deed import Deed, committed, number, seen

ACCOUNTS: Final = 8
START: Final = 100
"""In each account at first."""
BANK: Final = (ROOT, "bank")
COUNTER: Final = (ROOT, "counter")
SET: Final = (ROOT, "set")
LOCK: Final = (ROOT, "lock")
GUARDED: Final = (ROOT, "guarded")
GROUP: Final = 20.0
"""Seconds in which one set is filled: so long lists stay short."""
LEASE: Final = 3.0
"""Seconds until a lock that nobody has released is free again."""
THINKING: Final = 0.15
"""Seconds between two calls, on average."""
TIMEOUTS: Final = (300, 1_500, 5_000)
"""Milliseconds."""
PATIENCE: Final = 20.0
"""Seconds that a watch may take to tell the last change, when nobody disturbs it."""


class Duties:
    """All duties of one process; what they do goes to `deeds`."""

    def __init__(self, kv: kvorum.Kv, process: int, rng: Random, deeds: list[Deed], thinking: float = THINKING) -> None:
        self._kv = kv
        self._process = process
        self._rng = rng
        self._deeds = deeds
        self._thinking = thinking
        self._number = 0
        self._counter_seen = ""
        self._set_told: set[str] = set()
        self._news = asyncio.Event()
        self._groups: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Errors: what a client must not see."""
        await self._open_accounts(stop)
        steps = (self._bank, self._bank, self._count, self._fill, self._hold, self._hold)
        await asyncio.gather(*(self._again(step, stop) for step in steps))

    async def watch(self) -> None:
        """Until it is cancelled, or the client is closed."""
        await asyncio.gather(self._watch_counter(), self._watch_sets())

    async def _again(self, step: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await step()
            await asyncio.sleep(self._rng.expovariate(1 / self._thinking))

    def _note(self, deed: Deed) -> Deed:
        self._deeds.append(deed)
        return deed

    def _timeout(self) -> int:
        return self._rng.choice(TIMEOUTS)

    # ---- accounts

    async def _open_accounts(self, stop: asyncio.Event) -> None:
        """Whoever comes first gives every account what it has."""
        while not stop.is_set():
            opening = self._kv.atomic()
            for account in range(ACCOUNTS):
                opening.check((*BANK, account), None).set((*BANK, account), kvorum.KvU64(START))
            await committed(Deed("bank", self._process, "open"), opening.commit(timeout=TIMEOUTS[-1]))
            _, entries = await seen(Deed("bank", self._process, "read"), self._accounts())
            if entries is not None and entries[0].versionstamp is not None:
                return

    def _accounts(self) -> Awaitable[list[kvorum.Entry]]:
        return self._kv.get_many([(*BANK, account) for account in range(ACCOUNTS)], timeout=self._timeout())

    async def _bank(self) -> None:
        deed, entries = await seen(Deed("bank", self._process, "read"), self._accounts())
        balances = tuple(map(number, entries or ()))
        self._note(replace(deed, numbers=balances))
        if entries is None or self._rng.random() < 0.3:
            return
        giver, taker = self._rng.sample(range(ACCOUNTS), 2)
        amount = self._rng.randint(0, balances[giver])
        transfer = self._kv.atomic().check(entries[giver].key, entries[giver].versionstamp)
        if self._rng.random() < 0.5:
            transfer.check(entries[taker].key, entries[taker].versionstamp)
            transfer.set(entries[giver].key, kvorum.KvU64(balances[giver] - amount))
            transfer.set(entries[taker].key, kvorum.KvU64(balances[taker] + amount))
        else:
            transfer.sum(entries[giver].key, -amount).sum(entries[taker].key, amount)
        draft = Deed("bank", self._process, "transfer", numbers=(giver, taker, amount))
        self._note(await committed(draft, transfer.commit(timeout=self._timeout())))

    # ---- a counter, sets

    async def _count(self) -> None:
        if self._rng.random() < 0.5:
            await self._add_one(self._timeout())
            return
        call = self._kv.get(COUNTER, timeout=self._timeout())
        deed, entry = await seen(Deed("counter", self._process, "read"), call)
        if entry is not None:
            deed = replace(deed, numbers=(number(entry),), stamp=entry.versionstamp or "")
        self._note(deed)

    async def _add_one(self, timeout: int) -> Deed:
        call = self._kv.atomic().sum(COUNTER, 1).commit(timeout=timeout)
        return self._note(await committed(Deed("counter", self._process, "add"), call))

    async def _fill(self) -> None:
        group = f"{int(time.monotonic() / GROUP)}"
        self._groups.add(group)
        if self._rng.random() < 0.6:
            await self._add(group, self._timeout())
            return
        if self._rng.random() < 0.3:
            group = self._rng.choice(sorted(self._groups))
        call = listed(self._kv, group, self._timeout())
        deed, names = await seen(Deed("set", self._process, "read", token=group), call)
        self._note(replace(deed, names=names or ()))

    async def _add(self, group: str, timeout: int) -> Deed:
        self._number += 1
        element = f"{self._process}-{self._number}"
        draft = Deed("set", self._process, "add", token=group, names=(element,))
        return self._note(await committed(draft, self._kv.set((*SET, group, element), 1, timeout=timeout)))

    # ---- a lock whose owners go on when they have lost it

    async def _hold(self) -> None:
        process, rng = self._process, self._rng
        call = self._kv.atomic().check(LOCK, None).set(LOCK, process, expire_in=int(LEASE * 1_000))
        taken = self._note(await committed(Deed("lock", process, "take"), call.commit(timeout=self._timeout())))
        if not taken.committed:
            return
        slow = rng.random() < 0.2
        for _ in range(rng.randint(1, 5)):
            await asyncio.sleep(rng.uniform(0.0, LEASE if slow else 0.1))
            draft = Deed("lock", process, "write", token=taken.stamp)
            guarded = self._kv.atomic().check(LOCK, taken.stamp).sum(GUARDED, 1)
            written = self._note(await committed(draft, guarded.commit(timeout=self._timeout())))
            if written.outcome == "ok" and not written.stamp and not slow:
                return
        if rng.random() < 0.8:
            draft = Deed("lock", process, "release", token=taken.stamp)
            release = self._kv.atomic().check(LOCK, taken.stamp).delete(LOCK)
            self._note(await committed(draft, release.commit(timeout=self._timeout())))

    # ---- watches

    async def _watch_counter(self) -> None:
        while True:
            self._note(Deed("watch", self._process, "open", time.monotonic_ns(), outcome="ok"))
            try:
                async with self._kv.watch([COUNTER]) as watch:
                    async for (entry,) in watch:
                        self._see(entry)
            except Unavailable:
                continue
            return

    def _see(self, entry: kvorum.Entry) -> None:
        self._counter_seen = entry.versionstamp or ""
        now = time.monotonic_ns()
        stamp = entry.versionstamp or ""
        self._note(Deed("watch", self._process, "see", now, now, "ok", stamp, numbers=(number(entry),)))
        self._news.set()

    async def _watch_sets(self) -> None:
        since: str | None = None
        while True:
            watch = self._kv.watch_prefix(SET, since=since)
            try:
                since = await watch.ready()
                now = time.monotonic_ns()
                self._note(Deed("watch", self._process, "ready", now, now, "ok", since))
                async for changes in watch:
                    names = tuple(str(change.key[-1]) for change in changes.changes)
                    now = time.monotonic_ns()
                    self._note(Deed("watch", self._process, "told", now, now, "ok", changes.versionstamp, names=names))
                    self._set_told.update(names)
                    self._news.set()
            except Unavailable:
                since = watch.resume or since
                continue
            return

    async def come_to_an_end(self) -> None:
        """A last change of what is watched, and wait until the watches have told it; if they do not, the judge will
        miss it."""
        last = await self._add_one(int(PATIENCE * 1_000))
        element = await self._add("end", int(PATIENCE * 1_000))
        try:
            async with asyncio.timeout(PATIENCE):
                while self._counter_seen < last.stamp or element.names[0] not in self._set_told:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return


async def listed(kv: kvorum.Kv, group: str, timeout: int) -> tuple[str, ...]:
    """The elements of a set, from one snapshot."""
    rows = kv.list(prefix=(*SET, group), batch_size=500, timeout=timeout)
    return tuple([str(entry.key[-1]) async for entry in rows])


async def final(kv: kvorum.Kv, deeds: list[Deed], timeout: int) -> None:
    """The state after everything, as deeds of process -1."""
    groups = sorted({deed.token for deed in deeds if deed.duty == "set"})
    deed, entries = await seen(
        Deed("bank", -1, "read"), kv.get_many([(*BANK, account) for account in range(ACCOUNTS)], timeout=timeout)
    )
    found = [replace(deed, numbers=tuple(map(number, entries or ())))]
    deed, entry = await seen(Deed("counter", -1, "read"), kv.get(COUNTER, timeout=timeout))
    if entry is not None:
        found.append(replace(deed, numbers=(number(entry),), stamp=entry.versionstamp or ""))
    deed, entry = await seen(Deed("lock", -1, "read"), kv.get(GUARDED, timeout=timeout))
    if entry is not None:
        found.append(replace(deed, numbers=(number(entry),), stamp=entry.versionstamp or ""))
    for group in groups:
        deed, names = await seen(Deed("set", -1, "read", token=group), listed(kv, group, timeout))
        found.append(replace(deed, names=names or ()))
    deeds += found
