"""Counters that foreign clients count up while leaders are killed, and what became of each step.

Each step is one atomic write: it adds one to the counter, and one to a key of its own, so that afterwards it is known
of every single step how often it was applied. What is done to the cluster meanwhile is a `Fate`:

- the node that serves the clients survives: a step that was answered is applied once, one whose outcome was reported as
  unknown at most once, and nothing else is reported. The basic calls go on beside it without any error.
- the serving node is the one that dies: Deno and `denokv` send the same bytes again, without anything to know them by,
  so a step may be applied as often as it was sent. A tap in between counts that. What was answered is applied. A watch
  of Deno's goes on by itself. The same if it is told to end.
- the serving node is left alone for longer than it holds a request: what it had sent to the leader is unknown, what it
  had not is repeated by the clients.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

import kvorum.sync
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.process import TOKEN, Foreign
from tests.acceptance.foreign.tap import Tap

WORKERS = 3
STEP = re.compile(rb"\x02step\x00\x02([0-9]+\.[0-9]+)\x00")
UNKNOWN = "outcome unknown"
PATIENCE = 60.0
PAUSE = 0.02

JAVASCRIPT_STEPS = """
const outcomes = [];
const count = async (worker) => {
  for (let number = 0; !tools.state.stop; number++) {
    const name = `${worker}.${number}`;
    try {
      await kv.atomic().sum([p, "count"], 1n).sum([p, "step", name], 1n).commit();
      outcomes.push([name, "ok"]);
    } catch (error) {
      outcomes.push([name, error.message]);
      await tools.sleep(50);
    }
  }
};
await Promise.all(Array.from({ length: workers }, (_, worker) => count(worker)));
return outcomes;
"""

PYTHON_STEPS = """
import asyncio
outcomes = []
async def count(worker):
    number = 0
    while not tools.state.get("stop"):
        name, one = f"{worker}.{number}", denokv.KvU64(1)
        number += 1
        try:
            await kv.atomic().sum((p, "count"), one).sum((p, "step", name), one).write()
            outcomes.append((name, "ok"))
        except denokv.DenoKvError as error:
            outcomes.append((name, f"{error} {getattr(error.__cause__, 'body_text', '')}"))
            await asyncio.sleep(0.05)
await asyncio.gather(*(count(worker) for worker in range(workers)))
return outcomes
"""

JAVASCRIPT_BASICS = """
const watched = [];
const reader = tools.kind === "kv-connect-kit" ? undefined : kv.watch([[p, "basic"]], { raw: true }).getReader();
const watching = (async () => {
  for (let emission; reader && !(emission = await reader.read()).done; ) watched.push(emission.value[0].value);
})();
const expect = (found, expected, what) => {
  const [left, right] = [JSON.stringify(found), JSON.stringify(expected)];
  if (left !== right) throw new Error(`${what}: ${left}, not ${right}`);
};
let round = 0;
while (!tools.state.stop) {
  round++;
  const { versionstamp } = await kv.set([p, "basic"], round);
  expect((await kv.get([p, "basic"])).value, round, "get");
  const both = (await kv.getMany([[p, "basic"], [p, "nothing"]])).map((entry) => entry.value);
  expect(both, [round, null], "getMany");
  expect((await tools.collect(kv.list({ prefix: [p] }, { limit: 1 }))).map((entry) => entry.value), [round], "list");
  const checked = kv.atomic().check({ key: [p, "basic"], versionstamp }).set([p, "other"], round);
  expect((await checked.commit()).ok, true, "check");
  await kv.delete([p, "other"]);
  expect((await kv.get([p, "other"])).versionstamp, null, "delete");
  if (round % 4) continue;
  const another = await tools.openKv(url);
  expect((await another.get([p, "basic"])).value, round, "get from a database just opened");
  another.close();
}
for (let waited = 0; reader && watched.at(-1) !== round && waited < 600; waited++) await tools.sleep(100);
if (reader) {
  expect(watched.at(-1), round, "watch");
  expect(watched.every((value, i) => i === 0 || value >= watched[i - 1]), true, "order of a watch");
  await reader.cancel();
}
return round;
"""

JAVASCRIPT_WATCH = """
let emissions = 0, last;
const reader = kv.watch([[p, "count"]]).getReader();
const watching = (async () => {
  for (let emission; !(emission = await reader.read()).done; emissions++) last = emission.value[0].value?.value;
})();
while (!tools.state.stop) await tools.sleep(20);
for (let waited = 0; ; waited++) {
  const newest = (await kv.get([p, "count"])).value?.value;
  if (last === newest) break;
  if (waited === 600) throw new Error(`the watch shows ${last}, not ${newest}`);
  await tools.sleep(100);
}
await reader.cancel();
return emissions;
"""

PYTHON_BASICS = """
round = 0
while not tools.state.get("stop"):
    round += 1
    stamp = await kv.set((p, "basic"), round)
    entry = (await kv.get((p, "basic")))[1]
    assert entry.value == round and entry.versionstamp == stamp, entry
    assert [found.value async for found in kv.list(prefix=(p,), limit=1)] == [round]
    assert (await kv.atomic().check(entry).set((p, "other"), round).write()).ok
    await kv.delete((p, "other"))
    assert (await kv.get((p, "other")))[1] is None
    if round % 4 == 0:
        async with await denokv.open_kv(url) as another:
            assert (await another.get((p, "basic")))[1].value == round
return round
"""


@dataclass
class Count:
    """What one client did, and what the cluster has of it."""

    kind: str
    outcomes: dict[str, str] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    total: int = 0
    arrivals: Counter[str] | None = None
    """How often each step was sent, where that was counted."""
    rounds: int = 0
    """Rounds of the basic calls, or emissions of a watch."""

    def numbers(self) -> dict[str, int]:
        errors = [outcome for outcome in self.outcomes.values() if outcome != "ok"]
        numbers = {
            "ok": len(self.outcomes) - len(errors),
            "unknown": sum(UNKNOWN in error for error in errors),
            "other errors": sum(UNKNOWN not in error for error in errors),
            "value": self.total,
        }
        if self.arrivals is not None:
            numbers["resends"] = sum(self.arrivals.values()) - len(self.arrivals)
            numbers["applied again"] = sum(self.applied.values()) - len(self.applied)
        else:
            numbers["rounds of basic calls"] = self.rounds
        return numbers

    def faults(self) -> list[str]:
        """What contradicts the promises."""
        found = []
        if self.total != sum(self.applied.values()):
            found.append(f"the counter is {self.total}, its steps are {sum(self.applied.values())}")
        strangers = self.applied.keys() - self.outcomes.keys()
        if strangers:
            found.append(f"steps that nobody took: {sorted(strangers)[:5]}")
        for name, outcome in self.outcomes.items():
            applied = self.applied.get(name, 0)
            least = 1 if outcome == "ok" else 0
            if self.arrivals is not None:
                most = self.arrivals[name]
            else:
                most = 1 if outcome == "ok" or UNKNOWN in outcome else 0
                if not most:
                    found.append(f"step {name}: {outcome}")
            if not least <= applied <= most:
                found.append(f"step {name} was applied {applied} times, not {least} to {most}: {outcome}")
        return found[:20]


class Fate(Enum):
    """Of the node that serves the clients."""

    SURVIVES = "survives"
    DIES = "dies"
    STOPS = "is stopped"
    ALONE = "is left alone"


class Trial:
    """A cluster of its own, its leaders killed one after the other, while every client counts at node 1.

    `held`: seconds for which a node holds a request that it can neither do nor refuse.
    """

    SERVING = 0

    def __init__(self, folder: Path, kinds: Sequence[str], fate: Fate, held: float = 30.0) -> None:
        self.folder = folder
        self.kinds = kinds
        self.fate = fate
        self.held = held
        self.serving_dies = fate in (Fate.DIES, Fate.STOPS)
        self.kills = 0
        self._watched: list[Future[Any]] = []

    def run(self, seconds: float, kills: int) -> list[Count]:
        """At least that long and that many kills. Errors: AssertionError, Refused, ClusterFailed, TimeoutError."""
        settings = {"kv_connect_token": TOKEN, "kv_connect_held_ms": round(self.held * 1000)}
        cluster = DevCluster(self.folder / "cluster", settings=settings)
        with ExitStack() as stack:
            stack.callback(cluster.stop)
            cluster.start_all()
            taps = {}
            clients = {}
            for kind in self.kinds:
                url = cluster.http_url(self.SERVING)
                if self.serving_dies:
                    taps[kind] = stack.enter_context(Tap(cluster.http_address(self.SERVING), STEP))
                    url = taps[kind].url
                clients[kind] = stack.enter_context(Foreign(kind, [url], self.folder))
            steps = {kind: self._steps(client) for kind, client in clients.items()}
            basics = {kind: program for kind, client in clients.items() if (program := self._basics(client))}
            self._watched = [*steps.values(), *basics.values()]
            until = time.monotonic() + seconds
            while self.kills < kills or time.monotonic() < until:
                self._kill(cluster)
                self._all_go_on(taps.values())
            for kind, client in clients.items():
                client.run("tools.state['stop'] = True" if kind == "denokv" else "tools.state.stop = true")
            counts = [Count(kind, dict(steps[kind].result(PATIENCE))) for kind in self.kinds]
            for count in counts:
                if count.kind in basics:
                    count.rounds = basics[count.kind].result(PATIENCE)
                if count.kind in taps:
                    assert not taps[count.kind].problems, taps[count.kind].problems
            with kvorum.sync.open_kv(cluster.url) as kv:
                for count in counts:
                    entries = kv.list(prefix=(count.kind, "step"), batch_size=1000)
                    count.applied = {str(entry.key[2]): entry.value for entry in entries}
                    count.total = kv.get((count.kind, "count")).value or 0
            for count in counts:
                if count.kind in taps:
                    count.arrivals = taps[count.kind].arrivals
        return counts

    def _steps(self, client: Foreign) -> "Future[Any]":
        code = PYTHON_STEPS if client.kind == "denokv" else JAVASCRIPT_STEPS
        return client.start(code, p=client.kind, workers=WORKERS)

    def _basics(self, client: Foreign) -> "Future[Any] | None":
        if self.fate is Fate.ALONE:
            return None
        if self.serving_dies:  # of the two that can watch, Deno connects again by itself
            return client.start(JAVASCRIPT_WATCH, p=client.kind) if client.kind == "deno" else None
        code = PYTHON_BASICS if client.kind == "denokv" else JAVASCRIPT_BASICS
        return client.start(code, p="basics of " + client.kind, url=client.addresses[0])

    def _kill(self, cluster: DevCluster) -> None:
        """Kill the leader, start it again, and wait until it has rejoined."""
        leader = cluster.leader()
        while (leader == self.SERVING) != self.serving_dies:
            self._check_running()
            target = self.SERVING if self.serving_dies else self.SERVING + 1 + self.kills % 2
            transfer(cluster, leader, target)
            leader = cluster.leader()
        if self.fate is Fate.STOPS:
            cluster.terminate(leader)
        else:
            cluster.kill(leader)
        self.kills += 1
        if self.fate is Fate.ALONE:
            (other,) = set(range(cluster.nodes)) - {leader, self.SERVING}
            cluster.kill(other)
            self._for(self.held + 2)
            cluster.start(other)
        cluster.leader()
        cluster.start(leader)
        rejoined(cluster, leader)
        if self.fate is Fate.ALONE:
            self._for(2)  # for the clients to go on

    def _all_go_on(self, taps: Iterable[Tap]) -> None:
        """Every client has sent something again."""
        deadline = time.monotonic() + PATIENCE
        sent = [(tap, sum(tap.arrivals.values())) for tap in taps]
        while [tap for tap, before in sent if sum(tap.arrivals.values()) < before + WORKERS]:
            self._check_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"some client has sent nothing for {PATIENCE:g} s")
            time.sleep(PAUSE)
        self._check_running()

    def _for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check_running()
            time.sleep(PAUSE)

    def _check_running(self) -> None:
        for program in self._watched:
            if program.done():
                program.result()  # an error, most likely
                raise AssertionError("a program has ended before it was told to")


def transfer(cluster: DevCluster, leader: int, target: int) -> None:
    """Ask for another leader; whether it came to be, look afterwards."""
    with grpc.insecure_channel(cluster.client_address(leader), options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(
            "/kvorum.v1.Admin/Transfer",
            request_serializer=pb.TransferRequest.SerializeToString,
            response_deserializer=pb.AdminResponse.FromString,
        )
        try:
            call(pb.TransferRequest(node_id=f"n{target + 1}"), timeout=10)
        except grpc.RpcError:
            return


def rejoined(cluster: DevCluster, number: int) -> None:
    """Wait until a node has applied what the leader had applied a moment ago."""
    deadline = time.monotonic() + PATIENCE
    index = cluster.status(cluster.leader()).applied_index
    while True:
        answer = cluster.peek(number)
        if answer is not None and answer.leader.node_id and answer.applied_index >= index:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"node {number + 1} has not rejoined in {PATIENCE:g} s")
        time.sleep(PAUSE)
