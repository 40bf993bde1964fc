"""How a process ends that must not go on: at once, with a code of its own, and a marker where that helps."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from kvorum_raft.errors import DiskFull, RaftFault
from kvorum_raft.faults import EXIT_CONFIGURATION, EXIT_DISK_FULL, EXIT_FAULT, FAULT_MARKER, kind_of

PROGRAM = """
import atexit, sys
from pathlib import Path
from kvorum_raft import errors
from kvorum_raft.faults import exit_process
atexit.register(lambda: Path(sys.argv[2]).joinpath("ran").touch())
exit_process(Path(sys.argv[2]))(getattr(errors, sys.argv[1])("the reason"))
"""


@pytest.mark.parametrize(
    ("error", "code", "marker"),
    [
        ("RaftFault", EXIT_FAULT, True),
        ("DiskFull", EXIT_DISK_FULL, True),
        ("Refused", EXIT_CONFIGURATION, False),
    ],
)
def test_the_process_ends_at_once(tmp_path: Path, error: str, code: int, marker: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, error, str(tmp_path)]
    ended = subprocess.run(command, timeout=20, check=False, capture_output=True, text=True)
    assert ended.returncode == code
    assert ended.stderr == "kvorum node: the reason\n", "whatever other lines there are, the last one tells why"
    assert (tmp_path / FAULT_MARKER).exists() is marker
    if marker:
        assert (tmp_path / FAULT_MARKER).read_text() == "the reason\n"
    assert not (tmp_path / "ran").exists(), "nothing runs in a process that cannot be trusted"


def test_a_disk_that_takes_no_marker_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ended = subprocess.run([sys.executable, "-c", PROGRAM, "RaftFault", str(missing)], timeout=20, check=False)
    assert ended.returncode == EXIT_FAULT


def caused(error: Exception) -> Exception:
    outer = ValueError("outer")
    outer.__cause__ = error
    return outer


SHORT_WRITE = lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EIO)}")


@pytest.mark.parametrize(
    ("error", "free", "kind"),
    [
        (OSError(errno.ENOSPC, "no"), 1 << 30, DiskFull),
        (OSError(errno.EDQUOT, "no"), 1 << 30, DiskFull),
        (lmdb.DiskError("no"), 1 << 30, DiskFull),
        (lmdb.MapFullError("no"), 1 << 30, DiskFull),
        (lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EDQUOT)}"), 1 << 30, DiskFull),
        (caused(lmdb.DiskError("no")), 1 << 30, DiskFull),
        (SHORT_WRITE, 100, DiskFull),
        (SHORT_WRITE, 1 << 30, RaftFault),
        (OSError(errno.EIO, "no"), 100, RaftFault),
        (lmdb.CorruptedError("no"), 100, RaftFault),
        (ValueError("no"), 100, RaftFault),
    ],
)
def test_a_full_disk_is_told_apart_from_a_broken_one(
    error: Exception, free: int, kind: type[RaftFault], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvorum_raft.faults.os.statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    assert kind_of(error, tmp_path) is kind
