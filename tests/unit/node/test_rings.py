"""What a request had is free at once when it has failed, without the collector of cycles: see `tests.cycles`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.http.app import MAX_ANSWERS, App
from kvorum_node.http.exchange import Exchange
from kvorum_node.http.message import Request
from tests.cycles import rings
from tests.fuzz.local_node import LocalNode, local_node

READ = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"\x02", end=b"\x03", limit=100)]).SerializeToString()
LIST = pb.Read(ranges=[pb.ReadRange(start=b"\x02", end=b"\x03", limit=100)])


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    """With 100 rows of 64 KiB."""
    with local_node() as made:

        async def fill() -> None:
            for begin in range(0, 100, 10):
                op = pb.AtomicWrite()
                for number in range(begin, begin + 10):
                    op.mutations.add(key=b"\x02%04d\0" % number, type=1, value=bytes(65_536), encoding=3)
                await made.backend.write(op.SerializeToString(), timeout=60)

        made.run(fill())
        yield made


@pytest.fixture
def app(node: LocalNode) -> Iterator[App]:
    with node.app() as made:
        yield made


def request(path: str, body: bytes) -> Request:
    return Request("POST", path, {"authorization": "Bearer t"}, body, peer="127.0.0.1")


async def ask(app: App, path: str, body: bytes) -> int:
    response = await app.handle(request(path, body))
    response.done()
    return response.status


def left(node: LocalNode, work: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    async def something_else() -> None:
        await node.backend.read(pb.Read(ranges=[pb.ReadRange(start=b"\x03", end=b"\x04", limit=1)]), timeout=60)

    with rings() as found:
        node.run(work())
        node.run(something_else())  # the loop and the reader's thread let go of what they did last
    return found


def write(value: bytes = b"v") -> bytes:
    change = dp.Mutation(key=b"\x02new\0", value=dp.KvValue(data=value, encoding=3), mutation_type=1)
    return dp.AtomicWrite(mutations=[change]).SerializeToString()


def test_a_ring_is_found(node: LocalNode) -> None:
    async def holds_its_promise() -> None:
        promise: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        promise.set_exception(errors.Unavailable("no"))
        await promise

    async def fails() -> None:
        with pytest.raises(errors.Unavailable):
            await holds_its_promise()

    with rings(of=__name__) as found:
        node.run(fails())
    assert "test_a_ring_is_found.<locals>.holds_its_promise" in found


def test_a_list_for_whose_rows_there_is_no_room(node: LocalNode, app: App) -> None:
    async def work() -> None:
        app._answers.held += MAX_ANSWERS - 2_000_000
        assert await ask(app, "/v2/snapshot_read", READ) == 503
        app._answers.held -= MAX_ANSWERS - 2_000_000
        assert not app._answers.held

    assert not left(node, work)


def test_a_list_that_is_cancelled_midway(node: LocalNode, app: App) -> None:
    async def work() -> None:
        asked = asyncio.ensure_future(ask(app, "/v2/snapshot_read", READ))
        while not app._answers.held:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()

    assert not left(node, work)


@pytest.mark.parametrize(("path", "body"), [("/v2/snapshot_read", READ), ("/v2/atomic_write", write(bytes(60_000)))])
def test_what_is_not_answered_in_time(
    node: LocalNode, app: App, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_held", 0.0)

    async def work() -> None:
        with monkeypatch.context() as never:
            never.setattr(node.backend, "_send", lambda: None)
            assert await ask(app, path, body) in (503, 409)
        node.backend._pending.clear()

    assert not left(node, work)


@pytest.mark.parametrize("body", [write(bytes(70_000)), b"\xff" * 60_000])
def test_a_write_that_is_refused(node: LocalNode, app: App, body: bytes) -> None:
    async def work() -> None:
        assert await ask(app, "/v2/atomic_write", body) == 400

    assert not left(node, work)


def test_an_exchange_whose_client_goes(node: LocalNode, app: App) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        exchange = Exchange(app, request("/v2/snapshot_read", b""), loop, lambda _: None)
        exchange.begin(len(READ))
        exchange.receive(READ)
        exchange.complete()
        while not app._answers.held:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0)
        exchange.close()
        while app._answers.held:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0)

    assert not left(node, work)


def test_calls_of_an_embedded_database_that_are_too_late(node: LocalNode) -> None:
    backend = node.backend

    async def work() -> None:
        with pytest.raises(errors.OutcomeUnknown):
            await backend.write(pb.AtomicWrite().SerializeToString(), timeout=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            await backend.read(LIST, timeout=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            await backend.queue_call(pb.QueueCall(queues=pb.ListQueues()), timeout=0.0)
        with pytest.raises(errors.InvalidArgument):
            await backend.write(b"\xff", timeout=10.0)

    assert not left(node, work)
