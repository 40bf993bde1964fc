"""Expiry: proposes a sweep when the earliest expiry or timer is due (rules D2). Leader only; apply decides about it.

Where something is due in every millisecond, as ends of deduplication windows may be, one sweep does for those of a
short while. What a sweep has left over (it is bounded in rows and bytes) is not kept waiting.
"""

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
PAUSE = 0.02
"""Seconds between two sweeps, if the first one has left nothing over."""


class ExpiryStore(Protocol):
    def next_expiry_ms(self) -> int | None: ...


class Sweeper:
    """Call `took_office`, `left_office`, and `expires` with the earliest expiry of each applied entry."""

    def __init__(self, store: ExpiryStore, consensus: Consensus, proposer: Proposer, timers: Timers) -> None:
        self._store = store
        self._consensus = consensus
        self._proposer = proposer
        self._timers = timers
        self._alarm = Alarm(timers, self._ring)
        self._earliest: int | None = None
        self._leading = False
        self._sweeping = False
        self._swept_for_ms = 0
        """The cluster's time when the sweep under way was proposed."""
        self._rests_until = 0.0
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
        wait = (self._earliest - self._consensus.now_ms()) / 1000
        self._alarm.set(max(at_least, wait, self._rests_until - self._timers.time()))

    def _ring(self) -> None:
        if not self._leading or self._sweeping:
            return
        # What seemed due may have been put off, as it is by each holder of a lock that touches it in time.
        self._earliest = self._store.next_expiry_ms()
        if self._earliest is None:
            return
        if self._earliest > self._consensus.now_ms() or self._rests_until > self._timers.time():
            self._plan(0.001)  # entry time is slewed against the loop's
            return
        self._sweeping = True
        self._swept_for_ms = self._consensus.now_ms()
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
        left_over = self._earliest is not None and self._earliest <= self._swept_for_ms
        if not left_over and deleted < limits.SWEEP_LIMIT:
            self._rests_until = self._timers.time() + PAUSE
        self._plan(0.0 if deleted else RETRY_DELAY)
