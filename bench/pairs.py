"""Measures systems in turn, A B A B …, and counts acknowledged writes after all nodes were killed."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import kvorum
from bench import queues, sides
from bench.kv_ends import Job
from bench.measure import clock
from bench.peers import Peers
from bench.process import cpu_seconds, memory
from bench.sides import CLIENT, KvorumSide, Side
from bench.workloads import PEERS, Workload
from kvorum_node.dev_cluster import DevCluster

WARM_UP: Final = 0.5
"""Seconds of each run that do not count."""
Point = tuple[Workload, int]
"""A workload, and with how many callers."""


@dataclass(slots=True)
class Results:
    """What was found; `rows` has one for each run."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    crashes: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def failed(self, what: str, error: BaseException) -> None:
        """Keep it, and say so at once."""
        self.failures.append(f"{what}: {type(error).__name__}: {error}")
        print(f"FAILED {self.failures[-1]}", flush=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is to be measured."""

    folder: Path
    peers: Peers
    rounds: int
    seconds: float
    results: Results
    each_crash: bool = True
    """Kill all nodes after each run that writes; else after the last one of a part only."""
    until: float = math.inf
    """On the monotonic clock: no further round is begun then, but for the first one of each workload."""

    def goes_on(self, number: int) -> bool:
        """Whether that round is to be run."""
        return number < self.rounds and (not number or clock() < self.until)


def measure(side: Side, job: Job, seconds: float) -> dict[str, Any]:
    """One run. Errors: RuntimeError if the client fails."""
    pids = {**side.pids(), CLIENT: side.client.pid}
    side.client.tell(asdict(job))
    side.client.answer()
    begin = clock() + WARM_UP
    end = begin + seconds
    side.client.tell({"begin": begin, "end": end, "wait": WARM_UP, "seconds": seconds})
    time.sleep(max(0.0, begin - clock()))
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(max(0.0, end - clock()))
    cpu = {name: round(cpu_seconds(pid) - before[name], 3) for name, pid in pids.items()}
    used = memory(pids)
    return {**side.client.answer(), "seconds": seconds, "cpu_s": cpu, "memory": used, "load": os.getloadavg()[0]}


def shown(row: dict[str, Any]) -> str:
    """One line."""
    cpu = " ".join(f"{name} {part:.2f}" for name, part in row["cpu_s"].items())
    notes = "".join(f"  {row[name]:,} {name}" for name in ("conflicts", "given_up") if row.get(name))
    return (
        f"{row['workload']:20} {row['callers']:5} {row['system']:10} {row['value']:10,.0f}{row['unit']:10}"
        f" p50 {row['p50_ms']:8.2f}  p99 {row['p99_ms']:8.2f} ms   CPU s: {cpu}{notes}"
    )


def _keep(plan: Plan, point: Point, system: str, number: int, row: dict[str, Any]) -> None:
    workload, callers = point
    row = {
        **row,
        "workload": workload.name,
        "callers": callers,
        "system": system,
        "round": number,
        "value": row["rate"] * workload.per_call,
        "unit": workload.unit,
    }
    plan.results.rows.append(row)
    print(shown(row), flush=True)


def _told(plan: Plan, what: str, found: dict[str, Any]) -> None:
    plan.results.crashes.append({"after": what, **found})
    lost = found["keys"] - found["there"]
    print(
        f"{what}: all nodes killed with {found['writes']:,} writes acknowledged: {found['there']:,} of"
        f" {found['keys']:,} {found.get('what', 'keys')} hold what was acknowledged last or something newer",
        flush=True,
    )
    if lost:
        plan.results.failed(what, RuntimeError(f"{lost:,} acknowledged writes are missing"))


def crash(plan: Plan, side: Side, what: str) -> None:
    """Kill all nodes at once, start them, and compare what they have with what was acknowledged."""
    side.kill()
    side.start()
    side.ask(Job("ping"))
    _told(plan, what, side.ask(Job("check")))


def _alternate(plan: Plan, points: Sequence[Point], running: Sequence[Side]) -> None:
    """All runs of these, in turn."""
    ours = next(side for side in running if side.name == "kvorum")
    unchecked = ""
    for point in points:
        workload, callers = point
        for number in itertools.takewhile(plan.goes_on, itertools.count()):
            for side in running if number % 2 == 0 else reversed(running):
                if side.name != "kvorum" and side.name != workload.peer:
                    continue
                what = f"{workload.name}, {callers} callers, {side.name}, round {number + 1}"
                try:
                    row = measure(side, workload.scaled(callers), plan.seconds * workload.longer)
                    _keep(plan, point, side.name, number, row)
                    if side is ours and workload.writes:
                        unchecked = what
                    if unchecked and plan.each_crash:
                        crash(plan, side, unchecked)
                        unchecked = ""
                except (RuntimeError, OSError) as error:
                    plan.results.failed(what, error)
    if unchecked:
        crash(plan, ours, unchecked)


def _has(plan: Plan, *peers: str) -> bool:
    return all(not plan.peers.wanting(*PEERS[peer]) for peer in peers)


@contextlib.contextmanager
def _pair(plan: Plan, part: str, nodes: int = 3) -> Iterator[list[Side]]:
    """kvorum, and etcd if it is to be had."""
    with contextlib.ExitStack() as stack:
        running: list[Side] = [stack.enter_context(sides.kvorum_side(plan.folder / f"{part}-kvorum", nodes))]
        if _has(plan, "etcd"):
            running.append(stack.enter_context(sides.etcd_side(plan.folder / f"{part}-etcd", plan.peers, nodes)))
        yield running


def keys(plan: Plan, points: Sequence[Point]) -> None:
    """Everything with keys and values on as many nodes as the first workload says."""
    first = points[0][0]
    with _pair(plan, first.part, first.nodes) as running:
        _alternate(plan, points, running)


def growth(plan: Plan, points: Sequence[Point]) -> None:
    """With many keys: rates, and then how long the nodes are away when they are killed."""
    workload = points[0][0]
    with _pair(plan, workload.part) as running:
        for side in running:
            begun = clock()
            side.ask(replace(workload.job, call="fill"))
            print(f"{workload.name}: {side.name} was filled in {clock() - begun:.1f} s", flush=True)
        _alternate(plan, points, running)
        for number in range(plan.rounds):
            for side in running:
                row = {"workload": workload.name, "system": side.name, "round": number, "all_s": _restart_all(side)}
                if isinstance(side, KvorumSide):
                    row["one_s"] = _restart_one(side.cluster)
                plan.results.restarts.append(row)
                print(f"{workload.name}: {side.name} restarted: {json.dumps(row)}", flush=True)


def _restart_all(side: Side) -> float:
    """Seconds from starting all servers, killed before, until a linearizable read is answered."""
    side.kill()
    begun = clock()
    side.start()
    side.ask(Job("ping"))
    return round(clock() - begun, 2)


def _restart_one(cluster: DevCluster) -> float:
    """Seconds from starting a follower, killed before, until it serves."""
    follower = (cluster.leader() + 1) % cluster.nodes
    cluster.kill(follower)
    begun = clock()
    cluster.start(follower)
    while (said := cluster.peek(follower)) is None or not said.leader.node_id:
        time.sleep(0.01)
    return round(clock() - begun, 2)


def deno(plan: Plan, points: Sequence[Point]) -> None:
    """A Deno program with a cluster, and with its own file."""
    if why := plan.peers.wanting("deno"):
        plan.results.failures.append(f"Deno: not measured, it is to be measured with its own program ({why})")
        return
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(sides.started(DevCluster(plan.folder / "deno-kvorum")))
        running = stack.enter_context(sides.deno_sides(plan.folder / "deno", plan.peers, cluster))
        _alternate(plan, points, running)


# ---- queues


def queue(plan: Plan, points: Sequence[Point]) -> None:
    """`bench.queues`, and whether a message that was acknowledged comes again after a crash."""
    variants = {variant.name: variant for variant in queues.VARIANTS}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(sides.started(DevCluster(plan.folder / "queue-kvorum")))
        running = [queues.of_cluster(cluster)]
        if _has(plan, "jetstream"):
            running.append(stack.enter_context(queues.nats_system(plan.folder / "queue-nats", plan.peers)))
        for point in points:
            variant = variants[point[0].job.call]
            for number in itertools.takewhile(plan.goes_on, itertools.count()):
                for system in running if number % 2 == 0 else reversed(running):
                    what = f"{point[0].name}, {system.name}, round {number + 1}"
                    try:
                        row = queues.measure(system, variant, plan.seconds)
                        cpu = {name: round(part * plan.seconds, 3) for name, part in row["cpu"].items()}
                        row |= {"cpu_s": cpu, "seconds": plan.seconds}
                        _keep(plan, point, "kvorum" if system.name == "kvorum" else "jetstream", number, row)
                        if system is running[0] and (plan.each_crash or not number):
                            _crash_queue(plan, cluster, system, row["sent"], what)
                    except (RuntimeError, OSError) as error:
                        plan.results.failed(what, error)


def _crash_queue(plan: Plan, cluster: DevCluster, system: queues.System, sent: int, what: str) -> None:
    sides.kill_all(cluster)
    cluster.start_all()
    system.pids = queues.node_pids(cluster)

    async def look() -> int:
        async with kvorum.open_kv(cluster.url) as kv:
            stats = await kv.queue(f"bench{system.runs}").stats()
            return stats.done - stats.messages

    _told(plan, what, {"writes": 2 * sent, "keys": sent, "there": asyncio.run(look()), "what": "messages"})


PARTS: Final[dict[str, Callable[[Plan, Sequence[Point]], None]]] = {"queue": queue, "deno": deno}


def run(plan: Plan, points: Sequence[Point]) -> None:
    """All of them, part by part: what has ended gives the machine to the next."""
    parts: dict[str, list[Point]] = {}
    for point in points:
        parts.setdefault(point[0].part, []).append(point)
    for part, own in parts.items():
        measured = PARTS.get(part, growth if part.startswith("keys-") else keys)
        try:
            measured(plan, own)
        except Exception as error:  # noqa: BLE001  # the other parts are worth having; this one is reported as failed
            plan.results.failed(part, error)
