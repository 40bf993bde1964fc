"""Work on a snapshot that is too long for the loop: done by the thread of the lists, a slice at a time."""

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument

from .lists import MAX_AGE, ListReader
from .read_jobs import ASIDE, ReadJob
from .store import Snapshot, Store

Result = TypeVar("Result")

Work = Callable[[Snapshot], Generator[None, None, Result]]
"""Reads a snapshot, yields between slices of a few milliseconds, and returns what it found; in the thread, so it
touches nothing else. What it raises of InvalidArgument is the result, too."""


class Problem(NamedTuple):
    """Why there is no result."""

    status: "pb.ReadStatus"
    message: str


class _Part(NamedTuple):
    more: bool
    result: Any = None
    problem: Problem | None = None


class AsideJob(ReadJob, Generic[Result]):
    """`done` is called on the loop, once, unless the job is cancelled before."""

    def __init__(
        self, reader: ListReader, work: Work[Result], done: Callable[[Result | None, Problem | None], None]
    ) -> None:
        super().__init__(reader, ASIDE)
        self._work = work
        self._done = done
        self._steps: Generator[None, None, Result] | None = None

    def step(self, store: Store) -> _Part:
        if self.snapshot is None:
            self.snapshot = store.snapshot()
        if self._steps is None:
            self._steps = self._work(self.snapshot)
        if self.given_up or self.cancelled:
            message = f"it takes more than {MAX_AGE:g} s to read that: ask for less"
            return _Part(False, None, Problem(pb.READ_STATUS_TOO_OLD, message))
        try:
            next(self._steps)
        except StopIteration as end:
            return _Part(False, end.value)
        except InvalidArgument as error:
            return _Part(False, None, Problem(pb.READ_STATUS_INVALID, str(error)))
        return _Part(True)

    def failed(self, problem: str, status: "pb.ReadStatus" = pb.READ_STATUS_NO_LEADER) -> _Part:
        return _Part(False, None, Problem(status, problem))

    def deliver(self, part: Any) -> None:
        if part.more:
            self.resume()
        else:
            self._done(part.result, part.problem)

    def release(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        super().release()


def aside(
    reader: ListReader, work: Work[Result], done: Callable[[Result | None, Problem | None], None]
) -> AsideJob[Result] | None:
    """Have something read; None, and `done` is never called, if too many wait."""
    job = AsideJob(reader, work, done)
    return job if reader.begin(job) else None
