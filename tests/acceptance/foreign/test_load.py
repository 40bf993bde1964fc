"""Much at once through foreign clients: bulk writes, long lists. How fast is for `figures.py` to say."""

from typing import Any

import pytest

import kvorum.sync
from tests.acceptance.foreign.conftest import JAVASCRIPT, NODES, Client, at
from tests.acceptance.foreign.process import Foreign

ENTRIES = 40_000
FILL = """
for (let from = 0; from < n; from += 10_000)
  await Promise.all(Array.from({ length: 10 }, (_, block) => {
    const atomic = kv.atomic();
    const first = from + block * 1000;
    for (let i = first; i < first + 1000; i++) atomic.set(["long list", i], { number: i });
    return atomic.commit();
  }));
"""


@pytest.fixture(scope="session")
def long_list(nodes: Any, processes: Any) -> None:
    deno: Foreign = processes("deno", tuple(nodes.http_url(number) for number in range(NODES)))
    deno.run(FILL, n=ENTRIES)


@at(JAVASCRIPT)
def test_p23_a_hundred_parallel_atomics_of_a_hundred_sets(client: Client, p: str) -> None:
    """P23: all land, with back-pressure and without resets."""
    said = client.process.said()
    count, stamps, last = client(
        """
        const commits = Array.from({ length: 100 }, (_, block) => {
          const atomic = kv.atomic();
          for (let i = 0; i < 100; i++) atomic.set([p, block, i], block * 100 + i);
          return atomic.commit();
        });
        const stamps = new Set((await Promise.all(commits)).map((result) => result.versionstamp));
        const all = await tools.collect(kv.list({ prefix: [p] }, { batchSize: 500 }));
        return [all.length, stamps.size, all.every((entry, i) => entry.value === i) && all.at(-1).value];
        """,
        p=p,
    )
    assert count == 10_000
    assert stamps == 100
    assert last == 9_999
    assert client.process.said() == said  # Deno tells of everything that it repeats


@at(JAVASCRIPT)
def test_p17_forty_thousand_entries(client: Client, long_list: None) -> None:
    """P17: in order and complete, in batches as large as the client takes."""
    found = client(
        """
        let next = 0;
        for await (const entry of kv.list({ prefix: ["long list"] }, { batchSize: 1000 })) {
          if (entry.key[1] !== next || entry.value.number !== next) return ["expected", next, entry];
          next++;
        }
        return next;
        """
    )
    assert found == ENTRIES


@at(["denokv"], [0])
def test_p17_forty_thousand_entries_in_denokv(client: Client, long_list: None) -> None:
    code = "return [e.value async for e in kv.list(prefix=('long list',), limit=20000, batch_size=500)][-1]"
    assert client(code, patience=100) == {"number": 19_999}


def test_p17_forty_thousand_entries_in_python(long_list: None, kv: kvorum.sync.Kv) -> None:
    numbers = [entry.value["number"] for entry in kv.list(prefix=("long list",), batch_size=1000)]
    assert numbers == list(range(ENTRIES))


@at(["deno"])
def test_a_thousand_calls_at_once(client: Client, p: str) -> None:
    """Reads and writes, far more than a connection has streams."""
    found = client(
        """
        await kv.set([p, "counter"], new tools.KvU64(0n));
        const calls = Array.from({ length: 1000 }, (_, i) =>
          i % 2 ? kv.atomic().sum([p, "counter"], 1n).commit() : kv.get([p, "counter"]));
        await Promise.all(calls);
        return (await kv.get([p, "counter"])).value;
        """,
        p=p,
    )
    assert found == {"$u64": "500"}
