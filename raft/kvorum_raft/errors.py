"""Errors of the consensus layer. `definite` says whether the proposal was certainly not applied."""

from typing import ClassVar


class RaftError(Exception):
    """Base of this package's errors."""

    definite: ClassVar[bool] = False


class NotLeader(RaftError):
    """This node does not lead (any more); nothing was appended."""

    definite = True


class Overloaded(RaftError):
    """Too much is waiting to be committed; nothing was appended."""

    definite = True


class ChangePending(RaftError):
    """Another change of the members is not committed yet, the leader has not met all that it concerns, or too few of
    the voters answer at the moment; nothing was appended: try again."""

    definite = True


class NoSpace(RaftError):
    """A voter's disk is nearly full: nothing that makes the state grow is taken; nothing was appended."""

    definite = True


class Discarded(RaftError):
    """Another leader's entry was committed in its place: certainly not applied."""

    definite = True


class UnknownOutcome(RaftError):
    """Leadership was lost, or the node stops, with the entry in the log: it may be committed by another leader."""


class ConfigurationError(RaftError):
    """The node cannot start with this configuration or folder; the message is one line for the operator."""


class Refused(ConfigurationError):
    """This folder may not take part: emptied, rolled back, of another node or of another cluster.

    `lasting` says that the folder itself has lost promises, so that a marker keeps it down until it is replaced.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class RaftFault(RaftError):
    """An invariant is broken or the disk failed: the process must stop, and nothing may be sent any more."""


class Diverged(RaftFault):
    """The state is not what the majority has: it must be thrown away."""


class DiskFull(RaftFault):
    """The log or the state found no room; nothing of what failed was acknowledged."""


class ProtocolError(RaftError):
    """What arrived on a connection cannot come from a sound peer: the connection is closed, the node goes on."""
