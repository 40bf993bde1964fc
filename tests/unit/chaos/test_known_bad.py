"""Histories that no sequential database can have given: each must be refused, and its harmless sibling accepted."""

import pytest

from chaos import linearizability, serializability
from chaos.history import Operation
from tests.unit.chaos.moments import add, commit, drop, put, read

History = list[Operation]

BY_KEY: dict[str, tuple[History, History]] = {
    # name: (bad, good)
    "lost update": (
        [commit(1, 2, 1, put("a", 10)), commit(3, 4, 2, add("a", 1)), read(5, 6, ("a", 10, 1))],
        [commit(1, 2, 1, put("a", 10)), commit(3, 4, 2, add("a", 1)), read(5, 6, ("a", 11, 2))],
    ),
    "lost update by two who checked": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 6, 2, put("a", 11), checks=(("a", 1),)),
            commit(4, 5, 3, put("a", 12), checks=(("a", 1),)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 6, 2, put("a", 11), checks=(("a", 1),)),
            commit(4, 5, None, put("a", 12), checks=(("a", 1),), failed=(0,)),
        ],
    ),
    "a check refused for nothing": (
        [commit(1, 2, 1, put("a", 10)), commit(3, 4, None, put("a", 11), checks=(("a", 1),), failed=(0,))],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 6, 2, put("a", 12)),
            commit(3, 4, None, put("a", 11), checks=(("a", 1),), failed=(0,)),
        ],
    ),
    "stale read": (
        [commit(1, 2, 1, put("a", 10)), commit(3, 4, 2, put("a", 20)), read(5, 6, ("a", 10, 1))],
        [commit(1, 2, 1, put("a", 10)), commit(3, 6, 2, put("a", 20)), read(5, 6, ("a", 10, 1))],
    ),
    "stale absence": (
        [commit(1, 2, 1, put("a", 10)), read(3, 4, ("a", None, None))],
        [commit(1, 4, 1, put("a", 10)), read(2, 3, ("a", None, None))],
    ),
    "two reads go back in time": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 9, 2, put("a", 20)),
            read(4, 5, ("a", 20, 2)),
            read(6, 7, ("a", 10, 1)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 9, 2, put("a", 20)),
            read(4, 5, ("a", 10, 1)),
            read(6, 7, ("a", 20, 2)),
        ],
    ),
    "read from the future": (
        [read(1, 2, ("a", 10, 1)), commit(3, 4, 1, put("a", 10))],
        [read(1, 4, ("a", 10, 1)), commit(3, 4, 1, put("a", 10))],
    ),
    "phantom of a 'not applied' write": (
        [commit(1, 2, None, put("a", 10), outcome="not applied"), read(3, 4, ("a", 10, 1))],
        [commit(1, 2, None, put("a", 10), outcome="unknown"), read(3, 4, ("a", 10, 1))],
    ),
    "hidden effect of a 'not applied' sum": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, add("a", 1), outcome="not applied"),
            commit(5, 6, 3, add("a", 5)),
            read(7, 8, ("a", 16, 3)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, add("a", 1), outcome="unknown"),
            commit(5, 6, 3, add("a", 5)),
            read(7, 8, ("a", 16, 3)),
        ],
    ),
    "hidden effect of a 'not applied' delete": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, drop("a"), outcome="not applied"),
            read(5, 6, ("a", None, None)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, drop("a"), outcome="unknown"),
            read(5, 6, ("a", None, None)),
        ],
    ),
    "doubled sum": (
        [commit(1, 2, 1, add("a", 5)), read(3, 4, ("a", 10, 1))],
        [commit(1, 2, 1, add("a", 5)), read(3, 4, ("a", 5, 1))],
    ),
    "doubled sum under a second stamp": (
        [commit(1, 2, 1, add("a", 5)), read(3, 4, ("a", 10, 2))],
        [commit(1, 2, 1, add("a", 5)), commit(1, 2, None, add("a", 5), outcome="unknown"), read(3, 4, ("a", 10, 2))],
    ),
    "an unknown sum applied twice": (
        [
            commit(1, 2, 1, put("a", 0)),
            commit(3, 4, None, add("a", 5), outcome="unknown"),
            read(5, 6, ("a", 5, 2)),
            read(7, 8, ("a", 10, 3)),
        ],
        [
            commit(1, 2, 1, put("a", 0)),
            commit(3, 4, None, add("a", 5), outcome="unknown"),
            commit(3, 4, None, add("a", 5), outcome="unknown"),
            read(5, 6, ("a", 5, 2)),
            read(7, 8, ("a", 10, 3)),
        ],
    ),
    "an unknown write that takes effect before it was called": (
        [read(1, 2, ("a", 10, 1)), commit(3, 4, None, put("a", 10), outcome="unknown")],
        [commit(1, 2, None, put("a", 10), outcome="unknown"), read(3, 4, ("a", None, None)), read(5, 6, ("a", 10, 1))],
    ),
    "an unknown write whose check cannot have held": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, 2, put("a", 20)),
            commit(5, 6, None, put("a", 30), checks=(("a", 1),), outcome="unknown"),
            read(7, 8, ("a", 30, 3)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, 2, put("a", 20)),
            commit(5, 6, None, put("a", 30), checks=(("a", 2),), outcome="unknown"),
            read(7, 8, ("a", 30, 3)),
        ],
    ),
    "an undone write": (
        [commit(1, 2, 1, put("a", 10)), read(3, 4, ("a", 10, 1)), read(5, 6, ("a", None, None))],
        [
            commit(1, 2, 1, put("a", 10)),
            read(3, 4, ("a", 10, 1)),
            commit(4, 5, 2, drop("a")),
            read(5, 6, ("a", None, None)),
        ],
    ),
    "a value that nobody wrote": (
        [commit(1, 2, 1, put("a", 10)), read(3, 4, ("a", 11, 1))],
        [commit(1, 2, 1, put("a", 10)), read(3, 4, ("a", 10, 1))],
    ),
    "a stamp that is not that of the write": (
        [commit(1, 2, 1, put("a", 10)), read(3, 4, ("a", 10, 2))],
        [commit(1, 2, 2, put("a", 10)), read(3, 4, ("a", 10, 2))],
    ),
    "refused by a check, applied all the same": (
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, put("a", 20), checks=(("a", None),), failed=(0,)),
            read(5, 6, ("a", 20, 2)),
        ],
        [
            commit(1, 2, 1, put("a", 10)),
            commit(3, 4, None, put("a", 20), checks=(("a", None),), failed=(0,)),
            read(5, 6, ("a", 10, 1)),
        ],
    ),
}

WHOLE: dict[str, tuple[History, History]] = {
    "a snapshot that is torn": (
        [commit(1, 9, 1, put("a", 1), put("b", 1)), read(2, 8, ("a", 1, 1), ("b", None, None))],
        [commit(1, 9, 1, put("a", 1), put("b", 1)), read(2, 8, ("a", None, None), ("b", None, None))],
    ),
    "two snapshots in opposite orders": (
        [
            commit(1, 9, 1, put("a", 1)),
            commit(1, 9, 2, put("b", 2)),
            read(2, 8, ("a", 1, 1), ("b", None, None)),
            read(2, 8, ("a", None, None), ("b", 2, 2)),
        ],
        [
            commit(1, 9, 1, put("a", 1)),
            commit(1, 9, 2, put("b", 2)),
            read(2, 8, ("a", 1, 1), ("b", None, None)),
            read(2, 8, ("a", 1, 1), ("b", 2, 2)),
        ],
    ),
    "write skew": (
        [
            commit(1, 2, 1, put("a", 1), put("b", 1)),
            commit(3, 9, 2, put("a", 2), checks=(("a", 1), ("b", 1))),
            commit(3, 9, 3, put("b", 3), checks=(("a", 1), ("b", 1))),
        ],
        [
            commit(1, 2, 1, put("a", 1), put("b", 1)),
            commit(3, 9, 2, put("a", 2), checks=(("a", 1), ("b", 1))),
            commit(3, 9, None, put("b", 3), checks=(("a", 1), ("b", 1)), failed=(0,)),
        ],
    ),
    "half of an unknown commit": (
        [
            commit(1, 2, None, put("a", 1), put("b", 1), outcome="unknown"),
            read(3, 4, ("a", 1, 1)),
            read(5, 6, ("b", None, None)),
        ],
        [
            commit(1, 2, None, put("a", 1), put("b", 1), outcome="unknown"),
            read(3, 4, ("a", None, None)),
            read(5, 6, ("b", 1, 1)),
        ],
    ),
    "two reads of two keys go back in time": (
        [
            commit(1, 9, 1, put("a", 1)),
            commit(1, 9, 2, put("b", 2)),
            read(2, 3, ("b", 2, 2)),
            read(4, 5, ("a", None, None)),
        ],
        [
            commit(1, 9, 1, put("a", 1)),
            commit(1, 9, 2, put("b", 2)),
            read(2, 3, ("a", None, None)),
            read(4, 5, ("b", 2, 2)),
        ],
    ),
    "stamps against the clock": (
        [commit(1, 2, 2, put("a", 1)), commit(3, 4, 1, put("b", 1))],
        [commit(1, 2, 1, put("a", 1)), commit(3, 4, 2, put("b", 1))],
    ),
    "one stamp for two commits": (
        [commit(1, 4, 1, put("a", 1)), commit(1, 4, 1, put("b", 1))],
        [commit(1, 4, 1, put("a", 1)), commit(1, 4, 2, put("b", 1))],
    ),
    "a read before a commit that precedes what it saw": (
        [read(1, 4, ("b", 2, 2)), commit(5, 6, 1, put("a", 1)), commit(3, 9, 2, put("b", 2))],
        [read(1, 4, ("b", 2, 1)), commit(5, 6, 2, put("a", 1)), commit(3, 9, 1, put("b", 2))],
    ),
    "checks refused at no one moment": (
        [
            commit(1, 2, 1, put("a", 1)),
            commit(3, 9, 2, put("a", 2), put("b", 2)),
            commit(3, 9, None, put("c", 1), checks=(("a", 1), ("b", None)), failed=(0,)),
        ],
        [
            commit(1, 2, 1, put("a", 1)),
            commit(3, 9, 2, put("a", 2), put("b", 2)),
            commit(3, 9, None, put("c", 1), checks=(("a", 1), ("b", None)), failed=(0, 1)),
        ],
    ),
    "stamps in another order than the values": (
        [commit(1, 9, 2, put("a", 1)), commit(1, 9, 1, put("a", 2)), read(10, 11, ("a", 2, 1))],
        [commit(1, 9, 2, put("a", 1)), commit(1, 9, 1, put("a", 2)), read(10, 11, ("a", 1, 2))],
    ),
}


@pytest.mark.parametrize("name", BY_KEY)
def test_what_is_wrong_on_one_key_is_refused_by_both(name: str) -> None:
    bad, good = BY_KEY[name]
    for checker in (linearizability, serializability):
        verdict = checker.check(bad)
        assert verdict.state == "invalid", checker.__name__
        assert verdict.explanation
        accepted = checker.check(good)
        assert accepted.state == "valid", (checker.__name__, accepted.explanation)


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_wrong_over_several_keys_is_refused_by_the_whole(name: str) -> None:
    bad, good = WHOLE[name]
    verdict = serializability.check(bad)
    assert verdict.state == "invalid"
    assert verdict.explanation
    accepted = serializability.check(good)
    assert accepted.state == "valid", accepted.explanation
    assert linearizability.check(bad).state == "valid", "key by key there is nothing wrong: it belongs above"
    assert linearizability.check(good).state == "valid"


def test_a_work_limit_that_does_not_suffice_is_no_success() -> None:
    unknown = [commit(1, 2, None, add("a", 1 << number), outcome="unknown") for number in range(12)]
    bad = [commit(1, 2, 100, put("b", 0)), *unknown, read(3, 4, ("a", 1 << 13, 50))]
    for judge in (linearizability.check, serializability.check):
        verdict = judge(bad, work_limit=500)
        assert verdict.state == "undecided"
        assert not verdict.ok
        assert "500" in verdict.explanation
