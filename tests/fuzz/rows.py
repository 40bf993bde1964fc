"""Rows as a node hands them out for single keys: an entry or a DataError, and what is read is what `pb.KvEntry` says of
the same row."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import answered, packed, unpacked
from kvorum.errors import DataError
from kvorum.values import encode_value
from tests.fuzz import values

_STAMP = bytes(range(10))
_KEY = ("k", 1)


def _row(data: bytes, encoding: int) -> bytes:
    return bytes((encoding,)) + _STAMP + data


SEEDS = [
    b"",
    b"short",
    *(_row(*encode_value(value)) for value in (b"raw", None, "text", {"a": [1, 2.5, True]}, "ü€")),
    _row(bytes(8), pb.VALUE_ENCODING_LE64),
    _row(b"odd", pb.VALUE_ENCODING_LE64),
    _row(b"unknown", 99),
    *(_row(seed, pb.VALUE_ENCODING_V8) for seed in values.SEEDS),
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    if 0 < len(data) < 11:
        entry = None
    else:
        entry = pb.KvEntry()
        if data:
            entry.encoding, entry.versionstamp, entry.value = data[0], data[1:11], data[11:]  # type: ignore[assignment]
        assert packed(entry) == data
    try:
        found = unpacked(_KEY, data)
    except DataError as error:
        assert repr(_KEY) in str(error)
        if entry is not None:
            _refused(entry)
        return
    assert entry is not None
    assert repr(found) == repr(answered(_KEY, entry))
    assert found.exists == bool(data)


def _refused(entry: pb.KvEntry) -> None:
    try:
        found = answered(_KEY, entry)
    except DataError:
        return
    raise AssertionError(f"the other way finds {found!r:.100}")
