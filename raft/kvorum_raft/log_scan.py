"""What a start makes sure of before a node relies on its log: each entry is whole, and they follow one another to the
end."""

from kvorum_raft.base import Base
from kvorum_raft.entry import DamagedRecord, Entry, Kind, parse
from kvorum_raft.journal import OVERHEAD, HardState


def key_of(index: int) -> bytes:
    """Under which the log's table has an entry."""
    return index.to_bytes(8, "big")


class Scan:
    """Checks the log entry by entry and gathers what the journal needs."""

    def __init__(self, state: HardState, base: Base | None, cache: int) -> None:
        self.last_index, self.last_term = state.base_index, state.base_term
        self.runs: list[tuple[int, int]] = []
        self.tail: list[Entry] = []
        self.configurations: list[Entry] = [] if base is None else [parse(base.configuration)]
        self.first_command: int | None = None if base is None else base.index
        self._last_time = 0 if base is None else base.time_ms
        self._cache = cache
        self._size = 0
        self.size = 0

    def take(self, key: bytes, value: bytes) -> None:
        """Raises DamagedRecord."""
        entry = parse(value)
        if key != key_of(entry.index) or entry.index != self.last_index + 1:
            raise DamagedRecord(f"entry {self.last_index + 1} is missing")
        if entry.term < self.last_term or entry.time_ms < self._last_time:
            raise DamagedRecord(f"entry {entry.index} is older than the one before it")
        if entry.term != self.last_term:
            self.runs.append((entry.index, entry.term))
        if entry.kind is Kind.CONFIGURATION:
            self.configurations.append(entry)
        elif entry.kind is Kind.COMMAND and self.first_command is None:
            self.first_command = entry.index
        self.last_index, self.last_term, self._last_time = entry.index, entry.term, entry.time_ms
        self.size += entry.size
        self.tail.append(entry)
        self._size += entry.size + OVERHEAD
        if self._size > 2 * self._cache:
            self._trim()

    def end(self, state: HardState, count: int) -> None:
        """This is all of it: what a transaction with this state left, in so many records. Raises DamagedRecord."""
        if self.last_index < state.commit_bound:
            raise DamagedRecord(f"it ends at entry {self.last_index}, but entry {state.commit_bound} was committed")
        if self.last_index != state.last_index or count != state.last_index - state.base_index:
            raise DamagedRecord(f"it ends at entry {self.last_index} of {state.last_index} ({count} records)")
        if self.last_term > state.term:
            raise DamagedRecord(f"term {state.term} is older than its last entry's {self.last_term}")

    def _trim(self) -> None:
        drop = 0
        while self._size > self._cache and drop < len(self.tail) - 1:
            self._size -= self.tail[drop].size + OVERHEAD
            drop += 1
        del self.tail[:drop]
