"""Whether nothing of a removed queue comes back: no message, lease, dead letter, deduplication id, timer, policy or
counter; and whether what is sent to it afterwards is not lost.

Removing takes many commands. The last one finds nothing left, and forgets the queue: what was sent before its place in
the log is gone.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.queues.case import MAYBE
from chaos.queues.history import Delivery, Effect, Left, Letter, Record, Send, Settle, index
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Store
from tests.simulation.whole.queues.plan import BRIEF, LEASE

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge


@dataclass(slots=True)
class Log:
    """Places of what was done to the queue as a whole, in their order."""

    removing: list[str] = field(default_factory=list)
    """Commands that remove a part of it, or the last one of it."""
    gone: list[str] = field(default_factory=list)
    """Those after which nothing was left."""
    defined: list[tuple[str, bool]] = field(default_factory=list)
    """From where on it has a policy, or none."""
    periods: list[tuple[str, int]] = field(default_factory=list)
    """Each lease, and for how many milliseconds the policy says that it lasts; 0 = there is none."""


class Removal:
    """Of one schedule."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._log = Log()

    def applied(self, place: str, command: pb.Command, output: Any) -> None:
        """A command, for the first time."""
        log = self._log
        if command.HasField("define_queue") and command.define_queue.name == BRIEF:
            log.defined.append((place, True))
        elif command.HasField("remove_queue") and command.remove_queue.name == BRIEF:
            log.removing.append(place)
            if output == 0:
                log.gone.append(place)
                log.defined.append((place, False))
                self._judge.counters["queues removed"] += 1

    def granted(self, delivery: pb.Delivery) -> None:
        """A message was leased."""
        self._log.periods.append((delivery.lease_id.hex(), delivery.lease_ms))

    def judge(self, records: Sequence[Record], times: dict[int, tuple[int, bytes]], store: Store) -> None:
        """`records` without unknown outcomes; `times`: of each entry, first of all its milliseconds."""
        with store.snapshot() as snapshot:
            infos, _ = snapshot.queue_infos("", b"", 1, one=BRIEF)
        sent = infos[0].sent if infos else 0
        for violation in violations(self._log, records, {at: time[0] for at, time in times.items()}, sent):
            self._judge.broken(f"queues: {violation}")


def violations(log: Log, records: Sequence[Record], times: dict[int, int], sent: int) -> Iterator[str]:
    """`times`: milliseconds of each entry; `sent`: messages, as the queue has counted them in the end."""
    sends = [one for one in records if isinstance(one, Send) and one.queue == BRIEF]
    sends = sorted((one for one in sends if one.outcome in MAYBE), key=lambda one: one.stamp)
    yield from _come_back(log, records)
    yield from _remembered(log, sends)
    yield from _forgotten_early(log, sends, times)
    yield from _lost(log, sends, records)
    yield from _policy(log)
    yield from _counted(log, sends, sent)


def _end(log: Log, place: str) -> str:
    """Where the queue was removed that was there at this place; empty = nowhere."""
    at = bisect_right(log.gone, place)
    return log.gone[at] if at < len(log.gone) else ""


def _come_back(log: Log, records: Sequence[Record]) -> Iterator[str]:
    """Messages, leases, and dead letters."""
    settles: dict[str, list[Settle]] = defaultdict(list)
    for one in records:
        if isinstance(one, Settle) and one.outcome == "ok":
            settles[one.lease].append(one)
    for one in records:
        if isinstance(one, Delivery) and one.queue == BRIEF and (gone := _end(log, one.message[:20])):
            if index(gone) < index(one.lease):
                yield f"message {one.message} ({one.name}) was leased with {one.lease}, and was removed at {gone}"
            for settle in settles[one.lease]:
                if settle.stamp > gone:
                    yield f"lease {one.lease} was obeyed at {settle.stamp}, and its message removed at {gone}"
        elif isinstance(one, Letter) and one.queue == BRIEF and (gone := _end(log, one.message[:20])):
            yield f"dead letter {one.message} ({one.name}) is still there, and was removed at {gone}"


def _remembered(log: Log, sends: Sequence[Send]) -> Iterator[str]:
    """Ids of messages that are gone."""
    for send in sends:
        if send.duplicate and send.outcome == "ok":
            gone = _end(log, send.message[:20])
            if gone and gone < send.stamp:
                yield f"{send.name} at {send.stamp} is a duplicate of {send.message}, which was removed at {gone}"


def _forgotten_early(log: Log, sends: Sequence[Send], times: dict[int, int]) -> Iterator[str]:
    """By a timer of a message that is gone, say."""
    taken: dict[str, list[Send]] = defaultdict(list)
    for send in sends:
        if send.window and send.outcome == "ok" and not send.duplicate:
            taken[send.dedup].append(send)
    for same in taken.values():
        for one, two in pairwise(same):
            removing = bisect_left(log.removing, two.stamp) > bisect_left(log.removing, one.stamp)
            passed = times[index(two.stamp)] - times[index(one.stamp)]
            if passed < one.window and not removing:
                yield f"{two.name} was taken {passed} ms after {one.name}, whose id is remembered for {one.window} ms"


def _lost(log: Log, sends: Sequence[Send], records: Sequence[Record]) -> Iterator[str]:
    """What came when nothing was removed any more is done, dead, or still there."""
    done = {one.message for one in records if isinstance(one, Effect)}
    # By name: of a send whose outcome was looked up in the end the id is not known.
    found = {one.name for one in records if isinstance(one, Left | Letter)}
    found |= {one.name for one in records if isinstance(one, Delivery) and one.message in done}
    last = log.removing[-1] if log.removing else ""
    for send in sends:
        certain = send.outcome == "ok" and send.stamp > last and not (send.duplicate or send.ttl)
        if certain and send.name not in found:
            yield f"{send.name} was sent at {send.stamp}, the last removal was at {last}, and nothing is left of it"


def _policy(log: Log) -> Iterator[str]:
    """Leases say which policy they are of. Which one it was within an entry that changes it, nobody knows."""
    places = [place for place, _ in log.defined]
    changed = {index(place) for place in places}
    for lease, period in log.periods:
        at = bisect_right(places, lease[:16] + "ffff")
        due = LEASE if at and log.defined[at - 1][1] else 0
        if period != due and index(lease) not in changed:
            yield f"lease {lease} lasts {period} ms, and its queue's policy says {due} (0: there is none)"


def _counted(log: Log, sends: Sequence[Send], sent: int) -> Iterator[str]:
    """Since the queue was made anew."""
    last = log.gone[-1] if log.gone else ""
    since = [one for one in sends if one.outcome == "unknown" or one.stamp > last]
    least = sum(one.outcome == "ok" and not one.duplicate for one in since)
    most = sum(not one.duplicate for one in since)
    if not least <= sent <= most:
        yield f"{BRIEF} has counted {sent} messages since {last}, and {least} to {most} came"
