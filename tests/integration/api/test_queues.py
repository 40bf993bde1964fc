"""enqueue and listen_queue, on every kind of database and with both clients."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import kvorum
import kvorum.sync
from kvorum.errors import InvalidArgument, LimitExceeded, StaleLease
from tests.integration.api.conftest import Open
from tests.pace import BUSY

PATIENCE = 60.0
OWN_WAIT = 5.0
"""Seconds that closing takes less than if it waited for its own handler."""


class Desk:
    """Collects what handlers get, and lets a test wait for it."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._news = asyncio.Event()

    def take(self, value: Any) -> None:
        self.values.append(value)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def count(self, number: int) -> None:
        await self.until(lambda: len(self.values) >= number)


@contextlib.asynccontextmanager
async def listening(kv: kvorum.Kv, handler: Callable[[Any], object], **options: Any) -> AsyncIterator[None]:
    """A listener that ends, in order, with its client."""
    task = asyncio.ensure_future(kv.listen_queue(handler, **options))
    yield
    await asyncio.wait_for(kv.close(), PATIENCE)
    await asyncio.wait_for(task, PATIENCE)


async def test_messages_of_all_kinds_arrive_once(kv: kvorum.Kv, space: str) -> None:
    messages = [None, 1, "text", b"bytes", {"a": [1, 2]}, [True]]
    desk = Desk()
    for message in messages[:3]:
        assert (await kv.enqueue(message, queue=space)).ok
    async with listening(kv, desk.take, queue=space):
        for message in messages[3:]:
            await kv.enqueue(message, queue=space)
        await desk.count(len(messages))
    assert sorted(map(repr, desk.values)) == sorted(map(repr, messages))


async def test_a_message_is_part_of_its_commit(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()
    async with listening(kv, desk.take, queue=space):
        failed = await kv.atomic().check((space,), exists=True).enqueue("never", queue=space).commit()
        assert not failed.ok
        assert (await kv.atomic().check((space,), None).set((space,), 1).enqueue("sold", queue=space).commit()).ok
        await desk.count(1)
    assert desk.values == ["sold"]


async def test_queues_do_not_mix(kv: kvorum.Kv, space: str) -> None:
    desk, other = Desk(), Desk()
    second = asyncio.ensure_future(kv.listen_queue(other.take, queue=space + "!"))
    async with listening(kv, desk.take, queue=space):
        await kv.atomic().enqueue("a", queue=space).enqueue("b", queue=space + "!").commit()
        await desk.count(1)
        await other.count(1)
    await asyncio.wait_for(second, PATIENCE)
    assert (desk.values, other.values) == (["a"], ["b"])


async def test_a_handler_that_raises_gets_the_message_again_by_its_schedule(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()

    async def handler(message: kvorum.Message) -> None:
        desk.take(message)
        if message.attempt < 3:
            raise ValueError("not yet")

    async with listening(kv, handler, queue=space, with_message=True):
        await kv.enqueue("job", queue=space, backoff_schedule=[10, 20, 30])
        await desk.count(3)
    assert [(message.value, message.attempt) for message in desk.values] == [("job", 1), ("job", 2), ("job", 3)]
    assert len({message.id for message in desk.values}) == 1
    assert all(message.queue == space for message in desk.values)
    assert abs((datetime.now(UTC) - desk.values[0].enqueued_at).total_seconds()) < 60


async def test_after_the_last_failure_the_message_is_kept_where_it_was_asked_to_be(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()
    dead, dead_too = (space, "dead"), (space, "dead too")

    async def handler(value: Any) -> None:
        desk.take(value)
        raise ValueError("never")

    watch = kv.watch([dead, dead_too])
    await anext(watch)
    task = asyncio.ensure_future(kv.listen_queue(handler, queue=space))
    await kv.enqueue({"order": 7}, queue=space, backoff_schedule=[10], keys_if_undelivered=[dead, dead_too])
    entries = await asyncio.wait_for(anext(watch), PATIENCE)
    assert [entry.value for entry in entries] == [{"order": 7}, {"order": 7}]
    assert len(desk.values) == 2
    await watch.aclose()
    await kv.close()
    await task


async def test_no_retry_with_an_empty_schedule(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()

    async def handler(value: Any) -> None:
        desk.take(value)
        raise ValueError("never")

    watch = kv.watch([(space, "dead")])
    await anext(watch)
    async with listening(kv, handler, queue=space):
        await kv.enqueue("once", queue=space, backoff_schedule=[], keys_if_undelivered=[(space, "dead")])
        await asyncio.wait_for(anext(watch), PATIENCE)
        await watch.aclose()
    assert desk.values == ["once"]


async def test_a_delayed_message_comes_later_than_one_without_delay(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()
    loop = asyncio.get_running_loop()
    async with listening(kv, desk.take, queue=space):
        begun = loop.time()
        await kv.enqueue("later", queue=space, delay=int(400 * BUSY))
        await kv.enqueue("now", queue=space)
        await desk.count(2)
        waited = loop.time() - begun
    assert desk.values == ["now", "later"]
    assert waited >= int(400 * BUSY) / 1_000


async def test_several_listeners_share_the_messages(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()
    second = asyncio.ensure_future(kv.listen_queue(desk.take, queue=space, concurrency=2))
    async with listening(kv, desk.take, queue=space, concurrency=2):
        for begin in range(0, 100, 10):
            operation = kv.atomic()
            for number in range(begin, begin + 10):
                operation.enqueue(number, queue=space)
            await operation.commit()
        await desk.count(100)
    await second
    assert Counter(desk.values) == Counter(range(100))


async def test_no_more_handlers_run_at_a_time_than_allowed(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()
    running = most = 0
    full = asyncio.Event()

    async def handler(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await asyncio.wait_for(full.wait(), PATIENCE)
        await asyncio.sleep(0)
        running -= 1
        desk.take(value)

    operation = kv.atomic()
    for number in range(20):
        operation.enqueue(number, queue=space)
    await operation.commit()
    async with listening(kv, handler, queue=space, concurrency=3):
        await desk.count(20)
    assert most == 3


async def test_a_message_can_be_acknowledged_in_the_commit_of_its_effects(kv: kvorum.Kv, space: str) -> None:
    desk = Desk()

    async def handler(message: kvorum.Message) -> None:
        done = await kv.atomic().sum((space, "effects"), 1).ack(message).commit()
        assert done.ok and message.acknowledged
        with pytest.raises(StaleLease):
            await kv.atomic().sum((space, "effects"), 1).ack(message).commit()
        desk.take(message.value)
        raise ValueError("after the acknowledgement: changes nothing")

    watch = kv.watch([(space, "dead")])
    await anext(watch)
    task = asyncio.ensure_future(kv.listen_queue(handler, queue=space, with_message=True))
    await kv.enqueue("job", queue=space, backoff_schedule=[0], keys_if_undelivered=[(space, "dead")])
    await desk.count(1)
    await kv.enqueue("another", queue=space, backoff_schedule=[0], keys_if_undelivered=[(space, "dead")])
    await desk.count(2)
    assert (await kv.get((space, "effects"))).value == 2
    assert not (await kv.get((space, "dead"))).exists
    await watch.aclose()
    await kv.close()
    await task
    assert desk.values == ["job", "another"]


@pytest.mark.parametrize("target", ["folder", "cluster"], indirect=True)  # of :memory: nothing is left to be looked at
async def test_closing_lets_running_handlers_finish_and_returns_the_rest(open_client: Open, space: str) -> None:
    kv = await open_client()
    entered, leave = asyncio.Event(), asyncio.Event()
    finished = Desk()

    async def slow(value: int) -> None:
        entered.set()
        await leave.wait()
        finished.take(value)

    task = asyncio.ensure_future(kv.listen_queue(slow, queue=space, concurrency=1, prefetch=5))
    operation = kv.atomic()
    for number in range(5):
        operation.enqueue(number, queue=space, backoff_schedule=[])
    await operation.commit()
    await asyncio.wait_for(entered.wait(), PATIENCE)
    closing = asyncio.ensure_future(kv.close())
    await asyncio.sleep(0)
    leave.set()
    await asyncio.wait_for(closing, PATIENCE)
    await asyncio.wait_for(task, PATIENCE)
    assert finished.values == [0]

    again = await open_client()
    desk = Desk()
    async with listening(again, desk.take, queue=space, with_message=True):
        await desk.count(4)
    # First attempts, still: they were never begun.
    assert sorted((message.value, message.attempt) for message in desk.values) == [(n, 1) for n in range(1, 5)]


async def test_a_handler_may_close_the_client(target: str, space: str) -> None:
    async with kvorum.open_kv(target) as kv:
        await kv.enqueue("the end", queue=space)
        async with asyncio.timeout(OWN_WAIT):  # without waiting for itself, that is
            await kv.listen_queue(lambda _: kv.close(), queue=space)
    assert kv.closed


def test_a_handler_may_close_the_blocking_client(target: str, space: str) -> None:
    with kvorum.sync.open_kv(target) as kv:
        kv.enqueue("the end", queue=space)
        begun = time.monotonic()
        kv.listen_queue(lambda _: kv.close(), queue=space)
        assert time.monotonic() - begun < OWN_WAIT
    assert kv.closed


# ---- limits


async def test_limits_name_what_was_too_much_and_where(kv: kvorum.Kv, space: str) -> None:
    with pytest.raises(LimitExceeded) as error:
        await kv.enqueue(1, queue=space, backoff_schedule=[1_000] * 65)
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_BACKOFF_STEPS", 64, 65)
    with pytest.raises(LimitExceeded, match=r"backoff_schedule\[1\]: 3,600,001 is above the limit of 3,600,000"):
        await kv.enqueue(1, queue=space, backoff_schedule=[0, 3_600_001])
    with pytest.raises(InvalidArgument, match=r"backoff_schedule\[2\] must not be negative: received -1 ms"):
        await kv.enqueue(1, queue=space, backoff_schedule=[0, 0, -1])
    with pytest.raises(InvalidArgument, match="delay must not be negative"):
        await kv.enqueue(1, queue=space, delay=-1)
    with pytest.raises(LimitExceeded, match="MAX_ENQUEUE_DELAY"):
        await kv.enqueue(1, queue=space, delay=367 * 86_400_000)
    with pytest.raises(LimitExceeded, match="MAX_UNDELIVERED_KEYS"):
        await kv.enqueue(1, queue=space, keys_if_undelivered=[(space,)] * 11)
    with pytest.raises(LimitExceeded, match="MAX_QUEUE_NAME_SIZE"):
        await kv.enqueue(1, queue="é" * 129)
    with pytest.raises(LimitExceeded, match="MAX_VALUE_SIZE"):
        await kv.enqueue(b"x" * 65_536, queue=space)
    with pytest.raises(InvalidArgument, match="concurrency must be an int of at least 1"):
        await kv.listen_queue(print, queue=space, concurrency=0)
    with pytest.raises(LimitExceeded, match="MAX_CREDITS"):
        await kv.listen_queue(print, queue=space, concurrency=10, prefetch=991)


async def test_seven_steps_of_backoff_are_accepted(kv: kvorum.Kv, space: str) -> None:
    """P05 · backoff with 6 entries: bare "Invalid backoffSchedule" → accepted."""
    steps = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000]
    assert (await kv.enqueue(1, queue=space, backoff_schedule=steps)).ok
