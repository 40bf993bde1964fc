"""Writes under way: sessions, repeats, and what may truthfully be told to a caller (rules C1 and C3). No I/O, no clock.

**How a write is applied once.** It gets a number (`seq`) in the client's session when it is first put on a stream,
and keeps number and bytes until it is answered. When a connection breaks, everything unanswered is sent again under
the same numbers; the state machine finds the stored result of what it has applied already. `ack_below`, sent with
each group, is the lowest number that this client may still send; the state machine forgets results below it. So it
must never pass a write that is still to be repeated, and here it cannot: it is computed from the live writes of the
session, just before the group is filled.

**What a caller is told.** Each time a write is put on a stream is an attempt. An attempt is *definite* if the node
answered that it did not execute it; it is *in doubt* if its stream broke unanswered, or if the leader lost it after
writing it to its log. There is at most one unanswered attempt at a time (`on_stream`), so an answer belongs to that
attempt. A write that ends without a result is "not applied" if no attempt is in doubt or unanswered, else "unknown".
An answer that it was refused says nothing about an earlier attempt in doubt: such a write is repeated until its
deadline, since a repeat is what finds out.

**Writes that were given up** (deadline, cancelled caller) are dropped at once and `ack_below` may pass them. Three
cases:

1. No attempt was ever unanswered: it can't arrive any more, because what is dropped is never put on a stream. "Not
   applied" is true.
2. An attempt is in doubt or unanswered, and it was applied, or is applied before a group with a higher `ack_below`:
   the caller was told "unknown", and nobody will ask for the stored result, so it may be forgotten.
3. It arrives after such a group, from the buffers of a node that was frozen, say: apply finds it below `ack_below`,
   answers ABANDONED, and executes nothing. So giving up also bounds how late an "unknown" write can still happen: not
   after a later group of this session that passed it was applied.

Keeping given-up writes in the set of repeats instead was rejected: it would hold `ack_below`, hence the window, for a
caller that is gone.

**Expired sessions.** SESSION_EXPIRED is definite for its attempt and final for the session: a repeat could only be
told the same. Writes without an attempt in doubt move to a new session; the others are unknown. Those whose attempt
is still unanswered wait for their own answer, which may be a stored result from before the session ended.

The data structure is a dict from seq to write for each session, in ascending order because numbers are given in
order, so that repeating "everything in order" is iterating over it, and a queue of writes that have no number yet.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.cluster.counters import Counters

MAX_WAITING: Final = 4 * limits.SESSION_WINDOW
"""Writes that may wait for a place in the window."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all writes under way."""
FRAME_BYTES: Final = limits.MAX_ENTRY_SIZE
"""Bytes of operations in one frame; one larger write goes alone."""
_new_outcome: Final = partial(tuple.__new__, WriteOutcome)
"""Without the named tuple's own call, which takes 0.2 µs."""


class Promise(Protocol):
    """The part of a future that is needed here."""

    def done(self) -> bool: ...
    def set_result(self, result: WriteOutcome, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class PendingWrite:
    """A write that was not answered yet."""

    __slots__ = (
        "attempts",
        "bucket",
        "in_doubt",
        "last_refusal",
        "on_stream",
        "op",
        "promise",
        "seq",
        "session",
        "timeout",
    )

    def __init__(self, op: bytes, promise: Promise, timeout: float) -> None:
        self.op = op
        self.promise = promise
        self.timeout = timeout
        self.session: Session | None = None
        self.seq = 0
        self.attempts = 0
        self.on_stream = False
        """An attempt on the current stream is unanswered."""
        self.in_doubt = False
        """An attempt ended without a definite answer."""
        self.last_refusal: pb.WriteResult | None = None


class Session:
    """The numbers of one session, and the writes that hold them."""

    __slots__ = ("_ack_below", "id", "live", "next_seq")

    def __init__(self, session_id: bytes) -> None:
        self.id = session_id
        self.live: dict[int, PendingWrite] = {}
        self.next_seq = 1
        self._ack_below = 1

    def ack_below(self) -> int:
        """Lowest number that may still be sent. Never falls; advances over each number once."""
        low, live, end = self._ack_below, self.live, self.next_seq
        while low < end and low not in live:
            low += 1
        self._ack_below = low
        return low


class Writes:
    """All writes of a client.

    `connection_lost` and `answered` report what the stream did; `fill` says what to send next.
    """

    def __init__(self, counters: Counters, *, max_waiting: int = MAX_WAITING, max_bytes: int = MAX_BYTES) -> None:
        self._counters = counters
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._bytes = 0
        self._session: Session | None = None
        self._expired: dict[bytes, Session] = {}
        self._waiting: deque[PendingWrite] = deque()
        self._outbox: deque[PendingWrite] = deque()
        self._later: list[PendingWrite] = []
        self.refusals = 0
        """Rounds of refusals since a write was last executed:
        how long to wait before the refused ones are tried again.
        """

    # ---- what callers do

    def submit(self, op: bytes, promise: Promise, timeout: float) -> PendingWrite:
        """Take a write in. Errors: Overloaded."""
        waiting, size = self._waiting, self._bytes + len(op)
        if len(waiting) >= self._max_waiting:
            self._sweep_waiting()
            waiting = self._waiting
            if len(waiting) >= self._max_waiting:
                raise errors.Overloaded(f"{len(waiting):,} writes are waiting already; not applied")
        if size > self._max_bytes and self._bytes:
            raise errors.Overloaded(f"{self._bytes:,} bytes of writes are under way already; not applied")
        self._bytes = size
        pending = PendingWrite(op, promise, timeout)
        waiting.append(pending)
        return pending

    def forget(self, pending: PendingWrite) -> None:
        """Must be called once for each submitted write when its caller has its answer, or is gone."""
        self._bytes -= len(pending.op)
        pending.op = b""  # it may stay in a queue for a while, skipped when its turn comes
        self._drop(pending)

    def give_up(self, pending: PendingWrite, why: str, definite: errors.KvorumError) -> None:
        """End a write without a result: `definite` if nothing can have been applied, else OutcomeUnknown."""
        self._drop(pending)
        if pending.promise.done():
            return
        if pending.in_doubt or pending.on_stream:
            self._counters.unknown += 1
            pending.promise.set_exception(errors.OutcomeUnknown(f"{why}; the write may or may not have been applied"))
        else:
            pending.promise.set_exception(definite)

    def give_up_all(self, why: str, definite: Callable[[], errors.KvorumError], *, sent_only: bool = False) -> None:
        """End every write; with `sent_only` only those that are on the stream."""
        for pending in list(self._all()):
            if pending.on_stream or not sent_only:
                self.give_up(pending, why, definite())
        if not sent_only:
            self._waiting.clear()  # or those that are given up would look like something to be sent

    def _drop(self, pending: PendingWrite) -> None:
        session = pending.session
        if session is not None and session.live.get(pending.seq) is pending:
            del session.live[pending.seq]
            self._retire(session)

    def _retire(self, session: Session) -> None:
        if not session.live and session.id in self._expired:
            del self._expired[session.id]

    def _sweep_waiting(self) -> None:
        self._waiting = deque(pending for pending in self._waiting if not pending.promise.done())

    def _all(self) -> Iterable[PendingWrite]:
        for session in (self._session, *self._expired.values()):
            if session is not None:
                yield from session.live.values()
        yield from self._waiting

    # ---- what the connection does

    @property
    def session_id(self) -> bytes:
        """The current session; empty if there is none."""
        return b"" if self._session is None else self._session.id

    @property
    def needs_session(self) -> bool:
        """Writes wait for a session to be opened."""
        waiting = self._waiting
        while waiting and waiting[0].promise.done():
            waiting.popleft()
        return self._session is None and bool(waiting)

    @property
    def expecting(self) -> bool:
        """Something is unanswered or to be sent."""
        return bool((self._session is not None and self._session.live) or self._expired or self._waiting)

    @property
    def has_refused(self) -> bool:
        """Refused writes wait for `retry_refused`."""
        return bool(self._later)

    def live(self, seq: int) -> PendingWrite | None:
        """The unanswered write that has a number in the current session."""
        return None if self._session is None else self._session.live.get(seq)

    def session_opened(self, session_id: bytes) -> None:
        """A new session is there; writes may go."""
        self._counters.sessions += 1
        self._session = Session(session_id)

    def fill(self, frame: pb.ClientFrame, operations: int) -> int:
        """Put up to `operations` writes into a frame and return their number:
        repeats first, then new ones within the window.
        """
        session = self._session
        outbox, waiting = self._outbox, self._waiting
        if session is None or not (outbox or waiting):
            return 0
        low = session.ack_below()
        end = low + limits.SESSION_WINDOW
        count = size = 0
        add = frame.writes.writes.add
        while count < operations:
            if outbox:
                pending = outbox[0]
                if pending.on_stream or session.live.get(pending.seq) is not pending:
                    outbox.popleft()
                    continue
                source = outbox
            elif waiting and session.next_seq < end:
                pending = waiting[0]
                if pending.promise.done():
                    waiting.popleft()
                    continue
                source = waiting
            else:
                break
            size += len(pending.op)
            if size > FRAME_BYTES and count:
                break
            source.popleft()
            if source is waiting:
                pending.seq = session.next_seq
                session.next_seq += 1
                session.live[pending.seq] = pending
                pending.session = session
            pending.on_stream = True
            pending.attempts += 1
            if pending.attempts > 1:
                self._counters.retries += 1
            write = add()  # with arguments it takes a third longer
            write.seq = pending.seq
            write.op = pending.op
            count += 1
        if count:
            group = frame.writes
            group.session = session.id
            group.ack_below = low
        else:
            frame.ClearField("writes")
        return count

    def connection_lost(self) -> None:
        """The stream is gone: what it left unanswered is in doubt, and everything live is to be repeated, in order."""
        for session in list(self._expired.values()):
            for pending in list(session.live.values()):
                self._interrupt(pending)
                self._move(pending)
        self._later.clear()
        self._outbox.clear()
        if self._session is not None:
            for pending in self._session.live.values():
                self._interrupt(pending)
                self._outbox.append(pending)

    def retry_refused(self) -> None:
        """Refused writes go again."""
        self._outbox.extend(self._later)
        self._later.clear()

    @staticmethod
    def _interrupt(pending: PendingWrite) -> None:
        if pending.on_stream:
            pending.on_stream = False
            pending.in_doubt = True

    # ---- answers

    def answered(self, groups: Iterable[pb.ResultGroup]) -> bool:
        """Take results in. True if the node said that it does not lead."""
        lost_leader = False
        refused = False
        for group in groups:
            session = self._session
            if session is None or session.id != group.session:
                session = self._expired.get(group.session)
                if session is None:
                    continue
            live = session.live
            prefix = group.stamp_prefix
            executed = False
            for result in group.results:
                pending = live.get(result.seq)
                if pending is None or not pending.on_stream:
                    if not result.seq and result.outcome == pb.OUTCOME_SESSION_EXPIRED:
                        self._end(session)  # it answers no write: a consumer asked in the session's name
                    continue
                outcome = result.outcome
                if 0 < outcome <= pb.OUTCOME_DENIED:
                    del live[result.seq]
                    executed = True
                    if not pending.promise.done():
                        stamp = b""
                        if outcome == pb.OUTCOME_DONE:
                            stamp = (result.stamp_prefix or prefix) + result.number.to_bytes(2, "big")
                        pending.promise.set_result(_new_outcome((result, stamp)))
                else:
                    refused = True
                    lost_leader |= outcome == pb.OUTCOME_NOT_LEADER
                    self._refused(pending, result)
            if executed:
                self.refusals = 0
                self._retire(session)
        if refused:
            self.refusals += 1
        return lost_leader

    def _refused(self, pending: PendingWrite, result: pb.WriteResult) -> None:
        """An attempt was not executed, or its leader does not know."""
        pending.on_stream = False
        pending.last_refusal = result
        outcome = result.outcome
        if outcome == pb.OUTCOME_SESSION_EXPIRED:
            self._session_expired(pending)
        elif outcome == pb.OUTCOME_ABANDONED:
            pending.in_doubt = True
            self.give_up(pending, "the node had been told that this write was given up", errors.Unavailable())
        elif outcome in _FINAL:
            self.give_up(
                pending, f"it was refused ({_reason(result)}) after an attempt without an answer", refusal(result)
            )
        elif outcome == pb.OUTCOME_NO_SPACE and not pending.in_doubt:
            self.give_up(pending, "", refusal(result))
        else:
            # UNKNOWN, and whatever a newer node may answer, is no definite answer.
            pending.in_doubt |= outcome not in _DEFINITE
            if pending.session is self._session:
                self._later.append(pending)
            else:
                self._move(pending)

    def _session_expired(self, pending: PendingWrite) -> None:
        session = pending.session
        if session is not None and session is self._session:
            self._end(session)
        else:
            self._move(pending)

    def _end(self, session: Session) -> None:
        """The current session has expired; said of an older one, it is no news."""
        if session is not self._session:
            return
        self._session = None
        self._expired[session.id] = session
        self._outbox.clear()
        self._later.clear()
        # appendleft turns the order around, so the newest is moved first.
        for other in reversed(list(session.live.values())):
            if not other.on_stream:
                self._move(other)
        self._retire(session)

    def _move(self, pending: PendingWrite) -> None:
        """A write of an expired session has no attempt on the stream:
        it goes on under a new session, or its outcome stays unknown.
        """
        if pending.in_doubt:
            self.give_up(
                pending, "the session ended before an attempt without an answer was cleared up", errors.Unavailable()
            )
            return
        self._drop(pending)
        pending.session = None
        pending.seq = 0
        self._waiting.appendleft(pending)


_DEFINITE: Final = frozenset(
    (
        pb.OUTCOME_WINDOW,
        pb.OUTCOME_SEQ_REUSED,
        pb.OUTCOME_OVERLOADED,
        pb.OUTCOME_NO_SPACE,
        pb.OUTCOME_NOT_LEADER,
        pb.OUTCOME_INVALID,
        pb.OUTCOME_QUARANTINED,
        pb.OUTCOME_UNAUTHENTICATED,
    )
)
_FINAL: Final = frozenset(
    (pb.OUTCOME_INVALID, pb.OUTCOME_QUARANTINED, pb.OUTCOME_SEQ_REUSED, pb.OUTCOME_UNAUTHENTICATED)
)
"""Repeating the same bytes under the same number will be refused again."""


def _reason(result: pb.WriteResult) -> str:
    known = pb.Outcome.DESCRIPTOR.values_by_number.get(result.outcome)
    label = f"outcome {result.outcome}" if known is None else known.name.removeprefix("OUTCOME_").lower()
    label = label.replace("_", " ")
    return f"{label}: {result.message}" if result.message else label


def refusal(result: pb.WriteResult) -> errors.KvorumError:
    """The error for a definite refusal: nothing was applied."""
    match result.outcome:
        case pb.OUTCOME_INVALID:
            return errors.InvalidArgument(result.message or "the node calls this write invalid")
        case pb.OUTCOME_NO_SPACE:
            return errors.NoSpace(result.message or "a node's disk is nearly full; not applied")
        case pb.OUTCOME_UNAUTHENTICATED:
            return errors.Unauthenticated(result.message or "the node knows no such token")
        case pb.OUTCOME_OVERLOADED:
            return errors.Overloaded(result.message or "the node is overloaded; not applied")
        case _:
            return errors.Unavailable(f"the node refused the write ({_reason(result)}); not applied")
