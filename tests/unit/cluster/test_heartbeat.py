"""The heartbeat's thread, where its connection cannot even be tried."""

import asyncio
import threading
from unittest import mock

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import heartbeat
from kvorum.cluster.heartbeat import Heartbeat, Wanted

WANTED = Wanted(b"s" * 10, ("127.0.0.1", 1), b"c" * 16)


async def ended() -> None:
    async with asyncio.timeout(30):
        while any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_thread_that_fails_is_logged_and_the_next_beat_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    heart = Heartbeat(loop, [WANTED.address], client_name="test", token="", tls=None)
    tried = threading.Semaphore(0)

    def fail(_: object) -> None:
        tried.release()
        raise RuntimeError("can't start new thread")

    with mock.patch.object(heartbeat._Stream, "hold", fail):
        for _ in range(2):
            heart.beat(WANTED)
            assert await loop.run_in_executor(None, lambda: tried.acquire(timeout=60))
            await ended()
    assert caplog.text.count("the heartbeat of leases has failed") == 2
    begun = loop.time()
    await heart.close()
    assert loop.time() - begun < heartbeat._END / 2, "nobody waits for a thread that is gone"


async def test_where_no_thread_can_be_started_the_client_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    heart = Heartbeat(asyncio.get_running_loop(), [WANTED.address], client_name="test", token="", tls=None)
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        heart.beat(WANTED)
        heart.beat(WANTED)
    assert caplog.text.count("no heartbeat of leases: can't start new thread") == 2
    held = threading.Event()
    with mock.patch.object(heartbeat._Stream, "hold", lambda _: held.wait(60)):
        heart.beat(WANTED)
        assert any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate())
        heart.rest()
        held.set()
        await ended()
    await heart.close()


def test_a_stream_goes_where_the_client_has_met_the_leader() -> None:
    met = {"n1": ("127.0.0.1", 7411)}
    stream = heartbeat._Stream(("127.0.0.1", 7401), pb.Hello(), None, {}, met.get)
    stream._take(pb.ServerFrame(hello=pb.HelloReply(node_id="n0", leader=pb.Leader(node_id="n1", address="n1:7401"))))
    assert stream.hint == ("127.0.0.1", 7411)
    stream._leader_is(pb.Leader(node_id="n2", address="n2:7401"))
    assert stream.hint == ("n2", 7401)
