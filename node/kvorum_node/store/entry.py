"""One entry while it is being applied: its transaction, its number and time, and what it will hand back."""

from typing import TYPE_CHECKING, Final

from .fresh import Fresh
from .held import Held
from .records import quarantined_key
from .results import ApplyResult

if TYPE_CHECKING:
    import lmdb

    from .auth import Auth
    from .counters import Addend
    from .queues.policies import Policy
    from .queues.tallies import Tallies
    from .rows import Rows

BYTES_SHIFT: Final = 11
"""2 KiB of an operation, or of what it writes, weigh as much as a small commit."""
FIRST_MADE: Final = 4_096
"""Messages that a commit makes besides those it enqueues are numbered from here on."""


class Entry:
    """Carried through everything that an entry touches.

    `budget` is what is left of the running slice, in units of a small commit (about 10 µs): long work calls `spend` and
    yields when it is told to, so that the loop on which the store runs stays responsive.
    """

    __slots__ = (
        "addends",
        "auth",
        "bare",
        "budget",
        "changes",
        "data_version",
        "deleted",
        "duplicates",
        "env",
        "fresh",
        "held",
        "judging",
        "leases",
        "made",
        "number",
        "policies",
        "prefix",
        "result",
        "rows",
        "skipped",
        "slice",
        "tallies",
        "time_ms",
        "undelivered_size",
    )

    def __init__(
        self,
        env: "lmdb.Environment",
        rows: "Rows",
        index: int,
        time_ms: int,
        prefix: bytes,
        slice_size: int,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self.env = env
        self.bare = False
        """Nobody wants to know what is delivered."""
        self.rows = rows
        self.time_ms = time_ms
        self.prefix = prefix
        """The first 8 bytes of this entry's versionstamps and lease ids: index + stamp base."""
        self.data_version = 1
        """Apply semantics that its proposer relied on: what is newer does not exist for this entry."""
        self.auth: Auth
        """Tokens and the switch, as they are now."""
        self.judging = False
        """Tokens are asked for."""
        self.deleted = 0
        """Keys that the running commit has deleted by ranges."""
        self.number = 0
        """Number of the next commit; the one before it is being carried out."""
        self.changes: list[bytes] = []
        """What was done to which keys, as it will stand in the history."""
        self.addends: dict[bytes, Addend | None] = {}
        """What sums of this entry add, see `counters`."""
        self.fresh = Fresh()
        """Messages that are not written yet."""
        self.held = Held()
        """What is known of messages in consumers' hands."""
        self.leases = 0
        """Leases granted so far."""
        self.tallies: Tallies | None = None
        """Counters of queues; None = this entry is of a data version below 3."""
        self.policies: dict[bytes, Policy] = {}
        """Of the queues met so far."""
        self.duplicates: list[tuple[int, bytes]] = []
        """Enqueues of the running commit that were not taken, and the messages that have their ids."""
        self.made = (b"", 0)
        """Stamp of a commit, and how many messages it has made besides those it enqueued."""
        self.undelivered_size = 0
        """Bytes of messages that could not be delivered and were written to keys, over all their keys."""
        self.skipped = skipped
        """Numbers of the commits that the operator has quarantined."""
        self.slice = slice_size
        self.budget = slice_size
        self.result = ApplyResult(index, time_ms)

    def spend(self, weight: int = 1) -> bool:
        """Take from the slice's budget; True = it is used up, yield now."""
        self.budget -= weight
        if self.budget > 0:
            return False
        self.budget = self.slice
        return True

    def spend_bytes(self, size: int) -> bool:
        """The same for one step that wrote so many bytes."""
        return self.spend(1 + (size >> BYTES_SHIFT))

    def spend_on(self, mark: int) -> bool:
        """The same for one step that added what `changes` holds beyond `mark`: a message that could not be delivered
        may become ten large values."""
        changes = self.changes
        return self.spend_bytes(sum(map(len, changes[mark:])) if len(changes) > mark else 0)

    def stamp(self, number: int) -> bytes:
        """The versionstamp of a commit of this entry."""
        return self.prefix + number.to_bytes(2, "big")

    def next_id(self, stamp: bytes) -> bytes:
        """An id for one more message that the commit `stamp` makes, or a place for one that it buries."""
        before, count = self.made
        if before != stamp:
            count = 0
        self.made = (stamp, count + 1)
        return stamp + (FIRST_MADE + count).to_bytes(2, "big")

    def skip(self, number: int) -> None:
        """Record that a commit was quarantined and not executed."""
        self.rows.put(quarantined_key(self.result.index, number), b"")

    def note_ready(self, queue: str, due_ms: int) -> None:
        ready = self.result.ready
        if due_ms < ready.get(queue, due_ms + 1):
            ready[queue] = due_ms

    def note_expiry(self, expire_at_ms: int) -> None:
        earliest = self.result.earliest_expiry_ms
        if earliest is None or expire_at_ms < earliest:
            self.result.earliest_expiry_ms = expire_at_ms


class Savepoint:
    """A child transaction for one commit, and what must be set back in memory when it is rolled back."""

    __slots__ = ("_changed", "_changes", "_counters", "_earliest", "_ended", "_entry", "_extended", "_parent", "_ready")

    def __init__(self, entry: Entry) -> None:
        rows, result = entry.rows, entry.result
        self._entry = entry
        self._parent = rows.txn
        self._counters = rows.counters()
        self._changed = len(result.changed_keys)
        self._changes = len(entry.changes)
        self._ended = len(result.ended)
        self._extended = len(result.extended)
        self._ready = dict(result.ready)
        self._earliest = result.earliest_expiry_ms
        rows.txn = entry.env.begin(write=True, parent=self._parent)
        entry.fresh.begin()
        if entry.tallies is not None:
            entry.tallies.begin()

    def keep(self) -> None:
        rows, tallies = self._entry.rows, self._entry.tallies
        rows.txn.commit()
        rows.txn = self._parent
        self._entry.fresh.keep()
        if tallies is not None:
            tallies.keep()

    def roll_back(self) -> None:
        rows, result = self._entry.rows, self._entry.result
        rows.txn.abort()
        rows.txn = self._parent
        rows.restore(self._counters)
        del result.changed_keys[self._changed :]
        del self._entry.changes[self._changes :]
        del result.ended[self._ended :]
        del result.extended[self._extended :]
        result.ready = self._ready
        result.earliest_expiry_ms = self._earliest
        self._entry.fresh.roll_back()
        if self._entry.tallies is not None:
            self._entry.tallies.roll_back()
