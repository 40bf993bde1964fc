"""Key bytes and cursors: decoded, or refused by a typed error; what is decoded is encoded to the same bytes."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum.errors import InvalidArgument, InvalidKey, KvorumError
from kvorum.keys import decode_key, encode_key
from kvorum.selector import cursor_at, resume, select

SEEDS = [
    encode_key(key)
    for key in (
        (),
        ("users", 1, 2.5, True, False, b"\0raw\xff", "nul\0in it", "ü€😀"),
        (-1, 0, 255, 256, -256, 2**64, -(2**64), 2**2039, -(2**2039)),
        (-0.0, 0.0, math.inf, -math.inf, 1e-320),
    )
] + [b"\x21\xff\xf8" + bytes(6), b"\x02cursor\x00AmEA", b"\x1d\x08" + b"\1" * 8]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    _key(data)
    _cursor(data)


def _key(data: bytes) -> None:
    try:
        key = decode_key(data)
    except InvalidKey:
        return
    if any(isinstance(part, float) and math.isnan(part) for part in key):
        return  # all NaNs are one key, or two by their sign
    assert encode_key(key) == data, key


def _cursor(data: bytes) -> None:
    selected = select(("a",), None, None)
    cursor = data[:4_096].decode("latin-1")
    for reverse in (False, True):
        try:
            start, end = resume(selected, cursor, reverse=reverse)
        except KvorumError as error:
            assert isinstance(error, InvalidArgument), error
            continue
        if cursor:
            last = end if reverse else start[:-1]
            assert cursor_at(selected, last) == cursor
        assert start >= selected.low
