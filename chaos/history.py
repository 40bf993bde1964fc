"""What clients did and saw: a list of operations, kept as JSON lines so that a failed run can be judged again.

One class for all kinds of operations, because the checkers do not care for kinds: an operation *reads* keys (and saw
something), or *commits* (checks, then effects; it got a versionstamp, or was refused by some of the checks). The kind
is for people and for counting.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["get", "set", "delete", "cas", "sum", "atomic", "enqueue", "handle"]
Outcome = Literal["ok", "not applied", "unknown"]
Action = Literal["set", "delete", "sum"]


class Check(NamedTuple):
    """A condition of a commit: the key's versionstamp is still this one; None: the key is absent."""

    key: str
    versionstamp: str | None


class Effect(NamedTuple):
    """A change that a commit makes. Values are integers, so that a key can be set and summed up alike."""

    key: str
    action: Action
    argument: int = 0


class Seen(NamedTuple):
    """What a read saw of one key; both are None if it was absent."""

    value: int | None
    versionstamp: str | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client."""

    process: int
    kind: Kind
    invoked: int
    """Nanoseconds of a monotonic clock, the same for all processes; just before the call."""
    returned: int | None
    """Just after the call; None if it never came back."""
    outcome: Outcome
    """`ok`: the answer is definite, for a commit also if a check refused it. `not applied`: it must never have an
    effect. `unknown`: it may have one, once, at any time after `invoked`."""
    reads: tuple[str, ...] = ()
    """Keys read in one snapshot."""
    seen: tuple[Seen, ...] = ()
    """For each of `reads`, if `ok`."""
    checks: tuple[Check, ...] = ()
    effects: tuple[Effect, ...] = ()
    versionstamp: str | None = None
    """Of the commit, if `ok` and not refused. They compare as the commits follow each other."""
    failed_checks: tuple[int, ...] = ()
    """Indexes of all checks that did not hold, if `ok` but refused."""
    mark: str = ""
    """A name that the commit leaves behind in the database, so that its outcome can be looked up at the end."""
    message: str = ""
    """The message that was enqueued or handled."""

    @property
    def committed(self) -> bool:
        return self.outcome == "ok" and self.versionstamp is not None

    @property
    def observed(self) -> bool:
        """Whether it saw the state without changing it: a read, or a commit that was refused."""
        return self.outcome == "ok" and (bool(self.reads) or bool(self.failed_checks))

    @property
    def keys(self) -> frozenset[str]:
        """All keys it has to do with."""
        touched = [effect.key for effect in self.effects]
        return frozenset((*self.reads, *(check.key for check in self.checks), *touched))

    def to_json(self) -> str:
        """One line, without what is empty."""
        record = {
            name: value
            for name in self.__slots__
            if (value := getattr(self, name)) not in ((), "", None) or name in ("process", "kind", "invoked", "outcome")
        }
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Operation":
        """Errors: ValueError, KeyError, TypeError for what `to_json` has not written."""
        record: dict[str, Any] = json.loads(line)
        return cls(
            process=record["process"],
            kind=record["kind"],
            invoked=record["invoked"],
            returned=record.get("returned"),
            outcome=record["outcome"],
            reads=tuple(record.get("reads", ())),
            seen=tuple(Seen(*row) for row in record.get("seen", ())),
            checks=tuple(Check(*row) for row in record.get("checks", ())),
            effects=tuple(Effect(*row) for row in record.get("effects", ())),
            versionstamp=record.get("versionstamp"),
            failed_checks=tuple(record.get("failed_checks", ())),
            mark=record.get("mark", ""),
            message=record.get("message", ""),
        )


def export(operations: Iterable[Operation], path: Path) -> None:
    """Write a history, one operation a line. Errors: OSError."""
    with path.open("w") as out:
        for operation in operations:
            out.write(operation.to_json() + "\n")


def load(path: Path) -> Iterator[Operation]:
    """Read what `export` wrote. Errors: OSError, and those of `Operation.from_json`."""
    with path.open() as lines:
        for line in lines:
            if line.strip():
                yield Operation.from_json(line)
