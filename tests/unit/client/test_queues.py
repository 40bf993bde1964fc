"""Named queues on a fake backend: what goes over the seam, and what callers get."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import kvorum
from kvorum import Kv, Outgoing, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import (
    InvalidArgument,
    InvalidValue,
    LimitExceeded,
    MessageGone,
    QueueFull,
)
from kvorum.queues import settling
from kvorum.queues.plain import join_plain, plain_head
from kvorum.values import decode_payload, encode_payload
from tests.unit.client.fake_backend import FakeBackend, refused, stamp
from tests.unit.client.queue_steps import ACK, REJECT, RETRY, RETURN, opened
from tests.unit.client.test_listener import until


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_FIRST_PAUSE", 0.0)


async def test_names_that_begin_with_nul_are_reserved(kv: Kv) -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        kv.queue("\0reply/x")
    with pytest.raises(InvalidArgument, match="reserved"):
        await kv.enqueue(1, queue="\0x")


# ---- sending


async def test_a_message_goes_out_with_all_its_options(kv: Kv, backend: FakeBackend) -> None:
    sent = await kv.queue("mail").send(
        {"to": "Ella"},
        delay=timedelta(seconds=2),
        dedup_id="ä",
        dedup_window=timedelta(hours=1),
        group="user-7",
        headers={"k": "v"},
        ttl=60_000,
        backoff_schedule=[100, 200],
        keys_if_undelivered=[("lost", 1)],
    )
    (message,) = backend.writes[0].enqueues
    assert (message.queue, message.delay_ms, message.dedup_id, message.dedup_window_ms) == (
        "mail",
        2_000,
        "ä".encode(),
        3_600_000,
    )
    assert (message.group, message.ttl_ms, list(message.backoff.delays_ms)) == ("user-7", 60_000, [100, 200])
    assert dict(pb.Headers.FromString(message.headers).fields) == {"k": "v"}
    assert len(message.keys_if_undelivered) == 1
    assert decode_payload(message.payload) == {"to": "Ella"}
    assert sent == (stamp(1).hex() + "0000", False, stamp(1).hex())


async def test_a_message_without_options_says_nothing_more(kv: Kv, backend: FakeBackend) -> None:
    await kv.queue("mail").send(1)
    assert backend.writes[0].enqueues[0] == pb.Enqueue(queue="mail", payload=encode_payload(1))


@pytest.mark.parametrize("queue", ["", "m", "é" * 128])
@pytest.mark.parametrize("value", [None, b"", b"x" * 110, "ü" * 60, "日" * 5_000, b"x" * 65_500])
def test_bytes_that_are_joined_by_hand_are_those_of_the_protocol(queue: str, value: object) -> None:
    payload = encode_payload(value)
    whole = pb.AtomicWrite(enqueues=[pb.Enqueue(queue=queue, payload=payload)])
    assert join_plain(plain_head(queue), payload) == whole.SerializeToString()


async def test_a_duplicate_has_the_id_of_the_earlier_message(kv: Kv, backend: FakeBackend) -> None:
    result = pb.WriteResult(outcome=pb.OUTCOME_DONE, duplicates=[pb.Duplicate(enqueue=1, message_id=b"x" * 12)])
    backend.answers.append(kvorum.backend.WriteOutcome(result, stamp(9)))
    sent = await kv.queue("mail").send_batch([1, Outgoing(2, dedup_id="a"), 3])
    assert [one.duplicate for one in sent] == [False, True, False]
    assert [one.id for one in sent] == [stamp(9).hex() + "0000", (b"x" * 12).hex(), stamp(9).hex() + "0002"]


async def test_a_batch_is_one_commit_and_options_of_one_message_win(kv: Kv, backend: FakeBackend) -> None:
    await kv.queue("mail").send_batch([1, Outgoing(2, group="a", delay=5)], group="b", ttl=7)
    (write,) = backend.writes
    assert [(one.group, one.delay_ms, one.ttl_ms) for one in write.enqueues] == [("b", 0, 7), ("a", 5, 7)]
    assert await kv.queue("mail").send_batch([]) == []
    assert len(backend.writes) == 1


@pytest.mark.parametrize(
    ("messages", "kind", "text"),
    [
        ([0] * 1_001, LimitExceeded, r"1,001 is above the limit of 1,000 \(MAX_BATCH\)"),
        ([0, Outgoing(1, group="x" * 129)], LimitExceeded, r"messages\[1\]: group: 129 is above .* \(MAX_GROUP_SIZE\)"),
        ([0, object()], InvalidValue, r"messages\[1\]: payload"),
        ([0, Outgoing(1, dedup_window=5)], InvalidArgument, r"messages\[1\]: a dedup_window needs a dedup_id"),
        ("text", InvalidArgument, "messages must be a list"),
        (["x" * 60_000] * 20, LimitExceeded, "MAX_TOTAL_WRITE_SIZE"),
    ],
    ids=["many", "group", "value", "window", "text", "large"],
)
async def test_p05_what_is_wrong_with_a_batch_is_told_with_its_index(
    kv: Kv, backend: FakeBackend, messages: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await kv.queue("mail").send_batch(messages)
    assert backend.writes == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": limits.MAX_ENQUEUE_DELAY + 1}, r"delay: .* \(MAX_ENQUEUE_DELAY\)"),
        ({"delay": -1}, "delay must not be negative: received -1 ms"),
        ({"dedup_id": ""}, "dedup_id must not be empty"),
        ({"dedup_id": 5}, "dedup_id must be a str, got int"),
        ({"dedup_id": "x" * 129}, "MAX_DEDUP_ID_SIZE"),
        ({"dedup_id": "x", "dedup_window": 0}, "dedup_window must be above zero"),
        ({"group": "\ud800"}, "group cannot have lone surrogates"),
        ({"headers": {"a": "x" * 5_000}}, "MAX_HEADERS_SIZE"),
        ({"headers": {"\0a": "x"}}, "reserved"),
        ({"headers": {"a": 1}}, r"headers\['a'\] must be a str, got int"),
        ({"headers": [1]}, "headers must be a mapping"),
        ({"ttl": 0}, "ttl must be above zero"),
        ({"keys_if_undelivered": [("a",), 5]}, r"keys_if_undelivered\[1\]: a key is a tuple of parts, got int: 5"),
        ({"backoff_schedule": [1] * 65}, r"backoff_schedule: 65 is above the limit of 64 \(MAX_BACKOFF_STEPS\)"),
        (
            {"backoff_schedule": [1, 2, 3_600_001]},
            r"backoff_schedule\[2\]: 3,600,001 is above the limit of 3,600,000 \(MAX_BACKOFF_INTERVAL\)",
        ),
    ],
    ids=str,
)
async def test_p05_an_error_names_the_option_the_limit_and_the_value(
    kv: Kv, backend: FakeBackend, options: Any, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await kv.queue("mail").send(1, **options)
    with pytest.raises(InvalidArgument, match=text):
        kv.atomic().send("mail", 1, **options)
    assert backend.writes == []


async def test_p05_seven_backoff_steps_are_accepted(kv: Kv, backend: FakeBackend) -> None:
    steps = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000]
    await kv.queue("mail").send(1, backoff_schedule=steps)
    assert list(backend.writes[0].enqueues[0].backoff.delays_ms) == steps


async def test_an_unknown_option_is_a_type_error(kv: Kv) -> None:
    with pytest.raises(TypeError, match="unknown option 'dealy' of a message; there are delay, "):
        await kv.queue("mail").send(1, dealy=5)  # type: ignore[call-arg]


async def test_a_full_queue_is_an_error_that_may_be_repeated(kv: Kv, backend: FakeBackend) -> None:
    backend.answers.append(refused(pb.OUTCOME_QUEUE_FULL, "queue 'mail' holds 10 messages (max_backlog)"))
    with pytest.raises(QueueFull, match="max_backlog") as caught:
        await kv.queue("mail").send(1)
    assert caught.value.retryable and caught.value.outcome == "not applied"


async def test_cancel_and_reschedule(kv: Kv, backend: FakeBackend) -> None:
    mail, name = kv.queue("mail"), "0" * 23 + "7"
    assert await mail.cancel(name) and await mail.reschedule(name, delay=5)
    backend.answers.append(refused(pb.OUTCOME_MESSAGE_GONE, "gone"))
    assert not await mail.cancel(name)
    cancel, reschedule, _ = backend.settles
    assert (cancel.kind, cancel.message_id, cancel.lease_id) == (pb.SETTLE_KIND_CANCEL, bytes(11) + b"\7", b"")
    assert (reschedule.kind, reschedule.delay_ms) == (pb.SETTLE_KIND_RESCHEDULE, 5)
    with pytest.raises(InvalidArgument, match="24 hex digits"):
        await mail.cancel("7")
    backend.answers.append(refused(pb.OUTCOME_MESSAGE_GONE, "gone"))
    with pytest.raises(MessageGone):
        await kv.atomic().set(("a",), 1).cancel(name).commit()


async def test_messages_of_a_commit(kv: Kv, backend: FakeBackend) -> None:
    done = await kv.atomic().set(("a",), 1).send("mail", 1).send_topic("docs", 2).enqueue(3).commit()
    assert [sent.id[-4:] for sent in done.messages] == ["0000", "0002"]
    assert [(one.queue, one.topic) for one in backend.writes[0].enqueues] == [("mail", ""), ("", "docs"), ("", "")]


# ---- listening


async def test_listen_acks_what_the_handler_has_not_settled(kv: Kv, backend: FakeBackend) -> None:
    async def handle(message: kvorum.Message) -> None:
        if message.value == "own":
            await message.reject(reason="no")
        if message.value == "raise":
            raise ValueError("out of paper")

    stop = asyncio.Event()
    listening = asyncio.ensure_future(kv.queue("mail").listen(handle, concurrency=1, stop=stop))
    consumer = await opened(backend)
    for value in ("plain", "own", "raise"):
        consumer.deliver(value)
    await until(lambda: len(consumer.settled_leases) == 3)
    assert [one.kind for one in backend.settles] == [ACK, REJECT, RETRY]
    stop.set()
    await listening
    assert consumer.closed


async def test_listening_in_batches(kv: Kv, backend: FakeBackend) -> None:
    seen: list[list[Any]] = []

    async def handle(batch: kvorum.Batch) -> None:
        seen.append(batch.values)
        if "own" in batch.values:
            await batch[0].reject()
        if "raise" in batch.values:
            raise ValueError

    stop = asyncio.Event()
    listening = asyncio.ensure_future(kv.queue("mail").listen(handle, batch=2, batch_wait=60_000, stop=stop))
    consumer = await opened(backend)
    assert (consumer.credits, consumer.concurrency) == (4, 2)
    for value in ("a", "b", "own", "c", "raise", "d", "left"):
        consumer.deliver(value)
    await until(lambda: len(consumer.settled_leases) == 6)
    assert seen == [["a", "b"], ["own", "c"], ["raise", "d"]]
    assert [one.kind for one in backend.settles] == [ACK, ACK, REJECT, ACK, RETRY, RETRY]
    stop.set()
    await listening
    assert backend.settles[-1].kind == RETURN and len(backend.settles) == 7


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch must be an int of at least 1: received 0"),
        ({"batch": True}, "batch must be an int"),
        ({"batch": 2_000}, r"batch: 2,000 is above the limit of 1,000 \(MAX_BATCH\)"),
        ({"batch": 500, "concurrency": 4}, "concurrency × batch, and prefetch: 2,000"),
        ({"batch": 5, "batch_wait": 60_001}, "batch_wait: 60,001 .*MAX_BATCH_WAIT"),
        ({"stop": None, "concurrency": 0}, "concurrency must be"),
    ],
    ids=str,
)
async def test_what_is_no_way_to_listen(kv: Kv, backend: FakeBackend, options: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await kv.queue("mail").listen(print, **options)
    assert backend.consumers == []


async def test_a_batch_that_is_not_full_is_handled_when_its_wait_is_over(kv: Kv, backend: FakeBackend) -> None:
    seen: list[int] = []
    stop = asyncio.Event()
    listening = asyncio.ensure_future(
        kv.queue("mail").listen(lambda batch: seen.append(len(batch)), batch=10, batch_wait=20, stop=stop)
    )
    consumer = await opened(backend)
    consumer.deliver("a")
    consumer.deliver("b")
    await until(lambda: len(consumer.settled_leases) == 2)
    assert seen == [2]
    stop.set()
    await listening


async def test_at_most_once_listening_gives_credit_back_when_the_handler_is_through(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    leave = asyncio.Event()

    async def handle(message: kvorum.Message) -> None:
        await leave.wait()
        raise ValueError

    stop = asyncio.Event()
    listening = asyncio.ensure_future(kv.queue("mail").listen(handle, at_most_once=True, concurrency=2, stop=stop))
    consumer = await opened(backend)
    assert consumer.take and consumer.credits == 2
    taken = consumer.deliver("a")
    await asyncio.sleep(0.01)
    assert consumer.started_leases == []
    leave.set()
    await until(lambda: consumer.started_leases == [taken.lease_id])
    stop.set()
    await listening
    assert backend.writes == []


# ---- calls


async def test_a_policy_goes_out_and_comes_back(kv: Kv, backend: FakeBackend) -> None:
    mail = kv.queue("mail")
    options: Any = {
        "lease": timedelta(seconds=2),
        "max_attempts": 3,
        "dead_letters": kv.queue("keep"),
        "max_batch": 7,
        "max_wait": timedelta(seconds=1),
        "retention": timedelta(days=1),
        "max_backlog": 10,
        "max_in_flight": 2,
        "ordered": True,
        "backoff": kvorum.Exponential(timedelta(milliseconds=100), cap=timedelta(seconds=9), jitter=0.25),
    }
    await mail.define(**options)
    define = backend.calls[0].define
    backend.replies.append(pb.QueueReply(queues=[pb.QueueInfo(name="mail", defined=True, policy=define.policy)]))
    policy = await mail.policy()
    assert policy == kvorum.QueuePolicy(
        **{**options, "dead_letters": "queue", "dead_letter_queue": "keep"},
    )
    backend.replies.append(pb.QueueReply())
    assert await mail.policy() is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": 499}, "below the least of 500 ms"),
        ({"lease": limits.MAX_LEASE + 1}, "MAX_LEASE"),
        ({"max_attempts": 0}, "max_attempts must be an int of at least 1: received 0"),
        ({"max_attempts": 1_001}, "MAX_ATTEMPTS"),
        ({"max_batch": 1_001}, "MAX_BATCH"),
        ({"max_wait": 60_001}, r"max_wait: 60,001 is above the limit of 60,000 \(MAX_BATCH_WAIT\)"),
        ({"retention": 0}, "retention must be above zero"),
        ({"backoff": [1, 3_600_001]}, r"backoff\[1\]: 3,600,001 .* \(MAX_BACKOFF_INTERVAL\)"),
        ({"backoff": kvorum.Exponential(1, factor=0.5)}, "backoff.factor must be from 1 to 100: received 0.5"),
        ({"backoff": kvorum.Exponential(1, jitter=2)}, "backoff.jitter"),
        ({"dead_letters": 5}, "dead_letters is"),
        ({"dead_letters": ""}, "the nameless one cannot be it"),
    ],
    ids=str,
)
async def test_what_is_no_policy(kv: Kv, backend: FakeBackend, options: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await kv.queue("mail").define(**options)
    with pytest.raises(TypeError, match="unknown option 'leese'"):
        await kv.queue("mail").define(leese=5)  # type: ignore[call-arg]
    assert backend.calls == []


async def test_peeking_goes_through_pages(kv: Kv, backend: FakeBackend) -> None:
    def info(number: int) -> pb.MessageInfo:
        return pb.MessageInfo(
            message_id=number.to_bytes(12, "big"),
            queue="mail",
            payload=encode_payload(number),
            state=pb.MESSAGE_STATE_READY,
        )

    backend.replies.append(pb.QueueReply(messages=[info(1), info(2)], after=b"2"))
    backend.replies.append(pb.QueueReply(messages=[info(3)]))
    assert [one.value for one in await kv.queue("mail").peek(limit=5, kind="ready")] == [1, 2, 3]
    assert [(one.peek.limit, one.peek.after) for one in backend.calls] == [(5, b""), (3, b"2")]
    with pytest.raises(InvalidArgument, match="kind is one of all, ready, leased, dead"):
        await kv.queue("mail").peek(kind="old")  # type: ignore[arg-type]


async def test_the_age_of_a_queue_is_that_of_what_is_due(kv: Kv, backend: FakeBackend) -> None:
    for oldest_ms, age in ((0, None), (900, timedelta(milliseconds=100)), (1_000, timedelta(0)), (1_001, None)):
        info = pb.QueueInfo(name="mail", oldest_ms=oldest_ms)
        backend.replies.append(pb.QueueReply(queues=[info], time_ms=1_000))
        assert (await kv.queue("mail").stats()).oldest_age == age


async def test_requeueing_dead_letters_by_what_they_are(kv: Kv, backend: FakeBackend) -> None:
    def info(number: int) -> pb.MessageInfo:
        return pb.MessageInfo(
            message_id=number.to_bytes(12, "big"),
            queue="mail",
            payload=encode_payload(number),
            state=pb.MESSAGE_STATE_DEAD,
        )

    backend.replies.append(pb.QueueReply(messages=[info(number) for number in range(600)]))
    backend.replies.append(pb.QueueReply(count=256))
    backend.replies.append(pb.QueueReply(count=44))
    dead = kv.queue("mail").dead
    assert await dead.requeue(where=lambda letter: letter.value % 2 == 0) == 300
    assert [len(call.requeue.message_ids) for call in backend.calls[1:]] == [256, 44]
    backend.replies.append(pb.QueueReply(count=7))
    assert await dead.requeue() == 7 and not backend.calls[-1].requeue.message_ids
    with pytest.raises(InvalidArgument, match="one str"):
        await dead.requeue("a" * 24)
    assert await dead.requeue([]) == 0


async def test_requeueing_that_ends_in_its_midst_says_what_was_done(kv: Kv, backend: FakeBackend) -> None:
    backend.replies.extend((pb.QueueReply(count=200), kvorum.errors.Overloaded("busy")))
    with pytest.raises(kvorum.errors.Overloaded, match="busy") as caught:
        await kv.queue("mail").dead.requeue([f"{number:024x}" for number in range(300)])
    assert [len(call.requeue.message_ids) for call in backend.calls] == [256, 44]
    assert caught.value.__notes__ == ["200 messages had been requeued before"]


async def test_schedules(kv: Kv, backend: FakeBackend) -> None:
    await kv.schedule(
        "daily", "0 6 * * *", queue="reports", value=1, time_zone="Europe/Berlin", misfire="skip", headers={"a": "b"}
    )
    define = backend.calls[0].schedule
    backend.replies.append(
        pb.QueueReply(schedules=[pb.ScheduleInfo(name="daily", definition=define.definition, next_ms=1_000)])
    )
    (schedule,) = await kv.schedules()
    assert (schedule.name, schedule.cron, schedule.time_zone, schedule.queue, schedule.value, schedule.misfire) == (
        "daily",
        "0 6 * * *",
        "Europe/Berlin",
        "reports",
        1,
        "skip",
    )
    assert schedule.grace == timedelta(seconds=60) and schedule.last_at is None and schedule.next_at is not None
    await kv.unschedule("daily")
    assert backend.calls[-1].schedule == pb.DefineSchedule(name="daily")
    for options, text in (
        ({}, "to a queue or to a topic"),
        ({"queue": "a", "topic": "b"}, "to a queue or to a topic"),
        ({"queue": "a", "delay": 5}, "has no delay"),
        ({"queue": "a", "misfire": "never"}, "misfire is one of skip, once, all"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await kv.schedule("daily", "0 6 * * *", **options)  # type: ignore[arg-type]


async def test_topics(kv: Kv, backend: FakeBackend) -> None:
    docs = kv.topic("docs")
    await docs.define(retention=timedelta(hours=1))
    backend.replies.append(pb.QueueReply(count=3))
    assert await docs.subscribe(kv.queue("search"), since=timedelta(minutes=1)) == 3
    await docs.subscribe("index")
    await docs.unsubscribe("index")
    done = await docs.send("new", dedup_id="a")
    assert done.ok and done.messages == ()
    define, since, plain, gone = backend.calls
    assert define.topic.retention_ms == 3_600_000
    assert since.subscribe.since_ms == 60_000 and since.subscribe.queue == "search"
    assert not plain.subscribe.HasField("since_ms") and gone.subscribe.remove
    backend.replies.append(pb.QueueReply(topics=[pb.TopicInfo(name="docs", queues=["a", "b"])]))
    assert await docs.subscriptions() == ["a", "b"]
