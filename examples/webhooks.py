"""Webhooks: an HTTP endpoint enqueues what it gets and answers at once; it is passed on when the other side is up.

python -m examples.webhooks [TARGET]
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import kvorum
from examples.stage import beside, emptied, play

QUEUE = "webhooks"
Handler = Callable[[str, bytes], Awaitable[int]]


async def serve(handler: Handler) -> tuple[asyncio.Server, int]:
    """An HTTP server, as small as can be: `handler(delivery, body)` returns the status. Returns it and its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        writer.write(f"HTTP/1.1 {await handler(headers['x-delivery'], body)} .\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def post(port: int, delivery: str, body: bytes) -> int:
    """Returns the status. Errors: OSError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST / HTTP/1.1\r\nx-delivery: {delivery}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def example(kv: kvorum.Kv) -> str:
    queue = kv.queue(QUEUE)
    await queue.remove()
    await queue.define(max_attempts=10, backoff=kvorum.Exponential(20, factor=1.5, cap=1_000))
    received: dict[str, bytes] = {}
    complete = asyncio.Event()
    calls = 0

    async def endpoint(delivery: str, body: bytes) -> int:
        # Whoever gets no answer sends again: the same delivery within a day is taken once.
        await queue.send({"delivery": delivery, "body": body}, dedup_id=delivery, dedup_window=timedelta(days=1))
        return 202

    async def other_side(delivery: str, body: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls <= 5:
            return 503  # it is being restarted
        received[delivery] = body
        if len(received) == 5:
            complete.set()
        return 200

    inlet, port = await serve(endpoint)
    outlet, target = await serve(other_side)

    async def pass_on(message: kvorum.Message) -> None:
        status = await post(target, message.value["delivery"], message.value["body"])
        if status >= 500:
            await message.retry(reason=f"the other side answers {status}")
        elif status >= 400:
            await message.reject(reason=f"the other side answers {status}")

    async with inlet, outlet, beside(queue.listen(pass_on)):
        for number in (0, 1, 2, 1, 3, 4):  # one of them twice
            assert await post(port, f"d{number}", b"body %d" % number) == 202
        await complete.wait()
        stats = await emptied(queue)
    assert received == {f"d{number}": b"body %d" % number for number in range(5)}
    assert (stats.sent, stats.duplicates, stats.done, stats.failed) == (5, 1, 5, 5)
    return f"webhooks: ok, {stats.done} passed on, after {stats.failed} attempts that failed"


if __name__ == "__main__":
    play(example)
