"""Messages that foreign clients put on a queue, and a Python listener at the cluster (P01)."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import kvorum
from kvorum import Message
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.conftest import Client, at

NODE_PACKAGES = ("@deno/kv", "kv-connect-kit")


class Listener:
    """Takes all messages, and keeps those of one test; the handler raises while `fails` is set."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.fails = False

    async def handle(self, message: Message) -> None:
        self.messages.put_nowait(message)
        if self.fails:
            raise RuntimeError("the handler of this test fails on purpose")

    async def next(self, p: str, patience: float = 10) -> Message:
        async with asyncio.timeout(patience):
            while True:
                message = await self.messages.get()
                if message.value["p"] == p:
                    return message


@pytest.fixture
async def listener(nodes: DevCluster) -> AsyncIterator[Listener]:
    found = Listener()
    async with kvorum.open_kv(nodes.url) as kv:
        task = asyncio.create_task(kv.listen_queue(found.handle, with_message=True))
        yield found
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def program(client: Client, code: str, **arguments: Any) -> Any:
    return await asyncio.to_thread(lambda: client(code, **arguments))


@at(NODE_PACKAGES)
async def test_p01_a_message_arrives(client: Client, p: str, listener: Listener) -> None:
    """P01: within a second; any value."""
    stamp = await program(
        client, "return (await kv.enqueue({ p, n: 2n ** 60n, when: new Date(1500) })).versionstamp", p=p
    )
    message = await listener.next(p)
    assert message.value["n"] == 2**60
    assert message.value["when"].timestamp() == 1.5
    assert message.attempt == 1
    assert message.id.startswith(stamp)


@at(NODE_PACKAGES, [1])
async def test_a_message_belongs_to_its_commit(client: Client, p: str, listener: Listener) -> None:
    """A failed check sends nothing."""
    oks = await program(
        client,
        """
        const absent = { key: [p], versionstamp: null };
        const first = await kv.atomic().check(absent).set([p], 1).enqueue({ p, n: 1 }).commit();
        const second = await kv.atomic().check(absent).set([p], 2).enqueue({ p, n: 2 }).commit();
        const third = await kv.atomic().enqueue({ p, n: 3 }).commit();
        return [first.ok, second.ok, third.ok];
        """,
        p=p,
    )
    assert oks == [True, False, True]
    assert [(await listener.next(p)).value["n"] for _ in range(2)] == [1, 3]


@at(NODE_PACKAGES, [2])
async def test_a_delayed_message_waits(client: Client, p: str, listener: Listener) -> None:
    before = time.monotonic()
    await program(client, "await kv.enqueue({ p, n: 2 }, { delay: 1000 }); await kv.enqueue({ p, n: 1 })", p=p)
    arrived = [(await listener.next(p)).value["n"] for _ in range(2)]
    assert time.monotonic() > before + 0.95, "delivered too early"
    assert arrived == [1, 2]


@at(NODE_PACKAGES, [0])
async def test_what_no_handler_takes_ends_under_its_keys(client: Client, p: str, listener: Listener) -> None:
    """The packages always ask for four retries, after 100, 200, 400 and 800 ms."""
    listener.fails = True
    await program(client, "await kv.enqueue({ p }, { keysIfUndelivered: [[p, 1], [p, 2]] })", p=p)
    assert [(await listener.next(p)).attempt for _ in range(5)] == [1, 2, 3, 4, 5]
    read = "return (await kv.getMany([[p, 1], [p, 2]])).map((entry) => entry.value)"
    async with asyncio.timeout(60):
        while None in (values := await program(client, read, p=p)):
            pass
    assert values == [{"p": p}] * 2


@at(NODE_PACKAGES, [1])
async def test_what_is_refused_of_a_message(client: Client, p: str) -> None:
    too_large = await asyncio.to_thread(lambda: client.refusal("await kv.enqueue(new Uint8Array(70_000))", p=p))
    keys = "await kv.enqueue({ p }, { keysIfUndelivered: Array.from({ length: 11 }, (_, i) => [p, i]) })"
    too_many = await asyncio.to_thread(lambda: client.refusal(keys, p=p))
    assert too_large[1] == "Unexpected response status: 400 A value exceeds the value size limit."
    assert too_many[1] == "Unexpected response status: 400 Too many dead letter keys for a single queue message."
    listening = await asyncio.to_thread(lambda: client.refusal("await kv.listenQueue(() => {})", p=p))
    assert listening == ("Error", "'listenQueue' is not possible over KV Connect")


@at(["denokv"])
async def test_denokv_enqueues(client: Client, p: str, listener: Listener) -> None:
    """It sends no time to deliver at, which the stock server refuses: it means now."""
    await program(client, "await kv.enqueue(tools.js.JSObject(p=p, n=1))", p=p)
    assert (await listener.next(p)).value == {"p": p, "n": 1}
    await program(
        client,
        """
        from datetime import UTC, datetime, timedelta
        later = datetime.now(UTC) + timedelta(seconds=1)
        value = tools.js.JSObject(p=p, n=3)
        atomic = kv.atomic().check_key_not_set((p,)).enqueue(value, delivery_time=later, dead_letter_keys=[(p, "dead")])
        await atomic.enqueue(tools.js.JSObject(p=p, n=2)).write()
        """,
        p=p,
    )
    assert [(await listener.next(p)).value["n"] for _ in range(2)] == [2, 3]


@at(["deno"])
def test_deno_itself_refuses_to_enqueue(client: Client, p: str) -> None:
    """docs/deno.md says so: no request reaches the server."""
    text = "Enqueue operations are not supported in KV Connect"
    assert client.refusal("await kv.enqueue(1)") == ("Error", text)
    assert client.refusal("await kv.atomic().set([p], 1).enqueue(1).commit()", p=p) == ("Error", text)
    assert client("return (await kv.get([p])).versionstamp", p=p) is None
