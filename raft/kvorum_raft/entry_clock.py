"""The cluster's time: what a new entry carries. Never goes back, and no single clock can poison it.

Wall clocks of the others arrive with their votes and replies and are kept as offsets against the local *monotonic*
clock, so that they stay comparable however old they are. The estimate of "now" is the **lower** median of a quorum's
clocks: a wrong minority cannot push it forward beyond a sound clock, and for a time that can only be raised, forward is
the direction that cannot be mended.

On taking office a leader starts at max(time of its last entry, that median); in a new log at the median. Steps of more
than a day happen only if the clocks of a quorum agree within a second. Afterwards the time runs on the monotonic clock,
at most 10 % faster or slower, towards the median. A follower extrapolates what its leader told it; that value is only a
guess and never enters the log.
"""

from collections.abc import Callable, Iterable
from typing import Final

MAX_STEP_MS: Final = 24 * 3_600_000
AGREEMENT_MS: Final = 1_000
MAX_SLEW: Final = 0.1
_SLEW_OVER_MS: Final = 10_000
_STALE_S: Final = 60.0
_PROMPT_S: Final = 0.4


class EntryClock:
    """`wall` gives Unix milliseconds, `monotonic` seconds; both are called, never stored over a sleep."""

    def __init__(self, node_id: str, wall: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._node_id = node_id
        self._wall = wall
        self._monotonic = monotonic
        self._offsets: dict[str, tuple[float, float]] = {}  # node id → (wall − monotonic in ms, when heard)
        self._late: dict[str, float] = {}  # the same from answers that took long: lower bounds of those clocks
        self._floor = 0
        self._base_ms = 0.0
        self._base_at = monotonic()
        self._rate = 1.0
        self._known = False
        self._leader_offset: float | None = None  # the leader's median − our monotonic clock

    def wall_ms(self) -> int:
        """This node's own wall clock, Unix milliseconds."""
        return self._wall()

    def observe(self, node_id: str, wall_ms: int, asked_at: float | None) -> None:
        """A wall clock that came with the answer to something sent at `asked_at`. An answer that took long would make
        the clock look slow, and is left out, except where a new log would otherwise begin with one clock's word."""
        now = self._monotonic()
        if asked_at is None or not wall_ms:
            return
        if now - asked_at <= _PROMPT_S:
            self._offsets[node_id] = (wall_ms - (now + asked_at) / 2 * 1000, now)
        else:
            self._late[node_id] = wall_ms - now * 1000

    def forget_others(self, members: Iterable[str]) -> None:
        """Keep the clocks of these nodes only."""
        kept = set(members)
        self._offsets = {node_id: offset for node_id, offset in self._offsets.items() if node_id in kept}
        self._late = {node_id: offset for node_id, offset in self._late.items() if node_id in kept}

    def _clocks(self) -> list[float]:
        now = self._monotonic()
        known = [offset for offset, heard in self._offsets.values() if now - heard < _STALE_S]
        return sorted([*(offset + now * 1000 for offset in known), float(self._wall())])

    def median_ms(self, quorum: int) -> int | None:
        """Lower median of the wall clocks known, or None if fewer than a quorum are."""
        clocks = self._clocks()
        return round(clocks[(len(clocks) - 1) // 2]) if len(clocks) >= quorum else None

    def _agreed_ms(self, quorum: int) -> int | None:
        """The lowest clock of a quorum whose clocks agree."""
        clocks = self._clocks()
        for low, high in zip(clocks, clocks[quorum - 1 :], strict=False):
            if high - low <= AGREEMENT_MS:
                return round(low)
        return None

    def take_office(self, last_entry_ms: int, quorum: int) -> None:
        """This node leads from now on."""
        self._rate = 1.0
        self._floor = max(self._floor, last_entry_ms)
        median = self.median_ms(quorum)
        if not self._floor:  # a new log has no time that could be stepped from
            self._start_at(float(median if median is not None else self._first_ms()))
            return
        self._start_at(float(self._floor))
        if median is None:
            return
        if self._base_ms < median <= self._base_ms + MAX_STEP_MS:
            self._start_at(float(median))
        elif median > self._base_ms:
            self._step_far(quorum)

    def _first_ms(self) -> float:
        """Where a new log begins if too few answers were prompt: those that took long count too. That may be some
        seconds too early, which mends itself; this node's clock alone could be a year ahead, which nothing mends."""
        now = self._monotonic()
        known = self._late | {node_id: offset for node_id, (offset, _) in self._offsets.items()}
        clocks = sorted([*(offset + now * 1000 for offset in known.values()), float(self._wall())])
        return clocks[(len(clocks) - 1) // 2]

    def _step_far(self, quorum: int) -> None:
        agreed = self._agreed_ms(quorum)
        if agreed is not None and agreed > self._base_ms:
            self._start_at(float(agreed))

    def _start_at(self, ms: float) -> None:
        self._base_ms, self._base_at, self._known = ms, self._monotonic(), True

    def jump(self, unix_ms: int) -> None:
        """Leader: an operator says that it is this late. Never back."""
        self._start_at(float(max(unix_ms, self.now_ms())))

    def leave_office(self) -> None:
        """This node no longer leads; it goes on from where its time stands."""
        self._start_at(float(self.now_ms()))
        self._rate = 1.0

    def steer(self, quorum: int) -> None:
        """Leader, about once a heartbeat: lean towards the median, or step if a quorum agrees that a day or more is
        missing."""
        self._start_at(self._run())
        median = self.median_ms(quorum)
        if median is None:
            self._rate = 1.0
            return
        missing = median - self._base_ms
        if missing > MAX_STEP_MS:
            self._step_far(quorum)
            missing = 0.0
        self._rate = 1.0 + min(max(missing / _SLEW_OVER_MS, -MAX_SLEW), MAX_SLEW)

    def follow(self, leader_ms: int, median_ms: int) -> None:
        """The leader's time and the median that it knows (0 for none), as an append brought them."""
        self._start_at(float(leader_ms))
        self._rate = 1.0
        self._leader_offset = median_ms - self._monotonic() * 1000 if median_ms else None

    def entry_seen(self, time_ms: int) -> None:
        """An entry of this time is in the log: nothing earlier may follow."""
        if time_ms > self._floor:
            self._floor = time_ms

    def own_offset_ms(self, quorum: int) -> float | None:
        """This node's wall clock minus the median that the last leader, or a quorum, knew; None if nobody knows one."""
        if self._leader_offset is not None:
            median: float | None = self._leader_offset + self._monotonic() * 1000
        else:
            median = self.median_ms(quorum)
        return None if median is None else self._wall() - median

    def own_clock_is_off(self, quorum: int) -> bool:
        """True if that is more than a second."""
        offset = self.own_offset_ms(quorum)
        return offset is not None and abs(offset) > AGREEMENT_MS

    def _run(self) -> float:
        return self._base_ms + (self._monotonic() - self._base_at) * 1000 * self._rate

    def now_ms(self) -> int:
        """The time of an entry made now; on a follower a guess. Never below an entry that was seen."""
        now = self._run() if self._known else float(self._wall())
        return max(int(now), self._floor)
