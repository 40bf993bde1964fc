"""What happens when a node must stop: a marker for the operator, if the disk still takes one, the reason as the last
line of standard error, and the end of the process.

`os._exit`, because anything gentler runs code (buffers, callbacks, atexit) in a process that has just shown that it
cannot be trusted.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from kvorum_raft.errors import ConfigurationError, DiskFull, RaftError, Refused

EXIT_FAULT: Final = 70
EXIT_CONFIGURATION: Final = 78
EXIT_DISK_FULL: Final = 73
REFUSED_MARKER: Final = "REFUSED"
FAULT_MARKER: Final = "FAULT"
REBUILD_MARKER: Final = "REBUILD"
"""The state and its checkpoints must be thrown away before the next start uses them."""
_log = logging.getLogger("kvorum.raft")

OnFault = Callable[[RaftError], None]


def exit_code(error: RaftError) -> int:
    """Of a process that ends because of this error."""
    if isinstance(error, ConfigurationError):
        return EXIT_CONFIGURATION
    return EXIT_DISK_FULL if isinstance(error, DiskFull) else EXIT_FAULT


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
