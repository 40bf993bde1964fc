"""What came of a commit."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.errors import MessageGone, OutOfRange, QueueFull, StaleLease, TypeMismatch
from kvorum.rights import denied


class Sent(NamedTuple):
    """A message that was put on a queue, or was there already."""

    id: str
    """24 hex digits, by which it can be found, cancelled and rescheduled."""
    duplicate: bool
    """Nothing was sent, since the queue remembers its `dedup_id`; `id` is that of the earlier message."""
    versionstamp: str
    """Of the commit, 20 hex digits."""


class CommitResult(NamedTuple):
    """True in a condition if the commit was carried out."""

    ok: bool
    versionstamp: str | None
    """Of the commit, 20 hex digits; None if a check failed."""
    failed_checks: tuple[int, ...] = ()
    """Indexes of all failing checks, in the order in which they were added."""
    deleted: int = 0
    """Keys that its `delete_range` and `delete_prefix` removed."""
    messages: tuple[Sent, ...] = ()
    """The messages that it put on queues, in the order in which they were added; not those to topics."""

    def __bool__(self) -> bool:
        return self.ok


_DONE: Final = pb.OUTCOME_DONE
_new_result: Final = partial(tuple.__new__, CommitResult)
"""Without the named tuple's own call, which takes 0.4 µs."""


def commit_result(outcome: WriteOutcome, enqueues: Sequence[pb.Enqueue] = ()) -> CommitResult:
    """What an executed write means; `enqueues` are those that it had.

    Errors, with nothing changed: TypeMismatch, OutOfRange, StaleLease, QueueFull, MessageGone, PermissionDenied.
    """
    result, versionstamp = outcome
    what = result.outcome
    if what == _DONE:
        messages = _sent(outcome, enqueues) if enqueues else ()
        return _new_result((True, versionstamp.hex(), (), result.deleted, messages))
    if what == pb.OUTCOME_CHECK_FAILED:
        return CommitResult(False, None, tuple(result.failed_checks))
    if what == pb.OUTCOME_TYPE_ERROR:
        raise TypeMismatch(result.message)
    if what == pb.OUTCOME_RANGE_ERROR:
        raise OutOfRange(result.message)
    if what == pb.OUTCOME_STALE_LEASE:
        raise StaleLease(result.message)
    if what == pb.OUTCOME_QUEUE_FULL:
        raise QueueFull(result.message)
    if what == pb.OUTCOME_MESSAGE_GONE:
        raise MessageGone(result.message)
    if what == pb.OUTCOME_DENIED:
        raise denied(result.message)
    raise AssertionError(f"a backend must raise for outcome {what}")


def sent_alone(outcome: WriteOutcome) -> Sent:
    """What an executed write means that had one message, without a `dedup_id`, and nothing else.

    Errors, with nothing changed: QueueFull.
    """
    if outcome.result.outcome != pb.OUTCOME_DONE:
        commit_result(outcome)
        raise AssertionError("a message has no checks")
    stamp = outcome.versionstamp.hex()
    return Sent(f"{stamp}0000", False, stamp)


def _sent(outcome: WriteOutcome, enqueues: Sequence[pb.Enqueue]) -> tuple[Sent, ...]:
    stamp = outcome.versionstamp.hex()
    duplicates = {duplicate.enqueue: duplicate.message_id.hex() for duplicate in outcome.result.duplicates}
    return tuple(
        Sent(duplicates.get(number) or f"{stamp}{number:04x}", number in duplicates, stamp)
        for number, enqueue in enumerate(enqueues)
        if not enqueue.topic
    )
