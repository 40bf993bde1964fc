"""set, delete and atomic operations, on every kind of database and with both clients."""

import asyncio
from datetime import timedelta

import pytest

import kvorum
from kvorum import KvU64
from kvorum.errors import InvalidArgument, InvalidKey, InvalidValue, LimitExceeded, OutOfRange, TypeMismatch
from tests.pace import BUSY


async def test_versionstamps_rise_and_one_commit_has_one(kv: kvorum.Kv, space: str) -> None:
    first = await kv.set((space, 1), "a")
    second = await kv.atomic().set((space, 2), "b").set((space, 3), "c").commit()
    assert first.versionstamp is not None and second.versionstamp is not None
    assert first.versionstamp < second.versionstamp
    two, three = await kv.get_many([(space, 2), (space, 3)])
    assert two.versionstamp == three.versionstamp == second.versionstamp


async def test_delete(kv: kvorum.Kv, space: str) -> None:
    await kv.set((space,), 1)
    assert await kv.delete((space,))
    assert not (await kv.get((space,))).exists
    assert (await kv.delete((space,))).versionstamp is not None


async def test_an_empty_commit_succeeds(kv: kvorum.Kv) -> None:
    done = await kv.atomic().commit()
    assert done.ok and done.versionstamp is not None and done.failed_checks == ()


async def test_mutations_of_one_key_happen_in_order(kv: kvorum.Kv, space: str) -> None:
    key = (space,)
    await kv.set(key, KvU64(10))
    await kv.atomic().delete(key).sum(key, 1).sum(key, 2).commit()
    assert (await kv.get(key)).value == 3
    await kv.atomic().set(key, 1).delete(key).commit()
    assert not (await kv.get(key)).exists


async def test_checks(kv: kvorum.Kv, space: str) -> None:
    key, other = (space, "a"), (space, "b")
    absent = await kv.get(key)
    assert (await kv.atomic().check(absent).set(key, 1).commit()).ok
    entry = await kv.get(key)
    assert entry.versionstamp is not None
    for right in (
        kv.atomic().check(entry),
        kv.atomic().check(key, entry),
        kv.atomic().check(key, entry.versionstamp),
        kv.atomic().check(key, entry.versionstamp.upper()),
        kv.atomic().check(other, None),
    ):
        assert (await right.commit()).ok
    for wrong in (kv.atomic().check(absent), kv.atomic().check(key, None), kv.atomic().check(other, entry)):
        assert await wrong.set(other, "never").commit() == kvorum.CommitResult(False, None, (0,))
    assert not (await kv.get(other)).exists


async def test_a_failed_commit_is_false_in_a_condition(kv: kvorum.Kv, space: str) -> None:
    assert not await kv.atomic().check((space,), exists=True).commit()
    assert await kv.atomic().check((space,), exists=False).commit()


async def test_p12_a_failed_commit_names_the_checks_that_failed(kv: kvorum.Kv, space: str) -> None:
    """P12 · 100 checks, one fails, no clue which → three checks, second stale → ok false, failed_checks == [1]."""
    keys = [(space, number) for number in range(3)]
    for key in keys:
        await kv.set(key, 0)
    entries = await kv.get_many(keys)
    await kv.set(keys[1], 1)
    operation = kv.atomic()
    for entry in entries:
        operation.check(entry)
    done = await operation.set(keys[0], "never").commit()
    assert not done.ok and list(done.failed_checks) == [1] and done.versionstamp is None
    assert (await kv.get(keys[0])).value == 0


async def test_a_hundred_checks_are_taken_and_all_that_fail_are_named(kv: kvorum.Kv, space: str) -> None:
    keys = [(space, number) for number in range(100)]
    operation = kv.atomic()
    for key in keys:
        operation.set(key, 0)
    stamp = (await operation.commit()).versionstamp
    assert stamp is not None

    def checked() -> kvorum.AtomicOperation:
        operation = kv.atomic()
        for key in keys:
            operation.check(key, stamp)
        return operation.set((space, "done"), True)

    assert (await checked().commit()).ok
    stale = [0, 9, 10, 50, 99]
    for number in stale:
        await kv.set(keys[number], 1)
    done = await checked().delete((space, "done")).commit()
    assert not done.ok and done.failed_checks == tuple(stale)
    assert (await kv.get((space, "done"))).value is True
    with pytest.raises(LimitExceeded) as error:
        await checked().check((space, "done"), None).commit()
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_CHECKS", 100, 101)


async def test_p13_checks_for_existence_and_for_not_newer(kv: kvorum.Kv, space: str) -> None:
    """P13 · wants "exists" and "not newer than" checks → as asked → supported."""
    key, absent = (space, "a"), (space, "b")
    first = (await kv.set(key, 1)).versionstamp
    second = (await kv.set((space, "c"), 1)).versionstamp
    assert first is not None and second is not None
    assert (await kv.atomic().check(key, exists=True).commit()).ok
    assert (await kv.atomic().check(absent, exists=False).commit()).ok
    assert not (await kv.atomic().check(absent, exists=True).commit()).ok
    assert not (await kv.atomic().check(key, exists=False).commit()).ok
    assert (await kv.atomic().check(key, version_le=first).commit()).ok
    assert (await kv.atomic().check(key, version_le=second).commit()).ok
    assert not (await kv.atomic().check(absent, version_le=second).commit()).ok
    await kv.set(key, 2)
    assert not (await kv.atomic().check(key, version_le=second).commit()).ok


async def test_a_commit_versionstamp_becomes_the_last_part_of_a_key(kv: kvorum.Kv, space: str) -> None:
    stamps = []
    for number in range(3):
        stamps.append((await kv.set((space, kvorum.commit_versionstamp()), number)).versionstamp)
    listed = await kv.list(prefix=(space,)).page()
    assert [(entry.key, entry.value) for entry in listed] == [((space, stamp), at) for at, stamp in enumerate(stamps)]
    with pytest.raises(InvalidKey, match="key cannot be empty"):
        await kv.set((kvorum.commit_versionstamp(),), 1)
    with pytest.raises(InvalidKey, match="part 0"):
        await kv.set((kvorum.commit_versionstamp(), space), 1)
    with pytest.raises(InvalidKey, match="part 1"):
        await kv.delete((space, kvorum.commit_versionstamp()))  # type: ignore[arg-type]


# ---- sums


async def test_p08_sums_count_down_and_stop_at_their_limits(kv: kvorum.Kv, space: str) -> None:
    """P08 · cannot decrement → set 100, sum -3 → 97; with min 0 and clamp: never below 0; without clamp: error, nothing
    applied."""
    for number, hundred in enumerate((KvU64(100), 100, 100.0)):
        key, other = (space, number), (space, number, "other")
        await kv.set(key, hundred)
        await kv.atomic().sum(key, -3).commit()
        assert (await kv.get(key)).value == 97
        with pytest.raises(OutOfRange):
            await kv.atomic().set(other, 1).sum(key, -98, minimum=0).commit()
        assert [entry.value for entry in await kv.get_many([key, other])] == [97, None]
        await kv.atomic().sum(key, -98, minimum=0, clamp=True).commit()
        assert (await kv.get(key)).value == 0
        await kv.atomic().sum(key, 98, maximum=10, clamp=True).commit()
        assert (await kv.get(key)).value == 10


async def test_a_sum_never_wraps(kv: kvorum.Kv, space: str) -> None:
    key = (space,)
    await kv.set(key, KvU64(2**64 - 1))
    for operand in (1, KvU64(2**64 - 1)):
        with pytest.raises(OutOfRange):
            await kv.atomic().sum(key, operand).commit()
    await kv.atomic().sum(key, 1, clamp=True).commit()
    assert (await kv.get(key)).value == 2**64 - 1
    await kv.set(key, KvU64(0))
    with pytest.raises(OutOfRange):
        await kv.atomic().sum(key, -1).commit()


async def test_a_sum_keeps_the_kind_of_what_is_stored(kv: kvorum.Kv, space: str) -> None:
    for number, (stored, operand, result, kind) in enumerate(
        (
            (None, 5, 5, KvU64),
            (None, 0.5, 0.5, float),
            (KvU64(1), 2, 3, KvU64),
            (1, 2, 3, int),
            (1.0, 2, 3.0, float),
            (1.5, 2, 3.5, float),
            (2**70, -1, 2**70 - 1, int),
        )
    ):
        key = (space, number)
        if stored is not None:
            await kv.set(key, stored)
        await kv.atomic().sum(key, operand).commit()
        value = (await kv.get(key)).value
        assert (value, type(value)) == (result, kind)


async def test_a_sum_on_what_is_no_number_is_refused_and_nothing_happens(kv: kvorum.Kv, space: str) -> None:
    key, other = (space, "text"), (space, "other")
    await kv.set(key, "text")
    with pytest.raises(TypeMismatch, match="unsupported value type"):
        await kv.atomic().set(other, 1).sum(key, 1).commit()
    assert not (await kv.get(other)).exists
    with pytest.raises(TypeMismatch, match="non-U64 value"):
        await kv.atomic().min(key, 1).commit()


async def test_min_and_max(kv: kvorum.Kv, space: str) -> None:
    key = (space,)
    await kv.atomic().max(key, 5).max(key, 3).commit()
    value = (await kv.get(key)).value
    assert value == 5 and type(value) is KvU64
    await kv.atomic().min(key, 9).min(key, 2).commit()
    assert (await kv.get(key)).value == 2
    with pytest.raises(InvalidValue, match=r"0 to 2\^64-1"):
        kv.atomic().min(key, -1)
    with pytest.raises(InvalidValue):
        kv.atomic().max(key, True)


async def test_p09_a_ticket_sale_by_sums_and_checks(kv: kvorum.Kv, space: str) -> None:
    """P09 · `sum(k, 1)` with a plain number, then arithmetic on the read value → 50 buyers, 10 tickets: exactly 10
    succeed, stock 0."""
    stock, votes = (space, "stock"), (space, "votes")
    await kv.set(stock, 10)

    async def buy() -> bool:
        while True:
            entry = await kv.get(stock)
            if entry.value <= 0:
                return False
            if (await kv.atomic().check(entry).set(stock, entry.value - 1).sum(votes, 1).commit()).ok:
                return True

    sold = await asyncio.gather(*(buy() for _ in range(50)))
    assert sum(sold) == 10
    left, counted = await kv.get_many([stock, votes])
    assert left.value == 0 and counted.value + 1 == 11


async def test_p10_a_counter_inside_of_another_value_is_refused(kv: kvorum.Kv, space: str) -> None:
    """P10 · counter type nested in an object comes back as a plain object → refused with a clear error; never silently
    changed."""
    with pytest.raises(InvalidValue, match="KvU64") as error:
        await kv.set((space,), {"u": KvU64(100)})
    assert error.value.path == "value['u']" or error.value.path == 'value["u"]'
    assert not (await kv.get((space,))).exists


# ---- expiry


async def test_p18_what_expires_is_gone_and_negative_times_are_refused(kv: kvorum.Kv, space: str) -> None:
    """P18 · TTL 4 s still readable; `expireIn <= 0` stored forever → None; -1 rejected. Here with 600 ms."""
    key = (space, "expires")
    with pytest.raises(InvalidArgument, match="expire_in must not be negative: received -1 ms"):
        await kv.set(key, 1, expire_in=-1)
    with pytest.raises(InvalidArgument, match="expire_in must not be negative"):
        kv.atomic().set(key, 1, expire_in=timedelta(seconds=-1))
    assert not (await kv.get(key)).exists
    watch = kv.watch([key])
    assert [entry.value for entry in await anext(watch)] == [None]
    await kv.set(key, "soon gone", expire_in=int(600 * BUSY))
    assert (await kv.get(key)).value == "soon gone"
    async with asyncio.timeout(60):
        async for (entry,) in watch:
            if not entry.exists:
                break
    assert (await kv.get(key)).value is None
    assert (await kv.atomic().check(key, None).commit()).ok
    await watch.aclose()


async def test_a_plain_set_and_a_sum_drop_an_expiry(kv: kvorum.Kv, space: str) -> None:
    gone, kept, summed = (space, "gone"), (space, "kept"), (space, "summed")
    operation = kv.atomic()
    for key in (gone, kept, summed):
        operation.set(key, KvU64(1), expire_in=timedelta(milliseconds=600) * BUSY)
    await operation.commit()
    await kv.atomic().set(kept, 2).sum(summed, 1).commit()
    watch = kv.watch([gone])
    async with asyncio.timeout(60):
        async for (entry,) in watch:
            if not entry.exists:
                break
    await watch.aclose()
    assert [entry.value for entry in await kv.get_many([gone, kept, summed])] == [None, 2, 2]


# ---- limits: all of them are judged before anything is sent, and the largest that is allowed is taken


async def test_the_largest_values_are_taken_and_larger_ones_refused(kv: kvorum.Kv, space: str) -> None:
    await kv.set((space,), b"x" * 65_536)
    assert (await kv.get((space,))).value == b"x" * 65_536
    with pytest.raises(LimitExceeded) as error:
        await kv.set((space,), b"x" * 65_537)
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_VALUE_SIZE", 65_536, 65_537)


async def test_the_largest_commit_is_taken_and_larger_ones_refused(kv: kvorum.Kv, space: str) -> None:
    checks = kv.atomic()
    for number in range(100):
        checks.check((space, number), None)
    assert (await checks.commit()).ok
    with pytest.raises(LimitExceeded) as error:
        await checks.check((space, 100), None).commit()
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_CHECKS", 100, 101)

    sets = kv.atomic()
    for number in range(1_000):
        sets.set((space, number), number)
    assert (await sets.commit()).ok
    with pytest.raises(LimitExceeded) as error:
        await sets.delete((space, 0)).commit()
    assert (error.value.limit, error.value.got) == ("MAX_MUTATIONS", 1_001)
    assert (await kv.get((space, 0))).exists

    large = kv.atomic()
    for number in range(12):
        large.set((space, "large", number), b"x" * 65_536)
    assert (await large.commit()).ok
    with pytest.raises(LimitExceeded) as error:
        await large.set((space, "large", 12), b"x" * 65_536).commit()
    assert error.value.limit == "MAX_TOTAL_WRITE_SIZE" and error.value.got > 819_200


async def test_many_calls_at_once(kv: kvorum.Kv, space: str) -> None:
    await asyncio.gather(
        *(kv.atomic().sum((space, "sum"), 1).set((space, number), number).commit() for number in range(200))
    )
    assert (await kv.get((space, "sum"))).value == 200
    assert len(await kv.list(start=(space, 0), end=(space, 200)).page()) == 200
