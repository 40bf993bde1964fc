"""Sessions: each write of a session takes effect once, however often it is sent (rules C1).

The results of one session in one entry are packed into one row; a row for each operation would cost a tenth of all
apply time. What stands in LMDB is the truth. Beside it lives a mirror of each session that is in use, read from LMDB on
first use and changed with it: nearly every write has a seq above all seen so far, and the mirror answers that with one
comparison instead of a scan of the session's rows. The index of single results is built only when a seq comes that is
not new, that is, when a client repeats itself. A mirror never decides anything that the rows would not decide; dropping
it at any point between two entries changes no result.

A result row is deleted when all its seqs are below the session's `ack_below`. That some are is never visible: such seqs
are ABANDONED.
"""

import zlib
from collections.abc import Generator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_SESSIONS, SESSION_WINDOW

from . import checked, records
from .records import OWNER, RESULT, SESSION, STAMP_SIZE, Refusal, StoredResult

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry
    from .rows import Rows

_MAX_MIRRORS: Final = 1_024
_MAX_MIRRORED_ROWS: Final = 131_072
_TRIM_EVERY: Final = 256
"""Entries between two looks at how much the mirrors hold; an entry adds one row for each of its sessions."""
_MAX_NAME: Final = 256

_DONE: Final = pb.OUTCOME_DONE
_ABANDONED: Final = pb.OUTCOME_ABANDONED
_WINDOW: Final = pb.OUTCOME_WINDOW
_REUSED: Final = pb.OUTCOME_SEQ_REUSED


class SessionLog:
    """The mirror of one session. `highest` is the highest seq that may be stored or abandoned, `limit` the lowest
    beyond the window."""

    __slots__ = ("_opened", "_rows", "ack_below", "highest", "index", "limit", "moved", "pending", "session")

    def __init__(self, session: bytes, row: bytes) -> None:
        ack_below, opened_at_ms, client = records.unpack_session(row)
        self.session = session
        self.ack_below = ack_below
        self.highest = ack_below - 1
        self.limit = ack_below + SESSION_WINDOW
        self.pending: list[StoredResult] = []
        """Results of the running entry, to be added to as they come; `highest` and `index` go with it."""
        self.moved = False
        """`ack_below` differs from the stored one."""
        self._opened = opened_at_ms, client
        self._rows: list[tuple[int, bytes, bytes]] = []
        """A heap of (highest seq, stamp prefix, packed results)."""
        self.index: dict[int, tuple[StoredResult, bytes]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, prefix: bytes, row: bytes) -> None:
        """Take over a stored row."""
        highest = records.highest_seq(row)
        heappush(self._rows, (highest, prefix, row))
        self.highest = max(self.highest, highest)

    def advance(self, rows: "Rows", ack_below: int) -> None:
        """Raise `ack_below`, and delete the result rows that lie wholly below it."""
        self.ack_below = ack_below
        self.limit = ack_below + SESSION_WINDOW
        self.highest = max(self.highest, ack_below - 1)
        self.moved = True
        while self._rows and self._rows[0][0] < ack_below:
            _, prefix, row = heappop(self._rows)
            rows.remove(RESULT + self.session + prefix)
            if self.index is not None:
                for result in records.unpack_results(row):
                    self.index.pop(result[0], None)
        if not self._rows and not self.pending:
            self.index = None

    def judge(self, seq: int, op: bytes, number: int, prefix: bytes) -> pb.WriteResult | None:
        """The answer to a write that must not be executed (again); None = execute it. The order of decisions is part of
        the protocol."""
        if seq < self.ack_below:
            return pb.WriteResult(seq=seq, number=number, outcome=_ABANDONED)
        if seq <= self.highest:
            stored = self._stored(prefix).get(seq)
            if stored is not None:
                return _repeated(*stored, zlib.crc32(op), number)
        if seq >= self.limit:
            return pb.WriteResult(seq=seq, number=number, outcome=_WINDOW)
        return None

    def finish(self, rows: "Rows", prefix: bytes) -> None:
        """Write what the entry changed."""
        if self.moved:
            rows.put(SESSION + self.session, records.pack_session(self.ack_below, *self._opened))
            self.moved = False
        if self.pending:
            packed = records.pack_results(self.pending)
            self.pending = []
            highest = records.highest_seq(packed)
            if highest >= self.ack_below:
                rows.put(RESULT + self.session + prefix, packed)
                heappush(self._rows, (highest, prefix, packed))

    def _stored(self, prefix: bytes) -> dict[int, tuple[StoredResult, bytes]]:
        if self.index is None:
            self.index = {result[0]: (result, prefix) for result in self.pending}
            for _, row_prefix, row in self._rows:
                for result in records.unpack_results(row):
                    self.index[result[0]] = (result, row_prefix)
        return self.index


def _repeated(stored: StoredResult, prefix: bytes, digest: int, number: int) -> pb.WriteResult:
    seq, stored_digest, stored_number, refusal = stored
    if stored_digest != digest:
        return pb.WriteResult(seq=seq, number=number, outcome=_REUSED)
    result = pb.WriteResult(seq=seq, outcome=pb.OUTCOME_DONE, number=stored_number, stamp_prefix=prefix)
    if refusal is not None:
        fill(result, refusal)
    return result


def fill(result: pb.WriteResult, refusal: Refusal) -> None:
    """Make a result that of a refused write, or of one that has something to say."""
    outcome, numbers, message = refusal
    result.outcome = outcome  # type: ignore[assignment]
    if outcome == _DONE:
        result.deleted = numbers[0]
        result.failed_checks.extend(numbers[1:])
        for enqueue, message_id in records.unpack_duplicates(message):
            result.duplicates.add(enqueue=enqueue, message_id=message_id)
        return
    result.failed_checks.extend(numbers)
    result.message = message


class Sessions:
    """All sessions: the mirrors of those in use, the rows of the others."""

    def __init__(self) -> None:
        self._mirrors: dict[bytes, SessionLog] = {}
        """Least recently used first."""
        self._touched: dict[bytes, SessionLog] = {}
        """Those of the running entry."""
        self._entries = 0

    def enter(self, rows: "Rows", session: bytes, ack_below: int) -> SessionLog | None:
        """The session's log, for a group of its writes; None = there is no such session."""
        log = self._mirrors.pop(session, None)
        if log is None:
            log = _load(rows, session)
            if log is None:
                return None
        self._mirrors[session] = log
        self._touched[session] = log
        if ack_below > log.ack_below:
            log.advance(rows, ack_below)
        return log

    def exists(self, rows: "Rows", session: bytes) -> bool:
        if session in self._mirrors:
            return True
        return len(session) == STAMP_SIZE and rows.get(SESSION + session) is not None

    def open(self, entry: "Entry", client: str, session: bytes, principal: bytes = b"") -> bytes:
        """Open a session, which is the principal's from then on if tokens are in use; returns its id, b"" if there are
        too many. Nothing is evicted in favour of a new one."""
        if entry.rows.sessions >= MAX_SESSIONS:
            return b""
        entry.rows.sessions += 1
        row = records.pack_session(1, entry.time_ms, client.encode()[:_MAX_NAME])
        entry.rows.put(SESSION + session, row)
        if principal and entry.rows.has_auth:
            entry.rows.put(OWNER + session, principal)
        return session

    def close(self, entry: "Entry", sessions: list[bytes]) -> Generator[None, None, None]:
        """Delete sessions and their results. Unknown ones are skipped; their leases live on and lapse or are settled by
        lease id."""
        rows = entry.rows
        for session in sessions:
            if len(session) != STAMP_SIZE or rows.remove(SESSION + session) is None:
                continue
            rows.sessions -= 1
            if rows.has_auth:
                rows.remove(OWNER + session)
            self._mirrors.pop(session, None)
            self._touched.pop(session, None)
            for name, _ in _result_rows(rows.txn, session):
                rows.remove(name)
                if entry.spend():
                    yield
            entry.result.closed_sessions.append(session)
            if entry.spend():
                yield

    def finish(self, entry: "Entry") -> Generator[None, None, None]:
        """Write what the entry changed; the last thing that it does."""
        for log in self._touched.values():
            log.finish(entry.rows, entry.prefix)
            if entry.spend():
                yield
        self._touched.clear()
        self._entries += 1
        if len(self._mirrors) > _MAX_MIRRORS or self._entries % _TRIM_EVERY == 0:
            self._trim()

    def _trim(self) -> None:
        """Drop the mirrors that were not used for longest, to bound memory."""
        mirrors = self._mirrors
        rows = sum(map(len, mirrors.values()))
        while mirrors and (len(mirrors) > _MAX_MIRRORS or rows > _MAX_MIRRORED_ROWS):
            rows -= len(mirrors.pop(next(iter(mirrors))))

    def forget(self) -> None:
        """Drop all mirrors: the running entry is given up."""
        self._mirrors.clear()
        self._touched.clear()


def _load(rows: "Rows", session: bytes) -> SessionLog | None:
    row = rows.get(SESSION + session) if len(session) == STAMP_SIZE else None
    if row is None:
        return None
    log = SessionLog(session, row)
    for name, packed in _result_rows(rows.txn, session):
        log.load(name[1 + STAMP_SIZE :], packed)
    return log


def _result_rows(txn: "lmdb.Transaction[bytes]", session: bytes) -> list[tuple[bytes, bytes]]:
    """At most one for each seq of the window."""
    return list(checked.table(txn, RESULT + session))


def is_open(txn: "lmdb.Transaction[bytes]", session: bytes) -> bool:
    return len(session) == STAMP_SIZE and checked.get(txn, SESSION + session) is not None


def session_ids(txn: "lmdb.Transaction[bytes]") -> list[bytes]:
    return [name[len(SESSION) :] for name, _ in checked.table(txn, SESSION)]
