"""One process a folder."""

import fcntl
import os
from pathlib import Path

from kvorum_raft.errors import ConfigurationError


class FolderLock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def take(self) -> None:
        """Make the folder if it is missing. Raises ConfigurationError if it cannot be used, or another process has
        it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(f"cannot use the folder {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ConfigurationError(f"the folder {self._folder} is in use by another process") from error
        self._fd = fd

    def release(self) -> None:
        """May be called more than once."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
