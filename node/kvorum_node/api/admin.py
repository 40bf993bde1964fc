"""The Admin service: the members of the cluster and their changes, for operators.

Members is answered by every node, so that a cluster without a leader can be looked at, and Backup (see `backups`).
Changes are made by the leader; any other node says who that is, and the caller goes there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import ChangePending, NoSpace, NotLeader, Overloaded, RaftError, UnknownOutcome
from kvorum_raft.seams import Administration, Member, PeerView, Status

from ..backup.saving import Backups
from ..service import NodeService
from ..store.rights import for_admin
from .backups import BackupCall
from .unary import parse, require, time_left

SERVICE: Final = "kvorum.v1.Admin"
LEADER_METADATA: Final = "kvorum-leader-bin"
"""Trailing metadata of FAILED_PRECONDITION: a serialised Leader."""
MAX_NAME: Final = 128
"""Bytes of a node id."""
MAX_ADDRESS: Final = 300
MAX_TIME_MS: Final = 253_402_300_800_000
"""The year 10000."""


class Admin:
    """See the module. Without `administration` (nothing to administer) changes are UNIMPLEMENTED."""

    def __init__(
        self, service: NodeService, administration: Administration | None, backups: Backups | None = None
    ) -> None:
        self._service = service
        self._backup = BackupCall(service, backups)
        self._administration = administration

    def handlers(self) -> grpc.GenericRpcHandler:
        members = grpc.unary_unary_rpc_method_handler(
            self.members, response_serializer=pb.MembersResponse.SerializeToString
        )
        changes = {
            "AddMember": self.add,
            "Promote": self.promote,
            "Remove": self.remove,
            "Replace": self.replace,
            "Transfer": self.transfer,
            "SetTime": self.set_time,
        }
        answer = pb.AdminResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Members": members,
                "Backup": self._backup.handler(),
                **{
                    name: grpc.unary_unary_rpc_method_handler(call, response_serializer=answer)
                    for name, call in changes.items()
                },
            },
        )

    async def members(self, data: bytes, context: Any) -> pb.MembersResponse:
        await parse(pb.MembersRequest, data, context)
        await require(self._service, context, lambda _: "")
        service = self._service
        status = service.consensus.status()
        response = pb.MembersResponse(
            cluster_id=service.store.cluster_id or status.cluster_id,
            node_id=status.node_id,
            role=status.role,
            leader=service.leader,
            term=status.term,
            commit_index=status.commit_index,
            no_space=service.no_space(),
        )
        rows = [_peer_row(peer, status) for peer in status.peers]
        own = _own_row(status)
        if own is not None:
            rows.append(own)
        response.members.extend(sorted(rows, key=lambda row: row.node_id))
        return response

    async def add(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.AddMemberRequest, data, context)
        return await self._change(context, request, lambda admin: admin.add(_member(request)))

    async def promote(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.PromoteRequest, data, context)
        return await self._change(context, request, lambda admin: admin.promote(_node_id(request.node_id)))

    async def remove(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.RemoveRequest, data, context)
        return await self._change(context, request, lambda admin: admin.remove(_node_id(request.node_id)))

    async def replace(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.ReplaceRequest, data, context)
        return await self._change(context, request, lambda admin: admin.replace(_member(request)))

    async def transfer(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.TransferRequest, data, context)
        target = request.node_id or None
        return await self._change(context, request, lambda admin: admin.transfer(target))

    async def set_time(self, data: bytes, context: Any) -> pb.AdminResponse:
        request = await parse(pb.SetTimeRequest, data, context)
        return await self._change(context, request, lambda admin: admin.set_time(_time(request.unix_ms)))

    async def _change(
        self, context: Any, request: Any, make: Callable[[Administration], Awaitable[Any]]
    ) -> pb.AdminResponse:
        administration = self._administration
        caller = await require(self._service, context, for_admin)
        if administration is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this node has no cluster to change")
        assert administration is not None
        try:
            async with asyncio.timeout(time_left(context)):
                done = await make(administration)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotLeader as error:
            await self._not_leader(context, error)
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNKNOWN, "not done in time; it may still be done: look at the members")
        except RaftError as error:
            await context.abort(_status_code(error), str(error))
        what = request.DESCRIPTOR.name.removesuffix("Request")
        self._service.access.note_change(caller, f"{what} {getattr(request, 'node_id', '')}".strip())
        leader = done if isinstance(done, str) else self._service.leader.node_id
        return pb.AdminResponse(leader_id=leader)

    async def _not_leader(self, context: Any, error: NotLeader) -> NoReturn:
        leader = self._service.leader
        own = self._service.consensus.status().node_id
        metadata: tuple[tuple[str, bytes], ...] = ()
        if leader.node_id and leader.node_id != own:
            metadata = ((LEADER_METADATA, leader.SerializeToString()),)
            text = f"node {own} does not lead; the leader is node {leader.node_id} at {leader.address}"
        else:
            text = str(error) or f"node {own} does not lead, and knows no leader"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text, metadata)
        raise AssertionError("abort returns never")


def _status_code(error: RaftError) -> grpc.StatusCode:
    if isinstance(error, ChangePending):
        return grpc.StatusCode.ABORTED
    if isinstance(error, (Overloaded, NoSpace)):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, UnknownOutcome) or not error.definite:
        return grpc.StatusCode.UNKNOWN
    # Discarded: another leader's entry stands in its place. To try again is right here too.
    return grpc.StatusCode.ABORTED


def _peer_row(peer: PeerView, status: Status) -> pb.MemberStatus:
    leads = status.leader is not None and status.leader.node_id == status.node_id
    sent, size = peer.snapshot or (0, 0)
    return pb.MemberStatus(
        node_id=peer.member.node_id,
        peer_address=peer.member.peer_address,
        client_address=peer.member.client_address,
        voter=not peer.learner,
        connected=peer.connected,
        match_index=peer.match_index,
        lag=max(0, status.last_log_index - peer.match_index) if leads else 0,
        snapshot_sent=sent,
        snapshot_size=size,
    )


def _own_row(status: Status) -> pb.MemberStatus | None:
    """None if this node is no member (any more)."""
    own, learner = status.own, status.own_learner
    if own is None and status.leader is not None and status.leader.node_id == status.node_id:
        own, learner = status.leader, False
    if own is None:
        return None
    return pb.MemberStatus(
        node_id=own.node_id,
        peer_address=own.peer_address,
        client_address=own.client_address,
        voter=not learner,
        connected=True,
        match_index=status.durable_index,
        applied_index=status.applied_index,
    )


def _node_id(text: str) -> str:
    """Raises ValueError."""
    if not text or not text.isprintable() or len(text.encode()) > MAX_NAME:
        raise ValueError(f"a node id has 1 to {MAX_NAME} printable bytes, got {text!r:.150}")
    return text


def _address(what: str, text: str) -> str:
    """Raises ValueError."""
    host, colon, port = text.rpartition(":")
    known = colon and host and text.isprintable() and " " not in text and len(text) <= MAX_ADDRESS
    if not known or not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535):
        raise ValueError(f"the {what} must be host:port, got {text!r:.150}")
    if host in ("0.0.0.0", "[::]", "::"):
        raise ValueError(f"the {what} must be one that the other nodes and clients can reach, got {text!r}")
    return text


def _member(request: Any) -> Member:
    """Raises ValueError."""
    peer = _address("peer address", request.peer_address)
    client = _address("client address", request.client_address)
    if peer == client:
        raise ValueError(f"the peer address and the client address are the same: {peer}")
    return Member(_node_id(request.node_id), peer, client)


def _time(unix_ms: int) -> int:
    """Raises ValueError."""
    if not 0 < unix_ms < MAX_TIME_MS:
        raise ValueError(f"a time is Unix milliseconds before the year 10000, got {unix_ms}")
    return unix_ms
