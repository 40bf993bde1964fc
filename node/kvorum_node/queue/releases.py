"""Ending leases by the log: `Release` commands in chunks, proposed again until they are applied or others lead."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import NotLeader, RaftError

from ..proposer import Proposal, proposal
from ..timers import Timers
from .hands import HandsBook, HeldLease

CHUNK = 256
"""Leases in one Release command."""
RETRY_DELAY = 0.25
"""Seconds before a command is proposed again that the proposer had no room for."""


class Releases:
    """`submit` proposes, `leading` says whether this node still may."""

    def __init__(
        self, book: HandsBook, timers: Timers, *, submit: Callable[[Proposal], None], leading: Callable[[], bool]
    ) -> None:
        self._book = book
        self._timers = timers
        self._submit = submit
        self._leading = leading

    def release(self, leases: Sequence[tuple[HeldLease, bool]]) -> None:
        """End these leases; each says whether it uses up an attempt of its message."""
        waiting = [(lease, counts) for lease, counts in leases if not lease.releasing]
        for begin in range(0, len(waiting), CHUNK):
            chunk = waiting[begin : begin + CHUNK]
            command = pb.Command()
            for lease, counts in chunk:
                lease.releasing = True
                command.release.leases.add(message_id=lease.message_id, lease_id=lease.lease_id, counts=counts)
            self._submit(proposal(command, partial(self._released, chunk), weight=len(chunk)))

    def _released(self, chunk: Sequence[tuple[HeldLease, bool]], output: Any, error: RaftError | None) -> None:
        del output
        if error is None:
            return
        for lease, _ in chunk:
            lease.releasing = False
        if self._leading() and not isinstance(error, NotLeader):
            self._timers.call_later(RETRY_DELAY, self._again, chunk)

    def _again(self, chunk: Sequence[tuple[HeldLease, bool]]) -> None:
        if self._leading():
            known = self._book.leases
            self.release([(lease, counts) for lease, counts in chunk if known.get(lease.lease_id) is lease])
