"""What a call had is free at once when it has failed, without the collector of cycles: see `tests.cycles`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend
from tests.cycles import rings

from .fake_node import FakeNode, FakeState, FakeStream, put, refuse

READ = pb.Read(keys=[b"k"])
CALL = pb.QueueCall(queues=pb.ListQueues())


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.write(put(b"k", bytes(60_000)), timeout=0.01),
        lambda backend: backend.read(READ, timeout=0.01),
        lambda backend: backend.queue_call(CALL, timeout=0.01),
    ],
)
async def test_calls_that_are_too_late(
    state: FakeState, backend: ClusterBackend, call: Callable[[ClusterBackend], Coroutine[Any, Any, Any]]
) -> None:
    state.lead(None)
    with rings() as found:
        with pytest.raises(errors.DeadlineExceeded):
            await call(backend)
        await asyncio.sleep(0)  # the loop lets go of what it did last
    assert not found


async def test_a_write_that_is_refused(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    async def invalid(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if not frame.HasField("writes"):
            return False
        stream.send(refuse(frame.writes, pb.OUTCOME_INVALID, message="not so"))
        return True

    await backend.write(put(b"first"), timeout=5)
    nodes[0].hook = invalid
    with rings() as found:
        with pytest.raises(errors.InvalidArgument):
            await backend.write(put(b"k", bytes(60_000)), timeout=5)
        await asyncio.sleep(0)
    assert not found
