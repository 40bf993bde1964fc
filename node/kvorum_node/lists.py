"""Ranges, read in one thread by slices (rules J1).

A thousand cold rows of 64 KiB take seconds to fault in, so ranges are never read on the loop. One thread serves all
lists in turn, a slice at a time: a slice is 256 rows or 256 KiB, whichever comes first, and after it the next list
has its turn. Where only the number of rows is asked for they are not read at all, and a slice counts 4,096 of them.
Between slices a list waits, with its snapshot open, until its taker asks for more; so a slow reader
holds one snapshot and no rows. A snapshot that has been held for too long is given up (LMDB cannot reuse pages while
it lives) and the reader told to resume; much sooner if its taker does not come back while others wait for its place.

Lists that wait for a place stand in a line for each of their owners, the connections of clients, and the owners take
turns. One owner has a part of the places at most, and loses those at the end of its line when there is no room for the
lists of others. What never waits for a client, as the node's own work, has places besides these.

The thread touches nothing but snapshots and the job in its hands; everything else happens on the loop. Whatever else
reads much of the state (`aside`) has its turn in the same line.
"""

import asyncio
import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from kvorum._proto import kvorum_pb2 as pb

from .metrics.operations import OK, Meter, code_of_read
from .read_jobs import ASIDE, HTTP, NODE, ListJob, ReadJob, Slice
from .slow import LOOKED_AT, Facts, SlowLog, milliseconds, of_keys
from .store import Store, StoreFault
from .timers import Alarm

logger = logging.getLogger("kvorum.node")

MAX_OPEN = 128
"""Lists of clients that are being served at a time; each holds one of LMDB's reader slots."""
MAX_PLACES = 32
"""Those of one owner."""
OWN = (NODE, ASIDE, HTTP)
"""Owners whose jobs never wait for a client: the node, what is read aside, and the HTTP port, which holds what it
reads, and bounds and shares that by itself."""
MAX_WAITING = 4_096
MAX_AGE = 10.0
"""Seconds that a list may hold its snapshot."""
IDLE_PATIENCE = 1.0
"""Seconds for which its taker may stay away while others wait for a place."""
LOOK = 0.25
"""Seconds between looks at idle lists while others wait."""
TOO_MANY = "too many lists wait"


class ListReader:
    """The thread and its line. Start it on the loop that its takers run on."""

    def __init__(self, store: Store, *, max_age: float = MAX_AGE) -> None:
        self._store = store
        self._max_age = max_age
        self._jobs: queue.SimpleQueue[ReadJob | None] = queue.SimpleQueue()
        self._lines: dict[Hashable, deque[ReadJob]] = {}
        """Those that wait, by owner; the first owner is next. No line is empty."""
        self._waiting = 0
        self._open: dict[ReadJob, None] = {}
        self._places: Counter[Hashable] = Counter()
        """Open ones by owner."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Callable[[], float] = float
        self._alarm: Alarm | None = None
        self._stopped = False
        self.damage = ""
        """What was found in the data file, if it is damaged."""
        self._served = self._slices = self._given_up = 0
        self.meter = Meter()
        """Of lists."""
        self.slow = SlowLog(0.0, float)
        """Where those that took long are told of."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._alarm = Alarm(self._loop, self._look_for_old)
        self._thread = threading.Thread(target=self._run, name="kvorum-lists", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the slice in its hands. Takers hear nothing more."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        for job in self._open:
            job.release()
        self._open.clear()
        self._places.clear()
        self._lines.clear()
        self._waiting = 0

    def submit(
        self,
        read: pb.Read,
        taker: Callable[[ListJob, pb.ReadResult], None],
        time_ms: int = 0,
        *,
        owner: Hashable = NODE,
        may_begin: Callable[[ListJob], bool] | None = None,
    ) -> ListJob | None:
        """Take a read with ranges; None if too many wait. `time_ms` is what its answer shall say the time is. See
        `ReadJob` for `owner` and `may_begin`."""
        job = ListJob(self, read, taker, time_ms, owner=owner, may_begin=may_begin)
        if self.begin(job):
            return job
        return None

    def begin(self, job: ReadJob) -> bool:
        """Take a job; False if too many wait."""
        owner = job.owner
        line = self._lines.get(owner)
        if self._stopped or job.cancelled:
            return job.cancelled
        if line is None and self._has_place(owner):
            if job.may_begin():
                self._begin(job)
            return True
        if self._waiting >= MAX_WAITING and not self._make_room(0 if line is None else len(line)):
            return False
        self._lines.setdefault(owner, deque()).append(job)
        self._waiting += 1
        if self._alarm is not None:
            self._alarm.set_no_later(LOOK)
        return True

    def turn_away(self, job: ReadJob) -> None:
        """Nothing is read for it, since too many wait."""
        if isinstance(job, ListJob):
            self.meter.refused(code_of_read(pb.READ_STATUS_OVERLOADED))
        job.deliver(job.failed(TOO_MANY, pb.READ_STATUS_OVERLOADED))

    def resume(self, job: ReadJob) -> None:
        if job.idle and not self._stopped:
            job.idle = False
            self._jobs.put(job)

    def cancel(self, job: ReadJob) -> None:
        job.cancelled = True
        if job in self._open:
            self.resume(job)
            return
        line = self._lines.get(job.owner)
        if line is not None and job in line:
            line.remove(job)
            self._taken_from(job.owner, line)

    def _has_place(self, owner: Hashable) -> bool:
        return self._places[owner] < MAX_PLACES and (owner in OWN or not self._is_full)

    @property
    def _is_full(self) -> bool:
        """Clients have all places that are for them."""
        return len(self._open) - sum(self._places[owner] for owner in OWN) >= MAX_OPEN

    def _make_room(self, length: int) -> bool:
        """At the cost of whoever has most that waits, if that is more than so many. False: nobody has."""
        owner, line = max(self._lines.items(), key=lambda item: len(item[1]))
        if len(line) <= length + 1:
            return False
        job = line.pop()
        self._taken_from(owner, line)
        self.turn_away(job)
        return True

    def _taken_from(self, owner: Hashable, line: deque[ReadJob]) -> None:
        self._waiting -= 1
        if not line:
            del self._lines[owner]

    def statistics(self) -> dict[str, float]:
        return {
            "lists_open": len(self._open),
            "lists_waiting": self._waiting,
            "lists_served": self._served,
            "list_slices": self._slices,
            "lists_too_old": self._given_up,
        }

    def _begin(self, job: ReadJob) -> None:
        assert self._loop is not None and self._alarm is not None
        job.opened_at = self._loop.time()
        self._open[job] = None
        self._places[job.owner] += 1
        self._alarm.set_no_later(self._max_age)
        self._jobs.put(job)

    def _begin_next(self) -> None:
        """As many as there are places for: the first of each owner in turn."""
        while (owner := self._next_owner()) is not None:
            line = self._lines.pop(owner)
            job = line.popleft()
            self._lines[owner] = line  # at the end
            self._taken_from(owner, line)
            if job.may_begin():
                self._begin(job)

    def _next_owner(self) -> Hashable:
        """Whose turn it is; None: nobody's."""
        lines, places = self._lines, self._places
        for owner in OWN:
            if owner in lines and places[owner] < MAX_PLACES:
                return owner
        return None if self._is_full else next((owner for owner in lines if places[owner] < MAX_PLACES), None)

    def _run(self) -> None:
        """The reader thread."""
        loop = self._loop
        assert loop is not None
        while (job := self._jobs.get()) is not None:
            try:
                part = job.step(self._store)
            except StoreFault as fault:
                # The other lists may well be readable: this thread must live on for them.
                logger.critical("a list cannot be read: %s", fault)
                self.damage = str(fault)
                part = job.failed(self.damage)
            if not part.more:
                job.release()
            loop.call_soon_threadsafe(self._stepped, job, part)

    def _stepped(self, job: ReadJob, part: Slice) -> None:
        """On the loop: a slice is there."""
        if self._stopped:
            return
        self._slices += 1
        job.slices += 1
        if job.slices == 1:
            job.first_at = perf_counter()
        job.idle = part.more
        if part.more:
            job.idle_since = self._clock()
        else:
            self._open.pop(job, None)
            self._places[job.owner] -= 1
            if self._places[job.owner] <= 0:
                del self._places[job.owner]
            self._served += 1
            self._given_up += bool(job.given_up)
            self._begin_next()
        if not job.cancelled:
            job.deliver(part)
        elif part.more:
            self.resume(job)
        if not part.more and isinstance(job, ListJob):
            self._count(job, part)

    def _count(self, job: ListJob, last: Any) -> None:
        seconds, code = perf_counter() - job.begun_at, "cancelled" if job.cancelled else code_of_read(last.status)
        if job.denied:
            code = code_of_read(job.denied)
        self.meter.answered(seconds)
        if code != OK:
            self.meter.others[code] += 1
        if seconds >= self.slow.threshold:
            self.slow.took("list", seconds, partial(_slow_facts, job, code))

    def _look_for_old(self) -> None:
        """Give up the snapshots of readers that do not come back for more."""
        assert self._alarm is not None
        oldest = None
        now = self._clock()
        limit = now - self._max_age
        for job in self._open:
            if job.opened_at <= limit:
                self._give_up(job, f"was read for more than {self._max_age:g} s")
            elif oldest is None or job.opened_at < oldest:
                oldest = job.opened_at
        idle = [job for job in self._open if job.idle and job.idle_since <= now - IDLE_PATIENCE]
        if idle and self._waiting and self._is_full:
            self._let_others_in(idle)
        if self._waiting:
            self._alarm.set(LOOK)
        elif oldest is not None:
            self._alarm.set(oldest - limit + 0.01)
        elif self._open:
            self._alarm.set(1.0)

    def _let_others_in(self, idle: list[ReadJob]) -> None:
        """As many as want a place; those whose takers have been away for longest make room. A client that is slow does
        not lose what it has read to lists of its own, or it would begin again and again."""
        wanted = {
            owner: min(len(line), MAX_PLACES - self._places[owner])
            for owner, line in self._lines.items()
            if owner not in OWN and self._places[owner] < MAX_PLACES
        }
        for job in sorted(idle, key=lambda job: job.idle_since):
            owner = next((owner for owner in wanted if owner != job.owner), None)
            if owner is not None:
                self._give_up(job, f"was not read on for {IDLE_PATIENCE:g} s, and others wait for its place")
                wanted[owner] -= 1
                if not wanted[owner]:
                    del wanted[owner]

    def _give_up(self, job: ReadJob, why: str) -> None:
        job.given_up = job.given_up or why
        self.resume(job)


def _slow_facts(job: ListJob, code: str) -> Facts:
    starts = [selected.start for selected in islice(job.read.ranges, LOOKED_AT)]
    return {
        "code": code,
        "ranges": len(job.read.ranges),
        "slices": job.slices,
        "first_slice_ms": milliseconds(job.first_at - job.begun_at),
        **of_keys(starts),
    }
