"""Operations are counted once each, by what they were answered, wherever that was decided."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvorum import tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.access import INSIDER
from kvorum_node.api.stream import Stream
from kvorum_node.api.unary import Unary
from kvorum_node.metrics import service as of_service
from kvorum_node.metrics.operations import code_of_read, code_of_write
from kvorum_raft.errors import NotLeader, RaftError
from tests.unit.node.harness import Node

ID, SECRET = b"token--1", bytes(32)
SESSION = bytes(10)
MINE, FOREIGN = b"\x02a\0", b"\x02b\0"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.service.barrier.wait = lambda passed: passed(None)  # type: ignore[method-assign]
    yield made
    made.close()


def counted(node: Node, op: str) -> dict[str, float]:
    """By code, without those that never came."""
    found = of_service.counts(node.service)["kv_ops"]
    return {code: times for (kind, code), times in found.items() if kind == op and times}


def stream(node: Node) -> Stream:
    made = Stream(node.service, "n1", SimpleNamespace(peer=lambda: "a test"))
    made._reads._closed = False
    return made


def group(*keys: bytes, session: bytes = SESSION) -> pb.WriteGroup:
    made = pb.WriteGroup(session=session)
    for seq, key in enumerate(keys, 1):
        op = pb.AtomicWrite(mutations=[pb.Mutation(key=key, type=pb.MUTATION_TYPE_SET, value=b"", encoding=2)])
        made.writes.add(seq=seq, op=op.SerializeToString())
    return made


def secure(node: Node, **scopes: Any) -> str:
    """Tokens are asked for; the text of one that may read and write `MINE`."""
    rights = pb.Scopes(keys=[pb.KeyScope(prefix=MINE, read=True, write=True)], **scopes)
    made = pb.PutToken(id=ID, secret=tokens.hash_of(SECRET), name="one", scopes=rights.SerializeToString())
    for command in (pb.Command(put_token=made), pb.Command(switch_auth=pb.SwitchAuth(on=True))):
        command.principal = b"root"
        node.service.submit(command, lambda output, error: None)
        node.timers.settle()
    assert node.service.access.on
    return tokens.text_of(ID, SECRET)


@pytest.mark.parametrize("outcome", [outcome for outcome in pb.Outcome.values() if outcome != pb.OUTCOME_DONE])
def test_every_outcome_of_a_write_has_a_count(node: Node, outcome: "pb.Outcome") -> None:
    before = counted(node, "write")
    answer = node.service.refuse(group(MINE, MINE), outcome, "why")
    assert [result.outcome for result in answer.results] == [outcome, outcome]
    name = pb.Outcome.Name(outcome).removeprefix("OUTCOME_").lower()
    assert code_of_write(outcome) == name
    assert counted(node, "write") == {**before, name: 2}


@pytest.mark.parametrize("status", [status for status in pb.ReadStatus.values() if status != pb.READ_STATUS_OK])
def test_every_status_of_a_read_has_a_count(node: Node, status: "pb.ReadStatus") -> None:
    name = pb.ReadStatus.Name(status).removeprefix("READ_STATUS_").lower()
    assert code_of_read(status) == name
    wide = pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1)])
    node.service.reads.turned_away([pb.Read(keys=[MINE]), wide], status)
    node.service.reads.turned_away([pb.PointReads(keys=[MINE, FOREIGN])], status)
    assert counted(node, "read") == {name: 3}
    assert counted(node, "list") == {name: 1}


async def test_what_a_stream_refuses_is_counted(node: Node) -> None:
    answers: list[pb.ResultGroup] = []
    made = stream(node)
    made._take_writes(group(MINE, session=b"short"), answers.append)
    node.consensus.depose()
    made._take_writes(group(MINE, MINE), answers.append)
    assert [one.outcome for answer in answers for one in answer.results] == [
        pb.OUTCOME_INVALID,
        pb.OUTCOME_NOT_LEADER,
        pb.OUTCOME_NOT_LEADER,
    ]
    assert counted(node, "write") == {"invalid": 1, "not_leader": 2}


async def test_what_nobody_may_is_counted(node: Node) -> None:
    secure(node)
    before = counted(node, "write")
    made = stream(node)
    answers: list[pb.ResultGroup] = []
    made._take_writes(group(MINE), answers.append)
    assert answers[0].results[0].outcome == pb.OUTCOME_UNAUTHENTICATED
    assert counted(node, "write") == {**before, "unauthenticated": 1}


async def test_reads_that_a_token_may_not_make_count_as_denied(node: Node) -> None:
    made = stream(node)
    made._guard.caller = node.service.access.caller(secure(node))
    wide = pb.Read(id=3, ranges=[pb.ReadRange(end=b"\xff", limit=1)])
    made._reads.take([pb.Read(id=1, keys=[MINE]), pb.Read(id=2, keys=[FOREIGN]), wide], None)
    node.timers.settle()
    assert counted(node, "read") == {"ok": 1, "denied": 1}
    assert counted(node, "list") == {"denied": 1}
    made._reads.take_points([pb.PointReads(id=4, keys=[MINE] * 3), pb.PointReads(id=5, keys=[MINE, FOREIGN])])
    node.timers.settle()
    assert counted(node, "read") == {"ok": 4, "denied": 3}


@pytest.mark.parametrize(
    ("error", "status"), [(None, pb.READ_STATUS_UNAUTHENTICATED), (NotLeader("nobody leads"), pb.READ_STATUS_NO_LEADER)]
)
async def test_a_token_is_unknown_only_to_a_node_that_would_know_it(
    node: Node, error: RaftError | None, status: "pb.ReadStatus"
) -> None:
    """A single call's token may be newer than the state of a node that hears no leader: another one is to be asked."""
    secure(node)
    node.service.barrier.wait = lambda passed: passed(error)  # type: ignore[method-assign]
    told = (("authorization", f"Bearer {tokens.text_of(b'token--2', SECRET)}"),)
    context = SimpleNamespace(invocation_metadata=lambda: told)
    answer = await Unary(node.service).get(pb.Read(id=1, keys=[MINE]).SerializeToString(), context)
    assert answer.status == status
    assert counted(node, "read") == {code_of_read(status): 1}


async def test_a_list_for_which_there_is_no_room_counts_once(node: Node) -> None:
    node.service.reads._lists.begin = lambda job: False  # type: ignore[method-assign]
    made = stream(node)
    made._reads.take([pb.Read(id=1, ranges=[pb.ReadRange(end=b"\xff", limit=1)])], None)
    node.timers.settle()
    assert counted(node, "list") == {"overloaded": 1}
    assert counted(node, "read") == {}


def test_calls_about_queues_count_once(node: Node) -> None:
    node.consensus.depose()
    node.service.calls.submit(pb.QueueCall(id=1, queues=pb.ListQueues()), lambda reply: None, INSIDER)
    assert counted(node, "queue_call") == {"no_leader": 1}
