"""`denokv`, the Python client of others, at each node: all its calls, and values from and to all the rest."""

import time
from typing import Any

import pytest

import kvorum.sync
from tests.acceptance.foreign.conftest import NODES, Client, at
from tests.acceptance.foreign.process import Refused
from tests.acceptance.foreign.test_values import compare, write_all
from tests.acceptance.foreign.values import VALUES

DENOKV = at(["denokv"])
ONE = at(["denokv"], [1])


@DENOKV
def test_p01b_a_program_sets_gets_lists_and_deletes(client: Client, p: str) -> None:
    stamp, got, absent, many, listed, gone = client(
        """
        stamp = await kv.set((p, "singer"), tools.js.JSObject(name="Ada"))
        got = (await kv.get((p, "singer")))[1]
        absent = (await kv.get((p, "nobody")))[1]
        many = [entry for _, entry in await kv.get((p, "nobody"), (p, "singer"), (p, "singer"))]
        listed = await tools.collect(kv.list(prefix=(p,)))
        await kv.delete((p, "singer"))
        return stamp, got, absent, many, listed, (await kv.get((p, "singer")))[1]
        """,
        p=p,
    )
    assert got == {"key": [p, "singer"], "value": {"name": "Ada"}, "versionstamp": stamp}
    assert many == [None, got, got]
    assert listed == [got]
    assert absent is None
    assert gone is None


@ONE
def test_lists(client: Client, p: str) -> None:
    """Every selector, both directions, batches, limits, and cursors, which are the same text as Deno's and ours.

    A list by prefix also gives the prefix key itself: it asks for it.
    """
    client("for i in range(7): await kv.set((p, float(i)), i)\nawait kv.set((p,), 'prefix')", p=p)
    lists = client(
        """
        async def values(**options):
            return [entry.value async for entry in kv.list(**options)]
        return [
            await values(prefix=(p,)),
            await values(prefix=(p,), reverse=True, batch_size=2),
            await values(prefix=(p,), start=(p, 5.0)),
            await values(prefix=(p,), end=(p, 1.0)),
            await values(start=(p, 2.0), end=(p, 4.0)),
            await values(prefix=(p,), limit=3, batch_size=1),
        ]
        """,
        p=p,
    )
    assert lists == [
        ["prefix", *range(7)],
        [*range(6, -1, -1), "prefix"],
        [5, 6],
        ["prefix", 0],
        [2, 3],
        ["prefix", 0, 1],
    ]


@ONE
def test_a_cursor_is_the_same_text_as_in_python(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    client("for i in range(5): await kv.set((p, float(i)), i)", p=p)
    cursor = client("return (await tools.collect(kv.list(prefix=(p,), limit=2)))[-1].cursor", p=p)
    rest = kv.list(prefix=(p,), cursor=cursor, limit=2)
    assert [entry.value for entry in rest] == [2, 3]
    last = client("return [e.value for e in await tools.collect(kv.list(prefix=(p,), cursor=c))]", p=p, c=rest.cursor)
    assert last == [4]


@DENOKV
def test_checks_name_those_that_failed(client: Client, p: str) -> None:
    """Like P12: three checks, the second and third fail."""
    found = client(
        """
        first = await kv.atomic().check_key_not_set((p, "a")).set((p, "a"), 1).set((p, "b"), 2).write()
        entry = (await kv.get((p, "a")))[1]
        changed = await kv.atomic().check(entry).set((p, "a"), 2).write()
        atomic = kv.atomic().check_key_not_set((p, "c")).check(entry).check_key_not_set((p, "b"))
        failed = await atomic.set((p, "a"), 3).write()
        return first.ok, changed.ok, failed.ok, list(failed.failed_checks), (await kv.get((p, "a")))[1].value
        """,
        p=p,
    )
    assert found == [True, True, False, [1, 2], 2]


@DENOKV
def test_sums_of_every_kind_of_number(client: Client, p: str) -> None:
    """It sends plain numbers as V8 sums, with bounds: even their minimum, which of a missing key is thus 0."""
    values = client(
        """
        await kv.sum((p, "u64"), denokv.KvU64(2**64 - 1))
        await kv.sum_kvu64((p, "u64"), 5)
        await kv.sum((p, "float"), 1.5)
        await kv.sum((p, "float"), -4)
        await kv.sum((p, "bigint"), tools.js.JSBigInt(2**70))
        await kv.sum_bigint((p, "bigint"), 1)
        await kv.sum((p, "clamped"), 8.0)
        await kv.sum((p, "clamped"), 5.0, clamp_over=10.0)
        await kv.min((p, "min"), denokv.KvU64(9)); await kv.min((p, "min"), denokv.KvU64(7))
        await kv.max((p, "max"), denokv.KvU64(3)); await kv.max((p, "max"), denokv.KvU64(7))
        await kv.set((p, "min float"), 9.0); await kv.min((p, "min float"), 7.0)
        await kv.max((p, "max bigint"), tools.js.JSBigInt(3)); await kv.max((p, "max bigint"), tools.js.JSBigInt(7))
        return {entry.key[1]: entry.value async for entry in kv.list(prefix=(p,))}
        """,
        p=p,
    )
    assert values == {
        "u64": {"$u64": "4"},
        "float": -2.5,
        "bigint": {"$bigint": str(2**70 + 1)},
        "clamped": 10,
        "min": {"$u64": "7"},
        "max": {"$u64": "7"},
        "min float": 7,
        "max bigint": {"$bigint": "7"},
    }


@ONE
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("await kv.sum((p,), 5.0, abort_over=10.0)", "The result of a Sum operation would exceed its range limit"),
        ("await kv.sum((p,), tools.js.JSBigInt(5))", "Cannot sum Number with BigInt"),
        ("await kv.sum((p,), denokv.KvU64(5))", "Failed to perform 'sum' mutation on a non-U64 value in the database"),
        ("await kv.set((p, 'k' * 2050), 1)", "A key exceeds the key size limit."),
        ("await kv.set((p,), b'x' * 65537)", "A value exceeds the value size limit."),
        ("await kv.get(keys=[(p,)] * 11)", "Too many read ranges requested in one read request."),
    ],
)
def test_what_is_refused(client: Client, p: str, code: str, text: str) -> None:
    client("await kv.sum((p,), 8.0)", p=p)
    with pytest.raises(Refused) as refused:
        client(code, p=p)
    assert text in refused.value.message
    assert client("return [e.value for e in await tools.collect(kv.list(prefix=(p,)))]", p=p) == [8]


@ONE
def test_a_hundred_checks(client: Client, p: str) -> None:
    code = """
        atomic = kv.atomic()
        for i in range(100):
            atomic.check_key_not_set((p, str(i)))
        return (await atomic.set((p,), 1).write()).ok
    """
    assert client(code, p=p) is True


@ONE
def test_versioned_keys(client: Client, p: str) -> None:
    stamp, listed = client(
        "return await kv.set((p, 'log'), 'x', versioned=True), await tools.collect(kv.list(prefix=(p, 'log')))", p=p
    )
    assert listed == [{"key": [p, "log", stamp], "value": "x", "versionstamp": stamp}]


@ONE
def test_a_key_expires(client: Client, p: str) -> None:
    client(
        """
        from datetime import UTC, datetime, timedelta
        from denokv._kv_writes import Set
        await kv.write(Set((p,), 1, expire_at=datetime.now(UTC) + timedelta(seconds=2)))
        """,
        p=p,
    )
    assert client("return (await kv.get((p,)))[1].value", p=p) == 1
    deadline = time.monotonic() + 60
    while client("return (await kv.get((p,)))[1]", p=p) is not None:
        assert time.monotonic() < deadline


@DENOKV
def test_it_reads_what_the_others_write(client: Client, p: str, kv: kvorum.sync.Kv, javascript: list[Client]) -> None:
    """It cannot read Deno's version 16 of V8's format: our server says 15.

    Its decoder reads no lone surrogates, and −0 as 0.
    """
    writer = javascript[client.at]
    write_all(writer, p)
    writer("await kv.delete([p, 'lone surrogate'])", p=p)
    shown = {name: value.shown for name, value in VALUES.items() if name != "lone surrogate"} | {"minus zero": 0}
    compare(client("return {e.key[1]: e.value async for e in kv.list(prefix=(p,))}", p=p), shown)
    back = {name: value for name, value in VALUES.items() if value.back and name != "lone surrogate"}
    for name, value in back.items():
        kv.set((p + "python", name), value.python)
    found = client("return {e.key[1]: e.value async for e in kv.list(prefix=(p,))}", p=p + "python")
    compare(found, {name: value.shown for name, value in back.items()} | {"minus zero": 0})


WRITTEN: dict[str, tuple[str, Any, Any]] = {
    "none": ("None", None, None),
    "int": ("5", 5, 5),
    "float": ("1.5", 1.5, 1.5),
    "bigint": ("js.JSBigInt(2**63)", {"$bigint": str(2**63)}, 2**63),
    "text": ("'é겦😀'", "é겦😀", "é겦😀"),
    "dict": ("{'a': 1}", {"$map": [["a", 1]]}, None),
    "object": ("js.JSObject(a=js.JSArray([1, True]))", {"a": [1, True]}, {"a": [1, True]}),
    "bytes": ("b'\\x00\\xff'", {"$bytes": "00ff"}, b"\x00\xff"),
    "counter": ("denokv.KvU64(7)", {"$u64": "7"}, kvorum.KvU64(7)),
    "undefined": ("js.JSUndefined", {"$undefined": True}, None),
}


@ONE
def test_the_others_read_what_it_writes(client: Client, p: str, kv: kvorum.sync.Kv, javascript: list[Client]) -> None:
    for name, (script, _, _) in WRITTEN.items():
        client(f"js = tools.js\nawait kv.set((p, name), {script})", p=p, name=name)
    expected = {name: shown for name, (_, shown, _) in WRITTEN.items()}
    for reader in javascript:
        listed = reader("return await tools.collect(kv.list({ prefix: [p] }))", p=p)
        compare({entry["key"][1]: entry["value"] for entry in listed}, expected)
    found = {entry.key[1]: entry.value for entry in kv.list(prefix=(p,))}
    compare(found, {name: python for name, (_, _, python) in WRITTEN.items() if name != "dict"})
    assert dict(found["dict"]) == {"a": 1}


@at(["denokv"], [2])
def test_a_list_of_all_the_nodes_agrees(client: Client, p: str, processes: Any) -> None:
    client("for i in range(250): await kv.set((p, float(i)), i)", p=p)
    for node in range(NODES):
        found = client.process.run("return [e.value async for e in kv.list(prefix=(p,))]", at=node, p=p)
        assert found == list(range(250))
