"""The unary methods: for other languages and for hand work."""

import asyncio
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum.errors import Unauthenticated
from kvorum.rights import denied
from kvorum_raft.errors import RaftError

from ..access import Caller, Refusal
from ..metrics.operations import code_of_write
from ..read_jobs import ListJob
from ..reads import PendingRead
from ..service import NodeService
from ..store.rights import Rights, for_read
from ..unread import TINY, Holding

DEFAULT_TIMEOUT = limits.DEFAULT_TIMEOUT / 1000


class Unary:
    """Get, Commit and Status. A request that cannot be decoded is INVALID_ARGUMENT."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._started_at = time.monotonic()

    async def get(self, data: bytes, context: Any) -> pb.ReadResult:
        read = await parse(pb.Read, data, context)
        caller = caller_of(self._service, context)
        if over := self._service.access.over(caller, 1):
            self._service.reads.turned_away([read], pb.READ_STATUS_OVERLOADED)
            return pb.ReadResult(id=read.id, status=pb.READ_STATUS_OVERLOADED, message=over)
        refusal, error = await _refused(self._service, caller, partial(for_read, read=read))
        if refusal is not None and error is not None:  # another node may know the token
            refusal = pb.READ_STATUS_NO_LEADER, f"what the token may do cannot be confirmed: {error}"
        if refusal is not None:  # before it costs anything: a list may be long
            self._service.reads.turned_away([read], refusal[0])
            return pb.ReadResult(id=read.id, status=refusal[0], message=refusal[1])
        unread = self._service.unread
        holding = Holding(unread, _nothing)
        future: asyncio.Future[pb.ReadResult] = asyncio.get_running_loop().create_future()
        item = PendingRead(read, partial(_resolve, future), partial(_gather, future, holding))
        item.owner = context.peer()
        self._service.reads.submit([item])
        try:
            async with asyncio.timeout(time_left(context)):
                answer = await future
        except TimeoutError:
            return pb.ReadResult(id=read.id, status=pb.READ_STATUS_NO_LEADER, message="no answer in time")
        finally:
            holding.close()
            if item.job is not None:
                item.job.cancel()
        if holding.is_full and answer.ByteSize() > TINY:
            self._service.reads.took_back(read, pb.READ_STATUS_OVERLOADED)
            return pb.ReadResult(id=read.id, status=pb.READ_STATUS_OVERLOADED, message=unread.refusal())
        # By a state at least as new as the one that was read.
        refusal = self._service.access.refusal(caller, partial(for_read, read=read))
        if refusal is not None:
            if answer.status == pb.READ_STATUS_OK:
                self._service.reads.took_back(read, refusal[0])
            return pb.ReadResult(id=read.id, status=refusal[0], message=refusal[1])
        return answer

    def _refused(self, outcome: "pb.Outcome", message: str) -> pb.WriteResponse:
        self._service.writes.refused(code_of_write(outcome))
        return pb.WriteResponse(outcome=outcome, message=message)

    async def commit(self, data: bytes, context: Any) -> pb.WriteResponse:
        request = await parse(pb.WriteRequest, data, context)
        if not self._service.consensus.is_leader:
            leader = self._service.leader
            where = (
                f"node {leader.node_id} at {leader.address}" if leader.node_id else "nobody, as far as this node knows"
            )
            return self._refused(pb.OUTCOME_NOT_LEADER, f"the leader is {where}")
        try:
            caller = caller_of(self._service, context)
            principal = self._service.access.stamp(caller)
        except Unauthenticated as error:
            return self._refused(pb.OUTCOME_UNAUTHENTICATED, str(error))
        if over := self._service.access.over(caller, 1):
            return self._refused(pb.OUTCOME_OVERLOADED, over)
        # No session: nothing can tell a repeat of this request, so an unknown outcome stays unknown.
        group = pb.WriteGroup()
        group.writes.add(seq=1, op=request.write.SerializeToString())
        future: asyncio.Future[pb.ResultGroup] = asyncio.get_running_loop().create_future()
        self._service.write(group, partial(_resolve, future), principal)
        try:
            async with asyncio.timeout(time_left(context)):
                answer = await future
        except TimeoutError:
            return pb.WriteResponse(outcome=pb.OUTCOME_UNKNOWN, message="no answer in time; it may still be applied")
        result = answer.results[0]
        response = pb.WriteResponse(outcome=result.outcome, failed_checks=result.failed_checks, message=result.message)
        if result.outcome == pb.OUTCOME_DONE:
            response.deleted = result.deleted
            response.versionstamp = answer.stamp_prefix + result.number.to_bytes(2, "big")
        return response

    async def status(self, data: bytes, context: Any) -> pb.StatusResponse:
        await parse(pb.StatusRequest, data, context)
        await require(self._service, context, lambda _: "")
        return self.own_status()

    def own_status(self) -> pb.StatusResponse:
        """The node's account of itself."""
        store, status = self._service.store, self._service.consensus.status()
        response = pb.StatusResponse(
            node_id=status.node_id,
            cluster_id=store.cluster_id or status.cluster_id,
            role=status.role,
            term=status.term,
            leader=self._service.leader,
            commit_index=status.commit_index,
            applied_index=store.applied_index,
            last_log_index=status.last_log_index,
            durable_index=status.durable_index,
            state_hash=store.state_hash(),
            version=__version__,
            uptime_ms=int((time.monotonic() - self._started_at) * 1000),
            wall_ms=time.time_ns() // 1_000_000,
            time_ms=self._service.consensus.now_ms(),
            statistics={**status.statistics, **self._service.statistics(), "files_limit": files_limit()},
        )
        for peer in status.peers:
            response.peers.add(
                node_id=peer.member.node_id,
                address=peer.member.peer_address,
                connected=peer.connected,
                match_index=peer.match_index,
                voter=not peer.learner,
            )
        return response


def files_limit() -> float:
    """How many files this process may open: each client takes one. -1: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float(soft if soft != resource.RLIM_INFINITY else -1)


def caller_of(service: NodeService, context: Any) -> Caller:
    """By the call's metadata: `authorization: Bearer TOKEN`."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                return service.access.caller(token.strip())
    return service.access.caller("")


async def require(service: NodeService, context: Any, missing: Callable[[Rights], str]) -> Caller:
    """Who calls, or the end of the call."""
    caller = caller_of(service, context)
    refusal, error = await _refused(service, caller, missing)
    if refusal is not None and error is not None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"what the token may do cannot be confirmed: {error}")
    if refusal is not None:
        await context.abort(*_status_of(refusal))
    return caller


async def _refused(
    service: NodeService, caller: Caller, missing: Callable[[Rights], str]
) -> tuple[Refusal | None, RaftError | None]:
    """Why a call is refused, if it is, and why that cannot be confirmed, if so. This node's state may not know a token
    that is new: it is refused by one that holds all that was acknowledged before."""
    refusal = service.access.refusal(caller, missing)
    if refusal is None:
        return None, None
    passed: asyncio.Future[RaftError | None] = asyncio.get_running_loop().create_future()
    service.barrier.wait(partial(_resolve, passed))
    error = await passed
    return service.access.refusal(caller, missing), error


def _status_of(refusal: Refusal) -> tuple[grpc.StatusCode, str]:
    status, message = refusal
    if status == pb.READ_STATUS_DENIED:
        return grpc.StatusCode.PERMISSION_DENIED, str(denied(message))
    return grpc.StatusCode.UNAUTHENTICATED, message


def time_left(context: Any) -> float:
    """Seconds until the caller's deadline, or as long as a call without one may take."""
    left = context.time_remaining()
    return DEFAULT_TIMEOUT if left is None else min(max(left, 0.0), 60.0)


async def parse(kind: Any, data: bytes, context: Any) -> Any:
    """Decode a request, or end the call."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.name}")


def _resolve(future: "asyncio.Future[Any]", answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _nothing(_: str) -> None:
    """What is being gathered ends by itself: nobody else has a part in it."""


def _gather(
    future: "asyncio.Future[pb.ReadResult]",
    holding: Holding,
    job: ListJob,
    part: pb.ReadResult,
) -> None:
    """Put a list's slices together; an answer that does not fit into one message is refused, and one for which there is
    no room."""
    if future.done():
        job.cancel()
        return
    size = part.ByteSize()
    holding.count(2 * size)
    if size > limits.MAX_FRAME_SIZE:
        job.cancel()
        message = f"the answer exceeds {limits.MAX_FRAME_SIZE:,} bytes (MAX_FRAME_SIZE): ask for fewer rows"
        future.set_result(pb.ReadResult(id=part.id, status=pb.READ_STATUS_INVALID, message=message))
    elif not holding.takes(size, holding.ahead):
        job.deny(pb.READ_STATUS_OVERLOADED)
        message = holding.unread.refusal()
        future.set_result(pb.ReadResult(id=part.id, status=pb.READ_STATUS_OVERLOADED, message=message))
    elif part.more:
        job.keep(part)
        job.resume()
    else:
        future.set_result(part)
