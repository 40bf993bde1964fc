"""Changes of queues that are too much for one entry: the same command, again and again, until nothing is left.

Each command does a chunk, and stands in the proposer's common line, so that writes have their turn between two chunks.
One such job goes on for each queue at a time, the others wait behind it. A job ends when its command finds nothing
more, or when it has done what there was to do when it began: whoever goes on sending to a queue that is purged must
not keep the job going for ever.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import Overloaded, RaftError

from .proposer import Proposer, proposal
from .store import Unfinished
from .timers import Timers

RETRY_DELAY: Final = 0.25
"""Seconds before a chunk is proposed again that the proposer had no room for."""
MAX_RETRIES: Final = 20
"""Times that this happens in a row before the caller is told."""

MAX_TIME: Final = 600.0
"""Seconds that a job may go on."""

Chunk = Callable[[int, bool], pb.Command | None]
"""The next command of a job that has touched so many messages in all, and some or none by the command before (True for
the first one); None: that is all."""
Finished = Callable[[int, Any, RaftError | None], None]
"""Told how many messages were touched, and what ended it: the output of the last command, or an error."""


class Job:
    """Chunks of one change. After `cancel` it proposes nothing more, and tells nothing."""

    def __init__(self, queue: str, chunk: Chunk, finished: Finished) -> None:
        self.queue = queue
        self.chunk = chunk
        self.finished = finished
        self.touched = 0
        self.progress = True
        self.after = b""
        """Where the next command goes on; empty = at the beginning."""
        self.found = 0
        """Messages touched since a command has begun there."""
        self.retries = 0
        self.deadline = 0.0
        self.cancelled = False

    def cancel(self) -> None:
        """Its caller is gone."""
        self.cancelled = True


class QueueJobs:
    """Runs them."""

    def __init__(self, proposer: Proposer, timers: Timers) -> None:
        self._proposer = proposer
        self._timers = timers
        self._lines: dict[str, deque[Job]] = {}
        self._chunks = 0

    def run(self, job: Job) -> None:
        """Begin, or wait behind another one of the same queue."""
        line = self._lines.get(job.queue)
        if line is not None:
            # without those whose callers have gone meanwhile; the first one is under way
            first, *rest = line
            line.clear()
            line.extend((first, *(other for other in rest if not other.cancelled), job))
            return
        self._lines[job.queue] = deque((job,))
        self._begin(job)

    def statistics(self) -> dict[str, float]:
        return {"queue_jobs": sum(len(line) for line in self._lines.values()), "queue_chunks": self._chunks}

    def _begin(self, job: Job) -> None:
        job.deadline = self._timers.time() + MAX_TIME
        self._go_on(job)

    def _go_on(self, job: Job) -> None:
        command = None if job.cancelled else job.chunk(job.touched, job.progress)
        if command is None:
            self._end(job, None, None)
            return
        if self._timers.time() > job.deadline:
            self._end(job, None, Overloaded(f"not at its end after {MAX_TIME:g} s, so far {job.touched:,}: go on"))
            return
        self._chunks += 1
        if job.after:
            command = _from(command, job.after)
        self._proposer.submit(proposal(command, partial(self._done, job), weight=limits.QUEUE_CHUNK))

    def _done(self, job: Job, output: Any, error: RaftError | None) -> None:
        if isinstance(error, Overloaded) and job.retries < MAX_RETRIES:
            job.retries += 1
            self._timers.call_later(RETRY_DELAY, self._go_on, job)
            return
        if error is not None or not isinstance(output, int | Unfinished):
            self._end(job, output, error)
            return
        job.retries = 0
        touched, job.after = output if isinstance(output, Unfinished) else (output, b"")
        job.touched += touched
        job.found += touched
        # What lies before a walk's place may have changed meanwhile: all is done when a whole one finds nothing.
        job.progress = isinstance(output, Unfinished) or job.found > 0
        if not job.after:
            job.found = 0
        # Not at once: what waits in the loop has its turn.
        self._timers.call_soon(self._go_on, job)

    def _end(self, job: Job, output: Any, error: RaftError | None) -> None:
        line = self._lines[job.queue]
        line.popleft()
        if line:
            self._timers.call_soon(self._begin, line[0])
        else:
            del self._lines[job.queue]
        if not job.cancelled:
            job.finished(job.touched, output, error)


def _from(command: pb.Command, after: bytes) -> pb.Command:
    """The same command, from a place on."""
    made = pb.Command()
    made.CopyFrom(command)
    getattr(made, made.WhichOneof("command") or "").after = after
    return made
