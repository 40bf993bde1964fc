"""One atomic write: all checks first, then settles, mutations in order, enqueues. All or nothing."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb

from . import history, keyspace, queues
from .entry import Savepoint
from .errors import Refused
from .mutations import DELETE_RANGE, delete_range, mutate
from .records import MAX_NUMBER, Refusal, stamp_of

if TYPE_CHECKING:
    from .entry import Entry

_DONE: Final = int(pb.OUTCOME_DONE)
_INVALID: Final = int(pb.OUTCOME_INVALID)
_FAILED: Final = int(pb.OUTCOME_CHECK_FAILED)
_EQUALS: Final = int(pb.CHECK_KIND_EQUALS)
_EXISTS: Final = int(pb.CHECK_KIND_EXISTS)
_NOT_NEWER: Final = int(pb.CHECK_KIND_NOT_NEWER)

_parse = pb.AtomicWrite.FromString


def execute(entry: "Entry", op: bytes, number: int) -> Refusal | pb.AtomicWrite | None:
    """Carry out the commonest writes, a single mutation without anything else: None = done. Others come back parsed,
    for `execute_parts`."""
    try:
        write = _parse(op)
    except DecodeError:
        return _INVALID, (), "the operation cannot be decoded"
    mutations = write.mutations
    if len(mutations) != 1 or write.checks or write.enqueues or write.settles:
        return write
    mutation = mutations[0]
    if mutation.type == DELETE_RANGE:
        return write
    try:
        mutate(entry, mutation, entry.prefix + number.to_bytes(2, "big"), 0)
    except Refused as refused:
        return _refusal(refused)
    return None


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
    # a single part refuses before it writes anything
    savepoint = Savepoint(entry) if parts > 1 else None
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
    return (_DONE, (entry.deleted,), "") if entry.deleted else None


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
    for at, message in enumerate(write.enqueues):
        queues.enqueue(entry, message, stamp, at)
        if entry.spend():
            yield
