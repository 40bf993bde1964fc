"""Requests: a message that somebody answers.

A client that asks has one inbox, an internal queue of a random name, and receives from it at most once: an answer that
cannot be told to anybody is worth nothing. Each request carries the inbox's name and a random correlation, by which its
answer is known; answers that come late, or that nobody waits for, are dropped.
"""

import asyncio
import secrets
from typing import Any, Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.commit import commit_result
from kvorum.durations import Duration, shown_seconds
from kvorum.errors import (
    Closed,
    DataError,
    DeadlineExceeded,
    InvalidArgument,
    KvorumError,
    OutcomeUnknown,
    Overloaded,
    RemoteError,
    RequestTimeout,
)
from kvorum.link import Link
from kvorum.queues.delivered import Delivered
from kvorum.queues.intake import Intake
from kvorum.queues.outgoing import ERROR_HEADER, RESERVED, SendOptions, outgoing, set_headers
from kvorum.queues.settling import Settler

MAX_REQUESTS: Final = 10_000
"""Requests of one client that may wait for their answers."""
_CREDITS: Final = 256
_INBOX: Final = RESERVED + "reply/"


class Requester:
    """The inbox of a client, and who waits for what."""

    def __init__(self, link: Link, settler: Settler) -> None:
        self._link = link
        self._settler = settler
        self._inbox = ""
        self._intake: Intake[Delivered] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[bytes, asyncio.Future[Any]] = {}

    async def request(self, queue: str, value: object, timeout: Duration | None, options: SendOptions) -> Any:
        """Errors: RequestTimeout, RemoteError; those of sending."""
        within = self._link.within(timeout)
        for name in ("ttl", "dedup_id", "dedup_window"):
            if name in options:
                why = "its timeout says how long it is of use" if name == "ttl" else "a duplicate would not be answered"
                raise InvalidArgument(f"a request takes no {name}: {why}")
        if len(self._waiting) >= MAX_REQUESTS:
            raise Overloaded(f"{MAX_REQUESTS:,} requests are waiting for answers already")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        message = outgoing(value, queue, options)
        message.ttl_ms = max(1, int(within * 1000))
        correlation = secrets.token_bytes(8)
        answer: asyncio.Future[Any] = loop.create_future()
        try:
            await self._opened(deadline, within)
            headers = pb.Headers.FromString(message.headers)
            headers.reply_to, headers.correlation = self._inbox, correlation
            set_headers(message, headers)
            op = pb.AtomicWrite(enqueues=(message,)).SerializeToString()
            self._waiting[correlation] = answer
            # It knows best when its time is over, and whether it may have been applied by then.
            commit_result(await self._link.backend.write(op, timeout=max(0.001, deadline - loop.time())))
            async with asyncio.timeout_at(deadline):
                return await answer
        except OutcomeUnknown:
            if loop.time() < deadline:
                raise
            raise _too_late(queue, within) from None
        except TimeoutError as error:
            if isinstance(error, KvorumError):
                raise  # it was not sent
            raise _too_late(queue, within) from None
        finally:
            self._waiting.pop(correlation, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def _opened(self, deadline: float, within: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._open()
        except TimeoutError as error:
            if isinstance(error, KvorumError):
                raise
            raise DeadlineExceeded(f"the request was not sent within {shown_seconds(within)}") from None

    async def _open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open_inbox())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except KvorumError:
            if self._opening is opening:
                self._opening = None
            raise

    async def _open_inbox(self) -> None:
        self._inbox = _INBOX + secrets.token_hex(16)
        self._intake = Intake(
            self._link,
            self._settler,
            Delivered,
            queue=self._inbox,
            credits=min(_CREDITS, limits.MAX_CREDITS),
            concurrency=_CREDITS,
            take=True,
            news=self._news,
        )
        await self._intake.open()

    def _news(self) -> None:
        intake = self._intake
        assert intake is not None
        while intake.waiting:
            delivery = intake.waiting.popleft()
            intake.finish(delivery)
            self._take(delivery)
        if intake.problem is not None:
            self._fail(intake.problem)

    def _take(self, delivery: pb.Delivery) -> None:
        headers = pb.Headers.FromString(delivery.headers)
        answer = self._waiting.get(headers.correlation)
        if answer is None or answer.done():
            return
        if ERROR_HEADER in headers.fields:
            answer.set_exception(RemoteError(headers.fields[ERROR_HEADER]))
            return
        assert self._intake is not None
        try:
            answer.set_result(Delivered(delivery, self._intake).value)
        except DataError as error:
            answer.set_exception(error)

    def _fail(self, problem: KvorumError) -> None:
        """No answers can come any more."""
        self._intake = self._opening = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(problem)

    async def close(self) -> None:
        intake = self._intake
        if intake is not None:
            await intake.close()
        self._fail(Closed("the client was closed before the answer came", outcome="unknown"))


def _too_late(queue: str, within: float) -> RequestTimeout:
    return RequestTimeout(
        f"no answer from queue {queue!r} within {shown_seconds(within)}; the request may have been handled"
    )
