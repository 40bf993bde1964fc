"""A stream's writer and a client that does not read."""

import asyncio
import logging
from typing import Any, cast

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api.stream import Stream
from kvorum_node.service import NodeService
from kvorum_raft.quiet_log import QuietLog
from tests.fuzz.local_node import local_node


class _Call:
    """A gRPC context whose client says hello and nothing else; it takes frames while `reads` is set."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[pb.ServerFrame] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.writing = asyncio.Event()
        self._frames = [pb.ClientFrame(hello=pb.Hello(protocol=1)).SerializeToString()]

    async def read(self) -> Any:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop()

    async def write(self, frame: bytes) -> None:
        self.writing.set()
        await self.reads.wait()
        self.writing.clear()
        self.sent.put_nowait(pb.ServerFrame.FromString(frame))


def _stream(service: NodeService, call: _Call, stall: float) -> tuple[Stream, "asyncio.Task[None]"]:
    stream = Stream(service, "n1", call, stall=stall)
    return stream, asyncio.create_task(stream.run())


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def check(service: NodeService) -> None:
        call = _Call()
        _, running = _stream(service, call, stall=0.0)
        await running
        assert call.sent.empty()

    with local_node() as node:
        node.run(check(node.service))


def test_the_time_of_one_frame_is_no_concern_of_the_next() -> None:
    async def check(service: NodeService) -> None:
        call = _Call()
        call.reads.set()
        stream, running = _stream(service, call, stall=1000.0)
        await call.sent.get()
        timer = cast("asyncio.TimerHandle", stream._stall_timer)
        call.reads.clear()
        call.writing.clear()
        stream._outbox.put_pong(7)
        await call.writing.wait()
        assert stream._stall_timer is timer, "one timer for all frames"
        stream._look_for_stall()  # as if the first frame's time was over
        assert stream._stall_timer is not timer
        call.reads.set()
        assert (await call.sent.get()).pong == 7
        await asyncio.sleep(0)  # it waits again
        stream._look_for_stall()
        assert stream._stall_timer is None, "nothing is being sent"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with local_node() as node:
        node.run(check(node.service))


def test_what_is_put_in_while_nothing_waits_is_sent() -> None:
    async def check(service: NodeService) -> None:
        call = _Call()
        call.reads.set()
        stream, running = _stream(service, call, stall=1000.0)
        assert (await call.sent.get()).HasField("hello")
        for number in range(1, 4):
            await asyncio.sleep(0)
            assert stream._waker is not None
            stream._outbox.put_pong(number)
            stream._outbox.put_leader(pb.Leader(node_id="n2"))
            frame = await call.sent.get()
            assert (frame.pong, frame.leader.node_id) == (number, "n2")
        stream.end("the node stops")
        assert (await call.sent.get()).error == "the node stops"
        await running

    with local_node() as node:
        node.run(check(node.service))


def test_streams_that_end_for_what_their_clients_say_are_told_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(_Call):
        def __init__(self) -> None:
            super().__init__()
            self._frames = [b"\xff"]
            self.reads.set()

    async def check(service: NodeService) -> None:
        quiet = QuietLog(logging.getLogger("kvorum.api"), lambda: 0.0)
        for _ in range(50):
            call = Silent()
            await Stream(service, "n1", call, quiet=quiet).run()
            assert (await call.sent.get()).error_is_final

    with local_node() as node:
        node.run(check(node.service))
    told = [record for record in caplog.records if "ending a stream" in record.getMessage()]
    assert [record.getMessage() for record in told] == ["ending a stream: a frame cannot be decoded"]
