"""Messages in hand, on a fake backend: receiving them, and what becomes of them."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

import kvorum
from kvorum import Kv, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import (
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    StaleLease,
    Unavailable,
)
from kvorum.queues import desk, settling
from kvorum.queues import receiver as receivers
from tests.unit.client.fake_backend import FakeBackend, FakeConsumer, refused, stamp
from tests.unit.client.queue_steps import ACK, REJECT, RETRY, RETURN, opened, received
from tests.unit.client.test_listener import until


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_FIRST_PAUSE", 0.0)


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
