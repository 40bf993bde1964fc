"""Named queues on a fake backend: what goes over the seam, and what callers get."""

import asyncio
import gc
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
    OutcomeUnknown,
    QueueFull,
    RemoteError,
    RequestTimeout,
    StaleLease,
    Unavailable,
)
from kvorum.queues import desk, settling
from kvorum.queues import receiver as receivers
from kvorum.queues.plain import join_plain, plain_head
from kvorum.values import decode_payload, encode_payload
from tests.unit.client.fake_backend import FakeBackend, FakeConsumer, refused, stamp
from tests.unit.client.test_listener import until

ACK, RETRY, REJECT, RETURN = (
    pb.SETTLE_KIND_ACK,
    pb.SETTLE_KIND_RETRY,
    pb.SETTLE_KIND_REJECT,
    pb.SETTLE_KIND_RETURN,
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_FIRST_PAUSE", 0.0)


async def opened(backend: FakeBackend) -> FakeConsumer:
    await until(lambda: bool(backend.consumers))
    return backend.consumers[-1]


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


# ---- settling


async def test_receive_hands_out_messages_and_settles_them(kv: Kv, backend: FakeBackend) -> None:
    receiver = kv.queue("mail").receive(prefetch=3)
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    assert (consumer.queue, consumer.credits, consumer.concurrency) == ("mail", 4, 1)
    first = consumer.deliver("a", group="g", headers=pb.Headers(fields={"k": "v"}).SerializeToString())
    second = consumer.deliver("b", attempt=2)
    message = await waiting
    assert message is not None
    assert (message.value, message.group, dict(message.headers), message.settled) == ("a", "g", {"k": "v"}, False)
    assert consumer.started_leases == [first.lease_id]
    await message.ack()
    assert message.settled and message.acknowledged and consumer.settled_leases == [first.lease_id]
    with pytest.raises(StaleLease, match="settled already"):
        await message.ack()
    message = await receiver.next()
    assert message is not None and message.attempt == 2 and message.group is None
    await message.retry(delay=5, reason="busy")
    assert backend.settles[-1] == pb.Settle(
        message_id=second.message_id, lease_id=second.lease_id, kind=RETRY, delay_ms=5, reason="busy"
    )
    await receiver.aclose()
    assert consumer.closed and await receiver.next() is None


async def test_extending_does_not_settle(kv: Kv, backend: FakeBackend) -> None:
    receiver = kv.queue("mail").receive(renew=False)
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    assert consumer.expiring
    consumer.deliver("a")
    message = await waiting
    assert message is not None
    await message.extend(timedelta(seconds=3))
    await message.extend()
    assert [(one.kind, one.HasField("delay_ms"), one.delay_ms) for one in backend.settles] == [
        (pb.SETTLE_KIND_EXTEND, True, 3_000),
        (pb.SETTLE_KIND_EXTEND, False, 0),
    ]
    with pytest.raises(LimitExceeded, match=r"by: .* \(MAX_LEASE\)"):
        await message.extend(limits.MAX_LEASE + 1)
    assert not message.settled
    backend.answers.append(refused(pb.OUTCOME_STALE_LEASE, "lapsed"))
    with pytest.raises(StaleLease, match="lapsed"):
        await message.extend()
    assert message.settled and not message.acknowledged
    await receiver.aclose()


async def test_what_was_not_handed_out_goes_back_when_the_loop_is_left(kv: Kv, backend: FakeBackend) -> None:
    async def first() -> str:
        async for message in kv.queue("mail").receive(prefetch=5):
            await message.ack()
            return str(message.value)
        raise AssertionError

    waiting = asyncio.ensure_future(first())
    consumer = await opened(backend)
    for value in "abc":
        consumer.deliver(value)
    assert await waiting == "a"
    gc.collect()
    await until(lambda: consumer.closed and len(backend.settles) == 3)
    assert [one.kind for one in backend.settles] == [ACK, RETURN, RETURN]
    assert len(consumer.started_leases) == 1


async def test_what_cannot_be_decoded_is_not_handed_out(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = kv.queue("mail").receive()
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    consumer.deliver_bytes(b"\xff\x0f?")
    consumer.deliver("b")
    message = await waiting
    assert message is not None and message.value == "b"
    await until(lambda: bool(backend.settles))
    assert backend.settles[0].kind == RETRY and backend.settles[0].reason.startswith("DataError: ")
    await message.ack()
    await receiver.aclose()


async def test_closing_the_client_ends_receivers(kv: Kv, backend: FakeBackend) -> None:
    async def all_values() -> list[Any]:
        return [message.value async for message in kv.queue("mail").receive()]

    waiting = asyncio.ensure_future(all_values())
    consumer = await opened(backend)
    consumer.deliver("a")
    await until(lambda: bool(consumer.started_leases))
    consumer.deliver("b")
    await kv.close()
    assert await waiting == ["a", "b"] or await waiting == ["a"]
    assert consumer.closed


async def test_at_most_once_is_taken_one_by_one(kv: Kv, backend: FakeBackend) -> None:
    receiver = kv.queue("mail").receive(at_most_once=True)
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    assert consumer.take and consumer.credits == 1
    taken = consumer.deliver("a")
    message = await waiting
    assert message is not None and message.settled
    assert consumer.started_leases == []  # no credit for another one before this one is through
    with pytest.raises(InvalidArgument, match="at most once"):
        await message.ack()
    with pytest.raises(InvalidArgument, match="at most once"):
        message.atomic().ack()
    waiting = asyncio.ensure_future(receiver.next())
    await until(lambda: consumer.started_leases == [taken.lease_id])
    await receiver.aclose()
    assert await waiting is None and backend.writes == []


async def test_a_leader_that_does_not_know_at_most_once_is_told_apart(kv: Kv, backend: FakeBackend) -> None:
    waiting = asyncio.ensure_future(kv.queue("mail").receive(at_most_once=True).next())
    consumer = await opened(backend)
    consumer.take = False
    consumer.deliver("a")
    with pytest.raises(Unavailable, match="upgrade all nodes"):
        await waiting
    await until(lambda: bool(backend.settles))
    assert [one.kind for one in backend.settles] == [RETURN] and consumer.started_leases == []


async def test_acks_of_one_turn_travel_together_and_each_gets_its_own_answer(kv: Kv, backend: FakeBackend) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=4, wait=60_000))
    consumer = await opened(backend)
    assert (consumer.credits, consumer.concurrency) == (4, 4)
    for value in range(4):
        consumer.deliver(value)
    batch = await receiving
    assert batch.values == [0, 1, 2, 3] and len(consumer.started_leases) == 4
    backend.answers.append(
        kvorum.backend.WriteOutcome(pb.WriteResult(outcome=pb.OUTCOME_DONE, failed_checks=[1]), stamp(1))
    )
    answers = await asyncio.gather(*(message.ack() for message in batch), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), StaleLease, type(None), type(None)]
    (write,) = backend.writes
    assert write.each and [one.kind for one in write.settles] == [ACK] * 4


async def test_at_most_256_settles_are_one_write(kv: Kv, backend: FakeBackend) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=300, wait=60_000))
    consumer = await opened(backend)
    for value in range(300):
        consumer.deliver(value)
    await (await receiving).ack_all()
    assert [len(write.settles) for write in backend.writes] == [256, 44]


async def test_a_batch_leaves_out_what_was_settled_one_by_one(kv: Kv, backend: FakeBackend) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=3, wait=60_000))
    consumer = await opened(backend)
    for value in range(3):
        consumer.deliver(value)
    batch = await receiving
    await batch[1].reject(reason="no")
    await batch.ack_all()
    await batch.ack_all()
    assert [one.kind for one in backend.settles] == [REJECT, ACK, ACK]


async def test_a_batch_says_how_many_of_it_are_gone(kv: Kv, backend: FakeBackend) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=2, wait=60_000))
    consumer = await opened(backend)
    consumer.deliver(1)
    consumer.deliver(2)
    batch = await receiving
    backend.answers.append(
        kvorum.backend.WriteOutcome(pb.WriteResult(outcome=pb.OUTCOME_DONE, failed_checks=[0]), stamp(1))
    )
    with pytest.raises(StaleLease, match="1 of 2 messages are not in these hands"):
        await batch.ack_all()
    assert all(message.settled for message in batch)


async def test_p69_a_batch_comes_when_its_wait_is_over(kv: Kv, backend: FakeBackend) -> None:
    assert limits.MAX_BATCH_WAIT == 60_000
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=5, wait=30))
    consumer = await opened(backend)
    consumer.deliver("a")
    assert (await receiving).values == ["a"]
    assert (await kv.queue("mail").receive_batch(max=5, wait=1)).values == []
    with pytest.raises(LimitExceeded, match=r"wait: 60,001 is above the limit of 60,000 \(MAX_BATCH_WAIT\)"):
        await kv.queue("mail").receive_batch(wait=60_001)
    await kv.queue("mail").define(max_wait=60_000)
    assert pb.QueuePolicy.FromString(backend.calls[-1].define.policy).max_wait_ms == 60_000


async def test_the_policy_says_how_large_a_batch_is(kv: Kv, backend: FakeBackend) -> None:
    policy = pb.QueuePolicy(max_batch=2, max_wait_ms=60_000).SerializeToString()
    backend.replies.append(pb.QueueReply(queues=[pb.QueueInfo(name="mail", policy=policy, defined=True)]))
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch())
    consumer = await opened(backend)
    consumer.deliver(1)
    consumer.deliver(2)
    assert len(await receiving) == 2


async def test_a_batch_that_is_cancelled_gives_everything_back(kv: Kv, backend: FakeBackend) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=3, wait=60_000))
    consumer = await opened(backend)
    consumer.deliver("a")
    await until(lambda: bool(consumer.started_leases))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [one.kind for one in backend.settles] == [RETURN] and consumer.closed


async def full_batch(kv: Kv, backend: FakeBackend, size: int) -> FakeConsumer:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=size, wait=60_000))
    await until(lambda: bool(backend.consumers) and not backend.consumers[-1].closed)
    consumer = backend.consumers[-1]
    for value in range(size):
        consumer.deliver(value)
    await (await receiving).ack_all()
    backend.writes.clear()
    return consumer


async def test_what_comes_after_a_full_batch_is_for_the_next_one_or_goes_back(
    kv: Kv, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_LINGER", 60.0)
    consumer = await full_batch(kv, backend, 32)
    consumer.deliver("early")
    assert len(consumer.started_leases) == 32
    batch = await kv.queue("mail").receive_batch(max=32, wait=200)
    assert batch.values == ["early"] and consumer.closed and len(backend.consumers) == 1  # it was not full
    await batch.ack_all()
    monkeypatch.setattr(desk, "_LINGER", 0.05)
    consumer = await full_batch(kv, backend, 32)
    consumer.deliver("left")
    await until(lambda: consumer.closed and bool(backend.settles))
    assert [one.kind for one in backend.settles] == [RETURN]
    monkeypatch.setattr(desk, "_LINGER", 60.0)
    consumer = await full_batch(kv, backend, 32)
    consumer.deliver("left")
    assert len(await kv.queue("mail").receive_batch(max=5, wait=1)) == 0  # another kind: the line that waits goes
    assert consumer.closed and [one.kind for one in backend.settles] == [RETURN]


async def test_small_and_late_batches_leave_nothing_open(kv: Kv, backend: FakeBackend) -> None:
    assert (await full_batch(kv, backend, 31)).closed
    assert len(await kv.queue("mail").receive_batch(max=32, wait=100)) == 0
    assert all(one.closed for one in backend.consumers)
    mail = kv.queue("mail")
    for _ in range(2):  # too short a wait to tell anything, once
        assert len(await mail.receive_batch(max=32, wait=1)) == 0
    assert len(backend.consumers) == 3 and backend.consumers[2].closed


async def test_calls_at_the_same_time_have_lines_of_their_own(kv: Kv, backend: FakeBackend) -> None:
    mail = kv.queue("mail")
    await asyncio.gather(*(mail.receive_batch(max=3, wait=1) for _ in range(3)))
    assert len(backend.consumers) == 3
    assert [one.closed for one in backend.consumers].count(False) == 1
    await kv.close()
    assert all(one.closed for one in backend.consumers)


async def test_a_message_that_is_forgotten_is_tried_again(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    message, consumer = await received(kv, backend)
    lease_id = message.lease_id
    del message
    gc.collect()
    await until(lambda: consumer.settled_leases == [lease_id])
    (settle,) = backend.settles
    assert (settle.kind, settle.reason) == (RETRY, "its consumer forgot it without a verdict")
    assert "was forgotten without a verdict" in caplog.text


async def test_who_goes_on_lets_the_place_of_an_expiring_message_be_free_when_it_ends(
    kv: Kv, backend: FakeBackend
) -> None:
    receiver = kv.queue("mail").receive(renew=False, prefetch=1)
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    first = consumer.deliver("a")
    message = await waiting
    assert message is not None and consumer.started_leases == [first.lease_id]
    waiting = asyncio.ensure_future(receiver.next())
    await until(lambda: consumer.started_leases == [first.lease_id] * 2)
    second = consumer.deliver("b")
    assert (await waiting) is not None
    waiting.cancel()
    del waiting  # and the message with it
    gc.collect()
    await until(lambda: consumer.started_leases[2:] == [second.lease_id] * 2)
    await receiver.aclose()
    await message.ack()
    assert [one.kind for one in backend.settles] == [ACK]


async def test_names_that_begin_with_nul_are_reserved(kv: Kv) -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        kv.queue("\0reply/x")
    with pytest.raises(InvalidArgument, match="reserved"):
        await kv.enqueue(1, queue="\0x")


async def received(kv: Kv, backend: FakeBackend, **more: Any) -> tuple[kvorum.Message, FakeConsumer]:
    receiver = kv.queue("mail").receive()
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    consumer.deliver("a", **more)
    message = await waiting
    assert message is not None
    return message, consumer


async def test_an_ack_is_repeated_until_the_answer_is_definite(kv: Kv, backend: FakeBackend) -> None:
    message, _ = await received(kv, backend)
    backend.answers.extend([Unavailable("no leader"), OutcomeUnknown("lost")])
    await message.ack()
    assert len(backend.writes) == 3 and message.acknowledged


async def test_a_stale_lease_after_an_unknown_attempt_is_unknown(kv: Kv, backend: FakeBackend) -> None:
    message, _ = await received(kv, backend)
    backend.answers.extend([OutcomeUnknown("lost"), refused(pb.OUTCOME_STALE_LEASE, "not held")])
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        await message.ack()


@pytest.mark.parametrize("how", ["batch", "cancelled batch", "receiver"])
async def test_who_ends_is_not_held_up_by_what_cannot_go_back_now_and_it_goes_back_later(
    kv: Kv, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(receivers, "_FAREWELL", 0.05)
    queue = kv.queue("mail")
    receiver = queue.receive()
    waiting: asyncio.Future[Any] = asyncio.ensure_future(
        receiver.next() if how == "receiver" else queue.receive_batch(max=3, wait=100 if how == "batch" else 60_000)
    )
    consumer = await opened(backend)
    backend.hold = asyncio.Event()  # there is no leader
    consumer.deliver("a")
    async with asyncio.timeout(30):
        if how == "batch":
            consumer.deliver_bytes(b"\xff\x0f?")
            kept = [message.value for message in await waiting]
        elif how == "cancelled batch":
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            kept = []
        else:
            message = await waiting
            consumer.deliver("b")
            await receiver.aclose()
            kept = [message.value]
    assert kept == {"batch": ["a"], "cancelled batch": [], "receiver": ["a"]}[how]
    assert consumer.settled_leases == []
    backend.hold.set()
    await until(lambda: len(consumer.settled_leases) == 1)
    await kv.close()


async def test_a_receiver_that_ends_insists_on_the_verdict_of_what_it_could_not_read(
    kv: Kv, backend: FakeBackend
) -> None:
    receiver = kv.queue("mail").receive()
    waiting = asyncio.ensure_future(receiver.next())
    consumer = await opened(backend)
    backend.answers.extend([Unavailable("no leader")] * 5)
    consumer.deliver_bytes(b"\xff\x0f?")
    await until(lambda: bool(backend.writes))
    await receiver.aclose()
    assert await waiting is None
    assert [settle.kind for settle in backend.settles] == [RETRY] * 6
    assert len(consumer.settled_leases) == 1


@pytest.mark.parametrize(
    "refusal",
    [kvorum.errors.Closed(), kvorum.errors.Unauthenticated("unknown token"), InvalidArgument("too new")],
    ids=lambda error: type(error).__name__,
)
async def test_any_refusal_after_an_unknown_attempt_is_unknown(kv: Kv, backend: FakeBackend, refusal: Any) -> None:
    message, _ = await received(kv, backend)
    backend.answers.extend([OutcomeUnknown("lost"), refusal])
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        await message.ack()
    backend.answers.append(refusal)
    with pytest.raises(type(refusal)):
        await message.ack()


async def test_an_ack_gives_up_at_its_deadline_truthfully(kv: Kv, backend: FakeBackend) -> None:
    message, _ = await received(kv, backend)
    backend.answers.extend([Unavailable("no leader")] * 10_000)
    with pytest.raises(kvorum.errors.DeadlineExceeded, match="no leader"):
        await message.ack(timeout=20)
    backend.answers.clear()
    backend.hold = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await message.ack(timeout=20)
    assert not message.settled
    backend.hold.set()


@pytest.mark.parametrize(
    "refusal",
    [
        kvorum.errors.Overloaded("a member knows data version 2 only"),
        InvalidArgument("the write has fields that this version does not know"),
    ],
    ids=["member", "leader"],
)
async def test_settles_travel_alone_while_a_member_does_not_know_them(
    kv: Kv, backend: FakeBackend, refusal: kvorum.KvorumError
) -> None:
    receiving = asyncio.ensure_future(kv.queue("mail").receive_batch(max=3, wait=60_000))
    consumer = await opened(backend)
    for value in range(3):
        consumer.deliver(value)
    batch = await receiving
    backend.answers.append(refusal)
    await batch.ack_all()
    assert [(write.each, len(write.settles)) for write in backend.writes] == [(True, 3)] + [(False, 1)] * 3


async def test_the_operation_of_a_message(kv: Kv, backend: FakeBackend) -> None:
    message, consumer = await received(kv, backend)
    await message.atomic().check(("a",), None).set(("a",), 1).send("next", 2).ack().commit()
    (write,) = backend.writes
    assert len(write.checks) == len(write.mutations) == len(write.enqueues) == 1
    assert write.settles[0].lease_id == message.lease_id and message.acknowledged
    assert consumer.settled_leases == [message.lease_id]


async def test_retry_and_reject_in_a_commit(kv: Kv, backend: FakeBackend) -> None:
    message, _ = await received(kv, backend)
    await kv.atomic().set(("tries",), 1).retry(message, delay=7, reason="x" * 2_000).commit()
    (settle,) = backend.settles
    assert (settle.kind, settle.delay_ms, len(settle.reason)) == (RETRY, 7, limits.MAX_REASON_SIZE)
    assert message.settled and not message.acknowledged
    with pytest.raises(InvalidArgument, match="reject takes a Message, got str"):
        kv.atomic().reject("message")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="only in a message's own operation"):
        kv.atomic().ack()


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


# ---- requests


async def test_a_request_and_its_answer(kv: Kv, backend: FakeBackend) -> None:
    asking = asyncio.ensure_future(kv.request("calc", [1, 2], headers={"k": "v"}))
    await until(lambda: bool(backend.writes))
    (inbox,) = backend.consumers
    (message,) = backend.writes[0].enqueues
    headers = pb.Headers.FromString(message.headers)
    assert inbox.take and inbox.queue == headers.reply_to and inbox.queue.startswith("\0reply/")
    assert message.queue == "calc" and 0 < message.ttl_ms <= 5_000 and headers.fields["k"] == "v"
    late = pb.Headers(correlation=b"unknown").SerializeToString()
    inbox.deliver("late", headers=late)
    inbox.deliver(3, headers=pb.Headers(correlation=headers.correlation).SerializeToString())
    assert await asking == 3
    assert len(inbox.started_leases) == 2
    again = asyncio.ensure_future(kv.request("calc", [2, 2]))
    await until(lambda: len(backend.writes) == 2)
    assert len(backend.consumers) == 1
    again.cancel()
    await kv.close()
    assert inbox.closed


async def test_a_request_that_is_not_answered_says_that_it_may_be_done(kv: Kv, backend: FakeBackend) -> None:
    with pytest.raises(RequestTimeout, match="no answer from queue 'calc' within 20 ms") as caught:
        await kv.request("calc", 1, timeout=20)
    assert caught.value.outcome == "unknown" and isinstance(caught.value, TimeoutError)


async def test_a_request_that_was_not_sent_in_time_says_so(kv: Kv, backend: FakeBackend) -> None:
    """The backend knows: its call ends by itself, some milliseconds after the deadline."""

    async def late(op: bytes, *, timeout: float) -> Any:
        await asyncio.sleep(timeout + 0.02)
        raise problem

    backend.write = late  # type: ignore[method-assign]
    problem: Exception = kvorum.errors.DeadlineExceeded("no answer within 20 ms (no connection); not applied")
    with pytest.raises(kvorum.errors.DeadlineExceeded, match="no connection"):
        await kv.request("calc", 1, timeout=20)
    problem = OutcomeUnknown("no answer within 20 ms; the write may or may not have been applied")
    with pytest.raises(RequestTimeout, match="no answer from queue 'calc' within 20 ms"):
        await kv.request("calc", 1, timeout=20)


@pytest.mark.parametrize("options", [{"ttl": 5}, {"dedup_id": "a"}], ids=str)
async def test_a_request_takes_no_options_that_would_leave_it_unanswered(
    kv: Kv, backend: FakeBackend, options: Any
) -> None:
    with pytest.raises(InvalidArgument, match=f"a request takes no {next(iter(options))}"):
        await kv.request("calc", 1, **options)
    assert backend.writes == []


async def test_serving_answers_in_the_commit_that_acknowledges(kv: Kv, backend: FakeBackend) -> None:
    async def add(message: kvorum.Message) -> Any:
        return sum(message.value)

    stop = asyncio.Event()
    serving = asyncio.ensure_future(kv.queue("calc").serve(add, stop=stop))
    consumer = await opened(backend)
    asked = pb.Headers(reply_to="\0reply/x", correlation=b"c").SerializeToString()
    consumer.deliver([1, 2], headers=asked)
    consumer.deliver([3])
    await until(lambda: len(consumer.settled_leases) == 2)
    answering = next(write for write in backend.writes if write.enqueues)
    (answer,) = answering.enqueues
    assert (answer.queue, answer.ttl_ms, decode_payload(answer.payload)) == ("\0reply/x", 60_000, 3)
    assert pb.Headers.FromString(answer.headers).correlation == b"c"
    assert [one.kind for one in answering.settles] == [ACK]
    stop.set()
    await serving


async def test_an_error_as_an_answer(kv: Kv, backend: FakeBackend) -> None:
    asked = pb.Headers(reply_to="\0reply/x", correlation=b"c").SerializeToString()
    message, _ = await received(kv, backend, headers=asked)
    await message.atomic().reply_error("no such account").ack().commit()
    (answer,) = backend.writes[0].enqueues
    asking = asyncio.ensure_future(kv.request("calc", 1))
    await until(lambda: len(backend.writes) == 2)
    theirs = pb.Headers.FromString(backend.writes[1].enqueues[0].headers)
    headers = pb.Headers.FromString(answer.headers)
    headers.correlation = theirs.correlation
    backend.consumers[-1].deliver(None, headers=headers.SerializeToString())
    with pytest.raises(RemoteError, match="no such account"):
        await asking


async def test_who_asks_nothing_is_not_answered(kv: Kv, backend: FakeBackend) -> None:
    message, _ = await received(kv, backend)
    with pytest.raises(InvalidArgument, match="asks nothing"):
        message.atomic().reply(1)


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
