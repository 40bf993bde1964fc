"""What a run has found, and how it is told."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from . import linearizability, serializability
from .crew import Account
from .faults import by_category
from .history import Operation

LOST: Final = ("acknowledged commit is lost", "were never handled", "no trace is left")
DOUBLED: Final = ("applied again", "were counted")
"""Parts of what the audit says."""


@dataclass(slots=True)
class Report:
    """What happened; a success if there are no `problems`."""

    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Of the members."""
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    """Retries and others, as the clients count them, over all clients."""
    messages: int = 0
    deliveries: int = 0
    undecided: int = 0
    """Histories that could not be judged within the work limit."""
    rejoins: list[float] = field(default_factory=list)
    """Seconds from the end of each fault to a whole cluster."""
    judging: float = 0.0
    """Seconds."""

    def count(self, account: Account) -> None:
        """Take over the figures of all clients."""
        self.outcomes = Counter(operation.outcome for operation in account.operations)
        self.kinds = Counter(operation.kind for operation in account.operations)
        self.deliveries = account.deliveries.total()
        self.figures = account.figures

    def judge(self, operations: list[Operation], say: Callable[[str], None]) -> None:
        """Let both checkers look at the history."""
        began = time.monotonic()
        for name, checker in (("key by key", linearizability.check), ("as a whole", serializability.check)):
            verdict = checker(operations)
            say(f"judged {name}: {verdict.state}, {verdict.work} states for {len(operations)} operations")
            self.undecided += verdict.state == "undecided"
            if not verdict.ok:
                self.problems.append(f"the history, {name}, is {verdict.state}: {verdict.explanation}")
        self.judging = time.monotonic() - began

    def rejoin(self, part: float) -> float:
        """Seconds from the end of a fault to a whole cluster: a quantile."""
        ordered = sorted(self.rejoins) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    def number_of(self, signs: tuple[str, ...]) -> int:
        """Problems of a kind."""
        return sum(any(sign in problem for sign in signs) for problem in self.problems)

    @property
    def line(self) -> str:
        """The last line of the output."""
        sums = by_category(self.faults)
        faults = " ".join(f"{name} {sums[name]}" for name in ("kills", "power-cuts", "cuts", "pauses", "bad-disks"))
        outcomes = ", ".join(f"{outcome} {self.outcomes[outcome]}" for outcome in ("ok", "not applied", "unknown"))
        return (
            f"chaos: {faults} changes {self.changes.total()} operations {self.outcomes.total()}"
            f" lost {self.number_of(LOST)} doubled {self.number_of(DOUBLED)} undecided {self.undecided}"
            f" problems {len(self.problems)} ({outcomes})"
            f" retries {self.figures['retries']} messages {self.messages} deliveries {self.deliveries}"
            f" {'FAILED' if self.problems else 'ok'}"
        )
