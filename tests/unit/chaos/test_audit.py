"""Marks and messages against what clients were told: each contradiction is named."""

from collections import Counter
from dataclasses import replace

import pytest

from chaos.audit import Final, audit_messages, resolve
from chaos.history import Effect, Operation
from tests.unit.chaos.moments import stamp

ONE, TWO = str(stamp(1)), str(stamp(2))
DRAFT = Operation(0, "sum", 1, 2, "ok", effects=(Effect("a", "sum", 1),), mark="m")
SENT = Operation(0, "enqueue", 1, 2, "ok", versionstamp=ONE, message="x")
TAKEN = Operation(1_000, "handle", 3, 4, "ok", versionstamp=TWO, message="x", mark="w")
GOOD = Final(marks={"w": TWO}, done={"x"}, handled=1, undelivered=set())


def test_acknowledged_and_marked_is_fine() -> None:
    told = replace(DRAFT, versionstamp=ONE)
    assert resolve([told], {"m": ONE}, 9) == ([told], [])


@pytest.mark.parametrize(
    ("told", "marks", "problem"),
    [
        (replace(DRAFT, versionstamp=ONE), {}, "lost"),
        (replace(DRAFT, versionstamp=ONE), {"m": TWO}, "applied again"),
        (replace(DRAFT, outcome="not applied"), {"m": ONE}, "no effect"),
        (replace(DRAFT, failed_checks=(0,)), {"m": ONE}, "no effect"),
    ],
)
def test_a_mark_that_contradicts_is_a_problem(told: Operation, marks: dict[str, str], problem: str) -> None:
    _, problems = resolve([told], marks, 9)
    assert len(problems) == 1
    assert problem in problems[0]


def test_unknown_becomes_known_by_its_mark() -> None:
    unknown = replace(DRAFT, outcome="unknown", returned=None)
    assert resolve([unknown], {"m": ONE}, 9) == ([replace(unknown, outcome="ok", versionstamp=ONE, returned=9)], [])
    assert resolve([unknown], {}, 9) == ([replace(unknown, outcome="not applied")], [])


def test_unknown_without_a_mark_stays_unknown() -> None:
    unknown = replace(DRAFT, outcome="unknown", mark="")
    assert resolve([unknown], {"m": ONE}, 9) == ([unknown], [])


def test_a_handled_message_is_fine_however_often_it_came() -> None:
    assert audit_messages([SENT, TAKEN], Counter(x=3), GOOD) == []


@pytest.mark.parametrize(
    ("operations", "deliveries", "final", "problem"),
    [
        ([SENT], Counter[str](), Final({}, set(), 0, set()), "never handled"),
        ([SENT, TAKEN], Counter(x=1), Final({}, set(), 0, set()), "no trace"),
        ([replace(SENT, outcome="not applied", versionstamp=None), TAKEN], Counter(x=1), GOOD, "must not have been"),
        ([TAKEN], Counter(x=1), GOOD, "nobody sent"),
        ([SENT, TAKEN], Counter[str](), GOOD, "never delivered"),
        ([SENT, TAKEN], Counter(x=1), replace(GOOD, undelivered={"x"}), "given up"),
        ([SENT, TAKEN], Counter(x=1), replace(GOOD, handled=2), "2 were counted"),
    ],
)
def test_what_is_wrong_with_messages_is_named(
    operations: list[Operation], deliveries: "Counter[str]", final: Final, problem: str
) -> None:
    problems = audit_messages(operations, deliveries, final)
    assert any(problem in line for line in problems), problems


def test_a_message_with_an_unknown_outcome_may_be_handled_or_not() -> None:
    unknown = replace(SENT, outcome="unknown", versionstamp=None)
    assert audit_messages([unknown], Counter[str](), Final({}, set(), 0, set())) == []
    assert audit_messages([unknown, TAKEN], Counter(x=1), GOOD) == []
