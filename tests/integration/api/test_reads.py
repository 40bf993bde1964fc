"""get, get_many and list, on every kind of database and with both clients."""

from typing import Any

import pytest

import kvorum
from kvorum.errors import InvalidArgument, InvalidKey, LimitExceeded


async def numbers(kv: kvorum.Kv, space: str, count: int) -> list[kvorum.Key]:
    keys: list[kvorum.Key] = [(space, number) for number in range(count)]
    for begin in range(0, count, 500):
        operation = kv.atomic()
        for key in keys[begin : begin + 500]:
            operation.set(key, key[1])
        assert (await operation.commit()).ok
    return keys


async def test_an_entry_has_the_versionstamp_of_its_commit(kv: kvorum.Kv, space: str) -> None:
    done = await kv.set((space, "a"), {"name": "Ella"})
    assert done.ok and done.versionstamp is not None and len(done.versionstamp) == 20
    entry = await kv.get((space, "a"))
    assert entry == kvorum.Entry((space, "a"), {"name": "Ella"}, done.versionstamp)
    assert entry.exists


async def test_an_absent_entry_and_a_stored_none_differ_by_their_versionstamp(kv: kvorum.Kv, space: str) -> None:
    await kv.set((space, "none"), None)
    absent, none = await kv.get_many([(space, "absent"), (space, "none")])
    assert not absent.exists
    assert absent == ((space, "absent"), None, None)
    assert none.value is None and none.exists


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        2**53,
        2**70,
        1.5,
        True,
        "text é 😀",
        b"\x00\xff",
        [1, [2, {"a": None}]],
        {},
        {1, 2},
        {"u": b"inside"},
        kvorum.KvU64(2**64 - 1),
    ],
    ids=repr,
)
async def test_values_come_back_as_they_were(kv: kvorum.Kv, space: str, value: object) -> None:
    await kv.set((space,), value)
    back = (await kv.get((space,))).value
    assert back == value and type(back) is type(value)


async def test_get_many_answers_in_order_with_repeats(kv: kvorum.Kv, space: str) -> None:
    a, b = (space, "a"), (space, "b")
    await kv.set(a, 1)
    entries = await kv.get_many([b, a, a])
    assert [(entry.key, entry.value) for entry in entries] == [(b, None), (a, 1), (a, 1)]
    assert await kv.get_many([]) == []
    with pytest.raises(LimitExceeded) as error:
        await kv.get_many([a] * 11)
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_READ_RANGES", 10, 11)


async def test_the_empty_key_is_never_there_and_cannot_be_written(kv: kvorum.Kv) -> None:
    assert await kv.get(()) == ((), None, None)
    with pytest.raises(InvalidKey, match="key cannot be empty"):
        await kv.set((), 1)
    with pytest.raises(InvalidKey, match="key cannot be empty"):
        await kv.delete(())


@pytest.mark.parametrize("consistency", ["strong", "eventual"])
async def test_a_client_reads_its_own_writes_at_any_consistency(
    kv: kvorum.Kv, space: str, consistency: kvorum.Consistency
) -> None:
    for number in range(20):
        await kv.set((space,), number)
        assert (await kv.get((space,), consistency=consistency)).value == number
        (listed,) = await kv.list(start=(space,), end=(space, b""), consistency=consistency).page()
        assert listed.value == number


async def test_bounded_reads_need_an_age(kv: kvorum.Kv, space: str) -> None:
    await kv.set((space,), 1)
    assert (await kv.get((space,), consistency="bounded", max_age=1_000)).value == 1
    with pytest.raises(InvalidArgument, match="needs max_age"):
        await kv.get((space,), consistency="bounded")
    with pytest.raises(InvalidArgument, match="belongs to consistency 'bounded'"):
        await kv.get((space,), max_age=1_000)
    with pytest.raises(InvalidArgument, match="unknown consistency 'weak'"):
        await kv.get((space,), consistency="weak")  # type: ignore[arg-type]


# ---- lists


async def test_keys_of_all_types_are_listed_in_the_order_of_the_encoding(kv: kvorum.Kv, space: str) -> None:
    parts: list[kvorum.KeyPart] = [
        b"",
        b"\xff",
        "",
        "a",
        "a\0b",
        "b",
        -(2**64),
        -1,
        0,
        1,
        2**64,
        -1.5,
        0.0,
        1.0,
        False,
        True,
    ]
    for part in reversed(parts):
        await kv.set((space, part), repr(part))
    listed = [entry async for entry in kv.list(prefix=(space,))]
    assert [(entry.key, entry.value) for entry in listed] == [((space, part), repr(part)) for part in parts]
    backwards = [entry async for entry in kv.list(prefix=(space,), reverse=True)]
    assert backwards == listed[::-1]


async def test_selectors(kv: kvorum.Kv, space: str) -> None:
    await kv.set((space,), "parent")
    keys = await numbers(kv, space, 6)

    async def listed(**selector: Any) -> list[kvorum.Key]:
        return [entry.key for entry in await kv.list(**selector).page()]

    assert await listed(prefix=(space,)) == keys
    assert await listed(prefix=(space,), start=(space, 2)) == keys[2:]
    assert await listed(prefix=(space,), end=(space, 2)) == keys[:2]
    assert await listed(start=(space, 1), end=(space, 3)) == keys[1:3]
    assert await listed(start=(space,), end=(space, 2)) == [(space,), *keys[:2]]
    assert await listed(start=(space, 1), end=(space, 1)) == []


async def test_p26_none_in_a_selector_is_the_same_as_absent(kv: kvorum.Kv, space: str) -> None:
    """P26 · `undefined` selector parts behave differently per client → same result."""
    keys = await numbers(kv, space, 3)
    plain = await kv.list(prefix=(space,)).page()
    assert [entry.key for entry in plain] == keys
    assert (
        await kv.list(prefix=(space,), start=None, end=None, limit=None, cursor=None, batch_size=None).page() == plain
    )
    assert await kv.list(prefix=None, start=(space, 0), end=(space, 9)).page() == plain


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 6, 7, 8, None])
async def test_batches_neither_lose_nor_repeat_anything(
    kv: kvorum.Kv, space: str, batch_size: int | None, reverse: bool
) -> None:
    keys = await numbers(kv, space, 7)
    listed = [entry.key async for entry in kv.list(prefix=(space,), batch_size=batch_size, reverse=reverse)]
    assert listed == (keys[::-1] if reverse else keys)


async def test_a_list_of_several_thousand(kv: kvorum.Kv, space: str) -> None:
    keys = await numbers(kv, space, 2_500)
    rows = kv.list(prefix=(space,), batch_size=1_000)
    assert [entry.key for entry in await rows.page()] == keys
    assert not rows.has_more and rows.cursor == ""


@pytest.mark.parametrize("reverse", [False, True])
async def test_pages_follow_each_other_by_cursor(kv: kvorum.Kv, space: str, reverse: bool) -> None:
    keys = await numbers(kv, space, 7)
    seen, cursors = [], []
    cursor = ""
    while True:
        rows = kv.list(prefix=(space,), limit=3, cursor=cursor, reverse=reverse)
        seen.append([entry.key for entry in await rows.page()])
        cursor = rows.cursor
        cursors.append(cursor)
        assert rows.has_more is bool(cursor)
        if not rows.has_more:
            break
    ordered = keys[::-1] if reverse else keys
    assert seen == [ordered[:3], ordered[3:6], ordered[6:]]
    assert len(set(cursors)) == 3 and cursors[-1] == ""


async def test_p14_after_the_last_entry_nothing_is_said_to_follow(kv: kvorum.Kv, space: str) -> None:
    """P14 · after `limit` items the cursor is non-empty and the next page blank → 5 keys, limit 5 → has_more False,
    cursor empty."""
    await numbers(kv, space, 5)
    for batch_size in (None, 1, 5, 1_000):
        rows = kv.list(prefix=(space,), limit=5, batch_size=batch_size)
        left = []
        async for _ in rows:
            left.append(rows.has_more)
        assert left == [True, True, True, True, False]
        assert rows.cursor == ""
    rows = kv.list(prefix=(space,), limit=4)
    assert len(await rows.page()) == 4
    assert rows.has_more
    rest = kv.list(prefix=(space,), limit=4, cursor=rows.cursor)
    assert [entry.value for entry in await rest.page()] == [4]
    nothing = kv.list(prefix=(space, "nothing"))
    assert await nothing.page() == [] and not nothing.has_more and nothing.cursor == ""


async def test_iteration_can_stop_anywhere_and_go_on_by_cursor(kv: kvorum.Kv, space: str) -> None:
    keys = await numbers(kv, space, 5)
    rows = kv.list(prefix=(space,), batch_size=2)
    first = []
    async for entry in rows:
        first.append(entry.key)
        if len(first) == 2:
            break
    assert rows.has_more
    assert first + [entry.key for entry in await kv.list(prefix=(space,), cursor=rows.cursor).page()] == keys


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({}, "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        ({"end": ("a",)}, "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        (
            {"prefix": ("a",), "start": ("a", 1), "end": ("a", 2)},
            "Selector can not specify both 'start' and 'end' key when specifying 'prefix'",
        ),
        ({"prefix": ("a",), "start": ("a",)}, "Start key is not in the keyspace defined by prefix"),
        ({"prefix": ("a",), "end": ("b",)}, "End key is not in the keyspace defined by prefix"),
        ({"start": ("b",), "end": ("a",)}, "Start key is greater than end key"),
        ({"prefix": (), "cursor": "AmI"}, "invalid cursor: 'AmI'"),
        ({"start": ("b",), "end": ("c",), "cursor": "AA=="}, "cursor out of bounds"),
        ({"prefix": (), "limit": -1}, "limit must be a positive integer: received -1"),
        ({"prefix": (), "limit": 1.0}, "limit must be a positive integer: received 1.0"),
        ({"prefix": (), "batch_size": 0}, "batch_size must be a positive integer: received 0"),
        ({"prefix": (), "consistency": "x"}, "unknown consistency 'x', expected 'strong', 'bounded' or 'eventual'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("target", ["memory"], indirect=True)  # nothing is sent
async def test_what_is_no_list_is_refused_by_the_call_itself(
    kv: kvorum.Kv, selector: dict[str, Any], text: str
) -> None:
    """Deno raises some of these when the first entry is asked for."""
    with pytest.raises(InvalidArgument) as error:
        kv.list(**selector)
    assert str(error.value) == text


async def test_a_list_that_cannot_be_right_is_refused_at_once(kv: kvorum.Kv, space: str) -> None:
    with pytest.raises(InvalidKey, match="Selector must specify either 'prefix' or both 'start' and 'end' key"):
        kv.list(start=(space,))
    with pytest.raises(InvalidArgument, match="limit must be a positive integer: received 0"):
        kv.list(prefix=(space,), limit=0)
    with pytest.raises(LimitExceeded, match="MAX_READ_ENTRIES"):
        kv.list(prefix=(space,), batch_size=1_001)
    with pytest.raises(InvalidArgument, match="before first iteration"):
        _ = kv.list(prefix=(space,)).cursor


async def test_the_largest_key_can_be_written_read_and_listed(kv: kvorum.Kv, space: str) -> None:
    key = (space, b"x" * (2_048 - len(space.encode()) - 2 - 2))
    await kv.set(key, "large")
    assert (await kv.get(key)).value == "large"
    assert [entry.key for entry in await kv.list(prefix=(space,)).page()] == [key]
    with pytest.raises(LimitExceeded) as error:
        await kv.set((*key, ""), 1)
    assert (error.value.limit, error.value.got) == ("MAX_WRITE_KEY_SIZE", 2_050)
