"""At most one node makes a checkpoint at a time, the leader after the others, and nobody waits for ever."""

from kvorum_raft.checkpoint_turns import GRACE, PATIENCE, Need, Turn, Turns

ALIVE = ("A", "B", "C")


def decide(turns: Turns, now: float, own: Need = Need.NONE, alive: tuple[str, ...] = ("B", "C")) -> str | None:
    """Node A leads; returns who may begin."""
    turns.decide(now, "A", own, alive)
    going = [node_id for node_id in ALIVE if turns.of(node_id) is Turn.GO]
    assert len(going) <= 1
    return going[0] if going else None


def all_due() -> Turns:
    turns = Turns()
    for node_id in "BC":
        turns.heard(node_id, Need.DUE)
    return turns


def test_nobody_goes_before_all_have_said_what_they_do() -> None:
    turns = Turns()
    assert decide(turns, 0.0, Need.DUE) is None
    turns.heard("B", Need.DUE)
    assert decide(turns, 0.1, Need.DUE) is None
    turns.heard("C", Need.NONE)
    assert decide(turns, 0.2, Need.DUE) == "B"


def test_one_after_the_other_and_the_leader_last() -> None:
    turns = all_due()
    order: list[str | None] = []
    for step in range(3):
        going = decide(turns, step * 2 * GRACE, Need.DUE)
        order.append(going)
        if going in ("B", "C"):
            turns.heard(going, Need.BUSY)
            assert decide(turns, step * 2 * GRACE + 0.1, Need.DUE) is None, "the turn of who has begun is used up"
            turns.heard(going, Need.NONE)
    assert order == ["B", "C", "A"]


def test_a_leader_that_is_at_it_gives_no_turn() -> None:
    assert decide(all_due(), 0.0, Need.BUSY) is None


def test_followers_that_are_always_due_do_not_starve_the_leader() -> None:
    turns = all_due()
    order = []
    for step in range(6):
        turns.decide(step * 10, "A", Need.DUE, ("B", "C"))
        going = next(node_id for node_id in ALIVE if turns.of(node_id) is Turn.GO)
        order.append(going)
        turns.heard(going, Need.BUSY)
        turns.decide(step * 10 + 0.1, "A", Need.BUSY if going == "A" else Need.DUE, ("B", "C"))
        turns.heard(going, Need.DUE)
    assert order == ["B", "C", "A", "B", "C", "A"]


def test_who_does_not_use_its_turn_goes_to_the_end() -> None:
    turns = all_due()
    assert decide(turns, 0.0) == "B"
    assert decide(turns, PATIENCE - 0.1) == "B"
    assert decide(turns, PATIENCE) == "C"
    assert decide(turns, 2 * PATIENCE) == "B"


def test_who_does_not_need_its_turn_any_more_loses_it() -> None:
    turns = all_due()
    assert decide(turns, 0.0) == "B"
    turns.heard("B", Need.NONE)
    assert decide(turns, 0.1) == "C"


def test_the_dead_hold_nobody_up() -> None:
    turns = all_due()
    turns.heard("B", Need.BUSY)
    assert decide(turns, 0.0) is None
    assert decide(turns, 0.1, alive=("C",)) == "C"
    turns.forget("B")
    assert decide(turns, 0.2) is None, "it is back, and what it does is not known yet"
    turns.heard("B", Need.NONE)
    assert decide(turns, 0.3) == "C"


def test_alone() -> None:
    turns = Turns()
    assert decide(turns, 0.0, Need.DUE, ()) is None
    assert decide(turns, GRACE, Need.DUE, ()) == "A"
    assert decide(turns, GRACE + 0.1, Need.NONE, ()) is None


def test_the_leader_lets_those_go_first_that_it_hears_of_a_little_later() -> None:
    turns = Turns()
    for node_id in "BC":
        turns.heard(node_id, Need.NONE)
    assert decide(turns, 0.0, Need.DUE) is None
    turns.heard("B", Need.DUE)
    assert decide(turns, 0.5 * GRACE, Need.DUE) == "B"


def test_numbers_of_a_later_version_mean_nothing() -> None:
    assert [Need.received(number) for number in (0, 1, 2, 3, 2**32 - 1)] == [0, 1, 2, 0, 0]
    assert [Turn.received(number) for number in (0, 1, 2, 3, 2**32 - 1)] == [0, 1, 2, 0, 0]
