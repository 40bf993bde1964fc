"""What the client sends, and what it makes of the answers, over a backend in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

import kvorum
from kvorum import Entry, Kv, KvU64, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import (
    Closed,
    DataError,
    InvalidArgument,
    InvalidKey,
    KvorumError,
    LimitExceeded,
    NoSpace,
    OutcomeUnknown,
    OutOfRange,
    StaleLease,
    TypeMismatch,
    Unavailable,
)
from kvorum.keys import encode_key
from kvorum.mutation import set_write
from kvorum.values import encode_value
from tests.unit.client.fake_backend import FakeBackend, refused, row, stamp

A = encode_key(("a",))
STAMP = stamp(7).hex()


# ---- what is sent


async def test_a_set_is_one_mutation(kv: Kv, backend: FakeBackend) -> None:
    await kv.set(("a",), b"raw", expire_in=timedelta(seconds=1.5))
    mutation = pb.Mutation(
        key=A, type=pb.MUTATION_TYPE_SET, value=b"raw", encoding=pb.VALUE_ENCODING_BYTES, expire_in_ms=1_500
    )
    assert backend.writes == [pb.AtomicWrite(mutations=[mutation])]


async def test_no_expiry_and_expiry_at_once_are_different(kv: Kv, backend: FakeBackend) -> None:
    await kv.atomic().set(("a",), 1).set(("a",), 1, expire_in=0).commit()
    never, at_once = backend.writes[0].mutations
    assert not never.HasField("expire_in_ms")
    assert at_once.HasField("expire_in_ms") and at_once.expire_in_ms == 0


async def test_everything_that_an_atomic_operation_can_hold(kv: Kv, backend: FakeBackend) -> None:
    suffixed = ("log", kvorum.commit_versionstamp())
    await (
        kv.atomic()
        .set(("a",), 1)
        .check(("a",), None)
        .check(Entry(("a",), 1, STAMP))
        .check(("a",), STAMP.upper())
        .check(("a",), exists=True)
        .check(("a",), exists=False)
        .check(("a",), version_le=STAMP)
        .check(("a",), version_le=Entry(("b",), None, STAMP))
        .delete(("a",))
        .sum(("a",), -1, minimum=0, maximum=9, clamp=True)
        .min(("a",), 3)
        .max(("a",), 4)
        .set(suffixed, b"x")
        .enqueue("m", queue="mail", delay=5, keys_if_undelivered=[("a",)], backoff_schedule=[1, timedelta(seconds=2)])
        .enqueue("m")
        .enqueue("m", backoff_schedule=[])
        .commit()
    )
    (write,) = backend.writes
    plain = pb.CHECK_KIND_EQUALS
    assert [(check.kind, check.versionstamp) for check in write.checks] == [
        (plain, b""),
        (plain, stamp(7)),
        (plain, stamp(7)),
        (pb.CHECK_KIND_EXISTS, b""),
        (plain, b""),
        (pb.CHECK_KIND_NOT_NEWER, stamp(7)),
        (pb.CHECK_KIND_NOT_NEWER, stamp(7)),
    ]
    assert [(mutation.type, mutation.key) for mutation in write.mutations] == [
        (pb.MUTATION_TYPE_SET, A),
        (pb.MUTATION_TYPE_DELETE, A),
        (pb.MUTATION_TYPE_ADD, A),
        (pb.MUTATION_TYPE_MIN, A),
        (pb.MUTATION_TYPE_MAX, A),
        (pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY, encode_key(("log",))),
    ]
    added, smaller = write.mutations[2], write.mutations[3]
    assert (added.value, added.sum_min, added.sum_max, added.sum_clamp) == (
        bytes.fromhex("ff0f4901"),
        bytes.fromhex("ff0f4900"),
        bytes.fromhex("ff0f4912"),
        True,
    )
    assert (smaller.encoding, smaller.value) == (pb.VALUE_ENCODING_LE64, (3).to_bytes(8, "little"))
    first, second, third = write.enqueues
    assert (first.queue, first.delay_ms, list(first.keys_if_undelivered)) == ("mail", 5, [A])
    assert list(first.backoff.delays_ms) == [1, 2_000]
    assert not second.HasField("backoff")  # the default schedule
    assert third.HasField("backoff") and not third.backoff.delays_ms  # no retry


async def test_timeouts_are_the_call_s_or_the_client_s(kv: Kv, backend: FakeBackend) -> None:
    await kv.get(("a",))
    await kv.get(("a",), timeout=100)
    await kv.set(("a",), 1, timeout=timedelta(seconds=2))
    await kv.atomic().commit(timeout=300)
    await kv.list(prefix=(), timeout=400).page()
    assert backend.timeouts == [5.0, 0.1, 2.0, 0.3, 0.4]
    with pytest.raises(InvalidArgument, match="timeout must be above zero"):
        await kv.get(("a",), timeout=0)


async def test_reads_say_how_fresh_they_must_be(kv: Kv, backend: FakeBackend) -> None:
    await kv.get(("a",))
    await kv.get(("a",), consistency="eventual")
    await kv.get_many([("a",)], consistency="bounded", max_age=timedelta(seconds=1))
    await kv.list(prefix=(), consistency="bounded", max_age=10**12).page()
    assert [(read.consistency, read.max_age_ms) for read in backend.reads] == [
        (pb.CONSISTENCY_STRONG, 0),
        (pb.CONSISTENCY_EVENTUAL, 0),
        (pb.CONSISTENCY_BOUNDED, 1_000),
        (pb.CONSISTENCY_BOUNDED, 2**32 - 1),
    ]


# ---- what comes back


async def test_keys_come_back_as_tuples_of_their_own(kv: Kv, backend: FakeBackend) -> None:
    part = bytearray(b"x")
    entry = await kv.get(["a", part])
    part[0] = 0
    assert entry.key == ("a", b"x")


async def test_a_value_that_cannot_be_decoded_names_its_key(kv: Kv, backend: FakeBackend) -> None:
    unknown = pb.KvEntry(key=A, value=b"\xff\x0f?", encoding=pb.VALUE_ENCODING_V8, versionstamp=stamp(1))
    backend.rows = {A: unknown, encode_key(("b",)): row(encode_key(("b",)), "fine", 2)}
    with pytest.raises(DataError, match=r"^\('a',\): "):
        await kv.get(("a",))
    rows = kv.list(prefix=())
    with pytest.raises(DataError, match=r"^\('a',\): "):
        await anext(rows)
    assert (await anext(rows)).value == "fine"  # a list can go on behind it
    backend.rows = {b"\x02foreign": row(b"\x02foreign", 1, 1)}
    with pytest.raises(DataError, match="02666f726569676e cannot be decoded"):
        await kv.list(prefix=()).page()


async def test_answers_become_results_and_errors(kv: Kv, backend: FakeBackend) -> None:
    assert await kv.set(("a",), 1) == (True, stamp(1).hex(), (), 0, ())
    backend.answers.append(refused(pb.OUTCOME_CHECK_FAILED, failed_checks=[1, 3]))
    failed = await kv.atomic().commit()
    assert failed == (False, None, (1, 3), 0, ()) and not failed
    for outcome, kind in (
        (pb.OUTCOME_TYPE_ERROR, TypeMismatch),
        (pb.OUTCOME_RANGE_ERROR, OutOfRange),
        (pb.OUTCOME_STALE_LEASE, StaleLease),
    ):
        backend.answers.append(refused(outcome, "why"))
        with pytest.raises(kind, match=r"^why$") as error:
            await kv.atomic().commit()
        assert error.value.outcome == "not applied"


@pytest.mark.parametrize("problem", [OutcomeUnknown("lost"), Unavailable("no leader"), NoSpace("full")], ids=repr)
async def test_a_backend_s_errors_are_raised_as_they_are(kv: Kv, backend: FakeBackend, problem: KvorumError) -> None:
    """No call is repeated here: the backend knows when that is safe, and after an unknown outcome it never is."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: kv.set(("a",), 1),
        lambda: kv.delete(("a",)),
        lambda: kv.enqueue(1),
        lambda: kv.atomic().sum(("a",), 1).commit(),
    ]
    for number, call in enumerate(calls, 1):
        backend.answers.append(problem)
        with pytest.raises(type(problem)) as error:
            await call()
        assert error.value is problem
        assert len(backend.writes) == number


# ---- what is refused before anything is sent


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"versionstamp": None, "exists": False},
        {"exists": True, "version_le": STAMP},
        {"versionstamp": STAMP, "version_le": STAMP},
        {"versionstamp": STAMP[:-1]},
        {"versionstamp": STAMP[:-1] + "g"},
        {"versionstamp": " " + STAMP[1:]},
        {"versionstamp": b"\0" * 10},
        {"versionstamp": ""},
        {"version_le": Entry(("a",), None, None)},
    ],
    ids=repr,
)
async def test_what_is_no_check(kv: Kv, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        kv.atomic().check(("a",), **arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "key", ["a", b"a", 5, None, {"a"}, ("a", None), ("a", ("b",)), Entry(("a",), 1, None)], ids=repr
)
async def test_what_is_no_key(kv: Kv, backend: FakeBackend, key: tuple[str]) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: kv.get(key),
        lambda: kv.get_many([key]),
        lambda: kv.set(key, 1),
        lambda: kv.delete(key),
        lambda: kv.enqueue(1, keys_if_undelivered=[key]),
    ]
    for call in calls:
        with pytest.raises(InvalidKey):
            await call()
    with pytest.raises(InvalidKey):
        kv.list(prefix=key)
    with pytest.raises(InvalidKey):
        kv.watch([key])
    with pytest.raises(InvalidKey):
        kv.atomic().sum(key, 1)
    assert backend.writes == [] and backend.reads == []


async def test_a_failed_addition_leaves_the_operation_as_it_was(kv: Kv, backend: FakeBackend) -> None:
    operation = kv.atomic().set(("a",), 1)
    for wrong in (
        lambda: operation.set(("a",), object()),
        lambda: operation.set((), 1),
        lambda: operation.sum(("a",), float("nan")),
        lambda: operation.sum(("a",), "1"),  # type: ignore[arg-type]
        lambda: operation.check(("a",), "x"),
        lambda: operation.enqueue(1, delay=-1),
        lambda: operation.ack("message"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            wrong()
    await operation.commit()
    (write,) = backend.writes
    assert (len(write.mutations), len(write.checks), len(write.enqueues), len(write.settles)) == (1, 0, 0, 0)


async def test_the_sizes_of_a_whole_are_counted_as_the_node_counts_them(kv: Kv, backend: FakeBackend) -> None:
    key = ("x" * 2_045,)  # 2,047 bytes
    operation = kv.atomic()
    for _ in range(398):
        operation.set(key, b"")
    await operation.delete(key).check(key, None).commit()  # 818,800 bytes of keys, which alone have no limit
    await operation.set(("x" * 398,), b"").commit()
    with pytest.raises(LimitExceeded) as error:
        await operation.delete(("",)).commit()
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_TOTAL_WRITE_SIZE", 819_200, 819_202)

    operation = kv.atomic().set(("s", kvorum.commit_versionstamp()), b"")
    for _ in range(12):
        operation.set(("v",), b"x" * 65_000)
    operation.enqueue(b"x" * 30_000, keys_if_undelivered=[("u",)] * 10, backoff_schedule=[1] * 64)
    operation.check(("c",), None).delete(("d",)).sum(("e",), 1, minimum=0)
    with pytest.raises(LimitExceeded) as error:
        await operation.set(("w",), b"x" * 10_000).commit()
    assert error.value.limit == "MAX_TOTAL_WRITE_SIZE"
    payload = len(operation._write.enqueues[0].payload)
    parts = (3 + 22) + 12 * (3 + 65_000) + payload + 10 * 3 + 64 * 4 + 3 + 3 + (3 + 4 + 4) + (3 + 10_000)
    assert error.value.got == parts


@pytest.mark.parametrize(
    "size", [0, 1, 90, 104, 105, 106, 107, 108, 109, 110, 117, 118, 119, 120, 127, 128, 300, 65_000]
)
@pytest.mark.parametrize("key", [("k",), ("key", 1, True), ("x" * 100,), ("y" * 140,)])
async def test_a_set_is_written_as_protobuf_writes_it(
    kv: Kv, backend: FakeBackend, size: int, key: tuple[str | int, ...]
) -> None:
    for value in (b"v" * size, "s" * size, "é" * size, "ш" * (size // 2), KvU64(size)):
        data, encoding = encode_value(value)
        written = pb.AtomicWrite()
        written.mutations.add(key=encode_key(key), type=pb.MUTATION_TYPE_SET, value=data).encoding = encoding  # type: ignore[assignment]
        if len(data) <= limits.MAX_VALUE_SIZE:
            assert set_write(key, value, None) == written.SerializeToString()
            await kv.set(key, value)
            assert backend.writes[-1] == written


# ---- lists over answers of any size


async def test_a_list_asks_for_no_more_rows_than_it_needs_and_one(kv: Kv, backend: FakeBackend) -> None:
    for number in range(10):
        key = encode_key((number,))
        backend.rows[key] = row(key, number, number + 1)

    async def sizes(**options: int | None) -> list[int]:
        backend.reads.clear()
        await kv.list(prefix=(), **options).page()  # type: ignore[arg-type]
        return [read.ranges[0].limit for read in backend.reads]

    assert await sizes() == [101]
    assert await sizes(limit=3) == [4]
    assert await sizes(limit=600) == [501]
    assert await sizes(limit=3, batch_size=1) == [2, 1, 1]
    assert await sizes(limit=3, batch_size=100) == [4]
    assert await sizes(batch_size=1_000) == [1_000]
    assert await sizes(limit=1_000, batch_size=1_000) == [1_000]
    assert await sizes(batch_size=4) == [5, 4, 4]


async def test_nothing_is_read_for_an_empty_range(kv: Kv, backend: FakeBackend) -> None:
    rows = kv.list(start=("a",), end=("a",))
    assert await rows.page() == [] and rows.cursor == "" and not rows.has_more
    assert backend.reads == []


# ---- watches


async def test_a_watch_leaves_out_what_repeats(kv: Kv, backend: FakeBackend) -> None:
    watch = kv.watch([("a",)])
    absent, first, second = [pb.KvEntry(key=A)], [row(A, 1, 1)], [row(A, 2, 2)]
    for snapshot in (absent, absent, first, first, second, None):
        backend.snapshots.put_nowait(snapshot)
    assert [entries[0].value async for entries in watch] == [None, 1, 2]
    assert backend.watches_ended == 1


async def test_a_wait_that_is_cancelled_loses_nothing(kv: Kv, backend: FakeBackend) -> None:
    watch = kv.watch([("a",)])
    for number in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)
        backend.snapshots.put_nowait([row(A, number, number + 1)])
        assert (await anext(watch))[0].value == number
    await watch.aclose()
    assert backend.watches_ended == 1


async def test_a_watch_that_nobody_holds_any_more_ends(kv: Kv, backend: FakeBackend) -> None:
    watch = kv.watch([("a",)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.01)
    del watch
    async with asyncio.timeout(5):
        while not backend.watches_ended:  # noqa: ASYNC110  # it happens when the loop turns, and nobody tells of it
            await asyncio.sleep(0)


async def test_a_watch_passes_on_why_it_ended(kv: Kv, backend: FakeBackend) -> None:
    watch = kv.watch([("a",)])
    backend.snapshots.put_nowait(Unavailable("too many watches"))
    with pytest.raises(Unavailable, match="too many watches"):
        await anext(watch)
    backend.snapshots.put_nowait(Closed("closed elsewhere"))
    other = kv.watch([("a",)])
    with pytest.raises(Closed, match="closed elsewhere"):
        await anext(other)


# ---- closing


async def test_closing_ends_watches_and_then_the_backend(kv: Kv, backend: FakeBackend) -> None:
    watch = kv.watch([("a",)])
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0.01)
    await asyncio.gather(kv.close(), kv.close())
    assert await waiting is None
    assert backend.closed and backend.watches_ended == 1


async def test_a_cancelled_close_goes_on(kv: Kv, backend: FakeBackend) -> None:
    closing = asyncio.ensure_future(kv.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await kv.close()
    assert backend.closed


async def test_statistics_are_the_backend_s_if_it_has_any(kv: Kv, backend: FakeBackend) -> None:
    assert kv.statistics() == {}
    backend.statistics = lambda: {"retries": 3.0}  # type: ignore[attr-defined]
    assert kv.statistics() == {"retries": 3.0}
    assert (await kv.status()).node_id == "fake"
