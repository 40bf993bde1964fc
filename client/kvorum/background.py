"""The thread behind a blocking client: an event loop of its own, to which calls are handed over."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

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
        """Begin a call. Errors: Closed after `stop`, in the child of a fork, and on the loop's own thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the client's own thread would wait for ever")
        if THIS.pid != self._pid:
            raise Closed("this client was opened before the process was forked; open another one")
        # Under the lock, so that nothing is handed over behind the order to stop: it would never be answered.
        with self._lock:
            if not self._accepting:
                raise Closed
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def call(self, call: Call[T]) -> T:
        """The result of a call. An interrupt cancels it."""
        return self.result(self.submit(call))

    def result(self, future: "Future[T]") -> T:
        """The result of a call that was begun. An interrupt cancels it."""
        try:
            return future.result()
        except CancelledError:
            raise Closed(outcome="unknown") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, *, wait: bool = True) -> None:
        """End the loop and its thread; calls under way end with Closed. May be called again."""
        with self._lock:
            if self._accepting:
                self._accepting = False
                self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join()
