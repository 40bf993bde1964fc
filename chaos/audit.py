"""What the clients were told, against what the database holds in the end.

Marks make outcomes knowable: a commit that left its mark has happened, with the mark's versionstamp, and one that has
not left it never will, once all clients are gone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from .history import Operation


@dataclass(frozen=True, slots=True)
class Final:
    """The database after everything."""

    marks: Mapping[str, str]
    """Versionstamps of marks by name, those of handled messages included."""
    done: Set[str]
    """Messages whose handling is recorded."""
    handled: int
    """The counter of handled messages."""
    undelivered: Set[str]
    """Messages that were given up."""


def resolve(
    operations: Iterable[Operation], marks: Mapping[str, str], looked_at: int
) -> tuple[list[Operation], list[str]]:
    """Turn unknown outcomes into known ones where there is a mark; returns the history, and what marks contradict.

    `looked_at`: nanoseconds of the clock of the history, when the marks had been read. An unknown commit that happened
    may have done so at any time before.
    """
    resolved: list[Operation] = []
    problems: list[str] = []
    for operation in operations:
        stamp = marks.get(operation.mark) if operation.mark else None
        if operation.mark and operation.outcome == "unknown":
            if stamp is None:
                operation = replace(operation, outcome="not applied")
            else:
                operation = replace(operation, outcome="ok", versionstamp=stamp, returned=looked_at)
        elif operation.mark and stamp != operation.versionstamp:
            if stamp is None:
                problems.append(f"an acknowledged commit is lost: {operation.to_json()}")
            elif operation.committed:
                problems.append(f"a commit was applied again, at {stamp}: {operation.to_json()}")
            else:
                problems.append(f"a commit that must have no effect was applied, at {stamp}: {operation.to_json()}")
        resolved.append(operation)
    return resolved, problems


def to_be_handled(operations: Iterable[Operation]) -> set[str]:
    """Messages that are certainly on the queue."""
    return {operation.message for operation in operations if operation.kind == "enqueue" and operation.committed}


def audit_messages(operations: Sequence[Operation], deliveries: Counter[str], final: Final) -> list[str]:
    """Everything that is wrong with the messages of a (resolved) history."""
    sent = {operation.message for operation in operations if operation.kind == "enqueue"}
    denied = {
        operation.message
        for operation in operations
        if operation.kind == "enqueue" and operation.outcome == "not applied"
    }
    handled = {operation.message for operation in operations if operation.kind == "handle" and operation.committed}
    wrong = {
        "acknowledged messages were never handled": to_be_handled(operations) - final.done,
        "messages were handled, and no trace is left": handled - final.done,
        "messages were delivered that must not have been sent": set(deliveries) & denied,
        "messages were delivered that nobody sent": set(deliveries) - sent,
        "messages were recorded as handled that were never delivered": final.done - set(deliveries),
        "messages were given up": set(final.undelivered),
    }
    problems = [f"{len(names)} {what}: {', '.join(sorted(names)[:10])}" for what, names in wrong.items() if names]
    if final.handled != len(final.done):
        problems.append(f"{len(final.done)} messages were handled, but {final.handled} were counted")
    return problems
