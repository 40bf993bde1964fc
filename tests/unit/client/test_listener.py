"""Listening: what a listener tells the backend, in which order, and what becomes of messages when things go wrong."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kvorum import Kv, Message, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import Closed, InvalidArgument, LimitExceeded, NoSpace, OutcomeUnknown, Unavailable, WrongCluster
from kvorum.queues import listener as listeners
from kvorum.queues import settling
from tests.unit.client.fake_backend import FakeBackend, FakeConsumer, refused

ACK, RETRY, RETURN = pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_RETURN


class Listening:
    """A listener on the fake backend."""

    def __init__(self, kv: Kv, backend: FakeBackend, handler: Callable[[Any], object], **options: Any) -> None:
        self.backend = backend
        self.task = asyncio.ensure_future(kv.listen_queue(handler, **options))

    async def consumer(self) -> FakeConsumer:
        await until(lambda: bool(self.backend.consumers))
        return self.backend.consumers[0]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # facts of many kinds, and nobody tells of them
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def listening(
    kv: Kv, backend: FakeBackend, handler: Callable[[Any], object], **options: Any
) -> AsyncIterator[tuple[FakeConsumer, "asyncio.Future[None]"]]:
    listener = Listening(kv, backend, handler, **options)
    yield await listener.consumer(), listener.task
    await kv.close()
    if not listener.task.cancelled():
        await listener.task


def kinds(backend: FakeBackend) -> list[int]:
    return [settle.kind for settle in backend.settles]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_FIRST_PAUSE", 0.0)


async def test_credits_are_what_runs_and_what_waits(kv: Kv, backend: FakeBackend) -> None:
    for options, credit in (
        ({}, 64),
        ({"concurrency": 3}, 6),
        ({"concurrency": 3, "prefetch": 0}, 3),
        ({"concurrency": 800}, 1_000),
    ):
        task = asyncio.ensure_future(kv.listen_queue(print, **options))  # type: ignore[call-overload]
        await until(lambda: bool(backend.consumers))
        consumer = backend.consumers.pop()
        assert (consumer.credits, consumer.concurrency) == (credit, options.get("concurrency", 32))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert consumer.closed


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"concurrency": 0}, InvalidArgument),
        ({"concurrency": True}, InvalidArgument),
        ({"concurrency": 1_001}, LimitExceeded),
        ({"prefetch": -1}, InvalidArgument),
        ({"concurrency": 1, "prefetch": 1_000}, LimitExceeded),
        ({"queue": 5}, InvalidArgument),
        ({"queue": "\ud800"}, InvalidArgument),
    ],
    ids=repr,
)
async def test_what_is_no_listener(
    kv: Kv, backend: FakeBackend, options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await kv.listen_queue(print, **options)
    with pytest.raises(InvalidArgument, match="a handler is a function"):
        await kv.listen_queue("print")  # type: ignore[call-overload]
    assert backend.consumers == []


async def test_started_handled_settled(kv: Kv, backend: FakeBackend) -> None:
    events: list[str] = []
    async with listening(kv, backend, events.append) as (consumer, _):
        backend.hold = asyncio.Event()
        message = consumer.deliver("job")
        await until(lambda: bool(backend.writes))
        assert consumer.started_leases == [message.lease_id]
        assert events == ["job"]
        assert consumer.settled_leases == []  # not before the verdict was answered
        backend.hold.set()
        await until(lambda: consumer.settled_leases == [message.lease_id])
    assert backend.settles == [pb.Settle(message_id=message.message_id, lease_id=message.lease_id, kind=ACK)]


async def test_a_place_is_free_again_only_when_the_verdict_was_answered(kv: Kv, backend: FakeBackend) -> None:
    """The node counts the first `concurrency` unsettled messages of a lost client as begun, and no others."""
    handled: list[int] = []
    async with listening(kv, backend, handled.append, concurrency=2) as (consumer, _):
        backend.hold = asyncio.Event()
        for number in range(4):
            consumer.deliver(number)
        await until(lambda: len(backend.settles) == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert handled == [0, 1] and len(consumer.started_leases) == 2
        backend.hold.set()
        await until(lambda: len(consumer.settled_leases) == 4)
    assert handled == [0, 1, 2, 3]


async def test_a_place_is_used_again_and_the_idle_ones_end_with_the_listener(kv: Kv, backend: FakeBackend) -> None:
    tasks: list[asyncio.Task[Any] | None] = []
    before = asyncio.all_tasks()

    async def handle(value: object) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)

    async with listening(kv, backend, handle, concurrency=2, prefetch=0) as (consumer, _):
        for _ in range(3):
            pair = [consumer.deliver("a"), consumer.deliver("b")]
            await until(lambda pair=pair: {one.lease_id for one in pair} <= set(consumer.settled_leases))
    assert len(tasks) == 6 and len(set(tasks)) == 2
    assert all(task is not None and task.done() and not task.cancelled() for task in tasks)
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


@pytest.mark.parametrize("first", ["cancelled", "delivered"])
async def test_an_idle_place_that_is_cancelled_from_outside_costs_no_message(
    kv: Kv, backend: FakeBackend, first: str
) -> None:
    handled: list[object] = []
    tasks: list[asyncio.Task[Any]] = []

    async def handle(value: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        handled.append(value)

    async with listening(kv, backend, handle, concurrency=1) as (consumer, _):
        before = consumer.deliver(0)
        await until(lambda: consumer.settled_leases == [before.lease_id])
        await asyncio.sleep(0)  # its task falls idle
        if first == "cancelled":
            tasks[0].cancel()
        consumer.deliver(1)
        tasks[0].cancel()
        consumer.deliver(2)
        await until(lambda: len(consumer.settled_leases) == 3)
        assert handled == [0, 1, 2]
        assert consumer.started_leases == consumer.settled_leases
        assert kinds(backend) == [ACK] * 3
        assert tasks[0].cancelled() and len(set(tasks)) == 2


async def test_what_comes_to_an_idle_place_in_the_moment_of_the_end_was_not_begun(kv: Kv, backend: FakeBackend) -> None:
    handled: list[object] = []
    async with listening(kv, backend, handled.append) as (consumer, task):
        before = consumer.deliver(0)
        await until(lambda: consumer.settled_leases == [before.lease_id])
        await asyncio.sleep(0)
        task.cancel()
        consumer.deliver(1)
        await asyncio.wait([task])
        assert handled == [0] and consumer.started_leases == [before.lease_id]
        assert kinds(backend) == [ACK, RETURN]


async def test_a_failure_is_logged_and_told(kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(value: object) -> None:
        raise ValueError("out of paper " + "é" * 2_000)

    async with listening(kv, backend, handler) as (consumer, _):
        message = consumer.deliver("job", attempt=3)
        await until(lambda: bool(consumer.settled_leases))
    (settle,) = backend.settles
    assert settle.kind == RETRY and not settle.HasField("delay_ms")
    assert settle.reason.startswith("ValueError: out of paper éé")
    assert len(settle.reason.encode()) in (limits.MAX_REASON_SIZE, limits.MAX_REASON_SIZE - 1)
    (record,) = caplog.records
    assert record.name == "kvorum" and record.levelno == logging.ERROR
    assert record.getMessage() == f"Exception in queue handler: queue '', message {message.message_id.hex()}, attempt 3"
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


async def test_a_cancellation_from_within_a_handler_is_a_failure(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: object) -> None:
        raise asyncio.CancelledError

    async with listening(kv, backend, handler) as (consumer, _):
        consumer.deliver("job")
        await until(lambda: bool(consumer.settled_leases))
    assert kinds(backend) == [RETRY]


async def test_a_message_that_cannot_be_decoded_is_a_failure(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(kv, backend, lambda _: pytest.fail("called")) as (consumer, _):
        consumer.deliver_bytes(b"\xff\x0f?")
        await until(lambda: bool(consumer.settled_leases))
    assert kinds(backend) == [RETRY]
    assert backend.settles[0].reason.startswith("DataError: ")


@pytest.mark.parametrize(
    "problem",
    [OutcomeUnknown("lost"), Unavailable("no leader"), NoSpace("full")],
    ids=lambda error: type(error).__name__,
)
async def test_a_verdict_is_repeated_until_it_is_taken(kv: Kv, backend: FakeBackend, problem: Any) -> None:
    """The lease is renewed as long as the client lives: a verdict given up would keep the message here for ever."""
    backend.answers.extend([problem, problem, problem])
    async with listening(kv, backend, lambda _: None) as (consumer, _):
        consumer.deliver("job")
        await until(lambda: bool(consumer.settled_leases))
    assert kinds(backend) == [ACK] * 4


async def test_a_stale_lease_is_an_answer(kv: Kv, backend: FakeBackend) -> None:
    backend.answers.extend([OutcomeUnknown("lost"), refused(pb.OUTCOME_STALE_LEASE, "not held")])
    async with listening(kv, backend, lambda _: None) as (consumer, _):
        consumer.deliver("job")
        await until(lambda: bool(consumer.settled_leases))
    assert kinds(backend) == [ACK, ACK]


async def test_with_message_gives_the_message(kv: Kv, backend: FakeBackend) -> None:
    messages: list[Message] = []
    async with listening(kv, backend, messages.append, with_message=True, queue="mail") as (consumer, _):
        consumer.deliver({"to": "Ella"}, attempt=2)
        await until(lambda: bool(consumer.settled_leases))
    (message,) = messages
    assert (message.value, message.attempt, message.queue, message.id) == ({"to": "Ella"}, 2, "mail", "0" * 23 + "1")


async def test_a_message_acknowledged_in_a_commit_gets_no_other_verdict(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: Message) -> None:
        await kv.atomic().set(("done",), 1).ack(message).commit()
        if message.value == "raise":
            raise ValueError

    async with listening(kv, backend, handler, with_message=True) as (consumer, _):
        consumer.deliver("return")
        consumer.deliver("raise")
        await until(lambda: len(consumer.settled_leases) == 2)
    assert kinds(backend) == [ACK, ACK] and all(len(write.mutations) == 1 for write in backend.writes)


async def test_a_failed_commit_acknowledges_nothing(kv: Kv, backend: FakeBackend) -> None:
    async def handler(message: Message) -> None:
        done = await kv.atomic().check(("a",), None).ack(message).commit()
        assert not done.ok and not message.acknowledged

    backend.answers.append(refused(pb.OUTCOME_CHECK_FAILED, failed_checks=[0]))
    async with listening(kv, backend, handler, with_message=True) as (consumer, _):
        consumer.deliver("job")
        await until(lambda: bool(consumer.settled_leases))
    assert kinds(backend) == [ACK, ACK]  # the one that failed, and the verdict of the handler that returned


# ---- the end


async def test_cancelling_cancels_handlers_and_returns_what_waits(kv: Kv, backend: FakeBackend) -> None:
    cancelled: list[int] = []

    async def handler(value: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(value)
            raise

    async with listening(kv, backend, handler, concurrency=1) as (consumer, task):
        for number in range(3):
            consumer.deliver(number)
        await until(lambda: bool(consumer.started_leases))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert consumer.closed and cancelled == [0]
        assert sorted(kinds(backend)) == [RETRY, RETURN, RETURN]
        (retry,) = [settle for settle in backend.settles if settle.kind == RETRY]
        assert retry.HasField("delay_ms") and retry.delay_ms == 0  # ready at once, for somebody else
        assert len(consumer.settled_leases) == 3


async def test_a_message_that_came_in_the_same_moment_was_not_begun(kv: Kv, backend: FakeBackend) -> None:
    async with listening(kv, backend, lambda _: pytest.fail("called")) as (consumer, task):
        task.cancel()
        consumer.deliver("job")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert consumer.started_leases == [] and kinds(backend) == [RETURN]


async def test_cancelling_lets_a_verdict_go_out(kv: Kv, backend: FakeBackend) -> None:
    async with listening(kv, backend, lambda _: None) as (consumer, task):
        backend.hold = asyncio.Event()
        consumer.deliver("job")
        await until(lambda: bool(backend.writes))
        task.cancel()
        await asyncio.sleep(0)
        backend.hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kinds(backend) == [ACK] and len(consumer.settled_leases) == 1


async def test_a_handler_that_closes_the_client_is_not_waited_for_by_itself(backend: FakeBackend) -> None:
    kv = Kv(backend, timeout=60)

    async def handler(value: str) -> None:
        await kv.close()
        assert kv.closed and not backend.closed  # its own verdict is still to go out

    listener = Listening(kv, backend, handler)
    (await listener.consumer()).deliver("the end")
    async with asyncio.timeout(30):
        await listener.task
        await kv.close()
    assert kinds(backend) == [ACK] and backend.closed


async def test_closing_waits_for_handlers_but_not_for_ever(backend: FakeBackend) -> None:
    kv = Kv(backend, timeout=0.05)

    async def handler(value: str) -> None:
        await asyncio.Event().wait()

    listener = Listening(kv, backend, handler)
    consumer = await listener.consumer()
    consumer.deliver("job")
    await until(lambda: bool(consumer.started_leases))
    await kv.close()
    await listener.task
    assert kinds(backend) == [RETRY] and backend.closed


async def test_closing_without_a_cluster_is_not_held_up_by_verdicts(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_FAREWELL", 0.05)
    kv = Kv(backend, timeout=0.05)
    listener = Listening(kv, backend, lambda _: None, concurrency=1)
    consumer = await listener.consumer()
    backend.hold = asyncio.Event()  # nothing is answered any more
    consumer.deliver("settling")
    consumer.deliver("waiting")
    await until(lambda: bool(backend.writes))
    async with asyncio.timeout(30):
        await kv.close()
        await listener.task
    assert backend.closed
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


@pytest.mark.parametrize("answer", [None, Unavailable("no leader")], ids=["silence", "refusals"])
async def test_what_a_cancelled_listener_could_not_give_back_goes_back_later(
    kv: Kv, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """The client lives on, and with it the leases: nobody else would ever get these messages."""
    monkeypatch.setattr(listeners, "_FAREWELL", 0.05)
    listener = Listening(kv, backend, lambda _: None, concurrency=1, prefetch=1)
    consumer = await listener.consumer()
    if answer is None:
        backend.hold = asyncio.Event()
    else:
        backend.answers.extend([answer] * 100_000)
    messages = [consumer.deliver("settling"), consumer.deliver("waiting")]
    await until(lambda: bool(backend.writes))
    listener.task.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([listener.task])
    assert consumer.closed and consumer.settled_leases == []
    backend.writes.clear()
    backend.answers.clear()
    if backend.hold is not None:
        backend.hold.set()
    await until(lambda: sorted(consumer.settled_leases) == [message.lease_id for message in messages])
    if answer is not None:
        assert sorted(kinds(backend)) == [ACK, RETURN]
    await kv.close()


async def test_closing_ends_what_a_cancelled_listener_is_giving_back(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_FAREWELL", 0.05)
    kv = Kv(backend, timeout=0.05)
    listener = Listening(kv, backend, lambda _: None, concurrency=1, prefetch=1)
    consumer = await listener.consumer()
    backend.hold = asyncio.Event()
    consumer.deliver("settling")
    consumer.deliver("waiting")
    await until(lambda: bool(backend.writes))
    listener.task.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([listener.task])
        await kv.close()
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_a_handler_that_holds_on_when_cancelled_does_not_hold_up_closing(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_FAREWELL", 0.05)
    kv = Kv(backend, timeout=0.05)
    leave = asyncio.Event()

    async def handler(value: str) -> None:
        while not leave.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await leave.wait()

    listener = Listening(kv, backend, handler)
    consumer = await listener.consumer()
    consumer.deliver("job")
    await until(lambda: bool(consumer.started_leases))
    async with asyncio.timeout(30):
        await kv.close()
        await listener.task
    leave.set()


async def test_a_verdict_after_closing_is_dropped_in_silence(
    kv: Kv, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.answers.append(Closed())
    async with listening(kv, backend, lambda _: None) as (consumer, _):
        consumer.deliver("job")
        await until(lambda: bool(backend.writes))
    assert kinds(backend) == [ACK] and not caplog.records


async def test_a_failed_registration_is_raised_and_closing_goes_on(kv: Kv, backend: FakeBackend) -> None:
    async def refuse(queue: str, **_: Any) -> FakeConsumer:
        raise Unavailable("too many consumers")

    backend.consume = refuse  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="too many consumers"):
        await kv.listen_queue(print)
    await kv.close()


async def test_when_no_more_can_come_the_listener_says_why_and_running_handlers_are_cancelled(
    kv: Kv, backend: FakeBackend
) -> None:
    cancelled = asyncio.Event()

    async def handler(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    listener = Listening(kv, backend, handler, concurrency=1)
    consumer = await listener.consumer()
    consumer.deliver("running")
    consumer.deliver("waiting")
    await until(lambda: bool(consumer.started_leases))
    backend.answers.extend([WrongCluster("another one"), WrongCluster("another one")])
    assert consumer.failed is not None
    consumer.failed(WrongCluster("another one"))
    async with asyncio.timeout(30):
        with pytest.raises(WrongCluster, match="another one"):
            await listener.task
    assert cancelled.is_set() and consumer.closed
    await kv.close()


async def test_an_end_that_comes_while_closing_is_no_error(kv: Kv, backend: FakeBackend) -> None:
    async with listening(kv, backend, lambda _: None) as (consumer, _):
        closing = asyncio.ensure_future(kv.close())
        await until(lambda: consumer.closed)
        assert consumer.failed is not None
        consumer.failed(Closed())
        await closing
