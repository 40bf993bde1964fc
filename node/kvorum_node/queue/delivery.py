"""Delivery, on the leader only.

What is true stands in the log: a message is in somebody's hands from the entry that holds its `Lease` until the entry
that settles or releases it (rules F1). This class decides *when* to propose those commands, from three things kept in
memory: the consumers connected to this node and their credits; the leases in their hands, derived from applied
entries; and which sessions have a connection.

*Handing out.* An entry that carries enqueues for a queue with waiting credit gets its Lease commands in the same
entry (`companions`, called by the proposer). Everything else that makes messages ready (a delay that ends, a retry, a
release, credit that comes back) goes through `_pump`: look up the earliest due message of the queue; ask for leases
if its time has come, set the line's alarm otherwise. There is no list of messages here, so nothing to keep equal with
the store and nothing that grows with a backlog.

*Deadlines.* A lease is renewed as long as its session has a connection, so no lease has a timer of its own: the clock
runs for *sessions without a connection*, one alarm for each. It is set when the last connection goes and when this
node takes office (a full period for every leased row, F2), and a returning connection stops it. When it rings, the
session's leases are released by a log entry.

*Reconnects.* A consumer says what it holds; leases of its in the log that it does not name are pushed again. It must
ignore those that it knows, because a delivery may cross with the connection's end.

A new leader starts from `store.leases()`; a deposed one forgets everything but the connected consumers.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import NotLeader, RaftError
from kvorum_raft.seams import Consensus

from ..proposer import Proposal, Proposer, proposal
from ..timers import Alarm, Timers
from .hands import Consumer, Hands, HandsBook, HeldLease, Line, Sink

logger = logging.getLogger("kvorum.node")

MAX_BURST = 256
"""Leases asked for in one go: with payloads of 100 bytes applying them takes about 3 ms."""
RELEASE_CHUNK = 256
"""Leases in one Release command."""
COOL_DOWN = 0.005
"""Seconds before asking again after nothing was granted although something seemed due."""
RETRY_DELAY = 0.25
"""Seconds before a command is proposed again that the proposer had no room for."""


class LeaseRow(Protocol):
    """A leased message as the store lists it."""

    @property
    def message_id(self) -> bytes: ...
    @property
    def lease_id(self) -> bytes: ...
    @property
    def queue(self) -> str: ...
    @property
    def session(self) -> bytes: ...
    @property
    def consumer(self) -> int: ...


class GrantRow(Protocol):
    """A lease granted by an entry."""

    @property
    def session(self) -> bytes: ...
    @property
    def consumer(self) -> int: ...
    @property
    def delivery(self) -> pb.Delivery: ...


class QueueResult(Protocol):
    """What delivery reads of an entry's result."""

    @property
    def granted(self) -> Sequence[Any]: ...
    @property
    def ended(self) -> Sequence[bytes]: ...
    @property
    def ready(self) -> dict[str, int]: ...


class QueueStore(Protocol):
    """What delivery reads of the state."""

    def next_due_ms(self, queue: str) -> int | None: ...
    def leases(self) -> Sequence[Any]: ...
    def delivery(self, message_id: bytes, lease_id: bytes) -> pb.Delivery | None: ...
    def session_exists(self, session: bytes) -> bool: ...


class Delivery:
    """See the module. `lease` is seconds.

    Call `applied` after every entry, `took_office` and `left_office` with the leadership.
    """

    def __init__(
        self, store: QueueStore, consensus: Consensus, timers: Timers, *, lease: float = limits.DEFAULT_LEASE / 1000
    ) -> None:
        self._store = store
        self._consensus = consensus
        self._timers = timers
        self._lease = lease
        self._proposer: Proposer | None = None
        self._leading = False
        self._lines: dict[str, Line] = {}
        self._hands = HandsBook()
        self._leases: dict[bytes, HeldLease] = {}
        self._connections: dict[bytes, int] = {}
        self._lapses: dict[bytes, Alarm] = {}
        self._granted = self._lapsed = self._pushed_again = 0

    def attach(self, proposer: Proposer) -> None:
        """Where to propose; the proposer needs `companions` of this object first, hence not in the constructor."""
        self._proposer = proposer

    # ---- connections

    def connected(self, session: bytes) -> None:
        """A connection of the session begins: its leases are renewed from now on."""
        self._connections[session] = self._connections.get(session, 0) + 1
        alarm = self._lapses.pop(session, None)
        if alarm is not None:
            alarm.cancel()

    def disconnected(self, session: bytes) -> None:
        """A connection of the session has ended. With the last one its leases begin to lapse."""
        left = self._connections.get(session, 0) - 1
        if left > 0:
            self._connections[session] = left
            return
        self._connections.pop(session, None)
        if self._leading and any(hands.held for hands in self._hands.of_session(session)):
            self._lapse_later(session)

    def start_consumer(
        self, session: bytes, request: pb.StartConsumer, sink: Sink, on_expired: Callable[[], None] | None = None
    ) -> Consumer:
        """Deliver to `sink` from now on; `on_expired` is called when nothing can come any more, because the session
        is closed.

        A consumer of the same number that is still here belongs to a dead connection: it is replaced.
        """
        holder = (session, request.id)
        before = self._hands.find(holder)
        if before is not None and before.consumer is not None:
            self._remove(before.consumer)
        hands = self._hands.get(holder)  # only now: with its consumer gone, an idle holder was forgotten
        known = {held.lease_id for held in request.held}
        concurrency = max(1, request.concurrency)
        consumer = Consumer(holder, request.queue, request.credits, concurrency, sink, known, hands, on_expired)
        hands.consumer = consumer
        hands.concurrency = consumer.concurrency
        line = self._lines.get(consumer.queue)
        if line is None:
            line = Line(consumer.queue, Alarm(self._timers, partial(self._pump, consumer.queue)))
            self._lines[consumer.queue] = line
        line.consumers.append(consumer)
        for held in request.held:
            lease = hands.held.get(held.lease_id)
            if lease is not None and held.started:
                lease.started = True
        if self._leading:
            self._push_again(consumer)
            self._pump(consumer.queue)
        return consumer

    def stop_consumer(self, consumer: Consumer) -> None:
        """No more messages to this consumer. What it holds stays leased."""
        if consumer.hands.consumer is consumer:
            self._remove(consumer)

    def started(self, session: bytes, number: int, lease_ids: Sequence[bytes]) -> None:
        """The handling of these messages begins: losing their holder from now on counts as an attempt."""
        hands = self._hands.find((session, number))
        if hands is None:
            return
        for lease_id in lease_ids:
            lease = hands.held.get(lease_id)
            if lease is not None:
                lease.started = True

    def stop_session(self, session: bytes) -> None:
        """Stop all consumers of a session."""
        for hands in self._hands.of_session(session):
            if hands.consumer is not None:
                self._remove(hands.consumer)

    def goodbye(self, session: bytes) -> int:
        """The session's consumers end in order, their reports are complete: release all at once, counting only
        what was started. Returns how many.
        """
        leases = [lease for hands in self._hands.of_session(session) for lease in hands.held.values()]
        self._release([(lease, lease.started) for lease in leases])
        return len(leases)

    def lapse(self, session: bytes) -> int:
        """The session's holder is known to be lost: release its leases now, counting as rules F2 say. Returns how
        many.
        """
        leases = [verdict for hands in self._hands.of_session(session) for verdict in hands.verdicts()]
        if leases:
            logger.info("releasing %d leases of session %s, whose holder is gone", len(leases), session.hex())
            self._lapsed += len(leases)
            self._release(leases)
        return len(leases)

    # ---- leadership

    def took_office(self) -> None:
        """Start from the state: every leased row gets a full period."""
        self._leading = True
        for row in self._store.leases():
            self._hold(HeldLease(row.message_id, row.lease_id, row.queue, (row.session, row.consumer)))
        for session in self._hands.sessions():
            if session not in self._connections:
                self._lapse_later(session)
        for line in list(self._lines.values()):
            for consumer in list(line.consumers):
                self._push_again(consumer)
            self._pump(line.queue)

    def left_office(self) -> None:
        """Forget what only a leader may judge."""
        self._leading = False
        self._leases.clear()
        for alarm in self._lapses.values():
            alarm.cancel()
        self._lapses.clear()
        self._hands.forget_leases()
        for line in self._lines.values():
            line.alarm.cancel()
            line.burst = 1

    def close(self) -> None:
        """Stop all alarms."""
        self.left_office()

    # ---- the log

    def companions(self, enqueues: dict[str, int]) -> list[Proposal]:
        """Lease commands to stand in the entry that makes these messages ready."""
        if not self._leading:
            return []
        found = []
        for queue, count in enqueues.items():
            line = self._lines.get(queue)
            if line is not None:
                found += [
                    self._lease_command(line, consumer, part, asked=False) for consumer, part in line.share(count)
                ]
        return found

    def applied(self, result: QueueResult) -> None:
        """Follow an applied entry."""
        if not self._leading:
            return
        touched = set(result.ready)
        for lease_id in result.ended:
            lease = self._leases.pop(lease_id, None)
            if lease is not None:
                touched.add(lease.queue)
                self._drop(lease)
        unclaimed = []
        for grant in result.granted:
            lease = self._grant(grant)
            if lease is not None:
                unclaimed.append((lease, False))
        if unclaimed:
            self._release(unclaimed)
        for queue in touched:
            self._pump(queue)

    def time_moved(self) -> None:
        """The cluster's time has jumped ahead of the loop's: what was to be due later may be due now."""
        for queue in list(self._lines):
            self._pump(queue)

    def statistics(self) -> dict[str, float]:
        return {
            "queue_consumers": sum(len(line.consumers) for line in self._lines.values()),
            "queue_leases": len(self._leases),
            "queue_granted": self._granted,
            "queue_lapsed": self._lapsed,
            "queue_pushed_again": self._pushed_again,
        }

    # ---- handing out

    def _grant(self, grant: GrantRow) -> HeldLease | None:
        """Hand out a new lease. Returns it if its consumer is gone: it was never sent, so it can go back at once."""
        message = grant.delivery
        holder = (grant.session, grant.consumer)
        if message.lease_id in self._leases:
            return None
        lease = HeldLease(message.message_id, message.lease_id, message.queue, holder)
        hands = self._hold(lease)
        self._granted += 1
        consumer = hands.consumer
        if consumer is None:
            return lease
        consumer.known.add(lease.lease_id)
        consumer.sink(message)
        return None

    def _pump(self, queue: str) -> None:
        """Ask for leases if a message is ready and somebody has room for it; otherwise be back when the next one
        is due.
        """
        line = self._lines.get(queue)
        if line is None or not self._leading or line.asking:
            return
        room = line.room()
        if room <= 0:
            return
        due = self._store.next_due_ms(queue)
        if due is None:
            line.alarm.cancel()
            return
        wait = due - self._consensus.now_ms()
        if wait > 0:
            # The leader's time is slewed against ours, so the alarm may ring a little early: then it is set again.
            line.alarm.set(max(wait, 1) / 1000)
            return
        line.alarm.cancel()
        for consumer, part in line.share(min(room, max(line.burst, len(line.consumers)), MAX_BURST)):
            self._submit(self._lease_command(line, consumer, part, asked=True))

    def _lease_command(self, line: Line, consumer: Consumer, count: int, *, asked: bool) -> Proposal:
        consumer.reserved += count
        line.asking += asked
        session, number = consumer.holder
        command = pb.Command(lease=pb.Lease(queue=line.queue, session=session, consumer=number, count=count))
        return proposal(command, partial(self._leased, line, consumer, count, asked), weight=count)

    def _leased(
        self, line: Line, consumer: Consumer, count: int, asked: bool, granted: Any, error: RaftError | None
    ) -> None:
        """A Lease command was applied, or was not."""
        consumer.reserved -= count
        line.asking -= asked
        if error is not None:
            if not isinstance(error, NotLeader):
                line.alarm.set_no_later(RETRY_DELAY)
            return
        session = consumer.holder[0]
        if session and not granted and not self._store.session_exists(session):
            self._expire(session)
            self._pump(line.queue)
            return
        if asked:
            line.burst = min(line.burst * 2, MAX_BURST) if granted == count else 1
        if granted or not asked:
            self._pump(line.queue)
        else:
            line.alarm.set_no_later(COOL_DOWN)

    def _expire(self, session: bytes) -> None:
        """The session is closed, so apply grants it nothing, and to go on asking would fill the log. Its client was
        away when that happened, or was never let in: it must hear of it, or it would wait for ever.
        """
        for hands in self._hands.of_session(session):
            consumer = hands.consumer
            if consumer is not None:
                self._remove(consumer)
                if consumer.on_expired is not None:
                    consumer.on_expired()

    def _push_again(self, consumer: Consumer) -> None:
        for lease in list(consumer.hands.held.values()):
            if lease.releasing or lease.lease_id in consumer.known:
                continue
            message = self._store.delivery(lease.message_id, lease.lease_id)
            if message is not None:
                consumer.known.add(lease.lease_id)
                self._pushed_again += 1
                consumer.sink(message)

    # ---- taking back

    def _lapse_later(self, session: bytes) -> None:
        alarm = self._lapses.get(session)
        if alarm is None:
            alarm = self._lapses[session] = Alarm(self._timers, partial(self._lapse, session))
        alarm.set(self._lease)

    def _lapse(self, session: bytes) -> None:
        """The session had no connection for a whole period."""
        self._lapses.pop(session, None)
        if self._leading and session not in self._connections:
            self.lapse(session)

    def _release(self, leases: Sequence[tuple[HeldLease, bool]]) -> None:
        waiting = [(lease, counts) for lease, counts in leases if not lease.releasing]
        for begin in range(0, len(waiting), RELEASE_CHUNK):
            chunk = waiting[begin : begin + RELEASE_CHUNK]
            command = pb.Command()
            for lease, counts in chunk:
                lease.releasing = True
                command.release.leases.add(message_id=lease.message_id, lease_id=lease.lease_id, counts=counts)
            self._submit(proposal(command, partial(self._released, chunk), weight=len(chunk)))

    def _released(self, chunk: Sequence[tuple[HeldLease, bool]], output: Any, error: RaftError | None) -> None:
        del output
        if error is None:
            return
        for lease, _ in chunk:
            lease.releasing = False
        if self._leading and not isinstance(error, NotLeader):
            self._timers.call_later(RETRY_DELAY, self._release_again, chunk)

    def _release_again(self, chunk: Sequence[tuple[HeldLease, bool]]) -> None:
        if self._leading:
            self._release([(lease, counts) for lease, counts in chunk if self._leases.get(lease.lease_id) is lease])

    # ---- bookkeeping

    def _submit(self, item: Proposal) -> None:
        assert self._proposer is not None
        self._proposer.submit(item, urgent=True)

    def _hold(self, lease: HeldLease) -> Hands:
        self._leases[lease.lease_id] = lease
        hands = self._hands.get(lease.holder)
        hands.held[lease.lease_id] = lease
        return hands

    def _drop(self, lease: HeldLease) -> None:
        hands = self._hands.find(lease.holder)
        if hands is None:
            return
        hands.held.pop(lease.lease_id, None)
        if hands.consumer is not None:
            hands.consumer.known.discard(lease.lease_id)
        self._hands.drop_if_idle(lease.holder)

    def _remove(self, consumer: Consumer) -> None:
        """Take a consumer out of its line; its hands stay while something is in them."""
        consumer.hands.consumer = None
        self._hands.drop_if_idle(consumer.holder)
        line = self._lines[consumer.queue]
        line.consumers.remove(consumer)
        if not line.consumers:
            line.alarm.cancel()
            del self._lines[consumer.queue]
