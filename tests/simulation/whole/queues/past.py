"""Whether subscriptions get what they should of a topic that retains messages: from their begin on, be it in the past,
each message once, in order, and nothing after their end.

Subscriptions begin and end with commands, which have their places in the log, and so have messages. Those who consume
take messages at most once, so that the log tells of every copy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.queues.history import Record, Send, index
from kvorum._proto import kvorum_pb2 as pb
from tests.simulation.whole.queues.plan import RETENTION, STORY

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge


@dataclass(slots=True)
class Period:
    """A subscription, from its begin to its end."""

    queue: str
    topic: str
    """Where the topic was made."""
    begin: str
    begin_ms: int
    since: int | None = None
    """Milliseconds into the past; None: from now on."""
    end: str = ""
    """Empty: it goes on."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message that the topic was sent. `retained`: it must be there for `RETENTION`."""

    name: str
    place: str
    at_ms: int
    delay: int
    retained: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """What came of it in a queue."""

    queue: str
    message: str
    name: str
    at_ms: int
    """Of its lease."""


class Past:
    """Of one schedule."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._topic = ""
        self._retention: list[tuple[str, int]] = []
        """From which place on it is which."""
        self._open: dict[str, Period] = {}
        self._periods: list[Period] = []
        self._copies: list[Copy] = []

    # ---- what nodes do

    def applied(self, place: str, time_ms: int, command: pb.Command) -> None:
        """A command, for the first time."""
        if command.HasField("subscribe") and command.subscribe.topic == STORY:
            self._subscribed(place, time_ms, command.subscribe)
        elif command.HasField("define_topic") and command.define_topic.name == STORY:
            if command.define_topic.remove:
                self._removed(place)
            else:
                self._made(place)
                self._retention.append((place, command.define_topic.retention_ms))

    def _subscribed(self, place: str, time_ms: int, command: pb.Subscribe) -> None:
        if command.remove:
            self._ended(command.queue, place)
            return
        self._made(place)
        if command.queue not in self._open:
            since = command.since_ms if command.HasField("since_ms") else None
            period = self._open[command.queue] = Period(command.queue, self._topic, place, time_ms, since)
            self._periods.append(period)
            self._judge.counters["subscriptions from the past"] += since is not None

    def _ended(self, queue: str, place: str) -> None:
        period = self._open.pop(queue, None)
        if period is not None:
            period.end = place
            self._judge.counters["subscriptions ended"] += 1

    def _made(self, place: str) -> None:
        if not self._topic:
            self._topic = place
            self._retention.append((place, 0))

    def _removed(self, place: str) -> None:
        for queue in list(self._open):
            self._ended(queue, place)
        self._topic = ""
        self._retention.append((place, 0))
        self._judge.counters["topics removed"] += 1

    def granted(self, delivery: pb.Delivery, time_ms: int) -> None:
        """A copy was taken."""
        name = delivery.payload.rpartition(b" ")[0].decode()
        self._copies.append(Copy(delivery.queue, delivery.message_id.hex(), name, time_ms))

    # ---- the end

    def judge(self, records: Iterable[Record], times: dict[int, tuple[int, bytes]]) -> None:
        """`records` without unknown outcomes; `times`: of each entry, first of all its milliseconds."""
        told = [
            Told(one.name, one.stamp, times[index(one.stamp)][0], one.delay, self._retains(one.stamp))
            for one in records
            if isinstance(one, Send) and one.queue == STORY and one.outcome == "ok"
        ]
        # Those of one commit are named in their order.
        told.sort(key=lambda one: (one.place, int(one.name.rpartition(".")[2])))
        places = {one.name: one.place for one in told}
        late = sum(copy.message[:20] != places.get(copy.name) for copy in self._copies)
        self._judge.counters["copies of the past"] += late
        for violation in violations(self._periods, told, self._copies):
            self._judge.broken(f"queues: {violation}")

    def _retains(self, place: str) -> bool:
        at = bisect_right(self._retention, (place, RETENTION))
        return at > 0 and self._retention[at - 1][1] > 0


def violations(periods: Sequence[Period], told: Sequence[Told], copies: Sequence[Copy]) -> Iterator[str]:
    """`told` in the order of the log."""
    left = set(copies)
    for period in periods:
        own = [one for one in left if one.queue == period.queue and _within(one.message[:20], period)]
        left.difference_update(own)
        own.sort(key=lambda one: one.message)
        yield from _of_period(period, told, own)
    for copy in sorted(left, key=lambda one: one.message):
        yield f"{copy.name} came to {copy.queue} as {copy.message}, which was not subscribed then"
    moments = {one.name: one for one in told}
    for copy in copies:
        one = moments.get(copy.name)
        if one is not None and copy.at_ms < one.at_ms + one.delay:
            yield f"{copy.name} came to {copy.queue} after {copy.at_ms - one.at_ms} ms, not {one.delay}"


def _within(place: str, period: Period) -> bool:
    return period.begin <= place and (not period.end or place < period.end)


def _of_period(period: Period, told: Sequence[Told], copies: Sequence[Copy]) -> Iterator[str]:
    wanted = {one.name: certain for one in told if (certain := _wanted(one, period)) is not None}
    order = {name: number for number, name in enumerate(wanted)}
    seen: set[str] = set()
    last = -1
    for copy in copies:
        if copy.name not in wanted:
            yield f"{copy.name} came to {copy.queue} as {copy.message}, which it is not for: {period}"
            continue
        if copy.name in seen:
            yield f"{copy.name} came to {copy.queue} twice: {period}"
        elif order[copy.name] < last:
            yield f"{copy.name} came to {copy.queue} behind what was sent later: {period}"
        seen.add(copy.name)
        last = max(last, order[copy.name])
    # One that has ended may not have had all of its past yet, and what came meanwhile is behind that.
    due = last + 1 if period.end and period.since is not None else len(wanted)
    for name, certain in wanted.items():
        if certain and name not in seen and order[name] < due:
            yield f"{name} did not come to {period.queue}: {period}"


def _wanted(one: Told, period: Period) -> bool | None:
    """Whether a subscription gets a message for certain, or perhaps. None: it must not."""
    if one.place >= period.begin:
        return True if _within(one.place, period) else None
    age = period.begin_ms - one.at_ms
    if one.place < period.topic or period.since is None or age > period.since:
        return None
    return one.retained and age < RETENTION
