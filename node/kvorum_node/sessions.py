"""Idle sessions are closed by an entry of the log (rules C2).

Leader only; an open connection that named a session is traffic.
"""

from functools import partial
from typing import Any, Protocol

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import RaftError

from .proposer import Proposer, proposal
from .timers import Alarm, Timers

CLOSE_CHUNK = 256
"""Sessions closed by one command: each may hold a window of stored results."""


class SessionStore(Protocol):
    def session_ids(self) -> list[bytes]: ...


class SessionKeeper:
    """Remembers when each session was last connected, oldest first. `idle` is seconds."""

    def __init__(
        self, store: SessionStore, proposer: Proposer, timers: Timers, *, idle: float = limits.SESSION_IDLE / 1000
    ) -> None:
        self._store = store
        self._proposer = proposer
        self._timers = timers
        self._idle = idle
        self._seen: dict[bytes, float] = {}
        self._connections: dict[bytes, int] = {}
        self._alarm = Alarm(timers, self._look)
        self._leading = False
        self._closed = 0

    def connected(self, session: bytes) -> None:
        self._connections[session] = self._connections.get(session, 0) + 1

    def disconnected(self, session: bytes) -> None:
        left = self._connections.get(session, 0) - 1
        if left > 0:
            self._connections[session] = left
            return
        self._connections.pop(session, None)
        if session in self._seen:
            self._touch(session)

    def took_office(self) -> None:
        """A full period anew for all."""
        self._leading = True
        self._seen = dict.fromkeys(self._store.session_ids(), self._timers.time())
        self._alarm.set(self._idle)

    def left_office(self) -> None:
        self._leading = False
        self._seen.clear()
        self._alarm.cancel()

    def opened(self, session: bytes) -> None:
        """A session was opened through this node."""
        if self._leading and session:
            self._touch(session)

    def closed(self, sessions: list[bytes]) -> None:
        """An entry has closed these."""
        for session in sessions:
            self._seen.pop(session, None)
        self._closed += len(sessions)

    def statistics(self) -> dict[str, float]:
        return {"sessions_connected": len(self._connections), "sessions_closed": self._closed}

    def _touch(self, session: bytes) -> None:
        self._seen.pop(session, None)
        self._seen[session] = self._timers.time()

    def _look(self) -> None:
        if not self._leading:
            return
        now = self._timers.time()
        idle: list[bytes] = []
        while self._seen and len(idle) < CLOSE_CHUNK:
            session, seen = next(iter(self._seen.items()))
            if seen + self._idle > now:
                break
            self._touch(session)  # to the end of the line: a proposal that fails is repeated a period later
            if session not in self._connections:
                idle.append(session)
        if idle:
            command = pb.Command(close_sessions=pb.CloseSessions(sessions=idle))
            self._proposer.submit(proposal(command, partial(self._asked, idle), weight=64), urgent=True)
        oldest = next(iter(self._seen.values()), now)
        self._alarm.set(max(oldest + self._idle - now, min(1.0, self._idle / 10)))

    def _asked(self, sessions: list[bytes], output: Any, error: RaftError | None) -> None:
        """Nothing to do: `closed` hears of success, and failures come round again."""
