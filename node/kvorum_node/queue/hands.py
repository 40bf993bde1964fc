"""Who holds what: consumers, the leases in their hands, and the line of consumers of each queue.

Plain memory, no I/O.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb

from ..timers import Alarm

Sink = Callable[[pb.Delivery], None]
"""Takes a delivery; never blocks, never raises."""

Holder = tuple[bytes, int]
"""A consumer over its reconnects: its session, and its number within it."""

TAKE_BYTES: Final = 8 * 1_048_576
"""Taken messages that one connection may have on their way to its client: they stand nowhere else any more."""
_TAKE_WEIGHT: Final = limits.MAX_VALUE_SIZE + limits.MAX_HEADERS_SIZE + 4_096
"""Bytes of the largest one."""


@dataclass(slots=True)
class HeldLease:
    """A lease that stands in the log, as its leader remembers it. Times are seconds of the loop's clock."""

    message_id: bytes
    lease_id: bytes
    queue: str
    holder: Holder
    since: float
    """When this leader heard of it."""
    period: float
    """Seconds that it lasts from then on, or from the last sign of life of its holder."""
    until: float = 0.0
    """Not to end before that: it was extended. With `expires`: it ends then."""
    expires: bool = False
    """It ends although its holder lives."""
    started: bool = False
    releasing: bool = False
    """A Release of it has been proposed."""
    lapsed: bool = False
    """It expired while its holder lived."""
    let_go: bool = False
    """Its holder has spoken of it as of something that is out of its hands, or is about to be."""
    hands: "Hands | None" = None
    """Those that it is in, while it is in the book."""


class TakeRoom:
    """What a connection has room for of messages that are deleted as they are handed out. `waiting` tells how many
    bytes of deliveries it has not sent yet."""

    __slots__ = ("_waiting", "blocked", "reserved")

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self.reserved = 0
        """Messages asked for."""
        self.blocked = False
        """Somebody had credit, and there was no room; until whoever makes room looks, and tells them all."""

    def left(self) -> int:
        """Messages."""
        left = (TAKE_BYTES - self._waiting()) // _TAKE_WEIGHT - self.reserved
        self.blocked |= left <= 0
        return max(0, left)


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
    expiring: bool = False
    """Its leases end although it lives."""
    take: bool = False
    """What it gets is deleted as it is handed out."""
    occupied: set[bytes] = field(default_factory=set)
    """Lease ids that are in its hands no more but have not given their credits back: of what it has taken and not begun
    with, and of what has lapsed while it lives."""
    take_room: TakeRoom | None = None

    def room(self, bound: int) -> int:
        """How many more it may get before `bound` are in its hands."""
        room = bound - len(self.hands.held) - len(self.occupied) - self.reserved
        if room > 0 and self.take_room is not None:
            return min(room, self.take_room.left())
        return room

    def reserve(self, count: int) -> None:
        """Bind credits, or set them free if `count` is negative."""
        self.reserved += count
        if self.take_room is not None:
            self.take_room.reserved += count


@dataclass(slots=True)
class Hands:
    """The leases of one holder, in the order in which they were granted; they outlive its connection."""

    holder: Holder
    held: dict[bytes, HeldLease] = field(default_factory=dict)
    consumer: Consumer | None = None
    concurrency: int = 1
    """Of its last connection.

    After a change of leader nobody knows it, and 1 blames the fewest messages for a lost holder.
    """
    queues: frozenset[str] = frozenset()
    """Of the leases in them: one, unless a client has used a consumer's number twice."""

    def verdicts(self) -> list[tuple[HeldLease, bool]]:
        """Each lease, and whether the loss of this holder uses up an attempt of its message."""
        return verdicts_of(self.held.values(), self, lost=True)


class HandsBook:
    """All hands, by session and number, and all leases: much is asked about one session, and there may be thousands."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, dict[int, Hands]] = {}
        self.leases: dict[bytes, HeldLease] = {}

    def __len__(self) -> int:
        return sum(len(numbers) for numbers in self._sessions.values())

    def find(self, holder: Holder) -> Hands | None:
        return self._sessions.get(holder[0], {}).get(holder[1])

    def get(self, holder: Holder) -> Hands:
        """The holder's hands, new ones if it has none yet."""
        numbers = self._sessions.setdefault(holder[0], {})
        hands = numbers.get(holder[1])
        if hands is None:
            hands = numbers[holder[1]] = Hands(holder)
        return hands

    def hold(self, lease: HeldLease) -> Hands:
        """A lease has come into its holder's hands."""
        hands = self.get(lease.holder)
        self.put(lease, hands)
        return hands

    def put(self, lease: HeldLease, hands: Hands) -> None:
        """The same, of a holder whose hands have been looked up."""
        self.leases[lease.lease_id] = lease
        lease.hands = hands
        if lease.queue not in hands.queues:
            hands.queues = hands.queues | {lease.queue} if hands.held else frozenset((lease.queue,))
        hands.held[lease.lease_id] = lease

    def drop(self, lease_id: bytes) -> HeldLease | None:
        """A lease has ended. Returns it, if it was known."""
        lease = self.leases.pop(lease_id, None)
        if lease is not None and lease.hands is not None:
            # They are those of the book: it forgets none that hold something. Asking the lease instead of the book, and
            # after idle hands only if there may be some, saves 0.2 µs a message.
            hands, lease.hands = lease.hands, None
            del hands.held[lease_id]
            if hands.consumer is not None:
                hands.consumer.known.discard(lease_id)
            elif not hands.held:
                self.drop_if_idle(lease.holder)
        return lease

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
        self.leases.clear()
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
    takers: int = 0
    """Consumers whose messages are deleted as they are handed out."""

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.takers += consumer.take

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.takers -= consumer.take

    def room(self) -> int:
        return sum(max(0, consumer.room(consumer.credits)) for consumer in self.consumers)

    def reserved(self) -> int:
        """Messages asked for, whose answer is not there yet."""
        return sum(consumer.reserved for consumer in self.consumers)

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


def verdicts_of(leases: Iterable[HeldLease], hands: Hands, *, lost: bool) -> list[tuple[HeldLease, bool]]:
    """Some leases of one holder, and whether their end uses up an attempt (rules F2). `lost`: the holder is gone, so
    the report that it has begun may be lost as well."""
    blamed = set(islice(hands.held, hands.concurrency)) if lost else ()
    return [(lease, lease.started or lease.lease_id in blamed) for lease in leases]
