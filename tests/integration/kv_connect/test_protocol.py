"""KV Connect's contract, on a leader and on followers, over both versions of HTTP."""

import asyncio
import json
import re
import time
import uuid

import pytest

import kvorum
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import DevCluster
from kvorum_node.metrics.table import FAMILIES

from .wire import (
    BYTES,
    HELLO,
    LE64,
    V8,
    Client,
    Http1,
    Http2,
    done,
    get,
    key,
    metadata,
    mutation,
    read,
    sum_of,
    u64,
    write,
)

TEXT = "text/plain; charset=utf-8"


def fresh(*parts: str) -> bytes:
    """A key that no other test uses."""
    return key(uuid.uuid4().hex, *parts)


# ---- metadata


async def test_metadata_has_exactly_what_the_strictest_client_takes(client: Client) -> None:
    answer = await metadata(client)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    told = json.loads(answer.body)
    assert list(told) == ["version", "databaseId", "endpoints", "token", "expiresAt"]
    assert told["version"] == 3
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", told["databaseId"])
    assert told["endpoints"] == [{"url": "/v2", "consistency": "strong"}]
    assert told["token"]
    expires = time.strptime(told["expiresAt"], "%Y-%m-%dT%H:%M:%SZ")
    assert 3_600 < time.mktime(expires) - time.mktime(time.gmtime()) < 2 * 86_400


async def test_all_nodes_are_one_database(shared_cluster: DevCluster) -> None:
    found = set()
    for address in shared_cluster.http_addresses:
        async with Http1(address) as client:
            found.add(json.loads((await metadata(client)).body)["databaseId"])
    assert found == {str(uuid.UUID(bytes=shared_cluster.status(0).cluster_id))}


@pytest.mark.parametrize(
    ("offer", "version"),
    [
        (b'{"supportedVersions":[1,2,3]}', 3),
        (b'{"supportedVersions":[1,2]}', 2),
        (b'{"supportedVersions": [2, 3, 4, 99]}', 3),
        (b'{"supportedVersions":[1],"more":true}', 1),
        (b"{}", 1),
        (b"", 1),
    ],
)
async def test_the_highest_common_version_is_spoken(shared_cluster: DevCluster, offer: bytes, version: int) -> None:
    address = shared_cluster.http_address(0)
    async with Http2(address) as client:
        told = json.loads((await metadata(client, offer)).body)
    assert told["version"] == version
    # Version 1 takes absolute URLs only.
    assert told["endpoints"][0]["url"] == (f"http://{address}/v2" if version == 1 else "/v2")


@pytest.mark.parametrize("offer", [b'{"supportedVersions":[4]}', b'{"supportedVersions":3}', b"[1,2", b"[1]", b'"x"'])
async def test_an_offer_without_a_common_version_is_refused(shared_cluster: DevCluster, offer: bytes) -> None:
    async with Http1(shared_cluster.http_address(0)) as client:
        answer = await metadata(client, offer)
    assert (answer.status, answer.headers["content-type"]) == (400, TEXT)


async def test_a_query_is_no_part_of_the_path(shared_cluster: DevCluster) -> None:
    async with Http1(shared_cluster.http_address(0)) as client:
        assert (await client.request("POST", "/?x=1", b'{"supportedVersions":[3]}')).status == 200
        assert (await client.request("POST", "/elsewhere", b"{}")).status == 404
        answer = await client.request("GET", "/")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


# ---- reads and writes


async def test_recorded_requests_of_deno(client: Client) -> None:
    for request in (
        "12110a0302610012080a04ff10490210011801",  # set(["a"], 1)
        "120b0a03026500120210031802",  # delete(["e"])
        "12110a03026b0012080a04ff10490210011809",  # set(["k", commitVersionstamp()], 1)
    ):
        await done(client, bytes.fromhex(request))
    answer = await client.request("POST", "/v2/snapshot_read", bytes.fromhex("0a0d0a030261001204026100001801"))
    assert answer.body.hex().startswith("0a1b0a190a030261001204ff") and answer.body.hex().endswith("20014001")
    output = dp.SnapshotReadOutput.FromString(answer.body)
    assert output.ranges[0].values[0].key == b"\x02a\0"


async def test_a_write_is_seen_by_the_next_read_of_every_node(shared_cluster: DevCluster) -> None:
    name = fresh()
    addresses = shared_cluster.http_addresses
    async with Http2(addresses[0]) as one, Http2(addresses[1]) as two, Http1(addresses[2]) as three:
        clients: list[Client] = [one, two, three]
        for number in range(30):
            stamp = await done(clients[number % 3], mutation(name, b"%d" % number, encoding=BYTES))
            for client in clients:
                found = await get(client, name)
                assert found is not None
                assert (found.value, found.encoding, found.versionstamp) == (b"%d" % number, BYTES, stamp)


async def test_ranges_limits_and_directions(client: Client) -> None:
    prefix = uuid.uuid4().hex
    names = [key(prefix, f"{number:02}") for number in range(10)]
    batch = dp.AtomicWrite()
    for name in names:
        batch.MergeFrom(mutation(name))
    stamp = await done(client, batch)
    start, end = key(prefix) + b"\0", key(prefix) + b"\xff"

    async def keys(**options: object) -> list[bytes]:
        selected = {"start": start, "end": end, "limit": 100, **options}
        found = (await read(client, dp.ReadRange(**selected))).ranges[0].values  # type: ignore[arg-type]
        assert all(row.versionstamp == stamp and row.value == HELLO for row in found)
        return [row.key for row in found]

    assert await keys() == names
    assert await keys(reverse=True) == names[::-1]
    assert await keys(limit=3) == names[:3]
    assert await keys(limit=3, reverse=True) == names[:-4:-1]
    assert await keys(start=names[4], end=names[4]) == []
    assert await keys(start=names[5], end=names[4]) == []
    assert await keys(start=names[2], end=b"\xff", limit=2) == names[2:4]
    output = await read(
        client,
        dp.ReadRange(start=names[1], end=names[1] + b"\0", limit=1),
        dp.ReadRange(start=start, end=end, limit=2, reverse=True),
        dp.ReadRange(start=b"\xfe", end=b"\xff", limit=5),
    )
    assert [[row.key for row in part.values] for part in output.ranges] == [[names[1]], names[:-3:-1], []]


async def test_one_key_as_the_first_row_of_an_open_range(client: Client) -> None:
    """How npm's clients get a key; the row after it is theirs to drop, so it must come."""
    prefix = uuid.uuid4().hex
    await done(client, mutation(key(prefix, "b")))

    async def first(*names: bytes) -> list[list[bytes]]:
        output = await read(client, *(dp.ReadRange(start=name, end=b"\xff", limit=1) for name in names))
        return [[row.key for row in part.values] for part in output.ranges]

    assert await first(key(prefix, "b")) == [[key(prefix, "b")]]
    assert await first(key(prefix, "a")) == [[key(prefix, "b")]]
    assert await first(key(prefix, "b"), key(prefix, "a")) == [[key(prefix, "b")]] * 2


async def test_a_read_of_nothing_and_of_the_empty_key(client: Client) -> None:
    await read(client)
    assert await get(client, b"") is None


async def test_large_answers_come_whole(client: Client) -> None:
    prefix = uuid.uuid4().hex
    value = b"v" * 65_536
    for begin in range(0, 60, 10):
        batch = dp.AtomicWrite()
        for number in range(begin, begin + 10):
            batch.MergeFrom(mutation(key(prefix, f"{number:03}"), value, encoding=BYTES))
        await done(client, batch)
    found = (await read(client, dp.ReadRange(start=key(prefix), end=key(prefix) + b"\xff", limit=1000))).ranges[0]
    assert [row.key for row in found.values] == [key(prefix, f"{number:03}") for number in range(60)]
    assert all(row.value == value for row in found.values)


async def test_sums_min_and_max(client: Client) -> None:
    name = fresh()
    await done(client, sum_of(name, 2**64 - 1))
    await done(client, sum_of(name, 5))
    await done(client, mutation(name, u64(3), dp.M_MIN, LE64))
    await done(client, mutation(name, u64(70), dp.M_MAX, LE64))
    found = await get(client, name)
    assert found is not None and (found.value, found.encoding) == (u64(70), LE64)
    bigint = b"\xff\x0fZ\x10" + u64(5)
    name = fresh()
    await done(client, mutation(name, bigint, dp.M_SUM, V8))
    await done(
        client,
        mutation(name, b"\xff\x10Z\x10" + u64(7), dp.M_SUM, V8, sum_max=b"\xff\x0fZ\x10" + u64(9), sum_clamp=True),
    )
    found = await get(client, name)
    assert found is not None and (found.value, found.encoding) == (b"\xff\x0fZ\x10" + u64(9), V8)


async def test_checks(client: Client) -> None:
    name, other, absent = fresh(), fresh(), fresh()
    stamp = await done(client, mutation(name))
    request = mutation(other)
    request.checks.add(key=name, versionstamp=stamp)
    request.checks.add(key=absent)
    request.checks.add(key=absent, versionstamp=bytes(10))  # kv-connect-kit's way to say that it must be absent
    await done(client, request)
    request.checks.add(key=name, versionstamp=b"\0" * 9 + b"\1")
    request.checks.add(key=name)
    answer = await write(client, request)
    assert answer.status == 200
    output = dp.AtomicWriteOutput.FromString(answer.body)
    assert (output.status, list(output.failed_checks), output.versionstamp) == (dp.AW_CHECK_FAILURE, [3, 4], b"")


async def test_a_hundred_checks_are_taken(client: Client) -> None:
    request = mutation(fresh())
    for number in range(100):
        request.checks.add(key=fresh(str(number)))
    await done(client, request)


async def test_an_empty_write_has_a_versionstamp(client: Client) -> None:
    assert await done(client, b"") < await done(client, b"")


async def test_a_key_with_a_versionstamp(client: Client) -> None:
    name = fresh()
    stamp = await done(client, mutation(name, kind=dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY))
    assert await get(client, name + b"\x02" + stamp.hex().encode() + b"\0") is not None


# ---- what is refused: status, type and text, and that nothing happened

BIG = b"x" * 65_537
LONG = b"\x02" + b"k" * 2_047 + b"\0"


def enqueue(**fields: object) -> dp.AtomicWrite:
    write = dp.AtomicWrite()
    write.enqueues.add(**{"payload": HELLO, **fields})  # type: ignore[arg-type]
    return write


def many(request: dp.AtomicWrite, count: int) -> dp.AtomicWrite:
    whole = dp.AtomicWrite()
    for _ in range(count):
        whole.MergeFrom(request)
    return whole


def checked(name: bytes = b"\x02c\0", stamp: bytes = b"", count: int = 1) -> dp.AtomicWrite:
    write = mutation(b"\x02never\0")
    for _ in range(count):
        write.checks.add(key=name, versionstamp=stamp)
    return write


NEVER = b"\x02never\0"
REFUSED_WRITES = {
    "long key": (mutation(LONG), "A key exceeds the key size limit."),
    "long deleted key": (mutation(LONG, None, dp.M_DELETE), "A key exceeds the key size limit."),
    "long checked key": (checked(LONG), "A key exceeds the key size limit."),
    "empty key": (mutation(b""), "key cannot be empty"),
    "suffix too long": (
        mutation(b"\x02" + b"k" * 2_040 + b"\0", kind=dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY),
        "A key exceeds the key size limit.",
    ),
    "large value": (mutation(NEVER, BIG, encoding=BYTES), "A value exceeds the value size limit."),
    "101 checks": (checked(count=101), "Too many checks included in atomic write."),
    "1001 mutations": (many(mutation(NEVER), 1_001), "Too many mutations / enqueues included in atomic write."),
    "1001 parts": (
        many(mutation(NEVER), 1_000).SerializeToString() + enqueue().SerializeToString(),
        "Too many mutations / enqueues included in atomic write.",
    ),
    "large whole": (
        many(mutation(NEVER, b"x" * 65_536, encoding=BYTES), 13),
        "The total size of the atomic write is too large.",
    ),
    "half a million tiny parts": (b"\x12\0" * 500_000, "Too many mutations / enqueues included in atomic write."),
    "odd versionstamp": (checked(stamp=b"123"), "Invalid versionstamp."),
    "type 0": (mutation(NEVER, kind=0), "Invalid mutation kind or arguments."),
    "type 77": (mutation(NEVER, kind=77), "Invalid mutation kind or arguments."),
    "no value": (mutation(NEVER, None), "Invalid mutation kind or arguments."),
    "no operand": (mutation(NEVER, None, dp.M_SUM), "Invalid mutation kind or arguments."),
    "expiry below -1": (mutation(NEVER, expire_at_ms=-2), "Invalid mutation expire at."),
    "no encoding": (mutation(NEVER, encoding=0), "The value encoding 0 is unknown."),
    "encoding 9": (mutation(NEVER, encoding=9), "The value encoding 9 is unknown."),
    "short u64": (mutation(NEVER, b"1234567", encoding=LE64), "Invalid mutation kind or arguments."),
    "short operand": (mutation(NEVER, b"1234567", dp.M_SUM, LE64), "Invalid mutation kind or arguments."),
    "min of a string": (mutation(NEVER, HELLO, dp.M_MIN), "Failed to perform 'min' mutation on a non-U64 operand"),
    "max of bytes": (
        mutation(NEVER, b"x", dp.M_MAX, BYTES),
        "Failed to perform 'max' mutation on a non-U64 operand",
    ),
    "sum of a string": (mutation(NEVER, HELLO, dp.M_SUM), "Some of the parameters are not valid V8 values"),
    "sum of bytes": (mutation(NEVER, b"x", dp.M_SUM, BYTES), "Some of the parameters are not valid V8 values"),
    "bounds of another type": (
        mutation(NEVER, b"\xff\x0fI\x02", dp.M_SUM, V8, sum_min=b"\xff\x0fZ\x10" + u64(1)),
        "Min/max parameters have different types than the operand",
    ),
    "large payload": (enqueue(payload=BIG), "A value exceeds the value size limit."),
    "65 intervals": (
        enqueue(backoff_schedule=[1] * 65),
        "Too many backoff intervals for a single queue message.",
    ),
    "long interval": (
        enqueue(backoff_schedule=[3_600_001]),
        "A backoff interval exceeds the maximum allowed backoff interval.",
    ),
    "11 dead letter keys": (
        enqueue(keys_if_undelivered=[NEVER] * 11),
        "Too many dead letter keys for a single queue message.",
    ),
    "long dead letter key": (enqueue(keys_if_undelivered=[LONG]), "A key exceeds the key size limit."),
    "deadline in two years": (
        enqueue(deadline_ms=int((time.time() + 2 * 366 * 86_400) * 1000)),
        "Invalid mutation enqueue deadline.",
    ),
    "garbage": (b"\xff\xff\xff", "The body is not a AtomicWrite message."),
    "cut off": (mutation(NEVER).SerializeToString()[:-3], "The body is not a AtomicWrite message."),
}


@pytest.mark.parametrize("what", REFUSED_WRITES)
async def test_refused_writes(shared_cluster: DevCluster, what: str) -> None:
    request, text = REFUSED_WRITES[what]
    async with Http2(shared_cluster.http_address(1)) as client:
        answer = await write(client, request)
        assert (answer.status, answer.text, answer.headers["content-type"]) == (400, text, TEXT)
        assert await get(client, NEVER) is None


async def test_type_errors_of_stored_values_keep_their_texts_and_change_nothing(client: Client) -> None:
    name, before = fresh(), fresh()
    await done(client, mutation(name))
    for kind, word in ((dp.M_SUM, "sum"), (dp.M_MIN, "min"), (dp.M_MAX, "max")):
        request = mutation(before)
        request.MergeFrom(mutation(name, u64(1), kind, LE64))
        answer = await write(client, request)
        expected = f"Failed to perform '{word}' mutation on a non-U64 value in the database"
        assert (answer.status, answer.text) == (400, expected)
    answer = await write(client, mutation(name, b"\xff\x0fI\x02", dp.M_SUM))
    assert (answer.status, answer.text) == (400, "unsupported value type")
    number = fresh()
    await done(client, mutation(number, b"\xff\x0fI\x02"))
    answer = await write(client, mutation(number, b"\xff\x0fZ\x10" + u64(1), dp.M_SUM))
    assert (answer.status, answer.text) == (400, "Cannot sum Number with BigInt")
    answer = await write(client, mutation(number, b"\xff\x0fI\x02", dp.M_SUM, sum_max=b"\xff\x0fI\x02"))
    assert (answer.status, answer.text) == (400, "The result of a Sum operation would exceed its range limit")
    assert await get(client, before) is None


REFUSED_READS = {
    "11 ranges": ([(b"\x02a\0", b"\x02b\0", 1)] * 11, "Too many read ranges requested in one read request."),
    "limit 0": ([(b"\x02a\0", b"\x02b\0", 0)], "The read range limit of the snapshot read request is invalid."),
    "limit -1": ([(b"\x02a\0", b"\x02b\0", -1)], "The read range limit of the snapshot read request is invalid."),
    "1001 entries": (
        [(b"\x02a\0", b"\x02b\0", 500), (b"\x02a\0", b"\x02b\0", 501)],
        "The total number of entries requested across read ranges in the read request is too large.",
    ),
    "long start": ([(b"x" * 2_050, b"\xff", 1)], "A key exceeds the key size limit."),
    "long end": ([(b"x", b"y" * 2_050, 1)], "A key exceeds the key size limit."),
}


@pytest.mark.parametrize("what", REFUSED_READS)
async def test_refused_reads(shared_cluster: DevCluster, what: str) -> None:
    ranges, text = REFUSED_READS[what]
    request = dp.SnapshotRead(ranges=[dp.ReadRange(start=a, end=b, limit=limit) for a, b, limit in ranges])
    async with Http1(shared_cluster.http_address(1)) as client:
        answer = await client.request("POST", "/v2/snapshot_read", request.SerializeToString())
        assert (answer.status, answer.text, answer.headers["content-type"]) == (400, text, TEXT)


async def test_the_largest_key_can_be_written_and_read(client: Client) -> None:
    name = b"\x02" + uuid.uuid4().hex.encode() + b"k" * 2_014 + b"\0"
    assert len(name) == 2_048
    await done(client, mutation(name, b"v" * 65_536, encoding=BYTES))
    found = await get(client, name)
    assert found is not None and len(found.value) == 65_536


# ---- who may, and of what


async def test_a_bearer_token_is_needed(shared_cluster: DevCluster) -> None:
    async with Http1(shared_cluster.http_address(0)) as client:
        for path in ("/", "/v2/snapshot_read", "/v2/atomic_write", "/v2/watch"):
            for token in ("", "Bearer", "Basic eDp5"):
                answer = await client.request("POST", path, b"", {"authorization": token})
                assert answer.status == 401, path
                assert "DENO_KV_ACCESS_TOKEN" in answer.text
        assert (await client.request("GET", "/livez", headers={"authorization": ""})).status == 200


async def test_another_database_or_version_is_refused(client: Client) -> None:
    own = json.loads((await metadata(client)).body)["databaseId"]
    other = str(uuid.uuid4())
    body = dp.SnapshotRead().SerializeToString()
    for headers, status in (
        ({"x-denokv-version": "3", "x-denokv-database-id": own}, 200),
        ({"x-denokv-version": "2", "x-denokv-database-id": own.upper()}, 200),
        ({"x-transaction-domain-id": own}, 200),
        ({}, 200),
        ({"x-denokv-version": "3", "x-denokv-database-id": other}, 403),
        ({"x-transaction-domain-id": other}, 403),
        ({"x-denokv-version": "4"}, 400),
    ):
        answer = await client.request("POST", "/v2/snapshot_read", body, headers)
        assert answer.status == status, (headers, answer)


# ---- times


async def test_times_are_durations_against_the_clusters_clock(client: Client) -> None:
    """In the past is now, and never is never."""
    names = [fresh() for _ in range(4)]
    now = int(time.time() * 1000)
    for name, at in zip(names, (0, -1, now - 86_400_000, now + 3_600_000), strict=True):
        await done(client, mutation(name, expire_at_ms=at))
    deadline = time.monotonic() + 60
    while await get(client, names[2]) is not None:
        assert time.monotonic() < deadline
    assert [await get(client, name) is not None for name in names] == [True, True, False, True]


async def test_messages_of_npm_and_pypi_clients_reach_python(shared_cluster: DevCluster) -> None:
    """A deadline of 0, or any in the past, means now; an empty schedule means the default one."""
    sent = {
        HELLO: 0,
        b"\xff\x0fI\x04": int(time.time() * 1000) - 86_400_000,
        b"\xff\x10I\x06": int(time.time() * 1000) + 100,
    }
    async with Http2(shared_cluster.http_address(2)) as client, kvorum.open_kv(shared_cluster.url) as kv:
        for payload, deadline in sent.items():
            await done(client, enqueue(payload=payload, deadline_ms=deadline, backoff_schedule=[100, 200]))
        found: asyncio.Queue[object] = asyncio.Queue()
        listening = asyncio.ensure_future(kv.listen_queue(found.put))
        values = [await asyncio.wait_for(found.get(), 60) for _ in sent]
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert sorted(values, key=str) == [2, 3, "hello"]


# ---- version 16


async def test_version_16_is_shown_as_15_to_those_who_cannot_read_it(client: Client) -> None:
    names = [fresh(), fresh(), fresh()]
    values = [(b"\xff\x10I\x02", V8), (b"\xff\x0fI\x02", V8), (b"\xff\x10I\x02", BYTES)]
    for name, (value, encoding) in zip(names, values, strict=True):
        await done(client, mutation(name, value, encoding=encoding))

    async def seen(agent: str) -> list[int]:
        ranges = [dp.ReadRange(start=name, end=name + b"\0", limit=1) for name in names]
        by_keys = await read(client, *ranges, **{"user-agent": agent})
        by_ranges = await read(client, *ranges, dp.ReadRange(start=b"", end=b"\0", limit=1), **{"user-agent": agent})
        found = [part.values[0].value[1] for part in by_keys.ranges]
        assert [part.values[0].value[1] for part in by_ranges.ranges[:3]] == found
        return found

    assert await seen("Deno/2.9.6") == await seen("Deno/3.0.1") == [16, 15, 16]
    for agent in ("Deno/2.4.5", "Deno/1.44.0", "node", "Python/3.11 aiohttp/3.14.5", ""):
        assert await seen(agent) == [15, 15, 16]


# ---- health and metrics


async def test_health_and_metrics(client: Client) -> None:
    assert (await client.request("GET", "/livez")).text == "ok\n"
    assert (await client.request("GET", "/readyz")).text == "ok\n"
    head = await client.request("HEAD", "/readyz")
    assert (head.status, head.headers["content-length"], head.body) == (200, "3", b"")
    page = await client.request("GET", "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    figures = dict(line.split(" ") for line in page.text.splitlines() if not line.startswith("#"))
    types = dict(line.split(" ")[2:] for line in page.text.splitlines() if line.startswith("# TYPE"))
    promised = {family.shown: family.kind for family in FAMILIES.values() if not family.optional}
    assert not {name for name, kind in promised.items() if types.get(name) != kind}
    assert float(figures["kvorum_raft_applied_index"]) > 0
    assert float(figures["kvorum_raft_has_leader"]) == 1
    assert float(figures["kvorum_api_kv_connect_unknown_outcomes_total"]) == 0
    assert float(figures["kvorum_api_http_connections"]) >= 1
