"""Verdicts on messages, on their way to the log.

Those that are given in one turn of the loop travel as one write in which each is judged on its own, so that a busy
consumer pays for one commit and not for hundreds, and nobody's stale lease spoils the others' acknowledgement.

A verdict must arrive. A lease is renewed as long as its client lives, so a message whose verdict was given up would
stay in these hands for ever. Unknown outcomes and refusals are repeated until the answer is definite; the lease id
makes that safe, an earlier one that did arrive turns up as a stale lease.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Backend
from kvorum.durations import shown_seconds
from kvorum.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    KvorumError,
    MessageGone,
    NoSpace,
    OutcomeUnknown,
    StaleLease,
    Unavailable,
)

MAX_TOGETHER: Final = 256
"""Verdicts in one write."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
"""Seconds before a verdict is sent again; doubled each time."""
_TRIAL: Final = 1.0
"""Seconds for a write of several verdicts, as long as none has succeeded: a cluster in which a member does not know
them yet refuses them for as long as they are repeated."""
_ALONE: Final = 60.0
"""Seconds for which verdicts travel alone after such a refusal."""

Outcome = KvorumError | None
"""What became of a verdict: None if it was taken."""
_Waiting = tuple[pb.Settle, "asyncio.Future[Outcome]"]


class Settler:
    """See the module. `timeout`: seconds, for each attempt. Belongs to the event loop of its callers."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout
        self._gathered: list[_Waiting] = []
        self._writes: set[asyncio.Task[None]] = set()
        self._together_works = False
        self._alone_until = 0.0

    def _once(self, loop: asyncio.AbstractEventLoop, verdict: pb.Settle) -> "asyncio.Future[Outcome]":
        """One attempt; the errors of its answer: StaleLease, MessageGone, those of `Backend.write`."""
        answer: asyncio.Future[Outcome] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._send)
        self._gathered.append((verdict, answer))
        return answer

    async def settle(self, verdict: pb.Settle, timeout: float) -> Outcome:
        """Repeat until the answer is definite, for `timeout` seconds.

        Returns, and does not raise: StaleLease; OutcomeUnknown also where a repeat was refused after an attempt without
        an answer, which makes the lease stale if it did arrive; DeadlineExceeded, NoSpace, Closed and others with
        nothing changed.
        """
        # As `settle_all` of one, with three coroutines less on the way of each acknowledgement: 0.8 µs.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if timeout < self._timeout:
            return await self._until(verdict, deadline, timeout, None)
        outcome = await self._once(loop, verdict)
        if outcome is None or not _repeatable(outcome):
            return outcome
        return await self._until(verdict, deadline, timeout, outcome)

    async def settle_all(self, verdicts: Sequence[pb.Settle], timeout: float) -> list[Outcome]:
        """As `settle` for each."""
        deadline = asyncio.get_running_loop().time() + timeout
        if timeout < self._timeout:
            return await asyncio.gather(*(self._until(one, deadline, timeout, None) for one in verdicts))
        # First attempts nearly always are the only ones, and end by their own timeout: a timer and a task for each of
        # hundreds of verdicts would cost more than all else.
        outcomes = await self._first(verdicts)
        again = [at for at, error in enumerate(outcomes) if error is not None and _repeatable(error)]
        if again:
            repeated = await asyncio.gather(
                *(self._until(verdicts[at], deadline, timeout, outcomes[at]) for at in again)
            )
            for at, outcome in zip(again, repeated, strict=True):
                outcomes[at] = outcome
        return outcomes

    async def insist(self, verdicts: Sequence[pb.Settle], gave_up: Callable[[], bool]) -> list[Outcome]:
        """Repeat each until its answer is definite, however long that takes, or until `gave_up` says that it is enough.

        Returns why they were not taken; None if they were.
        """
        outcomes = await self._first(verdicts)
        pause = _FIRST_PAUSE
        while again := [at for at, error in enumerate(outcomes) if error is not None and _repeatable(error)]:
            if gave_up():
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            for at, outcome in zip(again, await self._first([verdicts[at] for at in again]), strict=True):
                outcomes[at] = outcome
        return outcomes

    async def _first(self, verdicts: Sequence[pb.Settle]) -> list[Outcome]:
        """One attempt for each."""
        loop = asyncio.get_running_loop()
        return [await answer for answer in [self._once(loop, verdict) for verdict in verdicts]]

    async def _until(self, verdict: pb.Settle, deadline: float, timeout: float, last: Outcome) -> Outcome:
        """Repeat after the error `last`, if there was one, until the answer is definite, or the deadline."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        in_doubt = isinstance(last, OutcomeUnknown)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    if last is not None:
                        await asyncio.sleep(pause)
                        pause = min(pause * 2, _LONGEST_PAUSE)
                    last = await self._once(loop, verdict)
                    if last is None or not _repeatable(last):
                        if last is not None and in_doubt:
                            return OutcomeUnknown(f"an attempt without an answer may have been applied; now: {last}")
                        return last
                    in_doubt |= isinstance(last, OutcomeUnknown)
        except TimeoutError:
            if in_doubt or last is None:
                return OutcomeUnknown(f"no answer to a verdict on a message within {shown_seconds(timeout)}")
            return DeadlineExceeded(f"the verdict on a message was not taken within {shown_seconds(timeout)}: {last}")

    async def close(self) -> None:
        """Give up what is under way."""
        for write in self._writes:
            write.cancel()
        if self._writes:
            await asyncio.wait(self._writes)

    # ---- writes

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        loop = asyncio.get_running_loop()
        most = 1 if loop.time() < self._alone_until else MAX_TOGETHER
        for begin in range(0, len(gathered), most):
            write = loop.create_task(self._write(gathered[begin : begin + most]))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    async def _write(self, part: list[_Waiting]) -> None:
        try:
            if len(part) == 1:
                await self._write_alone(*part[0])
            else:
                await self._write_together(part)
        except KvorumError as error:
            for _, answer in part:
                _tell(answer, error)
        except BaseException as error:
            # Cut off by closing, or by a fault: nobody may be left waiting.
            why = "the client was closed" if isinstance(error, asyncio.CancelledError) else f"it failed ({error!r})"
            for _, answer in part:
                _tell(answer, OutcomeUnknown(f"{why} before the verdict on a message was answered"))
            raise

    async def _write_alone(self, verdict: pb.Settle, answer: "asyncio.Future[Outcome]") -> None:
        op = pb.AtomicWrite(settles=(verdict,)).SerializeToString()
        result = (await self._backend.write(op, timeout=self._timeout)).result
        _tell(answer, None if result.outcome == pb.OUTCOME_DONE else _refusal(verdict, result.message))

    async def _write_together(self, part: list[_Waiting]) -> None:
        op = pb.AtomicWrite(settles=[verdict for verdict, _ in part], each=True).SerializeToString()
        timeout = self._timeout if self._together_works else min(_TRIAL, self._timeout)
        try:
            result = (await self._backend.write(op, timeout=timeout)).result
        except Closed:
            raise
        except (Unavailable, InvalidArgument) as error:
            if self._together_works or "version" not in str(error):
                raise
            loop = asyncio.get_running_loop()
            self._alone_until = loop.time() + _ALONE
            await asyncio.gather(*(self._write([one]) for one in part))
            return
        self._together_works = True
        refused = frozenset(result.failed_checks) if result.outcome == pb.OUTCOME_DONE else range(len(part))
        for at, (verdict, answer) in enumerate(part):
            _tell(answer, _refusal(verdict, result.message) if at in refused else None)


def _refusal(verdict: pb.Settle, message: str) -> KvorumError:
    name = verdict.message_id.hex()
    if not verdict.lease_id:
        return MessageGone(message or f"message {name} is done, or in a consumer's hands")
    return StaleLease(message or f"message {name} is not in these hands any more")


def _repeatable(error: KvorumError) -> bool:
    if isinstance(error, Closed):
        return False
    return error.retryable or isinstance(error, (OutcomeUnknown, NoSpace))


def _tell(answer: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)
