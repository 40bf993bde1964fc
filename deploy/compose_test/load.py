"""Clients outside of the network that write all the time, and the account of what they were told.

Each key is written once. What was acknowledged must be there at the end with its value; what was said to be certainly
not done must not be there; what is unknown may be either. The counter's sum lies between the sums that were
acknowledged and those plus the unknown ones. Each message that was acknowledged must be delivered.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from kvorum import errors

from .steps import Failed

WRITERS: Final = 4
PAUSE: Final = 0.005
"""Seconds between a writer's writes: the machine is shared with three nodes and Prometheus."""
COUNTER: Final = ("compose", "counter")
QUEUE: Final = "compose"


@dataclass(slots=True)
class Ledger:
    """What clients were told."""

    done: set[tuple[int, int]] = field(default_factory=set)
    unknown: set[tuple[int, int]] = field(default_factory=set)
    refused: set[tuple[int, int]] = field(default_factory=set)
    sent: set[tuple[int, int]] = field(default_factory=set)
    """Messages that were acknowledged."""
    received: set[tuple[int, int]] = field(default_factory=set)
    deliveries: int = 0
    longest: float = 0.0
    """Seconds between two acknowledgements, of all writers together, since `restart`."""
    last: float = field(default_factory=time.monotonic)

    def acknowledged(self, name: tuple[int, int]) -> None:
        """A write, with its message, was acknowledged."""
        now = time.monotonic()
        self.done.add(name)
        self.sent.add(name)
        self.longest = max(self.longest, now - self.last)
        self.last = now

    def restart(self) -> None:
        """Measure the longest pause anew."""
        self.longest, self.last = 0.0, time.monotonic()


class Load:
    """`async with Load(kv) as load`."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self.ledger = Ledger()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: asyncio.Task[None] | None = None
        self._ending = False

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]
        self._listener = asyncio.create_task(self._kv.listen_queue(self._receive, queue=QUEUE))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        await self.finish()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def finish(self) -> None:
        """Write no more; what is under way is awaited."""
        self._ending = True
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def progress(self, writes: int, timeout: float) -> None:
        """Wait for so many more acknowledged writes. Errors: Failed."""
        wanted = len(self.ledger.done) + writes
        try:
            async with asyncio.timeout(timeout):
                while len(self.ledger.done) < wanted:
                    for task in (*self._tasks, self._listener):
                        if task is not None and task.done():
                            task.result()
                            raise Failed("a client has ended before its time")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            done = len(self.ledger.done) - (wanted - writes)
            raise Failed(f"only {done} of {writes} writes were acknowledged within {timeout:g} s") from None

    async def _write(self, writer: int) -> None:
        number = 0
        ledger = self.ledger
        while not self._ending:
            number += 1
            name = (writer, number)
            commit = self._kv.atomic().set(("compose", "row", *name), number * 7).sum(COUNTER, 1)
            try:
                await commit.enqueue(list(name), queue=QUEUE).commit()
            except errors.OutcomeUnknown:
                ledger.unknown.add(name)
            except errors.KvorumError as error:
                if error.outcome != "not applied":
                    raise
                ledger.refused.add(name)
            else:
                ledger.acknowledged(name)
            await asyncio.sleep(PAUSE)

    async def _receive(self, message: Any) -> None:
        writer, number = message
        self.ledger.received.add((int(writer), int(number)))
        self.ledger.deliveries += 1


async def check(kv: Any, ledger: Ledger) -> None:
    """Compare what is there with what clients were told. Errors: Failed."""
    rows: dict[tuple[int, int], Any] = {}
    async for entry in kv.list(prefix=("compose", "row")):
        _, _, writer, number = entry.key
        rows[writer, number] = entry.value
    lost = ledger.done - rows.keys()
    wrong = {name for name, value in rows.items() if value != name[1] * 7}
    invented = rows.keys() - ledger.done - ledger.unknown
    if lost or wrong or invented:
        raise Failed(
            f"{len(lost)} acknowledged writes are lost ({sorted(lost)[:5]}), {len(wrong)} have another value"
            f" ({sorted(wrong)[:5]}), {len(invented)} are there that were said not to be ({sorted(invented)[:5]})"
        )
    counter = int((await kv.get(COUNTER)).value)
    if counter != len(rows):
        raise Failed(f"the counter is {counter}, but {len(rows)} commits that added 1 to it are there")


async def check_messages(ledger: Ledger, timeout: float) -> None:
    """Each acknowledged message comes. Errors: Failed."""
    try:
        async with asyncio.timeout(timeout):
            while ledger.sent - ledger.received:
                await asyncio.sleep(0.05)
    except TimeoutError:
        lost = ledger.sent - ledger.received
        raise Failed(f"{len(lost)} acknowledged messages never came, such as {sorted(lost)[:5]}") from None


async def longest_pause(kv: Any, during: Any) -> float:
    """The longest time, in seconds, that a single caller who writes all the time waits while `during` is awaited."""
    longest = 0.0
    other = asyncio.ensure_future(during)
    try:
        while not other.done():
            begun = time.monotonic()
            await kv.set(("compose", "single"), 1)
            longest = max(longest, time.monotonic() - begun)
    finally:
        await other
    return longest
