"""What a client's objects show of themselves, in a debugger, a log or a report of a fault: not the token."""

import inspect
from collections import deque
from collections.abc import Iterator
from typing import Any

import kvorum
from kvorum import tokens
from kvorum.auth import NewToken
from kvorum.cli.admin import AdminClient
from kvorum.cluster.client import ClusterBackend

TOKEN = tokens.text_of(tokens.make_id(), tokens.make_secret())
ADDRESSES = [("127.0.0.1", 1)]


def parts_of(value: Any) -> Iterator[Any]:
    """What an object holds."""
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif type(value).__module__.startswith("kvorum."):
        yield from getattr(value, "__dict__", {}).values()
        for kind in type(value).__mro__:
            names = getattr(kind, "__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if hasattr(value, name):
                    yield getattr(value, name)
    elif inspect.ismethod(value):
        yield value.__self__


def reachable(root: Any) -> list[Any]:
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen and not isinstance(value, type):
            seen[id(value)] = value
            waiting += parts_of(value)
    return list(seen.values())


def leaks(root: Any) -> list[str]:
    """Objects that show the token, but for itself; and whether it is there at all."""
    found = reachable(root)
    assert TOKEN in [value for value in found if isinstance(value, str)], "it does not hold the token"
    return [repr(value) for value in found if not isinstance(value, str) and TOKEN in repr(value)]


async def test_a_client_and_all_that_it_is_made_of() -> None:
    backend = ClusterBackend(ADDRESSES, token=TOKEN)
    try:
        assert leaks(backend) == []
    finally:
        await backend.close()


async def test_a_client_of_the_command_line() -> None:
    async with AdminClient(ADDRESSES, None, TOKEN) as client:
        assert leaks(client) == []


def test_a_client_that_is_not_open_yet() -> None:
    assert TOKEN not in repr(kvorum.open_kv("kvorum://127.0.0.1:1", token=TOKEN))


def test_a_token_that_was_made() -> None:
    assert TOKEN not in repr(NewToken("0" * 16, "web", TOKEN))


async def test_it_would_be_noticed() -> None:
    async with AdminClient(ADDRESSES, None, TOKEN) as client:
        client.shown = (TOKEN,)  # type: ignore[attr-defined]
        assert len(leaks(client)) == 1
