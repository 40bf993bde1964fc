"""What `kvorum doctor` finds, and how it is shown. No I/O but printing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvorum.cli.session import echo, print_json, print_table

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One check: `where` is a node, a path or an address, `told` what was seen, `todo` what to do unless it is ok."""

    check: str
    where: str
    state: State
    told: str
    todo: str = ""


def graded(value: float, warn: float, fail: float) -> State:
    """The state of a figure that is better the smaller it is."""
    return "FAIL" if value >= fail else "warn" if value >= warn else "ok"


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """One JSON object a line, or a table and what to do."""
    if as_json:
        for one in findings:
            print_json(
                {"check": one.check, "where": one.where, "state": one.state, "told": one.told, "todo": one.todo or None}
            )
        return
    print_table(
        ("Check", "Where", "State", "What was seen"), [(one.check, one.where, one.state, one.told) for one in findings]
    )
    for one in findings:
        if one.todo:
            echo(f"{one.state}: {one.check} ({one.where}): {one.todo}")
    counts = {state: sum(one.state == state for one in findings) for state in ("ok", "warn", "FAIL")}
    echo("doctor: " + ", ".join(f"{number} {state}" for state, number in counts.items()))
