"""One atomic write: all checks first, then settles, mutations in order, enqueues. All or nothing; but a write of
settles that says so has each of them judged on its own."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_WRITE_KEY_SIZE

from . import counters, history, keyspace, queues
from .entry import Savepoint
from .errors import Refused
from .mutations import DELETE_RANGE, delete_range, is_sure, mutate
from .records import MAX_NUMBER, Refusal, pack_duplicates, stamp_of
from .wire import CHECK, ENQUEUE, SET, SETTLE, PlainSet, acknowledgement, plain_message, plain_set

if TYPE_CHECKING:
    from .entry import Entry

_DONE: Final = int(pb.OUTCOME_DONE)
_INVALID: Final = int(pb.OUTCOME_INVALID)
_FAILED: Final = int(pb.OUTCOME_CHECK_FAILED)
_ACK: Final = int(pb.SETTLE_KIND_ACK)
_EQUALS: Final = int(pb.CHECK_KIND_EQUALS)
_EXISTS: Final = int(pb.CHECK_KIND_EXISTS)
_NOT_NEWER: Final = int(pb.CHECK_KIND_NOT_NEWER)

_FEW: Final = 8
"""Parts of a write that is done without a pause."""
FIRST: Final = bytes(2)
"""Number of the first enqueue of a commit."""

parse = pb.AtomicWrite.FromString
UNREADABLE: Final[Refusal] = (_INVALID, (), "the operation cannot be decoded")


def execute(entry: "Entry", op: bytes, number: int) -> Refusal | pb.AtomicWrite | None:
    """Carry out the commonest writes: a single mutation, enqueue or acknowledgement without anything else, and others
    of a few parts that need no savepoint. None = done. Others come back parsed, for `execute_parts`."""
    stamp = entry.prefix + number.to_bytes(2, "big")
    first = op[0] if op else 0
    if first == ENQUEUE:
        message = plain_message(op)
        if message is not None and entry.fresh.take(message[0], stamp + FIRST, message[1]):
            entry.rows.messages += 1
            return None
    elif first == SETTLE:
        held = acknowledgement(op)
        if held is not None and queues.acknowledge_known(entry, *held):
            return None
    elif first in (SET, CHECK):
        known = plain_set(op)
        if known is not None and 0 < len(known[0]) <= MAX_WRITE_KEY_SIZE:
            return execute_set(entry, known, stamp)
        if first == SET and counters.add(entry, op, stamp):
            return None
    try:
        write = parse(op)
    except DecodeError:
        return UNREADABLE
    return execute_parsed(entry, write, stamp)


def execute_parsed(entry: "Entry", write: pb.AtomicWrite, stamp: bytes) -> Refusal | pb.AtomicWrite | None:
    """As `execute`, of a write that somebody has parsed."""
    mutations = write.mutations
    if not mutations and not write.checks:
        return _execute_message(entry, write, stamp)
    if len(mutations) != 1 or write.checks or write.enqueues or write.settles:
        return _execute_few(entry, write, stamp)
    mutation = mutations[0]
    if mutation.type == DELETE_RANGE:
        return write
    try:
        mutate(entry, mutation, stamp, 0)
    except Refused as refused:
        return _refusal(refused)
    return None


def execute_set(entry: "Entry", known: PlainSet, stamp: bytes) -> Refusal | None:
    """One whose key has a length within the limits."""
    key, encoding, value, checked_key, versionstamp = known
    if checked_key is not None:
        row = keyspace.read_row(entry.rows, checked_key)
        if (b"" if row is None else stamp_of(row)) != versionstamp:
            return _FAILED, (0,), ""
    keyspace.write(entry, key, encoding, value, stamp)
    return None


def _execute_message(entry: "Entry", write: pb.AtomicWrite, stamp: bytes) -> Refusal | pb.AtomicWrite | None:
    enqueues, settles = write.enqueues, write.settles
    try:
        if len(enqueues) == 1 and not settles and not enqueues[0].topic:
            entry.duplicates.clear()
            queues.enqueue(entry, enqueues[0], stamp, 0)
            return (_DONE, (0,), pack_duplicates(entry.duplicates)) if entry.duplicates else None
        if len(settles) == 1 and not enqueues and settles[0].kind == _ACK and not write.each:
            queues.acknowledge(entry, settles[0])
            return None
    except Refused as refused:
        return _refusal(refused)
    return _execute_few(entry, write, stamp)


def _execute_few(entry: "Entry", write: pb.AtomicWrite, stamp: bytes) -> Refusal | pb.AtomicWrite | None:
    """An acknowledgement together with a set, say, or a few messages: as `execute_parts` does it, without its pauses,
    and without a savepoint: 15 instead of 21 µs. It comes back if it may take longer, or needs one."""
    mutations, settles, enqueues = write.mutations, write.settles, write.enqueues
    if write.checks or write.each or not 0 < len(mutations) + len(settles) + len(enqueues) <= _FEW:
        return write
    if (settles and settles[0].kind != _ACK) or (mutations and mutations[0].type == DELETE_RANGE):
        return write
    if not _refuses_at_once(entry, write):
        return write
    entry.duplicates.clear()
    mark = len(entry.changes)
    try:
        for verdict in settles:
            queues.settle(entry, verdict, stamp)
        for at, mutation in enumerate(mutations):
            mutate(entry, mutation, stamp, at)
        for at, message in enumerate(enqueues):
            queues.enqueue(entry, message, stamp, at)
    except Refused as refused:
        return _refusal(refused)
    history.settle(entry.changes, mark)
    return (_DONE, (0,), pack_duplicates(entry.duplicates)) if entry.duplicates else None


def execute_parts(entry: "Entry", write: pb.AtomicWrite, number: int) -> Generator[None, None, Refusal | None]:
    """Carry out any write. None = done; done as well is what comes with DONE as its outcome."""
    entry.deleted = 0
    parts = len(write.mutations) + len(write.settles) + len(write.enqueues)
    if max(parts, len(write.checks)) > MAX_NUMBER:
        return _INVALID, (), "the operation has too many parts"
    if write.checks:
        try:
            yield from _check(entry, write)
        except Refused as refused:
            return _refusal(refused)
    if not parts:
        return None
    if any(verdict.kind in queues.IDLE_KINDS for verdict in write.settles):
        yield from queues.write_out(entry)
    if write.each and entry.tallies is not None:
        return (yield from _settle_each(entry, write, entry.stamp(number)))
    entry.duplicates.clear()
    savepoint = None if _refuses_at_once(entry, write) else Savepoint(entry)
    mark = len(entry.changes)
    try:
        yield from _run(entry, write, entry.stamp(number))
    except Refused as refused:
        if savepoint is not None:
            savepoint.roll_back()
        return _refusal(refused)
    if savepoint is not None:
        savepoint.keep()
    history.settle(entry.changes, mark)
    if entry.duplicates:
        return _DONE, (entry.deleted,), pack_duplicates(entry.duplicates)
    return (_DONE, (entry.deleted,), "") if entry.deleted else None


def _refuses_at_once(entry: "Entry", write: pb.AtomicWrite) -> bool:
    """Whether only its first part can refuse, which it does before it writes anything: nothing is to be undone then."""
    mutations, enqueues = write.mutations, write.enqueues
    first = len(write.settles)
    if first > 1:
        return False
    for mutation in mutations:
        if first and not is_sure(mutation):
            return False
        first = 1
    for message in enqueues:
        if (first or message.topic) and not queues.is_sure(entry, message):
            return False
        first = 1
    return True


def _settle_each(entry: "Entry", write: pb.AtomicWrite, stamp: bytes) -> Generator[None, None, Refusal | None]:
    """A settle refuses before it writes anything, so no savepoints are needed. DONE comes with the number of deleted
    keys, which is none, and the indexes of those that were refused."""
    if write.checks or write.mutations or write.enqueues:
        return _INVALID, (), "a write of independent settles holds nothing else"
    begin = len(entry.changes)
    refused = []
    for at, verdict in enumerate(write.settles):
        mark = len(entry.changes)
        try:
            queues.settle(entry, verdict, stamp)
        except Refused:
            refused.append(at)
        if entry.spend_on(mark):
            yield
    history.settle(entry.changes, begin)
    return (_DONE, (0, *refused), "") if refused else None


def _refusal(refused: Refused) -> Refusal:
    return refused.outcome, refused.failed_checks, refused.message


def _check(entry: "Entry", write: pb.AtomicWrite) -> Generator[None, None, None]:
    failed: list[int] = []
    for at, check in enumerate(write.checks):
        row = keyspace.read_row(entry.rows, check.key)
        kind = check.kind
        if kind == _EQUALS:
            passed = (b"" if row is None else stamp_of(row)) == check.versionstamp
        elif kind == _EXISTS:
            passed = row is not None
        elif kind == _NOT_NEWER:
            passed = row is not None and stamp_of(row) <= check.versionstamp
        else:
            raise Refused(_INVALID, "unknown kind of check")
        if not passed:
            failed.append(at)
        if at & 0xFF == 0xFF and entry.spend(64):
            yield
    if failed:
        raise Refused(_FAILED, "", tuple(failed))


def _run(entry: "Entry", write: pb.AtomicWrite, stamp: bytes) -> Generator[None, None, None]:
    for verdict in write.settles:
        mark = len(entry.changes)
        queues.settle(entry, verdict, stamp)
        if entry.spend_on(mark):
            yield
    for at, mutation in enumerate(write.mutations):
        if mutation.type == DELETE_RANGE and entry.data_version > 1:
            yield from delete_range(entry, mutation)
        else:
            mutate(entry, mutation, stamp, at)
        if entry.spend():
            yield
    copies = queues.Copies()
    for at, message in enumerate(write.enqueues):
        if message.topic and entry.tallies is not None:
            yield from queues.publish(entry, message, stamp, at, copies)
        else:
            queues.enqueue(entry, message, stamp, at)
        if entry.spend():
            yield
