"""Cuts the log at its beginning, behind what checkpoints cover.

Behind the *older* of two, since the newest may turn out to be damaged; in small steps, since each is a transaction of
the log's own thread and the next append waits behind it. A follower that needs an entry which is gone needs a whole
snapshot, and behind that again the entries that came meanwhile. So some megabytes stay in any case, for one that was
away for a moment, however often checkpoints are made; and for a while what followers lack that are there and slow.
"""

from collections.abc import Callable
from typing import Final

from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.journal import RaftJournal
from kvorum_raft.pysyncobj_fixes import SafeSyncObj

AT_ONCE: Final = 256
"""Entries of one step."""
PAUSE: Final = 0.02
"""Seconds between steps."""
MAX_HELD: Final = 4
"""Times the bytes that stay in any case, by which the log grows while it waits for a slow follower; then that has to
take a snapshot."""


def nobody() -> int | None:
    """Nobody copies the log."""
    return None


class LogCutter:
    """`sending` gives the index of the oldest snapshot that is being sent, if any. `clock` gives seconds."""

    def __init__(
        self,
        core: SafeSyncObj,
        journal: RaftJournal,
        checkpoints: Checkpoints,
        sending: Callable[[], int | None],
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._journal = journal
        self._checkpoints = checkpoints
        self._sending = sending
        self._clock = clock
        self._goal = 0
        self._due = float("-inf")
        self._marks: list[tuple[int, int]] = []
        """Checkpoints that were made: (index, bytes of log that had been applied at it)."""
        self._held = self._counted = 0
        self.hold: Callable[[], int | None] = nobody
        """The last entry that may be cut off, for the sake of somebody who copies the log elsewhere; None: any."""

    def plan(self, applied: int, behind: int, keep: int, *, wanted: bool = False) -> None:
        """A checkpoint was made, or found at the start. Bytes of log: `applied` so far, `behind` the newest one, at
        least `keep` are to stay; but for one that was `wanted` all goes that can. One that lies ahead of the state (a
        snapshot that came too late, or was not installed) does not count."""
        if self._goal <= self._journal.base_index:
            self._held, self._counted = 0, applied
        elif wanted or applied - self._counted >= keep:
            self._held, self._counted = self._held + 1, applied
        usable = [one.base.index for one in self._checkpoints.manifests if one.base.index <= self._core.applied_index]
        known = {index for index, _ in self._marks}
        self._marks += [(index, applied - behind) for index in usable if index not in known]
        for index, at in self._marks:
            if len(usable) >= 2 and index <= usable[-2] and (wanted or applied - at >= keep):
                self._goal = max(self._goal, index)
        self._marks = [(index, at) for index, at in self._marks if index >= self._goal]

    def reset(self) -> None:
        """A snapshot became the state: the log begins anew."""
        self._goal = self._held = 0
        self._marks.clear()

    def tick(self) -> None:
        now, journal = self._clock(), self._journal
        if self._goal <= journal.base_index or now < self._due:
            return
        self._due = now + PAUSE
        bounds = [self._goal, journal.base_index + AT_ONCE, journal.durable_index, self._core.applied_index]
        held = self.hold()
        if held is not None:
            bounds.append(held)
        sending = self._sending()
        if sending is not None:
            bounds.append(sending)
        slowest = self._core.slowest_follower() if self._held < MAX_HELD else None
        if slowest is not None:
            bounds.append(slowest)
        if min(bounds) > journal.base_index:
            journal.cut_to(journal.base_at(min(bounds)))
