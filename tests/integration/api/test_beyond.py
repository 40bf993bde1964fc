"""What goes beyond Deno KV: touch and the time that is left, counts, lists of keys, ranges deleted, transactions; on
every kind of database and with both clients."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import kvorum
from kvorum.errors import Conflict, InvalidArgument, InvalidKey, LimitExceeded, OutOfRange
from tests.pace import BUSY, Pace


async def fill(kv: kvorum.Kv, space: str, count: int) -> None:
    for begin in range(0, count, 1_000):
        operation = kv.atomic()
        for number in range(begin, min(count, begin + 1_000)):
            operation.set((space, number), number)
        assert (await operation.commit()).ok


# ---- touch


async def test_p19_touch_prolongs_what_expires_and_tells_how_long_is_left(kv: kvorum.Kv, space: str) -> None:
    """P19 · cannot prolong or inspect TTL → touch(+60 s) → remaining ≈ 60 s, value and versionstamp unchanged."""
    key = (space, "lock")
    await kv.set(key, {"holder": 7}, expire_in=timedelta(seconds=20))
    before = await kv.get(key)
    left = await kv.expires_in(key)
    assert left is not None and timedelta(seconds=10) < left <= timedelta(seconds=20)
    assert await kv.touch(key, expire_in=timedelta(seconds=60)) is True
    left = await kv.expires_in(key)
    assert left is not None and timedelta(seconds=50) < left <= timedelta(seconds=60)
    assert await kv.get(key) == before
    assert (await kv.atomic().check(before).commit()).ok, "who read it before the touch may still write"
    assert await kv.touch(key, expire_in=None) is True
    assert await kv.expires_in(key) is None
    assert await kv.get(key) == before


async def test_touch_of_an_absent_key(kv: kvorum.Kv, space: str) -> None:
    assert await kv.touch((space, "none"), expire_in=1_000) is False
    assert await kv.expires_in((space, "none")) is None
    assert (await kv.atomic().touch((space, "none"), expire_in=1_000).commit()).ok
    assert not (await kv.get((space, "none"))).exists


async def test_a_touched_key_expires_at_its_new_time_and_not_at_the_old_one(kv: kvorum.Kv, space: str) -> None:
    sooner, later = (space, "sooner"), (space, "later")
    await kv.atomic().set(sooner, 1, expire_in=60_000).set(later, 1, expire_in=int(300 * BUSY)).commit()
    began = time.monotonic()
    await kv.atomic().touch(sooner, expire_in=int(600 * BUSY)).touch(later, expire_in=60_000).commit()
    watch = kv.watch([sooner, later])
    async with asyncio.timeout(60):
        async for entries in watch:
            assert entries[1].exists
            if not entries[0].exists:
                break
    assert time.monotonic() - began >= int(600 * BUSY) / 1_000
    await watch.aclose()


async def test_p18_two_seconds_are_two_seconds(kv: kvorum.Kv, space: str, start_pace: Callable[[], Pace]) -> None:
    """P18 · set 2 s: there for 2 s, never less; then None to a strong get, as soon as it is swept. −1 is rejected."""
    key = (space, "expires")
    for wrong in (-1, timedelta(microseconds=-1)):
        with pytest.raises(InvalidArgument, match="expire_in must not be negative"):
            await kv.set(key, 1, expire_in=wrong)
        with pytest.raises(InvalidArgument, match="expire_in must not be negative"):
            await kv.touch(key, expire_in=wrong)
    with pytest.raises(InvalidArgument, match="must be above zero"):
        await kv.touch(key, expire_in=0)
    began, pace = time.monotonic(), start_pace()
    await kv.set(key, 1, expire_in=2_000)
    last_seen = 0.0
    async with asyncio.timeout(60):
        while (await kv.get(key)).exists:
            last_seen = pace.seconds()
            await asyncio.sleep(0.01)
    assert time.monotonic() - began >= 2.0
    assert last_seen < 3.0, "a due key is swept within a second while a leader exists"


# ---- counts and keys


async def test_count_agrees_with_the_list(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 9_000)  # three slices
    await kv.set((space,), "not below itself")
    assert await kv.count((space,)) == 9_000
    assert await kv.count(prefix=(space,), start=(space, 2_000)) == 7_000
    assert await kv.count(prefix=(space,), end=(space, 10)) == 10
    assert await kv.count(start=(space, 5), end=(space, 8)) == 3
    assert await kv.count(start=(space, 5), end=(space, 5)) == 0
    assert await kv.count((space, "nothing")) == 0
    for consistency in ("strong", "eventual"):
        assert await kv.count((space,), consistency=consistency) == 9_000  # type: ignore[arg-type]
    assert await kv.count((space,), consistency="bounded", max_age=1_000) == 9_000
    with pytest.raises(InvalidKey, match="Selector must specify"):
        await kv.count()
    with pytest.raises(InvalidKey, match="not in the keyspace"):
        await kv.count((space,), start=("z",))


async def test_a_list_of_keys_has_everything_but_the_values(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 700)
    await kv.set((space, 3), b"x" * 60_000)
    whole = await kv.list((space,)).page()
    bare = await kv.list((space,), keys_only=True).page()
    assert [(entry.key, entry.versionstamp) for entry in bare] == [(entry.key, entry.versionstamp) for entry in whole]
    assert all(entry.value is None and entry.exists for entry in bare)
    rows = kv.list((space,), keys_only=True, limit=10, reverse=True)
    assert [entry.key[1] for entry in await rows.page()] == list(range(699, 689, -1))
    assert rows.has_more
    rest = kv.list((space,), keys_only=True, limit=10, reverse=True, cursor=rows.cursor)
    assert (await rest.page())[0].key[1] == 689
    assert (await kv.atomic().check(bare[5]).commit()).ok


# ---- ranges


async def test_delete_prefix_takes_what_a_list_would_show_however_much_it_is(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 2_500)
    await kv.set((space,), "parent")
    await kv.set((space + "!",), "neighbour")
    assert await kv.delete_prefix((space,)) == 2_500
    assert await kv.count((space,)) == 0
    assert (await kv.get((space,))).exists and (await kv.get((space + "!",))).exists
    assert await kv.delete_prefix((space,)) == 0


async def test_delete_range_takes_its_start_and_not_its_end(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 10)
    assert await kv.delete_range((space, 2), (space, 5)) == 3
    assert [entry.key[1] for entry in await kv.list((space,)).page()] == [0, 1, 5, 6, 7, 8, 9]
    with pytest.raises(InvalidKey, match="greater than end key"):
        await kv.delete_range((space, 5), (space, 2))


async def test_ranges_in_an_atomic_operation_are_all_or_nothing(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 1_001)
    with pytest.raises(OutOfRange, match=r"more than 1,000 keys \(MAX_DELETED_RANGE_KEYS\)"):
        await kv.atomic().set((space + "!",), 1).sum((space + "?",), 1).delete_prefix((space,)).commit()
    assert await kv.count((space,)) == 1_001 and not (await kv.get((space + "!",))).exists
    failed = await kv.atomic().check((space, 0), None).delete_prefix((space,)).commit()
    assert (failed.ok, failed.failed_checks, failed.deleted) == (False, (0,), 0)
    done = await kv.atomic().delete((space, 7)).delete_range((space, 0), (space, 500)).set((space, 3), "new").commit()
    assert (done.ok, done.deleted) == (True, 499)
    assert await kv.count((space,)) == 502
    assert (await kv.get((space, 3))) == ((space, 3), "new", done.versionstamp)


async def test_a_watch_hears_of_a_deleted_range(kv: kvorum.Kv, space: str) -> None:
    await fill(kv, space, 3)
    watch = kv.watch([(space, 1)])
    assert [entry.value for entry in await anext(watch)] == [1]
    await kv.delete_prefix((space,))
    async with asyncio.timeout(60):
        async for (entry,) in watch:
            if not entry.exists:
                break
    await watch.aclose()


# ---- transactions


async def test_a_transaction_returns_what_its_function_returns(kv: kvorum.Kv, space: str) -> None:
    a, b = (space, "a"), (space, "b")
    await kv.set(a, 10)

    async def move(tx: kvorum.Transaction) -> int:
        source, target = await tx.get_many([a, b])
        tx.set(a, source.value - 3).set(b, (target.value or 0) + 3)
        return int((await tx.get(b)).value)

    assert await kv.transaction(move) == 3
    assert await kv.transaction(move) == 6
    assert [entry.value for entry in await kv.get_many([a, b])] == [4, 6]


async def test_every_kind_of_change_to_what_was_read_is_a_conflict(kv: kvorum.Kv, space: str) -> None:
    """Also that an absent key was made, or a present one deleted, by whatever means."""
    key, other = (space, "key"), (space, "other")
    changes: list[Any] = [
        lambda: kv.set(key, 1),
        lambda: kv.set(key, 1),
        lambda: kv.atomic().sum(key, 1).commit(),
        lambda: kv.delete(key),
        lambda: kv.set(key, 1),
        lambda: kv.delete_prefix((space,)),
    ]
    for change in changes:
        runs = 0

        async def write(tx: kvorum.Transaction, change: Any = change) -> None:
            nonlocal runs
            runs += 1
            await tx.get(key)
            if runs == 1:
                await change()
            tx.set(other, 1)

        await kv.transaction(write)
        assert runs == 2


async def test_a_touch_is_no_conflict(kv: kvorum.Kv, space: str) -> None:
    key = (space, "key")
    await kv.set(key, 1)

    async def write(tx: kvorum.Transaction) -> None:
        entry = await tx.get(key)
        assert await kv.touch(key, expire_in=60_000)
        tx.set((space, "other"), entry.value)

    await kv.transaction(write, attempts=1)


async def test_a_transaction_that_never_gets_through_says_so(kv: kvorum.Kv, space: str) -> None:
    key = (space, "key")

    async def never(tx: kvorum.Transaction) -> None:
        await tx.get(key)
        await kv.set(key, "in between")
        tx.set(key, "never")

    with pytest.raises(Conflict, match="in 3 attempts"):
        await kv.transaction(never, attempts=3)
    assert (await kv.get(key)).value == "in between"


async def test_an_exception_leaves_nothing(kv: kvorum.Kv, space: str) -> None:
    async def fail(tx: kvorum.Transaction) -> None:
        tx.set((space,), 1)
        raise LookupError("so not")

    with pytest.raises(LookupError, match="so not"):
        await kv.transaction(fail)
    assert not (await kv.get((space,))).exists


async def test_limits_of_a_transaction(kv: kvorum.Kv, space: str) -> None:
    async def read_too_much(tx: kvorum.Transaction) -> None:
        for number in range(101):
            await tx.get((space, number))

    async def write_too_much(tx: kvorum.Transaction) -> None:
        for number in range(1_001):
            tx.set((space, number), 1)

    for function, limit in ((read_too_much, "MAX_CHECKS"), (write_too_much, "MAX_MUTATIONS")):
        with pytest.raises(LimitExceeded, match=limit):
            await kv.transaction(function)
    assert await kv.count((space,)) == 0


ACCOUNTS, TRANSFERS, EACH = 8, 50, 100


class Transfer:
    """Moves money, and notes in both accounts that it was the last to do so."""

    def __init__(self, number: int, space: str, rng: random.Random) -> None:
        self.number = number
        self.accounts = tuple(rng.sample(range(ACCOUNTS), 2))
        self.amount = rng.randrange(1, 60)
        self.space = space
        self.read: dict[int, tuple[int, int]] = {}
        """By the run that was committed: account → balance, last transfer."""

    async def run(self, tx: kvorum.Transaction) -> None:
        seen = {}
        for account in self.accounts:
            balance, last = (await tx.get((self.space, account))).value
            await asyncio.sleep(0)  # an embedded read answers at once: let the others write in between
            seen[account] = (balance, last)
        self.read = seen
        for account, change in zip(self.accounts, (-self.amount, self.amount), strict=True):
            tx.set((self.space, account), [seen[account][0] + change, self.number])

    def left(self, account: int) -> int:
        """The balance that it wrote."""
        change = -self.amount if account == self.accounts[0] else self.amount
        return self.read[account][0] + change


async def test_fifty_transfers_at_once_are_as_if_one_came_after_the_other(kv: kvorum.Kv, space: str) -> None:
    """The total stays, whoever looks; and there is an order of the transfers in which each read what those before it
    had left."""
    rng = random.Random(space)
    operation = kv.atomic()
    for account in range(ACCOUNTS):
        operation.set((space, account), [EACH, 0])
    await operation.commit()
    transfers = {number: Transfer(number, space, rng) for number in range(1, TRANSFERS + 1)}
    totals: list[int] = []

    async def audit(tx: kvorum.Transaction) -> int:
        total = 0
        for account in range(ACCOUNTS):
            total += (await tx.get((space, account))).value[0]
            await asyncio.sleep(0.001)
        return total

    async def audits() -> None:
        for _ in range(3):
            totals.append(await kv.transaction(audit, attempts=1_000, timeout=60_000))

    moves = (kv.transaction(transfer.run, attempts=1_000, timeout=60_000) for transfer in transfers.values())
    await asyncio.gather(*moves, audits(), audits())
    assert totals == [ACCOUNTS * EACH] * 6

    # who read what whom had left: every version of an account was the basis of one transfer at most
    entries = await kv.list((space,)).page()
    final = {entry.key[1]: tuple(entry.value) for entry in entries}
    assert sum(balance for balance, _ in final.values()) == ACCOUNTS * EACH
    before: dict[int, set[int]] = {number: set() for number in transfers}
    for account in range(ACCOUNTS):
        chain = {transfer.read[account][1]: transfer for transfer in transfers.values() if account in transfer.read}
        assert len(chain) == sum(account in transfer.accounts for transfer in transfers.values())
        last, balance = 0, EACH
        while last in chain:
            transfer = chain.pop(last)
            assert transfer.read[account] == (balance, last)
            if last:
                before[transfer.number].add(last)
            last, balance = transfer.number, transfer.left(account)
        assert not chain and final[account] == (balance, last)

    # and no circle: an order exists
    done: set[int] = set()
    while len(done) < TRANSFERS:
        ready = {number for number, earlier in before.items() if number not in done and earlier <= done}
        assert ready, "transfers that each read what the other had left"
        done |= ready
