"""The encoding of keys: byte for byte Deno KV's, and in the order that its documentation gives."""

import contextlib
import math
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.errors import InvalidKey
from kvorum.keys import Key, KeyPart, decode_key, encode_key
from kvorum.kvu64 import KvU64

# What real Deno 2.9.6 put on the wire.
VECTORS: list[tuple[Key, str]] = [
    (("",), "0200"),
    (("a",), "026100"),
    (("a\0b",), "026100ff6200"),
    (("é",), "02c3a900"),
    (("😀",), "02f09f988000"),
    (("\ufffd",), "02efbfbd00"),
    ((b"",), "0100"),
    ((b"\x00\x01\xff",), "0100ff01ff00"),
    ((0.0,), "218000000000000000"),
    ((-0.0,), "217fffffffffffffff"),
    ((1.0,), "21bff0000000000000"),
    ((-1.0,), "21400fffffffffffff"),
    ((1.5,), "21bff8000000000000"),
    ((-1.5,), "214007ffffffffffff"),
    ((math.inf,), "21fff0000000000000"),
    ((-math.inf,), "21000fffffffffffff"),
    ((math.nan,), "21fff8000000000000"),
    ((5e-324,), "218000000000000001"),
    ((float(2**53 - 1),), "21c33fffffffffffff"),
    ((0,), "14"),
    ((1,), "1501"),
    ((-1,), "13fe"),
    ((255,), "15ff"),
    ((256,), "160100"),
    ((-255,), "1300"),
    ((-256,), "12feff"),
    ((2**64 - 1,), "1cffffffffffffffff"),
    ((2**64,), "1d09010000000000000000"),
    ((-(2**64 - 1),), "0c0000000000000000"),
    ((-(2**64),), "0bf6feffffffffffffffff"),
    ((2**72,), "1d0a01000000000000000000"),
    ((2**2040 - 1,), "1dff" + "ff" * 255),
    ((-(2**2040) + 1,), "0b00" + "00" * 255),
    ((2**2032,), "1dff01" + "00" * 254),
    ((-(2**2032),), "0b00fe" + "ff" * 254),
    ((2**64 + 255,), "1d090100000000000000ff"),
    ((False,), "26"),
    ((True,), "27"),
    ((), ""),
    (("a", 1.0, True), "02610021bff000000000000027"),
]


@pytest.mark.parametrize(("key", "encoded"), VECTORS, ids=[encoded[:30] for _, encoded in VECTORS])
def test_real_bytes(key: Key, encoded: str) -> None:
    assert encode_key(key).hex() == encoded
    back = decode_key(bytes.fromhex(encoded))
    assert repr(back) == repr(key)
    assert [type(part) for part in back] == [type(part) for part in key]


def test_nan_is_made_one_of_two() -> None:
    odd = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    negative = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert encode_key((odd,)) == encode_key((math.nan,))
    assert encode_key((negative,)).hex() == "210007ffffffffffff"


parts = st.one_of(
    st.binary(max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.integers(-(2**2040) + 1, 2**2040 - 1),
    st.integers(-70_000, 70_000),
    st.floats(),
    st.booleans(),
)
keys = st.lists(parts, max_size=5).map(tuple)


def rank(part: KeyPart) -> tuple[int, bytes | int | tuple[bool, int]]:
    """The documented order, computed without the encoding."""
    if isinstance(part, bool):
        return 5 + part, 0
    if isinstance(part, bytes):
        return 1, part
    if isinstance(part, str):
        return 2, part.encode()
    if isinstance(part, int):
        return 3, part
    assert isinstance(part, float)
    (bits,) = struct.unpack(">q", struct.pack(">d", part))
    if math.isnan(part):
        return 4, (1 << 63) if bits >= 0 else -(1 << 63)
    return 4, bits if bits >= 0 else -(bits & ((1 << 63) - 1)) - 1


def same(one: KeyPart, other: KeyPart) -> bool:
    return type(one) is type(other) and rank(one) == rank(other)


@given(keys)
def test_round_trip(key: Key) -> None:
    back = decode_key(encode_key(key))
    assert len(back) == len(key)
    assert all(map(same, back, key))


@given(keys, keys)
def test_bytes_sort_as_keys_do(one: Key, other: Key) -> None:
    by_rank = [rank(part) for part in one], [rank(part) for part in other]
    by_bytes = encode_key(one), encode_key(other)
    assert (by_rank[0] < by_rank[1]) == (by_bytes[0] < by_bytes[1])
    assert (by_rank[0] == by_rank[1]) == (by_bytes[0] == by_bytes[1])


@given(st.binary(max_size=60))
def test_damaged_bytes_are_refused_or_are_the_encoding_of_what_they_give(data: bytes) -> None:
    try:
        key = decode_key(data)
    except InvalidKey:
        return
    if not any(isinstance(part, float) and math.isnan(part) for part in key):
        assert encode_key(key) == data


@given(keys, st.data())
def test_a_cut_key_never_reads_as_the_whole_one(key: Key, data: st.DataObject) -> None:
    encoded = encode_key(key)
    cut = encoded[: data.draw(st.integers(0, max(0, len(encoded) - 1)))]
    with contextlib.suppress(InvalidKey):
        assert len(decode_key(cut)) <= len(key)


@pytest.mark.parametrize(
    "tail", ["02", "0261", "0100ff", "15", "1d", "1d09ff", "1d0101", "1500", "ff", "21ff", "02ff00"]
)
def test_damage_is_named(tail: str) -> None:
    with pytest.raises(InvalidKey, match=r"key part|terminator"):
        decode_key(encode_key(("ok",)) + bytes.fromhex(tail))


@pytest.mark.parametrize("part", [None, [], {}, object(), ("nested",), 1j], ids=lambda part: type(part).__name__)
def test_a_part_without_encoding_is_named(part: object) -> None:
    with pytest.raises(InvalidKey, match=r"key part 1: expected str, int, float, bool or bytes, got"):
        encode_key(("a", part))  # type: ignore[arg-type]


def test_a_lone_surrogate_is_refused() -> None:
    """Deno makes U+FFFD of it, so that two different keys become one."""
    with pytest.raises(InvalidKey, match="key part 0: a lone surrogate at 1"):
        encode_key(("a\ud800",))
    with pytest.raises(InvalidKey, match="key part 1: a lone surrogate at 0"):
        encode_key((1, "\ud83d\ude00"))  # a pair, as two characters of a Python string


def test_an_integer_beyond_255_bytes_is_refused() -> None:
    encode_key((2**2040 - 1, -(2**2040) + 1))
    with pytest.raises(InvalidKey, match="key part 0: an int of 256 bytes; at most 255"):
        encode_key((2**2040,))


@pytest.mark.parametrize("key", ["text", b"bytes", 5, None, {"a"}], ids=lambda key: type(key).__name__)
def test_a_bare_part_is_no_key(key: object) -> None:
    with pytest.raises(InvalidKey, match="a key is a tuple of parts"):
        encode_key(key)  # type: ignore[arg-type]


def test_lists_other_bytes_and_subclasses_are_accepted() -> None:
    class Name(str):
        __slots__ = ()

    assert encode_key(["a", 1]) == encode_key(("a", 1))
    assert encode_key((bytearray(b"x"), memoryview(b"y"))) == encode_key((b"x", b"y"))
    assert encode_key((memoryview(array("H", [1, 256])),)) == encode_key((array("H", [1, 256]).tobytes(),))
    assert encode_key((KvU64(1),)) == encode_key((1,))
    assert encode_key((Name("n"),)) == encode_key(("n",))
