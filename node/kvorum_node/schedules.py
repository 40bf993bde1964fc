"""Recurring messages: proposes the tick of each schedule when it is due. Leader only.

Exactly one message per tick is apply's doing: a `Tick` names the tick that it is for, and is carried out only if that
is the schedule's next one. So it does no harm that two leaders propose the same tick, or one of them twice; here it
is only seen to that one is proposed in time, and what comes after it is worked out (apply knows no time zones).

In memory there is the moment of each schedule's next tick, and nothing else of it: the definition is read when it is
due. A tick that comes later than its grace is *missed*; `plan` says what becomes of it.
"""

import heapq
import logging
from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument
from kvorum_raft.errors import NotLeader, RaftError
from kvorum_raft.seams import Consensus

from .cron import Cron
from .proposer import Proposer, proposal
from .store import Store
from .timers import Alarm, Timers

logger = logging.getLogger("kvorum.node")

PAGE: Final = 16
"""Schedules read in one callback; each may weigh as much as a message."""
MAX_UNDER_WAY: Final = 64
"""Ticks that are proposed, or being worked out."""
STEPS: Final = 20
"""Ticks worked out in one callback: about 2 ms."""
WEIGHT: Final = 64
"""Operations that apply carries out for a tick, about: a topic's may become hundreds of messages of 64 KiB, and one
entry holds few of those."""
RETRY_MS: Final = 250
"""Milliseconds before a tick is proposed again that was not taken."""
BROKEN_MS: Final = 60_000
"""Milliseconds before a schedule is tried again whose expression or zone this node does not know."""


def plan(
    schedule: pb.Schedule, cron: Cron, next_ms: int, now_ms: int, caught_up_ms: int
) -> Generator[None, None, pb.Tick]:
    """What to propose for a schedule whose tick `next_ms` is due; yields between steps of about 0.1 ms.

    One that is late by no more than its grace is taken. Missed ones are left out (SKIP), become one message, that of
    the last of them (ONCE), or one each, of the last MAX_CATCH_UP (ALL; `caught_up_ms`: until there they have been
    counted already). To leave some out is a tick of its own, without a message: what comes then is judged anew.
    """
    grace = schedule.grace_ms or limits.DEFAULT_GRACE
    horizon = now_ms - grace
    target: int | None = None
    skip = False
    if next_ms < horizon:
        if schedule.misfire == pb.MISFIRE_SKIP:
            target, skip = cron.next(horizon - 1), True
        elif schedule.misfire == pb.MISFIRE_ALL:
            if next_ms >= caught_up_ms:
                target = yield from _oldest_kept(cron, next_ms, horizon)
                skip = target is not None
        else:
            last = cron.last(next_ms, horizon - 1)
            if last > next_ms:
                target, skip = last, True
    if not skip:
        target = cron.next(next_ms)
    yield
    return pb.Tick(tick_ms=next_ms, next_ms=target or 0, skip=skip)


def _oldest_kept(cron: Cron, next_ms: int, horizon: int) -> Generator[None, None, int | None]:
    """Where to go on if more ticks than MAX_CATCH_UP were missed; None if they were not."""
    oldest = next_ms
    for count, tick in enumerate(cron.before(horizon), 1):
        if tick <= next_ms:
            return None
        oldest = tick
        if count >= limits.MAX_CATCH_UP:
            break
        yield
    # Backwards is about right only; this is a tick.
    exact = cron.next(oldest - 1)
    return exact if exact is not None and next_ms < exact < horizon else None


class Ticker:
    """Call `took_office` and `left_office` with the leadership, `changed` when an entry has changed schedules."""

    def __init__(self, store: Store, consensus: Consensus, proposer: Proposer, timers: Timers) -> None:
        self._store = store
        self._consensus = consensus
        self._proposer = proposer
        self._timers = timers
        self._alarm = Alarm(timers, self._ring)
        self._leading = False
        self._next: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """Of all in `_next`, and of moments that are none any more."""
        self._loading: dict[str, int] | None = None
        self._stale = False
        """Something has changed since the loading began."""
        self._under_way: set[str] = set()
        self._plans: deque[tuple[str, Generator[None, None, pb.Tick]]] = deque()
        self._caught_up: dict[str, int] = {}
        self._term = 0
        """Counts offices: what was proposed in an earlier one is of no interest."""
        self._ticks = self._skipped = 0

    def took_office(self) -> None:
        self._leading = True
        self._term += 1
        self._load()

    def left_office(self) -> None:
        self._leading = self._stale = False
        self._loading = None
        self._next.clear()
        self._heap.clear()
        self._under_way.clear()
        self._plans.clear()
        self._caught_up.clear()
        self._alarm.cancel()

    def changed(self) -> None:
        """Schedules were defined, or removed."""
        if not self._leading:
            return
        if self._loading is None:
            self._load()
        else:
            self._stale = True

    def time_moved(self) -> None:
        """The cluster's time has jumped ahead of the loop's."""
        if self._leading:
            self._alarm.set(0.0)

    def statistics(self) -> dict[str, float]:
        return {"schedules_waiting": len(self._next), "ticks": self._ticks, "ticks_skipped": self._skipped}

    # ---- what there is

    def _load(self) -> None:
        """Read all schedules, by pages. What was known before is served meanwhile: each tick is looked at in the state
        before it is proposed."""
        self._loading = {}
        self._stale = False
        self._load_page(self._term, b"")

    def _load_page(self, term: int, after: bytes) -> None:
        loading = self._loading
        if loading is None or term != self._term:
            return
        with self._store.snapshot() as snapshot:
            found, after = snapshot.schedule_infos(after, PAGE)
        for info in found:
            if info.next_ms:
                loading[info.name] = info.next_ms
        if after:
            self._timers.call_soon(self._load_page, term, after)
            return
        self._loading = None
        self._next = {name: at for name, at in loading.items() if name not in self._under_way}
        self._heap = [(at, name) for name, at in self._next.items()]
        heapq.heapify(self._heap)
        if self._stale:
            self._timers.call_soon(self._load_again, term)
        self._plan_alarm()

    def _load_again(self, term: int) -> None:
        if self._leading and term == self._term and self._loading is None:
            self._load()

    def _list(self, name: str, at_ms: int) -> None:
        self._next[name] = at_ms
        heapq.heappush(self._heap, (at_ms, name))

    # ---- ticks

    def _plan_alarm(self) -> None:
        if self._heap and len(self._under_way) < MAX_UNDER_WAY:
            # Entry time is slewed against the loop's: the alarm may ring a little early, then it is set again.
            self._alarm.set(max(1, self._heap[0][0] - self._consensus.now_ms()) / 1000)

    def _ring(self) -> None:
        """Begin with what is due, a few at a time."""
        if not self._leading:
            return
        now_ms = self._consensus.now_ms()
        looks = PAGE
        while self._heap and self._heap[0][0] <= now_ms and looks and len(self._under_way) < MAX_UNDER_WAY:
            at_ms, name = heapq.heappop(self._heap)
            if self._next.get(name) != at_ms:
                continue
            looks -= 1
            del self._next[name]
            self._begin(name, now_ms)
        self._plan_alarm()

    def _begin(self, name: str, now_ms: int) -> None:
        with self._store.snapshot() as snapshot:
            info = snapshot.schedule_info(name)
        if info is None or not info.next_ms:
            self._caught_up.pop(name, None)
            return
        if info.next_ms > now_ms:
            self._list(name, info.next_ms)
            return
        schedule = pb.Schedule.FromString(info.definition)
        try:
            cron = Cron(schedule.cron, schedule.time_zone)
        except InvalidArgument as error:
            # It was judged by a node that has newer zones, say.
            logger.error("the recurring message %r cannot go on: %s", name, error)
            self._list(name, now_ms + BROKEN_MS)
            return
        caught_up_ms = self._caught_up.get(name, 0)
        if schedule.misfire == pb.MISFIRE_ALL:
            self._caught_up[name] = now_ms
        self._under_way.add(name)
        self._plans.append((name, plan(schedule, cron, info.next_ms, now_ms, caught_up_ms)))
        if len(self._plans) == 1:
            self._timers.call_soon(self._work, self._term)

    def _work(self, term: int) -> None:
        """Work out what to propose, some steps at a time."""
        if not self._leading or term != self._term:
            return
        for _ in range(STEPS):
            if not self._plans:
                return
            name, steps = self._plans[0]
            try:
                next(steps)
            except StopIteration as end:
                self._plans.popleft()
                self._propose(name, end.value)
        if self._plans:
            self._timers.call_soon(self._work, term)

    def _propose(self, name: str, tick: pb.Tick) -> None:
        tick.schedule = name
        done = partial(self._proposed, self._term, name, tick)
        self._proposer.submit(proposal(pb.Command(tick=tick), done, weight=WEIGHT), urgent=True)

    def _proposed(self, term: int, name: str, tick: pb.Tick, output: Any, error: RaftError | None) -> None:
        if term != self._term or not self._leading:
            return
        self._under_way.discard(name)
        if isinstance(error, NotLeader):
            return
        pause = 0
        if error is not None or not output:
            pause = RETRY_MS
        else:
            self._ticks += not tick.skip
            self._skipped += tick.skip
            if tick.skip:
                logger.warning("ticks of the recurring message %r were missed and are left out", name)
        # The state knows what comes next: it may have been changed meanwhile, or somebody was quicker.
        self._list(name, self._consensus.now_ms() + pause)
        self._plan_alarm()
