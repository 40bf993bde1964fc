"""Small files and folders: written whole or not at all, locked, copied at a bounded pace."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Final

from kvorum.errors import DatabaseLocked

from .host import Host

_MAX_PROOF_SIZE: Final = 4_096
_FICLONE: Final = 0x40049409
_CHUNK: Final = 1 << 20
_SYNC_EVERY: Final = 4 << 20
"""Bytes between two syncs of a copy: the disk is shared with the log, whose own syncs wait for what is dirty."""


def write_json(folder: Path, name: str, fields: dict[str, object], host: Host) -> None:
    """Write a small file, whole or not at all, durably."""
    target, draft = folder / name, folder / (name + ".new")
    draft.write_text(json.dumps(fields) + "\n", "ascii")
    host.sync_file(draft)
    draft.replace(target)
    host.sync_file(folder)


def read_json(path: Path) -> dict[str, object] | None:
    """The fields of a small file; None if it is missing or is not a JSON object."""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        if path.stat().st_size > _MAX_PROOF_SIZE:
            return None
        fields = json.loads(path.read_text("ascii"))
        if isinstance(fields, dict):
            return fields
    return None


def lock_folder(path: Path) -> int:
    """Take the folder for this process; the descriptor holds the lock. DatabaseLocked if another one, or this one, has
    it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise
        holder = "this process" if owner == str(os.getpid()) else f"process {owner}" if owner else "another process"
        raise DatabaseLocked(f"{path.parent} is open in {holder}: a database has one owner at a time") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def remove_folder(path: Path) -> None:
    """Delete a folder with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def copy_file(source: Path, target: Path, host: Host, *, rate: float) -> None:
    """Copy a file to a new one that shares nothing with it that a write could change: a reflink where the file system
    has them, else at most `rate` bytes a second. Not for the event loop. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, flags, 0o644)
        try:
            try:
                fcntl.ioctl(writing, _FICLONE, reading)
            except OSError:
                _copy_bytes(reading, writing, target, host, rate)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    host.sync_file(target)


def _copy_bytes(reading: int, writing: int, target: Path, host: Host, rate: float) -> None:
    os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    began, copied, synced = time.monotonic(), 0, 0
    while chunk := os.pread(reading, _CHUNK, copied):
        _write_all(writing, chunk)
        # the source is a checkpoint, which nobody reads again soon
        os.posix_fadvise(reading, copied, len(chunk), os.POSIX_FADV_DONTNEED)
        copied += len(chunk)
        if copied - synced >= _SYNC_EVERY:
            host.sync_file(target)
            synced = copied
            ahead = began + copied / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
