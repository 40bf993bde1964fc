"""The Admin service: what is asked of the leader, and how its answers and errors travel."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.access import Access
from kvorum_node.api import admin as api
from kvorum_node.store.auth import NONE
from kvorum_raft.errors import ChangePending, Discarded, NoSpace, NotLeader, Overloaded, RaftError, UnknownOutcome
from kvorum_raft.seams import Member, PeerView
from tests.unit.node.fake_admin import CLUSTER, FakeNode

OTHER = Member("n2", "n2.example:7403", "n2.example:7401")
LEARNER = Member("n4", "n4.example:7403", "n4.example:7401")
PEERS = (PeerView(LEARNER, True, 400, learner=True, snapshot=(25, 100)), PeerView(OTHER, False, 990))


async def call(node: FakeNode, method: str, request: Message, kind: type[Any] = pb.AdminResponse) -> Any:
    async with grpc.aio.insecure_channel(node.address) as channel:
        return await channel.unary_unary(
            f"/{api.SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )(request, timeout=5)


async def refusal(node: FakeNode, method: str, request: Message) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(node, method, request)
    return caught.value


async def test_the_leader_tells_all_it_knows_of_the_members() -> None:
    async with FakeNode("n1", peers=PEERS) as node:
        view = await call(node, "Members", pb.MembersRequest(), pb.MembersResponse)
    assert (view.cluster_id, view.node_id, view.role, view.term) == (CLUSTER, "n1", "leader", 7)
    assert (view.leader.node_id, view.leader.address) == ("n1", node.address)
    first, second, fourth = view.members
    assert (first.node_id, first.voter, first.connected, first.match_index, first.lag) == ("n1", True, True, 1000, 0)
    assert (second.node_id, second.voter, second.connected, second.lag) == ("n2", True, False, 10)
    assert (second.peer_address, second.client_address) == ("n2.example:7403", "n2.example:7401")
    assert (fourth.node_id, fourth.voter, fourth.lag) == ("n4", False, 600)
    assert (fourth.snapshot_sent, fourth.snapshot_size) == (25, 100)


async def test_a_follower_answers_with_its_own_view_and_names_the_leader() -> None:
    async with FakeNode("n1", peers=PEERS, leader=OTHER) as node:
        node.no_space = "node n2: its disk is nearly full"
        view = await call(node, "Members", pb.MembersRequest(), pb.MembersResponse)
    assert (view.role, view.leader.node_id, view.leader.address) == ("follower", "n2", "n2.example:7401")
    assert [member.lag for member in view.members] == [0, 0, 0]
    assert view.no_space == "node n2: its disk is nearly full"


async def test_each_change_reaches_the_consensus_layer() -> None:
    place = {"node_id": "n4", "peer_address": "n4.example:7403", "client_address": "n4.example:7401"}
    async with FakeNode("n1") as node:
        await call(node, "AddMember", pb.AddMemberRequest(**place))
        await call(node, "Replace", pb.ReplaceRequest(**place))
        await call(node, "Promote", pb.PromoteRequest(node_id="n4"))
        await call(node, "Remove", pb.RemoveRequest(node_id="n2"))
        assert (await call(node, "Transfer", pb.TransferRequest())).leader_id == "n2"
        assert (await call(node, "Transfer", pb.TransferRequest(node_id="n3"))).leader_id == "n3"
        answer = await call(node, "SetTime", pb.SetTimeRequest(unix_ms=1_800_000_000_000))
    assert answer.leader_id == "n1"
    assert node.administration.asked == [
        ("add", LEARNER),
        ("replace", LEARNER),
        ("promote", "n4"),
        ("remove", "n2"),
        ("transfer", None),
        ("transfer", "n3"),
        ("set_time", 1_800_000_000_000),
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("node n9 is not a member"), grpc.StatusCode.INVALID_ARGUMENT),
        (ChangePending("another change is under way"), grpc.StatusCode.ABORTED),
        (Discarded("another leader's entry"), grpc.StatusCode.ABORTED),
        (Overloaded("too much waits"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NoSpace("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnknownOutcome("leadership was lost"), grpc.StatusCode.UNKNOWN),
        (RaftError("whatever"), grpc.StatusCode.UNKNOWN),
        (NotLeader("not the leader"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_errors_keep_their_meaning(error: Exception, code: grpc.StatusCode) -> None:
    async with FakeNode("n1") as node:
        node.administration.failures.append(error)
        got = await refusal(node, "Remove", pb.RemoveRequest(node_id="n9"))
    assert (got.code(), got.details()) == (code, str(error))


async def test_who_does_not_lead_names_the_leader() -> None:
    async with FakeNode("n1", leader=OTHER) as node:
        node.administration.failures.append(NotLeader("not the leader"))
        got = await refusal(node, "Promote", pb.PromoteRequest(node_id="n4"))
    assert got.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "n2 at n2.example:7401" in (got.details() or "")
    metadata = dict(got.trailing_metadata() or ())
    named = pb.Leader.FromString(metadata[api.LEADER_METADATA])
    assert (named.node_id, named.address) == ("n2", "n2.example:7401")


async def test_a_change_that_takes_too_long_is_unknown() -> None:
    class Slow:
        async def promote(self, node_id: str) -> None:
            await asyncio.Event().wait()

    class Context:
        """gRPC cancels the call when its deadline has passed; a moment before we still can say what is known."""

        def time_remaining(self) -> float:
            return 0.02

        def invocation_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, code: grpc.StatusCode, text: str, *_: Any) -> None:
            raise ArithmeticError(f"{code.name}: {text}")

    slow: Any = Slow()
    store: Any = SimpleNamespace(auth=NONE)
    nothing: Any = SimpleNamespace(access=Access(store, asyncio.get_running_loop(), lambda: 0))
    with pytest.raises(ArithmeticError, match="UNKNOWN: not done in time; it may still be done"):
        await api.Admin(nothing, slow).promote(pb.PromoteRequest(node_id="n4").SerializeToString(), Context())


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ({"node_id": "", "peer_address": "a:1", "client_address": "a:2"}, "node id"),
        ({"node_id": "n4\n", "peer_address": "a:1", "client_address": "a:2"}, "node id"),
        ({"node_id": "é" * 65, "peer_address": "a:1", "client_address": "a:2"}, "128"),
        ({"node_id": "n4", "peer_address": "a", "client_address": "a:2"}, "peer address"),
        ({"node_id": "n4", "peer_address": "a:99999", "client_address": "a:2"}, "peer address"),
        ({"node_id": "n4", "peer_address": "a:1", "client_address": ":2"}, "client address"),
        ({"node_id": "n4", "peer_address": "a:1", "client_address": "a b:2"}, "client address"),
        ({"node_id": "n4", "peer_address": "0.0.0.0:1", "client_address": "a:2"}, "can reach"),
        ({"node_id": "n4", "peer_address": "a:1", "client_address": "a:1"}, "the same"),
    ],
)
async def test_nonsense_is_refused_before_it_is_tried(place: dict[str, str], named: str) -> None:
    async with FakeNode("n1") as node:
        for method, request in (("AddMember", pb.AddMemberRequest(**place)), ("Replace", pb.ReplaceRequest(**place))):
            got = await refusal(node, method, request)
            assert got.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert named in (got.details() or "")
        assert node.administration.asked == []


@pytest.mark.parametrize("unix_ms", [0, 1 << 63])
async def test_times_that_cannot_be_are_refused(unix_ms: int) -> None:
    async with FakeNode("n1") as node:
        got = await refusal(node, "SetTime", pb.SetTimeRequest(unix_ms=unix_ms))
        assert got.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert node.administration.asked == []
