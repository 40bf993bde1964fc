"""The log and its write-ahead file: what was acknowledged is found wherever it is."""

import os
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from kvorum_raft.base import Base
from kvorum_raft.entry import Entry, Kind, make
from kvorum_raft.errors import RaftFault
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore, encode_state
from kvorum_raft.write_ahead import ALIGNED, MAX_FRAME, SIZE, File, SyncedFile, WriteAhead

MAP = 1 << 30


def _batch(first: int, last: int, term: int = 1) -> Batch:
    entries = [make(Kind.COMMAND, index, term, 1000 + index, b"p%d" % index) for index in range(first, last + 1)]
    return Batch(last, HardState(term, "B", 0, last, 0, 0), None, entries)


def _killed(store: LogStore) -> None:
    """As the kernel does it: no transaction, no words."""
    store._env.close()
    assert store._file is not None
    store._file.close()


def _indices(store: LogStore) -> list[int]:
    return [entry.index for entry in store.verify(cache=1 << 20).tail]


def _syncs(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two made something durable, from now on."""
    found: list[str] = []
    append, commit = WriteAhead.append, store._commit
    monkeypatch.setattr(WriteAhead, "append", lambda *what: found.append("ahead") or append(*what))
    monkeypatch.setattr(store, "_commit", lambda *how, **more: found.append("environment") or commit(*how, **more))
    return found


def test_what_only_appends_is_durable_without_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 3), _batch(4, 4)])
    store.write([Batch(5, HardState(1, "B", 2, 4, 0, 0))])
    assert syncs == ["ahead", "ahead"]
    assert _indices_in_environment(tmp_path, store) == []
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4]
    assert store.verify(cache=1 << 20).state == HardState(1, "B", 2, 4, 0, 0)
    store.close()


@pytest.mark.parametrize("state", [HardState(2, "B", 0, 3, 0, 0), HardState(1, "C", 0, 3, 0, 0)], ids=["term", "vote"])
def test_a_term_or_vote_is_never_only_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: HardState
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 3)])
    store.write([Batch(4, state)])
    store.write([Batch(5, state)])
    assert syncs == ["ahead", "environment", "ahead"]
    _killed(store)
    (tmp_path / "write-ahead").write_bytes(bytes(SIZE))  # the newest frame is lost
    store = LogStore.open(tmp_path, map_size=MAP)
    assert store.verify(cache=1 << 20).state == state
    store.close()


def _voted(path: Path) -> LogStore:
    """A log with the term and the vote of these batches."""
    store = LogStore.open(path, map_size=MAP)
    store.write([Batch(0, HardState(1, "B"))])
    return store


def _indices_in_environment(path: Path, store: LogStore) -> list[int]:
    with store._env.begin(db=store._log) as txn, txn.cursor() as cursor:
        return [int.from_bytes(key, "big") for key in cursor.iternext(values=False)]


@pytest.mark.parametrize(
    "change",
    [
        Batch(9, HardState(1, "B", 0, 2, 0, 0), truncate_from=3),
        Batch(9, HardState(1, "B", 0, 5, 0, 0), records={b"small": b"record"}),
        Batch(9, HardState(1, "B", 3, 5, 3, 1), base=Base(3, 1, 1003)),
        Batch(9, HardState(1, "B", 9, 9, 9, 1), base=Base(9, 1, 1009), reset=True),
        Batch(9, HardState(1, "B", 9, 9, 9, 1), reset=True),
    ],
    ids=["cut", "record", "base", "snapshot", "reset"],
)
def test_whatever_does_more_goes_to_the_environment_with_all_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Batch
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 5)])
    store.write([change])
    assert syncs == ["ahead", "environment"]
    left = {2: [1, 2], 5: [4, 5] if change.base else [1, 2, 3, 4, 5], 9: []}[change.state.last_index]
    assert _indices_in_environment(tmp_path, store) == left
    last = change.state.last_index
    store.write([_batch(last + 1, last + 2, term=3)])
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices_in_environment(tmp_path, store) == [*left, last + 1, last + 2]
    store.close()


def test_a_full_file_moves_into_the_environment_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    frames_of_one = SIZE // ALIGNED
    for index in range(1, 2 * frames_of_one + 10):
        store.write([_batch(index, index)])
    assert [at for at, sync in enumerate(syncs) if sync == "environment"] == [frames_of_one, 2 * frames_of_one + 1]
    last = 2 * frames_of_one + 9
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == list(range(1, last + 1))
    store.close()


def test_a_large_batch_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 2)])
    large = make(Kind.COMMAND, 3, 1, 2000, bytes(MAX_FRAME))
    store.write([Batch(3, HardState(1, "B", 0, 3, 0, 0), None, [large])])
    assert syncs == ["ahead", "environment"]
    assert _indices_in_environment(tmp_path, store) == [1, 2, 3]
    store.close()


def test_entries_are_read_wherever_they_are(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 4)])
    store._commit(store._waiting, None)
    store.write([_batch(5, 6)])
    store.write([_batch(7, 9)])

    def read(first: int, count: int, size: int = 10**6) -> list[int]:
        return [entry.index for entry in store.read(first, count, size)]

    assert read(3, 2) == [3, 4]
    assert read(3, 9) == [3, 4], "what the environment holds is enough of an answer"
    assert read(5, 9) == [5, 6, 7, 8, 9] and read(6, 2) == [6, 7] and read(8, 5, 1) == [8]
    assert read(10, 1) == []
    store.close()


def test_entries_that_move_while_they_are_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _voted(tmp_path)
    store.write([_batch(1, 4)])
    waiting = store._read_waiting

    def moved_meanwhile(first: int, count: int, max_bytes: int) -> list[Entry]:
        store._commit(store._waiting, None)
        return waiting(first, count, max_bytes)

    monkeypatch.setattr(store, "_read_waiting", moved_meanwhile)
    assert [entry.index for entry in store.read(2, 2, 10**6)] == [2, 3]
    assert not store._waiting, "they have moved"
    store.close()


def test_entries_that_move_and_are_followed_by_others_while_they_are_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads may wait for the processor as long as it takes to write all of that."""
    store = _voted(tmp_path)
    store.write([_batch(1, 4)])
    waiting = store._read_waiting

    def moved_meanwhile(first: int, count: int, max_bytes: int) -> list[Entry]:
        store._commit(store._waiting, None)
        store.write([_batch(5, 6)])
        return waiting(first, count, max_bytes)

    monkeypatch.setattr(store, "_read_waiting", moved_meanwhile)
    assert [entry.index for entry in store.read(2, 2, 10**6)] == [2, 3]
    assert [batch.seq for batch in store._waiting] == [6], "the others have moved"
    store.close()


def test_an_entry_out_of_order_is_an_error_and_the_last_thing(tmp_path: Path) -> None:
    for wrong in (_batch(2, 3), _batch(4, 5)):
        store = LogStore.open(tmp_path / str(wrong.seq), map_size=MAP)
        store.write([_batch(1, 2)])
        with pytest.raises(lmdb.KeyExistsError, match=f"entry {wrong.entries[0].index} cannot follow entry 2"):
            store.write([wrong])
        with pytest.raises(lmdb.Error, match="has failed before"):
            store.write([_batch(3, 3)])
        store.close()
        store = LogStore.open(tmp_path / str(wrong.seq), map_size=MAP)
        assert _indices(store) == [1, 2]
        store.close()


class Failing:
    """A file whose next write fails, with a part of it written."""

    def __init__(self, path: Path, whole: bool) -> None:
        self._file: File = SyncedFile(path, whole)
        self.fails = False
        self.content, self.close = self._file.content, self._file.close

    def write(self, offset: int, data: bytes) -> None:
        if self.fails:
            self.fails = False
            self._file.write(offset, data[:512])
            raise OSError(5, "Input/output error")
        self._file.write(offset, data)


def test_after_a_failed_write_nothing_is_written_any_more(tmp_path: Path) -> None:
    """Not at the end, either: nobody knows what of it is on the disk."""
    opened: list[Failing] = []

    def open_file(path: Path, whole: bool) -> Failing:
        opened.append(Failing(path, whole))
        return opened[-1]

    store = LogStore.open(tmp_path, map_size=MAP, open_file=open_file)
    store.write([_batch(1, 2)])
    opened[0].fails = True
    large = make(Kind.COMMAND, 3, 1, 2000, b"z" * 8_000)
    with pytest.raises(OSError, match="Input/output"):
        store.write([Batch(3, HardState(1, "B", 0, 3, 0, 0), None, [large])])
    with pytest.raises(lmdb.Error, match="has failed before"):
        store.write([_batch(3, 3)])
    store.close()
    assert _format(tmp_path) == b"2"
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2]
    store.close()


def _format(path: Path) -> bytes:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(db=meta) as txn:
            return bytes(txn.get(b"format"))


def test_an_end_moves_everything_into_the_environment(tmp_path: Path) -> None:
    store = _voted(tmp_path)
    store.write([_batch(1, 3)])
    store.write([Batch(4, HardState(1, "B", 2, 3, 0, 0))])
    store.close()
    store.close()  # nothing more
    with pytest.raises(lmdb.Error, match="the log is closed"):
        store.write([_batch(4, 4)])
    for _ in range(2):
        store = LogStore.open(tmp_path, map_size=MAP)
        assert _indices_in_environment(tmp_path, store) == [1, 2, 3]
        assert store.verify(cache=1 << 20).state == HardState(1, "B", 2, 3, 0, 0)
        store.close()
        (tmp_path / "write-ahead").unlink()


@pytest.mark.parametrize(
    "frame",
    [
        (HardState(1, "B", 0, 5, 0, 0), [5]),
        (HardState(1, "B", 0, 5, 0, 0), [4]),
        (HardState(1, "B", 5, 4, 0, 0), [4]),
        (HardState(2, "B", 0, 4, 0, 0), [4]),
        (HardState(1, "C", 0, 4, 0, 0), [4]),
        (HardState(1, "B", 0, 4, 2, 1), [4]),
        (HardState(1, "B", 0, 3, 0, 0), [3]),
    ],
    ids=["gap", "state ahead", "bound ahead", "term", "vote", "base", "again"],
)
def test_frames_that_do_not_go_on_from_the_environment_are_damage(
    tmp_path: Path, frame: tuple[HardState, list[int]]
) -> None:
    """Whole ones, of the right epoch: nothing of them is moved."""
    store = _voted(tmp_path)
    store.write([_batch(1, 3)])
    assert store._ahead is not None
    state, indices = frame
    records = [_batch(index, index).entries[0].record for index in indices]
    store._ahead.append(store._ahead.frame(encode_state(state), records) or b"")
    _killed(store)
    before = (tmp_path / "data.mdb").read_bytes()
    for _ in range(2):
        store = LogStore.open(tmp_path, map_size=MAP)
        with pytest.raises(RaftFault, match="is damaged"):
            store.verify(cache=1 << 20)
        store.close()
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_log_that_was_closed_is_one_that_older_versions_know(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 2)])
    store.close()
    assert _format(tmp_path) == b"1"
    with lmdb.open(str(tmp_path), map_size=MAP, max_dbs=4) as env:
        log = env.open_db(b"log")
        with env.begin(db=log, write=True) as txn:  # an older version goes on
            assert txn.stat()["entries"] == 2
            txn.put((3).to_bytes(8, "big"), make(Kind.COMMAND, 3, 1, 1003, b"").record)
            txn.put(b"state", _state(3), db=env.open_db(b"meta", txn))
    (tmp_path / "write-ahead").unlink()
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3]
    store.write([_batch(4, 4)])
    _killed(store)
    assert _format(tmp_path) == b"2"
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4]
    store.close()


def _state(last: int) -> bytes:
    return encode_state(HardState(1, "B", 0, last, 0, 0))


def _without_file(path: Path) -> None:
    (path / "write-ahead").unlink()


def _short(path: Path) -> None:
    os.truncate(path / "write-ahead", SIZE - 1)


def _spoilt(path: Path) -> None:
    with (path / "write-ahead").open("r+b") as file:
        file.seek(50)
        byte = file.read(1)
        file.seek(50)
        file.write(bytes([byte[0] ^ 1]))


def _without_epoch(path: Path) -> None:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env, env.begin(write=True) as txn:
        txn.delete(b"epoch", db=env.open_db(b"meta", txn))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_file, "its write-ahead file is missing"),
        (_short, "its write-ahead file has 2,097,151 bytes instead of 2,097,152"),
        (_spoilt, "frame 0 of its write-ahead file is damaged, and frame 1 comes after it"),
        (_without_epoch, "it has a write-ahead file of no epoch"),
    ],
)
def test_a_damaged_file_is_named_and_not_taken_for_an_empty_one(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    store = _voted(tmp_path)
    store.write([_batch(1, 2)])
    store.write([_batch(3, 3)])
    _killed(store)
    damage(tmp_path)
    for _ in range(2):
        with pytest.raises(RaftFault, match=f"is damaged: {words}") as caught:
            LogStore.open(tmp_path, map_size=MAP)
        assert "\n" not in str(caught.value)


def test_a_start_writes_nothing_into_the_environment(tmp_path: Path) -> None:
    """Before it has verified the log: else damage could become worse, or look like something else the next time."""
    store = _voted(tmp_path)
    store.write([_batch(1, 3)])
    store.write([_batch(4, 5)])
    _killed(store)
    before = (tmp_path / "data.mdb").read_bytes(), (tmp_path / "write-ahead").read_bytes()
    for _ in range(2):
        store = LogStore.open(tmp_path, map_size=MAP)
        assert _indices(store) == [1, 2, 3, 4, 5]
        assert [entry.index for entry in store.read(2, 9, 10**6)] == [2, 3, 4, 5]
        store.close()
        assert ((tmp_path / "data.mdb").read_bytes(), (tmp_path / "write-ahead").read_bytes()) == before


def test_the_first_batch_after_a_start_moves_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, and wherever the process dies: a frame behind those would begin where the newest one may be
    torn, and look as if it followed a damaged one."""
    store = _voted(tmp_path)
    store.write([_batch(1, 3)])
    _killed(store)

    class Dies(Exception):
        pass

    def dies(*_: object) -> None:
        raise Dies

    for moment in ("_append", "_new_epoch"):
        store = LogStore.open(tmp_path, map_size=MAP)
        with monkeypatch.context() as patch, pytest.raises(Dies):
            patch.setattr(store, moment, dies)
            store.write([_batch(4, 4)])
        _killed(store)
        store = LogStore.open(tmp_path, map_size=MAP)
        assert _indices(store) == [1, 2, 3]
        _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(4, 4)])
    store.write([_batch(5, 5)])
    assert syncs == ["environment", "ahead"]
    assert _indices_in_environment(tmp_path, store) == [1, 2, 3, 4] and _indices(store) == [1, 2, 3, 4, 5]
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4, 5]
    store.close()
    assert _format(tmp_path) == b"2", "nothing was written, so nothing has moved"
