"""A leader's message to one follower, built once for all those that get the same."""

from typing import NamedTuple

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.entry import Entry


class AppendHeader(NamedTuple):
    """What tells one append from another: within a term the entries behind an index are always the same ones."""

    term: int
    prev_index: int
    prev_term: int
    entries: int
    """How many."""
    commit_index: int
    round: int
    urgent: bool
    time_ms: int
    checkpoint_turn: int

    def message(self, median_ms: int, entries: list[Entry]) -> pb.Envelope:
        """`median_ms` is 0 while the leader knows too few clocks."""
        envelope = pb.Envelope(term=self.term)
        body = envelope.append  # filled in place: a body that is passed in would be copied, entries and all
        body.prev_index = self.prev_index
        body.prev_term = self.prev_term
        body.commit_index = self.commit_index
        body.round = self.round
        body.urgent = self.urgent
        body.time_ms = self.time_ms
        body.median_ms = median_ms
        body.checkpoint_turn = self.checkpoint_turn
        body.entries.extend([entry.record for entry in entries])
        return envelope
