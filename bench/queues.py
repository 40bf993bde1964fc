"""Messages per second through a queue, from sending to confirmed acknowledgement, beside NATS JetStream:

    python -m bench.queues [--seconds 5] [--rounds 2] [--variants NAME,…] [--only kvorum] [--dir /dev/shm]

Three nodes of each system, a process that sends and one that handles, messages of 100 bytes, a bounded number of them
in flight (`bench.queue_ends`). For each variant the systems take turns, `--rounds` times each, and what is compared is
the two of a round: everything shares this machine, so only lines of one run mean anything. Both clusters run all the
time; the one that is not measured has nothing to do. What differs in the promises of the two is printed
(`bench.nats_cluster`).

`idle`: one message every 20 ms, and how long each takes from its sending until its handler runs.
Every run checks that each message that was sent was handled.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.load import tell
from bench.measure import clock
from bench.nats_cluster import SETTINGS, NatsCluster
from bench.peers import Peers, install
from bench.process import Child, cpu_seconds, memory
from bench.queue_ends import Plan
from kvorum_node.dev_cluster import DevCluster

WARM_UP: Final = 1.0
"""Seconds of each run that do not count."""
IDLE_AIM: Final = 5.0
"""Milliseconds from sending to the handler, median, when nothing else is going on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to use a queue."""

    name: str
    way: str
    in_flight: int
    batch: int = 1
    pace: float = 0.0
    groups: int = 0


VARIANTS: Final = (
    Variant("idle", "push", 1, pace=0.02),
    Variant("push-1", "push", 1),
    Variant("push-256", "push", 256),
    Variant("transaction-256", "transaction", 256),
    Variant("batches-256", "batches", 256),
    Variant("asking-256", "asking", 256),
    Variant("send-batch-256", "push", 256, batch=64),
    Variant("all-batches-256", "batches", 256, batch=64),
    Variant("groups-256", "push", 256, groups=64),
    Variant("one-group", "push", 32, groups=1),
)
"""For the ways see `bench.queue_ends.Plan`. `send-batch` and `all-batches` send 64 at a time. Ordered groups are
kvorum's alone."""


@dataclass(slots=True)
class System:
    """A running cluster, and how its ends are started."""

    name: str
    python: str
    module: str
    servers: dict[str, str]
    pids: dict[str, int]
    runs: int = 0


def of_cluster(cluster: DevCluster) -> System:
    """A cluster of kvorum that runs."""
    servers = {f"n{number + 1}": cluster.client_address(number) for number in range(cluster.nodes)}
    return System("kvorum", sys.executable, "bench.queue_kvorum", servers, node_pids(cluster))


def node_pids(cluster: DevCluster) -> dict[str, int]:
    """By what each node is at the moment."""
    leader = cluster.leader()
    return {
        ("leader" if number == leader else f"follower {number + 1}"): cluster.pid(number)
        for number in range(cluster.nodes)
    }


@contextlib.contextmanager
def kvorum_system(folder: Path) -> Iterator[System]:
    """Three nodes."""
    cluster = DevCluster(folder)
    try:
        cluster.start_all()
        yield of_cluster(cluster)
    finally:
        cluster.stop()


@contextlib.contextmanager
def nats_system(folder: Path, peers: Peers) -> Iterator[System]:
    """Three servers."""
    cluster = NatsCluster(peers.found["nats"], folder)
    try:
        cluster.start()
        print(f"{cluster.version}: {SETTINGS}", flush=True)
        pids = {name: cluster.pid(name) for name in cluster.servers}
        yield System("nats", str(peers.found["clients"]), "bench.queue_nats", cluster.servers, pids)
    finally:
        cluster.stop()


def measure(system: System, variant: Variant, seconds: float) -> dict[str, Any]:
    """One run. Errors: RuntimeError if a message is missing, or an end fails."""
    system.runs += 1
    ends: list[Child] = []
    sockets = socket.socketpair()
    try:
        for role, link in zip(("consumer", "producer"), sockets, strict=True):
            plan = Plan(
                role=role,
                way=variant.way,
                servers=system.servers,
                queue=f"bench{system.runs}",
                in_flight=variant.in_flight,
                batch=variant.batch,
                pace=variant.pace,
                groups=variant.groups,
                link=link.fileno(),
            )
            ends.append(Child(role, [system.python, "-m", system.module, json.dumps(asdict(plan))], [link.fileno()]))
            if ends[-1].line() != "ready":
                raise RuntimeError(f"the {role} said something else than that it is ready")
            link.close()
        row = _run(system, ends, seconds)
    finally:
        for link in sockets:
            link.close()
        for one in ends:
            one.stop()
    missing = row["sent"] - row["distinct"]
    if missing or row["unacknowledged"]:
        raise RuntimeError(f"{missing} messages were never handled, {row['unacknowledged']} not acknowledged: {row}")
    return {"variant": variant.name, "system": system.name, **row}


def _run(system: System, ends: Sequence[Child], seconds: float) -> dict[str, Any]:
    consumer, producer = ends
    pids = {**system.pids, "consumer": consumer.pid, "producer": producer.pid}
    begin = clock() + WARM_UP
    end = begin + seconds
    producer.tell({"begin": begin - WARM_UP, "end": end})
    time.sleep(begin - clock())
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(end - clock())
    after = {name: cpu_seconds(pid) for name, pid in pids.items()}
    used = memory(pids)
    sent = producer.answer()
    consumer.tell({"begin": begin, "end": end})
    handled = consumer.answer()
    cpu = {name: round((after[name] - before[name]) / seconds, 3) for name in pids}
    messages = handled["rate"] * seconds
    return {
        **handled,
        **sent,
        "cpu": cpu,
        "cpu_us_per_message": round(sum(cpu.values()) * seconds / messages * 1e6, 1) if messages else 0.0,
        "memory": used,
        "load": os.getloadavg()[0],
    }


def shown(row: dict[str, Any]) -> str:
    """One line."""
    cpu = " ".join(f"{name} {part:.0%}" for name, part in row["cpu"].items())
    return (
        f"{row['variant']:16} {row['system']:7} {row['rate']:8,.0f}/s  to handler p50 {row['p50_ms']:7.2f}"
        f" p99 {row['p99_ms']:7.2f} ms  sending p50 {row['send_p50_ms']:7.2f} ms"
        f"  {row['cpu_us_per_message']:6.0f} µs CPU a message ({cpu})  load {row['load']:.1f}"
    )


def compare(rows: Sequence[dict[str, Any]], variant: Variant) -> dict[str, float]:
    """Medians of both systems, and of how the one stands to the other in each round; prints the latter."""
    figure = "p50_ms" if variant.pace else "rate"
    found = {
        name: [row[figure] for row in rows if row["variant"] == variant.name and row["system"] == name]
        for name in ("kvorum", "nats")
    }
    medians = {name: statistics.median(figures) for name, figures in found.items() if figures}
    # Round by round: the two of a round ran side by side, under the same load.
    ratios = [ours / theirs for ours, theirs in zip(found["kvorum"], found["nats"], strict=False) if theirs]
    if ratios:
        ratio = statistics.median(ratios)
        if variant.pace:
            print(f"latency queue_vs_jetstream {variant.name} {ratio:.2f} (less is better)", flush=True)
        else:
            medians["ratio"] = ratio
            print(f"ratio queue_vs_jetstream {variant.name} {ratio:.2f}", flush=True)
    return {name: round(median, 3) for name, median in medians.items()}


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run, beside one of warming up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variants", default=",".join(variant.name for variant in VARIANTS))
    parser.add_argument("--only", choices=("kvorum", "nats"))
    parser.add_argument("--dir", default=".", help="for the data; in one that is in memory, neither system syncs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.variants.split(",")
    if unknown := set(names) - {variant.name for variant in VARIANTS}:
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    peers = Peers() if options.only == "kvorum" else install(("nats", "clients"))
    if options.only != "kvorum" and (why := peers.wanting("nats", "clients")):
        raise SystemExit(f"without its peer, say --only kvorum ({why})")
    rows: list[dict[str, Any]] = []
    medians: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvorum-bench-", dir=options.dir)))
        systems = []
        if options.only != "nats":
            systems.append(stack.enter_context(kvorum_system(folder / "kvorum")))
        if options.only != "kvorum":
            systems.append(stack.enter_context(nats_system(folder / "nats", peers)))
        for variant in VARIANTS:
            if variant.name not in names:
                continue
            for number in range(options.rounds):
                for system in systems if number % 2 == 0 else reversed(systems):
                    if variant.groups and system.name == "nats":
                        continue
                    rows.append(measure(system, variant, options.seconds))
                    print(shown(rows[-1]), flush=True)
            medians[variant.name] = compare(rows, variant)
    idle = medians.get("idle", {}).get("kvorum", 0.0)
    summary = f"idle {idle} ms to the handler (aim {IDLE_AIM} ms);" if idle else ""
    summary += " ratios to JetStream: " + ", ".join(
        f"{name} {figures['ratio']:.2f}" for name, figures in medians.items() if "ratio" in figures
    )
    return tell("queues", summary, idle <= IDLE_AIM, {"medians": medians, "rows": rows}, options.json)


if __name__ == "__main__":
    sys.exit(main())
