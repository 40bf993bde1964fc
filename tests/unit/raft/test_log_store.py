"""The log on a real disk: what was written comes back, and damage is named in one line."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvorum_raft.entry import FORMAT, HEADER_SIZE, DamagedRecord, Kind, make, parse
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore, decode_state, encode_state

MAP = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def _batch(first: int, last: int, term: int, *, bound: int = 0, cut: int | None = None) -> Batch:
    entries = [make(Kind.COMMAND, index, term, 1000 + index, b"p%d" % index) for index in range(first, last + 1)]
    return Batch(1, HardState(term, "B", bound, last, 0, 0), cut, entries, {b"small": b"record"})


@pytest.fixture
def filled(path: Path) -> Path:
    store = LogStore.open(path, map_size=MAP)
    store.write([_batch(1, 50, 1), _batch(41, 60, 2, bound=40, cut=41)])
    store.close()
    return path


def test_what_was_written_comes_back(filled: Path) -> None:
    store = LogStore.open(filled, map_size=MAP)
    stored = store.verify(cache=1 << 20)
    assert stored.state == HardState(2, "B", 40, 60, 0, 0)
    assert stored.runs == [(1, 1), (41, 2)]
    assert [entry.index for entry in stored.tail] == list(range(1, 61))
    assert stored.tail[44].payload == b"p45"
    assert stored.first_command == 1
    assert store.get(b"small") == b"record"
    assert [entry.index for entry in store.read(10, 3, 10**6)] == [10, 11, 12]
    assert len(store.read(10, 30, 1)) == 1
    store.close()


def test_an_entry_that_cannot_be_appended_is_an_error(filled: Path) -> None:
    store = LogStore.open(filled, map_size=MAP)
    with pytest.raises(lmdb.KeyExistsError, match="entry 60"):
        store.write([_batch(60, 61, 3)])
    assert store.verify(cache=1 << 20).state == HardState(2, "B", 40, 60, 0, 0)
    store.close()


def test_only_the_newest_part_is_kept_in_memory(filled: Path) -> None:
    store = LogStore.open(filled, map_size=MAP)
    stored = store.verify(cache=200)
    assert stored.tail[-1].index == 60
    assert sum(entry.size for entry in stored.tail) <= 400
    store.close()


def _spoil(path: Path, change: Any) -> None:
    env = lmdb.open(str(path), map_size=MAP, max_dbs=4)
    with env.begin(write=True) as txn:
        change(txn, env.open_db(b"log", txn), env.open_db(b"meta", txn))
    env.close()


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def _record(index: int, term: int) -> bytes:
    return make(Kind.COMMAND, index, term, 1000 + index, b"").record


DAMAGES: dict[str, tuple[Any, str]] = {
    "missing in the middle": (lambda txn, log, meta: txn.delete(_key(20), db=log), "entry 20 is missing"),
    "missing at the end": (lambda txn, log, meta: txn.delete(_key(60), db=log), "ends at entry 59 of 60"),
    "payload": (lambda txn, log, meta: txn.put(_key(7), _record(7, 1)[:-1] + b"?", db=log), "checksum"),
    "short record": (lambda txn, log, meta: txn.put(_key(7), b"abc", db=log), "a record of 3 bytes"),
    "wrong place": (lambda txn, log, meta: txn.put(_key(7), _record(8, 1), db=log), "entry 7 is missing"),
    "older term": (lambda txn, log, meta: txn.put(_key(50), _record(50, 1), db=log), "entry 50 is older"),
    "hard state": (lambda txn, log, meta: txn.put(b"state", b"x" * 60, db=meta), "term and vote"),
    "no hard state": (lambda txn, log, meta: txn.delete(b"state", db=meta), "term and vote"),
    "below the commit bound": (
        lambda txn, log, meta: txn.put(b"state", encode_state(HardState(2, "", 61, 60, 0, 0)), db=meta),
        "entry 61 was committed",
    ),
    "term before the last entry's": (
        lambda txn, log, meta: txn.put(b"state", encode_state(HardState(1, "", 40, 60, 0, 0)), db=meta),
        "term 1 is older",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_named_in_one_line(filled: Path, what: str) -> None:
    change, words = DAMAGES[what]
    _spoil(filled, change)
    store = LogStore.open(filled, map_size=MAP)
    with pytest.raises(RaftFault, match=words) as caught:
        store.verify(cache=1 << 20)
    assert "\n" not in str(caught.value)
    store.close()


def test_formats_of_the_future_are_refused_by_name(filled: Path) -> None:
    _spoil(filled, lambda txn, log, meta: txn.put(b"format", b"2", db=meta))
    with pytest.raises(ConfigurationError, match="has format 2; this version knows formats up to 1"):
        LogStore.open(filled, map_size=MAP)


def test_a_record_of_the_future_is_refused_by_name() -> None:
    import zlib

    record = bytearray(make(Kind.COMMAND, 3, 1, 5, b"x").record)
    record[0] = FORMAT + 1
    checksum = zlib.crc32(record[HEADER_SIZE:], zlib.crc32(record[: HEADER_SIZE - 4]))
    record[HEADER_SIZE - 4 : HEADER_SIZE] = checksum.to_bytes(4, "big")
    with pytest.raises(ConfigurationError, match=f"log entry 3 has record format {FORMAT + 1}"):
        parse(bytes(record))


def test_every_changed_bit_of_a_record_is_seen() -> None:
    record = make(Kind.COMMAND, 3, 2, 5, b"payload").record
    assert parse(record).payload == b"payload"
    for position in range(len(record)):
        for bit in range(8):
            changed = bytearray(record)
            changed[position] ^= 1 << bit
            with pytest.raises(DamagedRecord):
                parse(bytes(changed))


def test_hard_state_round_trip() -> None:
    state = HardState(7, "node-ü", 3, 9, 1, 1)
    assert decode_state(encode_state(state)) == state
    with pytest.raises(DamagedRecord):
        decode_state(b"")


def test_the_page_cache_is_dropped_before_reading(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, what: advice.append(what))
    LogStore.open(filled, map_size=MAP).close()
    assert advice == [os.POSIX_FADV_DONTNEED]


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "file").write_text("not a folder")
    yield tmp_path / "file" / "log"


def test_a_folder_that_cannot_be_used_is_a_fault(unwritable: Path) -> None:
    with pytest.raises(RaftFault, match="cannot be opened"):
        LogStore.open(unwritable, map_size=MAP)
