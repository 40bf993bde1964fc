"""The deletion of a range of any size, in commits that are each small.

Every commit deletes the first keys that are left, and says how many; the one that finds fewer than it might have
deleted is the last. Others may go on filling the range meanwhile: as a commit takes a thousand keys, they would have to
write faster than the cluster can.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.commit import CommitResult, commit_result
from kvorum.durations import Duration
from kvorum.errors import KvorumError
from kvorum.link import Link

DELETE_STEP: Final = limits.MAX_DELETED_RANGE_KEYS


class DeleteSteps:
    """How far it has come."""

    def __init__(self) -> None:
        self.deleted = 0
        self.done = False

    def took(self, result: CommitResult) -> None:
        """A commit was carried out."""
        self.deleted += result.deleted
        self.done = result.deleted < DELETE_STEP

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let errors say how many keys are gone already."""
        try:
            yield
        except KvorumError as error:
            if self.deleted:
                error.add_note(f"{self.deleted:,} keys of the range had been deleted before")
            raise


async def delete_in_steps(
    link: Link, mutation: pb.Mutation, timeout: Duration | None, told: Callable[[int], None] = lambda deleted: None
) -> int:
    """Carry the deletion out; after each commit `told` hears how many keys are gone by then. Returns their number."""
    op, within = pb.AtomicWrite(mutations=(mutation,)).SerializeToString(), link.within(timeout)
    steps = DeleteSteps()
    while not steps.done:
        with steps.counting():
            steps.took(commit_result(await link.backend.write(op, timeout=within)))
        told(steps.deleted)
    return steps.deleted
