"""One suite for both clients and all kinds of databases."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import kvorum
from tests.integration.api.adapter import open_over_sync

Open = Callable[[], Awaitable[kvorum.Kv]]


@pytest.fixture(params=["async", "sync"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def open_client(target: str, style: str) -> AsyncIterator[Open]:
    """Opens a client of the target; all are closed in the end."""
    opened: list[Any] = []

    async def open_one() -> Any:
        kv = await (kvorum.open_kv(target) if style == "async" else open_over_sync(target))
        opened.append(kv)
        return kv

    yield open_one
    for kv in opened:
        await kv.close()


@pytest.fixture
async def kv(open_client: Open) -> kvorum.Kv:
    return await open_client()


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    """First part of a test's keys, and the name of its queue: a cluster is shared by all tests."""
    name: str = request.node.name
    return name[:200]
