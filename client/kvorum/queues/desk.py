"""What a client's queues share: the link, the settler, and whatever has to end in order when the client is closed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration
from kvorum.link import Link
from kvorum.queues.delivered import Delivered
from kvorum.queues.intake import Make
from kvorum.queues.listener import Handler, Listener, Terms
from kvorum.queues.receiver import Line, gather
from kvorum.queues.requests import Requester
from kvorum.queues.settling import Settler
from kvorum.queues.signals import Signals

M = TypeVar("M", bound=Delivered)

_LARGE: Final = 32
"""Messages of a batch whose line may linger."""
_SHORT: Final = 0.1
"""Seconds of a wait that may be over before anything can come."""
_LINGER: Final = 0.2
"""Seconds for which the line of a batch waits for the next call. What comes meanwhile may wait as long, although
another consumer could take it."""


class Desk:
    """One for each client. Belongs to the event loop of its client."""

    def __init__(self, link: Link) -> None:
        self.link: Final = link
        self.settler: Final = Settler(link.backend, link.timeout)
        self.requester: Final = Requester(link, self.settler)
        self.signals: Final = Signals()
        self._listeners: set[Listener[Any]] = set()
        self._lines: set[Line[Any]] = set()
        self._idle: dict[tuple[str, int, bool], tuple[Line[Any], asyncio.TimerHandle]] = {}
        """Lines of calls that are over, and when they are closed."""
        self._returning: set[asyncio.Task[None]] = set()
        """Batches of calls that were cut off, and what listeners have left, on their way back."""

    async def call(self, timeout: Duration | None = None, **call: Any) -> pb.QueueReply:
        """See `Backend.queue_call`: `call(purge=pb.Purge(…))`."""
        return await self.link.backend.queue_call(pb.QueueCall(**call), timeout=self.link.within(timeout))

    async def listen(
        self,
        make: Make[M],
        handler: Handler,
        terms: Terms,
        argument: Callable[[Sequence[M]], object],
        begun: Callable[[Listener[M]], None] | None = None,
    ) -> None:
        """Listen until stopped; `begun` is told of the listener. See `Listener`."""
        listener = Listener(self.link, self.settler, make, handler, terms, argument)
        self._listeners.add(listener)
        try:
            if begun is not None:
                begun(listener)
            await listener.run()
        finally:
            self._listeners.discard(listener)
            for task in listener.returning:
                self._go_back(task)

    def line(self, make: Make[M], *, queue: str, credits: int, concurrency: int, take: bool, expiring: bool) -> Line[M]:
        """A line of messages, which is closed with the client at the latest."""
        for kind in [kind for kind in self._idle if kind[0] == queue]:
            self._idle[kind][1].cancel()
            self._close_idle(kind)  # or what this one waits for might be there
        line = Line(
            self.link,
            self.settler,
            make,
            queue=queue,
            credits=credits,
            concurrency=concurrency,
            take=take,
            expiring=expiring,
            closed=self._lines.discard,
        )
        self._lines.add(line)
        return line

    async def receive_batch(
        self, make: Make[M], *, queue: str, most: int, wait: float, take: bool, expiring: bool
    ) -> list[M]:
        """Up to `most` messages within `wait` seconds. See `gather`.

        After a full batch the line stays open for a moment, for the next call of the same kind, since to register a
        consumer takes longer than all else; also where the wait may have been too short for that. Never where messages
        are taken at most once: none must come while nobody asks.
        """
        kind = (queue, most, expiring)
        idle = None if take else self._idle.get(kind)
        if idle is not None and idle[0].has_room():
            line, alarm = self._idle.pop(kind)
            alarm.cancel()
        else:
            idle = None
            line = self.line(make, queue=queue, credits=most, concurrency=most, take=take, expiring=expiring)
        messages = await gather(line, most, wait)
        more = len(messages) == most >= _LARGE  # there is a backlog, and somebody works it off
        too_soon = idle is None and not messages and wait < _SHORT  # the consumer was hardly registered
        usable = not (take or line.ending or line.intake.problem is not None or kind in self._idle)
        if not usable or not (more or too_soon):
            try:
                await line.leave()
            except asyncio.CancelledError:
                await asyncio.shield(self._return(line, messages))
                raise
        else:
            self._idle[kind] = line, asyncio.get_running_loop().call_later(_LINGER, self._close_idle, kind)
        return messages

    def _return(self, line: Line[M], messages: Sequence[M]) -> "asyncio.Task[None]":
        """Have go back what came but will reach nobody."""
        return self._go_back(asyncio.ensure_future(line.put_back(messages)))

    def _go_back(self, returning: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        return returning

    def _close_idle(self, kind: tuple[str, int, bool]) -> None:
        line, _ = self._idle.pop(kind)
        line.close()

    def owns(self, task: "asyncio.Task[Any] | None") -> bool:
        """Whether a task is a listener's, that is, whether a handler is calling."""
        return any(listener.owns(task) for listener in self._listeners)

    async def close(self) -> None:
        """End everything in order; the backend is still there."""
        listeners = list(self._listeners)
        for listener in listeners:
            listener.stop()
        for _, alarm in self._idle.values():
            alarm.cancel()
        self._idle.clear()
        closing = [*(line.close() for line in self._lines), *self._returning]
        for listener in listeners:
            await listener.finished()
        if closing:
            _, insisting = await asyncio.wait(closing, timeout=self.link.timeout)
            for task in insisting:  # nobody can be told; the session's end gives back what is left
                task.cancel()
            if insisting:
                await asyncio.wait(insisting)
        await self.requester.close()
        await self.settler.close()
