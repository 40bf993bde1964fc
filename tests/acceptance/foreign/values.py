"""Values as JavaScript writes them, how a driver shows them, and what they are in Python."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from kvorum import KvU64


class Value(NamedTuple):
    script: str
    """A JavaScript expression for it."""
    shown: Any
    """How a driver shows it."""
    python: Any
    """What our own client reads, and writes for it if `back`."""
    back: bool = True


def bigint(number: int) -> dict[str, str]:
    return {"$bigint": str(number)}


MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
IDS = (2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 10**18 + 1)

VALUES = {
    "null": Value("null", None, None),
    "undefined": Value("undefined", {"$undefined": True}, None, back=False),
    "true": Value("true", True, True),
    "false": Value("false", False, False),
    "zero": Value("0", 0, 0),
    "minus zero": Value("-0", {"$number": "-0"}, -0.0),
    "small": Value("-5", -5, -5),
    "2^31": Value("2 ** 31", 2**31, 2**31),
    "2^53": Value("2 ** 53", 2**53, 2**53),
    "fraction": Value("1.5", 1.5, 1.5),
    "infinity": Value("-Infinity", {"$number": "-Infinity"}, float("-inf")),
    "nan": Value("NaN", {"$number": "NaN"}, float("nan")),
    **{f"id {number}": Value(f"{number}n", bigint(number), number) for number in IDS},
    "small bigint": Value("5n", bigint(5), 5, back=False),
    "large bigint": Value("-(2n ** 200n)", bigint(-(2**200)), -(2**200)),
    "empty text": Value("''", "", ""),
    "latin text": Value("'é'", "é", "é"),
    "emoji": Value("'a😀겦'", "a😀겦", "a😀겦"),
    "lone surrogate": Value("'a\\ud800b'", "a\ud800b", "a\ud800b"),
    "long text": Value("'겦'.repeat(3000)", "겦" * 3000, "겦" * 3000),
    "array": Value("[1, [true, null, 'x'], {}]", [1, [True, None, "x"], {}], [1, [True, None, "x"], {}]),
    "object": Value(
        "({ a: 1, '겦': { b: [2] }, 7: 'x' })",
        {"7": "x", "a": 1, "겦": {"b": [2]}},
        {"7": "x", "a": 1, "겦": {"b": [2]}},
    ),
    "date": Value("new Date(1770091506789)", {"$date": 1770091506789}, MOMENT),
    "date inside": Value("({ when: new Date(0) })", {"when": {"$date": 0}}, {"when": datetime(1970, 1, 1, tzinfo=UTC)}),
    "map": Value("new Map([[1, 'a'], ['b', [2]]])", {"$map": [[1, "a"], ["b", [2]]]}, {1: "a", "b": [2]}),
    "set": Value("new Set([1, 'a'])", {"$set": [1, "a"]}, {1, "a"}, back=False),
    "set of one": Value("new Set(['a'])", {"$set": ["a"]}, {"a"}),
    "bytes": Value("new Uint8Array([0, 255, 7])", {"$bytes": "00ff07"}, b"\x00\xff\x07"),
    "no bytes": Value("new Uint8Array(0)", {"$bytes": ""}, b""),
    "counter": Value("new tools.KvU64(2n ** 64n - 1n)", {"$u64": str(2**64 - 1)}, KvU64(2**64 - 1)),
    "counter inside": Value(
        "({ u: new tools.KvU64(100n) })", {"u": {"value": bigint(100)}}, {"u": {"value": 100}}, back=False
    ),
    "ids inside": Value(
        "({ ids: [2n ** 60n, -1n] })", {"ids": [bigint(2**60), bigint(-1)]}, {"ids": [2**60, -1]}, back=False
    ),
}
"""All of these travel between all clients, both ways where `back`."""

BYTES_INSIDE = Value("({ b: [new Uint8Array([1, 2])] })", {"b": [{"$bytes": "0102"}]}, {"b": [b"\x01\x02"]})
"""Node's own serializer, which the packages for Node use, writes these in a form that only Node reads."""


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types, and with the same signs of zero."""
    return repr(left) == repr(right) or (isinstance(left, set) and left == right)
