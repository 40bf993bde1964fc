"""`lmdb.open` for disks that may be full.

LMDB maps its table of readers, `lock.mdb`, and writes to it through the map, but only gives the file its length. Where
the disk has no block for a page of it, the first touch ends the process by SIGBUS, at the start or at some later read.
So the blocks are taken before, where a full disk is an error. (A file system that moves blocks with each write, such as
btrfs, may lack one later nevertheless.)
"""

import errno
import os
from pathlib import Path
from typing import Any, Final

import lmdb

LOCK_TABLE: Final = "lock.mdb"
_READERS: Final = 126
"""LMDB's own default."""
_READER_SIZE: Final = 64
_HEAD_SIZE: Final = 128
"""Bytes before the readers. A file that is longer than LMDB would make it would be one for more readers."""


def open_environment(path: str, *, max_readers: int = _READERS, mode: int = 0o755, **options: Any) -> lmdb.Environment:
    """As `lmdb.open`, of a folder that is there; also raises OSError."""
    if options.get("lock", True) and options.get("subdir", True) and not options.get("readonly"):
        fd = os.open(Path(path) / LOCK_TABLE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            os.posix_fallocate(fd, 0, _HEAD_SIZE + max_readers * _READER_SIZE)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # no libc does it for this file system
                raise
        finally:
            os.close(fd)  # before LMDB locks the file: this would let go of its lock
    return lmdb.open(path, max_readers=max_readers, mode=mode, **options)
