"""A process that consumes: `python -m chaos.queues.consumer OPTIONS`, started by a trial, and killed by it at times.

It writes down each message when it comes and each verdict when it is answered. An acknowledgement is a commit that also
counts up a key of the message's own, so that whatever is done twice is seen in the end. It goes on until it is told
`stop` on its standard input.
"""

import argparse
import asyncio
from pathlib import Path
from random import Random
from typing import Final

import kvorum
from kvorum.errors import KvorumError, StaleLease

from .book import Book, now
from .history import Delivery, Outcome, Settle, Verdict
from .plan import EFFECT, LEASE, LINES, NAME, SCHEDULE, TROUBLE, Line
from .working import work

TIMEOUT: Final = 5_000
"""Milliseconds for each try of a verdict."""
PAUSE: Final = 0.1
"""Seconds before it is tried again."""


def parser() -> argparse.ArgumentParser:
    """The options, shared with who starts consumers."""
    options = argparse.ArgumentParser(prog="chaos.queues.consumer")
    options.add_argument("--url", required=True)
    options.add_argument("--file", type=Path, required=True, help="where records are written")
    options.add_argument("--name", required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--thinking", type=float, required=True, help="seconds that handling takes, on average")
    return options


class Consumer:
    """One process of that kind."""

    def __init__(self, kv: kvorum.Kv, book: Book, options: argparse.Namespace, stop: asyncio.Event) -> None:
        self._kv = kv
        self._stop = stop
        self._book = book
        self._name: str = options.name
        self._thinking: float = options.thinking
        self._rng = Random(f"{options.seed}/{options.name}")

    async def run(self) -> None:
        """Until it is stopped. Errors: KvorumError."""
        await asyncio.gather(*(self._listen(line) for line in LINES))

    async def _listen(self, line: Line) -> None:
        async def handle(message: kvorum.Message) -> None:
            await self._handle(line, message)

        await self._kv.queue(line.queue).listen(
            handle,
            concurrency=line.concurrency,
            prefetch=line.prefetch,
            at_most_once=line.at_most_once,
            renew=line.renew,
            stop=self._stop,
        )

    async def _handle(self, line: Line, message: kvorum.Message) -> None:
        self._book.write(
            Delivery(
                message.id,
                _name(message),
                message.queue,
                message.lease or f"{message.id}-{self._name}",
                message.attempt,
                self._name,
                now(),
                message.group,
                line.at_most_once,
            )
        )
        if line.at_most_once:
            return
        await asyncio.sleep(self._rng.expovariate(1 / self._thinking))
        trouble = "" if message.queue == "letters" else message.value.get(TROUBLE, "")
        if trouble == "slow" and message.attempt == 1:
            await asyncio.sleep(LEASE / 1000 * 1.2)  # which a lease that is not renewed does not survive
        if trouble == "reject":
            await self._settle(message, "reject")
        elif trouble == "always" or (trouble == "once" and message.attempt == 1):
            await self._settle(message, "retry")
        else:
            await self._settle(message, "ack")

    async def _settle(self, message: kvorum.Message, verdict: Verdict) -> None:
        """Until the answer is definite, unless this process ends before."""
        invoked = now()
        delay = self._rng.choice((None, 100)) if verdict == "retry" else None
        doubtful = False
        while True:
            outcome: Outcome = "ok"
            stamp = ""
            try:
                commit = message.atomic()
                if verdict == "ack":
                    commit.sum((EFFECT, message.id), 1).ack()
                elif verdict == "reject":
                    commit.reject(reason="poison")
                else:
                    commit.retry(delay=delay, reason="try again")
                result = await commit.commit(timeout=TIMEOUT)
                stamp = str(result.versionstamp)
            except StaleLease:
                # It may be stale because an earlier try was obeyed.
                outcome = "unknown" if doubtful else "stale"
            except KvorumError as error:
                doubtful |= error.outcome != "not applied"
                if doubtful or error.retryable:
                    await asyncio.sleep(PAUSE)
                    continue
                raise
            self._book.write(Settle(message.lease, verdict, invoked, now(), outcome, stamp, delay))
            return


def _name(message: kvorum.Message) -> str:
    if message.tick is not None:
        return f"{SCHEDULE}@{round(message.tick.timestamp() * 1000)}"
    return str(message.value[NAME])


def main() -> None:
    """See the module."""
    work(parser().parse_args(), Consumer, timeout=60_000)


if __name__ == "__main__":
    main()
