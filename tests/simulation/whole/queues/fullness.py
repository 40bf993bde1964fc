"""Whether a queue with a `max_backlog` takes as many messages as it may, and none more.

Its messages are taken at most once, so that the log says of each when it came and when it went: with its lease. Places
in the log bound how many were there at each of them, from below and from above.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.queues.history import Delivery, Record, Send, index
from tests.simulation.whole.queues.plan import BACKLOG, TIGHT

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge


@dataclass(frozen=True, slots=True)
class Refusal:
    """A commit with so many messages was refused, since the queue was full. Nanoseconds of true time."""

    invoked: int
    returned: int
    count: int


class Fullness:
    """Of one schedule."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._places: list[int] = []
        self._times: list[int] = []
        self._refusals: list[Refusal] = []

    def applied(self, place: int, now: int) -> None:
        """An entry, for the first time."""
        self._places.append(place)
        self._times.append(now)

    def refused(self, refusal: Refusal) -> None:
        """A client was told so."""
        self._judge.counters["queue full"] += 1
        self._refusals.append(refusal)

    def judge(self, records: Iterable[Record], unseen: frozenset[str]) -> None:
        """`records` without unknown outcomes; `unseen` are messages whose leases may be missing."""
        for violation in violations(records, unseen, self._refusals, self._places, self._times):
            self._judge.broken(f"queues: {violation}")


def violations(
    records: Iterable[Record], unseen: frozenset[str], refusals: Sequence[Refusal], places: list[int], times: list[int]
) -> list[str]:
    """`times` are those of the entries at `places`, both in their order."""
    came: list[tuple[str, str]] = []
    went: dict[str, int] = {}
    for one in records:
        if isinstance(one, Send) and one.queue == TIGHT and one.outcome == "ok":
            came.append((one.stamp, one.name))
        elif isinstance(one, Delivery) and one.queue == TIGHT:
            went[one.name] = 0 if one.message in unseen else index(one.lease)
    came.sort()
    found = []
    for number, (stamp, _) in enumerate(came):
        # Of those that went in the same entry nobody knows whether it was before.
        here = sum(went.get(name, 0) > index(stamp) for _, name in came[: number + 1])
        if here > BACKLOG:
            found.append(f"{TIGHT} holds {here} messages at {stamp}, and {BACKLOG} are allowed")
    for refusal in refusals:
        first = max(bisect_left(times, refusal.invoked) - 1, 0)
        last = bisect_right(times, refusal.returned)
        most = max((_most(came, went, place) for place in places[first:last]), default=0)
        if most + refusal.count <= BACKLOG:
            found.append(f"{TIGHT} is too full for {refusal.count} messages, and holds {most}: {refusal}")
    return found


def _most(came: list[tuple[str, str]], went: dict[str, int], place: int) -> int:
    """So many may have been there at some moment of this entry."""
    return sum(index(stamp) <= place and not 0 < went.get(name, 0) < place for stamp, name in came)
