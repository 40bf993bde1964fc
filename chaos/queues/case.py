"""A history, sorted for the checks: what belongs to each message, each lease and each group."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from .history import Delivery, History, Outcome, Queue, Send, Settle, index

ENDING: Final = frozenset({"ack", "retry", "reject", "return"})
FINAL: Final = frozenset({"ack", "reject"})
MAYBE: Final[tuple[Outcome, ...]] = ("ok", "unknown")


class Violation(NamedTuple):
    """Something that must not have happened."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Terms:
    """How exactly the records can be taken."""

    complete: bool = False
    """All leases are there, as the log has them; else those that never reached a consumer are missing."""
    unseen: frozenset[str] = frozenset()
    """But not all of these messages."""
    time_of: Callable[[int], int] | None = None
    """The cluster's milliseconds of an entry, by its index; else only what clocks of clients say is known."""
    speed: float = 1.1
    """How much faster than a clock the cluster's time may run."""
    early: int = 100
    """Milliseconds that a step of the cluster's time, at a change of leaders, may add."""
    late: int | None = 1_000
    """Milliseconds that a redelivery may take beyond the lease and a second: for messages under way, processes that
    wait for a CPU, and consumers that have no room just then. None: nothing is too late."""
    unnoticed: int = 1_000
    """Milliseconds for which a node may go on giving messages to a consumer that was lost."""


STRICT: Final = Terms()


class Case:
    """See the module."""

    def __init__(self, history: History, terms: Terms) -> None:
        self.history = history
        self.terms = terms
        self.sends: dict[str, Send] = {send.name: send for send in history.sends}
        self.messages: dict[str, list[Delivery]] = defaultdict(list)
        """The leases of each message, in the order in which they were granted."""
        seen: dict[tuple[str, str], Delivery] = {}
        for delivery in sorted(history.deliveries, key=lambda one: (one.lease, one.at)):
            # What comes twice to one consumer came over two connections.
            if seen.setdefault((delivery.lease, delivery.consumer), delivery) is delivery:
                self.messages[delivery.message].append(delivery)
        self.settles: dict[str, list[Settle]] = defaultdict(list)
        for settle in history.settles:
            self.settles[settle.lease].append(settle)
        self.ids: dict[tuple[str, str], set[str]] = defaultdict(set)
        """Messages of each queue and name."""
        for message, deliveries in self.messages.items():
            self.ids[deliveries[0].queue, deliveries[0].name].add(message)
        for send in history.sends:
            if send.message and not send.topic and not send.duplicate:
                self.ids[send.queue, send.name].add(send.message)
        self.offices = sorted(office.at for office in history.offices)
        self.losses = {loss.consumer: loss.at for loss in history.losses}
        self.lost_at = sorted(self.losses.values())

    def queue(self, name: str) -> Queue:
        return self.history.queues.get(name) or Queue(name, lease=30_000, unhurried=True)

    def verdicts(self, lease: str, *outcomes: Outcome) -> list[Settle]:
        """What ended this lease, or may have."""
        return [one for one in self.settles.get(lease, ()) if one.verdict in ENDING and one.outcome in outcomes]

    def knows(self, message: str) -> bool:
        """All its leases are in the records."""
        return self.terms.complete and message not in self.terms.unseen

    def untold(self, delivery: Delivery) -> bool:
        """Its consumer was lost before it said what became of it: it may have done anything."""
        return delivery.consumer in self.losses and not self.settles.get(delivery.lease)

    def copies(self, send: Send) -> tuple[str, ...]:
        """The queues that it comes to."""
        return self.history.topics[send.queue].queues if send.topic else (send.queue,)

    def groups(self) -> Iterator[tuple[str, list[Delivery]]]:
        """The leases of each group's messages, in order."""
        found: dict[tuple[str, str | None], list[Delivery]] = defaultdict(list)
        for deliveries in self.messages.values():
            first = deliveries[0]
            if first.group is not None or self.queue(first.queue).ordered:
                found[first.queue, first.group].extend(deliveries)
        for (queue, group), members in found.items():
            members.sort(key=lambda one: one.lease)
            yield f"group {group!r} of {queue!r}", members

    def milliseconds(self, earlier: int, later: int) -> float:
        """At most so much of the cluster's time is between two moments (nanoseconds)."""
        return (later - earlier) / 1e6 * self.terms.speed + self.terms.early

    def between(self, early_place: str, early: int, late_place: str, late: int) -> float:
        """At most so many of the cluster's milliseconds are between two events."""
        if self.terms.time_of is None or not early_place or not late_place:
            return self.milliseconds(early, late)
        return self.terms.time_of(index(late_place)) - self.terms.time_of(index(early_place))
