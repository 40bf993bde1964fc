"""Asking for leases: when, for whom and how many.

Plain policy over the lines of consumers: whatever may have made messages ready, or consumers able to take some, pumps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import NotLeader, RaftError
from kvorum_raft.seams import Consensus

from ..proposer import Proposal, Proposer, proposal
from ..timers import Alarm, Timers
from .followers import Followers
from .hands import Consumer, Line, TakeRoom
from .releases import RETRY_DELAY
from .seams import QueueStore

MAX_BURST: Final = 256
"""Leases asked for in one go: with payloads of 100 bytes applying them takes about 3 ms."""
COOL_DOWN: Final = 0.005
"""Seconds before asking again after nothing was granted although something seemed due."""
TAKE_VERSION: Final = 3
"""Data version from which on a Lease may take."""
UPGRADE_WAIT: Final = 1.0
"""Seconds until it is looked again whether all members know that version."""


class Asking:
    """The lines of all queues that have consumers here. `expired` is told of a session that is closed."""

    def __init__(
        self, store: QueueStore, consensus: Consensus, timers: Timers, expired: Callable[[bytes], None]
    ) -> None:
        self._store = store
        self._consensus = consensus
        self._timers = timers
        self._expired = expired
        self._proposer: Proposer | None = None
        self.open = False
        """This node leads, and knows all leases."""
        self.lines: dict[str, Line] = {}
        self.followers = Followers()

    def attach(self, proposer: Proposer) -> None:
        """Where to propose."""
        self._proposer = proposer

    # ---- consumers

    def add(self, consumer: Consumer) -> None:
        """A consumer stands in line from now on."""
        line = self.lines.get(consumer.queue)
        if line is None:
            # Alone it may have all that is there; dealing begins with one for each.
            alarm = Alarm(self._timers, partial(self.pump, consumer.queue))
            line = self.lines[consumer.queue] = Line(consumer.queue, alarm, burst=MAX_BURST)
        else:
            line.burst = 1
        line.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        line = self.lines[consumer.queue]
        line.remove(consumer)
        if not line.consumers:
            line.alarm.cancel()
            del self.lines[consumer.queue]
            self.followers.forget(consumer.queue)

    def stop(self) -> None:
        """Ask for nothing any more."""
        self.open = False
        for line in self.lines.values():
            line.alarm.cancel()
            line.burst = 1

    # ---- asking

    def companions(self, enqueues: dict[str, int]) -> list[Proposal]:
        """Lease commands to stand in the entry that makes these messages ready."""
        found: list[Proposal] = []
        if not self.open:
            return found
        for queue, count in enqueues.items():
            line = self.lines.get(queue)
            if line is not None:
                found += [
                    self._lease_command(line, consumer, part, asked=False)
                    for consumer, part in line.share(min(count, self._allowed(line)))
                ]
        return found

    def pump(self, queue: str) -> None:
        """Ask for leases if a message is ready and somebody has room for it; otherwise be back when the next one
        is due.
        """
        line = self.lines.get(queue)
        assert self._proposer is not None
        if line is None or not self.open or line.asking:
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
        count = min(room, max(line.burst, len(line.consumers)), self._allowed(line))
        for consumer, part in line.share(count):
            self._proposer.submit(self._lease_command(line, consumer, part, asked=True), urgent=True)

    def _allowed(self, line: Line) -> int:
        """Messages that the queue's policy lets be handed out now, at most `MAX_BURST`."""
        assert self._proposer is not None
        if line.takers and self._proposer.data_version < TAKE_VERSION:
            line.alarm.set_no_later(UPGRADE_WAIT)
            return 0
        facts = self._store.queue_facts(line.queue)
        if facts.paused:
            return 0
        if not facts.max_in_flight:
            return MAX_BURST
        return min(MAX_BURST, max(0, facts.max_in_flight - facts.leased - line.reserved()))

    def _lease_command(self, line: Line, consumer: Consumer, count: int, *, asked: bool) -> Proposal:
        consumer.reserve(count)
        line.asking += asked
        session, number = consumer.holder
        lease = pb.Lease(
            queue=line.queue,
            session=session,
            consumer=number,
            count=count,
            take=consumer.take,
            expiring=consumer.expiring and not consumer.take,
        )
        return proposal(pb.Command(lease=lease), partial(self._leased, line, consumer, count, asked), weight=count)

    def _room_is_back(self, room: TakeRoom) -> None:
        """Places on the way to a client were kept for messages that do not come: others of it may have waited."""
        if room.blocked:
            room.blocked = False
            for line in list(self.lines.values()):
                if line.takers and any(consumer.take_room is room for consumer in line.consumers):
                    self.pump(line.queue)

    def _leased(
        self, line: Line, consumer: Consumer, count: int, asked: bool, granted: Any, error: RaftError | None
    ) -> None:
        """A Lease command was applied, or was not."""
        consumer.reserve(-count)
        line.asking -= asked
        if consumer.take_room is not None and granted != count:
            self._room_is_back(consumer.take_room)
        if error is not None:
            if not isinstance(error, NotLeader):
                line.alarm.set_no_later(RETRY_DELAY)
            return
        session = consumer.holder[0]
        if session and not granted and not self._store.session_exists(session):
            self._expired(session)
            self.pump(line.queue)
            return
        if not granted and not asked:
            self.followers.missed(line.queue)
        if asked:
            line.burst = min(line.burst * 2, MAX_BURST) if granted == count else max(1, granted)
        if granted or not asked:
            self.pump(line.queue)
        else:
            line.alarm.set_no_later(COOL_DOWN)
