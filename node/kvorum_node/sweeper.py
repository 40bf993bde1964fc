"""Expiry: proposes a sweep when the earliest expiry is due (rules D2). Leader only; apply decides what is deleted."""

from typing import Any, Protocol

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import NotLeader, RaftError
from kvorum_raft.seams import Consensus

from .proposer import Proposer, proposal
from .timers import Alarm, Timers

RETRY_DELAY = 0.05
"""Seconds before a refused sweep is proposed again, and between sweeps that find nothing although something
seemed due.
"""


class ExpiryStore(Protocol):
    def next_expiry_ms(self) -> int | None: ...


class Sweeper:
    """Call `took_office`, `left_office`, and `expires` with the earliest expiry of each applied entry."""

    def __init__(self, store: ExpiryStore, consensus: Consensus, proposer: Proposer, timers: Timers) -> None:
        self._store = store
        self._consensus = consensus
        self._proposer = proposer
        self._alarm = Alarm(timers, self._ring)
        self._earliest: int | None = None
        self._leading = False
        self._sweeping = False
        self._sweeps = self._deleted = 0

    def took_office(self) -> None:
        self._leading = True
        self._sweeping = False
        self._look()

    def left_office(self) -> None:
        self._leading = False
        self._alarm.cancel()

    def expires(self, at_ms: int | None) -> None:
        """An applied entry has set an expiry."""
        if self._leading and at_ms is not None and (self._earliest is None or at_ms < self._earliest):
            self._earliest = at_ms
            self._plan()

    def time_moved(self) -> None:
        """The cluster's time has jumped ahead of the loop's."""
        if self._leading:
            self._plan()

    def statistics(self) -> dict[str, float]:
        return {"sweeps": self._sweeps, "swept_keys": self._deleted}

    def _look(self) -> None:
        self._earliest = self._store.next_expiry_ms()
        self._plan()

    def _plan(self, at_least: float = 0.0) -> None:
        if self._earliest is None or self._sweeping:
            return
        self._alarm.set(max(at_least, (self._earliest - self._consensus.now_ms()) / 1000))

    def _ring(self) -> None:
        if not self._leading or self._sweeping:
            return
        # What seemed due may have been put off, as it is by each holder of a lock that touches it in time.
        self._earliest = self._store.next_expiry_ms()
        if self._earliest is None:
            return
        if self._earliest > self._consensus.now_ms():
            self._plan(0.001)  # entry time is slewed against the loop's
            return
        self._sweeping = True
        command = pb.Command(sweep=pb.Sweep(limit=limits.SWEEP_LIMIT))
        self._proposer.submit(proposal(command, self._swept, weight=64), urgent=True)

    def _swept(self, deleted: Any, error: RaftError | None) -> None:
        self._sweeping = False
        if error is not None:
            if self._leading and not isinstance(error, NotLeader):
                self._alarm.set(RETRY_DELAY)
            return
        self._sweeps += 1
        self._deleted += deleted
        if not self._leading:
            return
        self._earliest = self._store.next_expiry_ms()
        self._plan(0.0 if deleted else RETRY_DELAY)
