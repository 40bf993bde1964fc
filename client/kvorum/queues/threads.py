"""Handlers of a blocking client: each call in a thread."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from kvorum.queues.listener import check_handler


class HandlerThreads:
    """Runs a handler in threads; awaitable calls, as the asynchronous listener makes them."""

    def __init__(self, handler: Callable[[Any], object], concurrency: int, handling: threading.local) -> None:
        self._handler = check_handler(handler)
        self._handling = handling
        # A wrong concurrency is the listener's to refuse.
        workers = concurrency if isinstance(concurrency, int) and concurrency > 0 else 1
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kvorum-handler")

    async def __call__(self, message: Any) -> object:
        # With the context of this call, in which the span of the handler is the current one, say.
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._pool, run, self._handle, message)

    def _handle(self, message: Any) -> object:
        self._handling.active = True
        try:
            return self._handler(message)
        except StopIteration as error:
            raise RuntimeError("the handler raised StopIteration") from error  # which no future can carry
        finally:
            self._handling.active = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
