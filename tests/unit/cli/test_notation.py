"""Keys and values as they are written in a shell."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.cli.notation import parse_key, parse_value, show_key, show_value
from kvorum.errors import InvalidArgument
from kvorum.keys import Key
from kvorum.kvu64 import KvU64


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('["users", "ada"]', ("users", "ada")),
        ("[]", ()),
        (
            '[1, 1.5, -0.0, true, false, {"int": "1"}, {"int": "-7"}, {"b64": "AQI="}]',
            (1.0, 1.5, -0.0, True, False, 1, -7, b"\x01\x02"),
        ),
        ('["ключ", {"float": "Infinity"}]', ("ключ", math.inf)),
    ],
)
def test_keys_are_json_arrays(text: str, key: Key) -> None:
    parsed = parse_key(text)
    assert parsed == key
    assert [type(part) for part in parsed] == [type(part) for part in key]
    assert show_key(parsed) == show_key(key)


def test_python_keys_are_tuples() -> None:
    assert parse_key("('a', 1, 1.0, b'x', True)", python=True) == ("a", 1, 1.0, b"x", True)
    assert show_key(("a", 1, 1.0, b"x"), python=True) == "('a', 1, 1.0, b'x')"


def test_integers_of_thousands_of_digits() -> None:
    """Any program may store a BigInt of 64 KiB; one such value must not spoil a list."""
    for number in (2**60_000, -(2**60_000)):
        text = show_value({"n": [number]})
        assert text == f'{{"n": [{{"$hex": "{hex(number)}"}}]}}'
        assert parse_value(text) == {"n": [number]}
        assert "an int of 60,001 bits" in show_value(number, python=True)
        assert "with a huge int" in show_value([number], python=True)
    with pytest.raises(InvalidArgument, match="so large an integer is written"):
        parse_value("1" * 5_000)
    with pytest.raises(InvalidArgument, match="is not an integer"):
        parse_key('[{"int": "' + "1" * 5_000 + '"}]')


parts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])), st.binary(), st.booleans(), st.integers(), st.floats()
)


@given(st.lists(parts).map(tuple))
def test_a_printed_key_can_be_pasted_back(key: Key) -> None:
    back = parse_key(show_key(key))
    assert repr(back) == repr(key)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
        st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
        st.integers(0, 2**64 - 1).map(KvU64),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "$b64", "$map", "$"]), inner, max_size=3),
        st.dictionaries(st.integers(), inner, min_size=1, max_size=3),
        st.sets(st.integers(), max_size=1),
    ),
    max_leaves=10,
)


@given(values)
def test_a_printed_value_can_be_pasted_back(value: object) -> None:
    back = parse_value(show_value(value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"name": "Ada", "n": [1, 2.5, None, True]}, '{"name": "Ada", "n": [1, 2.5, null, true]}'),
        (b"\x01\x02", '{"$b64": "AQI="}'),
        (KvU64(7), '{"$u64": "7"}'),
        (datetime(2026, 1, 2, tzinfo=UTC), '{"$date": "2026-01-02T00:00:00+00:00"}'),
        ({"$b64": "AQI="}, '{"$object": {"$b64": "AQI="}}'),
        ({1: "x"}, '{"$map": [[1, "x"]]}'),
    ],
)
def test_values_are_json_with_a_sign_for_what_json_lacks(value: object, text: str) -> None:
    assert show_value(value) == text
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"users"', "JSON array"),
        ("users", "JSON"),
        ('[["nested"]]', "a key part is"),
        ("[null]", "a key part is"),
        ('[{"int": "x"}]', "not an integer"),
        ('[{"int": "1", "b64": ""}]', "a key part is"),
        ('[{"b64": "?"}]', "not base64"),
        ('[{"float": "1"}]', "special float"),
        ("[9007199254740993]", "no JavaScript number"),
        ("[1e999]", "no JavaScript number"),
        ("[NaN]", "NaN is not JSON"),
        ("[" * 100_000, "a key"),
    ],
)
def test_what_is_no_key_is_refused_with_the_way_to_write_one(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_key(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text", "double quotes, as in '\"text\"'"),
        ("hello", "as in '\"hello\"'"),
        ("two words", "as in '\"text\"'"),
        ('{"$b64": 1}', "string"),
        ('{"$b64": "?"}', "base64"),
        ('{"$u64": "-1"}', "u64"),
        ('{"$date": "yesterday"}', "date"),
        ('{"$set": [[1]]}', "set"),
        ('{"$set": 1}', "array"),
        ('{"$map": [[1]]}', "pairs"),
        ('{"$map": [[[1], 2]]}', "map"),
        ('{"$object": 1}', "object"),
        ('{"$repr": "x"}', "none of"),
        ("[" * 200 + "]" * 200, "nested deeper"),
    ],
)
def test_what_is_no_value_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_value(text)


@pytest.mark.parametrize("text", ["users", "(", "1", "f()", "('a',", "'" * 3])
def test_what_is_no_python_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Python"):
        parse_key(text, python=True)


def test_what_has_no_notation_is_shown_all_the_same() -> None:
    assert show_value(object).startswith('{"$repr": ')
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    assert "$repr" in show_value(deep)


def test_a_bare_word_in_place_of_a_key_is_shown_as_a_key() -> None:
    with pytest.raises(InvalidArgument, match=r"""a key is an array, as in '\["users"\]'$"""):
        parse_key("users")
    with pytest.raises(InvalidArgument, match=r"""a key is an array, as in '\["hello"\]'$"""):
        parse_key("['users']")
