"""Calls of a node's Admin service: finds the leader, goes where it is sent, and tells errors truthfully."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.connection import bearer, describe, explain, open_channel
from kvorum.cluster.route import Address, name, parse
from kvorum.tls import ChannelTls

SERVICE: Final = "kvorum.v1.Admin"
LEADER_METADATA: Final = "kvorum-leader-bin"
PROBE: Final = 2.0
"""Seconds that a node gets to say who leads."""
SILENCE: Final = 3.0
"""Seconds after which nodes of which none answers are given up: an election is over by then, and a restart as well."""
PAUSE: Final = 0.2
"""Seconds between looks for a leader."""
MAX_HOPS: Final = 5
"""How often a change is sent on to another leader."""

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_Answer = TypeVar("_Answer", bound=Message)


class TryAgain(errors.Unavailable):
    """Another change is under way."""


class AdminClient:
    """`addresses` are those of some nodes. Close it."""

    def __init__(self, addresses: Sequence[Address], tls: ChannelTls | None = None, token: str = "") -> None:
        self._token = token
        self._tls = tls
        self._addresses = list(dict.fromkeys(addresses))
        self._channels: dict[Address, Any] = {}
        self._met: dict[str, Address] = {}
        """Where nodes answered, by their ids: the addresses that they tell of need not be reachable from here."""
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> "AdminClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def members(self, timeout: float) -> pb.MembersResponse:
        """What the leader says; if there is none within `timeout` seconds, what the first node that answers says.

        Errors: ConnectFailed; InvalidArgument if they are of different clusters.
        """
        began = self._loop.time()
        deadline = began + timeout
        seen: pb.MembersResponse | None = None
        while True:
            view, problems = await self._look(deadline)
            if view is not None and _leads(view):
                return view
            # The last look has the least time: that it fails says nothing against what one before has seen.
            seen = view or seen
            if self._loop.time() + PAUSE >= (deadline if seen is not None else min(deadline, began + SILENCE)):
                if seen is None:
                    raise errors.ConnectFailed(f"no node answers: {'; '.join(problems)}")
                return seen
            await asyncio.sleep(PAUSE)

    async def change(self, method: str, request: Message, timeout: float) -> pb.AdminResponse:
        """Have the leader make a change.

        Errors: InvalidArgument (cannot be done), TryAgain, Overloaded, Unavailable (not done), OutcomeUnknown.
        """
        deadline = self._loop.time() + timeout
        view = await self.members(timeout)
        if not _leads(view):
            raise errors.Unavailable("no node that answers leads: without a majority nothing can be changed; not done")
        address = self._leader_address(view.leader)
        for _ in range(MAX_HOPS):
            left = deadline - self._loop.time()
            if left <= 0:
                break
            try:
                return await self._call(address, method, request, pb.AdminResponse, left)
            except grpc.aio.AioRpcError as error:
                _judge(error)
                leader = _named_leader(error)
                if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                    raise _problem(address, error) from error
            if leader is not None:
                address = self._leader_address(leader)
            else:
                await asyncio.sleep(PAUSE)
                view = await self.members(max(PAUSE, deadline - self._loop.time()))
                if _leads(view):
                    address = self._leader_address(view.leader)
        raise errors.Unavailable("leadership is changing hands: try again; not done")

    def address_of(self, member: pb.MemberStatus) -> Address | None:
        """Where a member was met, or says that it is; None if that is no address."""
        return self._met.get(member.node_id) or parse(member.client_address)

    async def stream(
        self, address: Address, method: str, request: Message, kind: type[_Answer], *, patience: float
    ) -> AsyncIterator[_Answer]:
        """Messages of one node, each within `patience` seconds after the one before was taken.

        Errors: Overloaded, Unavailable, DeadlineExceeded.
        """
        call = self._channel(address).unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )(request, metadata=bearer(self._token))
        messages = aiter(call)
        try:
            while True:
                async with asyncio.timeout(patience):
                    message = await anext(messages, None)
                if message is None:
                    return
                yield message
        except TimeoutError:
            raise errors.DeadlineExceeded(f"{name(address)}: nothing came for {patience:g} s") from None
        except grpc.aio.AioRpcError as error:
            _judge(error)
            raise _stream_problem(address, error) from error
        finally:
            call.cancel()

    async def _look(self, deadline: float) -> tuple[pb.MembersResponse | None, list[str]]:
        """Ask all at once; the leader's own view if it can be had, else that of the first in order that answers."""
        left = max(0.05, min(PROBE, deadline - self._loop.time()))
        asked = await asyncio.gather(*(self._view(address, left) for address in self._addresses))
        views = [view for view in asked if isinstance(view, pb.MembersResponse)]
        _require_one_cluster(zip(self._addresses, asked, strict=True))
        for address, view in zip(self._addresses, asked, strict=True):
            if isinstance(view, pb.MembersResponse) and view.node_id:
                self._met[view.node_id] = address
        # Two may say that they lead for a moment after a failover; the one of the newer term does.
        views.sort(key=lambda view: (_leads(view), view.term if _leads(view) else 0), reverse=True)
        if views and not _leads(views[0]):
            pointed = next((view.leader for view in views if view.leader.node_id), pb.Leader())
            where = parse(pointed.address)
            if where is not None and where not in self._addresses and pointed.node_id not in self._met:
                view = await self._view(where, left)
                if isinstance(view, pb.MembersResponse) and _leads(view):
                    views.insert(0, view)
        problems = [
            f"{name(address)}: {problem}"
            for address, problem in zip(self._addresses, asked, strict=True)
            if isinstance(problem, str)
        ]
        return (views[0] if views else None), problems

    async def _view(self, address: Address, timeout: float) -> pb.MembersResponse | str:
        try:
            return await self._call(address, "Members", pb.MembersRequest(), pb.MembersResponse, timeout)
        except grpc.aio.AioRpcError as error:
            _judge(error)
            if error.code() == grpc.StatusCode.UNIMPLEMENTED and "http2 header" not in (error.details() or ""):
                return "this node is of an older version, without the Admin service"
            return (await explain(error, address, self._tls))[0]

    async def _call(
        self, address: Address, method: str, request: Message, kind: type[_Answer], timeout: float
    ) -> _Answer:
        call = self._channel(address).unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )
        answer = await call(request, timeout=timeout, metadata=bearer(self._token))
        assert isinstance(answer, kind)
        return answer

    def _channel(self, address: Address) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(name(address), self._tls, _OPTIONS)
        return channel

    def _leader_address(self, leader: pb.Leader) -> Address:
        address = self._met.get(leader.node_id) or parse(leader.address)
        if address is None:
            raise errors.Unavailable(f"the leader's address is {leader.address!r}, which cannot be used; not done")
        return address


def _require_one_cluster(asked: Iterable[tuple[Address, pb.MembersResponse | str]]) -> None:
    """A change must not go to whichever of two clusters had more elections. Raises InvalidArgument."""
    clusters: dict[str, list[str]] = {}
    for address, view in asked:
        if isinstance(view, pb.MembersResponse) and view.cluster_id:
            clusters.setdefault(view.cluster_id.hex(), []).append(name(address))
    if len(clusters) > 1:
        told = "; ".join(f"{', '.join(places)}: {cluster}" for cluster, places in clusters.items())
        raise errors.InvalidArgument(f"these addresses are of different clusters, name those of one: {told}")


def _judge(error: grpc.aio.AioRpcError) -> None:
    """Raises what no other node would answer otherwise."""
    if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        raise errors.Unauthenticated(error.details() or "the node knows no such token") from error
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        raise errors.PermissionDenied(error.details() or "the token lacks the admin right", right="admin") from error


def _leads(view: pb.MembersResponse) -> bool:
    return bool(view.node_id) and view.leader.node_id == view.node_id


def _named_leader(error: grpc.aio.AioRpcError) -> pb.Leader | None:
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_METADATA and isinstance(value, bytes):
            try:
                return pb.Leader.FromString(value)
            except DecodeError:
                return None
    return None


def _stream_problem(address: Address, error: grpc.aio.AioRpcError) -> errors.KvorumError:
    """Of a call that changes nothing."""
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unavailable(f"the node at {name(address)} does not know this call: upgrade it")
    text = (error.details() or "").strip() or error.code().name.lower()
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.Overloaded(f"{name(address)}: {text}")
    return errors.Unavailable(f"{name(address)}: {text}")


def _problem(address: Address, error: grpc.aio.AioRpcError) -> errors.KvorumError:
    """What an operator should know of a change that failed."""
    text = (error.details() or "").strip() or error.code().name.lower()
    code = error.code()
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidArgument(text)
    if code == grpc.StatusCode.ABORTED:
        return TryAgain(f"{text}; not done: try again in a moment")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.Overloaded(f"{text}; not done")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unavailable(f"the node at {name(address)} does not know this call: upgrade it; not done")
    if code == grpc.StatusCode.UNAVAILABLE and describe(error) in ("connection refused", "no route to the host"):
        return errors.ConnectFailed(f"{name(address)}: {describe(error)}; not done")
    if code == grpc.StatusCode.UNKNOWN:
        return errors.OutcomeUnknown(f"{text}: see `kvorum cluster members`")
    return errors.OutcomeUnknown(
        f"no answer of the leader at {name(address)} ({describe(error)}):"
        " whether it was done, `kvorum cluster members` tells"
    )
