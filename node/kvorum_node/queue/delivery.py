"""Delivery, on the leader only.

What is true stands in the log: a message is in somebody's hands from the entry that holds its `Lease` until the entry
that settles or releases it (rules F1). This class decides *when* to propose those commands, from three things kept in
memory: the consumers connected to this node and their credits; the leases in their hands, derived from applied
entries; and which sessions have a connection.

*Handing out.* An entry that carries enqueues for a queue with waiting credit gets its Lease commands in the same
entry (`companions`, called by the proposer). Everything else that makes messages ready (a delay that ends, a retry, a
release, the head of a group that is done, credit that comes back) goes through `_pump`: look up the earliest due
message of the queue; ask for leases if its time has come, set the line's alarm otherwise. There is no list of messages
here, so nothing to keep equal with the store and nothing that grows with a backlog.

*Groups.* An acknowledgement makes the next message of its group ready in the same entry, so its Lease can stand there,
too, if the consumer has room for one more: `submitted` tells the proposer so, as if it had been enqueued. Whether a
queue is of that kind is learned (`Followers`).

*Lapsed while its holder lives.* A lease that expired in the hands of a consumer keeps its credit until the consumer is
heard of it: it may be stuck, and would be given the same message again and again while others wait.

*Policies.* A queue that is paused, or has as many messages in hands as its policy allows, is not asked for more: what
ends that (a lease that ends, a change of policy) comes with an applied entry and pumps. Apply judges the same again.

*At most once.* What a consumer takes is deleted by its `Lease`, so it is in nobody's hands and has no deadline; its
credit comes back when the client reports that it has begun with it. It exists on the way to the client only, hence
the bound on what one connection may have under way (`TakeRoom`).

*Deadlines* are the business of `Lapses`.

*Reconnects.* A consumer says what it holds; leases of its in the log that it does not name are pushed again. It must
ignore those that it knows, because a delivery may cross with the connection's end.

A new leader starts from `store.leases()`, which it reads by pages; until it has them all it hands out nothing. A
deposed one forgets everything but the connected consumers.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.histogram import Histogram
from kvorum_raft.seams import Consensus

from ..proposer import Proposal, Proposer
from ..timers import Timers
from .asking import Asking
from .hands import Consumer, HandsBook, HeldLease, Sink, TakeRoom
from .lapses import Lapses
from .releases import Releases
from .seams import GrantRow, LeaseRow, QueueResult, QueueStore

logger = logging.getLogger("kvorum.node")

LEASES_PAGE: Final = 512
"""Leased rows that a new leader reads in one callback."""


class Delivery:
    """See the module. `lease` is seconds: the period of queues whose policy names none.

    Call `applied` after every entry, `took_office` and `left_office` with the leadership.
    """

    def __init__(
        self, store: QueueStore, consensus: Consensus, timers: Timers, *, lease: float = limits.DEFAULT_LEASE / 1000
    ) -> None:
        self._store = store
        store.wants_deliveries = False  # until this node leads
        self._timers = timers
        self._lease = lease
        self._proposer: Proposer | None = None
        self._leading = False
        self._offices = 0
        """Times that this node took office."""
        self._complete = False
        """All leases are in the book."""
        self._when_complete: list[Callable[[], None]] = []
        self._asking = Asking(store, consensus, timers, self._expire)
        self._pump = self._asking.pump
        self._followers = self._asking.followers
        self._lapsed: dict[bytes, Consumer] = {}
        """Leases that have lapsed while their consumers live, and keep their credits."""
        self._book = HandsBook()
        self._known = 0
        """Index of the last entry that this object knows of."""
        releases = Releases(
            self._book,
            timers,
            submit=self._submit,
            leading=lambda: self._leading,
            known=lambda: self._known,
            kept=self._kept,
        )
        self._release = releases.release
        self._lapses = Lapses(self._book, timers, period=self._period, release=self._release)
        self._granted = self._taken = self._pushed_again = 0
        self.delays = Histogram()
        """From the moment that messages were due to their lease."""

    def attach(self, proposer: Proposer) -> None:
        """Where to propose; the proposer needs `companions` of this object first, hence not in the constructor."""
        self._proposer = proposer
        self._asking.attach(proposer)

    # ---- connections

    def connected(self, session: bytes) -> None:
        """A connection of the session begins: its leases are renewed from now on."""
        self._lapses.connected(session)

    def disconnected(self, session: bytes, silent: float = 0.0) -> None:
        """A connection of the session has ended, which had been silent for so many seconds. With the last one its
        leases begin to lapse."""
        self._lapses.disconnected(session, silent)

    def start_consumer(
        self,
        session: bytes,
        request: pb.StartConsumer,
        sink: Sink,
        on_expired: Callable[[], None] | None = None,
        take_room: TakeRoom | None = None,
    ) -> Consumer:
        """Deliver to `sink` from now on; `on_expired` is called when nothing can come any more, because the session
        is closed. `take_room` bounds what is on its way to a consumer that takes; None: nothing but its credits does.

        A consumer of the same number that is still here belongs to a dead connection: it is replaced.
        """
        holder = (session, request.id)
        before = self._book.find(holder)
        if before is not None and before.consumer is not None:
            self._remove(before.consumer)
        hands = self._book.get(holder)  # only now: with its consumer gone, an idle holder was forgotten
        consumer = Consumer(
            holder,
            request.queue,
            request.credits,
            max(1, request.concurrency),
            sink,
            {held.lease_id for held in request.held},
            hands,
            on_expired,
            expiring=request.expiring,
            take=request.take,
            take_room=take_room if request.take else None,
        )
        if request.expiring:
            # Of what it holds some may have lapsed.
            consumer.occupied.update(held.lease_id for held in request.held)
        hands.consumer = consumer
        hands.concurrency = consumer.concurrency
        self._asking.add(consumer)
        for held in request.held:
            lease = hands.held.get(held.lease_id)
            if lease is not None and held.started:
                lease.started = True
        if self._leading and self._complete:
            self._take_up(consumer)
        return consumer

    def _take_up(self, consumer: Consumer) -> None:
        """A consumer is here, and what it holds is known."""
        if consumer.expiring:
            consumer.occupied.difference_update(consumer.hands.held)
            self._lapsed.update((lease_id, consumer) for lease_id in consumer.occupied)
            for lease in consumer.hands.held.values():
                self._lapses.expire(lease)
        self._push_again(consumer)
        self._pump(consumer.queue)

    def stop_consumer(self, consumer: Consumer) -> None:
        """No more messages to this consumer. What it holds stays leased."""
        if consumer.hands.consumer is consumer:
            self._remove(consumer)

    def deprive(self, consumer: Consumer) -> None:
        """A consumer may not have messages of its queue any more: it gets none, and those in its hands are others' to
        handle at once. Whatever it says of them would be refused, and they would be kept for it while it is connected.
        """
        self.stop_consumer(consumer)
        if self._leading:
            mine = [lease for lease in consumer.hands.held.values() if lease.queue == consumer.queue]
            self._release([(lease, lease.started) for lease in mine])

    def started(self, session: bytes, number: int, lease_ids: Sequence[bytes]) -> None:
        """The handling of these messages begins: losing their holder from now on counts as an attempt. Those that were
        taken give their credits back. Said again, or of one that has lapsed: it is out of the consumer's hands.
        """
        hands = self._book.find((session, number))
        if hands is None:
            return
        for lease_id in lease_ids:
            lease = hands.held.get(lease_id)
            if lease is not None:
                lease.let_go = lease.started or lease.releasing
                lease.started = True
        consumer = hands.consumer
        if consumer is not None and consumer.occupied:
            consumer.occupied.difference_update(lease_ids)
            for lease_id in lease_ids:
                self._lapsed.pop(lease_id, None)
            self._pump(consumer.queue)

    def finished(self, lease_id: bytes) -> None:
        """A message is out of its consumer's hands, whatever became of its lease."""
        lease = self._book.leases.get(lease_id)
        if lease is None:
            self._free(lease_id)
        else:
            lease.let_go = True

    def resume(self, consumer: Consumer) -> None:
        """There is room again on the way to a consumer that takes."""
        self._pump(consumer.queue)

    def stop_session(self, session: bytes) -> None:
        """Stop all consumers of a session."""
        for hands in self._book.of_session(session):
            if hands.consumer is not None:
                self._remove(hands.consumer)

    def goodbye(self, session: bytes) -> int:
        """The session's consumers end in order, their reports are complete: release all at once, counting only
        what was started. Returns how many.
        """
        leases = [lease for hands in self._book.of_session(session) for lease in hands.held.values()]
        self._release([(lease, lease.started) for lease in leases])
        return len(leases)

    def lapse(self, session: bytes) -> int:
        """The session's holder is known to be lost: release its leases now, counting as rules F2 say. Returns how
        many.
        """
        return self._lapses.lapse(session)

    def holds(self, session: bytes) -> bool:
        """Whether something is in the session's hands."""
        return any(hands.held for hands in self._book.of_session(session))

    def consumers_of(self, queue: str) -> int:
        """Consumers of a queue that are connected to this node."""
        line = self._asking.lines.get(queue)
        return 0 if line is None else len(line.consumers)

    # ---- leadership

    def took_office(self) -> None:
        """Start from the state: every leased row gets a full period."""
        self._leading = True
        self._complete = False
        self._store.wants_deliveries = True
        self._known = self._store.applied_index
        self._offices += 1
        self._load(self._offices, b"")

    def _load(self, office: int, after: bytes) -> None:
        """Read a page of the leased rows. What is granted or ended meanwhile comes by `applied`."""
        if not self._leading or office != self._offices:
            return
        rows = self._store.leases(after, LEASES_PAGE)
        periods: dict[str, float] = {}
        for row in rows:
            if row.lease_id in self._book.leases:
                continue
            lease = self._hold(row, (row.session, row.consumer), row.lease_ms)
            period = periods.get(row.queue)
            if period is None:
                period = periods[row.queue] = self._period(row.queue)
            if row.expiring:
                self._lapses.expire(lease)
            elif lease.period > period:
                lease.until = lease.since + lease.period  # it was extended
        if len(rows) == LEASES_PAGE:
            self._timers.call_soon(self._load, office, rows[-1].message_id)
            return
        self._complete = self._asking.open = True
        self._lapses.took_office()
        callbacks, self._when_complete = self._when_complete, []
        for callback in callbacks:
            callback()
        for line in list(self._asking.lines.values()):
            for consumer in list(line.consumers):
                self._take_up(consumer)

    def when_complete(self, callback: Callable[[], None]) -> None:
        """Call back, once, as soon as this node leads and knows all leases; at once if that is now."""
        if self._leading and self._complete:
            callback()
        else:
            self._when_complete.append(callback)

    def left_office(self) -> None:
        """Forget what only a leader may judge."""
        self._leading = self._complete = False
        self._store.wants_deliveries = False
        self._lapses.left_office()
        self._book.forget_leases()
        self._asking.stop()

    def close(self) -> None:
        """Stop all alarms."""
        self.left_office()

    # ---- the log

    def companions(self, enqueues: dict[str, int]) -> list[Proposal]:
        """Lease commands to stand in the entry that makes these messages ready."""
        return self._asking.companions(enqueues)

    def submitted(self, group: pb.WriteGroup) -> dict[str, int]:
        """Writes are on their way into the log. Returns how many messages they may make ready by settling those before
        them, by queue.
        """
        found: dict[str, int] = {}
        if not (self._leading and (self._followers or self._lapsed or self._lapses.ending)):
            return found
        for write in group.writes:
            for settle in pb.AtomicWrite.FromString(write.op).settles:
                lease = self._book.leases.get(settle.lease_id)
                if lease is None:
                    self._free(settle.lease_id)
                    continue
                # who extends a lease still has it, unless its end is on its way
                lease.let_go = settle.kind != pb.SETTLE_KIND_EXTEND or lease.releasing
                if self._followers.are_expected(lease.queue, settle.kind):
                    found[lease.queue] = found.get(lease.queue, 0) + 1
        return found

    def _free(self, lease_id: bytes) -> None:
        """Its consumer speaks of a lease that has lapsed: it gets its credit back."""
        consumer = self._lapsed.pop(lease_id, None)
        if consumer is not None:
            consumer.occupied.discard(lease_id)
            self._pump(consumer.queue)

    def applied(self, result: QueueResult) -> None:
        """Follow an applied entry."""
        if not self._leading:
            return
        self._known = max(self._known, result.index)
        for delay_ms, count in result.delays:
            self.delays.observe(delay_ms / 1000, count)
        touched = set(result.ready)
        # Extended first: by this very entry it may have ended as well.
        for lease_id, extended_ms in result.extended:
            lease = self._book.leases.get(lease_id)
            if lease is not None:
                self._lapses.extended(lease, extended_ms / 1000 if extended_ms else self._period(lease.queue))
        settled: set[str] = set()
        for lease_id in result.ended:
            lease = self._book.drop(lease_id)
            if lease is not None:
                settled.add(lease.queue)
                self._lapses.ended(lease)
                if lease.lapsed and not lease.let_go:
                    self._occupy(lease)
        touched |= settled
        for queue in settled:
            if queue in self._asking.lines and result.ready.get(queue, result.time_ms + 1) <= result.time_ms:
                self._followers.seen(queue)
        unclaimed = [(lease, False) for lease in self._grant(self._store.grants(result), frozenset(result.ended))]
        if unclaimed:
            self._release(unclaimed)
        if result.policies_changed:
            self._lapses.periods_changed(result.policies_changed)
            touched |= result.policies_changed
        for queue in touched:
            self._pump(queue)

    def _occupy(self, lease: HeldLease) -> None:
        hands = self._book.find(lease.holder)
        if hands is not None and hands.consumer is not None:
            hands.consumer.occupied.add(lease.lease_id)
            self._lapsed[lease.lease_id] = hands.consumer

    def time_moved(self) -> None:
        """The cluster's time has jumped ahead of the loop's: what was to be due later may be due now."""
        for queue in list(self._asking.lines):
            self._pump(queue)

    def statistics(self) -> dict[str, float]:
        return {
            "queue_consumers": sum(len(line.consumers) for line in self._asking.lines.values()),
            "queue_leases": len(self._book.leases),
            "queue_granted": self._granted,
            "queue_taken": self._taken,
            "queue_lapsed": self._lapses.lapsed,
            "queue_pushed_again": self._pushed_again,
        }

    # ---- handing out

    def _grant(self, grants: Sequence[GrantRow], ended: frozenset[bytes]) -> list[HeldLease]:
        """Hand out new leases; of a queue that is removed one may end in the entry that granted it. Returns those whose
        consumer is gone: they were never sent, so they can go back at once.

        A Lease command's grants follow each other, so their holder and the time are looked up once: 1.6 instead of 2.4
        µs of a leader's CPU a message, putting it into the outbox included.
        """
        unclaimed: list[HeldLease] = []
        book, now, period = self._book, self._timers.time(), self._lease
        holder, hands = (b"", -1), None
        for grant in grants:
            message = grant.delivery
            lease_id = message.lease_id
            if lease_id in ended or lease_id in book.leases:
                continue
            if message.taken:
                self._hand_over(message, (grant.session, grant.consumer))
                continue
            if hands is None or grant.session != holder[0] or grant.consumer != holder[1]:
                holder = (grant.session, grant.consumer)
                hands = book.get(holder)
            lease_ms = message.lease_ms
            if not lease_ms:
                message.lease_ms = int(period * 1000)
            lease = HeldLease(message.message_id, lease_id, message.queue, holder, now, lease_ms / 1000 or period)
            book.put(lease, hands)
            self._granted += 1
            consumer = hands.consumer
            if consumer is None:
                unclaimed.append(lease)
                continue
            if consumer.expiring:
                self._lapses.expire(lease)
            consumer.known.add(lease_id)
            consumer.sink(message)
        return unclaimed

    def _hand_over(self, message: pb.Delivery, holder: tuple[bytes, int]) -> None:
        """A message that was taken. If its consumer has gone, so has the message: at most once."""
        self._taken += 1
        hands = self._book.find(holder)
        consumer = None if hands is None else hands.consumer
        if consumer is not None:
            consumer.occupied.add(message.lease_id)
            consumer.sink(message)

    def _send(self, consumer: Consumer, message: pb.Delivery) -> None:
        if not message.lease_ms:
            message.lease_ms = int(self._lease * 1000)
        consumer.known.add(message.lease_id)
        consumer.sink(message)

    def _expire(self, session: bytes) -> None:
        """The session is closed, so apply grants it nothing, and to go on asking would fill the log. Its client was
        away when that happened, or was never let in: it must hear of it, or it would wait for ever.
        """
        for hands in self._book.of_session(session):
            consumer = hands.consumer
            if consumer is not None:
                self._remove(consumer)
                if consumer.on_expired is not None:
                    consumer.on_expired()

    def _push_again(self, consumer: Consumer) -> None:
        """What it holds and does not name. Messages of another queue were its number's when that stood for a consumer
        that has ended, and was never told of them: they are others' to handle. It may not be allowed to see them."""
        strays = []
        for lease in list(consumer.hands.held.values()):
            if lease.releasing or lease.lease_id in consumer.known:
                continue
            if lease.queue != consumer.queue:
                strays.append((lease, lease.started))
                continue
            message = self._store.delivery(lease.message_id, lease.lease_id)
            if message is not None:
                self._pushed_again += 1
                self._send(consumer, message)
        if strays and self._leading:
            self._release(strays)

    # ---- bookkeeping

    def _period(self, queue: str) -> float:
        """Seconds that leases of a queue last, by the policy that it has now."""
        return self._store.queue_facts(queue).lease_ms / 1000 or self._lease

    def _submit(self, item: Proposal) -> None:
        assert self._proposer is not None
        self._proposer.submit(item, urgent=True)

    def _kept(self, lease: HeldLease) -> None:
        """An extension was faster than the end of this lease."""
        self._lapses.kept(lease)

    def _hold(self, row: "LeaseRow | pb.Delivery", holder: tuple[bytes, int], lease_ms: int) -> HeldLease:
        now = self._timers.time()
        lease = HeldLease(row.message_id, row.lease_id, row.queue, holder, now, lease_ms / 1000 or self._lease)
        self._book.hold(lease)
        return lease

    def _remove(self, consumer: Consumer) -> None:
        """Take a consumer out of its line; its hands stay while something is in them."""
        consumer.hands.consumer = None
        for lease_id in consumer.occupied:
            self._lapsed.pop(lease_id, None)
        self._book.drop_if_idle(consumer.holder)
        self._asking.remove(consumer)
