"""Arithmetic on stored values, case by case; expected texts are those that clients see from Deno's engine."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from v8serialize import dumps, loads

from kvorum._proto import kvorum_pb2 as pb
from kvorum.values import decode_value, encode_number
from kvorum_node.store import sums
from kvorum_node.store.errors import Refused
from kvorum_node.store.sums import ADD, LE64, MAX, MIN, SUM, V8, Operand, Stored, combine, emit_number, parse_number
from tests.unit.store.harness import u64

TOP = (1 << 64) - 1
BYTES = int(pb.VALUE_ENCODING_BYTES)


def v8(value: int | float) -> Stored:
    return Stored(V8, emit_number(value))


def kv(value: int) -> Stored:
    return Stored(LE64, u64(value))


def operand(
    value: int | float, low: int | float | None = None, high: int | float | None = None, clamp: bool = False
) -> Operand:
    bounds = [b"" if bound is None else emit_number(bound) for bound in (low, high)]
    return Operand(emit_number(value), V8, bounds[0], bounds[1], clamp)


def refused(kind: int, given: Operand, stored: Stored | None) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        combine(kind, given, stored)
    return caught.value.outcome, caught.value.message


TYPE, RANGE = int(pb.OUTCOME_TYPE_ERROR), int(pb.OUTCOME_RANGE_ERROR)


# ---- the V8 format


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("ff0f490a", 5.0),  # bytes that Deno wrote
        ("ff0f4909", -5.0),
        ("ff10490a", 5.0),
        ("ff0f5505", 5.0),
        ("ff0f4e000000000000f83f", 1.5),
        ("ff0f5a100500000000000000", 5),
        ("ff0f5a110500000000000000", -5),
        ("ff0f5a00", 0),
        ("ff0f5a20" + "00" * 8 + "01" + "00" * 7, 1 << 64),
        ("ff0f49feffffff0f", 2147483647.0),
        ("ff0f49ffffffff0f", -2147483648.0),
        ("ff0f55ffffffff0f", 4294967295.0),
    ],
)
def test_reads_numbers(data: str, value: int | float) -> None:
    parsed = parse_number(bytes.fromhex(data))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "data",
    [
        "", "ff", "ff0f", "ff0f49", "ff0e490a", "ff11490a", "fe0f490a", "ff0f4980", "ff0f490a00", "ff0f4e00",
        "ff0f5a10", "ff0f5a1005", "ff0f30", "ff0f54", "ff0f220161", "ff0f49808080808010",
        "ff0f5a1005000000000000000000",
        "ff0f55ffffffffff", "ff0f49ffffffff7f",
    ],
)  # fmt: skip
def test_refuses_what_is_not_a_number(data: str) -> None:
    assert parse_number(bytes.fromhex(data)) is None


@given(st.binary(max_size=20), st.sampled_from([b"", b"\xff\x0f", b"\xff\x0fZ", b"\xff\x10I", b"\xff\x0fN"]))
def test_reads_or_refuses_any_bytes(data: bytes, head: bytes) -> None:
    parse_number(head + data)


@given(st.integers(-(1 << 200), 1 << 200))
def test_bigints_agree_with_another_codec(value: int) -> None:
    assert parse_number(emit_number(value)) == value
    assert loads(emit_number(value)) == value


@given(st.floats(allow_nan=False))
def test_doubles_agree_with_another_codec(value: float) -> None:
    assert loads(emit_number(value)) == value
    parsed = parse_number(emit_number(value))
    assert isinstance(parsed, float)
    assert struct.pack("<d", parsed) == struct.pack("<d", value)


@given(st.integers(-(1 << 31), (1 << 32) - 1))
def test_reads_what_another_codec_writes(value: int) -> None:
    parsed = parse_number(dumps(value))
    assert parsed == value
    assert isinstance(parsed, float)


# ---- SUM, MIN, MAX as on KV Connect's wire


def test_u64_sums_wrap() -> None:
    assert combine(SUM, Operand(u64(5), LE64), kv(TOP)) == (LE64, u64(4))
    assert combine(SUM, Operand(u64(5), LE64), None) == (LE64, u64(5))
    assert combine(SUM, Operand(u64(5), LE64), kv(7)) == (LE64, u64(12))


def test_u64_min_and_max_are_unsigned() -> None:
    assert combine(MIN, Operand(u64(TOP), LE64), kv(7)) == (LE64, u64(7))
    assert combine(MAX, Operand(u64(TOP), LE64), kv(7)) == (LE64, u64(TOP))
    assert combine(MIN, Operand(u64(9), LE64), None) == (LE64, u64(9))


def test_limits_of_u64_operands_are_ignored() -> None:
    assert combine(SUM, Operand(u64(5), LE64, emit_number(100), emit_number(1), False), kv(7)) == (LE64, u64(12))


@pytest.mark.parametrize(("kind", "name"), [(SUM, "sum"), (MIN, "min"), (MAX, "max")])
def test_u64_operand_on_another_value(kind: int, name: str) -> None:
    text = f"Failed to perform '{name}' mutation on a non-U64 value in the database"
    assert refused(kind, Operand(u64(1), LE64), v8(5)) == (TYPE, text)
    assert refused(kind, Operand(u64(1), LE64), Stored(BYTES, u64(1))) == (TYPE, text)


@pytest.mark.parametrize(("kind", "name"), [(MIN, "min"), (MAX, "max")])
def test_min_and_max_take_u64_only(kind: int, name: str) -> None:
    assert refused(kind, operand(1), None) == (TYPE, f"Failed to perform '{name}' mutation on a non-U64 operand")


def test_v8_sums() -> None:
    assert combine(SUM, operand(2.0), v8(1.5)) == (V8, emit_number(3.5))
    assert combine(SUM, operand(2), v8(1 << 70)) == (V8, emit_number((1 << 70) + 2))
    assert combine(SUM, Operand(bytes.fromhex("ff10490a"), V8), Stored(V8, bytes.fromhex("ff104902"))) == (
        V8,
        bytes.fromhex("ff0f4e0000000000001840"),
    )


def test_v8_operand_is_stored_as_it_is_on_a_missing_key() -> None:
    raw = bytes.fromhex("ff104964")
    assert combine(SUM, Operand(raw, V8, b"", bytes.fromhex("ff0f4914"), False), None) == (V8, raw)


def test_v8_limits() -> None:
    assert combine(SUM, operand(5.0, high=6.0, clamp=True), v8(3.0)) == (V8, emit_number(6.0))
    assert combine(SUM, operand(-5, low=0, clamp=True), v8(3)) == (V8, emit_number(0))
    assert refused(SUM, operand(5.0, high=6.0), v8(3.0)) == (RANGE, sums.OUT_OF_RANGE)
    assert refused(SUM, operand(-5, low=0), v8(3)) == (RANGE, sums.OUT_OF_RANGE)


def test_v8_bigint_on_u64() -> None:
    assert combine(SUM, operand(5), kv(TOP)) == (LE64, u64(4))
    for bad in (operand(-1), operand(TOP + 1), operand(1, low=0), operand(1, high=5), operand(1, clamp=True)):
        assert refused(SUM, bad, kv(1)) == (TYPE, "Cannot sum KvU64 with BigInt")
    assert refused(SUM, operand(1.0), kv(1)) == (TYPE, "Cannot sum KvU64 with Number")


def test_v8_type_errors() -> None:
    assert refused(SUM, operand(1), v8(1.0)) == (TYPE, "Cannot sum Number with BigInt")
    assert refused(SUM, operand(1.0), v8(1)) == (TYPE, "Cannot sum BigInt with Number")
    assert refused(SUM, operand(1.0), Stored(V8, b"\xff\x0f0")) == (TYPE, "unsupported value type")
    assert refused(SUM, operand(1.0), Stored(BYTES, b"x")) == (TYPE, "unsupported value type")
    assert refused(SUM, operand(1, low=1.0), v8(1)) == (TYPE, sums.BOUNDS_DIFFER)
    for bad in (Operand(b"\xff\x0f0", V8), Operand(b"x", BYTES), operand(1)._replace(minimum=b"x")):
        assert refused(SUM, bad, None) == (TYPE, "Some of the parameters are not valid V8 values")


NULL = Stored(V8, b"\xff\x0f0")
RAW = Stored(BYTES, b"12345678")

# Word for word as the stock engine says it: Deno users see these texts over KV Connect.
TEXTS: list[tuple[int, Operand, Stored | None, int, str]] = [
    *(
        (
            kind,
            Operand(u64(1), LE64),
            stored,
            TYPE,
            f"Failed to perform '{name}' mutation on a non-U64 value in the database",
        )
        for kind, name in ((SUM, "sum"), (MIN, "min"), (MAX, "max"))
        for stored in (v8(5.0), v8(5), NULL, RAW)
    ),
    (MIN, operand(1), None, TYPE, "Failed to perform 'min' mutation on a non-U64 operand"),
    (MAX, operand(1.0), kv(1), TYPE, "Failed to perform 'max' mutation on a non-U64 operand"),
    (MIN, Operand(b"12345678", BYTES), None, TYPE, "Failed to perform 'min' mutation on a non-U64 operand"),
    (SUM, Operand(b"\xff\x0f0", V8), None, TYPE, "Some of the parameters are not valid V8 values"),
    (SUM, Operand(b'\xff\x0f"\x011', V8), v8(1), TYPE, "Some of the parameters are not valid V8 values"),
    (SUM, Operand(b"12345678", BYTES), v8(1), TYPE, "Some of the parameters are not valid V8 values"),
    (SUM, operand(1)._replace(minimum=b"\xff\x0f0"), v8(1), TYPE, "Some of the parameters are not valid V8 values"),
    (SUM, operand(1)._replace(maximum=b"x"), None, TYPE, "Some of the parameters are not valid V8 values"),
    (SUM, operand(1, low=1.0), v8(1), TYPE, "Min/max parameters have different types than the operand"),
    (SUM, operand(1.0, high=5), v8(1.0), TYPE, "Min/max parameters have different types than the operand"),
    (SUM, operand(1.0), NULL, TYPE, "unsupported value type"),
    (SUM, operand(1), RAW, TYPE, "unsupported value type"),
    (SUM, operand(1), v8(1.0), TYPE, "Cannot sum Number with BigInt"),
    (SUM, operand(1.0), v8(1), TYPE, "Cannot sum BigInt with Number"),
    (SUM, operand(1.0), kv(1), TYPE, "Cannot sum KvU64 with Number"),
    (SUM, operand(-1), kv(1), TYPE, "Cannot sum KvU64 with BigInt"),
    (SUM, operand(5.0, high=6.0), v8(3.0), RANGE, "The result of a Sum operation would exceed its range limit"),
    (SUM, operand(-5, low=0), v8(3), RANGE, "The result of a Sum operation would exceed its range limit"),
]


@pytest.mark.parametrize(("kind", "given", "stored", "outcome", "text"), TEXTS)
def test_the_texts_are_those_of_the_stock_engine(
    kind: int, given: Operand, stored: Stored | None, outcome: int, text: str
) -> None:
    assert refused(kind, given, stored) == (outcome, text)


def test_a_bigint_cannot_outgrow_a_value() -> None:
    largest = 1 << 8 * 65_520
    value = Stored(V8, emit_number(largest))
    assert combine(SUM, operand(1), value) == (V8, emit_number(largest + 1))
    full = (1 << 8 * 65_528) - 1
    assert refused(SUM, operand(1), Stored(V8, emit_number(full))) == (RANGE, sums.OUT_OF_RANGE)


# ---- ADD as Python users mean it


@pytest.mark.parametrize(
    ("stored", "given", "result"),
    [
        (None, operand(5), (LE64, u64(5))),
        (None, operand(5.0), (LE64, u64(5))),
        (None, operand(2.5), (V8, emit_number(2.5))),
        (None, operand(-3, clamp=True), (LE64, u64(0))),
        (None, operand(3, low=10, clamp=True), (LE64, u64(10))),
        (kv(100), operand(-3), (LE64, u64(97))),
        (kv(100), operand(-3.0), (LE64, u64(97))),
        (kv(1), operand(-3, clamp=True), (LE64, u64(0))),
        (kv(TOP), operand(3, clamp=True), (LE64, u64(TOP))),
        (kv(5), operand(1 << 70, clamp=True), (LE64, u64(TOP))),
        (kv(5), operand(3, high=6.5, clamp=True), (LE64, u64(6))),
        (kv(5), operand(-3, low=2.5, clamp=True), (LE64, u64(3))),
        (kv(5), operand(1, low=-math.inf, high=math.inf), (LE64, u64(6))),
        (v8(100.0), operand(-3), (V8, emit_number(97.0))),
        (v8(1.5), operand(2.5), (V8, emit_number(4.0))),
        (v8(1.5), operand(2.5, high=3, clamp=True), (V8, emit_number(3.0))),
        (v8(100), operand(-300), (V8, emit_number(-200))),
        (v8(1 << 80), operand(1), (V8, emit_number((1 << 80) + 1))),
        (v8(5), operand(2.0), (V8, emit_number(7))),
        (v8(5), operand(-9, low=0, clamp=True), (V8, emit_number(0))),
    ],
)
def test_add(stored: Stored | None, given: Operand, result: tuple[int, bytes]) -> None:
    assert combine(ADD, given, stored) == result


@pytest.mark.parametrize(
    ("stored", "given", "result"),
    [
        (10, -1, b"I\x12"),
        (10, -300, b"I\xc3\x04"),
        (10, 0.5, emit_number(10.5)[2:]),
        (10.0, 1, emit_number(11.0)[2:]),
        ((1 << 31) - 1, 1, emit_number(float(1 << 31))[2:]),
        (-(1 << 31), -1, emit_number(float(-(1 << 31) - 1))[2:]),
        (1 << 31, -1, b"I\xfe\xff\xff\xff\x0f"),
        (-(1 << 31), 0, b"I\xff\xff\xff\xff\x0f"),
    ],
)
def test_add_keeps_an_int_an_int_and_a_float_a_float(stored: float, given: float, result: bytes) -> None:
    """P09 · a tutorial on Deno KV · `sum(k, 1)` with a plain number, then arithmetic on the read value."""
    value = Stored(V8, encode_number(stored))
    encoding, written = combine(ADD, Operand(encode_number(given), V8), value)
    assert (encoding, written[2:]) == (V8, result)
    assert type(decode_value(written, V8)) is type(stored + given)
    assert decode_value(written, V8) == stored + given


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (None, operand(-1)),
        (None, operand(1 << 64)),
        (None, operand(2.5, high=1)),
        (kv(1), operand(-2)),
        (kv(TOP), operand(1)),
        (kv(5), operand(1, high=5)),
        (kv(5), operand(0, low=6)),
        (kv(5), operand(0, low=7, high=6, clamp=True)),
        (kv(5), operand(0, low=math.inf, clamp=True)),
        (kv(5), operand(0, high=-1, clamp=True)),
        (v8(5.0), operand(1, high=5)),
        (v8(5.0), operand(1 << 2_000)),
        (v8(5), operand(1, high=5.5)),
    ],
)
def test_add_out_of_range(stored: Stored | None, given: Operand) -> None:
    assert refused(ADD, given, stored) == (RANGE, sums.OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("stored", "given", "text"),
    [
        (kv(1), operand(0.5), "Cannot sum KvU64 with Number"),
        (kv(1), operand(math.nan), "Cannot sum KvU64 with Number"),
        (v8(1), operand(0.5), "Cannot sum BigInt with Number"),
        (Stored(V8, b"\xff\x0f0"), operand(1), "unsupported value type"),
        (Stored(BYTES, b"1"), operand(1), "unsupported value type"),
        (kv(1), operand(1, low=math.nan), sums.NOT_V8),
        (None, Operand(b"1", BYTES), sums.NOT_V8),
    ],
)
def test_add_type_errors(stored: Stored | None, given: Operand, text: str) -> None:
    assert refused(ADD, given, stored) == (TYPE, text)


NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70), st.floats(), st.sampled_from([0, 1, TOP, TOP + 1, -1, math.inf, -math.inf])
)


@given(
    st.sampled_from([SUM, MIN, MAX, ADD]),
    st.none() | NUMBERS.map(v8) | st.integers(0, TOP).map(kv) | st.binary(max_size=9).map(lambda b: Stored(BYTES, b)),
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.booleans(),
)
def test_any_combination_is_a_result_or_an_application_error(
    kind: int,
    stored: Stored | None,
    value: int | float,
    low: int | float | None,
    high: int | float | None,
    clamp: bool,
) -> None:
    try:
        encoding, result = combine(kind, operand(value, low, high, clamp), stored)
    except Refused as error:
        assert error.outcome in (TYPE, RANGE)
        return
    if encoding == LE64:
        assert len(result) == 8
    else:
        assert parse_number(result) is not None
    if kind == ADD and clamp is False and low is not None and encoding == LE64:
        assert int.from_bytes(result, "little") >= low
