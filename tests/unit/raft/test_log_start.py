"""A start of the log that fails leaves nothing open, and nothing that the next one cannot go on from."""

import errno
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from kvorum_raft import log_store
from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import ConfigurationError, DiskFull, RaftError, RaftFault
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore, encode_state
from kvorum_raft.write_ahead import SIZE, SyncedFile, WriteAhead
from tests.unit.raft.open_files import open_files

MAP = 1 << 30
SMALL_MAP = 256 << 10
"""Bytes: room for the first entries, and not for a full write-ahead file."""


def _batch(first: int, last: int, size: int = 10) -> Batch:
    entries = [make(Kind.COMMAND, index, 1, 1000 + index, bytes(size)) for index in range(first, last + 1)]
    return Batch(last, HardState(1, "B", 0, last, 0, 0), None, entries)


def _killed(store: LogStore) -> None:
    """As the kernel does it: no transaction, no words."""
    store._close_file()
    store._env.close()


def _used(path: Path) -> None:
    """A log whose newest entries are in the write-ahead file."""
    store = LogStore.open(path, map_size=MAP)
    store.write([Batch(0, HardState(1, "B"))])  # a term that is known: what follows only appends
    store.write([_batch(1, 3)])
    store.write([_batch(4, 5)])
    _killed(store)


def _put(path: Path, key: bytes, value: bytes, table: bytes = b"meta") -> None:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env, env.begin(write=True) as txn:
        txn.put(key, value, db=env.open_db(table, txn))


def _delete(path: Path, key: bytes) -> None:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env, env.begin(write=True) as txn:
        txn.delete(key, db=env.open_db(b"meta", txn))


def _without_tables(path: Path) -> None:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env:
        tables = env.open_db(b"log"), env.open_db(b"meta")
        with env.begin(write=True) as txn:
            for table in tables:
                txn.drop(table)


def _damaged_frame(path: Path) -> None:
    with (path / "write-ahead").open("r+b") as file:
        file.seek(50)
        file.write(b"?")


def _neither_file_nor_format(path: Path) -> None:
    _put(path, (1).to_bytes(8, "big"), b"entry", b"log")
    _delete(path, b"format")
    (path / "write-ahead").unlink()


LONGER: Final = "it ends at entry 0, and its write-ahead file goes on to entry 5 of the same term, in another epoch"
FAILURES: dict[str, tuple[Callable[[Path], Any], type[RaftError], str]] = {
    "format": (lambda path: _put(path, b"format", b"9"), ConfigurationError, "has format 9"),
    "format 0": (lambda path: _put(path, b"format", b"0"), ConfigurationError, "has format 0"),
    "no format": (
        lambda path: _delete(path, b"format"),
        RaftFault,
        "is damaged: it has a write-ahead file and no format",
    ),
    "neither": (_neither_file_nor_format, RaftFault, "is damaged: it has entries and no format"),
    "no file": (lambda path: (path / "write-ahead").unlink(), RaftFault, "is damaged: its write-ahead file is missing"),
    "damaged frame": (_damaged_frame, RaftFault, "is damaged: frame 0 of its write-ahead file"),
    "no tables": (_without_tables, RaftFault, "is damaged: .*MDB_NOTFOUND"),
    "no epoch": (lambda path: _delete(path, b"epoch"), RaftFault, "is damaged: it has a write-ahead file of no epoch"),
    "another epoch": (lambda path: _put(path, b"epoch", b"8 bytes?"), RaftFault, f"is damaged: {LONGER}"),
    "said to be closed": (lambda path: _put(path, b"format", b"1"), RaftFault, f"is damaged: {LONGER}"),
    "environment lost": (
        lambda path: (path / "data.mdb").unlink(),
        RaftFault,
        "is damaged: it has a write-ahead file and no data.mdb",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path, failure: str) -> None:
    spoil, kind, words = FAILURES[failure]
    _used(tmp_path)
    spoil(tmp_path)
    ahead = tmp_path / "write-ahead"
    before = ahead.read_bytes() if ahead.exists() else None
    for _ in range(2):  # nor does the second one forget what the first one saw
        with pytest.raises(kind, match=words) as caught:
            LogStore.open(tmp_path, map_size=MAP)
    assert before == (ahead.read_bytes() if ahead.exists() else None), "what may be all that is left stays"
    # The error holds the frames of the calls, and they what was opened: it is closed nevertheless.
    assert caught.value and open_files(tmp_path) == []


def test_a_first_start_that_fails_leaves_no_half_of_a_log(tmp_path: Path) -> None:
    """Which a later one would call damaged."""

    def cut_short(path: str, **_: Any) -> lmdb.Environment:
        (Path(path) / "data.mdb").write_bytes(bytes(4_096))
        raise lmdb.DiskError(f"{path}: No space left on device")

    for _ in range(2):
        with pytest.raises(DiskFull, match="No space left"):
            LogStore.open(tmp_path, map_size=MAP, open_env=cut_short)
        assert not (tmp_path / "data.mdb").exists()
    _used(tmp_path)
    with pytest.raises(DiskFull, match="No space left"):
        LogStore.open(tmp_path, map_size=MAP, open_env=cut_short)
    assert (tmp_path / "data.mdb").exists(), "a log that was there is never taken away"


def test_a_start_that_fails_at_its_last_step_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _used(tmp_path / "log")
    sync = log_store._sync_folder

    def fails(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    with monkeypatch.context() as patch, pytest.raises(RaftFault, match="Input/output error") as caught:
        patch.setattr(log_store, "_sync_folder", fails)
        LogStore.open(tmp_path / "log", map_size=MAP)
    assert caught.value and open_files(tmp_path) == []
    store = LogStore.open(tmp_path / "log", map_size=MAP)
    assert store.verify(cache=1 << 20).state.last_index == 5
    store.close()


def test_the_folder_is_synced_before_the_environment_relies_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could keep the transaction that says so and lose the name: a start would call that damage."""
    path, sync = tmp_path / "log", log_store._sync_folder
    found: list[tuple[bool, bytes]] = []

    def noting(folder: Path) -> None:
        if folder == path:
            found.append(((path / "write-ahead").exists(), store_format(path)))
        sync(folder)

    def store_format(folder: Path) -> bytes:
        env = envs[-1]
        with env.begin(db=env.open_db(b"meta")) as txn:
            return bytes(txn.get(b"format"))

    envs: list[lmdb.Environment] = []

    def open_env(*how: Any, **more: Any) -> lmdb.Environment:
        envs.append(lmdb.open(*how, **more))
        return envs[-1]

    monkeypatch.setattr(log_store, "_sync_folder", noting)
    store = LogStore.open(path, map_size=MAP, open_env=open_env)
    store.write([_batch(1, 1)])
    assert found == [(False, b"1"), (True, b"1")], "nor is there ever a file without an environment"
    assert store_format(path) == b"2"
    store.close()


@pytest.mark.parametrize("path", ["data.mdb", "write-ahead"])
def test_a_file_that_this_user_may_not_open_is_no_fault_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """No restart mends it, and the node's folder need not be replaced."""
    _used(tmp_path)

    def denied(opened: Path, *how: Any, **more: Any) -> int:
        if Path(opened).name == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(opened))
        return real(opened, *how, **more)

    real = os.open
    with monkeypatch.context() as patch, pytest.raises(ConfigurationError) as caught:
        patch.setattr(os, "open", denied)
        LogStore.open(tmp_path, map_size=MAP)
    expected = "Permission denied: '{}'; the node's user must be allowed to write to all in it"
    assert str(caught.value).endswith(expected.format(tmp_path / path)) and open_files(tmp_path) == []


def test_an_environment_that_this_user_may_not_open_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    def denied(path: str, **_: Any) -> lmdb.Environment:
        raise lmdb.ReadonlyError(f"{path}: Permission denied")

    with pytest.raises(ConfigurationError, match="Permission denied; the node's user must be allowed to write"):
        LogStore.open(tmp_path, map_size=MAP, open_env=denied)


@pytest.mark.parametrize("error", [lmdb.MapFullError("full"), OSError(errno.EIO, "Input/output error")])
def test_records_that_cannot_be_stored_at_the_start_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Broken:
        def begin(self, **_: Any) -> None:
            raise error

    store = LogStore.open(tmp_path, map_size=MAP)
    with (
        monkeypatch.context() as patch,
        pytest.raises(RaftFault, match="cannot write to .*" + re.escape(str(error))) as caught,
    ):
        patch.setattr(store, "_env", Broken())
        store.put_now({b"small": b"record"})
    assert isinstance(caught.value, DiskFull) == isinstance(error, lmdb.MapFullError)
    store.close()


def test_what_a_version_of_the_future_left_in_the_file_is_void_like_all_else(tmp_path: Path) -> None:
    """It was closed in order, so that this version may open it."""
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 2)])
    assert store._file is not None
    ahead = WriteAhead(store._file, b"8 bytes?")
    body = b"\x02" + encode_state(HardState(1, "B", 0, 9))[1:-4]
    ahead.append(ahead.frame(body + zlib.crc32(body).to_bytes(4, "big"), []) or b"")
    store.close()
    store = LogStore.open(tmp_path, map_size=MAP)
    assert store.verify(cache=1 << 20).state.last_index == 2
    store.close()


@pytest.mark.parametrize("room", [0, 1, 4_096, SIZE - 1])
def test_a_disk_that_is_full_when_the_file_is_made_is_told_and_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    def pwrite(fd: int, data: Any, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: room - offset], offset)

    write = os.pwrite
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(DiskFull, match="No space left"):
            patch.setattr(os, "pwrite", pwrite)
            LogStore.open(tmp_path, map_size=MAP)
        assert open_files(tmp_path) == []
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 2)])
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert store.verify(cache=1 << 20).state.last_index == 2
    store.close()


def test_a_full_map_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=SMALL_MAP)
    done = 0
    with pytest.raises(lmdb.MapFullError):
        while done < 3_000:
            store.write([_batch(done + 1, done + 1, size=3_000)])
            done += 1
    assert done > 100, "the write-ahead file takes more than the map"
    with pytest.raises(lmdb.Error, match="has failed before"):
        store.write([_batch(done + 1, done + 1)])
    store.close()
    for _ in range(2):
        store = LogStore.open(tmp_path, map_size=SMALL_MAP)
        with pytest.raises(lmdb.MapFullError):
            store.write([_batch(done + 1, done + 1)])
        store.close()
    store = LogStore.open(tmp_path, map_size=MAP)
    stored = store.verify(cache=1 << 30)
    assert [entry.index for entry in stored.tail] == list(range(1, done + 1)) and stored.state.last_index == done
    store.close()


def test_an_end_that_finds_the_map_full_is_as_a_kill(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=SMALL_MAP)
    for index in range(1, 201):
        store.write([_batch(index, index, size=3_000)])
    store.close()
    assert open_files(tmp_path) == []
    store = LogStore.open(tmp_path, map_size=MAP)
    assert [entry.index for entry in store.verify(cache=1 << 30).tail] == list(range(1, 201))
    store.close()


def test_a_file_that_cannot_be_closed_does_not_keep_the_environment_open(tmp_path: Path) -> None:
    class Unclosable(SyncedFile):
        def close(self) -> None:
            super().close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = LogStore.open(tmp_path, map_size=MAP, open_file=Unclosable)
    with pytest.raises(OSError, match="Input/output"):
        store.close()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("entries", [1, 3_000])
def test_a_log_of_a_version_without_the_file_goes_on(tmp_path: Path, entries: int) -> None:
    with lmdb.open(str(tmp_path), map_size=MAP, max_dbs=4) as env:
        log, meta = env.open_db(b"log"), env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", b"1", db=meta)
            txn.put(b"state", log_store.encode_state(HardState(1, "A", 1, entries, 0, 0)), db=meta)
            for entry in _batch(1, entries).entries:
                txn.put(entry.index.to_bytes(8, "big"), entry.record, db=log)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert [entry.index for entry in store.read(1, entries, 1 << 30)] == list(range(1, entries + 1))
    store.write([_batch(entries + 1, entries + 2)])
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    stored = store.verify(cache=1 << 30)
    assert [entry.index for entry in stored.tail] == list(range(1, entries + 3)) and stored.state.vote == "B"
    store.close()
