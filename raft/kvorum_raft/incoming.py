"""The file of a snapshot that is being received: `incoming-<hash of the file>` with what has arrived so far and the
manifest of the whole.

It survives lost connections, new leaders that hold the same file, and restarts. What was written before a crash need
not all have reached the disk; the hash of the whole decides at the end, so nothing depends on it. Writing keeps the
pace of a checkpoint, past the page cache; no room is allocated ahead, since the length of the file says how much has
arrived. Not for the event loop.
"""

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvorum_raft.checkpoints import INCOMING, STATE, Checkpoints, read_manifest, write_manifest
from kvorum_raft.direct import write_at
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.manifest import Manifest
from kvorum_raft.seams import StateFacts

_SYNC_EVERY: Final = 8 << 20


class Incoming:
    """`open` first; `close` always, also after an error."""

    def __init__(self, checkpoints: Checkpoints, manifest: Manifest, *, sync_every: int = _SYNC_EVERY) -> None:
        self.manifest = manifest
        self._checkpoints = checkpoints
        self._folder = checkpoints.folder / f"{INCOMING}{manifest.file_hash.hex()}"
        self._sync_every = sync_every
        self._fd: int | None = None
        self._buffer: mmap.mmap | None = None
        self._unsynced = 0

    @property
    def file(self) -> Path:
        return self._folder / STATE

    def open(self) -> int:
        """Go on with what is there, or begin, and delete all others; returns the bytes that are there. Raises
        OSError."""
        for other in self._checkpoints.folder.glob(f"{INCOMING}*"):
            if other != self._folder or not self._continues():
                self._checkpoints.remove_folder(other, paced=True)
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            write_manifest(self._folder, self.manifest)
        self._fd = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)
        size = os.fstat(self._fd).st_size
        # The rest of it, and the copy that becomes the state.
        self._checkpoints.check_room(2 * self.manifest.size - size)
        return size

    def _continues(self) -> bool:
        try:
            size = self.file.stat().st_size if self.file.exists() else 0
            return read_manifest(self._folder) == self.manifest and size <= self.manifest.size
        except (ValueError, ConfigurationError, OSError):
            return False

    def write(self, offset: int, data: bytes) -> None:
        """Raises OSError, Stopping."""
        assert self._fd is not None
        self._checkpoints.copier.pause(len(data))
        if self._checkpoints.copier.direct:
            if self._buffer is None or len(self._buffer) < len(data):
                self._buffer = mmap.mmap(-1, len(data))
            write_at(self._fd, data, offset, self._buffer)
        else:
            view = memoryview(data)
            while view:
                written = os.pwrite(self._fd, view, offset)
                view, offset = view[written:], offset + written
        self._unsynced += len(data)
        if self._unsynced >= self._sync_every:
            self.sync()

    def sync(self) -> None:
        """Raises OSError."""
        self._checkpoints.sync(self.file)
        self._unsynced = 0

    def check_bytes(self) -> None:
        """Read it back from the disk. Raises ValueError, OSError, Stopping."""
        self._checkpoints.check_file(self.file, self.manifest.size, self.manifest.file_hash)

    def check_content(self, inspect: Callable[[Path], StateFacts]) -> None:
        """Raises ValueError if it does not hold what the manifest says."""
        found = inspect(self.file)
        if (found.index, found.content_hash) != (self.manifest.base.index, self.manifest.content_hash):
            raise ValueError(
                f"a snapshot of entry {self.manifest.base.index} holds entry {found.index}, "
                f"hash {found.content_hash.hex()} instead of {self.manifest.content_hash.hex()}"
            )

    def publish(self) -> Manifest:
        """Make it a checkpoint. Raises OSError."""
        self.close()
        return self._checkpoints.publish(self._folder, self.manifest)

    def delete(self) -> None:
        """Raises OSError."""
        self.close()
        if self._folder.exists():
            self._checkpoints.remove_folder(self._folder, paced=True)

    def close(self) -> None:
        """May be called more than once."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
