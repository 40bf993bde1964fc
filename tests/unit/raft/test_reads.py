"""ReadIndex: one round serves all reads that arrived before it, and nothing less than a quorum's answer to it does."""

import asyncio

import pytest

from kvorum_raft.errors import NotLeader, Overloaded, RaftError
from kvorum_raft.follower_reads import FollowerReads
from kvorum_raft.reads import ReadRounds


class Asked:
    def __init__(self) -> None:
        self.answers: list[int | None] = []

    def __call__(self, index: int, error: RaftError | None) -> None:
        self.answers.append(None if error is not None else index)


def test_a_read_waits_for_a_round_that_began_after_it() -> None:
    rounds, asked = ReadRounds(limit=10), Asked()
    running = rounds.begin()
    rounds.ask(5, asked)
    rounds.answered("B", running)
    rounds.serve(rounds.confirmed(["A", "B", "C"], 2, "A"))
    assert asked.answers == [], "that round began before the read"
    assert rounds.wants_round(rounds.confirmed(["A", "B", "C"], 2, "A"))
    rounds.begin()
    rounds.serve(rounds.confirmed(["A", "B", "C"], 2, "A"))
    assert asked.answers == [], "nobody has answered yet"
    rounds.answered("C", rounds.round)
    rounds.serve(rounds.confirmed(["A", "B", "C"], 2, "A"))
    assert asked.answers == [5]


def test_no_second_round_while_one_is_running() -> None:
    rounds = ReadRounds(limit=10)
    rounds.begin()
    rounds.ask(1, Asked())
    assert not rounds.wants_round(rounds.confirmed(["A", "B", "C"], 2, "A"))


def test_one_answer_of_four_is_no_quorum_of_five() -> None:
    rounds = ReadRounds(limit=10)
    number = rounds.begin()
    rounds.answered("B", number)
    rounds.answered("B", number)
    assert rounds.confirmed("ABCDE", 3, "A") == 0
    rounds.answered("E", number)
    assert rounds.confirmed("ABCDE", 3, "A") == number


def test_answers_of_an_earlier_term_do_not_count() -> None:
    rounds = ReadRounds(limit=10)
    number = rounds.begin()
    rounds.answered("B", number)
    rounds.start_term()
    assert rounds.confirmed(["A", "B", "C"], 2, "A") == 0
    rounds.answered("B", number + 5)
    assert rounds.confirmed(["A", "B", "C"], 2, "A") == 0, "a round that never began"


def test_reads_before_the_first_commit_of_the_term_wait_for_it() -> None:
    rounds, asked = ReadRounds(limit=10), Asked()
    rounds.ask(None, asked)
    rounds.begin()
    rounds.answered("B", 1)
    rounds.serve(1)
    assert asked.answers == []
    rounds.term_committed(9)
    rounds.begin()
    rounds.serve(2)
    assert asked.answers == [9]


def test_all_are_told_when_leadership_is_lost_and_there_is_a_bound() -> None:
    rounds, asked = ReadRounds(limit=2), Asked()
    rounds.ask(None, asked)
    rounds.ask(3, asked)
    with pytest.raises(Overloaded):
        rounds.ask(3, asked)
    rounds.fail("over")
    assert asked.answers == [None, None]


async def test_a_follower_asks_once_for_all_who_came_before() -> None:
    sent: list[int] = []
    reads = FollowerReads(lambda number: sent.append(number) is None, lambda: 0.0, limit=10, timeout=1.0, first_id=1)
    first = reads.read()
    later = [reads.read() for _ in range(3)]
    assert sent == [1]
    reads.answered(1, True, 7)
    assert sent == [1, 2]
    assert await first == 7
    reads.answered(1, True, 1)  # late
    assert not any(future.done() for future in later)
    reads.answered(2, True, 8)
    assert await asyncio.gather(*later) == [8, 8, 8]


async def test_a_follower_gives_up_when_nobody_answers() -> None:
    now = [0.0]
    reads = FollowerReads(lambda number: True, lambda: now[0], limit=2, timeout=1.0, first_id=1)
    waiting = [reads.read(), reads.read()]
    with pytest.raises(Overloaded):
        reads.read()
    now[0] = 1.5
    reads.check_age()
    for future in waiting:
        with pytest.raises(NotLeader, match="does not answer"):
            await future
    reads = FollowerReads(lambda number: False, lambda: 0.0, limit=2, timeout=1.0, first_id=1)
    with pytest.raises(NotLeader, match="no leader"):
        await reads.read()
