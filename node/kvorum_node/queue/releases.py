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
    """`submit` proposes, `leading` says whether this node still may, `known` which entry it has heard of last; `kept`
    is told of leases that were extended before their Release came."""

    def __init__(
        self,
        book: HandsBook,
        timers: Timers,
        *,
        submit: Callable[[Proposal], None],
        leading: Callable[[], bool],
        known: Callable[[], int],
        kept: Callable[[HeldLease], None],
    ) -> None:
        self._book = book
        self._timers = timers
        self._submit = submit
        self._leading = leading
        self._known = known
        self._kept = kept

    def release(self, leases: Sequence[tuple[HeldLease, bool]], due: bool = False) -> None:
        """End these leases; each says whether it uses up an attempt of its message. `due`: because their time is over,
        so unless it is not by then."""
        waiting = [(lease, counts) for lease, counts in leases if not lease.releasing]
        for begin in range(0, len(waiting), CHUNK):
            chunk = waiting[begin : begin + CHUNK]
            command = pb.Command()
            if due:
                command.release.known = self._known()
            for lease, counts in chunk:
                lease.releasing = True
                command.release.leases.add(message_id=lease.message_id, lease_id=lease.lease_id, counts=counts)
            self._submit(proposal(command, partial(self._released, chunk, due), weight=len(chunk)))

    def _released(
        self, chunk: Sequence[tuple[HeldLease, bool]], due: bool, output: Any, error: RaftError | None
    ) -> None:
        del output
        for lease, _ in chunk:
            lease.releasing = False
        if error is None:
            for lease, _ in self._still_held(chunk):
                self._kept(lease)
        elif self._leading() and not isinstance(error, NotLeader):
            self._timers.call_later(RETRY_DELAY, self._again, chunk, due)

    def _again(self, chunk: Sequence[tuple[HeldLease, bool]], due: bool) -> None:
        if self._leading():
            self.release(self._still_held(chunk), due)

    def _still_held(self, chunk: Sequence[tuple[HeldLease, bool]]) -> list[tuple[HeldLease, bool]]:
        known = self._book.leases
        return [(lease, counts) for lease, counts in chunk if known.get(lease.lease_id) is lease]
