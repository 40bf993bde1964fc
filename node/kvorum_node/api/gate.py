"""Calls that have said nothing yet. gRPC waits for a call's first message for as long as the connection lives, and
counts it as one of those that may be under way: a few connections with silent calls would keep everybody out.

So a silent call has some seconds, and there may be some of them, beyond which the oldest goes: whoever has something to
say says it at once. Calls that have nothing to say for long by their nature (watches of health, reflection) and streams
of callers that are nobody are bounded in the same way, but have all the time they want.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

import grpc
import grpc.aio

from kvorum_raft.quiet_log import QuietLog

from ..unread import Holding, Unread
from .endings import NotTaken
from .leaving import Leaving
from .unfinished import Unfinished

MAX_SILENT: Final = 1_000
"""Calls without a message."""
MAX_GUESTS: Final = 500
"""Calls of those who need not say who they are, or have not."""
PATIENCE: Final = 10.0
"""Seconds for the first message."""
AT_ONCE: Final = 10
"""Calls that are ended in one turn of the loop: each costs a good part of a millisecond."""
PAUSE: Final = 0.02
"""Seconds between two such turns."""
STALL: Final = 30.0
"""Seconds that a client may take for the answer of a call with one."""
WHY: Final = "the call has said nothing for too long, or too many others wait as it does"
_GUESTS: Final = ("/grpc.health.", "/grpc.reflection.")

Task = asyncio.Task[Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio is untyped
    """The first of a server's interceptors. To gRPC all calls are streams then, whose messages are waited for here: a
    call whose only message gRPC waits for cannot be ended. Nor can one while the first of its answers waits for its
    client, unless its metadata went before: then gRPC has both in one piece, and refuses to say why the call ends."""

    def __init__(self, unread: Unread, unfinished: int, quiet: QuietLog) -> None:
        """`unfinished` is the limit of what has come only in part, in bytes."""
        self._unread = unread
        self.leaving = Leaving(self._is_full)
        self.unfinished = Unfinished(unfinished, self._end, self.leaving.shut, quiet)
        self._silent: dict[Task, float] = {}
        """Since when, the oldest first."""
        self._guests: dict[Task, None] = {}
        self._ending: dict[Task, str] = {}
        """Why."""
        self._timer: asyncio.TimerHandle | None = None
        self.ended = 0
        """Calls that were ended here."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None
        guest = details.method.startswith(_GUESTS)
        run: Any
        serializer = handler.response_serializer
        if not handler.request_streaming:
            run = partial(self._single, handler, guest)
            if not handler.response_streaming:
                serializer = None  # its size is asked for
        elif guest:
            run = partial(self._reflection, handler)
        else:
            run = partial(self._stream, handler)
        return grpc.stream_stream_rpc_method_handler(
            run, request_deserializer=handler.request_deserializer, response_serializer=serializer
        )

    async def _single(self, handler: Any, guest: bool, _: Any, context: Any) -> None:
        async with self._watched(context, guest=guest) as task:
            request = await context.read()
            if request is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            size = len(request) if isinstance(request, bytes) else request.ByteSize()
            self.unfinished.calls[task].says_all(size)
            if not guest:
                self.heard(task, guest=False)
            if handler.response_streaming:
                await _begin(context)
                await handler.unary_stream(request, context)
            else:
                answer = await handler.unary_unary(request, context)
                await self._answer(task, context, handler.response_serializer(answer))

    async def _answer(self, task: Task, context: Any, data: bytes) -> None:
        """A client that does not take its answer gets no word: it leaves, with its connection."""

        def end(_: str) -> None:
            self.leaving.add(task, context.peer())

        holding = Holding(self._unread, end)
        self._unread.open(holding)
        task.add_done_callback(lambda _: holding.close())
        loop = asyncio.get_running_loop()
        holding.sends(len(data), 0, loop.time())
        stall = loop.call_later(STALL, end, "")
        try:
            await context.write(data)
            holding.sent(0)
        finally:
            stall.cancel()
            holding.over()

    async def _stream(self, handler: Any, requests: Any, context: Any) -> None:
        async with self._watched(context, guest=False):
            await _begin(context)
            await handler.stream_stream(requests, context)

    async def _reflection(self, handler: Any, requests: Any, context: Any) -> AsyncGenerator[Any, None]:
        async with self._watched(context, guest=True):
            await _begin(context)
            async for answer in handler.stream_stream(requests, context):
                yield answer

    @asynccontextmanager
    async def _watched(self, context: Any, *, guest: bool) -> AsyncGenerator[Task, None]:
        task = asyncio.current_task()
        assert task is not None
        self._enter(task, guest=guest)
        self.unfinished.begin(task, context.peer())
        try:
            try:
                yield task
            except asyncio.CancelledError:
                if task not in self._ending:
                    raise  # the client has gone
                task.uncancel()
                self.leaving.add(task, context.peer())
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._ending[task])
            except NotTaken as error:
                self.leaving.add(task, context.peer())
                await context.abort(error.code, str(error))
        except grpc.aio.InternalError:
            # What gRPC had for the client has gone with its connection, which is nobody's fault, and is not logged.
            raise asyncio.CancelledError from None
        finally:
            self._left(task)
            self.leaving.add(task, context.peer())

    def heard(self, task: Task, guest: bool) -> None:
        """The call of a task has said something; `guest`: but not who it is."""
        self._silent.pop(task, None)
        if guest:
            self._admit_guest(task)

    def statistics(self) -> dict[str, float]:
        """Calls, and connections."""
        return {
            "calls_silent": len(self._silent),
            "calls_guests": len(self._guests),
            "calls_ended_silent": self.ended,
            **self.leaving.statistics(),
            **self.unfinished.statistics(),
        }

    def _is_full(self) -> bool:
        return self._unread.held > self._unread.high or self.unfinished.held > self.unfinished.high

    def _enter(self, task: Task, *, guest: bool) -> None:
        if guest:
            self._admit_guest(task)
            return
        loop = asyncio.get_running_loop()
        self._silent[task] = loop.time()
        if len(self._silent) > MAX_SILENT:
            self._end(next(iter(self._silent)), WHY)
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._look)

    def _admit_guest(self, task: Task) -> None:
        self._guests[task] = None
        if len(self._guests) > MAX_GUESTS:
            self._end(next(iter(self._guests)), WHY)

    def _left(self, task: Task) -> None:
        self._silent.pop(task, None)
        self._guests.pop(task, None)
        self._ending.pop(task, None)

    def _end(self, task: Task, why: str) -> None:
        self._left(task)
        self._ending[task] = why
        self.ended += why is WHY
        task.cancel()

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = [task for task, since in islice(self._silent.items(), AT_ONCE) if since + PATIENCE <= now]
        for task in due:
            self._end(task, WHY)
        if len(due) == AT_ONCE:
            self._timer = loop.call_later(PAUSE, self._look)
        elif self._silent:
            self._timer = loop.call_at(next(iter(self._silent.values())) + PATIENCE, self._look)


async def _begin(context: Any) -> None:
    """Send the metadata of an answer. gRPC does not let a call end while that is under way, and forgets what it was
    told to end with: so it is waited for, whoever is in a hurry."""
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    sending.add_done_callback(_retrieve)
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait([sending])
        raise


def _retrieve(sending: "asyncio.Future[None]") -> None:
    """It fails where the connection has gone: whoever waits for it still is told."""
    if not sending.cancelled():
        sending.exception()
