"""Who holds what: consumers, the leases in their hands, and the line of consumers of each queue.

Plain memory, no I/O.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvorum._proto import kvorum_pb2 as pb

from ..timers import Alarm

Sink = Callable[[pb.Delivery], None]
"""Takes a delivery; never blocks, never raises."""

Holder = tuple[bytes, int]
"""A consumer over its reconnects: its session, and its number within it."""


@dataclass(slots=True)
class HeldLease:
    """A lease that stands in the log, as its leader remembers it."""

    message_id: bytes
    lease_id: bytes
    queue: str
    holder: Holder
    started: bool = False
    releasing: bool = False
    """A Release of it has been proposed."""


@dataclass(slots=True, eq=False)
class Consumer:
    """A connected consumer."""

    holder: Holder
    queue: str
    credits: int
    """Messages that may be in its hands."""
    concurrency: int
    """Messages that it handles at once."""
    sink: Sink
    known: set[bytes]
    """Leases that it said it holds when it connected, or that went out to it since."""
    hands: "Hands"
    on_expired: Callable[[], None] | None = None
    """Told that its session is closed, so that it gets nothing more."""
    reserved: int = 0
    """Credits bound by Lease commands whose answer is not there yet."""

    def room(self, bound: int) -> int:
        """How many more it may get before `bound` are in its hands."""
        return bound - len(self.hands.held) - self.reserved


@dataclass(slots=True)
class Hands:
    """The leases of one holder, in the order in which they were granted; they outlive its connection."""

    held: dict[bytes, HeldLease] = field(default_factory=dict)
    consumer: Consumer | None = None
    concurrency: int = 1
    """Of its last connection.

    After a change of leader nobody knows it, and 1 blames the fewest messages for a lost holder.
    """

    def verdicts(self) -> list[tuple[HeldLease, bool]]:
        """Each lease, and whether the loss of this holder uses up an attempt of its message (rules F2)."""
        return [
            (lease, lease.started or position < self.concurrency) for position, lease in enumerate(self.held.values())
        ]


class HandsBook:
    """All hands, by session and number: much is asked about one session, and there may be thousands."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, dict[int, Hands]] = {}

    def __len__(self) -> int:
        return sum(len(numbers) for numbers in self._sessions.values())

    def find(self, holder: Holder) -> Hands | None:
        return self._sessions.get(holder[0], {}).get(holder[1])

    def get(self, holder: Holder) -> Hands:
        """The holder's hands, new ones if it has none yet."""
        return self._sessions.setdefault(holder[0], {}).setdefault(holder[1], Hands())

    def drop_if_idle(self, holder: Holder) -> None:
        """Forget a holder that has neither leases nor a connected consumer."""
        hands = self.find(holder)
        if hands is not None and not hands.held and hands.consumer is None:
            del self._sessions[holder[0]][holder[1]]
            if not self._sessions[holder[0]]:
                del self._sessions[holder[0]]

    def of_session(self, session: bytes) -> list[Hands]:
        return list(self._sessions.get(session, {}).values())

    def sessions(self) -> list[bytes]:
        """Sessions that hold leases."""
        return [session for session, numbers in self._sessions.items() if any(hands.held for hands in numbers.values())]

    def forget_leases(self) -> None:
        """Empty all hands; connected consumers stay."""
        for session, numbers in list(self._sessions.items()):
            for number, hands in list(numbers.items()):
                hands.held.clear()
                self.drop_if_idle((session, number))


@dataclass(slots=True)
class Line:
    """The consumers of one queue on this node, and what is known about its ready messages."""

    queue: str
    alarm: Alarm
    consumers: deque[Consumer] = field(default_factory=deque)
    asking: int = 0
    """Lease commands under way because messages were ready (not those that ride with an enqueue)."""
    burst: int = 1
    """How many messages the next asking may take, over all consumers; grows while there are enough."""

    def room(self) -> int:
        return sum(max(0, consumer.room(consumer.credits)) for consumer in self.consumers)

    def share(self, count: int) -> list[tuple[Consumer, int]]:
        """Deal up to `count` messages to consumers, one each in turn: first to those who could begin at once,
        then into the others' stock.
        """
        if len(self.consumers) == 1:
            only = self.consumers[0]
            alone = min(count, only.room(only.credits))
            return [(only, alone)] if alone > 0 else []
        dealt: dict[int, tuple[Consumer, int]] = {}
        for idle_only in (True, False):
            progress = True
            while count and progress:
                progress = False
                for _ in range(len(self.consumers)):
                    consumer = self.consumers[0]
                    self.consumers.rotate(-1)
                    so_far = dealt.get(id(consumer), (consumer, 0))[1]
                    bound = min(consumer.concurrency, consumer.credits) if idle_only else consumer.credits
                    if consumer.room(bound) > so_far:
                        dealt[id(consumer)] = (consumer, so_far + 1)
                        progress = True
                        count -= 1
                        if not count:
                            break
        return list(dealt.values())
