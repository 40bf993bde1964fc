"""Whose turn it is to make a checkpoint: of all nodes at most one makes one at a time, so that a majority's logs have
their disks for themselves.

All nodes' logs grow alike, so their checkpoints fall due at the same moment. If all made theirs then, each write would
wait for a disk that is busy with gigabytes; while one does, a leader and a follower that are not disturbed commit all
the same. So each follower says in its answers whether one is due or is being made, and the leader says in its appends
who may begin. It gives the turn to who has gone longest without, and to itself after others that are due.

Nothing depends on it but time: a turn that is lost, or believed by two after a change of leaders, costs a slower
moment. Who is not given one begins anyway before its log grows too long, see `checkpointer`.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

PATIENCE: Final = 5.0
"""Seconds until a node that was given the turn and has not begun goes to the end of the queue."""
GRACE: Final = 1.0
"""Seconds that the leader's own is due before it counts: those of the others fall due in the same moment, but the
leader hears of them a little later."""


class Need(IntEnum):
    """What a node says of its own checkpoint; the numbers travel."""

    NONE = 0
    DUE = 1
    BUSY = 2

    @classmethod
    def received(cls, number: int) -> "Need":
        """From a peer. What a later version may mean by another number is no need for a turn."""
        return _NEEDS.get(number, cls.NONE)


class Turn(IntEnum):
    """What the leader says to a node; the numbers travel."""

    UNSAID = 0
    """There is no leader, or one of a version that does not say."""
    WAIT = 1
    GO = 2

    @classmethod
    def received(cls, number: int) -> "Turn":
        """From a leader."""
        return _TURNS.get(number, cls.UNSAID)


_NEEDS: Final = {need.value: need for need in Need}
_TURNS: Final = {turn.value: turn for turn in Turn}


class Turns:
    """The leader's part, from the beginning of its office."""

    def __init__(self) -> None:
        self._needs: dict[str, Need] = {}
        self._holder: str | None = None
        self._given_at = 0.0
        self._due_since: float | None = None
        """The leader's own."""
        self._given = 0
        self._last: dict[str, int] = {}

    def heard(self, node_id: str, need: Need) -> None:
        """What that node has answered."""
        self._needs[node_id] = need

    def forget(self, node_id: str) -> None:
        """Its connection broke: what it does now is not known."""
        self._needs.pop(node_id, None)

    def decide(self, now: float, own_id: str, own: Need, alive: Iterable[str]) -> None:
        """Once in each round. `own` is the leader's need; `alive` are the other nodes that answer. As long as one of
        them has not said what it does, nobody is given the turn."""
        needs = {node_id: self._needs.get(node_id) for node_id in alive}
        needs[own_id] = self._own(now, own)
        self._last = {node_id: number for node_id, number in self._last.items() if node_id in needs}
        if None in needs.values() or Need.BUSY in needs.values():
            self._holder = None  # who has begun does not begin again with the same turn
            return
        if self._holder is not None and needs.get(self._holder) is Need.DUE and now - self._given_at < PATIENCE:
            return
        due = [node_id for node_id, need in needs.items() if need is Need.DUE]
        self._holder = min(due, key=lambda one: (self._last.get(one, 0), one == own_id, one), default=None)
        if self._holder is not None:
            self._given += 1
            self._given_at, self._last[self._holder] = now, self._given

    def _own(self, now: float, need: Need) -> Need:
        if need is not Need.DUE:
            self._due_since = None
        elif self._due_since is None:
            self._due_since = now
        return Need.NONE if self._due_since is not None and now - self._due_since < GRACE else need

    def of(self, node_id: str) -> Turn:
        """What to say to that node."""
        return Turn.GO if node_id == self._holder else Turn.WAIT
