"""One request and its answer, for both versions of HTTP.

Nothing here is without a limit: a body is counted against what its path allows and against what the node holds in
all, a reader that stands still is noticed, and of an endless answer there is one piece at a time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from .app import App
from .budget import Share
from .message import Refusal, Request, Response

logger = logging.getLogger("kvorum.http")

BODY_TIMEOUT: Final = 30.0
"""Seconds that a request's body may take."""
STALL: Final = 30.0
RATE: Final = 262_144
"""An answer must be read within so many seconds, and one more for so many of its bytes: reading a byte now and then
does not count as reading."""


class Exchange:
    """`wake` is called when there is something to send. `head` is the request without its body."""

    def __init__(self, app: App, head: Request, loop: asyncio.AbstractEventLoop, wake: "Callable[[Exchange], None]"):
        self._app = app
        self._head = head
        self._loop = loop
        self._wake = wake
        self._counted = True
        app.under_way += 1
        self._body = bytearray()
        self._share: Share | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._limit = self._size = 0
        self._patience = STALL
        self._moved_at = loop.time()
        self.received = False
        """No more of the body is wanted: it is there, or the request was refused."""
        self.whole = False
        """The client has sent all of the request."""
        self.response: Response | None = None
        self.head_sent = False
        self.chunks: deque[memoryview] = deque()
        """What is to be sent next."""
        self.ended = False
        """No more chunks will come."""
        self.end_sent = False
        self.closed = False

    @property
    def bodiless(self) -> bool:
        """Only the head of the answer is sent."""
        return self._head.method == "HEAD"

    # ---- the request

    def begin(self, length: int | None) -> None:
        """The head is there. Refuses what can be refused without the body, whose length may be known."""
        try:
            self._limit = self._app.admit(self._head)
            self._share = self._app.share()
            if length is not None and length > self._limit:
                raise self._too_large()
        except Refusal as refusal:
            self._refuse(refusal)

    def receive(self, data: bytes) -> None:
        """More of the body."""
        self._size += len(data)
        if self.received:
            return
        try:
            if self._size > self._limit:
                raise self._too_large()
            assert self._share is not None
            self._share.take(len(data))
        except Refusal as refusal:
            self._refuse(refusal)
            return
        self._body += data

    def complete(self) -> None:
        """The request is whole: carry it out."""
        self.whole = True
        if self.received:
            return
        self.received = True
        request = replace(self._head, body=bytes(self._body)) if self._body else self._head
        self._body = bytearray()
        self._task = self._loop.create_task(self._run(request))

    @property
    def discarded(self) -> int:
        """Bytes that came after the request had been refused."""
        return self._size - self._limit if self.received and self.response is not None else 0

    def _too_large(self) -> Refusal:
        return Refusal(413, f"The body of a request to this path has at most {self._limit} bytes.")

    def _refuse(self, refusal: Refusal) -> None:
        response = self._app.refused(refusal, self._head)
        self.received = True
        self._body = bytearray()
        self._release()
        self._answer(response)
        self.ended = True
        self._wake(self)

    # ---- the answer

    async def _run(self, request: Request) -> None:
        response = await self._app.handle(request)
        self._release()
        if self.closed:
            response.done()
            return
        self._answer(response)
        if response.stream is not None:
            self._leave()  # there is a bound for those of their own
        if response.stream is None:
            self.ended = True
            self._wake(self)
            return
        self._wake(self)
        try:
            async with aclosing(response.stream) as stream:
                async for chunk in stream:
                    self._drained = self._loop.create_future()
                    self.chunks.append(memoryview(chunk))
                    self._expect(len(chunk))
                    self._wake(self)
                    await self._drained
        except Exception:  # the client comes back by itself
            logger.exception("a stream ended by a fault of this node: %s", request.path)
        self.ended = True
        self._wake(self)

    def _answer(self, response: Response) -> None:
        self.response = response
        self._expect(response.size)
        if not self.bodiless:
            self.chunks.extend(memoryview(chunk) for chunk in response.chunks if chunk)

    def _expect(self, size: int) -> None:
        """So many bytes are to be read now."""
        self._moved_at = self._loop.time()
        self._patience = STALL + size / RATE

    def take(self, most: int) -> memoryview:
        """At most so many of the bytes to be sent."""
        chunk = self.chunks.popleft()
        if len(chunk) > most:
            self.chunks.appendleft(chunk[most:])
            return chunk[:most]
        if not self.chunks and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        return chunk

    @property
    def has_something(self) -> bool:
        """A head, a chunk or the end can be sent."""
        if self.response is None or self.end_sent:
            return False
        return not self.head_sent or bool(self.chunks) or self.ended

    # ---- the end

    def end_stream(self) -> None:
        """Let an endless answer end here, properly."""
        if self.response is not None and self.response.stream is not None and not self.ended:
            if self._task is not None:
                self._task.cancel()
            self.ended = True
            self._wake(self)

    def overdue(self, now: float) -> bool:
        """The client is too slow: its body, or its reading."""
        if not self.whole:
            return now - self._moved_at > BODY_TIMEOUT
        return (bool(self.chunks) or (self.ended and not self.closed)) and now - self._moved_at > self._patience

    def close(self) -> None:
        """It is over: answered, or nobody waits for the answer."""
        if self.closed:
            return
        self.closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = None  # its error holds this exchange, and the request with it
        self._release()
        self._leave()
        self._body = bytearray()
        self.chunks.clear()
        if self.response is not None:
            self.response.done()

    def _leave(self) -> None:
        """It does not count as under way any more."""
        if self._counted:
            self._counted = False
            self._app.under_way -= 1

    def _release(self) -> None:
        if self._share is not None:
            self._share.release()
