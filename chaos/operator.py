"""What an operator does to the members of a cluster: asks the leader, whoever that is, until it is done."""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from kvorum._proto import kvorum_pb2 as pb

from .arena import Arena

A = TypeVar("A", bound=Message)
IsDone = Callable[[Mapping[str, bool]], bool]
"""Looks at the members: whether each is a voter, by its id."""

PATIENCE: Final = 60.0
CALL: Final = 10.0
"""Seconds for one answer."""
PAUSE: Final = 0.05
_AGAIN: Final = (
    grpc.StatusCode.FAILED_PRECONDITION,  # another one leads
    grpc.StatusCode.ABORTED,  # another change is under way
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class ChangeFailed(Exception):
    """The cluster refused, or did not do it in time."""


class Operator:
    """Synchronous. Node numbers count from 0, as those of the arena.

    Each method returns when the members are as asked, whoever did it: an answer may be lost on the way. Errors:
    ChangeFailed, ClusterFailed.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def members(self) -> pb.MembersResponse:
        """As the leader sees them."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._call(self._arena.leader(), "Members", pb.MembersRequest(), pb.MembersResponse)
            except grpc.RpcError as error:
                self._again(error, "members", deadline)

    def add(self, number: int) -> None:
        """Make a learner of a node that waits."""
        request = pb.AddMemberRequest(
            node_id=_id(number),
            peer_address=self._arena.peer_address(number),
            client_address=self._arena.client_address(number),
        )
        self._change("AddMember", request, lambda now: _id(number) in now)

    def replace(self, number: int) -> None:
        """Put the empty folder of a node that waits in the place of its lost one."""
        request = pb.ReplaceRequest(
            node_id=_id(number),
            peer_address=self._arena.peer_address(number),
            client_address=self._arena.client_address(number),
        )
        self._change("Replace", request, lambda now: now.get(_id(number)) is False)

    def promote(self, number: int, patience: float = PATIENCE) -> None:
        """Make a voter of a learner, as soon as it has enough."""
        self._change(
            "Promote", pb.PromoteRequest(node_id=_id(number)), lambda now: now.get(_id(number)) is True, patience
        )

    def remove(self, number: int) -> None:
        """Take a member out."""
        self._change("Remove", pb.RemoveRequest(node_id=_id(number)), lambda now: _id(number) not in now)

    def transfer(self, number: int | None = None) -> None:
        """Let another node lead. One attempt; ChangeFailed if it says no."""
        request = pb.TransferRequest(node_id="" if number is None else _id(number))
        try:
            self._call(self._arena.leader(), "Transfer", request, pb.AdminResponse)
        except grpc.RpcError as error:
            raise ChangeFailed(f"transfer: {error.code().name} {error.details()}") from error

    def _change(self, method: str, request: Message, is_done: IsDone, patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                self._call(self._arena.leader(), method, request, pb.AdminResponse)
            except grpc.RpcError as error:
                # What an earlier attempt has done, whose answer was lost, cannot be done again; and a learner that
                # lacks too much cannot be promoted yet.
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT and is_done(self._voters()):
                    return
                self._again(error, method, deadline, learner=method == "Promote")
                continue
            if is_done(self._voters()):
                return

    def _voters(self) -> dict[str, bool]:
        return {member.node_id: member.voter for member in self.members().members}

    def _again(self, error: grpc.RpcError, what: str, deadline: float, *, learner: bool = False) -> None:
        """Wait a moment, if it makes sense to try again."""
        may = error.code() in _AGAIN or (learner and error.code() == grpc.StatusCode.INVALID_ARGUMENT)
        if not may or time.monotonic() > deadline:
            raise ChangeFailed(f"{what}: {error.code().name} {error.details()}") from error
        time.sleep(PAUSE)

    def _call(self, number: int, method: str, request: Message, answer: type[A]) -> A:
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(self._arena.client_address(number), options=options) as channel:
            call = channel.unary_unary(
                f"/kvorum.v1.Admin/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            done: A = call(request, timeout=CALL)
            return done


def _id(number: int) -> str:
    return f"n{number + 1}"
