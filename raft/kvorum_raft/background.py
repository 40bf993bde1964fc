"""Long work off the event loop, one piece at a time and in order.

Checkpoints and snapshots read, hash and write gigabytes. They do it in pieces: each is one *job*, and what follows from
it is decided in the loop by `done`. So the core's state is only ever touched in the loop, and a simulation can let a
node crash between any two pieces.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from kvorum_raft.errors import Overloaded

T = TypeVar("T")
_MAX_JOBS: Final = 64
_log = logging.getLogger("kvorum.raft")


class Background(Protocol):
    """Runs jobs off the event loop."""

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Run `job` after all that were submitted before, then call `done(result, error)` in the loop. Raises
        Overloaded if too many wait."""
        ...

    def stop(self) -> None:
        """Return when no job runs any more. What has not begun is dropped, and no `done` is called from now on: who
        submitted a job lets go of what it holds."""
        ...


class Stopping(Exception):  # it is no error: the node ends
    """A long job noticed that it should end."""


def check_stopping(stopping: Callable[[], bool]) -> None:
    """Raises Stopping."""
    if stopping():
        raise Stopping("the node stops")


class Caught:
    """Keeps the exception of a block, any `Exception`: it belongs to whoever asked for the work, not to the one who
    does it."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> "Caught":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
            return True
        return False


class ThreadBackground:
    """One daemon thread, begun with the first job. `stopping` is for long jobs to look at now and then."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str = "kvorum-checkpoint", *, max_jobs: int = _MAX_JOBS
    ) -> None:
        self._loop = loop
        self._queue: Queue[Callable[[], None] | None] = Queue(max_jobs)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stopping(self) -> bool:
        """True once `stop` was called. From any thread."""
        return self._stopping.is_set()

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """See `Background`. After `stop` nothing happens."""
        if self._stopping.is_set():
            return

        def work() -> None:
            result: T | None = None
            with Caught() as caught:
                result = job()
            self._tell(done, result, caught.error)

        try:
            self._queue.put_nowait(work)
        except Full:
            raise Overloaded(f"{self._queue.maxsize} jobs wait for the thread {self._thread.name}") from None
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """See `Background`. May be called more than once."""
        self._stopping.set()
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            self._queue.put_nowait(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._stopping.is_set():
                return
            work()

    def _tell(self, done: Callable[[Any, Exception | None], None], result: Any, error: Exception | None) -> None:
        def deliver() -> None:
            if not self._stopping.is_set():
                done(result, error)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            _log.debug("the event loop ended before the thread %s", self._thread.name)
