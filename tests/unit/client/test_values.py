"""Values: real bytes of Deno, both ways, against v8serialize, and what is refused."""

import contextlib
import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import v8serialize
from hypothesis import given, settings
from hypothesis import strategies as st
from v8serialize.jstypes import JSArray, JSError, JSMap, JSObject, JSRegExp, JSRegExpFlag, JSSet, JSUndefined

from kvorum import v8
from kvorum.errors import DataError, InvalidValue, LimitExceeded
from kvorum.kvu64 import KvU64
from kvorum.limits import MAX_VALUE_DEPTH
from kvorum.values import BYTES, LE64, V8, decode_payload, decode_value, encode_number, encode_payload, encode_value

# Bytes that Deno 2.9.6 writes, after the header.
READ: list[tuple[str, Any]] = [
    ("5f", None),
    ("30", None),
    ("54", True),
    ("46", False),
    ("490a", 5),
    ("4909", -5),
    ("5505", 5),
    ("4e0000000000000080", -0.0),
    ("4e000000000000f87f", math.nan),
    ("4e000000000000e041", 2**31),
    ("4e000000000000f83f", 1.5),
    ("5a100500000000000000", 5),
    ("5a110500000000000000", -5),
    ("5a00", 0),
    ("2201e9", "é"),
    ("5302c3a9", "é"),
    ("6304a6ace800", "겦è"),
    ("006302a6ac", "겦"),
    ("44000000000000f83f", datetime(1970, 1, 1, 0, 0, 0, 1500, UTC)),
    ("6f220161490222016249047b02", {"a": 1, "b": 2}),
    ("6f490222017849045f7b02", None),
    ("4103490249044906240003", [1, 2, 3]),
    ("3b490222016122016249043a04", None),
    ("27490249042c02", {1, 2}),
]


@pytest.mark.parametrize("version", ["0f", "10"])
@pytest.mark.parametrize(("encoded", "value"), [row for row in READ if row[1] is not None or len(row[0]) == 2])
def test_real_bytes_are_read(encoded: str, value: Any, version: str) -> None:
    back = decode_payload(bytes.fromhex("ff" + version + encoded))
    assert repr(back) == repr(value)


def test_objects_with_index_keys_and_mixed_maps() -> None:
    assert decode_payload(bytes.fromhex("ff0f6f4902220178 490422 01797b02".replace(" ", ""))) == {"1": "x", "2": "y"}
    assert decode_payload(bytes.fromhex("ff0f3b49022201612201624904 3a04".replace(" ", ""))) == {1: "a", "b": 2}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "30"),
        (True, "54"),
        (5, "490a"),
        (-5, "4909"),
        (-(2**31), "49ffffffff0f"),
        (2**31, "4e000000000000e041"),
        (2**53, "4e0000000000004043"),
        (2**53 + 1, "5a100100000000002000"),
        (-(2**64), "5a2100000000000000000100000000000000"),
        (5.0, "4e0000000000001440"),
        ("é", "2201e9"),
        ("겦", "6302a6ac"),
        ({"a": 1}, "6f22016149027b01"),
        ({}, "6f7b00"),
        ([], "4100240000"),
        ({1: "a"}, "3b49022201613a02"),
        ({5}, "27490a2c01"),
        ([b"\x01"], "410142010156420001002400 01".replace(" ", "")),
    ],
)
def test_what_is_written(value: Any, encoded: str) -> None:
    assert encode_payload(value).hex() == "ff0f" + encoded


def test_wide_strings_are_aligned_as_v8_aligns_them() -> None:
    assert encode_payload(["겦"]).hex() == "ff0f4101" + "6302a6ac" + "240001"
    assert encode_payload([True, "겦"]).hex() == "ff0f410254" + "00" + "6302a6ac" + "240002"
    assert decode_payload(encode_payload([True, "겦"])) == [True, "겦"]


def test_the_three_encodings() -> None:
    assert encode_value(b"raw") == (b"raw", BYTES)
    assert encode_value(bytearray(b"raw")) == (b"raw", BYTES)
    assert encode_value(KvU64(258)) == (bytes([2, 1, 0, 0, 0, 0, 0, 0]), LE64)
    assert encode_value(258)[1] == V8
    assert decode_value(b"raw", BYTES) == b"raw"
    counter = decode_value(bytes([2, 1, 0, 0, 0, 0, 0, 0]), LE64)
    assert (type(counter), counter) == (KvU64, 258)


# ---- both ways

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-(2**33), 2**33),
    st.floats().filter(lambda x: not (math.isfinite(x) and x.is_integer() and 2**31 <= abs(x) <= 2**53)),
    st.text(st.characters(), max_size=12),
    st.binary(max_size=12),
    st.datetimes(
        datetime(1700, 1, 1), datetime(2240, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3))])
    ),
)
hashable = st.one_of(st.integers(2, 2**60), st.text(max_size=5), st.binary(max_size=5))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4).filter(lambda d: not d or not all(type(k) is str for k in d)),
        st.sets(hashable, max_size=4),
    ),
    max_leaves=12,
)


def shown(value: Any) -> Any:
    """Equal for what counts as equal: type by type, NaN with NaN, datetimes by moment."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value) if value == value else "nan")
    if isinstance(value, datetime):
        return ("datetime", value.astimezone(UTC))
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return ("dict", [(shown(key), shown(item)) for key, item in value.items()])
    return (type(value).__name__, value)


@given(values)
@settings(max_examples=300)
def test_round_trip(value: Any) -> None:
    data = encode_payload(value)
    assert shown(decode_payload(data)) == shown(value)
    assert shown(decode_payload(b"\xff\x10" + data[2:])) == shown(value)


plain = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.floats(allow_nan=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(lambda t: not t.isdigit()),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


def from_v8serialize(value: Any) -> Any:
    if isinstance(value, JSArray):
        return [from_v8serialize(item) for item in value.array]
    if isinstance(value, JSObject):
        return {key: from_v8serialize(item) for key, item in value.items()}
    return value


@given(plain)
def test_v8serialize_reads_what_is_written(value: Any) -> None:
    assert from_v8serialize(v8serialize.loads(encode_payload(value))) == value


def to_v8serialize(value: Any) -> Any:
    if isinstance(value, dict):
        return JSObject({key: to_v8serialize(item) for key, item in value.items()})
    if isinstance(value, list):
        return JSArray([to_v8serialize(item) for item in value])
    return value


@given(plain)
def test_what_v8serialize_writes_is_read(value: Any) -> None:
    def floats_aside(part: Any) -> Any:
        if isinstance(part, float) and part.is_integer() and 2**31 <= abs(part) <= 2**53:
            return int(part)
        if isinstance(part, list):
            return [floats_aside(item) for item in part]
        return {key: floats_aside(item) for key, item in part.items()} if isinstance(part, dict) else part

    assert decode_payload(v8serialize.dumps(to_v8serialize(value))) == floats_aside(value)


def test_large_integral_floats_come_back_as_equal_ints() -> None:
    assert repr(decode_payload(encode_payload(float(2**40)))) == repr(2**40)
    assert repr(decode_payload(encode_payload(float(2**54)))) == repr(float(2**54))
    assert repr(decode_payload(encode_payload(3.0))) == "3.0"


def test_shared_and_circular_objects_of_javascript_are_read() -> None:
    # {a: x, b: x} with x = [1]; and a list that holds itself
    shared = decode_payload(bytes.fromhex("ff0f6f22016141014902240001 2201625e017b02".replace(" ", "")))
    assert shared == {"a": [1], "b": [1]}
    assert shared["a"] is shared["b"]
    circular = decode_payload(bytes.fromhex("ff0f41015e00240001"))
    assert circular[0] is circular


# ---- what Python has no type for


@pytest.mark.parametrize(
    "value",
    [
        JSRegExp("a+", JSRegExpFlag.Global),
        JSMap({"a": 1, "b": 2}),
        JSSet([1, True]),
        JSArray([1, 2], x=3),
        JSError("message"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_javascript_types_survive_a_round_trip(value: Any) -> None:
    data = encode_payload({"inside": [value, {"plain": 1}]})
    back = decode_payload(data)
    assert type(back) is dict
    assert type(back["inside"]) is list
    assert type(back["inside"][0]) is type(value)
    assert back["inside"][1] == {"plain": 1}
    assert encode_payload(back) == data


def test_a_map_of_strings_keeps_being_a_map() -> None:
    data = bytes.fromhex("ff0f3b2201612201623a02")
    back = decode_payload(data)
    assert isinstance(back, JSMap)
    assert back["a"] == "b"
    assert b";" in encode_payload(back)


def test_an_undefined_in_a_rare_value_is_none() -> None:
    assert decode_payload(v8serialize.dumps(JSArray([JSUndefined, JSMap({"a": 1})])))[0] is None


# ---- what is refused


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [1, object()]}, "value['items'][1]"),
        ([{"u": KvU64(100)}], "value[0]['u']"),
        ({"t": (1, 2)}, "value['t']"),
        ([range(3)], "value[0]"),
        ({1, (2, 3)}, "value{(2, 3)}"),
        ({1j: 2}, "value{key 1j}"),
        ({"when": datetime(2026, 1, 1)}, "value['when']"),
        ({1: {"deep": 1j}}, "value[1]['deep']"),
        (open, "value"),
    ],
)
def test_what_cannot_be_represented_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        encode_value(value)
    assert caught.value.path == path
    assert caught.value.outcome == "not applied"


def test_p10_a_nested_counter_is_refused() -> None:
    """P10 · deno#22415 · a counter nested in an object comes back as a plain object → refused with a clear error."""
    with pytest.raises(InvalidValue, match=r"value\['u'\]: a KvU64 can only be a value of its own"):
        encode_value({"u": KvU64(100)})


def test_a_kind_of_counter_is_refused_too() -> None:
    class Votes(KvU64):
        pass

    for value in ([Votes(1)], {Votes(1): 1}, {Votes(1)}, [JSMap({"u": Votes(1)})]):
        with pytest.raises(InvalidValue, match="a KvU64 can only be a value of its own"):
            encode_value(value)
    assert encode_value(Votes(1)) == (bytes([1, 0, 0, 0, 0, 0, 0, 0]), LE64)


def test_a_circular_value_stays_circular() -> None:
    circular: dict[str, Any] = {"name": "loop", "when": datetime(2026, 1, 1, tzinfo=UTC)}
    circular["self"] = [circular, "é", "겦", b"x"]
    back = decode_payload(encode_payload(circular))
    assert back["self"][0] is back
    assert (back["name"], back["when"], back["self"][1:]) == ("loop", circular["when"], ["é", "겦", b"x"])


def test_deep_values_are_refused_both_ways() -> None:
    nested: Any = 1
    for _ in range(MAX_VALUE_DEPTH):
        nested = [nested]
    assert decode_payload(encode_payload(nested)) == nested
    for deeper in ([nested], {"a": nested}, {1: nested}):
        with pytest.raises(InvalidValue, match=f"nested more than {MAX_VALUE_DEPTH} deep"):
            encode_payload(deeper)
    size = len(encode_payload(nested)) - 2
    deep = b"\xff\x0fA\x01" + encode_payload(nested)[2 : 2 + size] + b"$\x00\x01"
    with pytest.raises(DataError, match="nested more than"):
        decode_payload(deep)


def test_a_small_object_that_would_become_a_huge_value_is_refused_early() -> None:
    bomb: Any = "x" * 100
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(LimitExceeded, match="MAX_VALUE_SIZE"):
        encode_payload(bomb)
    with pytest.raises(LimitExceeded, match="MAX_VALUE_SIZE"):
        encode_payload(1 << 8_000_000)


@given(st.binary(max_size=80))
@settings(max_examples=500)
def test_random_bytes_give_a_value_or_a_data_error(data: bytes) -> None:
    for encoded in (data, b"\xff\x0f" + data, b"\xff\x10o" + data):
        with contextlib.suppress(DataError):
            decode_payload(encoded)


@given(values, st.data())
def test_damaged_values_give_a_value_or_a_data_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode_payload(value))
    at = data.draw(st.integers(2, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(encoded), bytes(encoded[:at])):
        with contextlib.suppress(DataError):
            decode_payload(damaged)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x0f",
        b"\x00\x01\x02",
        b"\xff\x0fQ",
        b"\xff\x0fA\xff\xff\xff\xff\x0f",
        b"\xff\x0f" + b"A\x01" * 5_000,
    ],
)
def test_damage_is_a_data_error(data: bytes) -> None:
    with pytest.raises(DataError, match="cannot be decoded"):
        decode_payload(data)


def test_bytes_behind_the_value_are_ignored_as_v8_does() -> None:
    assert decode_payload(encode_payload([1]) + b"rest") == [1]


def test_moments_that_a_double_cannot_hold_are_refused() -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    assert decode_payload(encode_payload([far])) == [far]
    with pytest.raises(InvalidValue, match="cannot have microseconds") as caught:
        encode_value([far + timedelta(microseconds=1)])
    assert caught.value.path == "value[0]"
    for invalid in (math.nan, math.inf, 8.64e15):
        with pytest.raises(DataError, match="Date"):
            decode_payload(b"\xff\x0fD" + struct.pack("<d", invalid))


def test_unknown_encodings_and_short_counters_are_data_errors() -> None:
    with pytest.raises(DataError, match="encoding 9 is unknown"):
        decode_value(b"", 9)
    with pytest.raises(DataError, match="got 7"):
        decode_value(b"1234567", LE64)


def test_operands() -> None:
    assert encode_number(1) == v8.HEADER + b"\x49\x02"
    assert encode_number(KvU64(1)) == v8.HEADER + b"\x49\x02"
    assert encode_number(0.5)[2:3] == b"N"
    assert encode_number(2**60)[2:3] == b"Z"
    for wrong in (True, "1", None):
        with pytest.raises(InvalidValue, match="a sum needs an int or a float"):
            encode_number(wrong)  # type: ignore[arg-type]


# ---- the counter


def test_the_counter_is_an_int() -> None:
    counter = KvU64(41)
    assert counter + 1 == 42
    assert type(counter + 1) is int
    assert f"{counter:>4}" == "  41"
    assert str(counter) == "41"
    assert repr(counter) == "KvU64(41)"
    assert hash(counter) == hash(41)
    assert counter == 41


@pytest.mark.parametrize("number", [-1, 2**64])
def test_the_counter_has_a_range(number: int) -> None:
    with pytest.raises(InvalidValue, match=r"from 0 to 2\^64-1, got"):
        KvU64(number)


@pytest.mark.parametrize("number", [1.0, "1", None])
def test_the_counter_takes_ints_only(number: Any) -> None:
    with pytest.raises(InvalidValue, match="a KvU64 is an integer, got"):
        KvU64(number)


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 129, 300])
def test_a_text_alone_is_written_as_one_in_a_list(size: int) -> None:
    for text in ("a" * size, "\x00\x7f" * (size // 2), "é" * size, "a" * size + "é"):
        header, array, end = b"\xff\x0f", b"A\x01", b"$\x00\x01"
        assert v8.dumps([text]) == header + array + v8.dumps(text)[len(header) :] + end
        assert v8.loads(v8.dumps(text)) == text == v8serialize.loads(v8.dumps(text))


@pytest.mark.parametrize("key", ["5a" + "a01f" + "ff" * 2_000, "5a10" + "ff" * 8], ids=["huge", "large"])
def test_a_bigint_is_no_property_name(key: str) -> None:
    """Python refuses to write out a huge one, by an error that nobody expects."""
    with pytest.raises(DataError, match="a property name is a BigInt"):
        decode_payload(bytes.fromhex("ff0f6f" + key + "30" + "7b01"))
