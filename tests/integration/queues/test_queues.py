"""Named queues on every kind of database."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kvorum
from kvorum import Outgoing
from kvorum.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageGone,
    QueueFull,
    RemoteError,
    RequestTimeout,
    StaleLease,
)
from tests.pace import BUSY, Pace

PATIENCE = 60.0


async def next_of(queue: kvorum.Queue, **options: Any) -> kvorum.Message:
    """The next message; the receiver is closed, the message stays in hand."""
    async with queue.receive(prefetch=0, **options) as receiver:
        async with asyncio.timeout(PATIENCE):
            message = await receiver.next()
    assert message is not None
    return message


# ---- sending, receiving, settling


async def test_a_message_arrives_with_all_that_it_brought(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    sent = await queue.send({"to": "Ella"}, group="g", headers={"k": "v"})
    message = await next_of(queue)
    assert (message.value, message.id, message.queue, message.attempt) == ({"to": "Ella"}, sent.id, name, 1)
    assert (message.group, dict(message.headers), message.origin, message.tick) == ("g", {"k": "v"}, None, None)
    assert abs(datetime.now(UTC) - message.enqueued_at) < timedelta(minutes=1)
    await message.ack()
    with pytest.raises(StaleLease):
        await message.ack()
    assert (await queue.stats()).done == 1


async def test_p04_a_queue_can_be_looked_at_without_taking_anything(kv: kvorum.Kv, name: str) -> None:
    a, b = kv.queue(name + "a"), kv.queue(name + "b")
    for number in range(3):
        await a.send(number)
    for number in range(2):
        await b.send(number)
    assert [info.value for info in await a.peek()] == [0, 1, 2]
    assert [info.state for info in await b.peek(kind="ready")] == ["ready", "ready"]
    assert ((await a.stats()).ready, (await b.stats()).ready) == (3, 2)
    assert [(one.name[-1], one.messages) for one in await kv.queues(name)] == [("a", 3), ("b", 2)]
    message = await next_of(a)
    stats = await a.stats()
    assert (stats.messages, stats.ready, stats.leased) == (3, 2, 1)
    (leased,) = await a.peek(kind="leased")
    assert (leased.id, leased.attempt) == (message.id, 1) and leased.holder
    assert await a.find(message.id) == leased
    await message.ack()
    assert await a.find(message.id) is None


async def test_a_batch_is_sent_and_received(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    sent = await queue.send_batch([*range(9), Outgoing(9, headers={"last": "yes"})])
    assert len({one.id for one in sent}) == 10 and len({one.versionstamp for one in sent}) == 1
    batch = await queue.receive_batch(max=10, wait=timedelta(seconds=15))
    assert batch.values == list(range(10)) and batch[9].headers == {"last": "yes"}
    await batch[0].retry(delay=0)
    await batch.ack_all()
    again = await queue.receive_batch(max=1, wait=timedelta(seconds=15))
    assert again.values == [0] and again[0].attempt == 2
    await again.ack_all()
    assert (await queue.stats()).messages == 0
    assert len(await queue.receive_batch(max=1, wait=50)) == 0


async def test_a_failure_comes_again_and_then_dies_with_its_history(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.define(max_attempts=2, backoff=[0])
    sent = await queue.send("job")
    await (await next_of(queue)).retry(reason="first")
    message = await next_of(queue)
    assert message.attempt == 2
    await message.retry(reason="second")
    (letter,) = [letter async for letter in queue.dead]
    assert (letter.id, letter.state, letter.value, letter.attempt) == (sent.id, "dead", "job", 2)
    assert [(one.attempt, one.kind, one.reason) for one in letter.failures] == [
        (1, "failed", "first"),
        (2, "failed", "second"),
    ]
    assert await queue.dead.requeue([sent.id]) == 1
    assert await queue.dead.peek() == []
    fresh = await next_of(queue)
    assert fresh.attempt == 1 and fresh.id != sent.id
    await fresh.reject(reason="for good")
    assert await queue.dead.requeue(where=lambda info: info.value != "job") == 0
    assert await queue.dead.purge() == 1


async def test_p71_a_queue_and_its_dead_letter_queue_in_one_process(kv: kvorum.Kv, name: str) -> None:
    queue, dead = kv.queue(name), kv.queue(name + "dead")
    await queue.define(max_attempts=1, dead_letters=dead)
    seen: Counter[tuple[str, int]] = Counter()
    origins: list[kvorum.DeadLetterInfo | None] = []
    enough, stop = asyncio.Event(), asyncio.Event()

    def work(message: kvorum.Message) -> None:
        seen["work", message.value] += 1
        if message.value % 2:
            raise ValueError("odd")

    def bury(message: kvorum.Message) -> None:
        seen["dead", message.value] += 1
        origins.append(message.origin)
        if sum(seen.values()) == 15:
            enough.set()

    listening = asyncio.gather(queue.listen(work, stop=stop), dead.listen(bury, stop=stop))
    await queue.send_batch(list(range(10)))
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
    stop.set()
    await listening
    assert seen == {**{("work", number): 1 for number in range(10)}, **{("dead", n): 1 for n in range(1, 10, 2)}}
    assert all(origin is not None and origin.queue == name and origin.attempts == 1 for origin in origins)
    assert all(origin is not None and origin.failures[0].reason == "ValueError: odd" for origin in origins)


async def test_dead_letters_go_back_to_their_origin(kv: kvorum.Kv, name: str) -> None:
    queue, dead = kv.queue(name), kv.queue(name + "dead")
    await queue.define(dead_letters=name + "dead")
    await queue.send("job")
    await (await next_of(queue)).reject(reason="no")
    assert (await dead.stats()).messages == 1
    assert await dead.requeue_to_origin() == 1
    message = await next_of(queue)
    assert message.value == "job" and message.attempt == 1
    await message.ack()


async def test_the_ack_is_part_of_the_commit(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.send("job")
    message = await next_of(queue)
    failed = await message.atomic().check((name,), exists=True).set((name, 1), 1).ack().commit()
    assert not failed.ok and not message.settled
    done = await message.atomic().set((name, 1), 1).send(name + "next", "then").ack().commit()
    assert done.ok and message.acknowledged and len(done.messages) == 1
    with pytest.raises(StaleLease):
        await message.atomic().set((name, 1), 2).ack().commit()
    assert (await kv.get((name, 1))).value == 1
    (info,) = await kv.queue(name + "next").peek()
    assert info.id == done.messages[0].id


async def test_p80_a_lost_lease_has_one_effect(kv: kvorum.Kv, name: str) -> None:
    """Twenty jobs: one holder sleeps through its lease, another gets the job, and both try to have an effect."""
    queue = kv.queue(name)
    await queue.define(lease=500)
    await queue.send_batch(list(range(20)))
    late = await queue.receive_batch(max=20, wait=timedelta(seconds=15), renew=False)
    assert len(late) == 20
    second: list[kvorum.Message] = []
    async with asyncio.timeout(PATIENCE):
        while len(second) < 20:
            second += await queue.receive_batch(max=20 - len(second), wait=timedelta(seconds=2))
    assert {message.attempt for message in second} == {2}

    async def finish(message: kvorum.Message) -> bool:
        try:
            done = await message.atomic().sum((name, message.value), 1).ack().commit()
        except StaleLease:
            return False
        return done.ok

    outcomes = await asyncio.gather(*(finish(message) for message in (*late, *second)))
    assert outcomes == [False] * 20 + [True] * 20
    effects = [(await kv.get((name, number))).value for number in range(20)]
    assert effects == [1] * 20


async def test_extending_keeps_a_message(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.define(lease=500)
    await queue.send("job")
    message = await next_of(queue, renew=False)
    await message.extend(timedelta(seconds=10))
    assert len(await queue.receive_batch(max=1, wait=1_800)) == 0
    await message.ack()


async def test_at_most_once_is_gone_when_it_comes(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.send_batch(["a", "b"])
    values = []
    async with queue.receive(at_most_once=True) as receiver:
        async with asyncio.timeout(PATIENCE):
            async for message in receiver:
                values.append(message.value)
                stats = await queue.stats()
                assert stats.messages == 2 - len(values) and stats.leased == 0
                if len(values) == 2:
                    break
    assert values == ["a", "b"]


async def test_a_loop_that_is_left_gives_back_what_it_did_not_hand_out(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.send_batch(list(range(5)))
    async with queue.receive(prefetch=4) as receiver:
        async with asyncio.timeout(PATIENCE):
            message = await receiver.next()
            while (await queue.stats()).leased < 5:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.01)
    assert message is not None
    await message.ack()
    batch = await queue.receive_batch(max=4, wait=timedelta(seconds=15))
    assert sorted(batch.values) == [1, 2, 3, 4] and {one.attempt for one in batch} == {1}
    await batch.ack_all()


async def test_groups_keep_their_order_over_failures(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.define(backoff=[10])
    for number in range(6):
        await queue.send(number, group="ab"[number % 2])
    order: dict[str | None, list[int]] = {"a": [], "b": []}
    running: Counter[str | None] = Counter()
    stop = asyncio.Event()

    async def handle(message: kvorum.Message) -> None:
        running[message.group] += 1
        assert running[message.group] == 1
        await asyncio.sleep(0.01)
        running[message.group] -= 1
        if message.attempt == 1:
            raise ValueError
        order[message.group].append(message.value)
        if sum(map(len, order.values())) == 6:
            stop.set()

    async with asyncio.timeout(PATIENCE):
        await queue.listen(handle, stop=stop)
    assert order == {"a": [0, 2, 4], "b": [1, 3, 5]}


# ---- ids


async def test_p63_an_id_until_done_may_be_used_again_after_the_ack(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    first = await queue.send("a", dedup_id="x")
    second = await queue.send("b", dedup_id="x")
    assert not first.duplicate and second.duplicate and second.id == first.id
    await (await next_of(queue)).ack()
    third = await queue.send("c", dedup_id="x")
    assert not third.duplicate and third.id != first.id
    assert (await queue.stats()).duplicates == 1


async def test_p63_an_id_with_a_window_is_refused_until_it_ends(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.send("a", dedup_id="x", dedup_window=int(1_000 * BUSY))
    await (await next_of(queue)).ack()
    assert (await queue.send("b", dedup_id="x", dedup_window=int(1_000 * BUSY))).duplicate
    async with asyncio.timeout(PATIENCE):
        while (await queue.send("c", dedup_id="x", dedup_window=int(1_000 * BUSY))).duplicate:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.05)


async def test_cancelling_and_rescheduling_by_id(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    late = await queue.send("late", delay=timedelta(days=300))
    gone = await queue.send("gone", delay=timedelta(days=300))
    assert (await queue.stats()).scheduled == 2
    assert await queue.cancel(gone.id) and not await queue.cancel(gone.id)
    assert await queue.reschedule(late.id, delay=0)
    message = await next_of(queue)
    assert message.value == "late"
    assert not await queue.reschedule(late.id, delay=0)
    with pytest.raises(MessageGone):
        await kv.atomic().set((name,), 1).cancel(late.id).commit()
    assert not await kv.get((name,))
    await message.ack()


async def test_p75_a_delay_beyond_the_lease_is_delivered_once(
    kv: kvorum.Kv, name: str, start_pace: Callable[[], Pace]
) -> None:
    """The case has 30 s and 2 s; the proportions are kept."""
    queue = kv.queue(name)
    await queue.define(lease=500)
    seen: list[tuple[float, float]] = []
    stop, came = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(_: kvorum.Message) -> None:
        seen.append((loop.time() - begun, pace.seconds()))
        came.set()

    listening = [asyncio.ensure_future(queue.listen(take, stop=stop)) for _ in range(3)]
    begun, pace = loop.time(), start_pace()
    await queue.send("job", delay=timedelta(seconds=2))
    async with asyncio.timeout(PATIENCE):
        await came.wait()
    await asyncio.sleep(1.2)  # two leases: time in which a second delivery would come
    stop.set()
    await asyncio.gather(*listening)
    ((waited, paced),) = seen
    assert waited >= 2.0 and paced < 3.0
    assert (await queue.stats()).delivered == 1


# ---- bounds


async def test_a_full_queue_refuses_and_takes_again(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.define(max_backlog=2)
    await queue.send_batch([1, 2])
    with pytest.raises(QueueFull, match="2"):
        await kv.atomic().set((name,), 1).send(name, 3).commit()
    assert not await kv.get((name,))
    await (await next_of(queue)).ack()
    await queue.send(3)


async def test_pausing_stops_deliveries_and_purging_empties(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.pause()
    await queue.send_batch([1, 2])
    assert len(await queue.receive_batch(max=1, wait=300)) == 0
    assert (await queue.stats()).paused
    await queue.resume()
    message = await next_of(queue)
    assert await queue.purge() == 1
    await message.ack()
    assert (await queue.stats()).messages == 0
    await queue.define(lease=700)
    assert await queue.policy() == kvorum.QueuePolicy(lease=timedelta(milliseconds=700))
    await queue.remove()
    assert await queue.policy() is None
    assert [one.name for one in await kv.queues(name)] == []


@pytest.mark.parametrize(
    ("options", "text"),
    [({"lease": 1}, "MIN_LEASE"), ({"backoff": [1] * 65}, "MAX_BACKOFF_STEPS")],
    ids=["lease", "backoff"],
)
async def test_p05_a_wrong_policy_is_refused_with_its_limit(kv: kvorum.Kv, name: str, options: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await kv.queue(name).define(**options)
    with pytest.raises(LimitExceeded, match=r"backoff_schedule\[6\]: 3,600,001 is above the limit of 3,600,000"):
        await kv.queue(name).send(1, backoff_schedule=[1, 1, 1, 1, 1, 1, 3_600_001])
    assert await kv.queue(name).policy() is None


# ---- topics, requests, schedules


async def test_a_topic_copies_to_its_subscriptions(kv: kvorum.Kv, name: str) -> None:
    docs = kv.topic(name)
    await docs.define(retention=timedelta(hours=1))
    await docs.send("early")
    assert await docs.subscribe(name + "a", since=timedelta(hours=1)) == 1
    assert await docs.subscribe(kv.queue(name + "b")) == 0
    await kv.atomic().send_topic(name, "late").set((name,), 1).commit()
    assert (await kv.queue(name + "a").receive_batch(max=2, wait=15_000)).values == ["early", "late"]
    assert (await kv.queue(name + "b").receive_batch(max=1, wait=15_000)).values == ["late"]
    assert sorted(await docs.subscriptions()) == [name + "a", name + "b"]
    await docs.unsubscribe(name + "b")
    info = await docs.info()
    assert info is not None and info.queues == (name + "a",) and info.retained == 2
    await docs.remove()
    assert await docs.info() is None


async def test_requests_are_answered(kv: kvorum.Kv, name: str) -> None:
    queue, stop = kv.queue(name), asyncio.Event()

    async def add(message: kvorum.Message) -> Any:
        if message.value == "wrong":
            await message.atomic().reply_error("no numbers").ack().commit()
            return None
        return sum(message.value)

    serving = asyncio.ensure_future(queue.serve(add, stop=stop))
    answers = await asyncio.gather(*(kv.request(name, [number, 1], timeout=15_000) for number in range(20)))
    assert answers == [number + 1 for number in range(20)]
    with pytest.raises(RemoteError, match="no numbers"):
        await kv.request(name, "wrong", timeout=15_000)
    stop.set()
    await serving
    with pytest.raises(RequestTimeout):
        await kv.request(name, [1], timeout=200)
    assert not any(one.name.startswith("\0") for one in await kv.queues())


async def test_a_recurring_message_comes_at_its_tick(kv: kvorum.Kv, name: str) -> None:
    await kv.schedule(name, "* * * * * *", queue=name, value="tick")
    first = await next_of(kv.queue(name))
    assert first.tick is not None and first.tick.microsecond == 0
    await first.ack()
    (schedule,) = [one for one in await kv.schedules() if one.name == name]
    assert (schedule.cron, schedule.queue, schedule.value) == ("* * * * * *", name, "tick")
    await kv.unschedule(name)
    assert [one for one in await kv.schedules() if one.name == name] == []
    with pytest.raises(InvalidArgument):
        await kv.schedule(name, "61 * * * *", queue=name)
    with pytest.raises(InvalidArgument):
        await kv.schedule(name, "0 6 * * *", queue=name, time_zone="Europe/Nowhere")
