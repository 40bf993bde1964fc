"""What a leader knows of one follower, and how much it may send to it.

*Probing*: the place where the logs part is not known; one message without entries at a time. *Replicating*: entries are
sent on before earlier ones are acknowledged, within a window of bytes and messages. A refusal or a broken connection
leads back to probing.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """`next_index` is the first entry that was not sent; `match_index` the last that is known to be equal and durable
    there."""

    next_index: int
    heard_at: float
    """When a message was sent that this follower has answered; the start of office at first."""
    match_index: int = 0
    probing: bool = True
    commit_sent: int = 0
    unfit: bool = False
    """It has said that it cannot lead: it has no state, or much to apply."""
    connected: bool = False
    """Messages to it have a connection."""
    voter: bool = False
    """It counts in the configuration that is in force."""
    snapshotting: bool = False
    """It needs entries that the log does not hold any more: it gets none until it has a snapshot."""
    _flight: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes) of each message
    _flight_bytes: int = 0

    def may_send(self, max_bytes: int, max_messages: int) -> bool:
        """True if one more message with entries may go."""
        if self.probing or self.snapshotting:
            return False
        return self._flight_bytes < max_bytes and len(self._flight) < max_messages

    def sent(self, last_index: int, size: int) -> None:
        """A message with entries went out."""
        self.next_index = last_index + 1
        self._flight.append((last_index, size))
        self._flight_bytes += size

    def probe(self) -> None:
        """Forget what is under way and find out anew from the acknowledged point, or from where the next probe would
        go."""
        self.probing = True
        self._flight.clear()
        self._flight_bytes = 0

    def lost_connection(self) -> None:
        self.next_index = self.match_index + 1 if self.match_index else self.next_index
        self.commit_sent = 0
        self.snapshotting = False
        self.probe()

    def acknowledged(self, match_index: int, equal_index: int) -> None:
        """A success: durable up to `match_index` there, equal up to `equal_index` (which may still be on its way to the
        disk)."""
        self.snapshotting = False
        self.match_index = max(self.match_index, match_index)
        while self._flight and self._flight[0][0] <= self.match_index:
            self._flight_bytes -= self._flight.popleft()[1]
        if self.probing:
            self.probe()
            self.probing = False
            self.next_index = max(equal_index, self.match_index) + 1
        self.next_index = max(self.next_index, self.match_index + 1)

    def refused(self, prev_index: int, hint_index: int) -> bool:
        """A refusal of the append behind `prev_index`; False if it is stale and was ignored."""
        if self.snapshotting or prev_index <= self.match_index or (self.probing and prev_index != self.next_index - 1):
            return False
        self.next_index = max(self.match_index + 1, min(prev_index, hint_index))
        self.probe()
        return True

    @property
    def in_flight(self) -> tuple[int, int]:
        """(messages, bytes) that are under way."""
        return len(self._flight), self._flight_bytes
