"""Queue consumers that outlive connections. No I/O, no clock.

The leader grants leases in the log; this side keeps what it holds, by lease id. On a new connection each consumer is
registered with what it holds, so that the node goes on renewing that and pushes again what got lost on the way. A
lease that is in hand, or was settled a moment ago, is not delivered twice. What is taken at most once has no lease in
the log: it is in hand only as a credit, until it is reported as started. Leases belong to a session: when a new one
replaces an expired session, the old leases are no longer named.

A lease that expires may be let go, without a verdict, by who goes on to another message. Until it must have ended it is
named all the same, and each new node is told that its place is free then: else it would be kept for a message that
nobody speaks of any more.

A consumer that has ended may have been granted something that never came: it was on its way when the connection broke,
or the leader died before it could take it back. It would stay leased for as long as this client lives. So who ended a
short while before a connection is lost is registered once more on the next one, for a queue that is always empty, with
what is left in hand; what the node pushes beside that goes back.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters
from kvorum.queues.outgoing import RESERVED
from kvorum.rights import refused

MAX_CONSUMERS: Final = 1_000
"""Open consumers of one client."""
MAX_ENDED: Final = 500
"""Consumers that have ended, and may have been granted something since."""
ENDED_AGE: Final = 10.0
"""Seconds after which nothing can come any more for one that has ended on a sound connection."""
MAX_BYTES: Final = 262_144
"""Bytes of registrations and reports in one frame, after which no more go into it."""
NOWHERE: Final = RESERVED + "ended"
"""A queue that nobody sends to."""
REMEMBERED: Final = 4_096
"""Settled leases that a consumer remembers, to know a late repeat of their delivery."""


class Held:
    """A message in hand."""

    __slots__ = ("message_id", "session", "started")

    def __init__(self, message_id: bytes, session: bytes) -> None:
        self.message_id = message_id
        self.session = session
        self.started = False


class ClusterConsumer:
    """One consumer (`kvorum.backend.Consumer`)."""

    __slots__ = (
        "_let_go",
        "_owner",
        "_remembered",
        "closed",
        "concurrency",
        "credits",
        "deliver",
        "ended_at",
        "expiring",
        "failed",
        "held",
        "id",
        "queue",
        "registered",
        "session",
        "take",
        "to_report",
    )

    def __init__(
        self,
        owner: "Consumers",
        consumer_id: int,
        queue: str,
        credit: int,
        concurrency: int,
        deliver: Callable[[pb.Delivery], None],
        failed: Callable[[errors.KvorumError], None] | None,
        *,
        take: bool = False,
        expiring: bool = False,
    ) -> None:
        self._owner = owner
        self.id = consumer_id
        self.queue = queue
        self.credits = credit
        self.concurrency = concurrency
        self.deliver = deliver
        self.failed = failed
        self.take = take
        self.expiring = expiring
        self.held: dict[bytes, Held] = {}
        self.to_report: list[bytes] = []
        self.registered = False
        """The node at the other end of the stream has it."""
        self.session = b""
        """Where it was registered last."""
        self.ended_at = 0.0
        self.closed = False
        self._let_go: dict[bytes, None] = {}
        """Of `held`, the first one that was let go first."""
        # A dict whose first key is removed again and again is walked through from its beginning each time: 2.0
        # instead of 0.3 µs.
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    def started(self, lease_id: bytes) -> None:
        """Report that a message's handling starts; call it before the handler. What was taken is out of hand by it.
        Said again of a lease that expires: whoever has it goes on, its place is free when it ends.
        """
        held = self.held.get(lease_id)
        if held is not None and (not held.started or self.expiring):
            if held.started:
                self._let_go[lease_id] = None
            held.started = True
            self.to_report.append(lease_id)
            self._owner.changed(self)
            if self.take:
                self.settled(lease_id)
            while len(self.held) > self.credits and self._let_go:
                # A node grants no more than there are credits, so some have ended.
                self.settled(next(iter(self._let_go)))

    def settled(self, lease_id: bytes) -> None:
        """The message's settle was answered: it is no longer in hand."""
        if self.held.pop(lease_id, None) is not None:
            self._let_go.pop(lease_id, None)
            if self.closed:
                self._owner.dropped(self)
            self._remembered[lease_id] = None
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)

    def let_go(self, session: bytes) -> list[bytes]:
        """Leases of a session that were let go and may go on."""
        return [lease_id for lease_id in self._let_go if self.held[lease_id].session == session]

    async def close(self) -> None:
        """Take no more messages."""
        self._owner.stop(self)

    def knows(self, lease_id: bytes) -> bool:
        """Whether this lease is in hand or was settled a moment ago."""
        return lease_id in self.held or lease_id in self._remembered


class Consumers:
    """All consumers of a client.

    `wake` is called when there is something to send, `give_back` with what nobody takes, `leasing_changed` when
    `leasing` has changed; `clock` tells seconds.
    """

    def __init__(
        self,
        counters: Counters,
        wake: Callable[[], None],
        give_back: Callable[[pb.Delivery], None],
        leasing_changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock = clock
        self._leasing_changed = leasing_changed
        self.leasing = 0
        """Consumers whose leases are renewed as long as this client lives, and messages in the hands of those that have
        ended: what the others have need not be counted as it comes and goes: 0.2 µs a message."""
        self._counters = counters
        self._wake = wake
        self._give_back = give_back
        self._last_id = 0
        self._live: dict[int, ClusterConsumer] = {}
        self._to_start: dict[int, ClusterConsumer] = {}
        self._to_report: dict[int, ClusterConsumer] = {}
        self._to_stop: deque[int] = deque()
        self._ended: dict[int, ClusterConsumer] = {}
        """In the order of `ended_at`."""
        self._on_stream: set[int] = set()
        """Consumers that the node has."""

    def start(
        self,
        queue: str,
        credit: int,
        concurrency: int,
        deliver: Callable[[pb.Delivery], None],
        failed: Callable[[errors.KvorumError], None] | None = None,
        *,
        take: bool = False,
        expiring: bool = False,
    ) -> ClusterConsumer:
        """Register a consumer. Errors: Overloaded."""
        if len(self._live) >= MAX_CONSUMERS:
            raise errors.Overloaded(f"{len(self._live):,} consumers are open already")
        self._last_id += 1
        consumer = ClusterConsumer(
            self, self._last_id, queue, credit, concurrency, deliver, failed, take=take, expiring=expiring
        )
        self._live[consumer.id] = self._to_start[consumer.id] = consumer
        self._leases(consumer, 1)
        self._wake()
        return consumer

    def _leases(self, consumer: ClusterConsumer, more: int) -> None:
        if not consumer.take and not consumer.expiring:
            before, self.leasing = self.leasing, self.leasing + more
            if not before or not self.leasing:
                self._leasing_changed()

    def dropped(self, consumer: ClusterConsumer) -> None:
        """A message is out of the hands of a consumer that has ended."""
        self._leases(consumer, -1)

    def stop(self, consumer: ClusterConsumer) -> None:
        """No more deliveries to this consumer."""
        consumer.closed = True
        if self._live.pop(consumer.id, None) is None:
            return
        self._leases(consumer, len(consumer.held) - 1)
        waiting = self._to_start.pop(consumer.id, None)
        if consumer.session and not consumer.take:
            consumer.ended_at = self._clock()
            self._ended[consumer.id] = consumer
            if waiting is not None:  # what the last stream had for it is yet to come
                self._to_start[consumer.id] = consumer
            if len(self._ended) > MAX_ENDED:
                self._forget(next(iter(self._ended.values())))
        self._leave(consumer)

    def _leave(self, consumer: ClusterConsumer) -> None:
        if consumer.registered:
            consumer.registered = False
            self._to_stop.append(consumer.id)
            self._wake()

    def _forget(self, ended: ClusterConsumer) -> None:
        del self._ended[ended.id]
        self._to_start.pop(ended.id, None)
        self._leave(ended)

    def end_all(self, problem: Callable[[], errors.KvorumError]) -> None:
        """No more deliveries to anyone: tell each consumer why."""
        for consumer in list(self._live.values()):
            self.stop(consumer)
            if consumer.failed is not None:
                consumer.failed(problem())
        for ended in list(self._ended.values()):
            self._forget(ended)

    def ended(self, endings: Iterable[pb.ConsumerEnded]) -> None:
        """A node gives some consumers nothing more."""
        for ending in endings:
            consumer = self._live.get(ending.consumer)
            if consumer is None or not consumer.registered:
                continue
            consumer.registered = False
            self._on_stream.discard(consumer.id)
            problem = refused(ending.status, ending.message)
            if problem is None:  # it could not find out: perhaps the next time
                self._to_start[consumer.id] = consumer
                continue
            self.stop(consumer)
            if consumer.failed is not None:
                consumer.failed(problem)

    def changed(self, consumer: ClusterConsumer) -> None:
        """A consumer has started reports to send."""
        if consumer.id not in self._to_report:  # or it is known already
            self._to_report[consumer.id] = consumer
            self._wake()

    @property
    def open(self) -> bool:
        """There are consumers: a session is needed, and the silence of a node matters."""
        return bool(self._live)

    @property
    def ending(self) -> bool:
        """Some ended a moment ago: what was leased to them unseen must come back from whoever leads, so the silence of
        a node matters still."""
        newest = next(reversed(self._ended.values()), None)
        return newest is not None and self._clock() - newest.ended_at < ENDED_AGE

    def fill(self, frame: pb.ClientFrame, session: bytes, operations: int) -> int:
        """Put registrations, ends and started reports into a frame; `session` must not be empty."""
        count = size = 0
        self._forget_old()
        places = MAX_CONSUMERS - len(self._on_stream)  # the node counts those that this frame stops as well
        while self._to_stop and count < operations:
            frame.stop_consumers.append(number := self._to_stop.popleft())
            self._on_stream.discard(number)
            count += 1
        while self._to_start and count < operations and places > 0 and size < MAX_BYTES:
            consumer = self._to_start.pop(next(iter(self._to_start)))
            if consumer.closed and consumer.session != session:
                del self._ended[consumer.id]  # its leases ended with its session
                continue
            if consumer.closed:
                del self._ended[consumer.id]
                self._ended[consumer.id] = consumer
                consumer.ended_at = self._clock()
            places -= 1
            self._on_stream.add(consumer.id)
            consumer.registered = True
            consumer.session = session
            # The registration carries `started` of everything in hand, so older reports need not follow, but of what
            # was let go: that is said by reporting it again.
            consumer.to_report = consumer.let_go(session)
            self._to_report.pop(consumer.id, None)
            if consumer.to_report:
                self._to_report[consumer.id] = consumer
            start = frame.consumers.add(
                id=consumer.id,
                queue=NOWHERE if consumer.closed else consumer.queue,
                credits=consumer.credits,
                concurrency=consumer.concurrency,
                take=consumer.take,
                expiring=consumer.expiring,
            )
            for lease_id, held in consumer.held.items():
                if held.session == session and not consumer.take:
                    start.held.add(message_id=held.message_id, lease_id=lease_id, started=held.started)
            size += start.ByteSize()
            count += 1
        while self._to_report and count < operations and size < MAX_BYTES:
            consumer = self._to_report.pop(next(iter(self._to_report)))
            report = frame.started.add(consumer=consumer.id, lease_ids=consumer.to_report)
            size += report.ByteSize()
            consumer.to_report.clear()
            count += 1
        if self._to_start and not places:
            self._make_room()
        return count

    def _forget_old(self) -> None:
        now = self._clock()
        for consumer in list(self._ended.values()):
            if now - consumer.ended_at < ENDED_AGE:
                break
            if consumer.id not in self._to_start:
                self._forget(consumer)

    def _make_room(self) -> None:
        """The node takes no more: those that have ended give way."""
        for consumer in [one for one in self._ended.values() if one.registered][: len(self._to_start)]:
            self._forget(consumer)
        if len(self._on_stream) < MAX_CONSUMERS or self._to_stop:
            self._wake()

    def connection_lost(self) -> None:
        """The stream is gone, or its session ended: all are to be registered again."""
        self._to_stop.clear()
        self._on_stream.clear()
        self._to_start = {**self._live, **self._ended}
        for consumer in self._to_start.values():
            consumer.registered = False

    def deliveries(self, deliveries: Iterable[pb.Delivery], session: bytes) -> None:
        """Hand messages over, each lease once."""
        counters = self._counters
        for delivery in deliveries:
            consumer = self._live.get(delivery.consumer)
            if consumer is None:
                ended = self._ended.get(delivery.consumer)
                if ended is not None and ended.knows(delivery.lease_id):
                    counters.duplicate_deliveries += 1
                    continue
                counters.late_deliveries += 1
                if not delivery.taken:
                    self._give_back(delivery)
                continue
            lease_id = delivery.lease_id
            if consumer.knows(lease_id):
                counters.duplicate_deliveries += 1
                continue
            consumer.held[lease_id] = Held(delivery.message_id, session)
            counters.deliveries += 1
            if delivery.attempt > 1:
                counters.redeliveries += 1
            consumer.deliver(delivery)
