"""Whole HTTP requests, as the server hands them to the routes: any method, path, headers and body. The answer has a
status that says whose fault it was, never 500, and is what its path promises.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.http.app import App
from kvorum_node.http.message import PROTOBUF, Refusal, Request, Response
from tests.fuzz import connect_read, connect_write, metadata
from tests.fuzz.choices import Choices
from tests.fuzz.local_node import LocalNode, local_node

TOKEN = "sesame ü"
PATHS = (
    "/v2/atomic_write",
    "/v2/snapshot_read",
    "/v2/watch",
    "/",
    "/livez",
    "/readyz",
    "/metrics",
    "",
    "//",
    "/v2/atomic_write/",
)
METHODS = ("POST", "GET", "HEAD", "post", "")
HEADERS = ("authorization", "x-denokv-version", "x-denokv-database-id", "user-agent", "content-type", "host")
VALUES = (
    "Bearer any", "bearer\tx", "Bearer", "Basic x", "Bearer " + TOKEN, "Bearer \xff\xfe", "1", "2", "3", "4", "", "-1",
    "Deno/2.7.9", "Deno/999999999.1", "Deno/2.8", "node", "application/x-protobuf", "localhost:1", "a\"b\\\x00", "٣",
)  # fmt: skip
STATUSES = frozenset((200, 400, 401, 403, 404, 405, 503))
_HEAD = bytes((0, 1, 0, 0, 0, 0, 0))
"""POST, with a token, to the node that takes any."""

SEEDS = [
    bytes((path,)) + _HEAD + body
    for path, bodies in (
        (0, connect_write.SEEDS),
        (1, connect_read.SEEDS),
        (2, connect_read.SEEDS),
        (3, metadata.SEEDS),
        (4, [b""]),
        (6, [b""]),
    )
    for body in bodies
] + [bytes((3, 0, 3, 0, 4, 0, 1, 6, 0, 5, 17, 0, 3, 0)) + metadata.SEEDS[2]]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    with local_node() as node, node.app() as open_app, node.app(TOKEN) as guarded_app:
        yield partial(check, node, [open_app, guarded_app])


def check(node: LocalNode, apps: list[App], data: bytes) -> None:
    choices = Choices(data)
    path = choices.pick(PATHS)
    method = choices.pick(METHODS)
    headers: dict[str, str] = {}
    for _ in range(choices.byte() % 6):
        name, value = choices.pick(HEADERS), choices.pick(VALUES)
        headers[name] = value if not choices.chance() else choices.raw(20).decode("latin-1")
    app = apps[choices.chance()]
    peer = choices.pick(("127.0.0.1", "::1", "10.0.0.1", "", "x"))
    head = Request(method, path, headers, b"", peer, connection=node)
    try:
        room = app.admit(head)
    except Refusal as refusal:
        assert refusal.status in STATUSES
        _judge_head(refusal.response())
        room = 0
    # What was refused by its head is asked all the same: it must be refused again.
    node.run(_ask(app, replace(head, body=choices.rest()[:room])))


async def _ask(app: App, request: Request) -> None:
    response = await app.handle(request)
    assert response.status in STATUSES, (response.status, response.chunks)
    _judge_head(response)
    content = b"".join(response.chunks)
    assert response.size == len(content)
    if response.status != 200:
        assert content, "an error without a word"
        assert response.stream is None
    elif request.path == "/":
        _judge_metadata(json.loads(content))
    elif response.content_type == PROTOBUF:
        kind = dp.AtomicWriteOutput if request.path.endswith("write") else dp.SnapshotReadOutput
        assert kind.FromString(content).status in (1, 2)
    elif response.stream is not None:
        await _judge_watch(response)
    response.done()
    assert app.statistics()["kv_connect_answer_bytes"] == 0
    assert app.statistics()["kv_connect_watches"] == 0


def _judge_head(response: Response) -> None:
    for name, value in response.fields(b"now"):
        for text in (name, value):
            assert text.isascii()
            assert text.decode().isprintable()


def _judge_metadata(answer: dict[str, Any]) -> None:
    assert answer.keys() == {"version", "databaseId", "endpoints", "token", "expiresAt"}
    assert str(uuid.UUID(answer["databaseId"])) == answer["databaseId"]
    assert answer["token"]
    assert answer["endpoints"][0]["url"].endswith("/v2")


async def _judge_watch(response: Response) -> None:
    stream: Any = response.stream
    first = await anext(stream)
    assert first == bytes(4)
    frame = await anext(stream)
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    await stream.aclose()
