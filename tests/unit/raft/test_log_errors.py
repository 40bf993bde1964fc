"""Each call of the operating system in a log's life fails once: the node hears of it, nothing that was acknowledged is
lost, nothing is made of what was not written, and nothing stays open."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import DiskFull, RaftError, RaftFault
from kvorum_raft.faults import kind_of
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore
from kvorum_raft.write_ahead import MAX_FRAME, SIZE
from tests.unit.raft.open_files import open_files

MAP: Final = 1 << 30
CALLS: Final = ("open", "ftruncate", "pwrite", "pread", "fsync", "fdatasync", "posix_fadvise")


def _batch(number: int, size: int = 10, *, term: int = 1) -> Batch:
    entry = make(Kind.COMMAND, number, term, 1000 + number, bytes([number]) * size)
    return Batch(number, HardState(term, "B", 0, number, 0, 0), None, [entry])


BATCHES: Final = [
    *(_batch(1), _batch(2), _batch(3, 9_000)),  # the first transaction, two frames
    *(_batch(4, MAX_FRAME), _batch(5), _batch(6)),  # one that is too large for a frame
    *(_batch(7, term=2), _batch(8, term=2)),  # and one with a term
]


def _life(folder: Path) -> Iterator[int]:
    """What was acknowledged so far; begins with what is found. Raises what a log raises."""
    store = LogStore.open(folder, map_size=MAP)
    try:
        done = store.verify(cache=1 << 20).state.last_index
        yield done
        for batch in BATCHES[done:]:
            store.write([batch])
            yield batch.seq
    finally:
        store.close()


def _lived(folder: Path) -> tuple[int, Exception | None]:
    """What was acknowledged, and how it ended."""
    done = 0
    try:
        for done in _life(folder):  # noqa: B007  it is what the caller asks for, also after an error
            pass
    except (RaftError, lmdb.Error, OSError) as error:
        return done, error
    return done, None


def _found(folder: Path) -> int:
    """The last batch, if the log holds all of them up to it and nothing else. The process is killed then."""
    store = LogStore.open(folder, map_size=MAP)
    stored = store.verify(cache=1 << 20)
    last = stored.state.last_index
    store._close_file()
    store._env.close()
    assert stored.tail == [entry for batch in BATCHES[:last] for entry in batch.entries]
    assert stored.state == (BATCHES[last - 1].state if last else HardState())
    return last


def _half(folder: Path) -> int:
    """A log of the first three batches, two of them in the write-ahead file, whose process was killed. How many."""
    store = LogStore.open(folder, map_size=MAP)
    for batch in BATCHES[:3]:
        store.write([batch])
    store._close_file()
    store._env.close()
    return 3


def _closed(folder: Path) -> int:
    _half(folder)
    store = LogStore.open(folder, map_size=MAP)
    store.write([BATCHES[3]])
    store.close()
    return 4


def _empty(folder: Path) -> int:
    folder.mkdir()
    return 0


class Failing:
    """Counts the calls that concern a folder, and lets one of them fail."""

    def __init__(self, folder: Path, which: int, number: int) -> None:
        self._folder = folder
        self._which = which
        self._number = number
        self.calls: list[str] = []

    @contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        with patch.context() as context:
            for name in CALLS:
                context.setattr(os, name, self._wrapped(name, getattr(os, name)))
            yield

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, *more: Any) -> Any:
            path = Path(where) if name == "open" else Path(f"/proc/self/fd/{where}").readlink()
            if path.is_relative_to(self._folder):
                self.calls.append(f"{name} {path.name}")
                if len(self.calls) == self._which:
                    if name == "pwrite":  # a part is written
                        real(where, more[0][:4_096], more[1])
                    raise OSError(self._number, os.strerror(self._number))
            return real(where, *more)

        return call


@pytest.mark.parametrize("begin", [_empty, _half, _closed])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whichever_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, begin: Callable[[Path], int]
) -> None:
    calls: list[str] = []
    which = 0
    while which <= len(calls):
        which += 1
        folder = tmp_path / str(which)
        before = begin(folder)
        failing = Failing(folder, which, number)
        with failing.installed(monkeypatch):
            done, error = _lived(folder)
        calls = failing.calls
        if which > len(calls):
            assert (done, error) == (len(BATCHES), None)
            break
        assert error is not None and os.strerror(number) in str(error), f"{calls[-1]} failed, and nobody heard of it"
        expected = DiskFull if number == errno.ENOSPC else RaftFault
        assert (type(error) if isinstance(error, RaftError) else kind_of(error, folder)) is expected
        assert open_files(folder) == []
        assert max(done, before) <= _found(folder) <= max(done, before) + 1, f"{calls[-1]} failed"
        assert _lived(folder) == (len(BATCHES), None), "the next process goes on"
    assert {call.split()[0] for call in calls} >= {"open", "pwrite", "pread", "fsync", "fdatasync"} - (
        set() if begin is _empty else {"pwrite"}
    )


@pytest.mark.parametrize("begin", [_empty, _half, _closed])
def test_a_limit_of_the_size_of_files_is_a_fault(tmp_path: Path, begin: Callable[[Path], int]) -> None:
    """It stops the environment's file at many of its pages, wherever in a transaction that is; nothing is lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failed = 0
    for limit in [*range(0, 40 << 10, 4 << 10), *range(40 << 10, 440 << 10, 80 << 10), SIZE - 1]:
        folder = tmp_path / str(limit)
        before = begin(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            done, error = _lived(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert open_files(folder) == []
        assert max(done, before) <= _found(folder) <= max(done, before) + 1, f"{limit} bytes"
        assert (done, error) == (len(BATCHES), None) or error is not None
        failed += error is not None
        assert _lived(folder) == (len(BATCHES), None), "the next process goes on"
    assert failed > 5
