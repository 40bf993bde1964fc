"""Small files and folders: written whole or not at all, locked, copied at a bounded pace."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvorum.errors import DatabaseLocked
from kvorum_raft.direct import DirectWriter, set_direct, shorten

from .host import Host

_MAX_PROOF_SIZE: Final = 4_096
_FICLONE: Final = 0x40049409
_GIVE_BACK: Final = 64e6
"""A second, as `shorten` counts bytes."""

Pause = Callable[[int], None]
"""Called with so many bytes that are written or given back, to wait until others have had their share."""


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
        hint = "share its Kv" if holder == "this process" else "close it there, or run a node that both can talk to"
        raise DatabaseLocked(f"{path.parent} is open in {holder}: a database has one owner at a time; {hint}") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def remove_folder(path: Path) -> None:
    """Delete a folder with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def shorten_file(path: Path) -> None:
    """Give back a large file's blocks gradually, before it is deleted. Not for the event loop."""
    with contextlib.suppress(OSError):  # deleting says what is wrong
        shorten(path, lambda size: time.sleep(size / _GIVE_BACK))


def copy_file(source: Path, target: Path, host: Host, *, pause: Pause | None = None) -> None:
    """Copy a file to a new one that shares nothing with it that a write could change: a reflink where the file system
    has them, else in blocks, with `pause` called before each with its size. Without `pause` nothing else wants the
    disk. Not for the event loop. Raises OSError, and what `pause` raises."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, flags, 0o644)
        try:
            try:
                fcntl.ioctl(writing, _FICLONE, reading)
            except OSError:
                _copy_blocks(reading, writing, pause)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    host.sync_file(target)


def _copy_blocks(reading: int, writing: int, pause: Pause | None) -> None:
    set_direct(reading, on=True)  # the source is a checkpoint, which nobody reads again soon
    with DirectWriter(writing) as out:
        while block := out.read(reading):
            if pause is not None:
                pause(len(block))
            out.write(block)
            # the copy is what will be read and written next, and should not come from the disk page by page
            os.posix_fadvise(writing, out.size - len(block), len(block), os.POSIX_FADV_WILLNEED)
