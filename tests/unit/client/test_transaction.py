"""Transactions over a backend whose answers the test dictates: what is read, checked, sent, tried again and refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import kvorum
import kvorum.sync
from kvorum import Kv, Transaction, transaction
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import (
    Closed,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    InvalidKey,
    LimitExceeded,
    OutcomeUnknown,
    OutOfRange,
    TypeMismatch,
    Unavailable,
)
from kvorum.keys import encode_key
from tests.unit.client.fake_backend import FakeBackend, refused, row, stamp

A, B, C = ("a",), ("b",), ("c",)
FAILED = refused(pb.OUTCOME_CHECK_FAILED, failed_checks=(0,))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time between attempts."""
    monkeypatch.setattr(transaction, "_FIRST_PAUSE", 0.0)


def store(backend: FakeBackend, key: kvorum.Key, value: object, number: int) -> None:
    encoded = encode_key(key)
    backend.rows[encoded] = row(encoded, value, number)


def kinds(write: pb.AtomicWrite) -> list[int]:
    return [mutation.type for mutation in write.mutations]


async def test_what_was_read_is_checked_and_what_was_written_follows(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, 5, 1)

    async def move(tx: Transaction) -> str:
        source, target = await tx.get(A), await tx.get(B)
        assert (source.value, target.exists) == (5, False)
        tx.set(A, source.value - 1).set(B, 1, expire_in=50).enqueue("moved")
        return "done"

    assert await kv.transaction(move) == "done"
    (write,) = backend.writes
    assert [(check.key, check.versionstamp) for check in write.checks] == [
        (encode_key(A), stamp(1)),
        (encode_key(B), b""),
    ]
    assert [mutation.key for mutation in write.mutations] == [encode_key(A), encode_key(B)]
    assert len(write.enqueues) == 1
    assert all(read.consistency == pb.CONSISTENCY_STRONG for read in backend.reads)


async def test_a_conflict_runs_the_function_again_from_the_beginning(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, 1, 1)
    backend.answers.extend((FAILED, FAILED))
    seen = []

    async def add(tx: Transaction) -> int:
        entry = await tx.get(A)
        seen.append(entry.value)
        store(backend, A, entry.value + 10, entry.value + 10)  # somebody else
        tx.set(A, entry.value + 1)
        return int(entry.value)

    assert await kv.transaction(add) == 21
    assert seen == [1, 11, 21]
    assert [write.checks[0].versionstamp for write in backend.writes] == [stamp(1), stamp(11), stamp(21)]
    assert [len(write.mutations) for write in backend.writes] == [1, 1, 1]


async def test_conflicts_end_after_as_many_attempts_as_were_allowed(kv: Kv, backend: FakeBackend) -> None:
    async def write(tx: Transaction) -> None:
        await tx.get(A)
        tx.set(A, 1)

    for allowed, text in ((1, "in 1 attempt$"), (4, "in 4 attempts$")):
        backend.writes.clear()
        backend.answers.extend([FAILED] * allowed)
        with pytest.raises(Conflict, match=text) as error:
            await kv.transaction(write, attempts=allowed)
        assert (error.value.retryable, error.value.outcome) == (True, "not applied")
        assert len(backend.writes) == allowed


async def test_conflicts_end_with_the_timeout(kv: Kv, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(transaction, "_now", lambda: now[0])
    backend.answers.extend([FAILED] * 100)

    async def slow(tx: Transaction) -> None:
        await tx.get(A)
        tx.set(A, 1)
        now[0] += 0.4

    with pytest.raises(Conflict, match="in 2 attempts"):
        await kv.transaction(slow, timeout=1_000)
    assert backend.timeouts[0] == pytest.approx(1.0)
    assert all(0 < left <= 1.0 for left in backend.timeouts), "each call gets what is left"


async def test_a_function_that_takes_longer_than_the_timeout_commits_nothing(
    kv: Kv, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(transaction, "_now", lambda: now[0])

    async def slow(tx: Transaction) -> None:
        tx.set(A, 1)
        now[0] += 2

    with pytest.raises(DeadlineExceeded, match="did not end within 1 s; nothing was applied"):
        await kv.transaction(slow, timeout=1_000)
    assert backend.writes == []


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("lost"), Unavailable("no leader"), Closed(), DeadlineExceeded("late")]
)
async def test_what_does_not_come_from_a_conflict_is_passed_on_and_never_tried_again(
    kv: Kv, backend: FakeBackend, error: kvorum.KvorumError
) -> None:
    backend.answers.append(error)
    runs = []

    async def write(tx: Transaction) -> None:
        runs.append(await tx.get(A))
        tx.set(A, 1)

    with pytest.raises(type(error)) as raised:
        await kv.transaction(write)
    assert raised.value is error and len(runs) == len(backend.writes) == 1


@pytest.mark.parametrize(
    ("outcome", "error"), [(pb.OUTCOME_TYPE_ERROR, TypeMismatch), (pb.OUTCOME_RANGE_ERROR, OutOfRange)]
)
async def test_what_the_database_says_no_to_is_passed_on(
    kv: Kv, backend: FakeBackend, outcome: pb.Outcome, error: type[Exception]
) -> None:
    backend.answers.append(refused(outcome, "no"))

    async def count(tx: Transaction) -> None:
        tx.sum(A, 1)

    with pytest.raises(error):
        await kv.transaction(count)
    assert len(backend.writes) == 1


# ---- what it sees


async def test_its_own_writes_are_visible_and_cost_neither_read_nor_check(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, "old", 1)
    store(backend, ("dir", 1), "old", 2)

    async def look(tx: Transaction) -> None:
        value = {"list": [1]}
        tx.set(A, value)
        value["list"].append(2)
        entry = await tx.get(A)
        assert entry == (A, {"list": [1]}, kvorum.UNCOMMITTED)
        entry.value["list"].clear()
        assert (await tx.get(A)).value == {"list": [1]}
        tx.touch(A, expire_in=5)
        assert (await tx.get(A)).value == {"list": [1]}
        tx.delete(A)
        assert not (await tx.get(A)).exists
        tx.set(A, 2)
        tx.delete_prefix(("dir",))
        assert not (await tx.get(("dir", 1))).exists
        tx.set(("dir", 1), 3)
        tx.delete_range(("dir", 2), ("dir", 9))
        assert [entry.value for entry in await tx.get_many([("dir", 1), ("dir", 5), A])] == [3, None, 2]

    await kv.transaction(look)
    assert backend.reads == []
    (write,) = backend.writes
    assert list(write.checks) == [] and len(write.mutations) == 7


async def test_what_only_the_commit_can_compute_cannot_be_read(kv: Kv, backend: FakeBackend) -> None:
    async def look(tx: Transaction) -> None:
        tx.set(("log", kvorum.commit_versionstamp()), 1)
        assert not (await tx.get(("log",))).exists
        for change in (tx.sum, tx.min, tx.max):
            change(A, 1)
            with pytest.raises(InvalidArgument, match="has no value before the commit"):
                await tx.get(A)
            tx.set(A, 7)
            assert (await tx.get(A)).value == 7

    await kv.transaction(look)
    assert [check.key for check in backend.writes[0].checks] == [encode_key(("log",))]


async def test_reads_are_repeatable_and_read_once(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, [1], 1)

    async def look(tx: Transaction) -> None:
        first = await tx.get(A)
        store(backend, A, [2], 2)
        first.value.append("changed by the caller")
        assert await tx.get(A) == (A, [1], stamp(1).hex())
        assert [entry.value for entry in await tx.get_many([A, B, A])] == [[1], None, [1]]
        tx.set(B, 1)

    await kv.transaction(look)
    assert [list(read.keys) for read in backend.reads] == [[encode_key(A)], [encode_key(B)]]
    assert [check.versionstamp for check in backend.writes[0].checks] == [stamp(1), b""]


async def test_reads_at_the_same_time_agree(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, 1, 1)

    async def look(tx: Transaction) -> None:
        one, other = await asyncio.gather(tx.get(A), tx.get(A))
        assert one == other
        tx.set(A, 2)

    await kv.transaction(look)
    assert len(backend.writes[0].checks) == 1


# ---- nothing written


@pytest.mark.parametrize("keys", [(), (A,), (A, B)])
async def test_what_is_one_snapshot_needs_no_commit(kv: Kv, backend: FakeBackend, keys: tuple[kvorum.Key, ...]) -> None:
    async def look(tx: Transaction) -> int:
        return len(await tx.get_many(keys))

    assert await kv.transaction(look) == len(keys)
    assert backend.writes == [] and len(backend.reads) == bool(keys)


async def test_reads_of_several_moments_are_compared_again(kv: Kv, backend: FakeBackend) -> None:
    store(backend, A, 1, 1)
    store(backend, B, 1, 1)
    runs = []

    async def look(tx: Transaction) -> int:
        one = await tx.get(A)
        runs.append(one.value)
        if len(runs) == 1:
            store(backend, A, 2, 2)
            store(backend, B, 2, 2)
        return int(one.value + (await tx.get(B)).value)

    assert await kv.transaction(look) == 4
    assert runs == [1, 2] and backend.writes == []


async def test_many_reads_are_compared_by_checks_alone(kv: Kv, backend: FakeBackend) -> None:
    async def look(tx: Transaction) -> None:
        for number in range(11):
            await tx.get((number,))

    backend.answers.append(FAILED)
    await kv.transaction(look)
    assert [(len(write.checks), len(write.mutations)) for write in backend.writes] == [(11, 0), (11, 0)]
    backend.answers.append(OutcomeUnknown("lost"))
    with pytest.raises(DeadlineExceeded, match="was to change nothing"):
        await kv.transaction(look)


# ---- exceptions of the function


class Oops(Exception):
    pass


async def test_an_exception_is_passed_on_and_nothing_is_written(kv: Kv, backend: FakeBackend) -> None:
    async def fail(tx: Transaction) -> None:
        await tx.get(A)
        await tx.get(B)
        tx.set(A, 1)
        raise Oops

    with pytest.raises(Oops):
        await kv.transaction(fail)
    assert backend.writes == []


async def test_an_exception_over_what_never_was_together_is_a_conflict(kv: Kv, backend: FakeBackend) -> None:
    """A and B are always equal; between two reads somebody changes both."""
    store(backend, A, 1, 1)
    store(backend, B, 1, 1)
    runs = []

    async def compare(tx: Transaction) -> None:
        one = await tx.get(A)
        runs.append(one)
        if len(runs) == 1:
            store(backend, A, 2, 2)
            store(backend, B, 2, 2)
        if one.value != (await tx.get(B)).value:
            raise Oops
        tx.set(C, 1)

    await kv.transaction(compare)
    assert len(runs) == 2 and len(backend.writes) == 1


async def test_a_cancelled_transaction_ends_at_once(kv: Kv, backend: FakeBackend) -> None:
    begun = asyncio.Event()

    async def wait(tx: Transaction) -> None:
        tx.set(A, 1)
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(kv.transaction(wait))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.writes == []


# ---- mistakes


async def test_limits(kv: Kv, backend: FakeBackend) -> None:
    async def read_too_much(tx: Transaction) -> None:
        for number in range(101):
            await tx.get((number,))

    async def ask_too_much(tx: Transaction) -> None:
        await tx.get_many([(number,) for number in range(11)])

    async def write_too_much(tx: Transaction) -> None:
        for number in range(1_001):
            tx.set((number,), 1)

    async def write_too_large(tx: Transaction) -> None:
        for number in range(13):
            tx.set((number,), bytes(65_000))

    for function, limit in (
        (read_too_much, "MAX_CHECKS"),
        (ask_too_much, "MAX_READ_RANGES"),
        (write_too_much, "MAX_MUTATIONS"),
        (write_too_large, "MAX_TOTAL_WRITE_SIZE"),
    ):
        backend.writes.clear()
        with pytest.raises(LimitExceeded, match=limit):
            await kv.transaction(function)
        assert not any(write.mutations for write in backend.writes)


async def test_a_hundred_reads_and_a_thousand_writes_are_not_too_many(kv: Kv, backend: FakeBackend) -> None:
    async def much(tx: Transaction) -> None:
        for number in range(100):
            await tx.get((number,))
        for number in range(1_000):
            tx.delete((number,))

    await kv.transaction(much)
    assert (len(backend.writes[0].checks), len(backend.writes[0].mutations)) == (100, 1_000)


Use = Callable[[Transaction], Any]


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda tx: tx.list(prefix=("a",)), InvalidArgument, "a transaction cannot list"),
        (lambda tx: tx.check(A, None), InvalidArgument, "checks what it has read"),
        (lambda tx: tx.get(()), InvalidKey, "key cannot be empty"),
        (lambda tx: tx.get_many("ab"), InvalidArgument, "keys must be a list or tuple"),
        (lambda tx: tx.touch(A, expire_in=0), InvalidArgument, "must be above zero"),
        (lambda tx: tx.set(A, 1, expire_in=-1), InvalidArgument, "must not be negative"),
    ],
)
async def test_mistakes_in_the_function(
    kv: Kv, backend: FakeBackend, use: Use, error: type[Exception], text: str
) -> None:
    async def wrong(tx: Transaction) -> None:
        outcome = use(tx)
        if isinstance(outcome, Awaitable):
            await outcome

    with pytest.raises(error, match=text):
        await kv.transaction(wrong)
    assert backend.writes == []


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5, None])
async def test_attempts_must_be_a_positive_integer(kv: Kv, attempts: Any) -> None:
    async def nothing(tx: Transaction) -> None: ...

    with pytest.raises(InvalidArgument, match="attempts must be a positive integer"):
        await kv.transaction(nothing, attempts=attempts)


async def test_a_plain_function_is_refused(kv: Kv, backend: FakeBackend) -> None:
    with pytest.raises(InvalidArgument, match="a transaction takes a function, got int"):
        await kv.transaction(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="must be a coroutine function"):
        await kv.transaction(lambda tx: tx.set(A, 1))  # type: ignore[arg-type, return-value]
    assert backend.writes == []


async def test_a_transaction_that_is_over_refuses_everything(kv: Kv, backend: FakeBackend) -> None:
    kept: list[Transaction] = []

    async def keep(tx: Transaction) -> None:
        kept.append(tx)
        await tx.get(A)

    await kv.transaction(keep)
    for use in (lambda tx: tx.set(A, 1), lambda tx: tx.delete(A), lambda tx: tx.enqueue(1), lambda tx: tx.sum(A, 1)):
        with pytest.raises(InvalidArgument, match="this transaction is over"):
            use(kept[0])
    with pytest.raises(InvalidArgument, match="this transaction is over"):
        await kept[0].get(A)
    assert backend.writes == []


def test_the_blocking_client_takes_plain_functions_only() -> None:
    async def wrong(tx: Any) -> None: ...

    with kvorum.sync.open_kv(":memory:") as kv:
        with pytest.raises(InvalidArgument, match="must be a plain one"):
            kv.transaction(wrong)
        with pytest.raises(InvalidArgument, match="a transaction takes a function, got int"):
            kv.transaction(5)  # type: ignore[arg-type]
        assert kv.transaction(lambda tx: tx.set(A, 1).get(A).value) == 1
        assert kv.get(A).value == 1
    with pytest.raises(Closed):
        kv.transaction(lambda tx: tx.get(A))


def test_pauses_grow_at_random_and_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tries = transaction.Attempts(60, 1_000.0)
    pauses = [tries.pause() for _ in range(59)]
    assert len(set(pauses)) > 50
    assert all(0 <= pause <= min(0.25, 0.004 * 2**number) for number, pause in enumerate(pauses, 1))
    assert max(pauses) > 0.05
    with pytest.raises(Conflict):
        tries.pause()
