"""The log as the Raft core sees it: always complete in indices and terms, with the newest part in memory.

Every mutation (append, truncation, term and vote, a small record) gets a sequence number, and the disk reports the
number up to which everything is synced. Durability is judged by these numbers, never by indices: an index that was
durable, cut off and written again is not durable before the *second* write is, and only the sequence number tells the
two writes apart. `durable_index` follows from it.

Terms are kept as runs (first index of each term), a few per election, so that the term of any index is known without
reading. Entries are kept up to a bound of bytes, never evicted before they are durable; older ones are read from the
disk.

The class fulfils PySyncObj's Journal contract, so that the status functions and helpers of the base class work on it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from pysyncobj.journal import Journal

from kvorum_raft.base import Base
from kvorum_raft.entry import Entry, Kind, parse
from kvorum_raft.errors import RaftFault

_EVICT_AT_ONCE: Final = 2048
OVERHEAD: Final = 256
"""Bytes of an entry's objects beside its record, as the cache counts them."""


class HardState(NamedTuple):
    """Written with every log transaction."""

    term: int = 0
    vote: str = ""
    """Node id that got this node's vote in `term`; empty for none."""
    commit_bound: int = 0
    """Lower bound of the commit index, never beyond the last entry of the same transaction."""
    last_index: int = 0
    base_index: int = 0
    base_term: int = 0


@dataclass(slots=True)
class Batch:
    """Mutations to be written in one transaction, in this order: reset, cut, append, base, small records."""

    seq: int
    state: HardState
    truncate_from: int | None = None
    entries: list[Entry] = field(default_factory=list)
    records: dict[bytes, bytes] = field(default_factory=dict)
    """An empty value takes the record away."""
    reset: bool = False
    """Forget all entries first."""
    base: Base | None = None
    """The log begins behind it from now on."""


class Disk(Protocol):
    """Where a journal is stored."""

    def submit(self, batch: Batch) -> None:
        """Write the batch after all earlier ones; completion is reported to the journal's `on_durable`, in order."""
        ...

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        """Durable entries from `first` on, at least one if it exists. Raises RaftFault on damage."""
        ...


class Stored(NamedTuple):
    """What a verified disk holds at the start."""

    state: HardState
    runs: list[tuple[int, int]]
    """(first index, term) of each run of entries of one term, in order, the base not included."""
    tail: list[Entry]
    """The newest entries, without a gap up to the last."""
    configurations: list[Entry]
    first_command: int | None
    """Index of the oldest command; of the base, if commands may have been before it."""
    base: Base | None = None
    """None: the log begins with its first entry."""
    size: int = 0
    """Bytes of all its records."""


class RaftJournal(Journal):  # type: ignore[misc]  # PySyncObj is untyped
    """See the module's text. One owner, no locks: everything is called in the event loop."""

    def __init__(self, disk: Disk, stored: Stored, *, cache: int, clock: Callable[[], float]) -> None:
        state = stored.state
        self._disk = disk
        self._clock = clock
        self._cache_limit = cache
        self.base_index, self.base_term = state.base_index, state.base_term
        self.base_time_ms = stored.base.time_ms if stored.base is not None else 0
        self.last_index = state.last_index
        self._run_starts = [self.base_index, *(first for first, _ in stored.runs)]
        self._run_terms = [self.base_term, *(term for _, term in stored.runs)]
        self._tail = list(stored.tail)
        self._tail_first = self.last_index - len(self._tail) + 1
        self._cached_bytes = sum(entry.size + OVERHEAD for entry in self._tail)
        self.configurations = list(stored.configurations)
        """Configuration entries, oldest first; the first one may lie at or before the base."""
        self.first_command = stored.first_command
        self.term, self.vote = state.term, state.vote
        self.commit_bound = state.commit_bound
        self.seq = 0
        self.durable_seq = 0
        self.term_seq = 0
        """Number of the newest change of term or vote."""
        self.durable_index = self.last_index
        self._kept_index = 0
        self._stored_size = stored.size
        self._stored_entries = max(state.last_index - state.base_index, 1)
        self._pending: deque[tuple[int, int, float]] = deque()  # (seq, last index, when) of each unsynced batch
        self._batch = Batch(0, state)
        self._truncations = 0

    # -- what is in the log

    @property
    def last_term(self) -> int:
        return self._run_terms[-1]

    @property
    def cached_from(self) -> int:
        """Index from which on entries are in memory."""
        return self._tail_first

    @property
    def cached_bytes(self) -> int:
        return self._cached_bytes

    def term_at(self, index: int) -> int | None:
        """Term of the entry at the index, the base included; None outside the log."""
        if not self.base_index <= index <= self.last_index:
            return None
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def time_at(self, index: int) -> int:
        """Time of an entry in the log, or of the base, Unix milliseconds."""
        return self.base_time_ms if index == self.base_index else self.entry(index).time_ms

    def first_of_term_at(self, index: int) -> int:
        """First index of the run of equal terms that the index (inside the log) belongs to."""
        return self._run_starts[bisect_right(self._run_starts, index) - 1]

    def entry(self, index: int) -> Entry:
        """One entry. Raises RaftFault if the log does not hold it."""
        position = index - self._tail_first
        if 0 <= position < len(self._tail):
            return self._tail[position]
        return self.entries(index, 1, 0)[0]

    def entries(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        """At least one entry from `first` on, then further ones while both bounds hold. Raises RaftFault on a hole."""
        if not self.base_index < first <= self.last_index:
            raise RaftFault(f"hole in the log: entry {first} is not in ({self.base_index}, {self.last_index}]")
        if first < self._tail_first:
            found = self._disk.read(first, min(count, self._tail_first - first), max_bytes)
            if not found or found[0].index != first:
                raise RaftFault(f"hole in the log: entry {first} is missing on the disk")
            return found
        position = first - self._tail_first
        end, size = position + 1, self._tail[position].size
        for entry in self._tail[position + 1 : position + count]:
            size += entry.size
            if size > max_bytes:
                break
            end += 1
        return self._tail[position:end]

    def bytes_between(self, first: int, last: int) -> int:
        """About how many bytes the entries in (first, last] had that were there at the start."""
        entries = max(last - max(first, self.base_index), 0)
        return self._stored_size * min(entries, self._stored_entries) // self._stored_entries

    # -- mutations

    def append(self, entry: Entry) -> None:
        """The next entry of the log."""
        if entry.index != self.last_index + 1 or entry.term < self.last_term:
            raise RaftFault(
                f"entry {entry.index} of term {entry.term} cannot follow "
                f"entry {self.last_index} of term {self.last_term}"
            )
        if entry.term != self.last_term:
            self._run_starts.append(entry.index)
            self._run_terms.append(entry.term)
        self.last_index = entry.index
        self._tail.append(entry)
        self._cached_bytes += entry.size + OVERHEAD
        self._batch.entries.append(entry)
        if entry.kind is Kind.CONFIGURATION:
            self.configurations.append(entry)
        elif entry.kind is Kind.COMMAND and self.first_command is None:
            self.first_command = entry.index
        self.seq += 1

    def truncate_from(self, index: int) -> None:
        """Cut off the entry at the index and all later ones."""
        if not self.commit_bound < index <= self.last_index:
            raise RaftFault(f"cannot cut the log at entry {index}: committed up to {self.commit_bound} at least")
        self.last_index = index - 1
        while self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        keep = max(index - self._tail_first, 0)
        self._cached_bytes -= sum(entry.size + OVERHEAD for entry in self._tail[keep:])
        del self._tail[keep:]
        self._tail_first = min(self._tail_first, index)
        self.configurations = [entry for entry in self.configurations if entry.index < index]
        if self.first_command is not None and self.first_command >= index:
            self.first_command = None
        batch = self._batch
        batch.entries = [entry for entry in batch.entries if entry.index < index]
        batch.truncate_from = index if batch.truncate_from is None else min(batch.truncate_from, index)
        self.durable_index = min(self.durable_index, index - 1)
        self._pending = deque((seq, min(last, index - 1), when) for seq, last, when in self._pending)
        self._truncations += 1
        self.seq += 1

    def base_at(self, index: int) -> Base:
        """What the log would begin with if it were cut behind this entry, which must be in it."""
        term = self.term_at(index)
        before = [entry.record for entry in self.configurations if entry.index <= index]
        if term is None or not before:
            raise RaftFault(f"nothing is known of entry {index}: the log is ({self.base_index}, {self.last_index}]")
        return Base(index, term, self.time_at(index), before[-1])

    def cut_to(self, base: Base) -> None:
        """Forget the entries up to this one, which is committed and durable, and which a checkpoint covers."""
        if base.index <= self.base_index:
            return
        if base.index > min(self.commit_bound, self.durable_index) or base.term != self.term_at(base.index):
            raise RaftFault(f"the log cannot begin behind entry {base.index} of term {base.term}")
        position = bisect_right(self._run_starts, base.index) - 1
        self._run_starts[: position + 1] = [base.index]
        self._run_terms[: position + 1] = [base.term]
        keep = max(base.index + 1 - self._tail_first, 0)
        self._cached_bytes -= sum(entry.size + OVERHEAD for entry in self._tail[:keep])
        del self._tail[:keep]
        self._tail_first = max(self._tail_first, base.index + 1)
        before = [entry for entry in self.configurations if entry.index <= base.index]
        self.configurations = before[-1:] + [entry for entry in self.configurations if entry.index > base.index]
        self._begin_behind(base)

    def reset_to(self, base: Base) -> None:
        """Forget everything: a snapshot has taken the place of all entries up to this one, and those behind it, if
        there are any, are not the leader's."""
        if base.index <= self.commit_bound:
            raise RaftFault(f"entries up to {self.commit_bound} are committed: a snapshot of {base.index} is too old")
        self._kept_index = max(self._kept_index, self.durable_index)
        self._run_starts, self._run_terms = [base.index], [base.term]
        self._tail.clear()
        self._tail_first = base.index + 1
        self._cached_bytes = 0
        self.last_index = base.index
        self.configurations = [parse(base.configuration)]
        self._batch.reset, self._batch.truncate_from = True, None
        self._batch.entries.clear()
        self.durable_index = 0
        self._pending = deque((seq, 0, when) for seq, _, when in self._pending)
        self._begin_behind(base)

    def _begin_behind(self, base: Base) -> None:
        self.base_index, self.base_term, self.base_time_ms = base.index, base.term, base.time_ms
        self.first_command = base.index
        self._batch.base = base
        self.seq += 1

    @property
    def kept_index(self) -> int:
        """What this folder can show of what it ever acknowledged: `durable_index`, but while a snapshot takes the place
        of the log the index that is still on the disk."""
        return max(self.durable_index, self._kept_index)

    def set_term(self, term: int, vote: str) -> None:
        """Nothing of the new term may be sent before `term_durable`."""
        if term < self.term or (term == self.term and self.vote and vote != self.vote):
            raise RaftFault(f"term {self.term} with vote {self.vote!r} cannot become term {term} with vote {vote!r}")
        self.term, self.vote = term, vote
        self.seq += 1
        self.term_seq = self.seq

    def put(self, key: bytes, value: bytes) -> int:
        """Store a small record beside the log; returns the number that tells when it is durable."""
        self._batch.records[key] = value
        self.seq += 1
        return self.seq

    def flush(self, *, anyway: bool = False) -> bool:
        """Hand everything since the last flush to the disk; `anyway` writes the commit bound even if there is nothing
        else. False if there was nothing."""
        if anyway:
            self.seq += 1
        batch = self._batch
        if self.seq == (self._pending[-1][0] if self._pending else self.durable_seq):
            return False
        batch.seq = self.seq
        batch.state = self.state()
        self._batch = Batch(0, batch.state)
        self._pending.append((self.seq, self.last_index, self._clock()))
        self._disk.submit(batch)
        return True

    def on_durable(self, seq: int) -> None:
        """Everything up to this number is synced."""
        self.durable_seq = max(self.durable_seq, seq)
        while self._pending and self._pending[0][0] <= seq:
            self.durable_index = self._pending.popleft()[1]
        if self._kept_index and self.durable_index >= self.base_index:
            self._kept_index = 0
        if self._cached_bytes > self._cache_limit:
            self._evict()

    def _evict(self) -> None:
        # Batches, because taking entries off the front moves the whole list; bounded ones, because the loop must not
        # stall.
        drop, goal = 0, self._cache_limit // 8 * 7
        for entry in self._tail[:_EVICT_AT_ONCE]:
            if self._cached_bytes <= goal or entry.index > self.durable_index:
                break
            self._cached_bytes -= entry.size + OVERHEAD
            drop += 1
        del self._tail[:drop]
        self._tail_first += drop

    # -- durability

    def state(self) -> HardState:
        bound = min(self.commit_bound, self.last_index)
        return HardState(self.term, self.vote, bound, self.last_index, self.base_index, self.base_term)

    @property
    def term_durable(self) -> bool:
        """The current term and vote are synced."""
        return self.durable_seq >= self.term_seq

    def unsynced_age(self, now: float) -> float:
        """Seconds that the oldest write waits for its sync; 0 when nothing waits."""
        return max(now - self._pending[0][2], 0.0) if self._pending else 0.0

    def statistics(self) -> dict[str, float]:
        return {
            "log_cached_bytes": self._cached_bytes,
            "log_cached_entries": len(self._tail),
            "log_unsynced_batches": len(self._pending),
            "log_truncations": self._truncations,
        }

    # -- PySyncObj's contract; positions count from the base, which stands for everything before the first entry

    def add(self, command: bytes, idx: int, term: int) -> None:
        raise RaftFault("PySyncObj's own way to append is closed: entries carry a time and a kind")

    def clear(self) -> None:
        raise RaftFault("the log is never cleared")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self.truncate_from(self.base_index + entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise RaftFault("the log is cut at its beginning by cut_to only")

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[position] for position in range(*item.indices(len(self)))]
        index = self.base_index + (item if item >= 0 else len(self) + item)
        if index == self.base_index:
            return Entry(b"", self.base_index, self.base_term, 0, Kind.NO_OP)
        return self.entry(index)

    def __len__(self) -> int:
        return self.last_index - self.base_index + 1

    def _destroy(self) -> None:
        pass

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self.commit_bound = max(self.commit_bound, raftCommitIndex)

    def getRaftCommitIndex(self) -> int:
        return self.commit_bound

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self.set_term(term, votedForNodeId or "")

    def getCurrentTerm(self) -> int:
        return self.term

    def getVotedForNodeId(self) -> str | None:
        return self.vote or None
