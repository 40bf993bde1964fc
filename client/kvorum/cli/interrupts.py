"""Ctrl-C and SIGTERM while a command works: what it holds is let go in order, and the exit status says what ended it.

Before a command's own work begins it holds nothing, and both end the process as they end every other: see
`kvorum_command`.
"""

import asyncio
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

INTERRUPTED: Final = 130
TERMINATED: Final = 143
ENDED: Final = (INTERRUPTED, TERMINATED)
"""Exit statuses after which nothing is waited for."""

P = ParamSpec("P")
T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def status_of(interrupt: KeyboardInterrupt) -> int:
    """The exit status, as shells count it."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Until the block ends, Ctrl-C raises KeyboardInterrupt in it, and SIGTERM raises Terminated. What whoever started
    us has set aside (`nohup`, the background of a shell) stays so. In a thread that signals do not reach it does
    nothing."""
    former = {}
    try:
        if not _reached():
            yield
            return
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, _terminate)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, handler)
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _reached() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Unwaited(ThreadPoolExecutor):
    """A thread may wait for a reader that takes nothing, or for a disk that hangs; the end of a command does not wait
    for such a thread. One that went well has none left."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def completed(action: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, run on an event loop of its own. Ctrl-C and SIGTERM cancel it; a second one does not
    wait for what that takes. Raises KeyboardInterrupt, Terminated, and what the action raises."""
    terminated = False
    heeded = _reached() and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    before = signal.getsignal(signal.SIGTERM)

    async def awaited() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal terminated
            terminated = True
            loop.remove_signal_handler(signal.SIGTERM)
            task.cancel()

        loop.set_default_executor(_Unwaited())
        if heeded:
            loop.add_signal_handler(signal.SIGTERM, end)
        return await action

    coroutine = awaited()
    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise
    finally:
        for one in (coroutine, action):
            one.close()  # one that was never begun would complain
        if heeded:
            signal.signal(signal.SIGTERM, before)


def ends_by_signals(command: Callable[P, None]) -> Callable[P, None]:
    """Make both signals the end of a click command that runs without an event loop."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            with interruptible():
                command(*arguments, **options)
        except KeyboardInterrupt as interrupt:
            sys.exit(status_of(interrupt))

    return run
