"""When leases end without having been settled; on the leader only (rules F2).

Two kinds of deadline. A lease is renewed as long as its session has a connection, so the usual one has no clock at all:
the clock runs for *holders without a connection*, from their last sign of life, or from when this node took office, for
as long as the queue's lease says. (A holder that stands still keeps its connection until a ping of the node has gone
unanswered for seconds; its leases do not last longer for that.) The leases of a consumer that asked for it *expire*:
each has a deadline of its own, from its grant, connected or not. Whoever extends a lease moves that deadline; of a
lease of the usual kind it only says that it shall not end before then.

What has lapsed is ended by a `Release` in the log, which says by which entry that was judged: an extension that comes
into the log before it wins. Over a change of leader is kept which leases expire, and by how much they were extended:
the new one gives every leased row a full period, or its extension's.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ..timers import Timers
from .deadlines import Deadlines
from .hands import Hands, HandsBook, HeldLease, Holder, verdicts_of

logger = logging.getLogger("kvorum.node")

MAX_LOOKS = 1_024
"""Leases of lost holders that are looked at in one callback, and those of one holder more: 1 to 2 ms."""

KEPT = 1.0
"""Seconds until a lease is looked at again that its Release did not end."""

PULSE: Final = 2.5
"""Seconds: a client that holds something and lives is heard of more often, by its heartbeat's pings."""
UNNOTICED: Final = 10.0
"""Seconds for which a holder may have stood still when its connection ends: twice the longest keepalive."""
RETURN: Final = 2.0
"""Seconds from the end of its connection that a holder gets to come back, or its lease if that is shorter: it may have
been this node that stood still and heard nothing."""

Verdicts = Sequence[tuple[HeldLease, bool]]
"""Leases that end, and whether each uses up an attempt of its message."""


class Lapses:
    """`period` gives the seconds that leases of a queue last, `release` ends leases by the log; True: because their
    time is over."""

    def __init__(
        self,
        book: HandsBook,
        timers: Timers,
        *,
        period: Callable[[str], float],
        release: Callable[[Verdicts, bool], None],
    ) -> None:
        self._book = book
        self._timers = timers
        self._period = period
        self._release = release
        self._leading = False
        self._connections: dict[bytes, int] = {}
        self._heard_at: dict[bytes, float] = {}
        """Of sessions that have lost some of their connections: the last sign of life on those."""
        self._lost_at: dict[bytes, tuple[float, float]] = {}
        """Sessions that hold something and have no connection: their last sign of life, and since when."""
        self._silent: Deadlines[Holder] = Deadlines(timers, self._look_at_holders)
        self._expiring: Deadlines[bytes] = Deadlines(timers, self._expired)
        self.lapsed = 0
        self.ending: set[bytes] = set()
        """Leases that have expired in living hands, until the log says so."""

    # ---- connections

    def connected(self, session: bytes) -> None:
        """A connection of the session begins: its leases are renewed from now on."""
        self._connections[session] = self._connections.get(session, 0) + 1
        if self._lost_at.pop(session, None) is not None:
            for hands in self._book.of_session(session):
                self._silent.cancel(hands.holder)

    def disconnected(self, session: bytes, silent: float = 0.0) -> None:
        """A connection of the session has ended, which had been silent for so many seconds. With the last one its
        leases begin to lapse."""
        now = self._timers.time()
        heard_at = max(self._heard_at.pop(session, float("-inf")), now - silent)
        left = self._connections.get(session, 0) - 1
        if left > 0:
            self._connections[session] = left
            self._heard_at[session] = heard_at
            return
        self._connections.pop(session, None)
        if self._leading:
            self._lose(session, heard_at)

    def _lose(self, session: bytes, heard_at: float) -> None:
        holding = [hands for hands in self._book.of_session(session) if hands.held]
        if holding:
            now = self._timers.time()
            # That a connection ends is a sign of life, unless it ends because there was none.
            self._lost_at[session] = max(heard_at, now - UNNOTICED) if now - heard_at > PULSE else now, now
            for hands in holding:
                self._watch(hands)

    def _lapses_at(self, session: bytes, period: float) -> float:
        heard_at, lost_at = self._lost_at[session]
        return max(heard_at + period, lost_at + min(period, RETURN))

    def _watch(self, hands: Hands) -> None:
        """Look at a holder without a connection when the first of its leases may have lapsed."""
        if hands.held:
            self._silent.set(hands.holder, self._lapses_at(hands.holder[0], min(map(self._period, hands.queues))))

    # ---- leadership

    def took_office(self) -> None:
        """All leases are in the book, and each gets a full period."""
        self._leading = True
        for session in self._book.sessions():
            if session not in self._connections:
                self._lose(session, self._timers.time())

    def left_office(self) -> None:
        self._leading = False
        self._lost_at.clear()
        self._silent.clear()
        self._expiring.clear()
        self.ending.clear()

    # ---- leases

    def expire(self, lease: HeldLease) -> None:
        """This lease ends when its period is over, counted from when this leader heard of it, unless it is extended."""
        if not lease.expires:
            lease.expires = True
            lease.until = max(lease.until, lease.since + lease.period)
            self._expiring.set(lease.lease_id, lease.until)

    def extended(self, lease: HeldLease, seconds: float) -> None:
        """An entry has extended a lease: it ends so many seconds from now."""
        lease.until = self._timers.time() + seconds
        if lease.expires:
            self._expiring.set(lease.lease_id, lease.until)

    def kept(self, lease: HeldLease) -> None:
        """A lease was to end, and was extended before that came into the log."""
        lease.lapsed = lease.let_go = False
        self.ending.discard(lease.lease_id)
        lease.until = max(lease.until, self._timers.time() + KEPT)
        hands = self._book.find(lease.holder)
        if lease.expires:
            self._expiring.set(lease.lease_id, lease.until)
        elif hands is not None and lease.holder[0] in self._lost_at:
            self._watch(hands)

    def ended(self, lease: HeldLease) -> None:
        """A lease has ended, and is in the book no more."""
        if lease.expires:
            self._expiring.cancel(lease.lease_id)
            self.ending.discard(lease.lease_id)
        session = lease.holder[0]
        if session in self._lost_at:
            hands = self._book.find(lease.holder)
            if hands is None or not hands.held:
                self._silent.cancel(lease.holder)
                if not any(hands.held for hands in self._book.of_session(session)):
                    del self._lost_at[session]

    def periods_changed(self, queues: Iterable[str]) -> None:
        """Policies have changed: what is waiting for the end of a period waits for the end of the new one."""
        changed = set(queues)
        for session in self._lost_at:
            for hands in self._book.of_session(session):
                if not changed.isdisjoint(hands.queues):
                    self._watch(hands)

    def lapse(self, session: bytes) -> int:
        """The session's holder is known to be lost: end its leases now. Returns how many."""
        verdicts = [verdict for hands in self._book.of_session(session) for verdict in hands.verdicts()]
        self._end(verdicts, due=False)
        return len(verdicts)

    # ---- deadlines

    def _look_at_holders(self, holders: list[Holder]) -> None:
        now = self._timers.time()
        looks = MAX_LOOKS
        for holder in holders:
            if looks <= 0:
                self._silent.set(holder, now)  # in the next turn of the loop
                continue
            hands = self._book.find(holder)
            if holder[0] not in self._lost_at or hands is None:
                continue
            looks -= len(hands.held)
            due: list[HeldLease] = []
            later: list[float] = []
            periods: dict[str, float] = {}
            for lease in hands.held.values():
                if lease.expires or lease.releasing:
                    continue
                period = periods.get(lease.queue)
                if period is None:
                    period = periods[lease.queue] = self._period(lease.queue)
                end = max(self._lapses_at(holder[0], period), lease.until)
                if end <= now:
                    due.append(lease)
                else:
                    later.append(end)
            if later:
                self._silent.set(holder, min(later))
            if due:
                self._end(verdicts_of(due, hands, lost=True), due=True)

    def _expired(self, lease_ids: list[bytes]) -> None:
        by_holder: dict[Holder, list[HeldLease]] = {}
        for lease_id in lease_ids:
            lease = self._book.leases.get(lease_id)
            if lease is not None:
                by_holder.setdefault(lease.holder, []).append(lease)
        verdicts: list[tuple[HeldLease, bool]] = []
        for holder, leases in by_holder.items():
            hands = self._book.find(holder)
            assert hands is not None
            if hands.consumer is not None:
                for lease in leases:
                    lease.lapsed = True
                    self.ending.add(lease.lease_id)
            verdicts += verdicts_of(leases, hands, lost=hands.consumer is None)
        self._end(verdicts, due=True)

    def _end(self, verdicts: Verdicts, *, due: bool) -> None:
        if verdicts:
            logger.info("%d leases have lapsed", len(verdicts))
            self.lapsed += len(verdicts)
            self._release(verdicts, due)

    @property
    def is_idle(self) -> bool:
        """Nothing is remembered."""
        return not (self._connections or self._lost_at or len(self._silent) or len(self._expiring) or self.ending)


__all__ = ["Lapses", "Verdicts"]
