"""Durability is judged by sequence numbers; terms are right without reading; the cache is bounded and never loses
anything."""

import pytest

from kvorum_raft.entry import Entry, Kind, make
from kvorum_raft.errors import RaftFault
from kvorum_raft.journal import RaftJournal
from tests.simulation.world import SimDisk


class Fixture:
    def __init__(self, cache: int = 1 << 20) -> None:
        self.disk = SimDisk()
        self.now = 0.0
        self.journal = RaftJournal(self.disk, self.disk.stored(), cache=cache, clock=lambda: self.now)

    def append(self, count: int, term: int, *, size: int = 10) -> None:
        for _ in range(count):
            self.journal.append(entry(self.journal.last_index + 1, term, size))

    def sync(self) -> None:
        self.journal.on_durable(self.disk.write_one())

    def reopened(self) -> RaftJournal:
        return RaftJournal(self.disk, self.disk.stored(), cache=1 << 20, clock=lambda: self.now)


def entry(index: int, term: int, size: int = 10) -> Entry:
    return make(Kind.COMMAND, index, term, index, b"x" * size)


def test_entries_are_durable_when_their_batch_is() -> None:
    one = Fixture()
    one.append(3, 1)
    one.journal.flush()
    one.append(2, 1)
    one.journal.flush()
    assert one.journal.durable_index == 0
    one.sync()
    assert one.journal.durable_index == 3
    one.sync()
    assert one.journal.durable_index == 5


def test_an_index_that_is_cut_and_written_again_is_durable_only_the_second_time() -> None:
    one = Fixture()
    one.append(10, 1)
    one.journal.flush()
    one.journal.truncate_from(5)
    one.append(6, 2)
    one.journal.flush()
    one.sync()  # the first ten
    assert one.journal.durable_index == 4
    one.sync()
    assert one.journal.durable_index == 10
    assert one.reopened().term_at(10) == 2


def test_a_cut_takes_durability_back_at_once() -> None:
    one = Fixture()
    one.append(10, 1)
    one.journal.flush()
    one.sync()
    one.journal.truncate_from(8)
    assert one.journal.durable_index == 7


def test_a_crash_between_the_batches_leaves_a_whole_log() -> None:
    one = Fixture()
    one.append(10, 1)
    one.journal.flush()
    one.sync()
    one.journal.truncate_from(5)
    one.append(3, 3)
    one.journal.flush()
    one.disk.crash()
    again = one.reopened()
    assert (again.last_index, again.last_term) == (10, 1)


def test_term_and_vote_are_durable_with_their_batch_and_never_taken_back() -> None:
    one = Fixture()
    one.journal.set_term(3, "B")
    assert not one.journal.term_durable
    one.journal.flush()
    one.sync()
    assert one.journal.term_durable
    for term, vote in ((2, ""), (3, "C"), (3, "")):
        with pytest.raises(RaftFault):
            one.journal.set_term(term, vote)
    again = one.reopened()
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, "B")


def test_terms_are_known_over_cuts() -> None:
    one = Fixture()
    for term in (1, 1, 2, 4, 4, 5):
        one.append(1, term)
    assert [one.journal.term_at(index) for index in range(8)] == [0, 1, 1, 2, 4, 4, 5, None]
    assert one.journal.first_of_term_at(5) == 4
    one.journal.truncate_from(5)
    assert one.journal.last_term == 4
    one.append(1, 6)
    assert [one.journal.term_at(index) for index in range(7)] == [0, 1, 1, 2, 4, 6, None]


def test_the_cache_is_bounded_and_older_entries_come_from_the_disk() -> None:
    one = Fixture(cache=20_000)
    for _ in range(100):
        one.append(5, 1, size=100)
        one.journal.flush()
        one.sync()
    assert one.journal.cached_bytes <= 20_000
    assert one.journal.entry(1).index == 1
    assert [found.index for found in one.journal.entries(3, 4, 10**6)] == [3, 4, 5, 6]
    assert [found.index for found in one.journal.entries(499, 10, 10**6)] == [499, 500]
    assert len(one.journal.entries(490, 10, 250)) == 1


def test_what_is_not_durable_stays_in_memory() -> None:
    one = Fixture(cache=1000)
    one.append(100, 1, size=100)
    one.journal.flush()
    one.append(50, 1, size=100)
    one.sync()
    assert [one.journal.entry(index).index for index in range(101, 151)] == list(range(101, 151))


def test_what_cannot_be_is_a_fault() -> None:
    one = Fixture()
    one.append(3, 2)
    with pytest.raises(RaftFault, match="cannot follow"):
        one.journal.append(entry(5, 2))
    with pytest.raises(RaftFault, match="cannot follow"):
        one.journal.append(entry(4, 1))
    one.journal.setRaftCommitIndex(2)
    with pytest.raises(RaftFault, match="committed"):
        one.journal.truncate_from(2)
    with pytest.raises(RaftFault, match="hole"):
        one.journal.entry(4)
    for closed in (lambda: one.journal.add(b"", 4, 2), one.journal.clear, lambda: one.journal.deleteEntriesTo(1)):
        with pytest.raises(RaftFault):
            closed()


def test_the_oldest_unsynced_write_has_an_age() -> None:
    one = Fixture()
    assert one.journal.unsynced_age(5.0) == 0.0
    one.append(1, 1)
    one.journal.flush()
    one.now = 0.4
    one.append(1, 1)
    one.journal.flush()
    assert one.journal.unsynced_age(0.5) == 0.5
    one.sync()
    assert one.journal.unsynced_age(0.5) == pytest.approx(0.1)


def test_the_commit_bound_goes_with_each_batch_and_not_beyond_its_entries() -> None:
    one = Fixture()
    one.append(3, 1)
    one.journal.flush()
    one.sync()
    one.journal.setRaftCommitIndex(3)
    one.append(1, 1)
    one.journal.flush()
    one.sync()
    assert one.reopened().getRaftCommitIndex() == 3
    assert len(one.journal) == 5
    assert one.journal[-1][1] == 4
    assert one.journal[0][1] == 0
