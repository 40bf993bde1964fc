"""Virtual time, and one event loop for each simulated process.

There is one heap of happenings for the whole world, ordered by true time; nothing ever waits. Each process has an
asyncio loop of its own, although all run in one thread, because that is what makes their troubles cheap to simulate:

* a *killed* process is a loop whose callbacks never run again, at whatever point its coroutines stood;
* a *paused* one keeps its due timers and its input aside and gets them all at once when it goes on;
* its monotonic clock may run a little fast or slow, and started at some moment of its own.

`asyncio.get_running_loop()` is the loop whose callback runs, so shipped code cannot tell the difference. (It is set
when another process has its turn, not around each callback: asyncio asks the kernel for its process id each time.)
Callbacks have no context of their own, tasks do.
"""

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
# For mypy any class: the interface has dozens of methods that nothing here may call.
_Loop: Any = asyncio.AbstractEventLoop
_SPIN: Final = 200_000
"""Callbacks at one moment of time beyond which something waits for time to pass without letting it."""


class Stuck(Exception):
    """The simulated program spins."""


class Clock:
    """True time in seconds since the world began, and everything that is to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.happenings = 0
        self.inside: ProcessLoop | None = None
        """Whose turn it was last."""
        self.running = False

    def enter(self, loop: "ProcessLoop | None") -> None:
        """What follows is done by this process; None: by nobody's, as by a thread without a loop."""
        if loop is not self.inside:
            self.inside = loop
            events._set_running_loop(loop)

    def at(self, when: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Call at this time, or at once if it has passed; cannot be taken back."""
        heapq.heappush(self._heap, (when if when > self.now else self.now, next(self._numbers), call, arguments))

    def after(self, delay: float, call: Callable[..., Any], *arguments: Any) -> None:
        self.at(self.now + delay, call, *arguments)

    def run_until(self, end: float) -> None:
        """Let everything happen up to this time."""
        heap, pop = self._heap, heapq.heappop
        last, spins = -1.0, 0
        self.running = True
        try:
            while heap and heap[0][0] <= end:
                when, _, call, arguments = pop(heap)
                if when > last:
                    last, spins = when, 0
                spins += 1
                if spins > _SPIN:
                    raise Stuck(f"{spins} happenings at {when:.6f} s, the last one is {call}")
                self.now = when
                self.happenings += 1
                call(*arguments)
        finally:
            self.running = False
            self.enter(None)
        self.now = max(self.now, end)

    def drop_everything(self) -> None:
        """The end of the world."""
        self._heap.clear()


class Handle:
    """As `asyncio.Handle`: a callback that may be taken back."""

    __slots__ = ("_arguments", "_callback", "_cancelled", "_context", "_when")

    def __init__(
        self, callback: Callable[..., Any], arguments: tuple[Any, ...], context: Any = None, when: float = 0.0
    ) -> None:
        self._callback = callback
        self._arguments = arguments
        self._context = context
        self._when = when
        self._cancelled = False

    def step(self) -> "Step":
        return self._callback, self._arguments, self._context

    def when(self) -> float:
        """Of a timer."""
        return self._when

    def cancel(self) -> None:
        """It stays where it is, and does nothing."""
        self._cancelled = True
        self._callback, self._arguments = _nothing, ()

    def cancelled(self) -> bool:
        return self._cancelled


Step = tuple[Callable[..., Any], tuple[Any, ...], Any]
"""A callback of which nobody keeps a handle: what it is called with, and in which context."""


def _nothing() -> None:
    pass


_KEPT_BY_NOBODY: Final = Handle(_nothing, ())


class ProcessLoop(_Loop):  # type: ignore[misc]  # see there
    """The event loop of one simulated process. `began` is what its monotonic clock shows at true time 0, `rate` its
    seconds in a true one."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        network: Any = None,
        *,
        rate: float = 1.0,
        began: float = 1000.0,
        on_error: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self.clock = clock
        self.name = name
        self.network = network
        self.dead = False
        self.paused = False
        self._rate = rate
        self._began = began
        self._on_error = on_error
        self._ready: deque[Handle | Step] = deque()
        self._overdue: list[Handle] = []
        self._running = False

    # ---- trouble

    def kill(self) -> None:
        """Nothing of this process ever runs again."""
        self.dead = True
        self._ready.clear()
        self._overdue.clear()

    def bury(self) -> None:
        """Close what a dead process left suspended: the collector would complain of it."""
        for task in asyncio.all_tasks(self):
            for _ in range(5):
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001  it is dead, whatever it says
                    continue
                break

    def pause(self) -> None:
        self.paused = True

    def go_on(self, *, timers_first: bool) -> None:
        """Event loops differ in whether they look at timers or at sockets first."""
        if self.dead or not self.paused:
            return
        self.paused = False
        due: list[Handle | Step] = [handle for handle in self._overdue if not handle.cancelled()]
        self._overdue.clear()
        self._ready = deque([*due, *self._ready] if timers_first else [*self._ready, *due])
        self._drain()

    # ---- running

    def run(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Input from outside: now, or when the process goes on."""
        if self.dead:
            return
        self._ready.append((callback, arguments, None))
        if not self._running and not self.paused:
            self._drain()

    def _drain(self) -> None:
        if self._running or self.paused or self.dead:
            return
        ready = self._ready
        self._running = True
        spins = 0
        outer = self.clock.inside
        self.clock.enter(self)
        try:
            while ready and not self.paused and not self.dead:
                step = ready.popleft()
                callback, arguments, context = step if type(step) is tuple else step.step()
                try:
                    if context is None:
                        callback(*arguments)
                    else:
                        context.run(callback, *arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  as asyncio does it
                    message = f"Exception in callback {callback!r}"
                    self.call_exception_handler({"message": message, "exception": error})
                spins += 1
                if spins > _SPIN:
                    raise Stuck(f"{self.name} spins at {self.clock.now:.6f} s: {callback!r}")
        finally:
            self._running = False
            if outer is not None and outer._running:
                self.clock.enter(outer)
            elif not self.clock.running:
                self.clock.enter(None)

    def _timer_due(self, handle: Handle) -> None:
        if self.dead or handle.cancelled():
            return
        if self.paused:
            self._overdue.append(handle)
        else:
            self._ready.append(handle)
            self._drain()

    # ---- what asyncio asks

    def time(self) -> float:
        return self._began + self.clock.now * self._rate

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        if context is not None and self._running and not self.dead:  # asyncio's own ones, which keep no handle
            self._ready.append((callback, args, context))
            return _KEPT_BY_NOBODY
        handle = Handle(callback, args, context)
        if not self.dead:
            self._ready.append(handle)
            if not self._running and not self.paused:
                # from outside of any callback of this loop: e.g. a future that the world completes
                self.clock.at(self.clock.now, self._drain)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        handle = Handle(callback, args, context, when)
        if not self.dead:
            # A hair late, so that rounding never lets a timer ring before its time.
            self.clock.at((when - self._began) / self._rate + 1e-7, self._timer_due, handle)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[T]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # The collector finds the tasks of killed processes; they have no message for anybody.
        if not self.dead and self._on_error is not None:
            self._on_error(self.name, context)

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.network.serve(self, factory, f"{host}:{port}")

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.dial(self, factory, f"{host}:{port}")
