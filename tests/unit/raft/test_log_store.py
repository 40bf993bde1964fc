"""The log on a real disk: what was written comes back, and damage is named in one line."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvorum_raft import configuration as cf
from kvorum_raft.base import Base
from kvorum_raft.entry import FORMAT, HEADER_SIZE, DamagedRecord, Entry, Kind, make, parse
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.journal import Batch, HardState, RaftJournal
from kvorum_raft.log_scan import Scan
from kvorum_raft.log_store import LogStore, decode_state, encode_state
from kvorum_raft.seams import Member

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
    "older time": (
        lambda txn, log, meta: txn.put(_key(60), make(Kind.COMMAND, 60, 2, 1058, b"").record, db=log),
        "entry 60 is older",
    ),
    "wrong key": (
        lambda txn, log, meta: txn.delete(_key(60), db=log) and txn.put(_key(61), _record(60, 2), db=log),
        "entry 60 is missing",
    ),
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


def test_damage_that_the_environment_finds_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupted(*_: object) -> None:
        raise lmdb.CorruptedError("mdb_cursor_get: MDB_CORRUPTED")

    store = LogStore.open(filled, map_size=MAP)
    with monkeypatch.context() as patch, pytest.raises(RaftFault, match="is damaged: mdb_cursor_get: MDB_CORRUPTED"):
        patch.setattr(Scan, "take", corrupted)
        store.verify(cache=1 << 20)
    store.close()


@pytest.mark.parametrize("what", ["payload", "short record", "missing in the middle", "wrong place"])
def test_damage_that_is_read_later_is_named_too(filled: Path, what: str) -> None:
    _spoil(filled, DAMAGES[what][0])
    store = LogStore.open(filled, map_size=MAP)
    with pytest.raises(RaftFault, match="is damaged: "):
        store.read(1, 30, 10**6)
    store.close()


def test_an_empty_record_takes_the_one_before_away(filled: Path) -> None:
    store = LogStore.open(filled, map_size=MAP)
    store.write([Batch(1, HardState(2, "B", 40, 60, 0, 0), records={b"small": b"", b"other": b"", b"third": b"3"})])
    assert [store.get(key) for key in (b"small", b"other", b"third")] == [None, None, b"3"]
    assert store.records(b"small") == []
    store.close()


def test_formats_of_the_future_are_refused_by_name(filled: Path) -> None:
    _spoil(filled, lambda txn, log, meta: txn.put(b"format", b"3", db=meta))
    with pytest.raises(ConfigurationError, match="has format 3; this version knows formats up to 2"):
        LogStore.open(filled, map_size=MAP)


def test_a_record_of_the_future_is_refused_by_name() -> None:
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
    newer, longer = (bytes([2]) + encode_state(state)[1:-4], encode_state(state)[:-4] + b"?")
    with pytest.raises(ConfigurationError, match="the hard state has format 2; this version knows formats up to 1"):
        decode_state(newer + zlib.crc32(newer).to_bytes(4, "big"))
    with pytest.raises(DamagedRecord, match="wrong length"):
        decode_state(longer + zlib.crc32(longer).to_bytes(4, "big"))


def test_the_page_cache_is_dropped_before_reading(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, what: advice.append(what))
    LogStore.open(filled, map_size=MAP).close()
    assert advice == [os.POSIX_FADV_DONTNEED] * 2, "of the environment, and of the write-ahead file"


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "file").write_text("not a folder")
    yield tmp_path / "file" / "log"


def test_a_folder_that_cannot_be_used_is_a_fault(unwritable: Path) -> None:
    with pytest.raises(RaftFault, match="cannot be opened"):
        LogStore.open(unwritable, map_size=MAP)


# -- the beginning of the log


def _configured(index: int, term: int) -> bytes:
    members = [cf.Voter(Member("A", "A:1", "A:2"), b"A" * 16)]
    return make(Kind.CONFIGURATION, index, term, 1000, cf.make(b"c" * 16, members).encode()).record


def _journal(path: Path) -> tuple[LogStore, RaftJournal, list[Batch]]:
    store = LogStore.open(path, map_size=MAP)
    waiting: list[Batch] = []

    class Disk:
        def submit(self, batch: Batch) -> None:
            waiting.append(batch)

        def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
            return store.read(first, count, max_bytes)

    return store, RaftJournal(Disk(), store.verify(cache=1 << 20), cache=1 << 20, clock=lambda: 0.0), waiting


def _write(store: LogStore, journal: RaftJournal, waiting: list[Batch]) -> None:
    journal.flush()
    store.write(waiting)
    journal.on_durable(waiting[-1].seq)
    waiting.clear()


def _grown(path: Path) -> tuple[LogStore, RaftJournal, list[Batch]]:
    store, journal, waiting = _journal(path)
    journal.set_term(2, "A")
    journal.append(parse(_configured(1, 1)))
    for index in range(2, 31):
        journal.append(make(Kind.COMMAND, index, 1 + (index > 20), 1000 + index, b"p%d" % index))
    journal.setRaftCommitIndex(25)
    _write(store, journal, waiting)
    return store, journal, waiting


def test_a_cut_log_begins_behind_its_base_and_knows_its_members(path: Path) -> None:
    store, journal, waiting = _grown(path)
    for index in (5, 20, 22):
        journal.cut_to(journal.base_at(index))
    assert journal.term_at(22) == 2 and journal.term_at(21) is None
    _write(store, journal, waiting)
    store.close()
    store, again, _ = _journal(path)
    assert (again.base_index, again.base_term, again.base_time_ms) == (22, 2, 1022)
    assert (again.last_index, again.durable_index, again.first_command) == (30, 30, 22)
    assert [entry.index for entry in again.configurations] == [1]
    assert again.entry(23).payload == b"p23"
    assert [again.term_at(index) for index in (21, 22, 30)] == [None, 2, 2]
    with pytest.raises(RaftFault, match="hole"):
        again.entry(22)
    assert again.base_at(25) == Base(25, 2, 1025, _configured(1, 1))
    store.close()


def test_a_log_is_cut_only_where_it_is_committed_and_durable(path: Path) -> None:
    store, journal, _ = _grown(path)
    with pytest.raises(RaftFault, match="cannot begin"):
        journal.cut_to(Base(26, 2, 1026, _configured(1, 1)))
    with pytest.raises(RaftFault, match="cannot begin"):
        journal.cut_to(Base(25, 1, 1025, _configured(1, 1)))
    journal.cut_to(Base(10, 1, 1010, _configured(1, 1)))
    journal.cut_to(Base(5, 1, 1005, _configured(1, 1)))
    assert journal.base_index == 10, "never back"
    store.close()


def test_a_snapshot_takes_the_place_of_the_log_in_one_transaction(path: Path) -> None:
    store, journal, waiting = _grown(path)
    base = Base(100, 3, 5000, _configured(90, 3))
    journal.append(make(Kind.COMMAND, 31, 2, 2000, b"to be forgotten"))
    journal.flush()
    journal.reset_to(base)
    assert journal.durable_index == 0, "nothing of the new log is on the disk"
    assert journal.kept_index == 30, "but what was acknowledged still is"
    journal.set_term(3, "")
    journal.append(make(Kind.COMMAND, 101, 3, 5001, b"new"))
    journal.flush()
    first, *rest = waiting
    store.write([first])
    journal.on_durable(first.seq)
    assert (journal.durable_index, journal.kept_index) == (0, 30)
    store.write(rest)
    journal.on_durable(rest[-1].seq)
    assert (journal.durable_index, journal.kept_index) == (101, 101)
    store.close()
    store, again, _ = _journal(path)
    assert (again.base_index, again.base_term, again.last_index, again.term) == (100, 3, 101, 3)
    assert [entry.index for entry in again.configurations] == [90]
    assert again.entry(101).payload == b"new"
    store.close()


def test_a_snapshot_of_what_is_committed_never_takes_the_place_of_the_log(path: Path) -> None:
    store, journal, _ = _grown(path)
    with pytest.raises(RaftFault, match="too old"):
        journal.reset_to(Base(25, 2, 1025, _configured(1, 1)))
    store.close()


def test_a_damaged_or_missing_base_is_named(path: Path) -> None:
    store, journal, waiting = _grown(path)
    journal.cut_to(journal.base_at(10))
    _write(store, journal, waiting)
    store.close()
    whole = (path / "data.mdb").read_bytes()
    other = Base(11, 1, 1011, _configured(1, 1)).encode()
    for record in (None, b"", b"x" * 40, other):

        def change(txn: Any, _: Any, meta: Any, record: bytes | None = record) -> None:
            if record is None:
                txn.delete(b"base", db=meta)
            else:
                txn.put(b"base", record, db=meta)

        _spoil(path, change)
        store = LogStore.open(path, map_size=MAP)
        with pytest.raises(RaftFault, match="damaged"):
            store.verify(cache=1 << 20)
        store.close()
        (path / "data.mdb").write_bytes(whole)


def test_a_healthy_file_may_be_shorter_than_its_pages_say(path: Path) -> None:
    """Pages at the end that a transaction took and gave back are never written."""
    store = LogStore.open(path, map_size=MAP)
    store.write([_batch(1, 50, 1)])
    large = [make(Kind.COMMAND, index, 1, 1000 + index, b"x" * 20_000) for index in range(51, 81)]
    store.write([Batch(1, HardState(1, "B", 0, 80, 0, 0), None, large, {})])
    for _ in range(3):  # two more roots, so that no meta page names the large entries any more
        store.write([Batch(1, HardState(1, "B", 0, 50, 0, 0), 51, [], {})])
    store.close()
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size - 4 * 4096)
    store = LogStore.open(path, map_size=MAP)
    assert store.verify(cache=1 << 20).state.last_index == 50
    store.write([Batch(1, HardState(1, "B", 0, 80, 0, 0), None, large, {})])
    assert [entry.index for entry in store.read(75, 10, 10**6)] == list(range(75, 81))
    store.close()
