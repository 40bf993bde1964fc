"""Selectors and cursors: Deno's ranges, texts and bytes."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.errors import InvalidArgument, InvalidKey, LimitExceeded
from kvorum.keys import Key, encode_key
from kvorum.selector import cursor_at, resume, select

A = encode_key(("a",))


@pytest.mark.parametrize(
    ("selector", "start", "end"),
    [
        ((("a",), None, None), A + b"\x00", A + b"\xff"),
        (((), None, None), b"\x00", b"\xff"),
        ((("a",), ("a", "b"), None), encode_key(("a", "b")), A + b"\xff"),
        ((("a",), None, ("a", "b")), A + b"\x00", encode_key(("a", "b"))),
        ((None, ("a",), ("b",)), A, encode_key(("b",))),
        ((None, (), ("b",)), b"", encode_key(("b",))),
        ((None, ("a",), ("a",)), A, A),
    ],
)
def test_ranges(selector: tuple[Key | None, Key | None, Key | None], start: bytes, end: bytes) -> None:
    selected = select(*selector)
    assert (selected.start, selected.end) == (start, end)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ((None, None, None), "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        ((None, ("a",), None), "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        ((None, None, ("a",)), "Selector must specify either 'prefix' or both 'start' and 'end' key"),
        (
            (("a",), ("a", 1), ("a", 2)),
            "Selector can not specify both 'start' and 'end' key when specifying 'prefix'",
        ),
        ((("a",), ("a",), None), "Start key is not in the keyspace defined by prefix"),
        ((("a",), ("b",), None), "Start key is not in the keyspace defined by prefix"),
        ((("a",), None, ("a",)), "End key is not in the keyspace defined by prefix"),
        ((("a",), None, ("b", 1)), "End key is not in the keyspace defined by prefix"),
        # It begins with the prefix's bytes, but is another string: a range up to it would hold foreign keys.
        ((("a",), None, ("a\0b",)), "End key is not in the keyspace defined by prefix"),
        ((None, ("b",), ("a",)), "Start key is greater than end key"),
    ],
)
def test_what_is_no_selector(selector: tuple[Key | None, Key | None, Key | None], text: str) -> None:
    with pytest.raises(InvalidKey) as error:
        select(*selector)
    assert str(error.value) == text


def test_bounds_have_a_limit() -> None:
    largest = ("x" * 2_046,)
    assert len(select(largest, None, None).start) == 2_049
    with pytest.raises(LimitExceeded) as error:
        select(("x" * 2_047,), None, None)
    assert (error.value.limit, error.value.got) == ("MAX_READ_KEY_SIZE", 2_050)


# Cursors that Deno 2.9.6 gave out.
CURSORS: list[tuple[tuple[Key | None, Key | None, Key | None], Key, str]] = [
    ((("m",), None, None), ("m", 0.0), "IYAAAAAAAAAA"),
    ((("a",), None, None), ("a", "b"), "AmIA"),
    ((None, ("m", 3.0), ("m", 6.0)), ("m", 3.0), "CAAAAAAAAA=="),
]


@pytest.mark.parametrize(("selector", "key", "cursor"), CURSORS)
def test_cursors_are_those_of_deno(selector: tuple[Key | None, Key | None, Key | None], key: Key, cursor: str) -> None:
    selected = select(*selector)
    encoded = encode_key(key)
    assert cursor_at(selected, encoded) == cursor
    assert resume(selected, cursor, reverse=False) == (encoded + b"\0", selected.end)
    assert resume(selected, cursor, reverse=True) == (selected.start, encoded)


def test_an_empty_cursor_is_none() -> None:
    selected = select(("a",), None, None)
    assert resume(selected, "", reverse=False) == (selected.start, selected.end)


@pytest.mark.parametrize("cursor", ["?", "AmI", "AmIA=", "Ä", "A m I A", 5])
def test_what_is_no_cursor(cursor: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid cursor"):
        resume(select(("a",), None, None), cursor, reverse=False)


def test_a_cursor_of_another_selector_is_out_of_bounds() -> None:
    everything = select((), None, None)
    before, behind = (cursor_at(everything, encode_key(key)) for key in (("a",), ("z",)))
    inner = select((), ("m",), None)
    with pytest.raises(InvalidArgument, match="cursor out of bounds"):
        resume(inner, before, reverse=False)
    inner = select((), None, ("m",))
    with pytest.raises(InvalidArgument, match="cursor out of bounds"):
        resume(inner, behind, reverse=True)
    with pytest.raises(InvalidArgument, match="cursor out of bounds"):
        resume(everything, cursor_at(everything, b"x" * 2_049), reverse=False)


parts = st.one_of(st.text("ab\0", max_size=3), st.binary(max_size=2), st.integers(-300, 300), st.booleans())
keys = st.lists(parts, max_size=3).map(tuple)


@given(prefix=keys, key=keys)
def test_a_prefix_selects_exactly_the_longer_keys_that_begin_with_it(prefix: Key, key: Key) -> None:
    selected = select(prefix, None, None)
    inside = selected.start <= encode_key(key) < selected.end
    begins = len(key) > len(prefix) and [*map(repr, key[: len(prefix)])] == [*map(repr, prefix)]
    assert inside == begins


def test_a_made_up_cursor_shows_nothing_beyond_the_prefix() -> None:
    selected = select(("a",), None, None)
    foreign = encode_key(("a\0z",))
    assert foreign.startswith(encode_key(("a",)))
    start, end = resume(selected, cursor_at(selected, foreign + b"\xff"), reverse=True)
    assert not start <= foreign < end


@given(
    prefix=keys,
    start=st.none() | keys,
    end=st.none() | keys,
    cursor=st.one_of(
        st.text(max_size=12),
        st.text("AB_-=w/+ \n", max_size=12),
        st.binary(max_size=12).map(lambda data: base64.urlsafe_b64encode(data).decode()),
    ),
    reverse=st.booleans(),
    bare=st.booleans(),
)
@settings(max_examples=400)
def test_any_cursor_is_refused_or_stays_within_its_selector(
    prefix: Key, start: Key | None, end: Key | None, cursor: str, reverse: bool, bare: bool
) -> None:
    below = [None if key is None else prefix + key for key in (start, end)]
    try:
        selected = select(None, start, end) if bare else select(prefix, *below)
        low, high = resume(selected, cursor, reverse=reverse)
    except InvalidArgument:
        return
    assert low >= high or selected.start <= low < high <= selected.end


@given(prefix=keys, rest=st.lists(keys.filter(bool), min_size=1, max_size=6), reverse=st.booleans())
def test_a_cursor_goes_on_exactly_behind_its_key(prefix: Key, rest: list[Key], reverse: bool) -> None:
    selected = select(prefix, None, None)
    stored = sorted({encode_key(prefix + key) for key in rest}, reverse=reverse)
    for at, key in enumerate(stored):
        start, end = resume(selected, cursor_at(selected, key), reverse=reverse)
        assert [other for other in stored if start <= other < end] == stored[at + 1 :]
