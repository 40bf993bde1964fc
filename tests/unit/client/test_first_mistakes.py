"""Mistakes that people make on their first day: each is told at once, and none has an effect that nobody wanted."""

import copy
from typing import Any

import pytest

import kvorum
from kvorum.errors import InvalidArgument, InvalidValue, LimitExceeded
from kvorum.target import Cluster, Folder, parse_target


@pytest.mark.parametrize("target", ["127.0.0.1:7401", "n1:7401,n2:7401,n3:7401", "kvorum:/n1:7401", "kvorum:n1"])
def test_an_address_without_its_scheme_does_not_become_a_folder(target: str) -> None:
    with pytest.raises(InvalidArgument, match="looks like an address: a cluster is opened as 'kvorum://"):
        parse_target(target, {})
    with pytest.raises(InvalidArgument, match="looks like an address"):
        parse_target(None, {"KVORUM_URL": target})
    assert parse_target(f"./{target}", {}) == Folder(f"./{target}")


def test_the_url_of_kv_connect_is_told_apart() -> None:
    with pytest.raises(InvalidArgument, match=r"a URL of KV Connect, .*as in 'kvorum://n1:7401'"):
        parse_target("http://n1:7402", {})
    for url in ("https://kv.example.org", "http://n1:x/", "http://[::1]:7402"):
        with pytest.raises(InvalidArgument, match=r"a URL of KV Connect, .*as in 'kvorum://host:7401'"):
            parse_target(url, {})


def test_what_only_resembles_an_address_is_a_folder() -> None:
    for path in ("app.kv", "data/app:v2", "kvorum.kv", "backup-2026-11-29T12:30.kv"):
        assert parse_target(path, {}) == Folder(path)
    assert parse_target("kvorum://n1", {}) == Cluster((("n1", 7401),))


async def test_an_entry_is_true_if_its_key_is_present() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        assert not await kv.get(("a",))
        await kv.set(("a",), None)
        assert await kv.get(("a",))


@pytest.mark.parametrize("handler", [lambda: None, lambda one, two: None, lambda *, value: None])
async def test_a_handler_that_cannot_take_a_message_is_refused_before_it_costs_one(handler: object) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        with pytest.raises(InvalidArgument, match="a handler is a function of one message"):
            await kv.listen_queue(handler)  # type: ignore[arg-type]


def test_errors_can_be_rebuilt_from_their_parts() -> None:
    """As a process pool does to hand them to its owner; `copy` takes the same way."""
    for error in (LimitExceeded("MAX_CHECKS", 100, 101, "checks"), InvalidValue("a tuple", "value['x']")):
        again = copy.copy(error)
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("wrong", [5, None, "ab", b"ab", {"a"}], ids=lambda wrong: type(wrong).__name__)
async def test_what_is_no_list_is_named_where_a_list_is_needed(wrong: Any) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        with pytest.raises(InvalidArgument, match="keys must be a list or tuple"):
            await kv.get_many(wrong)
        with pytest.raises(InvalidArgument, match="keys must be a list or tuple"):
            kv.watch(wrong)
        with pytest.raises(InvalidArgument, match="keys_if_undelivered must be a list or tuple"):
            await kv.enqueue(1, keys_if_undelivered=wrong)
        if wrong is not None:
            with pytest.raises(InvalidArgument, match="backoff_schedule must be a list or tuple"):
                await kv.enqueue(1, backoff_schedule=wrong)
