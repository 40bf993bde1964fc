"""Environments of LMDB on disks that may be full."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft.environments import LOCK_TABLE, open_environment
from kvorum_raft.errors import DiskFull
from kvorum_raft.log_store import LogStore

_LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def _can_lock(file: Path) -> bool:
    """Whether another process gets LMDB's lock of a file for itself alone."""
    return not subprocess.run([sys.executable, "-c", _LOCKS, str(file)], capture_output=True, check=False).returncode


@pytest.mark.parametrize("readers", [1, 126, 512])
def test_the_table_of_readers_has_its_blocks_before_it_is_mapped(tmp_path: Path, readers: int) -> None:
    """Where it had none, a full disk would end the process by SIGBUS when another reader takes a slot."""
    table = tmp_path / LOCK_TABLE
    for _ in range(2):
        with open_environment(str(tmp_path), max_readers=readers, map_size=1 << 20) as env:
            env.begin().abort()
            assert env.info()["max_readers"] == readers
            assert table.stat().st_blocks * 512 >= table.stat().st_size >= 64 * readers
            assert not _can_lock(table), "the lock by which LMDB knows that the table is in use"
        assert _can_lock(table)


def test_a_table_that_was_only_given_its_length_gets_its_blocks(tmp_path: Path) -> None:
    table = tmp_path / LOCK_TABLE
    table.touch()
    os.truncate(table, 1 << 15)
    assert table.stat().st_blocks == 0
    open_environment(str(tmp_path), max_readers=512, map_size=1 << 20).close()
    assert table.stat().st_blocks * 512 >= 1 << 15


def test_a_disk_without_room_for_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull, match=r"cannot be opened: .*No space left"):
            LogStore.open(tmp_path / "log", map_size=1 << 20)
        with open_environment(str(tmp_path), lock=False, map_size=1 << 20):
            assert not (tmp_path / LOCK_TABLE).exists()
    LogStore.open(tmp_path / "log", map_size=1 << 20).close()


def test_a_file_system_that_cannot_reserve_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    open_environment(str(tmp_path), map_size=1 << 20).close()
