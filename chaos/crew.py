"""A process full of clients: `python -m chaos.crew OPTIONS`, started by a trial, perhaps in a network namespace.

It says `working` when it begins, works until it reads `stop` on its standard input, writes down what it saw and says
`stopped`. Its handlers of messages go on until it reads `end`; then it writes everything down once more, says `ended`,
and ends. It says `full` when it has made as many calls as it may.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import kvorum

from .duties import deed
from .duties.doing import Duties
from .history import Operation, export, load
from .recorder import Recorder
from .workload import Lane, Worker

LANES_OF_A_CREW: Final = 100
"""Process numbers, so that no two lanes of a run have the same one."""


@dataclass(slots=True)
class Account:
    """What a crew brings back."""

    operations: list[Operation] = field(default_factory=list)
    deliveries: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    """As the clients count, over all clients."""
    deeds: list[deed.Deed] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Errors: OSError."""
        export(self.operations, path)
        deed.export(self.deeds, path.with_suffix(".deeds"))
        path.with_suffix(".counts").write_text(
            json.dumps({"deliveries": dict(self.deliveries), "figures": dict(self.figures)})
        )

    @classmethod
    def read(cls, path: Path) -> "Account":
        """Errors: OSError, ValueError, KeyError for what `save` has not written."""
        counts = json.loads(path.with_suffix(".counts").read_text())
        deeds = list(deed.load(path.with_suffix(".deeds")))
        return cls(list(load(path)), Counter(counts["deliveries"]), Counter(counts["figures"]), deeds)


def parser() -> argparse.ArgumentParser:
    """The options, shared with who starts crews."""
    options = argparse.ArgumentParser(prog="chaos.crew")
    options.add_argument("--url", required=True)
    options.add_argument("--file", type=Path, required=True, help="where the account is written")
    options.add_argument("--number", type=int, required=True, help="of the crew, from 0")
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--clients", type=int, required=True)
    options.add_argument("--lanes", type=int, required=True)
    options.add_argument("--visitors", type=int, required=True)
    options.add_argument("--operations", type=int, required=True)
    options.add_argument("--thinking", type=float, required=True, help="seconds between calls of a lane, on average")
    return options


async def work(options: argparse.Namespace) -> None:
    """Errors: KvorumError and SawNonsense for what a client must not see; OSError."""
    recorder, stop = Recorder(), asyncio.Event()
    account = Account(recorder.operations, recorder.deliveries)
    said = _lines()
    first = options.number * LANES_OF_A_CREW

    def rng(what: str, number: int) -> Random:
        return Random(f"{options.seed}/{what}/{number}")

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(kvorum.open_kv(options.url)) for _ in range(options.clients)]
        handling = asyncio.gather(
            *(Worker(kv, first + at, rng("worker", first + at), recorder).run() for at, kv in enumerate(clients))
        )
        staying = clients * options.lanes
        lanes = [
            Lane(kv, first + at, rng("lane", first + at), recorder, options.thinking).run(stop, options.operations)
            for at, kv in enumerate(staying)
        ]
        lanes += [
            Lane(None, number, rng("lane", number), recorder, options.thinking).visit(
                options.url, stop, options.operations
            )
            for number in range(first + len(staying), first + len(staying) + options.visitors)
        ]
        duties = Duties(clients[-1], options.number, rng("duties", options.number), account.deeds)
        watching = asyncio.create_task(duties.watch())
        working, dutiful = asyncio.gather(*lanes), asyncio.create_task(duties.run(stop))
        print("working", flush=True)
        told = asyncio.ensure_future(_told(said, "stop"))
        try:
            await asyncio.wait((working, told, handling, watching, dutiful), return_when=asyncio.FIRST_COMPLETED)
            if working.done() and not told.done():
                working.result()
                print("full", flush=True)
                await told
            stop.set()
            for task in (handling, watching, dutiful):
                if task.done():
                    await task
            await asyncio.gather(working, dutiful)
            account.save(options.file)
            print("stopped", flush=True)
            await _told(said, "end")
            await duties.come_to_an_end()
            for kv in clients:
                account.figures.update({name: int(value) for name, value in kv.statistics().items()})
        finally:
            told.cancel()
            working.cancel()
            watching.cancel()
            dutiful.cancel()
            await asyncio.gather(working, told, watching, dutiful, return_exceptions=True)
    await handling
    account.save(options.file)
    print("ended", flush=True)


def _lines() -> "asyncio.Queue[str]":
    """What is said to us, line by line; an end of it is `stop` and `end`: nobody is left to listen."""
    said: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        line = sys.stdin.readline()
        if not line:
            loop.remove_reader(sys.stdin.fileno())
        for word in (line.strip(),) if line else ("stop", "end"):
            said.put_nowait(word)

    loop.add_reader(sys.stdin.fileno(), hear)
    return said


async def _told(said: "asyncio.Queue[str]", word: str) -> None:
    while await said.get() != word:
        pass


def log_to(path: Path) -> None:
    """Handlers' troubles are part of the play: what the client library logs goes to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("kvorum")
    logger.addHandler(handler)
    logger.propagate = False


def main() -> None:
    """See the module."""
    options = parser().parse_args()
    log_to(options.file.with_suffix(".log"))
    try:
        import uvloop
    except ImportError:
        asyncio.run(work(options))
    else:
        uvloop.run(work(options))


if __name__ == "__main__":
    main()
