"""The two ends of a queue that is measured, whichever queue it is: a process that sends and one that handles.

Only the standard library is imported, since the ends of another system run under an interpreter of its own. `run` is
the main function of such a process. Its first argument is a `Plan` in JSON; it prints `ready`, reads when to begin and
to end from its standard input, and prints its figures as one line of JSON.

A message is *in flight* from its sending until its acknowledgement is confirmed. The consumer reports confirmed
acknowledgements through a socket to the producer, which sends no more than `in_flight` messages ahead of them: so no
backlog builds up, however much faster one of the ends is. Times cross processes: both read the monotonic clock of the
machine.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bench.measure import clock, quantile

SIZE: Final = 100
"""Bytes of a message."""
HEAD: Final = struct.Struct("<dQ")
"""Of a message: when it was sent, and its number."""
PADDING: Final = bytes(SIZE - HEAD.size)
COUNT: Final = struct.Struct("<I")
BATCH: Final = 64
"""Messages that are asked for at once."""
LOOPS: Final = 4
"""How many ask at the same time, so that one asks while another acknowledges."""
PATIENCE: Final = 20.0
"""Seconds that the last acknowledgements may take after the end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one end is to do."""

    role: str
    """`producer` or `consumer`."""
    way: str
    """How messages are taken: `push`, one by one to a handler; `transaction`, the same with a write in each
    acknowledgement; `batches`, up to 64 at a time to four handlers, acknowledged together; `asking`, by a program that
    asks for up to 64, acknowledges them and asks again."""
    servers: dict[str, str]
    """Address of each server by its name."""
    queue: str
    in_flight: int
    batch: int = 1
    """Messages of one sending."""
    pace: float = 0.0
    """Seconds from one sending to the next; 0: as soon as there is room."""
    groups: int = 0
    """Ordered groups that messages belong to in turn; 0: none."""
    link: int = 0
    """File descriptor of the socket between the two ends."""


class Broker(Protocol):
    """A client of the system that is measured."""

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Returns when all of them are confirmed."""

    async def consume(self, plan: Plan, handled: Callable[[bytes], None], acked: Callable[[int], None]) -> None:
        """Until cancelled: tell of each message when it is there, and of each confirmed acknowledgement."""


class Credits:
    """How many messages may still be sent; senders wait in turn."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def give(self, count: int) -> None:
        self.count += count
        while self._waiting and self.count >= self._waiting[0][0]:
            wanted, promise = self._waiting.popleft()
            if not promise.done():
                self.count -= wanted
                promise.set_result(None)

    async def take(self, count: int) -> None:
        if self.count >= count and not self._waiting:
            self.count -= count
            return
        promise = asyncio.get_running_loop().create_future()
        self._waiting.append((count, promise))
        await promise


@dataclass(slots=True)
class Consumed:
    """What a consumer saw."""

    link: socket.socket
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """(when it was sent, seconds from then until its handler ran)."""
    acks: list[tuple[float, int]] = field(default_factory=list)
    """(when, how many)."""
    seen: bytearray = field(default_factory=bytearray)
    """One byte for each message: how often it came, up to 255."""
    _to_report: int = 0

    def handled(self, payload: bytes) -> None:
        now = clock()
        sent, number = HEAD.unpack_from(payload)
        self.latencies.append((sent, now - sent))
        if number >= len(self.seen):
            self.seen.extend(bytes(number + 1 - len(self.seen)))
        self.seen[number] = min(255, self.seen[number] + 1)

    def acked(self, count: int) -> None:
        self.acks.append((clock(), count))
        if not self._to_report:
            asyncio.get_running_loop().call_soon(self._report)
        self._to_report += count

    def _report(self) -> None:
        count, self._to_report = self._to_report, 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the producer has ended
            self.link.send(COUNT.pack(count))

    def figures(self, begin: float, end: float) -> dict[str, Any]:
        """Of the time from `begin` to `end`."""
        times = sorted(took * 1e3 for sent, took in self.latencies if begin <= sent < end)
        return {
            "rate": sum(count for when, count in self.acks if begin <= when < end) / (end - begin),
            "messages": len(times),
            **{f"p{part * 100:g}_ms": round(quantile(times, part), 3) for part in (0.5, 0.99)},
            "distinct": sum(1 for count in self.seen if count),
            "repeated": sum(count - 1 for count in self.seen if count > 1),
        }


async def produce(broker: Broker, plan: Plan, link: socket.socket, begin: float, end: float) -> dict[str, Any]:
    """Send from `begin` to `end`, then wait until everything is acknowledged."""
    credits = Credits(plan.in_flight)
    took: list[float] = []
    sent = 0
    loop = asyncio.get_running_loop()
    rest = b""

    def returned() -> None:
        nonlocal rest
        data = rest + link.recv(65_536)
        whole = len(data) - len(data) % COUNT.size
        rest = data[whole:]
        credits.give(sum(count for (count,) in COUNT.iter_unpack(data[:whole])))

    async def sender() -> None:
        nonlocal sent
        due = clock()
        while clock() < end:
            if plan.pace:
                due += plan.pace
                await asyncio.sleep(due - clock())
            await credits.take(plan.batch)
            now = clock()
            payloads = [HEAD.pack(now, number) + PADDING for number in range(sent, sent + plan.batch)]
            sent += plan.batch
            await broker.send(payloads)
            took.append(clock() - now)

    loop.add_reader(link, returned)
    await asyncio.sleep(begin - clock())
    senders = [asyncio.create_task(sender()) for _ in range(plan.in_flight // plan.batch)]
    try:
        done, late = await asyncio.wait(senders, timeout=end - clock() + PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        while credits.count < plan.in_flight and not late and clock() < end + PATIENCE:
            await asyncio.sleep(0.01)
    finally:
        loop.remove_reader(link)
        for task in senders:
            task.cancel()
    took.sort()
    return {
        "sent": sent,
        "unacknowledged": plan.in_flight - credits.count,
        "send_p50_ms": round(quantile(took, 0.5) * 1e3, 3),
        "send_p99_ms": round(quantile(took, 0.99) * 1e3, 3),
    }


async def consume(broker: Broker, plan: Plan, link: socket.socket) -> dict[str, Any]:
    """Handle messages until the standard input says from when to when they were to count."""
    consumed = Consumed(link)
    working = asyncio.create_task(broker.consume(plan, consumed.handled, consumed.acked))
    asking = asyncio.create_task(_line())
    await asyncio.wait([working, asking], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
        raise RuntimeError("consuming has ended by itself")
    moments = await asking
    working.cancel()
    await asyncio.wait([working])
    return consumed.figures(moments["begin"], moments["end"])


async def _line() -> dict[str, float]:
    line = await asyncio.to_thread(sys.stdin.readline)
    moments: dict[str, float] = json.loads(line)
    return moments


async def _main(plan: Plan, opened: Callable[[Plan], contextlib.AbstractAsyncContextManager[Broker]]) -> None:
    with socket.socket(fileno=plan.link) as link:
        link.setblocking(False)
        async with opened(plan) as broker:
            print("ready", flush=True)
            if plan.role == "producer":
                moments = await _line()
                figures = await produce(broker, plan, link, moments["begin"], moments["end"])
            else:
                figures = await consume(broker, plan, link)
            print(json.dumps(figures), flush=True)


def run(
    opened: Callable[[Plan], contextlib.AbstractAsyncContextManager[Broker]],
    runner: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """The main function of an end. `opened` gives its client, `runner` runs a coroutine in an event loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", help="JSON")
    runner(_main(Plan(**json.loads(parser.parse_args().plan)), opened))
