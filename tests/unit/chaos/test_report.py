"""The last line of a run: what it says follows from what the audit and the checkers find."""

from collections import Counter
from dataclasses import replace

import pytest

from chaos.audit import Final, audit_messages, resolve
from chaos.crew import Account
from chaos.history import Effect, Operation, Seen
from chaos.report import Report
from tests.unit.chaos.moments import stamp

ONE, TWO = str(stamp(1)), str(stamp(2))
WRITE = Operation(0, "sum", 1, 2, "ok", effects=(Effect("a", "sum", 1),), mark="m", versionstamp=ONE)
SENT = Operation(0, "enqueue", 1, 2, "ok", versionstamp=ONE, message="x")


def told(problems: list[str]) -> str:
    return Report(problems=problems, outcomes=Counter(ok=5)).line


def test_an_acknowledged_write_without_its_mark_is_counted_as_lost() -> None:
    _, problems = resolve([WRITE, replace(WRITE, mark="n")], {}, 9)
    assert " lost 2 doubled 0 undecided 0 problems 2 " in told(problems)


def test_a_write_that_was_applied_again_is_counted_as_doubled() -> None:
    _, problems = resolve([WRITE], {"m": TWO}, 9)
    assert " lost 0 doubled 1 undecided 0 problems 1 " in told(problems)


@pytest.mark.parametrize(
    ("final", "counts"),
    [
        (Final({}, set(), 0, set()), "lost 1 doubled 0"),
        (Final({}, {"x"}, 2, set()), "lost 0 doubled 1"),
    ],
)
def test_messages_count_as_well(final: Final, counts: str) -> None:
    problems = audit_messages([SENT], Counter(x=1), final)
    assert counts in told(problems)
    assert told(problems).startswith("chaos: FAILED ")


def test_nothing_wrong_is_ok() -> None:
    report = Report(faults=Counter({"kill": 3, "leader": 1, "power-all": 2, "split": 1}), changes=Counter(add=1))
    report.count(Account([WRITE], Counter(x=2), Counter(retries=7)))
    assert report.line == (
        "chaos: ok kills 4 pauses 0 cuts 1 links 0 power-cuts 2 bad-disks 0 syncs 0 clocks 0 restarts 0"
        " versions 0 changes 1 operations 1 lost 0 doubled 0 undecided 0 problems 0 (ok 1, not applied 0, unknown 0)"
        " retries 7 messages 0 deliveries 2"
    )


def test_a_history_that_nothing_explains_is_a_problem() -> None:
    stale = Operation(1, "get", 5, 6, "ok", reads=("a",), seen=(Seen(None, None),))
    report = Report()
    lines: list[str] = []
    report.judge([replace(WRITE, effects=(Effect("a", "set", 1),)), stale], lines.append)
    assert len(report.problems) == 2
    assert report.undecided == 0
    assert all("invalid" in line for line in lines)


def test_times_to_a_whole_cluster() -> None:
    report = Report(rejoins=[0.1] * 98 + [2.0, 3.0])
    assert (report.rejoin(0.5), report.rejoin(0.99), report.rejoin(1.0)) == (0.1, 3.0, 3.0)
    assert Report().rejoin(0.99) == 0.0
