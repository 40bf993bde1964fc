"""watch through Deno and `@deno/kv` (the others have none), at each node, beside Deno's own database."""

import statistics
from collections.abc import Iterator
from typing import Any

import pytest

import kvorum.sync
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.conftest import Client, at
from tests.pace import Pace

OPEN = "tools.state[p] = kv.watch(keys.map((key) => [p, key]), { raw }).getReader();"
NEXT = "const { done, value } = await tools.state[p].read(); return done ? 'ended' : value;"
CLOSE = "const reader = tools.state[p]; delete tools.state[p]; await reader.cancel();"
WATCHERS = ("deno", "@deno/kv")


class Watching:
    """A stream that stays open from one program of its client to the next."""

    def __init__(self, client: Client, p: str, keys: list[Any], raw: bool = False) -> None:
        self.client = client
        self.p = p
        client(OPEN, p=p, keys=keys, raw=raw)

    def next(self) -> list[Any]:
        """Value and whether there is one, of each key."""
        return [(entry["value"], entry["versionstamp"] is not None) for entry in self.client(NEXT, p=self.p)]

    def until(self, expected: list[Any]) -> None:
        """Emissions may be merged, and repeated by a raw watch, but the newest state must come."""
        for _ in range(50):
            if [value for value, _ in self.next()] == expected:
                return
        raise AssertionError(f"{expected} did not come")


@pytest.fixture
def watching(client: Client, p: str) -> Iterator[Any]:
    opened: list[Watching] = []

    def watch(keys: list[Any], raw: bool = False) -> Watching:
        opened.append(Watching(client, p, keys, raw))
        return opened[-1]

    yield watch
    for stream in opened:
        client(CLOSE, p=stream.p)


@at(WATCHERS, own=True)
@pytest.mark.parametrize("raw", [False, True], ids=["", "raw"])
def test_sets_and_deletes_are_seen(client: Client, p: str, watching: Any, raw: bool) -> None:
    """Both keys of a commit arrive together; a deleted key shows as empty, a missing one too."""
    client("await kv.set([p, 'a'], 1)", p=p)
    stream = watching(["a", "b"], raw)
    assert stream.next() == [(1, True), (None, False)]
    client("await kv.atomic().set([p, 'a'], 2).set([p, 'b'], 3).commit()", p=p)
    stream.until([2, 3])
    client("await kv.delete([p, 'a'])", p=p)
    stream.until([None, 3])
    client("await kv.atomic().sum([p, 'a'], 5n).commit()", p=p)
    stream.until([{"$u64": "5"}, 3])


@at(["deno"], own=True)
def test_the_first_emission_comes_also_when_all_keys_are_absent(client: Client, p: str, watching: Any) -> None:
    stream = watching(["a", "a"])
    assert stream.next() == [(None, False), (None, False)]
    client("await kv.delete([p, 'a']); await kv.set([p, 'a'], null)", p=p)
    assert stream.next() == [(None, True), (None, True)]


@at(["deno"], own=True)
def test_ten_keys_each_in_its_place(client: Client, p: str, watching: Any) -> None:
    client("for (let i = 0; i < 10; i += 2) await kv.set([p, i], i)", p=p)
    stream = watching(list(range(10)))
    assert [value for value, _ in stream.next()] == [0, None, 2, None, 4, None, 6, None, 8, None]
    client("await kv.set([p, 9], 9)", p=p)
    stream.until([0, None, 2, None, 4, None, 6, None, 8, 9])


@at(WATCHERS, own=True)
def test_a_raw_watch_shows_what_changes_nothing(client: Client, p: str, watching: Any) -> None:
    """Deleting a deleted key is a mutation of it too."""
    stream = watching(["a"], True)
    assert stream.next() == [(None, False)]
    client("await kv.delete([p, 'a'])", p=p)
    assert stream.next() == [(None, False)]


@at(WATCHERS, [1])
def test_a_key_that_expires_is_seen_to_go(client: Client, p: str, watching: Any) -> None:
    stream = watching(["a"], True)
    assert stream.next() == [(None, False)]
    client("await kv.set([p, 'a'], 1, { expireIn: 1000 })", p=p)
    stream.until([1])
    stream.until([None])


@at(WATCHERS, [2], own=True)
def test_ten_large_values_in_one_emission(client: Client, p: str) -> None:
    """Each of 60 KB, written one by one: every emission has all of them."""
    sizes = client(
        """
        const keys = Array.from({ length: 10 }, (_, i) => [p, i]);
        for (const key of keys) await kv.set(key, new Uint8Array(60_000));
        const reader = kv.watch(keys).getReader();
        const sizes = [];
        const writes = [];
        do {
          const { value } = await reader.read();
          sizes.push(value.map((entry) => entry.value.length));
          if (!writes.length) for (const key of keys.slice(1)) writes.push(kv.set(key, new Uint8Array(60_001)));
        } while (sizes.at(-1).slice(1).includes(60_000));
        await Promise.all(writes);
        await reader.cancel();
        return sizes;
        """,
        p=p,
    )
    assert sizes[0] == [60_000] * 10
    assert sizes[-1] == [60_000] + [60_001] * 9


@at(WATCHERS)
def test_many_writes_end_in_the_newest_state(client: Client, p: str, watching: Any) -> None:
    client("await kv.set([p, 'a'], 0)", p=p)
    stream = watching(["a"])
    assert stream.next() == [(0, True)]
    client("for (let i = 1; i <= 100; i++) await kv.set([p, 'a'], i)", p=p)
    for _ in range(101):
        if (last := stream.next()) == [(100, True)]:
            break
    assert last == [(100, True)]


@at(WATCHERS)
def test_p20_a_watch_sees_writes_of_other_processes(
    client: Client, p: str, watching: Any, kv: kvorum.sync.Kv, other: Client, nodes: DevCluster
) -> None:
    """P20: watch at this node, write by another process at another node: an event in less than 500 ms."""
    kv.set((p, "a"), 0)
    stream = watching(["a"])
    assert stream.next() == [(0, True)]
    passed = []
    for number in range(1, 8):
        answer = client.start(NEXT, p=p)
        pace = Pace(lambda: [client.process.pid, other.process.pid, *map(nodes.pid, range(nodes.nodes))])
        other("await kv.set([p, 'a'], number)", p=p, number=number)
        (entry,) = answer.result(60)
        passed.append(pace.seconds())
        assert entry["value"] == number
    assert statistics.median(passed) < 0.5, passed


@at(["deno"])
def test_watches_and_other_calls_share_a_connection(client: Client, p: str) -> None:
    """Deno has one connection for all: twenty watches must not hold up reads and writes."""
    value = client(
        """
        const readers = Array.from({ length: 20 }, (_, i) => kv.watch([[p, i]]).getReader());
        for (const reader of readers) await reader.read();
        for (let i = 0; i < 20; i++) await kv.set([p, i], i);
        const seen = [];
        for (const reader of readers) seen.push((await reader.read()).value[0].value);
        for (const reader of readers) await reader.cancel();
        return seen;
        """,
        p=p,
    )
    assert value == list(range(20))


@at(["deno"], [0], own=True)
def test_closing_the_database_ends_its_watches(client: Client, p: str) -> None:
    ended = client(
        """
        const other = await tools.openKv(url);
        const reader = other.watch([[p]]).getReader();
        await reader.read();
        other.close();
        return (await reader.read()).done;
        """,
        p=p,
        url=client.url,
    )
    assert ended is True
