"""The thread that writes the log: what it reports, in which order, and what it says when writing fails."""

import errno
import os
import threading
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import DiskFull, RaftFault
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_store import LogStore


class Store:
    """A log that notes what it is told to write; the batch with number `fails` raises."""

    path = Path("/somewhere")

    def __init__(self, fails: int = 0, error: Exception | None = None) -> None:
        self.groups: list[list[int]] = []
        self.seen: list[Any] = []
        self.latency = 0.0
        self._fails, self._error = fails, error
        self.heard: list[tuple[int, RaftFault | None]] = []
        self.disk = LmdbDisk(cast(LogStore, self), lambda seq, fault: self.heard.append((seq, fault)))

    def write(self, batches: list[Batch]) -> None:
        self.seen.append(list(self.heard))
        self.latency = self.disk.latency()
        self.groups.append([batch.seq for batch in batches])
        if self._error is not None and self._fails in self.groups[-1]:
            raise self._error

    def run(self, *batches: Batch) -> None:
        """All of them wait when the thread begins."""
        for batch in batches:
            self.disk.submit(batch)
        self.disk.finish()
        self.disk.start()
        self.disk.join()
        assert self.disk.ended


def _batch(seq: int, size: int = 0) -> Batch:
    return Batch(seq, HardState(1, "A", 0, seq), entries=[make(Kind.COMMAND, seq, 1, 1, bytes(size))])


def test_what_waits_is_written_together_and_reported_when_it_is_durable() -> None:
    store = Store()
    store.run(_batch(1), _batch(4), _batch(9))
    assert store.groups == [[1, 4, 9]]
    assert store.seen[0] == [], "nothing is durable before it is written"
    assert store.heard == [(9, None), (-1, None)]
    assert store.latency > 0.0 and store.disk.latency() == 0.0
    assert store.disk.transactions == len(store.groups)


def test_a_transaction_does_not_grow_without_end() -> None:
    store = Store()
    store.run(*(_batch(seq, 6 << 20) for seq in range(1, 8)))
    assert store.groups == [[1, 2, 3], [4, 5, 6], [7]]
    assert store.heard == [(3, None), (6, None), (7, None), (-1, None)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), RaftFault),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DiskFull),
        (lmdb.MapFullError("full"), DiskFull),
        (lmdb.KeyExistsError("entry 7 cannot follow entry 5"), RaftFault),
    ],
)
def test_a_write_that_fails_is_the_last_thing_that_is_reported(error: Exception, kind: type[RaftFault]) -> None:
    store = Store(4, error)
    store.run(*(_batch(seq, 17 << 20) for seq in range(1, 8)))
    assert store.groups == [[1], [2], [3], [4]], "nothing is written after it"
    *before, (seq, fault) = store.heard
    assert before == [(1, None), (2, None), (3, None)] and seq == 0
    assert type(fault) is kind and str(fault) == f"writing the log in /somewhere failed: {error}"


def test_an_end_that_nobody_expects_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: ended.append(what.exc_type))
    store = Store(1, ZeroDivisionError())
    store.run(_batch(1))
    ((seq, fault),) = store.heard
    assert seq == 0 and type(fault) is RaftFault and "it ended unexpectedly" in str(fault)
    assert ended == [ZeroDivisionError]
