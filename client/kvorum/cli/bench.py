"""`kvorum bench`: how fast a database is from here, by sets and gets of its own."""

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import click

import kvorum
from kvorum.cli.progress import Bar
from kvorum.cli.session import USAGE, Options, database_options, fail, note, print_json, print_table, runs

MOST_CALLERS: Final = 4_096
MOST_SECONDS: Final = 600.0
MOST_VALUE: Final = 60_000
KEYS: Final = 1_000
"""Keys that are written and read, in turn."""
PREFIX: Final = "kvorum-bench"
_GROWTH: Final = math.log(1.01)
_COLUMNS: Final = ("Call", "Callers", "Calls/s", "p50 ms", "p99 ms", "Max ms", "Errors")


class Latencies:
    """Counts of durations, each within 1 %: memory does not grow with their number."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        self._counts[math.floor(math.log(max(seconds, 1e-9)) / _GROWTH)] += 1
        self.count += 1
        self.most = max(self.most, seconds)

    def share(self, part: float) -> float:
        """Seconds that `part` (0 to 1) of them did not exceed; 0 of none."""
        rank, seen = max(1, math.ceil(part * self.count)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(math.exp((bucket + 1) * _GROWTH), self.most)
        return 0.0


@dataclass(frozen=True)
class Round:
    """One measurement: so many callers, each with one call at a time."""

    call: str
    callers: int
    seconds: float
    latencies: Latencies
    errors: int
    first_error: str

    @property
    def rate(self) -> float:
        return self.latencies.count / self.seconds if self.seconds else 0.0


@click.command("bench")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, MOST_SECONDS),
    default=5.0,
    show_default=True,
    help="How long each measurement takes.",
)
@click.option("--callers", default="1,64,256", show_default=True, metavar="N,…", help="Calls under way at a time.")
@click.option(
    "--value-size", type=click.IntRange(0, MOST_VALUE), default=100, show_default=True, help="Bytes of a value."
)
@database_options
@runs
async def bench_command(options: Options, seconds: float, callers: str, value_size: int) -> int | None:
    """Measure sets and gets from here, and print rates and latencies. It writes.

    Up to 1,000 keys are written below a prefix of its own, and removed at the end, also when it is interrupted. It
    takes what the cluster can give: do not run it where others need that.
    """
    numbers = parse_callers(callers)
    prefix = (PREFIX, os.urandom(8).hex())
    note(f"kvorum: this writes up to {KEYS:,} keys below {options.shown_key(prefix)} and removes them at the end")
    async with options.open() as kv:
        try:
            rounds = await _measure(kv, prefix, numbers, seconds, bytes(value_size))
        finally:
            await kv.delete_prefix(prefix)
    _show(rounds, options)
    return None


def parse_callers(text: str) -> list[int]:
    """`1,64,256`."""
    found = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= MOST_CALLERS):
            fail(USAGE, f"--callers takes numbers from 1 to {MOST_CALLERS:,}, as in 1,64,256: got {text!r}")
        found.append(int(word))
    return found


async def _measure(kv: kvorum.Kv, prefix: kvorum.Key, numbers: list[int], seconds: float, value: bytes) -> list[Round]:
    def key(number: int) -> kvorum.Key:
        return (*prefix, number % KEYS)

    async def write(number: int) -> object:
        return await kv.set(key(number), value)

    async def read(number: int) -> object:
        return await kv.get(key(number))

    rounds: list[Round] = []
    calls = [(callers, name, call) for callers in numbers for name, call in (("set", write), ("get", read))]
    with Bar("bench", len(calls) * seconds) as bar:
        for callers, name, call in calls:
            bar.show(len(rounds) * seconds, f"{name}, {callers} callers")
            rounds.append(await _round(name, call, callers, seconds))
    return rounds


async def _round(name: str, call: Callable[[int], Awaitable[object]], callers: int, seconds: float) -> Round:
    latencies, failed, first, number = Latencies(), 0, "", 0
    began = time.perf_counter()
    until = began + seconds

    async def caller() -> None:
        nonlocal failed, first, number
        at = time.perf_counter()
        while at < until:
            number += 1
            try:
                await call(number)
            except kvorum.KvorumError as error:
                failed, first = failed + 1, first or str(error)
                await asyncio.sleep(0)  # one that fails at once must not keep the others from their turn
                at = time.perf_counter()
                continue
            now = time.perf_counter()
            latencies.add(now - at)
            at = now

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return Round(name, callers, time.perf_counter() - began, latencies, failed, first)


def _show(rounds: list[Round], options: Options) -> None:
    rows = []
    for one in rounds:
        half, most, longest = (
            1000 * seconds for seconds in (one.latencies.share(0.5), one.latencies.share(0.99), one.latencies.most)
        )
        if options.as_json:
            data: dict[str, object] = {"call": one.call, "callers": one.callers, "calls": one.latencies.count}
            data |= {"per_s": round(one.rate, 1), "p50_ms": round(half, 3), "p99_ms": round(most, 3)}
            print_json({**data, "max_ms": round(longest, 3), "errors": one.errors, "error": one.first_error or None})
        figures = (f"{one.rate:,.0f}", f"{half:.2f}", f"{most:.2f}", f"{longest:.2f}")
        rows.append((one.call, str(one.callers), *figures, str(one.errors)))
    if not options.as_json:
        print_table(_COLUMNS, rows)
    for one in rounds:
        if one.first_error:
            note(f"kvorum: {one.call}, {one.callers} callers: {one.errors:,} errors, the first: {one.first_error}")
