"""What a run has found, and how it is told."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from . import linearizability, serializability
from .crew import Account
from .duties import deed
from .duties.judge import judge, proves
from .faults import AT_THE_LEADER, KINDS, by_category
from .history import Operation
from .observer import Observer
from .timeline import Timeline, quantile

LOST: Final = ("acknowledged commit is lost", "were never handled", "no trace is left")
DOUBLED: Final = ("applied again", "were counted")
"""Parts of what the audit says."""
MOST_OFF: Final = 10.0
"""Seconds that the cluster's time may be off: far less than clocks are made to jump."""


@dataclass(slots=True)
class Report:
    """What happened; a success if there are no `problems`."""

    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    """What proves of each kind that it did something: see `Nemesis.hits`."""
    duties: dict[str, str] = field(default_factory=dict)
    """Of each duty, how much was done, and the verdict."""
    leaders: list[float] = field(default_factory=list)
    """Seconds from a fault at the leader to the next one."""
    timeline: Timeline | None = None
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

    def judge_deeds(self, deeds: list[deed.Deed]) -> None:
        """What the duties saw."""
        for duty, problems in judge(deeds).items():
            own = [one for one in deeds if one.duty == duty]
            self.duties[duty] = f"{'INVALID' if problems else 'valid'} ({deed.told(own)})"
            self.problems += [f"{duty}: {problem}" for problem in problems]
        self.problems += [f"too little happened to prove anything: {what}" for what in proves(deeds)]

    def judge_times(self, timeline: Timeline, observer: Observer) -> None:
        """How long clients were without service, and the cluster without a leader; whether its time is sound."""
        self.timeline = timeline
        for fault in timeline.struck:
            if fault.fault in AT_THE_LEADER:
                after = observer.after(fault.began, fault.whole)
                self.leaders += [] if after is None else [after]
        if observer.backwards:
            self.problems.append(f"a leader's time went back {observer.backwards} times")
        if observer.clock_off > MOST_OFF:
            self.problems.append(
                f"the cluster's time was {observer.clock_off:.1f} s off, and one clock in three at most"
            )

    def times(self) -> list[str]:
        """Lines about that."""
        if self.timeline is None:
            return []
        gaps = ", ".join(f"{kind} {gap:.2f}" for kind, gap in sorted(self.timeline.gaps().items()))
        worst = ", ".join(f"{gap:.2f} from {began:.1f} on ({kind})" for gap, began, kind in self.timeline.worst(5))
        return [
            f"new leader after a fault at the leader: {len(self.leaders)} times, median"
            f" {quantile(self.leaders, 0.5):.2f} s, p99 {quantile(self.leaders, 0.99):.2f} s",
            f"longest time without an acknowledged write: {self.timeline.longest_gap(majority=True):.2f} s while a"
            f" majority was up, {self.timeline.longest_gap(majority=False):.2f} s else",
            f"the same by kind, in seconds: {gaps}",
            f"the longest while a majority was up, in seconds: {worst}",
        ]

    def rejoin(self, part: float) -> float:
        """Seconds from the end of a fault to a whole cluster: a quantile."""
        return quantile(self.rejoins, part)

    def number_of(self, signs: tuple[str, ...]) -> int:
        """Problems of a kind."""
        return sum(any(sign in problem for sign in signs) for problem in self.problems)

    @property
    def line(self) -> str:
        """The last line of the output."""
        sums = by_category(self.faults)
        faults = " ".join(f"{name} {sums[name]}" for name in KINDS if name != "changes")
        outcomes = ", ".join(f"{outcome} {self.outcomes[outcome]}" for outcome in ("ok", "not applied", "unknown"))
        verdict = "FAILED" if self.problems else "ok"
        return (
            f"chaos: {verdict} {faults} changes {self.changes.total()} operations {self.outcomes.total()}"
            f" lost {self.number_of(LOST)} doubled {self.number_of(DOUBLED)} undecided {self.undecided}"
            f" problems {len(self.problems)} ({outcomes})"
            f" retries {self.figures['retries']} messages {self.messages} deliveries {self.deliveries}"
        )
