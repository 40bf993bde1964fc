"""A process that sends: `python -m chaos.queues.producer OPTIONS`, started by a trial.

It goes on until it is told `stop` on its standard input; every commit leaves a mark, by which its outcome can be looked
up in the end.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import kvorum
from kvorum.errors import KvorumError

from .book import Book, now
from .history import Outcome, Send
from .plan import MARK, Parcel, parcel
from .working import work

TIMEOUTS: Final = (300, 2_000, 5_000)
"""Milliseconds. Short ones give unknown outcomes."""
BATCHES: Final = (1, 4, 16)


def parser() -> argparse.ArgumentParser:
    """The options, shared with who starts producers."""
    options = argparse.ArgumentParser(prog="chaos.queues.producer")
    options.add_argument("--url", required=True)
    options.add_argument("--file", type=Path, required=True, help="where records are written")
    options.add_argument("--name", required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--lanes", type=int, default=6, help="sequential callers")
    options.add_argument("--rate", type=float, required=True, help="messages a second")
    options.add_argument("--messages", type=int, required=True, help="messages at most")
    return options


class Producer:
    """One process of that kind."""

    def __init__(self, kv: kvorum.Kv, book: Book, options: argparse.Namespace, stop: asyncio.Event) -> None:
        self._kv = kv
        self._book = book
        self._options = options
        self._stop = stop
        self._sent = 0

    async def run(self) -> None:
        """Until it is stopped, or all is sent. Errors: OSError."""
        await asyncio.gather(*(self._lane(number) for number in range(self._options.lanes)))

    async def _lane(self, lane: int) -> None:
        name = f"{self._options.name}-{lane}"
        rng = Random(f"{self._options.seed}/{name}")
        number = 0
        pace = self._options.lanes / self._options.rate
        while not self._stop.is_set() and self._sent < self._options.messages:
            parcels = [parcel(rng, f"{name}-{number + at}") for at in range(rng.choice(BATCHES))]
            number += len(parcels)
            self._sent += len(parcels)
            began = now()
            await self._commit(parcels, rng.choice(TIMEOUTS))
            left = pace * len(parcels) * rng.uniform(0.5, 1.5) - (now() - began) / 1e9
            await asyncio.sleep(max(0.0, left))

    async def _commit(self, parcels: Sequence[Parcel], timeout: int) -> None:
        mark = parcels[0].name
        commit = self._kv.atomic().set((MARK, mark), mark)
        for one in parcels:
            add = commit.send_topic if one.topic else commit.send
            add(one.queue, one.value, **one.options)
        drafts = [_draft(one) for one in parcels]
        outcome: Outcome = "ok"
        sent: Sequence[kvorum.Sent] = ()
        stamp = ""
        try:
            result = await commit.commit(timeout=timeout)
            sent, stamp = result.messages, str(result.versionstamp)
        except KvorumError as error:
            outcome = error.outcome or "not applied"
        returned = now()
        ids = iter(sent)
        for one, draft in zip(parcels, drafts, strict=True):
            record = replace(draft, outcome=outcome, returned=returned, stamp=stamp, mark=mark)
            if outcome == "ok" and not one.topic:
                its = next(ids)
                record = replace(record, message=its.id, duplicate=its.duplicate)
            self._book.write(record)


def _draft(one: Parcel) -> Send:
    return Send(
        one.name,
        one.queue,
        now(),
        None,
        "unknown",
        topic=one.topic,
        group=one.options.get("group"),
        dedup=one.options.get("dedup_id", ""),
        window=one.options.get("dedup_window", 0),
        delay=one.options.get("delay", 0),
    )


def main() -> None:
    """See the module."""
    work(parser().parse_args(), Producer)


if __name__ == "__main__":
    main()
