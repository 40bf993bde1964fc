"""Thousands of made-up values between a real V8 and Python: what one writes, the other reads as the same value.

Both sides bring a value into one form (see `node_forms.js`) that keeps everything but what Python cannot tell apart:
1 from 1n, null from undefined. Where Python cannot hold a value, `DataError` says so; never is it another value.
"""

import json
import random
import shutil
import struct
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from v8serialize.jstypes import (
    JSArray,
    JSArrayBuffer,
    JSBigInt,
    JSDataView,
    JSError,
    JSHole,
    JSMap,
    JSPrimitiveObject,
    JSRegExp,
    JSRegExpFlag,
    JSSet,
    JSTypedArray,
    JSUint16Array,
    JSUndefined,
)

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import DataError
from kvorum.keys import decode_key, encode_key
from kvorum.values import decode_payload, encode_payload

NODE = shutil.which("node")

MADE = 800
WRITTEN = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CONTAINERS = (list, dict, set, JSArray, JSMap, JSSet)


def node(*arguments: str, lines: list[str] | None = None) -> list[Any]:
    assert NODE is not None, "these tests need Node.js"
    done = subprocess.run(
        [NODE, str(Path(__file__).with_name("node_forms.js")), *arguments],
        input="\n".join(lines or []),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:2_000]
    return [json.loads(line) for line in done.stdout.split("\n") if line]


# ---- the form of a Python value


def units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [data[at] | data[at + 1] << 8 for at in range(0, len(data), 2)]


def is_scalar(value: Any) -> bool:
    return not isinstance(value, (*CONTAINERS, JSArrayBuffer, JSRegExp, JSError, JSPrimitiveObject))


def form(value: Any, seen: dict[int, int] | None = None) -> Any:
    seen = {} if seen is None else seen
    if not isinstance(value, CONTAINERS):
        return scalar_form(value, seen)
    if id(value) in seen:
        return ["ref", seen[id(value)]]
    seen[id(value)] = len(seen)

    def inner(item: Any) -> Any:
        return form(item, seen)

    if isinstance(value, (set, JSSet)):
        items = [inner(item) for item in value]
        if all(map(is_scalar, value)):
            items = sorted(json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in items)
        return ["Set", items]
    if isinstance(value, list):
        return ["Array", len(value), [[units(str(at)), inner(item)] for at, item in enumerate(value)]]
    if isinstance(value, JSArray):
        pairs = [(str(key), item) for key, item in value.items() if item is not JSHole]
        return ["Array", len(value.array), [[units(key), inner(item)] for key, item in pairs]]
    if isinstance(value, JSMap) or not all(isinstance(key, str) for key in value):
        return ["Map", [[inner(key), inner(item)] for key, item in value.items()]]
    return ["Object", [[units(key), inner(item)] for key, item in in_javascript_order(value)]]


def in_javascript_order(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """Properties that are array indexes come first, by number."""
    indexes = [
        key for key in value if key.isascii() and key.isdigit() and str(int(key)) == key and int(key) < 2**32 - 1
    ]
    return [
        *((key, value[key]) for key in sorted(indexes, key=int)),
        *((key, item) for key, item in value.items() if key not in indexes),
    ]


def scalar_form(value: Any, seen: dict[int, int]) -> Any:
    if value is None or value is JSUndefined:
        return ["null"]
    if isinstance(value, bool):
        return ["boolean", value]
    if isinstance(value, str):
        return ["string", units(value)]
    if isinstance(value, (int, JSBigInt)):
        return ["integer", str(int(value))]
    if isinstance(value, float):
        return number_form(value)
    if isinstance(value, datetime):
        past = value < EPOCH  # JavaScript cuts microseconds off towards 1970
        return ["Date", (-1 if past else 1) * (abs(value - EPOCH) // timedelta(milliseconds=1))]
    if isinstance(value, bytes):
        return ["view", "Uint8Array", value.hex()]
    if isinstance(value, JSArrayBuffer):
        return ["ArrayBuffer", bytes(value.data).hex(), value.max_byte_length if value.resizable else None]
    if isinstance(value, JSRegExp):
        source = (value.source or "(?:)").replace("\\/", "/").replace("\\n", "\n").replace("\\r", "\r")
        return ["RegExp", units(source), str(value.flags)]
    if isinstance(value, JSPrimitiveObject):
        return ["boxed", form(value.value)]
    if isinstance(value, JSError):
        name = str(value.name).replace("UriError", "URIError")  # as the library spells it
        return ["Error", name, value.message or "", value.stack, form(value.cause, seen)]
    assert isinstance(value, (JSTypedArray, JSDataView)), type(value)
    with value.get_buffer_as_memoryview() as view:
        return ["view", type(value).__name__.removeprefix("JS"), bytes(view).hex()]


def number_form(value: float) -> Any:
    if value != value:
        return ["number", "NaN"]
    if value.is_integer() and (value or struct.pack(">d", value) == bytes(8)):
        return ["integer", str(int(value))]
    return ["number", struct.pack(">d", value).hex()]


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two forms differ first; empty if they do not."""
    if one == other:
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        at = next(at for at, (mine, its) in enumerate(zip(one, other, strict=True)) if mine != its)
        return difference(one[at], other[at], f"{path}[{at}]")
    return f"{path}: {str(one)[:300]} is not {str(other)[:300]}"


# ---- reading


def merges(shape: Any) -> bool:
    """Whether a Map or Set somewhere in it has keys that are one in Python."""
    if not isinstance(shape, list):
        return False
    if shape[:1] in (["Map"], ["Set"]):
        keys = [json.dumps(part[0]) if shape[0] == "Map" else part for part in shape[1]]
        keys = [key if isinstance(key, str) else json.dumps(key) for key in keys]
        flat = [key.replace(" ", "") for key in keys if key.startswith('["integer"')]
        if len(set(flat)) < len(flat):
            return True
    return any(map(merges, shape))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_node_makes_up_is_read_as_what_it_is(seed: int) -> None:
    for number, (expected, *written) in enumerate(node("make", str(seed), str(MADE))):
        for data in {bytes.fromhex(text) for text in written}:
            try:
                value = decode_payload(data)
            except DataError as error:
                assert "a Map or Set holds the same number also as a BigInt" in str(error)
                assert merges(expected), f"value {number} of seed {seed}: {data.hex()}"
                continue
            assert not difference(form(value), expected), f"value {number} of seed {seed}: {data.hex()}"
            assert not difference(form(decode_payload(b"\xff\x10" + data[2:])), expected)


def damaged(rng: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if len(spoilt) == 2:
            break
        at = rng.randrange(2, len(spoilt))
        spoilt[at : at + rng.randrange(2)] = rng.choice(
            [b"", rng.randbytes(1), bytes((spoilt[at] + 1 & 255,)), bytes((rng.choice(b'"IoA$;:^BVDUaRrs~S'),))]
        )
    return bytes(spoilt)


def test_damaged_values_are_read_as_node_reads_them_or_not_at_all() -> None:
    rng = random.Random(4)
    whole = [bytes.fromhex(written) for _, written, _ in node("make", "3", "400")]
    cases = [damaged(rng, rng.choice(whole)) for _ in range(4_000)]
    both = 0
    for data, answer in zip(cases, node("read", lines=[data.hex() for data in cases]), strict=True):
        try:
            value = decode_payload(data)
        except DataError:
            continue
        if answer is not None:
            both += 1
            assert not difference(form(value), answer[0]), data.hex()
    assert both > 400


# ---- writing


class Maker:
    """Values of all kinds that `encode_payload` takes; with `sharing` some containers stand in several places."""

    def __init__(self, seed: int, *, sharing: bool) -> None:
        self.rng = random.Random(seed)
        self._sharing = sharing
        self._made: list[Any] = []

    def one(self) -> Any:
        self._made.clear()
        value = self.value(4)
        # What has a part that is no plain data is written with its references, plain data is written out.
        return [JSRegExp("x", JSRegExpFlag.NoFlag), value] if self._sharing else value

    def text(self) -> str:
        alphabet = self.rng.choice(["ab", "aé\0ÿ", "a겦ж", "x😀", "a\ud800", "0123456789"])
        return "".join(self.rng.choices(alphabet, k=self.rng.choice([0, 1, 2, 5, 126, 127, 128, 129, 300])))

    def number(self) -> int | float:
        exponent = self.rng.choice([6, 7, 30, 31, 32, 52, 53, 54, 63, 64, 65, 200])
        near = 2**exponent + self.rng.randint(-2, 2)
        return self.rng.choice(
            [
                *(near, -near, float(near), self.rng.getrandbits(exponent), self.rng.uniform(-1e9, 1e9)),
                *(0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.5),
            ]
        )

    def scalar(self) -> Any:
        return self.rng.choice(
            [
                lambda: self.rng.choice([None, True, False]),
                self.number,
                self.number,
                self.text,
                self.text,
                lambda: self.rng.randbytes(self.rng.choice([0, 1, 7, 200])),
                lambda: EPOCH + timedelta(milliseconds=self.rng.randint(-(2**45), 2**45)),
            ]
        )()

    def key(self) -> Any:
        """Of a dict or set; without what JavaScript tells apart and Python does not."""
        return self.rng.choice([self.text, lambda: self.rng.randint(2, 2**70), lambda: self.rng.randbytes(3)])()

    def rare(self, depth: int) -> Any:
        return self.rng.choice(
            [
                lambda: JSRegExp("a+é?", JSRegExpFlag.Global),
                lambda: JSBigInt(self.rng.getrandbits(60)),
                lambda: JSMap([(self.text(), self.value(depth - 1)), (self.rng.random(), None)]),
                lambda: JSSet([self.text(), [self.number()]]),
                lambda: JSArray([self.value(depth - 1), JSHole, self.text()]),
                lambda: JSPrimitiveObject(self.text()),
                lambda: JSError(self.text(), name="RangeError", stack=self.text()),
                lambda: JSError("x", stack="", cause=self.value(depth - 1)),
                lambda: JSUint16Array(JSArrayBuffer(self.rng.randbytes(8))),
            ]
        )()

    def value(self, depth: int) -> Any:
        if depth == 0 or self.rng.random() < 0.25:
            return self.rare(depth) if depth and self.rng.random() < 0.1 else self.scalar()
        if self._made and self._sharing and self.rng.random() < 0.2:
            return self.rng.choice(self._made)
        count = range(self.rng.choice([0, 1, 2, 3, 8]))
        made = self.rng.choice(
            [
                lambda: [self.value(depth - 1) for _ in count],
                lambda: {self.text(): self.value(depth - 1) for _ in count},
                lambda: {str(self.rng.randint(0, 50)): self.value(depth - 1) for _ in count},
                lambda: {1: None, **{self.key(): self.value(depth - 1) for _ in count}},
                lambda: {self.key() for _ in count},
            ]
        )()
        self._made.append(made)
        return made


@pytest.mark.parametrize("sharing", [False, True])
def test_node_reads_whatever_python_writes_and_writes_it_back(sharing: bool) -> None:
    maker = Maker(2026, sharing=sharing)
    values = [maker.one() for _ in range(WRITTEN)]
    answers = node("read", lines=[encode_payload(value).hex() for value in values])
    for value, (seen, written) in zip(values, answers, strict=True):
        assert not difference(seen, form(value))
        assert not difference(form(decode_payload(bytes.fromhex(written))), seen)


async def test_scenario_24_ids_of_64_bits_keep_every_digit() -> None:
    """64-bit ids survive the trip Python → store → Deno/Node → store → Python without losing a digit."""
    rng = random.Random(24)
    edges = [2**bits + delta for bits in (31, 32, 52, 53, 54, 62, 63, 64) for delta in (-1, 0, 1)]
    ids = sorted({*edges, *(-number for number in edges), *(rng.getrandbits(64) for _ in range(200))})
    rows = {("row", number): {"id": number, "ids": [number, str(number)]} for number in ids}
    async with kvorum.open_kv(":memory:") as kv:
        for begin in range(0, len(ids), 100):
            operation = kv.atomic()
            for number in ids[begin : begin + 100]:
                operation.set(("row", number), rows["row", number])
            await operation.commit()
        selected = pb.ReadRange(start=encode_key(("row",)), end=encode_key(("row", True)), limit=1_000)
        answer = await kv.link.backend.read(pb.Read(ranges=[selected]), timeout=10)
        stored = answer.ranges[0].entries
        answers = node("read", lines=[row.value.hex() for row in stored])
        write = pb.AtomicWrite()
        for row, (seen, written) in zip(stored, answers, strict=True):
            assert not difference(seen, form(rows[decode_key(row.key)]))
            value, encoding = bytes.fromhex(written), pb.VALUE_ENCODING_V8
            write.mutations.add(key=row.key, type=pb.MUTATION_TYPE_SET, value=value, encoding=encoding)
        await kv.link.backend.write(write.SerializeToString(), timeout=10)
        entries = await kv.list(("row",), batch_size=1_000).page()
    assert [entry.key for entry in entries] == [*rows]
    assert [repr(entry.value) for entry in entries] == [*map(repr, rows.values())]
