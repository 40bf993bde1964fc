"""get, getMany and list through the JavaScript clients, at each node, beside Deno's own database."""

from typing import Any

import pytest

from tests.acceptance.foreign.conftest import JAVASCRIPT, Client, at

TREE = """
const tree = [["a"], ["a", 1], ["a", 2], ["a", 3, "x"], ["a", "s"], ["b", 1]];
for (const key of tree) await kv.set([p, ...key], key.length);
"""


def keys(listed: list[dict[str, Any]]) -> list[Any]:
    return [entry["key"][1:] for entry in listed]


def test_p01b_a_program_opens_sets_gets_and_lists(client: Client, p: str) -> None:
    """Deno speaks HTTP/2 by prior knowledge, the packages for Node HTTP/1.1: one port takes both (P01b)."""
    stamp, got, listed = client(
        """
        const set = await kv.set([p, "singer"], { name: "Ada" });
        const list = await tools.collect(kv.list({ prefix: [p] }));
        return [set.versionstamp, await kv.get([p, "singer"]), list];
        """,
        p=p,
    )
    assert got == {"key": [p, "singer"], "value": {"name": "Ada"}, "versionstamp": stamp}
    assert listed == [got]
    assert len(stamp) == 20
    assert set(stamp) <= set("0123456789abcdef")


def test_what_is_absent_differs_from_a_stored_null(client: Client, p: str) -> None:
    absent, null, undefined = client(
        """
        await kv.set([p, "null"], null);
        await kv.set([p, "undefined"], undefined);
        return [await kv.get([p]), await kv.get([p, "null"]), await kv.get([p, "undefined"])];
        """,
        p=p,
    )
    assert absent == {"key": [p], "value": None, "versionstamp": None}
    assert null["value"] is None
    assert null["versionstamp"]
    assert undefined["value"] == {"$undefined": True}


@pytest.mark.parametrize("consistency", ["strong", "eventual"])
def test_get_many_answers_in_order(client: Client, p: str, consistency: str) -> None:
    """Ten keys at most, in one snapshot; duplicates are allowed."""
    values, nothing = client(
        """
        for (let i = 0; i < 9; i++) await kv.set([p, i], i);
        const keys = [9, 3, 3, 8, 7, 6, 5, 4, 2, 1].map((i) => [p, i]);
        const read = async () => (await kv.getMany(keys, { consistency })).map((entry) => entry.value);
        let values = await read();
        // An eventual read may be behind; it must get there.
        for (let i = 0; consistency === "eventual" && values.includes(null, 1) && i < 100; i++) values = await read();
        return [values, await kv.getMany([])];
        """,
        p=p,
        consistency=consistency,
    )
    assert values == [None, 3, 3, 8, 7, 6, 5, 4, 2, 1]
    assert nothing == []


def test_eleven_keys_are_too_many(client: Client, p: str) -> None:
    name, message = client.refusal("await kv.getMany(Array(11).fill([p]))", p=p)
    if client.deno:
        assert (name, message) == ("TypeError", "Too many ranges (max 10)")
    else:
        assert "status: 400" in message
        assert "Too many read ranges requested in one read request." in message


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("{ prefix: [p, 'a'] }", [["a", "s"], ["a", 1], ["a", 2], ["a", 3, "x"]]),
        ("{ prefix: [p, 'a'], start: [p, 'a', 2] }", [["a", 2], ["a", 3, "x"]]),
        ("{ prefix: [p, 'a'], end: [p, 'a', 2] }", [["a", "s"], ["a", 1]]),
        ("{ start: [p, 'a'], end: [p, 'a', 2] }", [["a"], ["a", "s"], ["a", 1]]),
        ("{ start: [p, 'a', 2], end: [p, 'c'] }", [["a", 2], ["a", 3, "x"], ["b", 1]]),
        ("{ start: [p, 'a', 2], end: [p, 'a', 2] }", []),
        ("{ prefix: [p, 'a', 3] }", [["a", 3, "x"]]),
        ("{ prefix: [p, 'nothing'] }", []),
    ],
)
def test_selectors_in_both_directions(client: Client, p: str, selector: str, expected: list[Any]) -> None:
    forward, backward, pages, two = client(
        f"""
        {TREE}
        const lists = [];
        for (const options of [{{}}, {{ reverse: true }}, {{ batchSize: 2 }}, {{ limit: 2 }}])
          lists.push(await tools.collect(kv.list({selector}, options)));
        return lists;
        """,
        p=p,
    )
    assert keys(forward) == expected
    if not client.deno and selector in ("{ prefix: [p, 'a'] }", "{ prefix: [p, 'a'], end: [p, 'a', 2] }"):
        # These packages ask for the prefix key itself too, and drop it only where it comes first.
        assert keys([backward.pop()]) == [["a"]]
    assert keys(backward) == expected[::-1]
    assert keys(pages) == expected
    assert keys(two) == expected[:2]


@at(["deno", "@deno/kv"], own=True)
def test_p26_undefined_parts_of_a_selector_are_as_absent(client: Client, p: str) -> None:
    """P26: the same result in each of these (kv-connect-kit refuses it); Python's part is a unit test."""
    found = client(
        f"""
        {TREE}
        const selector = {{ prefix: [p, "a"], start: undefined, end: undefined }};
        return await tools.collect(kv.list(selector, {{ limit: undefined }}));
        """,
        p=p,
    )
    assert keys(found) == [["a", "s"], ["a", 1], ["a", 2], ["a", 3, "x"]]


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("{}", "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        ("{ start: [p] }", "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        (
            "{ prefix: [p], start: [p, 1], end: [p, 2] }",
            "Selector can not specify both 'start' and 'end' key when specifying 'prefix'",
        ),
        ("{ prefix: [p, 'a'], start: [p, 'b'] }", "Start key is not in the keyspace defined by prefix"),
        ("{ prefix: [p, 'a'], end: [p, 'b'] }", "End key is not in the keyspace defined by prefix"),
        ("{ start: [p, 'b'], end: [p, 'a'] }", "Start key is greater than end key"),
    ],
)
@at(["deno"], [1], own=True)
def test_bad_selectors(client: Client, p: str, selector: str, text: str) -> None:
    """The texts are Deno's own; the packages for Node have theirs."""
    assert client.refusal(f"await tools.collect(kv.list({selector}))", p=p) == ("TypeError", text)


def test_a_cursor_goes_on_where_a_list_stopped(client: Client, p: str) -> None:
    found = client(
        """
        for (let i = 0; i < 7; i++) await kv.set([p, i], i);
        const all = [];
        for (const reverse of [false, true]) {
          const pages = [];
          let cursor, page;
          do {
            const iterator = kv.list({ prefix: [p] }, { limit: 3, cursor, reverse });
            page = (await tools.collect(iterator)).map((entry) => entry.value);
            pages.push(page);
            cursor = iterator.cursor;
          } while (page.length === 3);
          all.push(pages);
        }
        return all;
        """,
        p=p,
    )
    assert found == [[[0, 1, 2], [3, 4, 5], [6]], [[6, 5, 4], [3, 2, 1], [0]]]


@at(["deno"], [2], own=True)
def test_cursors_are_the_same_text_as_in_python(client: Client, p: str, kv: Any) -> None:
    """A page that Deno began, Python ends, and the other way round."""
    cursor = client(
        """
        for (let i = 0; i < 5; i++) await kv.set([p, i], i);
        const iterator = kv.list({ prefix: [p] }, { limit: 2 });
        await tools.collect(iterator);
        return iterator.cursor;
        """,
        p=p,
    )
    if not client.local:
        rest = kv.list(prefix=(p,), cursor=cursor, limit=2)
        assert [entry.value for entry in rest] == [2, 3]
        cursor = rest.cursor
        last = client(
            "return (await tools.collect(kv.list({ prefix: [p] }, { cursor }))).map((entry) => entry.value)",
            p=p,
            cursor=cursor,
        )
        assert last == [4]
    else:
        assert cursor == "Ib_wAAAAAAAA"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("{ limit: 0 }", ("Error", "Limit must be a positive integer: received 0")),
        ("{ batchSize: 0 }", ("Error", "batchSize must be a positive integer: received 0")),
        ("{ batchSize: 1001 }", ("TypeError", "Too many entries (max 1000)")),
        ("{ cursor: '!' }", ("TypeError", "invalid cursor")),
    ],
)
@at(["deno"], [0], own=True)
def test_bad_list_options(client: Client, p: str, options: str, error: tuple[str, str]) -> None:
    assert client.refusal(f"await tools.collect(kv.list({{ prefix: [p] }}, {options}))", p=p) == error


def test_every_kind_of_key_part_in_order(client: Client, p: str) -> None:
    """The order over all types; what comes back is what was given."""
    listed = client(
        """
        const numbers = [NaN, Infinity, 1.5, 1, 5e-324, 0, -1, -1.5, -Infinity];
        const bigints = [2n ** 64n, 2n ** 64n - 1n, 256n, 255n, 1n, 0n, -1n, -255n, -256n, -(2n ** 64n)];
        const texts = ["😀", "\\uffee", "é", "b", "a\\0b", "a", ""];
        const bytes = [[1], [0, 255], [0], []].map((content) => new Uint8Array(content));
        const parts = [true, false, ...numbers, ...bigints, ...texts, ...bytes];
        for (const part of parts) await kv.set([p, part], 0);
        return [parts, (await tools.collect(kv.list({ prefix: [p] }))).map((entry) => entry.key[1])];
        """,
        p=p,
    )
    parts, found = listed
    assert found == parts[::-1]


@at(["deno"], [0], own=True)
def test_minus_zero_and_a_lone_surrogate_in_keys(client: Client, p: str) -> None:
    found = client(
        """
        for (const part of [-0, 0, "\\ud800"]) await kv.set([p, part], 0);
        return (await tools.collect(kv.list({ prefix: [p] }))).map((entry) => entry.key[1]);
        """,
        p=p,
    )
    assert found == ["\ufffd", {"$number": "-0"}, 0]


@at(JAVASCRIPT, [1])
def test_many_entries_come_in_batches(client: Client, p: str) -> None:
    """A batch that is shorter than asked ends a list: 1,500 entries of 100 bytes must all come, in every batch size."""
    counts = client(
        """
        for (let from = 0; from < 1500; from += 500) {
          const atomic = kv.atomic();
          for (let i = from; i < from + 500; i++) atomic.set([p, i], "x".repeat(100));
          await atomic.commit();
        }
        const counts = [];
        const two = [{ batchSize: 1000, reverse: true }, { batchSize: 7, limit: 50 }];
        for (const options of [{}, { batchSize: 999 }, { limit: 1200 }, ...two]) {
          const list = await tools.collect(kv.list({ prefix: [p] }, options));
          counts.push([list.length, list[0].key[1], list.at(-1).key[1]]);
        }
        return counts;
        """,
        p=p,
    )
    assert counts == [[1500, 0, 1499], [1500, 0, 1499], [1200, 0, 1199], [1500, 1499, 0], [50, 0, 49]]


@at(JAVASCRIPT, [0])
def test_large_values_do_not_shorten_a_batch(client: Client, p: str) -> None:
    """200 values of 60 KB are more than any answer was thought to have: the list is whole all the same."""
    found = client(
        """
        for (let from = 0; from < 200; from += 10) {
          const atomic = kv.atomic();
          for (let i = from; i < from + 10; i++) atomic.set([p, i], new Uint8Array(60_000).fill(i));
          await atomic.commit();
        }
        const list = await tools.collect(kv.list({ prefix: [p] }, { batchSize: 200 }));
        return [list.length, list.every((entry, i) => entry.value.length === 60_000 && entry.value[7] === i)];
        """,
        p=p,
    )
    assert found == [200, True]
