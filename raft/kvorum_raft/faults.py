"""What happens when a node must stop: a marker for the operator, if the disk still takes one, the reason as the last
line of standard error, and the end of the process.

`os._exit`, because anything gentler runs code (buffers, callbacks, atexit) in a process that has just shown that it
cannot be trusted.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import lmdb

from kvorum_raft.errors import ConfigurationError, DiskFull, RaftError, RaftFault, Refused

EXIT_FAULT: Final = 70
EXIT_CONFIGURATION: Final = 78
EXIT_DISK_FULL: Final = 73
REFUSED_MARKER: Final = "REFUSED"
FAULT_MARKER: Final = "FAULT"
REBUILD_MARKER: Final = "REBUILD"
"""The state and its checkpoints must be thrown away before the next start uses them."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_HARDLY_ANY: Final = 1 << 20
"""Bytes: about the largest single write of LMDB. Where fewer are free, a write that was cut short is no fault of the
disk."""
_log = logging.getLogger("kvorum.raft")

OnFault = Callable[[RaftError], None]


def exit_code(error: RaftError) -> int:
    """Of a process that ends because of this error."""
    if isinstance(error, ConfigurationError):
        return EXIT_CONFIGURATION
    return EXIT_DISK_FULL if isinstance(error, DiskFull) else EXIT_FAULT


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether an error, or what it came of, is a want of room on the disk of `folder`, or in LMDB's map.

    LMDB tells a quota by its text alone. A write of which the disk took only a part is an input/output error to it, as
    a broken disk is: then the disk is asked how full it is.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (DiskFull, lmdb.DiskError, lmdb.MapFullError)):
            return True
        if isinstance(seen, OSError) and seen.errno in NO_ROOM:
            return True
        if isinstance(seen, lmdb.Error) and any(os.strerror(number) in str(seen) for number in NO_ROOM):
            return True
        if isinstance(seen, lmdb.Error) and os.strerror(errno.EIO) in str(seen):
            return _hardly_any_room(folder)
        seen = seen.__cause__
    return False


def _hardly_any_room(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _HARDLY_ANY


def kind_of(error: BaseException, folder: Path) -> type[RaftFault]:
    """The fault that an error of the disk is: `DiskFull` if room is all that is missing."""
    return DiskFull if is_full(error, folder) else RaftFault


def write_marker(folder: Path, name: str, text: str) -> bool:
    """Durably, if possible."""
    try:
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, (text + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
    except OSError as error:
        _log.error("cannot write %s: %s", folder / name, error)
        return False
    return True


def has_marker(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def remove_marker(folder: Path, name: str) -> None:
    """Durably. Raises OSError."""
    (folder / name).unlink(missing_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_refused(folder: Path) -> None:
    """Raises Refused if this folder was refused before."""
    try:
        text = (folder / REFUSED_MARKER).read_text(errors="replace").strip()
    except FileNotFoundError:
        return
    raise Refused(f"this node's folder {folder} was refused by its cluster and must be replaced: {text}")


def exit_process(folder: Path) -> OnFault:
    """The default reaction to a fault."""

    def leave(error: RaftError) -> NoReturn:
        if not isinstance(error, Refused):
            write_marker(folder, FAULT_MARKER, str(error))
        for handler in logging.getLogger().handlers:
            handler.flush()
        # The log has told it too, but other lines may have followed.
        with suppress(OSError):
            os.write(2, f"kvorum node: {' '.join(str(error).split())}\n".encode(errors="replace"))
        os._exit(exit_code(error))

    return leave
