"""What came of a commit."""

from typing import NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.errors import MessageGone, OutOfRange, QueueFull, StaleLease, TypeMismatch


class CommitResult(NamedTuple):
    """True in a condition if the commit was carried out."""

    ok: bool
    versionstamp: str | None
    """Of the commit, 20 hex digits; None if a check failed."""
    failed_checks: tuple[int, ...] = ()
    """Indexes of all failing checks, in the order in which they were added."""
    deleted: int = 0
    """Keys that its `delete_range` and `delete_prefix` removed."""

    def __bool__(self) -> bool:
        return self.ok


def commit_result(outcome: WriteOutcome) -> CommitResult:
    """What an executed write means. Errors, with nothing changed: TypeMismatch, OutOfRange, StaleLease,
    QueueFull, MessageGone.
    """
    result = outcome.result
    what = result.outcome
    if what == pb.OUTCOME_DONE:
        return CommitResult(True, outcome.versionstamp.hex(), deleted=result.deleted)
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
    raise AssertionError(f"a backend must raise for outcome {what}")
