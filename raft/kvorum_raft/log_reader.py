"""What a node's log holds of what was applied: for whoever copies it elsewhere."""

from collections.abc import Callable
from typing import Final

from kvorum_raft.entry import Entry
from kvorum_raft.journal import RaftJournal

AT_ONCE: Final = 1024
"""Entries of one read."""


class LogReader:
    """Of one node that runs. Everything is called in the event loop."""

    def __init__(self, journal: RaftJournal, applied: Callable[[], int]) -> None:
        self._journal = journal
        self._applied = applied

    @property
    def base_index(self) -> int:
        """The last entry that was cut off; the log begins behind it."""
        return self._journal.base_index

    @property
    def applied_index(self) -> int:
        """The last entry that was applied, so that it is committed."""
        return self._applied()

    def term_at(self, index: int) -> int:
        """Of an entry in the log, or of its base; 0 outside of it."""
        return self._journal.term_at(index) or 0

    def entries(self, first: int, max_bytes: int) -> list[Entry]:
        """Applied entries from `first` on, at least one if there is one; empty if there is none (yet). Old ones come
        from the disk. Raises ValueError if `first` was cut off, RaftFault on damage."""
        if first <= self._journal.base_index:
            raise ValueError(f"entry {first} was cut off: the log begins behind entry {self._journal.base_index}")
        count = min(self._applied() - first + 1, AT_ONCE)
        return self._journal.entries(first, count, max_bytes) if count > 0 else []
