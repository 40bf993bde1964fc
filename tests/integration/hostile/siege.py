"""A cluster under attack, and two good clients beside the attackers: how they fare, and what the node keeps.

    python -m tests.integration.hostile.siege [--seconds N] [--scale X] [--node leader|follower] [attack …]

prints a table; `scripts/hostile` runs that. Good clients are a Python client over gRPC, which writes, reads and lists
through the cluster, and one of KV Connect on the attacked node itself.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import kvorum
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import DevCluster, in_thread
from tests.integration.hostile.attacks import LARGE
from tests.integration.hostile.grpc_attacks import ATTACKS
from tests.integration.kv_connect.wire import BYTES, Answer, Http1, mutation

PAUSE = 0.01
"""Seconds between two operations of a good client."""
SPARE = {"files": 4, "threads": 4 + min(32, (os.cpu_count() or 1) + 4)}
"""How many more a node may have afterwards: the threads that asyncio keeps for what must not be done in the loop are
made when they are needed first."""
LATE = 2.0
"""Seconds for which a node whose processors its attackers share may be behind: until it looks, until gRPC has let go of
what was shut, and until the allocator uses that again."""
RECOVERY = 60.0
"""Seconds in which a node must have let go of what the attackers left."""


@dataclass
class Good:
    """What a good client saw; times are seconds."""

    times: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def worst(self) -> float:
        return max(self.times, default=float("inf"))

    @property
    def median(self) -> float:
        return sorted(self.times)[len(self.times) // 2] if self.times else float("inf")


@dataclass
class Outcome:
    """What an attack did."""

    name: str
    counts: dict[str, int]
    grpc: Good
    connect: Good
    memory: int
    """Bytes that the node's anonymous memory grew by, at most."""
    longest_turn: float
    """Seconds of the loop that the HTTP port took at once, at most; 0 if not longer than in an earlier attack."""
    log: list[str]
    """Lines of faults, of all nodes."""
    log_bytes: int
    """What the attacked node logged."""
    term_changes: int
    handovers: int
    """Leaders that were late, and handed over: what happens first on a machine that has too little for everybody."""
    stalls: int
    """Leaders that left since a sync of their disk, which others use as well, took too long."""
    left: dict[str, int]
    """What the node had more of than before when the time to recover was over."""


class Siege:
    """`cluster` runs; `number` is the node that is attacked."""

    def __init__(self, cluster: DevCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number

    async def fill(self) -> None:
        """Make the rows that some attacks ask for: 64 MiB."""
        async with Http1(self.cluster.http_address(self.number)) as client:
            for at in range(0, 1_000, 10):
                write = dp.AtomicWrite()
                for row in range(at, at + 10):
                    write.mutations.extend(mutation(LARGE + b"%04d" % row, bytes(65_536), encoding=BYTES).mutations)
                assert (await client.request("POST", "/v2/atomic_write", write.SerializeToString())).status == 200

    async def run(self, name: str, *, seconds: float, scale: float = 1.0) -> Outcome:
        """One attack, beginning to end, and what is left of it."""
        cluster, number = self.cluster, self.number
        pid = cluster.pid(number)
        before, term = self._holdings(pid), self._terms()
        sizes = [cluster.log(other).stat().st_size for other in range(cluster.nodes)]
        turn = (await self._figures()).get("kvorum_debug_http_longest_turn", 0.0)
        good = [Good(), Good()]
        stop = asyncio.Event()
        memory: list[int] = [_memory(pid)]
        clients = [
            asyncio.create_task(self._use_grpc(good[0], stop)),
            asyncio.create_task(self._use_connect(good[1], stop)),
            asyncio.create_task(_watch_memory(pid, memory, stop)),
        ]
        try:
            counts = await self._attack(name, seconds, scale)
        finally:
            stop.set()
            await asyncio.gather(*clients)
        figures = await self._figures()
        left = await self._left(pid, before)
        log_bytes = cluster.log(number).stat().st_size - sizes[number]
        lines = [line for other, size in enumerate(sizes) for line in _lines(cluster.log(other), size)]
        faults = [line for line in lines if re.search("Traceback|level=(error|critical)|fault of this node", line)]
        handovers = sum("handing leadership over" in line for line in lines)
        stalls = sum("its oldest log write waits" in line for line in lines)
        return Outcome(
            name, counts, good[0], good[1], max(memory) - memory[0],
            _if_grown(figures, "kvorum_debug_http_longest_turn", turn),
            faults, log_bytes, self._terms() - term, handovers, stalls, left,
        )  # fmt: skip

    async def _attack(self, name: str, seconds: float, scale: float) -> dict[str, int]:
        cluster, number = self.cluster, self.number
        address = cluster.client_address(number) if name.startswith("grpc") else cluster.http_address(number)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.hostile.grpc_attacks", name, address, str(seconds), str(scale),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds + 60):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()[-2_000:]
        counts: dict[str, int] = json.loads(output)
        return counts

    # ---- the good clients

    async def _use_grpc(self, good: Good, stop: asyncio.Event) -> None:
        async with kvorum.open_kv(self.cluster.url) as kv:

            async def one(at: int) -> str:
                await kv.set(("good", "grpc"), at)
                entry = await kv.get(("good", "grpc"))
                assert entry.value == at
                assert [entry.value async for entry in kv.list(prefix=("good",))] == [at]
                return ""

            await _use(good, stop, one)

    async def _use_connect(self, good: Good, stop: asyncio.Event) -> None:
        address = self.cluster.http_address(self.number)
        async with contextlib.AsyncExitStack() as stack:
            client: Http1 | None = None

            async def one(at: int) -> str:
                nonlocal client
                if client is None:
                    client = await stack.enter_async_context(Http1(address))
                answer = Answer(0, {})
                try:
                    write = mutation(b"good-connect", b"%d" % at, encoding=BYTES).SerializeToString()
                    answer = await client.request("POST", "/v2/atomic_write", write)
                    if answer.status == 200:
                        wanted = dp.SnapshotRead(
                            ranges=[dp.ReadRange(start=b"good-connect", end=b"good-connect\0", limit=1)]
                        )
                        answer = await client.request("POST", "/v2/snapshot_read", wanted.SerializeToString())
                except (OSError, AssertionError) as error:
                    client = None
                    return type(error).__name__
                if answer.status != 200:
                    return f"{answer.status} {answer.text[:120]}"
                row = dp.SnapshotReadOutput.FromString(answer.body).ranges[0].values[0]
                assert row.value == b"%d" % at
                return ""

            await _use(good, stop, one)

    # ---- what the node has

    async def _figures(self) -> dict[str, float]:
        """Its metrics; empty if it has no room for one more connection."""
        try:
            async with Http1(self.cluster.http_address(self.number)) as client:
                page = (await client.request("GET", "/metrics")).text
        except (OSError, AssertionError):
            return {}
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        }

    def _holdings(self, pid: int) -> dict[str, int]:
        """Files and threads of the node."""
        process = Path(f"/proc/{pid}")
        return {"files": len(list((process / "fd").iterdir())), "threads": len(list((process / "task").iterdir()))}

    async def _left(self, pid: int, before: dict[str, int]) -> dict[str, int]:
        """Wait until nothing of the attack is left; what is left all the same."""
        deadline = time.monotonic() + RECOVERY
        while True:
            left = {
                name: value - before[name]
                for name, value in self._holdings(pid).items()
                if value > before[name] + SPARE[name]
            }
            figures = await self._figures()
            for name in ("watches", "request_bytes", "answer_bytes"):
                if figures.get(f"kvorum_api_kv_connect_{name}", 1.0):
                    left[name] = int(figures.get(f"kvorum_api_kv_connect_{name}", -1))
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.2)

    def _terms(self) -> int:
        """The newest term; a node that has just been flooded may need a moment to answer."""
        deadline = time.monotonic() + RECOVERY
        while True:
            found = [self.cluster.peek(number) for number in range(self.cluster.nodes)]
            terms = [answer.term for answer in found if answer is not None]
            if len(terms) == len(found) or time.monotonic() > deadline:
                assert len(terms) == len(found), "a node does not answer"
                return max(terms)


def unnoticed(outcome: Outcome, seconds: float) -> int:
    """Bytes of requests that may come before a node does something about them, by what came within so many seconds; at
    most half of that."""
    return int(outcome.counts.get("MiB", 0) * min(0.5, LATE / seconds)) << 20


async def _use(good: Good, stop: asyncio.Event, one: Callable[[int], Awaitable[str]]) -> None:
    """Operations one after the other; a refusal is not an answer, but it is counted."""
    at = 0
    while not stop.is_set():
        at += 1
        begun = time.monotonic()
        try:
            problem = await one(at)
        except kvorum.KvorumError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            good.refused[problem] += 1
        else:
            good.times.append(time.monotonic() - begun)
        await asyncio.sleep(PAUSE)


def _lines(log: Path, size: int) -> list[str]:
    """What came behind so many bytes."""
    return log.read_bytes()[size:].decode(errors="replace").splitlines()


def _if_grown(figures: dict[str, float], name: str, before: float) -> float:
    value = figures.get(name, 0.0)
    return value if value > before else 0.0


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1_024


async def _watch_memory(pid: int, seen: list[int], stop: asyncio.Event) -> None:
    while not stop.is_set():
        seen.append(_memory(pid))
        await asyncio.sleep(0.05)


async def report(names: list[str], *, seconds: float, scale: float, leader: bool) -> int:
    """Run attacks one after the other and print what came of each. Returns 1 if a node noticed a fault of its own,
    if there was an election, or if anything of an attack was left."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="kvorum-hostile-") as folder:
        cluster = DevCluster(Path(folder))
        try:
            await in_thread(cluster.start_all)
            number = cluster.leader()
            siege = Siege(cluster, number if leader else (number + 1) % cluster.nodes)
            await siege.fill()
            columns = f"{'grpc p50/worst ms':>20} {'connect p50/worst':>20} {'MiB':>6} {'turn ms':>8} {'log KiB':>7}"
            print(f"{'attack':20} {columns}  more")
            for name in names:
                outcome = await siege.run(name, seconds=seconds, scale=scale)
                bad = bool(outcome.log or outcome.term_changes > outcome.handovers + outcome.stalls or outcome.left)
                failures += bad
                print(describe(outcome), flush=True)
            for other in range(cluster.nodes):
                status = cluster.terminate(other)
                print(f"node {other + 1} ended with {status}")
                failures += status != 0
        finally:
            cluster.stop()
    return 1 if failures else 0


def describe(outcome: Outcome) -> str:
    """A line of the table."""

    def show(good: Good) -> str:
        return f"{good.median * 1000:.1f}/{good.worst * 1000:.0f} ({len(good.times)})"

    more = [f"{dict(good.refused)}" for good in (outcome.grpc, outcome.connect) if good.refused]
    more += outcome.log[:3] + (
        [f"terms +{outcome.term_changes}, {outcome.handovers} handed over, {outcome.stalls} for the disk"]
        if outcome.term_changes
        else []
    )
    more += [f"left {outcome.left}"] if outcome.left else []
    return (
        f"{outcome.name:20} {show(outcome.grpc):>20} {show(outcome.connect):>20} {outcome.memory >> 20:>6}"
        f" {outcome.longest_turn * 1000:>8.1f} {outcome.log_bytes >> 10:>7}  {dict(outcome.counts)} {' | '.join(more)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("attacks", nargs="*", metavar="attack", help=f"of {', '.join(ATTACKS)}; all by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each attack (10)")
    parser.add_argument("--scale", type=float, default=1.0, help="how many connections, times this (1)")
    parser.add_argument("--node", choices=("leader", "follower"), default="leader", help="which node is attacked")
    options = parser.parse_args()
    unknown = [name for name in options.attacks if name not in ATTACKS]
    if unknown:
        parser.error(f"no attack {unknown[0]!r}; there are: {', '.join(ATTACKS)}")
    names = options.attacks or list(ATTACKS)
    return asyncio.run(report(names, seconds=options.seconds, scale=options.scale, leader=options.node == "leader"))


if __name__ == "__main__":
    sys.exit(main())
