"""The members of the cluster, as a configuration entry of the log (or, before there is one, the formation record) names
them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.seams import Member

FORMAT: Final = 1
ID_SIZE: Final = 16
"""Bytes of a cluster id and of an incarnation."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A member and the one folder that may speak for it."""

    member: Member
    incarnation: bytes


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who decides. `cluster_id` is empty in a formation record."""

    cluster_id: bytes
    voters: tuple[Voter, ...]

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def incarnations(self) -> dict[str, bytes]:
        """Node id → incarnation."""
        return {voter.member.node_id: voter.incarnation for voter in self.voters}

    def voter(self, node_id: str) -> Voter | None:
        return next((voter for voter in self.voters if voter.member.node_id == node_id), None)

    def message(self) -> pb.Configuration:
        return pb.Configuration(
            format=FORMAT,
            cluster_id=self.cluster_id,
            voters=[
                pb.Voter(
                    node_id=voter.member.node_id,
                    incarnation=voter.incarnation,
                    peer_address=voter.member.peer_address,
                    client_address=voter.member.client_address,
                )
                for voter in self.voters
            ],
        )

    def encode(self) -> bytes:
        return self.message().SerializeToString(deterministic=True)


def make(cluster_id: bytes, voters: Iterable[Voter]) -> Configuration:
    """A configuration with its voters in the order of their ids, so that equal ones are equal bytes."""
    return Configuration(cluster_id, tuple(sorted(voters, key=lambda voter: voter.member.node_id)))


def from_message(message: pb.Configuration) -> Configuration:
    """Raises ConfigurationError for a newer format and ValueError for nonsense."""
    if message.format > FORMAT:
        raise ConfigurationError(
            f"the cluster's configuration has format {message.format}; this version knows formats up to {FORMAT}"
        )
    voters = [Voter(Member(v.node_id, v.peer_address, v.client_address), v.incarnation) for v in message.voters]
    ids = [voter.member.node_id for voter in voters]
    if not voters or len(set(ids)) != len(ids) or not all(ids):
        raise ValueError("a configuration without members, or with the same member twice")
    if any(len(voter.incarnation) != ID_SIZE for voter in voters) or len(message.cluster_id) not in (0, ID_SIZE):
        raise ValueError("a configuration with an incarnation or cluster id of a wrong length")
    return make(message.cluster_id, voters)


def decode(payload: bytes) -> Configuration:
    """Of an entry or record that passed its checksum: RaftFault if it cannot be read all the same."""
    try:
        return from_message(pb.Configuration.FromString(payload))
    except (DecodeError, ValueError) as error:
        raise RaftFault(f"a stored configuration cannot be read: {error}") from error
