"""How fast foreign clients are with a cluster on this machine: figures to look at, beside what is aimed at."""

import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import kvorum.sync
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.process import TOKEN, Foreign, deno, environment
from tests.acceptance.foreign.test_load import ENTRIES, FILL

CALLERS = 64
SECONDS = 5
OPENINGS = 7

OPEN = """
const began = performance.now();
const kv = await Deno.openKv(Deno.args[0]);
await kv.get(["first"]);
console.log(JSON.stringify(performance.now() - began));
kv.close();
"""

SETS = """
const until = performance.now() + seconds * 1000;
const times = [];
const caller = async (number) => {
  for (let i = 0; performance.now() < until; i++) {
    const began = performance.now();
    await kv.set(["set", number, i % 1000], { i });
    times.push(performance.now() - began);
  }
};
const began = performance.now();
await Promise.all(Array.from({ length: callers }, (_, number) => caller(number)));
const passed = performance.now() - began;
times.sort((a, b) => a - b);
const share = (part) => times[Math.floor(times.length * part)];
return { rate: times.length / passed * 1000, p50: share(0.5), p99: share(0.99) };
"""

LIST = """
const began = performance.now();
let count = 0;
for await (const _ of kv.list({ prefix: ["long list"] }, options)) count++;
return [count, performance.now() - began];
"""


def opening(url: str, folder: Path) -> list[float]:
    """Milliseconds from `Deno.openKv` to the first answer, each in a process of its own."""
    program = folder / "open.js"
    program.write_text(OPEN)
    times = []
    for _ in range(OPENINGS):
        done = subprocess.run(
            [*deno(), program, url], env=environment(folder), capture_output=True, text=True, timeout=60, check=True
        )
        times.append(float(json.loads(done.stdout)))
    return times


def sets(client: Foreign, callers: int) -> str:
    found: dict[str, Any] = client.run(SETS, callers=callers, seconds=SECONDS)
    return f"{found['rate']:,.0f}/s, p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"


def watching(watcher: Foreign, writer: Foreign) -> float:
    """Median of milliseconds from the beginning of a set to its emission in another process at another node."""
    watcher.run("tools.state.reader = kv.watch([['watched']]).getReader(); await tools.state.reader.read()")
    times = []
    for number in range(50):
        emission = watcher.start("return (await tools.state.reader.read()).value[0].value")
        began = time.monotonic()
        writer.run("await kv.set(['watched'], number)", number=number)
        if emission.result(60) != number:
            raise AssertionError("the watch has shown something else")
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times)


def show(folder: Path) -> None:
    """Print all of them."""
    cluster = DevCluster(folder / "cluster", settings={"kv_connect_token": TOKEN})
    try:
        cluster.start_all()
        leader = cluster.leader()
        for name, node in (("leader", leader), ("follower", (leader + 1) % cluster.nodes)):
            url = cluster.http_url(node)
            times = opening(url, folder)
            print(
                f"Deno.openKv to first answer, {name}: median {statistics.median(times):.0f} ms, "
                f"longest {max(times):.0f} ms (aim: 100 ms)"
            )
            with Foreign("deno", [url], folder) as client:
                client.run("for (let i = 0; i < 200; i++) await kv.set(['warm', i], i)")
                for callers in (1, CALLERS):
                    print(f"{callers} callers set from Deno, {name}: {sets(client, callers)}")
        one, two = (cluster.http_url((leader + step) % cluster.nodes) for step in (1, 2))
        with Foreign("deno", [one], folder) as watcher, Foreign("deno", [two], folder) as writer:
            passed = watching(watcher, writer)
            print(f"a set in Deno until a watch at another node shows it: median {passed:.0f} ms (aim: 500 ms)")
        with Foreign("deno", [str(folder / "deno.sqlite")], folder) as client:
            for callers in (1, CALLERS):
                print(f"{callers} callers set in Deno's own file: {sets(client, callers)}")
        with Foreign("deno", [cluster.http_url((leader + 1) % cluster.nodes)], folder) as client:
            client.run(FILL, n=ENTRIES, patience=120)
            for options in ({"batchSize": 1000}, {"batchSize": 500}, {}):
                count, passed = client.run(LIST, options=options, patience=120)
                batch = options.get("batchSize", 100)
                print(f"list of {count:,} entries from Deno, batches of {batch}: {passed:,.0f} ms (aim: 3,000 ms)")
        with kvorum.sync.open_kv(cluster.url) as kv:
            for batch in (1000, 500):
                began = time.monotonic()
                count = sum(1 for _ in kv.list(prefix=("long list",), batch_size=batch))
                passed = (time.monotonic() - began) * 1000
                print(f"list of {count:,} entries in Python, batches of {batch}: {passed:,.0f} ms (aim: 600 ms)")
    finally:
        cluster.stop()
