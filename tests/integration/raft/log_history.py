"""What a log may be told to write, in any order that is allowed: the same batches for the same seed, in every process.

Batches that only append have entries and keep term and vote, as they must to go to the write-ahead file. All others are
of a new term: a log says by its term and its last entry which batch was its last. The time of an entry is its batch's
number.
"""

import random
from dataclasses import dataclass, field
from typing import Final

from kvorum_raft import configuration as cf
from kvorum_raft.base import Base
from kvorum_raft.entry import Entry, Kind, make
from kvorum_raft.journal import Batch, HardState, Stored
from kvorum_raft.log_store import LogStore
from kvorum_raft.seams import Member

KEYS: Final = [b"small %d" % number for number in range(4)]
_PHASE: Final = 60
"""So many batches of all kinds, then as many that only append, which fill the write-ahead file."""


def _base(index: int, term: int, time_ms: int) -> Base:
    member = Member("A", "127.0.0.1:1", "127.0.0.1:2")
    known = cf.make(bytes(cf.ID_SIZE), [cf.Voter(member, bytes(cf.ID_SIZE))])
    return Base(index, term, time_ms, make(Kind.CONFIGURATION, 1, 1, 1, known.encode()).record)


@dataclass
class Model:
    """What the log holds after some of the batches."""

    seed: int
    number: int = 0
    state: HardState = field(default_factory=HardState)
    base: Base | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    records: dict[bytes, bytes] = field(default_factory=dict)

    def next(self) -> Batch:
        """The next batch, which is done here at once."""
        self.number += 1
        rng = random.Random(f"{self.seed} {self.number}")
        batch = Batch(self.number, self.state)
        only_appends = self.number // _PHASE % 2 == 1
        kind = "append" if only_appends else rng.choice(["append", "append", "state", "cut", "record", "base", "reset"])
        last, bound = self.state.last_index, self.state.commit_bound
        term = self.state.term if only_appends else self.number
        if kind == "reset" and rng.random() < 0.3:
            last = bound = last + rng.randrange(1, 5)
            batch.reset, batch.base = True, _base(last, term, self.number)
            self.entries.clear()
        elif kind == "cut" and last > bound:
            batch.truncate_from = rng.randrange(bound + 1, last + 1)
            for index in range(batch.truncate_from, last + 1):
                del self.entries[index]
            last = batch.truncate_from - 1
        if only_appends or (kind != "state" and rng.random() < 0.9):
            batch.entries = self._entries(rng, last + 1, term)
            self.entries |= {entry.index: entry for entry in batch.entries}
            last += len(batch.entries)
        bound = rng.choice([bound, rng.randint(bound, last)])
        base = batch.base or self.base
        if kind == "base" and bound > self.state.base_index:
            at = rng.randint(self.state.base_index + 1, bound)
            base = batch.base = _base(at, self.entries[at].term, self.entries[at].time_ms)
            self.entries = {index: entry for index, entry in self.entries.items() if index > at}
        if kind == "record":
            batch.records = {key: rng.randbytes(rng.choice([0, 9, 5_000])) for key in rng.sample(KEYS, 2)}
            self.records |= batch.records
        self.base = base
        vote = self.state.vote if only_appends else rng.choice("ABC") * rng.choice([1, 1, 1, 3_000])
        where = (0, 0) if base is None else (base.index, base.term)
        self.state = batch.state = HardState(term, vote, bound, last, *where)
        return batch

    def _entries(self, rng: random.Random, first: int, term: int) -> list[Entry]:
        count = rng.choice([1, 1, 1, 2, 5, 30])
        most = rng.choice([0, 100, 100, 100, 5_000, 60_000 if count < 3 else 100, 400_000 if count < 2 else 100])
        return [
            make(Kind.COMMAND, first + at, term, self.number, rng.randbytes(rng.randint(0, most)))
            for at in range(count)
        ]

    def check(self, store: LogStore, stored: Stored) -> None:
        """That an opened log holds this and nothing else."""
        assert stored.state == self.state, f"{stored.state} instead of {self.state}"
        assert stored.base == self.base, f"{stored.base} instead of {self.base}"
        assert stored.tail == list(self.entries.values()), "other entries"
        for key in KEYS:
            assert (store.get(key) or b"") == self.records.get(key, b""), f"another record {key!r}"


def after(seed: int, state: HardState) -> Model:
    """The model after the batch that wrote this state."""
    model = Model(seed)
    while (model.state.term, model.state.last_index) != (state.term, state.last_index):
        model.next()
        assert model.state.term <= state.term, f"no batch wrote {state}"
    return model
