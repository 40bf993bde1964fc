"""What KV Connect costs, and what it does to everybody else on the node: rates and latencies of sets, reads, lists and
watches over HTTP/2, the lag of the nodes' loops, and a gRPC client's latencies beside it and alone.

    python -m bench.kv_connect [--seconds S]

The load comes from this process by frames that are written by hand, since an HTTP/2 library of Python would cost more
than what is to be measured. Clients, three nodes and the disk share the machine: compare lines of one run.
"""

import argparse
import asyncio
import contextlib
import itertools
import struct
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import kvorum
from bench.measure import between, clock, quantile
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import DevCluster, in_thread

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW: Final = 1 << 30
_HEAD: Final = struct.Struct(">BHBBL")


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """One HTTP/2 frame."""
    return _HEAD.pack(len(data) >> 16, len(data) & 0xFFFF, kind, flags, stream) + data


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


class RawConnection(asyncio.Protocol):
    """One HTTP/2 connection, as cheap as can be: it looks at the first byte of a response's headers only."""

    def __init__(self) -> None:
        self._buffer = b""
        self._next = 1
        self._taken = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._bodies: dict[int, list[bytes]] = {}
        self.frames = 0
        self.refused = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        more = struct.pack(">L", WINDOW)
        settings = struct.pack(">HLHL", 4, WINDOW, 2, 0)
        transport.write(PREFACE + frame(4, 0, 0, settings) + frame(8, 0, 0, more))

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(exc or ConnectionResetError("closed by the node"))

    def request(self, path: str, body: bytes) -> "asyncio.Future[bytes]":
        """POST; the body of the answer."""
        number, self._next = self._next, self._next + 2
        headers = b"\x83\x86" + literal(b":path", path.encode()) + literal(b":authority", b"127.0.0.1")
        headers += literal(b"authorization", b"Bearer bench") + literal(b"x-denokv-version", b"3")
        headers += literal(b"user-agent", b"Deno/2.9.6")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._bodies[number] = []
        self._transport.write(frame(1, 4, number, headers) + frame(0, 1, number, body))
        return future

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        at = 0
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            end = at + 9 + (high << 16) + low
            if len(buffer) < end:
                break
            self._take(kind, flags, stream, buffer[at + 9 : end])
            at = end
        self._buffer = buffer[at:]

    def _take(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        if kind == 0:
            self.frames += 1
            self._taken += len(data)
            self._bodies[stream].append(data)
            if self._taken > WINDOW // 4:
                self._transport.write(frame(8, 0, 0, struct.pack(">L", self._taken)))
                self._taken = 0
        elif kind == 1:
            self.refused += data[0] != 0x88
        elif kind == 4 and not flags & 1:
            self._transport.write(frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self._transport.write(frame(6, 1, 0, data))
        if (kind in (0, 1) and flags & 1) or kind == 3:
            future = self._waiting.pop(stream)
            body = b"".join(self._bodies.pop(stream))
            if kind == 3:
                future.set_exception(ConnectionResetError(f"stream reset: {data.hex()}"))
            elif not future.done():
                future.set_result(body)

    def close(self) -> None:
        """Cut it."""
        self._transport.abort()


async def connect(address: str) -> RawConnection:
    """A connection to a node's HTTP port."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(RawConnection, host, int(port))
    return connection


def set_body(number: int) -> bytes:
    """A set of a small value."""
    write = dp.AtomicWrite()
    mutation = write.mutations.add(key=b"\x02bench\x00\x02%d\x00" % (number % 10_000), mutation_type=dp.M_SET)
    mutation.value.data, mutation.value.encoding = b"\xff\x0f\x22\x05hello", dp.VE_V8
    return write.SerializeToString()


def get_body(number: int) -> bytes:
    """A read of one key."""
    key = b"\x02bench\x00\x02%d\x00" % (number % 10_000)
    read = dp.SnapshotRead()
    read.ranges.add(start=key, end=key + b"\0", limit=1)
    return read.SerializeToString()


def milliseconds(samples: list[float], part: float) -> float:
    """A quantile of seconds."""
    return quantile(sorted(samples), part) * 1000


async def rates(call: Callable[[int], Awaitable[object]], callers: int, seconds: float) -> str:
    """Of callers that each await their answer."""
    begin = clock()
    row = await between(call, callers, begin, begin + seconds)
    return f"{row['rate']:7,.0f}/s  p50 {row['p50_ms']:6.1f} ms  p99 {row['p99_ms']:6.1f} ms"


async def hammer(address: str, path: str, body: Callable[[int], bytes], callers: int, seconds: float) -> str:
    """Concurrent callers on one connection, as a Deno program has it."""
    connection = await connect(address)
    numbers = itertools.count()

    async def call(caller: int) -> None:
        await connection.request(path, body(next(numbers)))

    told = await rates(call, callers, seconds)
    connection.close()
    return told + (f"  REFUSED {connection.refused}" if connection.refused else "")


async def pour(address: str, rate: float, seconds: float) -> str:
    """So many sets a second, each when it is due, whatever the others do: a load that does not fill the machine."""
    connection = await connect(address)
    samples: list[float] = []

    async def call(number: int) -> None:
        begun = time.perf_counter()
        await connection.request("/v2/atomic_write", set_body(number))
        samples.append(time.perf_counter() - begun)

    calls = []
    begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        if (early := begun + number / rate - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        calls.append(asyncio.ensure_future(call(number)))
    await asyncio.gather(*calls)
    connection.close()
    return f"{rate:7,.0f}/s  p50 {milliseconds(samples, 0.5):6.1f} ms  p99 {milliseconds(samples, 0.99):6.1f} ms"


async def hammer_grpc(url: str, callers: int, seconds: float) -> str:
    """The same load as `hammer`'s by a client of kvorum, to compare with."""
    numbers = itertools.count()
    async with kvorum.open_kv(url) as kv:

        async def call(caller: int) -> None:
            await kv.set(("bench", next(numbers) % 10_000), "hello")

        return await rates(call, callers, seconds)


async def probe(url: str, stop: asyncio.Event) -> list[float]:
    """A gRPC client that sets one key after the other; seconds of each call."""
    samples: list[float] = []
    async with kvorum.open_kv(url) as kv:
        number = 0
        while not stop.is_set():
            begun = time.perf_counter()
            await kv.set(("probe", number % 100), number)
            samples.append(time.perf_counter() - begun)
            number += 1
            await asyncio.sleep(0.002)
    return samples


def figures(cluster: DevCluster, number: int) -> dict[str, float]:
    """A node's metrics."""
    with urllib.request.urlopen(f"{cluster.http_url(number)}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def beside(cluster: DevCluster, what: str, work: "asyncio.Future[str] | None", seconds: float) -> None:
    """Run it with a gRPC client beside it, and tell of both."""
    terms = [await in_thread(figures, cluster, number) for number in range(3)]
    stop = asyncio.Event()
    probing = asyncio.ensure_future(probe(cluster.url, stop))
    told = await work if work is not None else await asyncio.sleep(seconds, "")
    stop.set()
    samples = await probing
    after = [await in_thread(figures, cluster, number) for number in range(3)]
    lag = max(one["kvorum_debug_loop_lag_worst"] for one in after) * 1000
    elections = after[0]["kvorum_raft_term"] - terms[0]["kvorum_raft_term"]
    p50, p99, worst = (milliseconds(samples, part) for part in (0.5, 0.99, 1.0))
    print(
        f"{what:<30} {told:<52} gRPC sets beside it: p50 {p50:5.1f}  p99 {p99:6.1f}  worst {worst:6.1f} ms"
        f"   worst loop lag {lag:5.1f} ms   elections {elections:.0f}",
        flush=True,
    )


async def fill(cluster: DevCluster, rows: int) -> None:
    """Rows for lists."""
    async with kvorum.open_kv(cluster.url) as kv:
        for begin in range(0, rows, 500):
            atomic = kv.atomic()
            for number in range(begin, begin + 500):
                atomic.set(("list", number), "x" * 100)
            await atomic.commit()


async def lists(address: str, seconds: float) -> str:
    """The whole list again and again, in pages of 500."""
    connection = await connect(address)
    rows = pages = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = b"\x02list\x00\x00"
        while True:
            read = dp.SnapshotRead()
            read.ranges.add(start=start, end=b"\x02list\x00\xff", limit=500)
            answer = dp.SnapshotReadOutput.FromString(
                await connection.request("/v2/snapshot_read", read.SerializeToString())
            )
            page = answer.ranges[0].values
            rows, pages = rows + len(page), pages + 1
            if len(page) < 500:
                break
            start = page[-1].key + b"\0"
    connection.close()
    return f"{rows / (time.perf_counter() - begun):9,.0f} rows/s in {pages} pages"


async def watches(address: str, count: int, seconds: float) -> str:
    """Watches of one key each, all of them written to once a second and more."""
    connections = [await connect(address) for _ in range((count + 99) // 100)]
    request = dp.Watch()
    request.keys.add(key=b"\x02bench\x00\x021\x00")
    streams = [
        connections[n % len(connections)].request("/v2/watch", request.SerializeToString()) for n in range(count)
    ]
    writer = await connect(address)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        await writer.request("/v2/atomic_write", set_body(1))
        await asyncio.sleep(0.2)
    frames = sum(connection.frames for connection in connections)
    refused = sum(connection.refused for connection in connections)
    for connection in (*connections, writer):
        connection.close()
    await asyncio.gather(*streams, return_exceptions=True)
    return f"{frames / (time.perf_counter() - begun):7,.0f} frames/s" + (f"  REFUSED {refused}" if refused else "")


async def main(seconds: float) -> None:
    """All lines."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = DevCluster(Path(folder))
        await in_thread(cluster.start_all)
        try:
            leader = cluster.leader()
            follower = (leader + 1) % 3
            await fill(cluster, 40_000)
            await beside(cluster, "alone", None, seconds)
            for callers in (64, 256):
                work = hammer_grpc(cluster.url, callers, seconds)
                await beside(cluster, f"{callers} concurrent sets over gRPC", asyncio.ensure_future(work), seconds)
            for name, number in (("leader", leader), ("follower", follower)):
                address = cluster.http_address(number)
                work = pour(address, 100, seconds)
                await beside(cluster, f"100 sets a second, {name}", asyncio.ensure_future(work), seconds)
                for callers in (1, 64, 256):
                    work = hammer(address, "/v2/atomic_write", set_body, callers, seconds)
                    await beside(cluster, f"{callers} concurrent sets, {name}", asyncio.ensure_future(work), seconds)
                work = hammer(address, "/v2/snapshot_read", get_body, 64, seconds)
                await beside(cluster, f"64 concurrent gets, {name}", asyncio.ensure_future(work), seconds)
                await beside(cluster, f"40,000 rows, {name}", asyncio.ensure_future(lists(address, seconds)), seconds)
                work = watches(address, 1_000, seconds)
                await beside(cluster, f"1,000 watches, {name}", asyncio.ensure_future(work), seconds)
            await beside(cluster, "alone again", None, seconds)
        finally:
            await in_thread(cluster.stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args().seconds))
