"""What a client tells nodes about traces."""

import pytest

from kvorum._proto import kvorum_pb2 as pb
from tests.unit.cluster.conftest import Connect
from tests.unit.cluster.fake_node import FakeNode, FakeState, FakeStream, put, refuse

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def carried(nodes: list[FakeNode]) -> list[pb.Trace]:
    return [one for node in nodes for frame in node.frames for one in frame.traces]


@pytest.fixture
def tracing_nodes(nodes: list[FakeNode]) -> list[FakeNode]:
    for node in nodes:
        node.traces = True
    return nodes


async def test_operations_of_a_trace_are_told_beside_them(tracing_nodes: list[FakeNode], open_backend: Connect) -> None:
    backend = await open_backend()
    current = PARENT
    backend.carry(lambda: current)
    assert backend.carries
    await backend.write(put(b"k"), timeout=5)
    await backend.read(pb.Read(keys=[b"k"]), timeout=5)
    told = carried(tracing_nodes)
    assert [one.traceparent for one in told] == [PARENT] * 2
    assert [one.WhichOneof("operation") for one in told] == ["write", "read"]
    (group,) = tracing_nodes[0].writes()
    assert [write.seq for write in group.writes] == [told[0].write]
    assert group.writes[0].op == put(b"k"), "as without a trace"
    current = ""
    await backend.write(put(b"k"), timeout=5)
    assert len(carried(tracing_nodes)) == 2, "this one is not sampled"
    traces = backend._keeper.traces
    assert traces is not None and not traces._writes and not traces._reads, "nothing is kept"


async def test_a_repeat_belongs_to_the_same_trace(
    state: FakeState, tracing_nodes: list[FakeNode], open_backend: Connect
) -> None:
    """Refused by a leader that leads no more, then taken by the next one."""
    first, second, _ = tracing_nodes

    async def hand_over(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if not frame.HasField("writes"):
            return False
        state.leader = second
        stream.send(refuse(frame.writes, pb.OUTCOME_NOT_LEADER, leader=state.hint()))
        return True

    first.hook = hand_over
    backend = await open_backend()
    backend.carry(lambda: PARENT)
    await backend.write(put(b"k"), timeout=10)
    assert [one.traceparent for one in carried([first])] == [PARENT]
    assert [one.traceparent for one in carried([second])] == [PARENT]


async def test_a_node_that_does_not_trace_is_told_nothing(nodes: list[FakeNode], open_backend: Connect) -> None:
    backend = await open_backend()
    backend.carry(lambda: PARENT)
    assert not backend.carries
    await backend.write(put(b"k"), timeout=5)
    await backend.read(pb.Read(keys=[b"k"]), timeout=5)
    assert nodes[0].frames and carried(nodes) == []


async def test_a_program_that_does_not_trace_tells_nothing(
    tracing_nodes: list[FakeNode], open_backend: Connect
) -> None:
    backend = await open_backend()
    await backend.write(put(b"k"), timeout=5)
    await backend.read(pb.Read(keys=[b"k"]), timeout=5)
    assert tracing_nodes[0].frames and carried(tracing_nodes) == []
    assert not backend.carries
    assert backend._submit_write == backend._writes.submit, "the plain way in"
