"""A disk for `RaftJournal` that forgets what was not synced."""

from collections import deque
from dataclasses import dataclass, field

from kvorum_raft.base import Base
from kvorum_raft.entry import Entry, Kind, parse
from kvorum_raft.journal import Batch, HardState, Stored
from tests.simulation.links import Broken


@dataclass
class SimDisk:
    """Batches become durable when `sync` says so; `crash` forgets the others."""

    entries: dict[int, bytes] = field(default_factory=dict)
    state: HardState = field(default_factory=HardState)
    records: dict[bytes, bytes] = field(default_factory=dict)
    base: Base | None = None
    pending: deque[Batch] = field(default_factory=deque)

    def submit(self, batch: Batch) -> None:
        self.pending.append(batch)

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        while first + len(found) in self.entries and len(found) < count and size <= max_bytes:
            found.append(parse(self.entries[first + len(found)]))
            size += found[-1].size
        return found

    def write_one(self) -> int:
        batch = self.pending.popleft()
        if batch.reset:
            self.entries.clear()
        if batch.truncate_from is not None:
            for index in [index for index in self.entries if index >= batch.truncate_from]:
                del self.entries[index]
        self.entries.update((entry.index, entry.record) for entry in batch.entries)
        self.records.update(batch.records)
        if batch.base is not None:
            self.base = batch.base
            for index in [index for index in self.entries if index <= batch.base.index]:
                del self.entries[index]
        self.state = batch.state
        first, last = self.state.base_index + 1, self.state.last_index
        ends = (min(self.entries), max(self.entries)) if self.entries else (first, last)
        if len(self.entries) != last - first + 1 or ends != (first, last):
            raise Broken("the disk holds a log with a hole")
        if (self.base.index if self.base is not None else 0) != self.state.base_index:
            raise Broken("the disk holds a log that begins elsewhere than its base says")
        return batch.seq

    def crash(self) -> None:
        self.pending.clear()

    def stored(self) -> Stored:
        entries = [parse(self.entries[index]) for index in sorted(self.entries)]
        if self.state.commit_bound > self.state.last_index:
            raise Broken("the log ends below its commit bound")
        runs: list[tuple[int, int]] = []
        for entry in entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        commands = [entry.index for entry in entries if entry.kind is Kind.COMMAND]
        configurations = [entry for entry in entries if entry.kind is Kind.CONFIGURATION]
        first_command = commands[0] if commands else None
        if self.base is not None:
            configurations.insert(0, parse(self.base.configuration))
            first_command = self.base.index
        return Stored(
            self.state, runs, entries[-3:], configurations, first_command, self.base, sum(one.size for one in entries)
        )
