"""Mistakes of programs that are told clearly: a forgotten commit, the wrong event loop, a sum that cannot be."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import kvorum
from kvorum import errors


@pytest.fixture
async def kv() -> AsyncIterator[kvorum.Kv]:
    async with kvorum.open_kv(":memory:") as kv:
        yield kv


# ---- a forgotten commit


def forget(kv: kvorum.Kv, *, broken: bool = False, empty: bool = False) -> None:
    operation = kv.atomic()
    if not empty:
        operation.set(("k",), 1)
    if broken:
        with pytest.raises(errors.InvalidKey):
            operation.delete((None,))  # type: ignore[arg-type]


async def test_an_operation_that_is_never_committed_warns(kv: kvorum.Kv) -> None:
    with pytest.warns(ResourceWarning, match="never committed: nothing of it happened"):
        forget(kv)
        gc.collect()
    assert (await kv.get(("k",))).versionstamp is None


async def test_one_that_was_committed_or_is_empty_or_was_refused_does_not(kv: kvorum.Kv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await kv.atomic().set(("k",), 1).commit()
        forget(kv, empty=True)
        forget(kv, broken=True)
        operation = kv.atomic()
        for number in range(1_001):
            operation.set(("k", number), 1)
        with pytest.raises(errors.LimitExceeded):
            await operation.commit()
        del operation
        gc.collect()


# ---- sums


async def test_errors_of_sums_name_the_key(kv: kvorum.Kv) -> None:
    await kv.set(("users", "ada"), "text")
    with pytest.raises(errors.TypeMismatch, match=r"^\('users', 'ada'\): "):
        await kv.atomic().set(("other",), 1).sum(("users", "ada"), 1).commit()
    with pytest.raises(errors.OutOfRange, match=r"^\('count', 7\): "):
        await kv.atomic().sum(("count", 7), -1).commit()
    operation = kv.atomic()
    for number in range(5):
        operation.sum(("n", number), 1)
    with pytest.raises(errors.OutOfRange, match=r"^\('n', 0\) or \('n', 1\) or \('n', 2\) … \(6 keys\): "):
        await operation.sum(("n", 5), -1).commit()
    assert (await kv.get(("n", 0))).versionstamp is None


def test_errors_of_sums_name_the_key_in_the_blocking_client() -> None:
    from kvorum import sync

    with sync.open_kv(":memory:") as kv, pytest.raises(errors.OutOfRange, match=r"^\('count',\): "):
        kv.atomic().sum(("count",), -1).commit()


# ---- numbers that Python itself refuses to print


HUGE = 10**6_000


@pytest.mark.parametrize(
    "call",
    [
        lambda kv: kvorum.KvU64(HUGE),
        lambda kv: kv.get(HUGE),
        lambda kv: kv.get((HUGE,)),
        lambda kv: kv.get(("a", [HUGE])),
        lambda kv: kv.get(("a",), timeout=HUGE),
        lambda kv: kv.get(("a",), consistency=HUGE),
        lambda kv: kv.get(("a",), consistency="bounded", max_age=-HUGE),
        lambda kv: kv.set(("a",), 1, expire_in=HUGE),
        lambda kv: kv.set(("a",), 1, expire_in=-HUGE),
        lambda kv: kv.set(("a",), {HUGE: object()}),
        lambda kv: kv.enqueue(1, backoff_schedule=[HUGE]),
        lambda kv: kv.list((), limit=-HUGE),
        lambda kv: kv.list((), batch_size=HUGE),
        lambda kv: kv.list((), cursor=HUGE),
        lambda kv: kv.atomic().check(("a",), HUGE),
        lambda kv: kv.listen_queue(print, concurrency=HUGE),
    ],
)
async def test_a_huge_number_is_refused_like_any_other(kv: kvorum.Kv, call: Callable[[kvorum.Kv], object]) -> None:
    with pytest.raises(errors.InvalidArgument) as error:
        outcome = call(kv)
        if isinstance(outcome, Awaitable):
            await outcome
    assert len(str(error.value)) < 200
    assert "set_int_max_str_digits" not in str(error.value)


# ---- the wrong loop


def test_a_client_of_another_event_loop_is_refused_clearly(tmp_path: Path) -> None:
    async def open_it() -> kvorum.Kv:
        return await kvorum.open_kv(tmp_path / "data.kv")

    async def use(kv: kvorum.Kv) -> None:
        async def first() -> None:
            async for _ in kv.watch([("k",)]):
                return

        async with asyncio.timeout(30):
            for call in (kv.get(("k",)), kv.set(("k",), 1), kv.status(), first(), kv.listen_queue(print)):
                with pytest.raises(errors.InvalidArgument, match="belongs to the event loop that opened it"):
                    await call

    with asyncio.Runner() as mine:
        kv = mine.run(open_it())
        with asyncio.Runner() as other:
            other.run(use(kv))
        mine.run(kv.set(("k",), 2))
        mine.run(kv.close())
