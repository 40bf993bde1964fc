"""All that a client has asked for and that is not over."""

from collections.abc import Callable
from dataclasses import dataclass

from kvorum import errors
from kvorum.cluster.calls import Calls
from kvorum.cluster.consumers import Consumers
from kvorum.cluster.points import Points
from kvorum.cluster.reads import Reads
from kvorum.cluster.watches import Watches
from kvorum.cluster.writes import Writes


@dataclass(frozen=True)
class UnderWay:
    """All operations of a client, by kind."""

    writes: Writes
    reads: Reads
    points: Points
    calls: Calls
    watches: Watches
    consumers: Consumers

    def expecting(self) -> bool:
        """Something is unanswered: the silence of a node matters."""
        parts = (self.writes, self.reads, self.points, self.calls, self.watches)
        return any(part.expecting for part in parts) or self.consumers.open or self.consumers.ending

    def connection_lost(self) -> None:
        """Nothing is on a stream any more."""
        self.writes.connection_lost()
        self.reads.connection_lost()
        self.points.connection_lost()
        self.calls.connection_lost()
        self.watches.connection_lost()
        self.consumers.connection_lost()

    def end(
        self, why: str, write: Callable[[str], errors.KvorumError], read: Callable[[str], errors.KvorumError]
    ) -> None:
        """End every operation with an error; writes that may have been applied with OutcomeUnknown."""
        self.writes.give_up_all(why, lambda: write(why))
        self.reads.give_up_all(lambda: read(why))
        self.points.give_up_all(lambda: read(why))
        self.calls.give_up_all(lambda: read(why))
        self.watches.end_all(lambda: read(why))
        self.consumers.end_all(lambda: read(why))
