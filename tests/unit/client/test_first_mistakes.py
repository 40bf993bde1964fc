"""Mistakes that people make on their first day: each is told at once, and none has an effect that nobody wanted."""

import copy
from collections.abc import Awaitable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import kvorum
import kvorum.sync
from kvorum.errors import InvalidArgument, InvalidKey, InvalidValue, LimitExceeded, OutOfRange, TypeMismatch
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


async def test_a_database_that_is_not_open_yet_says_how_it_is_opened(tmp_path: Path) -> None:
    opening: Any = kvorum.open_kv(tmp_path / "db")
    for name in ("get", "close"):
        with pytest.raises(AttributeError, match=r"not open yet: use `async with kvorum.open_kv\(…\) as kv`, or "):
            getattr(opening, name)
    with pytest.raises(TypeError, match=r"kvorum.sync.open_kv is for code without asyncio"), opening:
        pass
    assert not hasattr(opening, "__deepcopy__")
    kv = await opening
    assert repr(kv).startswith("<kvorum.Kv ")
    await kv.close()


async def test_what_is_read_by_async_for_says_so() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        made: list[Any] = [kv.list(()), kv.watch([("a",)]), kv.watch_prefix(()), kv.follow(())]
        for one in made:
            with pytest.raises(TypeError, match="is read by `async for`, not by `for`: use `async for "):
                for _ in one:
                    pass
            assert not isinstance(one, Iterable | Awaitable)


async def test_a_database_is_known_by_its_target(tmp_path: Path) -> None:
    async with kvorum.open_kv(tmp_path / "db") as kv:
        assert repr(kv) == f"<kvorum.Kv {tmp_path}/db>"
    assert repr(kv) == f"<kvorum.Kv {tmp_path}/db, closed>"
    with kvorum.sync.open_kv(":memory:") as blocking:
        assert repr(blocking) == "<kvorum.sync.Kv :memory:>"
    assert str(parse_target("kvorum://n1,[::1]:7411", {})) == "kvorum://n1:7401,[::1]:7411"


async def test_one_key_in_place_of_a_list_of_keys_is_told() -> None:
    async def reads(transaction: kvorum.Transaction) -> object:
        return await transaction.get_many(("a", 1))  # type: ignore[arg-type]

    async with kvorum.open_kv(":memory:") as kv:
        for call in (
            lambda: kv.get_many(("a", 1)),  # type: ignore[arg-type]
            lambda: kv.watch(("a",)),  # type: ignore[arg-type]
            lambda: kv.transaction(reads),
        ):
            with pytest.raises(InvalidKey, match=r"takes a list of keys, each of them a tuple, .* got 'a' in place"):
                await call()


async def test_a_check_says_what_it_takes() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        for wrong in (None, ("k",)):
            with pytest.raises(InvalidArgument, match=r"a check takes an Entry, or a key and exactly one of .*\("):
                kv.atomic().check(wrong)  # type: ignore[call-overload]


async def test_what_cannot_be_stored_is_told_with_what_can() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        entry = await kv.get(("a",))
        for value in (entry, [entry]):
            with pytest.raises(InvalidValue, match=r"store entry\.value"):
                await kv.set(("b",), value)
        with pytest.raises(InvalidValue, match="Decimal cannot be stored; None, bool, int, float, str, bytes"):
            await kv.set(("b",), Decimal(1))


async def test_errors_of_sums_tell_operand_and_bounds_and_each_key_once() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        await kv.set(("name",), "Ada")
        await kv.set(("stock",), 0)
        with pytest.raises(OutOfRange, match=r"^\('stock',\): sum of -1 with minimum 0: The result .* limit$"):
            await kv.atomic().sum(("stock",), -1, minimum=0).commit()
        with pytest.raises(OutOfRange, match=r"^\('c',\): sum of -1: .* \(a KvU64, which a sum makes of an absent key"):
            await kv.atomic().sum(("c",), -1).sum(("c",), -1).commit()
        with pytest.raises(TypeMismatch, match=r"unsupported value type \(what is stored there is no number"):
            await kv.atomic().sum(("name",), 1).commit()
