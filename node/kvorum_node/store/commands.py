"""The commands of one entry, carried out in order, within the entry's transaction."""

from collections.abc import Callable, Generator
from typing import Any, Final
from zlib import crc32

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb

from . import auth, expiry, history, queues, records
from .answers import Answers, Outputs
from .commits import execute, execute_parts
from .entry import BYTES_SHIFT, Entry
from .errors import StoreFault
from .history import Bounds
from .records import CLUSTER_KEY, DATA_VERSION, MAX_NUMBER, Refusal
from .sessions import Sessions

_INVALID: Final = int(pb.OUTCOME_INVALID)
_EXPIRED: Final = int(pb.OUTCOME_SESSION_EXPIRED)
_UNKNOWN: Final = int(pb.OUTCOME_UNAUTHENTICATED)
_TOO_MANY: Final[Refusal] = (_INVALID, (), "the entry holds too many commits")
_QUARANTINED: Final[Refusal] = (_INVALID, (), "quarantined by the operator")
_NOTHING_DONE: Final = {
    "open_session": b"", "sweep": 0, "lease": 0, "purge": 0, "requeue": 0, "remove_queue": 0, "subscribe": 0,
    "tick": False,
}  # fmt: skip
"""Outputs of commands that are left out."""
_NOBODYS: Final = b"\xff" * records.STAMP_SIZE
"""A session that never is."""
Act = Callable[[Entry, bytes, int], Refusal | pb.AtomicWrite | None]
"""`commits.execute`, or what stands before it."""
_MAX_STAMP_BASE: Final = 1 << 62


class Commands:
    """One for each store. `bounds`: of the history, the same on all nodes."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._sessions = Sessions()

    def forget(self) -> None:
        """What is remembered of the state is not true any more."""
        self._sessions.forget()

    def run(self, entry: Entry, payload: bytes, proved_version: int) -> Generator[None, None, None]:
        """Carry out a serialised `pb.Batch`. `proved_version`: see `Store.proved_version`."""
        index = entry.result.index
        try:
            batch = pb.Batch.FromString(payload)
        except DecodeError as error:
            raise StoreFault(f"entry {index} cannot be decoded: {error}") from error
        if batch.data_version > DATA_VERSION:
            raise StoreFault(
                f"entry {index} needs data version {batch.data_version}; this version of kvorum knows {DATA_VERSION}:"
                " upgrade this node"
            )
        entry.data_version = batch.data_version
        # no older node can have come here
        entry.data_version = max(entry.data_version, proved_version)
        if entry.data_version >= queues.FIRST_VERSION:
            if not entry.rows.has_queues:
                yield from queues.tallies.build(entry)
            entry.tallies = queues.Tallies(entry.rows)
        outputs = entry.result.outputs = Outputs()
        for command in batch.commands:
            kind = command.WhichOneof("command")
            if kind == "writes":
                if not entry.judging:
                    outputs.append((yield from self._writes(entry, command.writes, execute)))
                else:
                    outputs.append((yield from self._judge_writes(entry, command)))
            else:
                number = entry.number
                entry.number += 1
                outputs.append((yield from self._command(entry, kind, command, number)))
        yield from queues.write_out(entry)
        if entry.data_version >= history.FIRST_VERSION:
            yield from history.write(entry, self._bounds)
        if entry.tallies is not None:
            yield from entry.tallies.finish(entry)
        yield from self._sessions.finish(entry)

    def _command(self, entry: Entry, kind: str | None, command: pb.Command, number: int) -> Generator[None, None, Any]:
        """A command other than writes; returns its output."""
        if number in entry.skipped:
            entry.skip(number)
        if number > MAX_NUMBER or number in entry.skipped:
            return _NOTHING_DONE.get(kind or "")
        if kind != "lease":
            yield from queues.write_out(entry)
        if entry.judging and (denied := auth.judge(entry, kind or "", command)) is not None:
            return denied
        if kind == "open_session":
            client = command.open_session.client
            return self._sessions.open(entry, client, entry.stamp(number), command.principal)
        if kind == "close_sessions":
            yield from self._sessions.close(entry, list(command.close_sessions.sessions))
        elif kind == "sweep":
            return (yield from expiry.sweep(entry, command.sweep.limit, entry.stamp(number)))
        elif kind == "lease":
            lease = command.lease
            if lease.session and not self._sessions.exists(entry.rows, lease.session):
                return 0
            return (yield from queues.lease(entry, lease))
        elif kind == "release":
            mark = len(entry.changes)
            yield from queues.release(entry, command.release, entry.stamp(number))
            history.settle(entry.changes, mark)
        elif kind == "init_cluster":
            self._init_cluster(entry, command.init_cluster, number)
        elif kind in queues.COMMANDS and entry.tallies is not None:
            return (yield from queues.run(entry, kind, command, entry.stamp(number)))
        elif entry.data_version >= auth.FIRST_VERSION:
            return auth.run(entry, kind or "", command)
        return None

    def _init_cluster(self, entry: Entry, command: pb.InitCluster, number: int) -> None:
        """The first one counts: two leaders may both have tried."""
        if entry.rows.get(CLUSTER_KEY) is not None:
            return
        if len(command.cluster_id) != 16 or command.stamp_base > _MAX_STAMP_BASE:
            raise StoreFault(f"entry {entry.result.index} forms a cluster with an impossible id or stamp base")
        entry.rows.put(CLUSTER_KEY, records.pack_cluster(command.cluster_id, command.stamp_base))
        if number == 0:  # all stamps of an entry share their prefix
            entry.prefix = (entry.result.index + command.stamp_base).to_bytes(8, "big")

    def _judge_writes(self, entry: Entry, command: pb.Command) -> Generator[None, None, Answers]:
        """A group of writes while tokens are asked for: each is judged by its principal's rights, unless it was carried
        out before. One of a principal that may do nothing is not remembered, as it may come to be somebody."""
        principal, group = command.principal, command.writes
        session = group.session
        if session and not auth.may_use(entry, session, principal):
            group.session = _NOBODYS  # another principal's: as if it were not there
        problem = auth.problem_of(entry, principal)
        if not problem:
            answers = yield from self._writes(entry, group, auth.judged(entry, principal))
        else:
            answers = Answers(group.session, entry.prefix)
            log = self._sessions.enter(entry.rows, group.session, group.ack_below) if group.session else None
            for write in group.writes:
                known = None if log is None else log.judge(write.seq, write.op, entry.number, entry.prefix)
                answers.results.append(known or (write.seq, 0, entry.number, (_UNKNOWN, (), problem)))
                entry.number += 1
                if entry.spend():
                    yield
        answers.session = session
        return answers

    def _writes(self, entry: Entry, group: pb.WriteGroup, act: Act) -> Generator[None, None, Answers]:
        """A group of writes of one session, in order."""
        session, prefix, skipped = group.session, entry.prefix, entry.skipped
        answers = Answers(session, prefix)
        add = answers.results.append
        log = self._sessions.enter(entry.rows, session, group.ack_below) if session else None
        if session and log is None:
            for write in group.writes:
                add((write.seq, 0, entry.number, (_EXPIRED, (), "")))
                entry.number += 1
                if entry.spend():
                    yield
            return answers
        for write in group.writes:
            seq, op, number = write.seq, write.op, entry.number
            entry.number = number + 1
            answer = None
            if log is not None and (seq <= log.highest or seq >= log.limit):
                answer = log.judge(seq, op, number, prefix)
            if answer is not None:
                add(answer)
            else:
                if number in skipped:
                    entry.skip(number)
                    refusal: Refusal | pb.AtomicWrite | None = _QUARANTINED
                else:
                    refusal = act(entry, op, number) if number <= MAX_NUMBER else _TOO_MANY
                if isinstance(refusal, pb.AtomicWrite):
                    refusal = yield from execute_parts(entry, refusal, number)
                result = seq, crc32(op), number, refusal
                add(result)
                if log is not None:  # without a call, as it is the same for each write
                    log.pending.append(result)
                    if seq > log.highest:
                        log.highest = seq
                    if log.index is not None:
                        log.index[seq] = (result, prefix)
            entry.budget -= 1 + (len(op) >> BYTES_SHIFT)
            if entry.budget <= 0:
                entry.budget = entry.slice
                yield
        return answers
