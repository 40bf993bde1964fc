"""Answers that clients have not taken yet: how much of them a node holds, and whose go when that is too much.

A client may ask for much and open no HTTP/2 window for the answers. What was made for it waits here: in the outbox of
its stream, and in gRPC's hands, which take a frame and give it back to nobody. Each call is bounded by what it may have
ready, but there can be thousands. So all calls of a node share one limit, by the dynamic thresholds of switches that
share a buffer (Choudhury and Hahne, 1998): each may have ready `SHARE` of what is free *now*. While there is enough,
that is more than any call needs; the more of them hold something, the less each may add, and nobody has to be told
good from bad. Those that take nothing at all eat up what is free even so, one small part after the other; so the last
quarter is for calls that have taken something before. Where nothing is free, what is more than `TINY` is not made:
reads are refused, which clients repeat, and what can be had later from the state, events of watches and deliveries,
waits.

While more than half is held, calls of which nothing was taken for some seconds are ended, whoever stands still for
longest first. What gRPC has of them goes with the end of their connection (see `api.leaving`), and counts until then.

Rejected: a fixed part for each call (thousands of parts of one limit are too small for any answer); the limit alone
(who comes first has it all, and everybody else nothing).
"""

from collections.abc import Callable
from typing import Final

from .timers import Alarm, Timers

AHEAD: Final = 4 * 1_048_576
"""Bytes of answers that a call may have ready, however much is free."""
SHARE: Final = 16
"""The part of what is free that it may have."""
SMALL: Final = 65_536
"""Bytes after which a client is known to take what it asks for."""
TINY: Final = 4_096
"""Bytes of an answer that is always made, if its client has taken those before it."""
PATIENCE: Final = 3.0
"""Seconds for which a call may stand still while more than half is held."""
SHORT_PATIENCE: Final = 1.0
"""The same while nothing is left but the last quarter."""
LOOK: Final = 0.25
"""Seconds between two looks at all calls while that is so."""
AT_ONCE: Final = 10
"""Calls that are ended in one turn of the loop: each costs a good part of a millisecond."""
PAUSE: Final = 0.02
"""Seconds between two such turns."""


class Holding:
    """What is held for one call. `end` is called with the reason when the call must go; it may stand still no more."""

    __slots__ = ("_sending", "end", "ended", "held", "since", "taken", "unread")

    def __init__(self, unread: "Unread", end: Callable[[str], None]) -> None:
        self.unread = unread
        self._sending = 0
        self.end = end
        self.ended = False
        self.held = 0
        """Bytes."""
        self.taken = 0
        """Bytes that the client has taken by now."""
        self.since: float | None = None
        """When gRPC was given what it still has; None: it has nothing."""

    @property
    def ahead(self) -> int:
        """Bytes of answers that the call may have ready now; 0 or less: nothing is free."""
        return min(AHEAD, self._free() // SHARE)

    @property
    def is_full(self) -> bool:
        """Nothing is free."""
        return self._free() <= 0

    def takes(self, size: int, room: int) -> bool:
        """Whether an answer of so many bytes that is made already may be kept, where there is `room` left."""
        return size <= TINY or size <= room or self.unread.held <= self.unread.high

    def _free(self) -> int:
        unread = self.unread
        return (unread.limit if self.taken > SMALL else unread.common) - unread.held

    def count(self, waiting: int) -> None:
        """So many bytes wait, besides what gRPC has."""
        unread = self.unread
        size = waiting + self._sending
        held = unread.held = unread.held + size - self.held
        self.held = size
        if held > unread.high or unread.queue:
            unread.changed()

    def sends(self, size: int, waiting: int, now: float) -> None:
        """gRPC is given so many bytes. It copies them, and keeps both until the client has taken them."""
        self.since = now
        self._sending = 2 * size
        self.count(waiting)

    def sent(self, waiting: int) -> None:
        """The client's side has taken them."""
        self.since = None
        self.taken += self._sending // 2
        self._sending = 0
        self.count(waiting)

    def over(self) -> None:
        """The call says nothing more. gRPC keeps what it has."""
        self.ended = True
        self.count(0)

    def close(self) -> None:
        """gRPC has nothing of it any more either."""
        self.sent(0)
        self.unread.forget(self)


class Unread:
    """See the module. `limit` is bytes, for all calls together."""

    def __init__(self, limit: int, timers: Timers) -> None:
        self.limit = limit
        self.common = limit * 3 // 4
        """What is for everybody."""
        self.high = limit // 2
        self.held = 0
        """Bytes."""
        self.queue: dict[Holding, Callable[[], None]] = {}
        """Those that wait until something is free."""
        self._timers = timers
        self._holdings: dict[Holding, None] = {}
        self._alarm = Alarm(timers, self._look)
        self._refused = self._ended = 0

    def open(self, holding: Holding) -> None:
        """Its call begins; `Holding.close` must follow."""
        self._holdings[holding] = None

    def forget(self, holding: Holding) -> None:
        self._holdings.pop(holding, None)
        self.queue.pop(holding, None)

    def refusal(self) -> str:
        """What a call is told for which there is no room."""
        self._refused += 1
        return f"{self._full()}: try again"

    def wait(self, holding: Holding, free: Callable[[], None]) -> None:
        """Have `free` called as soon as something is free."""
        self.queue[holding] = free
        self._alarm.set_no_later(LOOK)

    def changed(self) -> None:
        """Much is held, or somebody waits."""
        if not self._alarm.is_set:
            self._alarm.set(LOOK)

    def stop(self) -> None:
        """Nobody is called any more."""
        self._alarm.cancel()

    def statistics(self) -> dict[str, float]:
        return {
            "unread_bytes": self.held,
            "unread_limit": self.limit,
            "unread_refused": self._refused,
            "unread_ended": self._ended,
        }

    def _full(self) -> str:
        return (
            f"clients have not taken {self.held:,} bytes of this node's answers; for all of them together it holds at"
            f" most {self.limit:,} (MAX_UNREAD_SIZE, unread_answers_mb)"
        )

    def _look(self) -> None:
        pause = LOOK
        if self.held > self.high and self._end_slowest():
            pause = PAUSE
        if self.queue and self.held < self.limit:
            queue, self.queue = self.queue, {}
            for free in queue.values():
                free()
        if self.held > self.high or self.queue:
            self._alarm.set_no_later(pause)

    def _end_slowest(self) -> bool:
        """As many as need to go. True: others are due."""
        patience = PATIENCE if self.held <= self.common else SHORT_PATIENCE
        limit = self._timers.time() - patience
        left = self.held
        due: list[tuple[float, int, Holding]] = []
        for number, holding in enumerate(self._holdings):
            if holding.ended:
                left -= holding.held  # it is on its way out
            elif holding.since is not None and holding.since <= limit:
                due.append((holding.since, number, holding))
        due.sort()
        for done, (_, _, holding) in enumerate(due):
            if left <= self.high:
                return False
            if done == AT_ONCE:
                return True
            left -= holding.held
            self._ended += 1
            holding.ended = True
            holding.end(f"{self._full()}, and this call has taken nothing for {patience:g} s: begin it anew")
        return False
