"""Watchers of ranges, and what they must have seen: each change exactly once, in order, over whatever happened.

A watcher reads through the shipped client, slowly, stops now and then and goes on from where it was; when its process
is killed, the next one takes over its place. Nodes keep little history here, so a place may be gone: then the watcher
must be told so, and begins again. What lies between is a gap that was announced; all else must be whole.

The judge knows nothing of the history of nodes. What every commit did follows from what the clients did, and where
their outcome was unknown from the marks that their writes left.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from chaos.history import Operation
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store.history import Bounds

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge

BOUNDS: Final = (Bounds(2_500, 20), Bounds(8_000, 80), Bounds(1 << 20, 4_096))
"""How much history nodes keep: a second or so of it in the first, everything in the last."""
WATCHED: Final = (b"k", b"l")
EXPIRING: Final = (b"x/", b"x0")
Told = tuple[bytes, bytes, int | None]
"""Versionstamp, key, number that was set; None: it is gone."""


@dataclass
class Stretch:
    """What one watcher was told without a gap."""

    name: str
    bounds: tuple[bytes, bytes]
    since: bytes = b""
    through: bytes = b""
    told: list[Told] = field(default_factory=list)
    marks: int = 0
    live: bool = True
    """It is to be told everything to the end."""


class Source(Protocol):
    """Where changes come from."""

    def watch_range(self, start: bytes, end: bytes, *, since: bytes, keys_only: bool) -> Any: ...


class RangeWatcher:
    """One place in the history, handed on from process to process. `of_any`: it watches any node, else the leader."""

    def __init__(
        self, name: str, bounds: tuple[bytes, bytes], judge: "Judge", rng: random.Random, *, of_any: bool = False
    ) -> None:
        self.of_any = of_any
        self._name = name
        self._bounds = bounds
        self._judge = judge
        self._rng = rng
        self._begin(b"")

    def _begin(self, since: bytes) -> None:
        self._stretch = Stretch(self._name, self._bounds, since, since)
        self._judge.stretches.append(self._stretch)

    async def run(self, backend: Source, working: "asyncio.Event") -> None:
        """Watch until the client is closed; `working` is set when pauses are to end."""
        while True:
            try:
                await self._watch(backend, working)
            except errors.Compacted as gap:
                oldest = bytes.fromhex(gap.oldest)
                self._judge.counters["watches behind the history"] += 1
                if oldest <= self._stretch.through:
                    self._judge.broken(f"{self._name} cannot go on from its place, which is not too old")
                self._stretch.live = False
                self._begin(oldest)
            except errors.Closed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.choice((0.0, 0.2, 1.0))):
                    await working.wait()
            self._judge.counters["watches resumed"] += 1

    async def _watch(self, backend: Source, over: "asyncio.Event") -> None:
        rng, stretch = self._rng, self._stretch
        left = rng.choice((1, 5, 40))
        start, end = self._bounds
        events = backend.watch_range(start, end, since=stretch.through, keys_only=False)
        part: list[Told] = []
        async with contextlib.aclosing(events):
            async for event in events:
                part += [_told(change) for change in event.changes]
                if event.through:
                    self._take(part, event.through)
                    self._judge.counters["events of any node"] += self.of_any
                    part = []
                left -= 1
                if left <= 0 and not over.is_set():
                    return
                if not over.is_set() and rng.random() < 0.1:
                    await asyncio.sleep(rng.expovariate(1 / 0.1))

    def _take(self, told: list[Told], through: bytes) -> None:
        stretch = self._stretch
        if not stretch.since:
            if told:
                self._judge.broken(f"{self._name} was told of changes before it knew where it began")
            stretch.since = through
        if through < stretch.through:
            self._judge.broken(f"{self._name} was led back from {stretch.through.hex()} to {through.hex()}")
        stretch.through = through
        stretch.told += told
        stretch.marks += not told
        self._judge.counters["changes told" if told else "marks of progress"] += 1


def _told(change: pb.Change) -> Told:
    entry = change.entry
    number = int.from_bytes(entry.value, "little") if change.kind == pb.CHANGE_KIND_SET else None
    return entry.versionstamp, entry.key, number


def judge_stretches(judge: "Judge", stretches: Sequence[Stretch], history: Sequence[Operation]) -> None:
    """Compare them with what happened."""
    expected = _happened(history)
    for stretch in stretches:
        if stretch.bounds == EXPIRING:
            _judge_expiring(judge, stretch)
            continue
        if not stretch.since:
            continue  # it never began
        wanted = [
            change
            for change in expected
            if change[0] > stretch.since and (stretch.live or change[0] <= stretch.through)
        ]
        # Within a commit the order of keys means nothing.
        told = sorted(stretch.told, key=lambda change: change[:2])
        if [change[0] for change in stretch.told] != sorted(change[0] for change in stretch.told):
            judge.broken(f"{stretch.name} was told of commits out of order")
        if told != wanted:
            missing = [change for change in wanted if change not in told]
            more = [change for change in told if change not in wanted]
            judge.broken(
                f"{stretch.name}, from {stretch.since.hex()} to {stretch.through.hex()}, was told of {len(told)}"
                f" changes where there were {len(wanted)}: without {missing[:3]}, and of {more[:3]} beyond"
            )
        judge.counters["changes judged"] += len(told)


def _happened(history: Sequence[Operation]) -> list[Told]:
    """All changes of the keys that clients write, by versionstamp and key."""
    state: dict[str, int] = {}
    found: list[Told] = []
    committed = [operation for operation in history if operation.committed and operation.effects]
    for operation in sorted(committed, key=lambda operation: operation.versionstamp or ""):
        stamp = bytes.fromhex(operation.versionstamp or "")
        for effect in sorted(operation.effects, key=lambda effect: effect.key):
            key = effect.key.encode()
            if effect.action == "delete":
                if state.pop(effect.key, None) is not None:
                    found.append((stamp, key, None))
                continue
            before = state.get(effect.key, 0) if effect.action == "sum" else 0
            state[effect.key] = (before + effect.argument) % (1 << 64)
            found.append((stamp, key, state[effect.key]))
    return found


def _judge_expiring(judge: "Judge", stretch: Stretch) -> None:
    """Keys that expire are set once and end once. What became of them is not in the history."""
    seen: dict[bytes, int | None] = {}
    last = b""
    for stamp, key, number in stretch.told:
        if stamp < last:
            judge.broken(f"{stretch.name} was told of commits out of order")
        last = stamp
        if key in seen and (number is not None or seen[key] is None):
            judge.broken(f"{stretch.name} was told of {key!r} more often than it changed")
        seen[key] = number
        judge.counters["expiries told"] += number is None
    if stretch.live and stretch.since and any(number is not None for number in seen.values()):
        judge.broken(f"{stretch.name} was not told of the end of all keys")
