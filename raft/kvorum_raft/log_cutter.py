"""Cuts the log at its beginning, behind what checkpoints cover.

Behind the *older* of two, since the newest may turn out to be damaged; in small steps, since each is a transaction of
the log's own thread and the next append waits behind it; and for a while behind what followers still lack, since one
that needs an entry which is gone needs a whole snapshot, and behind that again the entries that came meanwhile.
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
"""Checkpoints that are made while the log waits for a slow follower; then it has to take a snapshot."""


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
        self._held = 0
        self.hold: Callable[[], int | None] = nobody
        """The last entry that may be cut off, for the sake of somebody who copies the log elsewhere; None: any."""
        self.plan()

    def plan(self) -> None:
        """A checkpoint was made. One that lies ahead of the state (a snapshot that came too late, or was not installed)
        does not count."""
        self._held = self._held + 1 if self._goal > self._journal.base_index else 0
        usable = [one.base.index for one in self._checkpoints.manifests if one.base.index <= self._core.applied_index]
        if len(usable) >= 2:
            self._goal = usable[-2]

    def reset(self) -> None:
        """A snapshot became the state: the log begins anew."""
        self._goal = self._held = 0

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
