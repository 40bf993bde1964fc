"""A disk whose power can be cut: ext4 in a file of its own, mounted through a loop device.

The cut is ext4's own emergency shutdown without a last flush: what was not synced is gone, the journal's unwritten end
included. It drops no part of a block; torn writes are the simulators' business. Meant to run in a mount namespace of
its own (see `isolation`), so that the kernel takes mount and loop device away when the run has ended, however it ended.
"""

import errno
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

_SHUTDOWN: Final = 0x8004_587D
"""FS_IOC_SHUTDOWN."""
_NO_LOG_FLUSH: Final = 2
_FREEZE: Final = 0xC004_5877
_THAW: Final = 0xC004_5878
PATIENCE: Final = 10.0


class LoopDisk:
    """An empty file system in `image` (sparse), mounted at `mount`. Errors of all methods: OSError,
    CalledProcessError."""

    def __init__(self, image: Path, mount: Path, *, megabytes: int = 4_096) -> None:
        self._image = image
        self.mount = mount
        mount.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(image))
        self._mounted = False
        self.cuts = 0
        self.harmless = 0
        """Cuts after which data that nobody had synced were there all the same. They prove nothing."""
        self._canary = mount / "unsynced"
        self._filler = mount / "filler"
        self._trial = mount / "trial"
        self.restore()

    def cut(self) -> None:
        """From now on nothing reaches the disk, and every write and sync fails."""
        self._canary.write_bytes(b"x" * 4_096)
        self.cuts += 1
        self._order(_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))

    def restore(self) -> None:
        """Mount (again). Whoever had files open must be gone."""
        self._unmount()
        _run("mount", "-o", "loop", str(self._image), str(self.mount))
        self._mounted = True
        if self._canary.exists():
            # Somebody else's sync may have made the file, but not what is in it.
            self.harmless += self._canary.stat().st_size > 0
            self._canary.unlink()

    def try_write(self) -> None:
        """Write and sync a block; returns, or fails, when the disk has answered. Nothing is left of it: power cuts are
        judged by what is not synced."""
        try:
            with self._trial.open("wb") as file:
                file.write(bytes(4_096))
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._trial.unlink(missing_ok=True)

    def hang(self) -> None:
        """From now on every write and sync waits; nobody is told why."""
        self._order(_FREEZE, 0)

    def go_on(self) -> None:
        """The end of that."""
        self._order(_THAW, 0)

    def fill(self) -> None:
        """Leave no room at all."""
        with self._filler.open("wb") as file:
            step = 1 << 30
            while step >= 4_096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def has_no_room(self) -> bool:
        """Whether a further block is refused."""
        try:
            self.try_write()
        except OSError as error:
            return error.errno == errno.ENOSPC
        return False

    def make_room(self) -> None:
        """The end of that."""
        self._filler.unlink(missing_ok=True)

    def _order(self, what: int, how: bytes | int) -> None:
        folder = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, what, how)
        finally:
            os.close(folder)  # or it could not be unmounted

    def close(self) -> None:
        """Unmount, and delete the image."""
        self._unmount()
        self._image.unlink(missing_ok=True)

    def _unmount(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._mounted:
            try:
                _run("umount", str(self.mount))
            except subprocess.CalledProcessError:
                # A process that was killed lets go of its files only a moment later.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                self._mounted = False


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60.0)
