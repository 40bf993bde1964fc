"""How fast queues go: their counters, looked at every few seconds by the leader.

The counters themselves are replicated; what a rate needs besides is what they were a minute ago. The newest look also
feeds the metrics, so that a scrape reads nothing.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb

from .aside import Problem, aside
from .lists import ListReader
from .store import Snapshot
from .timers import Alarm, Timers

INTERVAL: Final = 5.0
"""Seconds between two looks."""
WINDOW: Final = 60.0
"""Seconds that a rate is about."""
MAX_SAMPLED: Final = 1_000
"""Queues that are looked at, the first ones in order of their names."""
_SLICE: Final = 64


class _Sample(NamedTuple):
    at: float
    """Of the timers' clock."""
    sent: int
    done: int


class QueueRates:
    """Call `took_office` and `left_office` with the leadership."""

    def __init__(self, lists: ListReader, timers: Timers, consumers_of: Callable[[str], int]) -> None:
        self._lists = lists
        self._timers = timers
        self.consumers_of = consumers_of
        self._alarm = Alarm(timers, self._look)
        self._leading = False
        self._samples: dict[str, deque[_Sample]] = {}
        self.newest: list[pb.QueueInfo] = []
        """What was found last; empty on a node that does not lead."""

    def took_office(self) -> None:
        self._leading = True
        self._alarm.set(0.0)

    def left_office(self) -> None:
        self._leading = False
        self._alarm.cancel()
        self._samples.clear()
        self.newest = []

    def fill(self, info: pb.QueueInfo) -> None:
        """What only the leader knows of a queue."""
        info.consumers = self.consumers_of(info.name)
        info.sent_per_s, info.done_per_s = self._rates_of(info.name)

    def _rates_of(self, queue: str) -> tuple[float, float]:
        """Messages sent and done each second, over the last minute or since this node leads."""
        samples = self._samples.get(queue)
        if not samples:
            return 0.0, 0.0
        first, last = samples[0], samples[-1]
        seconds = last.at - first.at
        if seconds <= 0:
            return 0.0, 0.0
        return (last.sent - first.sent) / seconds, (last.done - first.done) / seconds

    def _look(self) -> None:
        if not self._leading:
            return
        self._alarm.set(INTERVAL)
        aside(self._lists, _counters, self._looked)

    def _looked(self, found: list[pb.QueueInfo] | None, problem: Problem | None) -> None:
        if not self._leading or found is None:
            return
        now = self._timers.time()
        samples: dict[str, deque[_Sample]] = {}
        for info in found:
            line = self._samples.get(info.name) or deque()
            if line and info.sent < line[-1].sent:
                line = deque()  # it was removed, and is a new one
            line.append(_Sample(now, info.sent, info.done))
            while len(line) > 2 and line[1].at <= now - WINDOW:
                line.popleft()
            samples[info.name] = line
        self._samples = samples
        for info in found:
            self.fill(info)
        self.newest = found


def _counters(snapshot: Snapshot) -> Generator[None, None, list[pb.QueueInfo]]:
    found: list[pb.QueueInfo] = []
    after = b""
    while len(found) < MAX_SAMPLED:
        infos, after = snapshot.queue_infos("", after, min(_SLICE, MAX_SAMPLED - len(found)))
        for info in infos:
            info.ClearField("policy")  # they are kept
        found += infos
        if not after:
            break
        yield
    return found
