"""V8 bytes, as another program or a damaged disk might hand them out: a value or a DataError, in time that goes with
their size. A value can be written back or is refused by a typed error, and what was written reads as the same bytes
again. The two readers, ours and that for rare values, find the same in the same bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from v8serialize.constants import JSRegExpFlag
from v8serialize.jstypes import JSArray, JSBigInt, JSError, JSHole, JSMap, JSRegExp

from kvorum import v8
from kvorum.errors import DataError, InvalidValue, KvorumError, LimitExceeded
from kvorum.v8 import rest

CYCLE: list[object] = [1]
CYCLE.append(CYCLE)
_SHARED: list[object] = ["twice"]

SEEDS = [
    v8.dumps(value)
    for value in (
        None,
        [1, -1, 2**31, 2**53, 2**64, -(2**70), 1.5, True, False],
        {"a": 1, "7": [1, 2], "ü": "€uro", "deep": {"x": {"y": [[]]}}},
        {1: "a", 2.5: "b", b"x": None},
        {1, 2, 3},
        b"bytes",
        datetime(2020, 1, 1, tzinfo=UTC),
        [_SHARED, _SHARED],
        CYCLE,
        [b"buffer and view", CYCLE],
        JSArray([1, JSHole, 3]),
        JSArray([1], foo="bar"),
        JSMap([("a", 1), (JSBigInt(1), 2), (1, 3)]),
        [JSRegExp("a+", JSRegExpFlag.Global), JSError("bad", name="TypeError")],
        "\ud800 lone",
    )
] + [
    bytes.fromhex(text)
    for text in (
        "ff105206666f6f0204",  # RegExp with a strange flag
        "ff0f522203616263" + "00",  # RegExp
        "ff0f726d2203626164732203737461" + "2e",  # Error
        "ff0f6103493202244003",  # sparse array
        "ff0f2d",
        "ff0f5c4200",
        "ff0f42080102030405060708565708080000",  # another view
        "ff0f7801",
        "ff0f6e000000000000f87f",  # boxed number
        "ff0f735a1001",
        "ff0fff0f4902",
        "ff10424200564200000000",
    )
]


OURS = ("a number is too long", "nested", "not version 15 or 16")
"""What only our own reader minds."""
THEIRS = ("Varint is larger", "out of range", "padding between a buffer and its view")
"""What only the other one minds: numbers of more than 32 bits, of which V8 itself ignores what is too much, and what
follows the value."""


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    # Half the inputs would die at the header.
    for encoded in (data, b"\xff\x0f" + data) if data[:1] != b"\xff" else (data,):
        try:
            value = v8.loads(encoded)
        except DataError as error:
            if not any(reason in str(error) for reason in OURS):
                _refused(encoded)
            continue
        try:
            once = v8.dumps(value)
        except KvorumError as error:
            assert isinstance(error, (InvalidValue, LimitExceeded)), error
            continue
        try:
            other = v8.dumps(rest.loads(encoded))
        except DataError as error:
            assert any(reason in str(error) for reason in THEIRS), encoded.hex()
        else:
            # Names that are numbers come first there.
            assert _letters(other) == _letters(once), encoded.hex()
        again = v8.dumps(v8.loads(once))
        # A set has no order, and where it stands decides on the padding of strings.
        assert again == once or (b"'" in once and _letters(again) == _letters(once)), encoded.hex()


def _refused(encoded: bytes) -> None:
    try:
        value = rest.loads(encoded)
    except DataError:
        return
    raise AssertionError(f"the other reader finds {value!r:.100} in {encoded.hex()}")


def _letters(data: bytes) -> list[int]:
    return sorted(byte for byte in data if byte)
