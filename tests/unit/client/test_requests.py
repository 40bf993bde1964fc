"""Requests and their answers, on a fake backend."""

import asyncio
from typing import Any

import pytest

import kvorum
from kvorum import Kv
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RemoteError,
    RequestTimeout,
)
from kvorum.queues import settling
from kvorum.values import decode_payload
from tests.unit.client.fake_backend import FakeBackend
from tests.unit.client.queue_steps import ACK, opened, received
from tests.unit.client.test_listener import until


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_FIRST_PAUSE", 0.0)


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
