"""The members of the cluster, as a configuration entry of the log (or, before there is one, the formation record) names
them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from google.protobuf.message import DecodeError

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.seams import Member

FORMAT: Final = 1
MAX_MEMBERS: Final = 15
ID_SIZE: Final = 16
"""Bytes of a cluster id and of an incarnation."""


MAX_REMOVED: Final = 1000
"""Removed incarnations that a configuration remembers."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A member and the one folder that may speak for it. A learner receives the log and counts nowhere."""

    member: Member
    incarnation: bytes
    learner: bool = False


@dataclass(frozen=True)
class Configuration:
    """Who decides. `cluster_id` is empty in a formation record. What follows from the members is worked out once: it is
    asked for with every message."""

    cluster_id: bytes
    members: tuple[Voter, ...]
    """The learners too."""
    removed: tuple[bytes, ...] = ()
    """Incarnations that never come back, the newest at the end."""

    @cached_property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    @cached_property
    def incarnations(self) -> Mapping[str, bytes]:
        """Node id → incarnation, of all members."""
        return {one.member.node_id: one.incarnation for one in self.members}

    @cached_property
    def voters(self) -> frozenset[str]:
        """Ids of those who count."""
        return frozenset(one.member.node_id for one in self.members if not one.learner)

    def find(self, node_id: str) -> Voter | None:
        return next((one for one in self.members if one.member.node_id == node_id), None)

    # -- single steps; each changes at most one voter, so the quorums before and after share a node

    def with_learner(self, member: Member, incarnation: bytes) -> "Configuration":
        """Add a learner. Raises ValueError."""
        if self.find(member.node_id) is not None:
            raise ValueError(f"node {member.node_id} is a member already")
        if len(self.members) >= MAX_MEMBERS:
            raise ValueError(f"{len(self.members)} members; at most {MAX_MEMBERS} are supported")
        if incarnation in self.removed:
            raise ValueError(f"the folder of node {member.node_id} was a member once and was removed: empty it first")
        return make(self.cluster_id, [*self.members, Voter(member, incarnation, learner=True)], self.removed)

    def with_promoted(self, node_id: str) -> "Configuration":
        """Make a learner a voter. Raises ValueError."""
        found = self._known(node_id)
        if not found.learner:
            raise ValueError(f"node {node_id} is a voter already")
        return self._changed(replace(found, learner=False))

    def without(self, node_id: str) -> "Configuration":
        """Remove a member; its folder never comes back. Raises ValueError."""
        found = self._known(node_id)
        if not found.learner and len(self.voters) == 1:
            raise ValueError(f"node {node_id} is the only voter")
        left = [one for one in self.members if one is not found]
        return make(self.cluster_id, left, (*self.removed, found.incarnation)[-MAX_REMOVED:])

    def with_replaced(self, member: Member, incarnation: bytes) -> "Configuration":
        """Take away the voter or learner of that id and put another folder there, as a learner. Raises ValueError."""
        return self.without(member.node_id).with_learner(member, incarnation)

    def with_addresses(self, member: Member) -> "Configuration":
        """Raises ValueError."""
        return self._changed(replace(self._known(member.node_id), member=member))

    def _known(self, node_id: str) -> Voter:
        found = self.find(node_id)
        if found is None:
            names = ", ".join(one.member.node_id for one in self.members)
            raise ValueError(f"node {node_id} is not a member: the members are {names}")
        return found

    def _changed(self, new: Voter) -> "Configuration":
        members = [new if one.member.node_id == new.member.node_id else one for one in self.members]
        return make(self.cluster_id, members, self.removed)

    def message(self) -> pb.Configuration:
        return pb.Configuration(
            format=FORMAT,
            cluster_id=self.cluster_id,
            voters=[
                pb.Voter(
                    node_id=one.member.node_id,
                    incarnation=one.incarnation,
                    peer_address=one.member.peer_address,
                    client_address=one.member.client_address,
                    learner=one.learner,
                )
                for one in self.members
            ],
            removed=self.removed,
        )

    def encode(self) -> bytes:
        return self.message().SerializeToString(deterministic=True)


def make(cluster_id: bytes, members: Iterable[Voter], removed: Iterable[bytes] = ()) -> Configuration:
    """A configuration with its members in the order of their ids, so that equal ones are equal bytes."""
    return Configuration(cluster_id, tuple(sorted(members, key=lambda one: one.member.node_id)), tuple(removed))


def from_message(message: pb.Configuration) -> Configuration:
    """Raises ConfigurationError for a newer format and ValueError for nonsense."""
    if message.format > FORMAT:
        raise ConfigurationError(
            f"the cluster's configuration has format {message.format}; this version knows formats up to {FORMAT}"
        )
    if len(message.voters) > MAX_MEMBERS or len(message.removed) > MAX_REMOVED:
        raise ValueError("a configuration with too many members")
    members = [
        Voter(Member(v.node_id, v.peer_address, v.client_address), v.incarnation, v.learner) for v in message.voters
    ]
    ids = [one.member.node_id for one in members]
    if len(set(ids)) != len(ids) or not all(ids) or all(one.learner for one in members):
        raise ValueError("a configuration without voters, or with the same member twice")
    incarnations = [*(one.incarnation for one in members), *message.removed]
    if any(len(one) != ID_SIZE for one in incarnations) or len(message.cluster_id) not in (0, ID_SIZE):
        raise ValueError("a configuration with an incarnation or cluster id of a wrong length")
    return make(message.cluster_id, members, message.removed)


def decode(payload: bytes) -> Configuration:
    """Of an entry or record that passed its checksum: RaftFault if it cannot be read all the same."""
    try:
        return from_message(pb.Configuration.FromString(payload))
    except (DecodeError, ValueError) as error:
        raise RaftFault(f"a stored configuration cannot be read: {error}") from error
