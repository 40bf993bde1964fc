"""The thread behind a blocking client: an event loop of its own, to which calls are handed over.

Handing over is most of what a blocking call costs beyond an asynchronous one, so it is kept short: a callback on the
loop begins the call, and its end is told by the release of a lock, without futures in between.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from kvorum.errors import Closed
from kvorum.process import THIS

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Handed(Generic[T]):
    """A call that a thread waits for."""

    __slots__ = ("_make", "_over", "_task", "error", "value")

    def __init__(self, make: Call[T]) -> None:
        self._make = make
        self._over = threading.Lock()
        self._over.acquire()
        self._task: asyncio.Task[None] | None = None
        self.value: T
        self.error: BaseException | None = None

    # ---- the thread that waits

    def wait(self) -> None:
        """Until it is over; then `error` is set, or `value`."""
        self._over.acquire()

    # ---- the loop's thread

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the context of the thread, in which the span that it is in is the current one, say."""
        self._task = loop.create_task(self._carry_out())

    def give_up(self) -> None:
        """Nobody waits any more. If it is to begin at all, it has begun before: callbacks keep their order."""
        if self._task is not None:
            self._task.cancel()

    async def _carry_out(self) -> None:
        try:
            self.value = await self._make()
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._over.release()


class Background:
    """A thread with an event loop. `call` may be used by all other threads until `stop`."""

    def __init__(self) -> None:
        self._pid = THIS.pid
        self._lock = threading.Lock()
        self._accepting = False
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        # A daemon, so that a program that forgot to close ends nevertheless.
        self._thread = threading.Thread(target=self._run, name="kvorum-sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._accepting = True
        self._ready.set()
        await self._stop.wait()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def submit(self, call: Call[T]) -> "Future[T]":
        """Begin a call whose `result` is asked for later. Errors: as of `call`, but for its own."""
        self._check()
        with self._lock:
            self._check_open()
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def result(self, future: "Future[T]") -> T:
        """The result of a call that was begun. An interrupt cancels it."""
        try:
            return future.result()
        except CancelledError:
            raise Closed(outcome="unknown") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, call: Call[T]) -> T:
        """The result of a call. An interrupt cancels it. Errors: its own; Closed after `stop`, and in the child of a
        fork; RuntimeError on the loop's own thread."""
        self._check()
        handed = _Handed(call)
        try:
            with self._lock:
                self._check_open()
                # With the thread's context, as callbacks have that of whoever asked for them.
                self._loop.call_soon_threadsafe(handed.begin, self._loop)
            handed.wait()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed, so the call has ended
                self._loop.call_soon_threadsafe(handed.give_up)
            raise
        # An error's frames have the call, which must not have the error, or only the garbage collector would free both.
        error, handed.error = handed.error, None
        if error is None:
            return handed.value
        try:
            if isinstance(error, asyncio.CancelledError):
                raise Closed(outcome="unknown") from None
            raise error
        finally:
            del error

    def _check(self) -> None:
        """Before the lock is touched, which somebody may have held when the process was forked."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the client's own thread would wait for ever")
        if THIS.pid != self._pid:
            raise Closed("this client was opened before the process was forked; open another one")

    def _check_open(self) -> None:
        """Under the lock, so that nothing is handed over behind the order to stop: it would never be answered."""
        if not self._accepting:
            raise Closed

    def stop(self, *, wait: bool = True) -> None:
        """End the loop and its thread; calls under way end with Closed. May be called again."""
        with self._lock:
            if self._accepting:
                self._accepting = False
                self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join()
