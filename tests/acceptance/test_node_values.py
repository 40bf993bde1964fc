"""Values against a real V8: what Python writes is read by Node, and what Node writes is read by Python."""

import json
import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
from v8serialize.jstypes import JSArray, JSBigInt, JSMap, JSRegExp, JSSet, JSUint16Array

from kvorum.errors import DataError
from kvorum.values import decode_payload, encode_payload

NODE = shutil.which("node")

# Reads values in hexadecimal, one a line, and tells what they are in a form without ambiguity; writes them again.
PROGRAM = """
const v8 = require('v8');
const show = (x, seen = []) => {
  if (x === undefined) return ['undefined'];
  if (x === null) return ['null'];
  if (typeof x === 'bigint') return ['bigint', x.toString()];
  if (typeof x === 'number') return ['number', Object.is(x, -0) ? '-0' : String(x)];
  if (typeof x === 'string') return ['string', Array.from({length: x.length}, (_, i) => x.charCodeAt(i))];
  if (typeof x === 'boolean') return ['boolean', x];
  if (seen.includes(x)) return ['circular', seen.indexOf(x)];
  const inner = (y) => show(y, [...seen, x]);
  if (x instanceof Date) return ['Date', x.getTime()];
  if (x instanceof Uint8Array) return ['Uint8Array', Array.from(x)];
  if (x instanceof Map) return ['Map', [...x].map(([k, v]) => [inner(k), inner(v)])];
  if (x instanceof Set) return ['Set', [...x].map(inner)];
  if (x instanceof RegExp) return ['RegExp', x.source, x.flags];
  if (Array.isArray(x)) return ['Array', x.map(inner)];
  return ['Object', Object.entries(x).map(([k, v]) => [k, inner(v)])];
};
const write = (x) => {
  const serializer = new v8.Serializer();  // not v8.serialize: it writes views in a form of its own
  serializer.writeHeader();
  serializer.writeValue(x);
  return serializer.releaseBuffer().toString('hex');
};
const lines = require('fs').readFileSync(0, 'utf8').split('\\n').filter(Boolean);
for (const line of lines) {
  const js = line.startsWith('js:');
  const value = js ? (0, eval)('(' + line.slice(3) + ')') : v8.deserialize(Buffer.from(line, 'hex'));
  console.log(JSON.stringify([show(value), write(value)]));
}
"""


def node(lines: list[str]) -> list[tuple[Any, bytes]]:
    """For each line (hexadecimal bytes, or `js:` and an expression) what Node sees, and the bytes it writes."""
    assert NODE is not None, "these tests need Node.js"
    done = subprocess.run(
        [NODE, "-e", PROGRAM], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [(shown, bytes.fromhex(written)) for shown, written in answers]


def string(text: str) -> list[Any]:
    units = text.encode("utf-16-le", "surrogatepass")
    return ["string", [units[at] | units[at + 1] << 8 for at in range(0, len(units), 2)]]


def number(text: str) -> list[Any]:
    return ["number", text]


MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
LONG = "x" * 200

WRITTEN: list[tuple[Any, Any]] = [
    (None, ["null"]),
    (True, ["boolean", True]),
    (False, ["boolean", False]),
    *((n, number(str(n))) for n in (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**31, 2**53, -(2**53))),
    *((n, ["bigint", str(n)]) for n in (2**53 + 1, -(2**53) - 1, 2**64, -(2**64), 2**200)),
    (1.5, number("1.5")),
    (3.0, number("3")),
    (-0.0, number("-0")),
    (float("nan"), number("NaN")),
    (float("inf"), number("Infinity")),
    *((text, string(text)) for text in ("", "a", "é", "겦", "a😀", "\ud800", "\0", LONG, LONG + "겦")),
    ([], ["Array", []]),
    ([1, ["겦", True, "겦"]], ["Array", [number("1"), ["Array", [string("겦"), ["boolean", True], string("겦")]]]]),
    ({}, ["Object", []]),
    ({"a": 1, "겦": {"b": None}}, ["Object", [["a", number("1")], ["겦", ["Object", [["b", ["null"]]]]]]]),
    ({"1": "x", "a": 2}, ["Object", [["1", string("x")], ["a", number("2")]]]),
    ({1: "x", "1": "y"}, ["Map", [[number("1"), string("x")], [string("1"), string("y")]]]),
    ({5}, ["Set", [number("5")]]),
    ([b"\x00\xff", b""], ["Array", [["Uint8Array", [0, 255]], ["Uint8Array", []]]]),
    ({"when": MOMENT}, ["Object", [["when", ["Date", 1770091506789]]]]),
    (MOMENT.replace(microsecond=789_999), ["Date", 1770091506789]),  # Node cuts off what Python keeps
]


def test_node_reads_what_python_writes() -> None:
    for (value, expected), (shown, again) in zip(
        WRITTEN, node([encode_payload(value).hex() for value, _ in WRITTEN]), strict=True
    ):
        assert shown == expected, value
        back = decode_payload(again)
        if not (isinstance(value, datetime) or value == 3.0):  # of a Date the microseconds, of 3.0 the type is lost
            assert repr(back) == repr(value)


def test_node_reads_cycles() -> None:
    ring: dict[str, Any] = {"name": "겦", "parts": []}
    ring["parts"].append(ring)
    ((shown, again),) = node([encode_payload(ring).hex()])
    assert shown == ["Object", [["name", string("겦")], ["parts", ["Array", [["circular", 0]]]]]]
    back = decode_payload(again)
    assert back["parts"][0] is back


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("undefined", None),
        ("{a: undefined, b: 1}", {"a": None, "b": 1}),
        ("{1: 'x', 4294967294: 'y', b: 2}", {"1": "x", "4294967294": "y", "b": 2}),
        ("[1, 2]", [1, 2]),
        # V8 keeps an array of numbers as doubles if one of them is no small integer.
        ("[1, 2**31, 2**53, 2**54, -0, 0.5]", [1.0, 2**31, 2**53, float(2**54), -0.0, 0.5]),
        ("[1n, -(2n**70n)]", [1, -(2**70)]),
        ("new Date(1500)", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("new Map([[1, 'a'], ['b', [2]]])", {1: "a", "b": [2]}),
        ("new Set([1, 'a'])", {1, "a"}),
        ("(() => { const b = new Uint8Array([1, 2, 3]); return [b, b.subarray(1)]; })()", [b"\1\2\3", b"\2\3"]),
        ("['é', '겦', '\\ud800', 'x'.repeat(300)]", ["é", "겦", "\ud800", "x" * 300]),
        ("(() => { const a = [1]; return {x: a, y: a}; })()", {"x": [1], "y": [1]}),
    ],
)
def test_python_reads_what_node_writes(expression: str, value: Any) -> None:
    ((_, written),) = node([f"js:{expression}"])
    back = decode_payload(written)
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, set)
    assert decode_payload(b"\xff\x10" + written[2:]) == value


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("new Map([['a', 1]])", JSMap),
        ("new Map([[1n, 'b'], [true, 'c']])", JSMap),
        ("new Map([[{}, 1]])", JSMap),
        ("new Set([1n, true])", JSSet),
        ("new Set([[1], {}])", JSSet),
        ("[1, , 3]", JSArray),
        ("new Uint16Array([1, 2])", JSUint16Array),
        ("/a+/gi", JSRegExp),
    ],
)
def test_what_plain_types_cannot_hold_survives_a_round_trip(expression: str, kind: type) -> None:
    """Also within other values, which stay plain."""
    ((shown, written),) = node([f"js:{expression}"])
    ((shown_inside, inside),) = node([f"js:{{plain: [1, {{}}], special: {expression}}}"])
    value, around = decode_payload(written), decode_payload(inside)
    assert type(value) is kind
    assert type(around) is dict
    assert around["plain"] == [1, {}]
    assert type(around["special"]) is kind
    (again, _), (again_inside, _) = node([encode_payload(value).hex(), encode_payload(around).hex()])
    assert (again, again_inside) == (shown, shown_inside)


@pytest.mark.parametrize(
    "expression", ["new Map([[1, 'a'], [1n, 'b']])", "new Set([1, 1n])", "[new Set([1, 1n, true])]"]
)
def test_what_would_lose_an_element_is_not_decoded(expression: str) -> None:
    """JavaScript tells 1 from 1n; nothing in Python does."""
    ((_, written),) = node([f"js:{expression}"])
    with pytest.raises(DataError, match="also as a BigInt"):
        decode_payload(written)


def test_a_bigint_can_be_asked_for() -> None:
    assert node([encode_payload([JSBigInt(5)]).hex()])[0][0] == ["Array", [["bigint", "5"]]]
