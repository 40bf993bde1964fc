"""Values beyond plain data: what Deno and Node make of them, references between them, and hostile bytes."""

import contextlib
import tracemalloc
from collections import deque
from datetime import UTC
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v8serialize.jstypes import (
    JSArray,
    JSError,
    JSHole,
    JSMap,
    JSRegExp,
    JSRegExpFlag,
    JSSet,
    JSUndefined,
)

from kvorum.errors import DataError, InvalidValue
from kvorum.kvu64 import KvU64
from kvorum.limits import MAX_RARE_VALUE_DEPTH
from kvorum.values import decode_payload, encode_payload

# What Deno 2.9.6 stored, with its header.
DENO_RARE: list[tuple[str, str]] = [
    ("ff106f2201756f220576616c75655a1005000000000000007b017b01", "{'u': {'value': 5}}"),  # a KvU64 in an object
    ("ff106f7b00", "{}"),  # a URL, or Headers
    ("ff10630200d8", r"'\ud800'"),
    ("ff10420201005657000200", r"JSUint16Array(JSArrayBuffer(b'\x01\x00'), item_length=1)"),
    ("ff1042020000563f000200", r"JSDataView(JSArrayBuffer(b'\x00\x00'), item_length=2)"),
    ("ff107e040800000000", r"JSArrayBuffer(b'\x00\x00\x00\x00', max_byte_length=8)"),
    ("ff1061034900490249044906400203", "JSArray([1, JSHole, 3])"),
    ("ff103b22016149023a02", "JSMap({'a': 1})"),
    ("ff10522201618102", "JSRegExp(source='a', flags=<JSRegExpFlag.Global|UnicodeSets: 257>)"),
    ("ff10726d220178732201782e", "JSError('x', stack='x')"),
]


@pytest.mark.parametrize(("encoded", "shown"), DENO_RARE)
def test_rare_values_of_deno_are_read(encoded: str, shown: str) -> None:
    assert repr(decode_payload(bytes.fromhex(encoded))) == shown


@pytest.mark.parametrize(
    "encoded",
    [
        "5cffffffff0f6f220474797065220c444f4d457863657074696f6e22076d65737361676522016d7b02",  # a DOMException
        "41015cffffffff0f6f22047479706522044269 6c6f627b01240001".replace(" ", ""),  # a Blob in an array
    ],
)
def test_host_objects_of_deno_are_named(encoded: str) -> None:
    with pytest.raises(DataError, match="it holds a Blob, File, CryptoKey or DOMException"):
        decode_payload(bytes.fromhex("ff10" + encoded))


def test_references_behind_a_view_of_node_lead_to_the_right_object() -> None:
    # [u, [1], [2], the first of both], as Node's v8.serialize writes a Uint8Array
    encoded = "ff0f4104" + "5c010107" + "41014902240001" + "41014904240001" + "5e02" + "240004"
    view, one, two, again = decode_payload(bytes.fromhex(encoded))
    assert (view, one, two) == (b"\x07", [1], [2])
    assert again is one


def test_references_behind_a_regexp_or_an_error_are_written_right() -> None:
    shared: list[Any] = [1]
    back = decode_payload(encode_payload([JSRegExp("x", JSRegExpFlag.NoFlag), JSError("e"), shared, [2], shared]))
    assert back[2:] == [[1], [2], [1]]
    assert back[4] is back[2]


def test_equal_views_stay_different_keys_of_a_map() -> None:
    encoded = "3b" + "420100564200010" + "0220161" + "420100564200010" + "0220162" + "3a04"
    back = decode_payload(bytes.fromhex("ff0f" + encoded))
    assert isinstance(back, JSMap)
    assert [*back.values()] == ["a", "b"]


def test_equal_numbers_are_not_made_one() -> None:
    back = decode_payload(encode_payload([JSRegExp("x", JSRegExpFlag.NoFlag), 0.0, -0.0, 1.0]))
    assert repr(back[1:]) == "[0.0, -0.0, 1.0]"


def test_parts_of_rare_values_are_plain() -> None:
    back = decode_payload(encode_payload(JSError("e", cause={"why": [1]})))
    assert type(back.cause) is dict and type(back.cause["why"]) is list
    for odd in ("\ud800", "é", "겦"):
        assert decode_payload(encode_payload([JSRegExp(odd, JSRegExpFlag.NoFlag), JSError(odd)]))[1].message == odd


# ---- depth and declared sizes


def test_what_is_written_of_rare_values_is_never_too_deep_to_be_read() -> None:
    nested: Any = JSRegExp("x", JSRegExpFlag.NoFlag)
    for _ in range(MAX_RARE_VALUE_DEPTH):
        nested = [nested]
    assert repr(decode_payload(encode_payload(nested))) == repr(nested)
    for deeper in ([nested], {"a": nested}, JSMap({"a": nested})):
        with pytest.raises(InvalidValue, match=f"nested more than {MAX_RARE_VALUE_DEPTH} deep, with parts"):
            encode_payload(deeper)


REGEXP = b"R\x22\x01a\x00"
HUGE = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    "part",
    [
        b"a" + HUGE + b"U" + HUGE[:4] + b"\x07I\x00@\x01" + HUGE,
        b"a" + HUGE + b"I\x00I\x00@\x01" + HUGE,
        b"A" + HUGE + b"I\x00" * 50,
        b"A\x01I\x00U\xfe\xff\xff\xff\x0fI\x00$\x01\x01",
        b"B" + HUGE,
        b"~\x04" + HUGE + b"xxxx",
        b"~" + HUGE + HUGE,
        b'"' + HUGE,
        b"c" + HUGE,
        b"S" + HUGE,
        b"Z" + HUGE,
        b"B\x04xxxxVB\x00" + HUGE + b"\x00",
        b"B\x04xxxxVD" + HUGE + b"\x04\x00",
        b"\\\x01" + HUGE,
        b"R\x22" + HUGE,
        b"s\x22" + HUGE,
        b"^" + HUGE,
        *(tag * 20_000 for tag in (b"A\x01", b"o", b";", b"'", b"a\x01I\x00", b"rc")),
    ],
    ids=lambda part: part[:12].hex(),
)
def test_declared_sizes_cost_nothing(part: bytes) -> None:
    """Both ways of reading: by the fast one, and behind a part that leaves the value to the other."""
    tracemalloc.start()
    try:
        for value in (part, b"A\x02" + REGEXP + part + b"$\x00\x02"):
            with contextlib.suppress(DataError):
                decode_payload(b"\xff\x0f" + value)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


# ---- writing whatever a program may give


class Odd:
    """Of no type that can be stored."""


class Level(IntEnum):
    LOW = 1


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(), max_size=6),
    st.binary(max_size=6),
    st.binary(max_size=6).map(bytearray),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.decimals(),
    st.complex_numbers(),
    st.just(KvU64(1)),
    st.just(Level.LOW),
    st.builds(Odd),
    st.just(JSUndefined),
    st.just(JSHole),
    st.builds(JSRegExp, st.text(max_size=3), st.just(JSRegExpFlag.NoFlag)),
    st.builds(JSError, st.none() | st.text(max_size=3)),
)
anything = st.recursive(
    junk,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.lists(inner, max_size=4).map(JSArray),
        st.lists(inner, max_size=4).map(JSSet),
        st.lists(st.tuples(inner, inner), max_size=4).map(JSMap),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.floats(), st.binary(max_size=3)), inner),
        st.sets(st.one_of(st.integers(), st.text(max_size=3), st.none(), st.tuples(st.integers()))),
    ),
    max_leaves=10,
)


@given(anything)
@settings(max_examples=400)
def test_anything_is_written_so_that_it_can_be_read_or_refused(value: Any) -> None:
    try:
        data = encode_payload(value)
    except InvalidValue as error:
        assert error.path.startswith("payload")
        return
    back = decode_payload(data)
    again = decode_payload(encode_payload(back))
    assert sorted(repr(again)) == sorted(repr(back))  # sets have no order


def test_undefined_is_none_but_where_null_is_there_too() -> None:
    assert decode_payload(bytes.fromhex("ff0f3b5f49023a02")) == {None: 1}
    assert decode_payload(bytes.fromhex("ff0f4102" + "5222016100" + "3b5f49023a02" + "240002"))[1] == {None: 1}
    both = decode_payload(bytes.fromhex("ff0f27305f2c02"))
    assert isinstance(both, JSSet) and [*both] == [None, JSUndefined]
    assert decode_payload(encode_payload(both)) == both
    assert decode_payload(encode_payload([JSUndefined, JSMap({"a": JSUndefined})])) == [None, JSMap({"a": None})]


def test_holes_stand_in_arrays_only() -> None:
    for value in ([JSHole, 1], JSArray([JSHole, 1])):
        assert decode_payload(encode_payload(value)) == JSArray([JSHole, 1])
    for wrong in (JSHole, {"a": JSHole}, JSMap([(1, JSHole)]), JSMap([(JSHole, 1)]), [JSSet([JSHole])]):
        with pytest.raises(InvalidValue, match="a hole can only stand in an array"):
            encode_payload(wrong)


def test_an_enumeration_in_a_rare_value_costs_no_more_than_its_number() -> None:
    """Python looks for an int of another class in a range step by step; the library's ranges have 2^32 steps."""
    assert decode_payload(encode_payload(JSMap([(Level.LOW, Level.LOW)]))) == {1: 1}


@pytest.mark.parametrize("header", ["ff0d", "ff0e", "ff11", "ff00", "ffff", "0f0f"])
def test_other_versions_are_not_guessed_at(header: str) -> None:
    with pytest.raises(DataError, match="not version 15 or 16"):
        decode_payload(bytes.fromhex(header + "490a"))
