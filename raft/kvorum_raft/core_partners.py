"""What the core works with besides the log: who hears of it, who moves snapshots for it, what is under way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.base import Base
from kvorum_raft.errors import RaftError
from kvorum_raft.seams import Applied

ProposalCallback = Callable[[Applied | None, RaftError | None], None]
"""Gets what was applied, or an error; neither if a change of the members is committed, and leadership ends before it is
applied here."""


@dataclass(slots=True)
class Transfer:
    """Of leadership, under way: no proposals are taken until the other one campaigns or the time is over."""

    to: Node
    deadline: float
    callback: Callable[[RaftError | None], None]
    asked: bool = False


@dataclass(slots=True)
class Install:
    """A snapshot that has become the beginning of the log, and will be the state as soon as that is durable."""

    base: Base
    seq: int
    adopt: Callable[[], None]
    """Makes it the state machine's state."""
    done: Callable[[], None]


class Listener(Protocol):
    """Who hears of what the core does; called in the event loop, between two steps of the core."""

    def applied(self, applied: Applied) -> None: ...

    def role_changed(self) -> None:
        """Leadership, or the leader known, changed."""

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        """Another configuration is in force, or the one in force was committed."""

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        """The leader answered `ask_leader`."""

    def state_hash(self, node: Node, message: pb.StateHash) -> None:
        """A member's content hash, or the leader's verdict about this node's."""


class Snapshots(Protocol):
    """Who moves snapshots for the core."""

    def needed_by(self, node: Node) -> None:
        """That peer cannot go on without one; said again as long as it is so."""

    def received(self, node: Node, envelope: pb.Envelope) -> None:
        """An offer or a part of one from the leader of this term. Raises ProtocolError."""

    def replied(self, node: Node, reply: pb.SnapshotReply) -> int | None:
        """An answer from a follower; returns the index up to which its log is complete now, if it says so."""

    def lost(self, node: Node) -> None:
        """The connection to that peer broke."""

    def forget(self, node: Node) -> None:
        """That peer is no member any more, or another folder has its name."""

    def stop_sending(self) -> None:
        """This node does not lead any more."""
