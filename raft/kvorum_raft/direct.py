"""Large files past the page cache.

A copy of gigabytes shares its disk with the log, whose syncs must not wait for it. Measured with three nodes on one
ext4 disk, each syncing its log 100 times a second and copying 64 MB/s; quiet, the syncs' p99 is 3 ms:

- Buffered writes with a sync every 8 MiB: 60–190 ms. The file grows, and ext4 in ordered mode commits no transaction,
  the log's neither, before the data of new blocks is on the disk. Syncing every MiB costs about the same.
- Room allocated ahead, so that the blocks are no new ones, and small synced writes: 15–45 ms.
- Room allocated ahead, and `O_DIRECT`: 4 ms. Nothing is ever dirty, so that nobody waits for more than one block. The
  cache stays with the state, for which a checkpoint's pages would have been thrown out. An idle I/O priority made no
  difference that could be measured.
- Deleting a file of some hundred MiB at once: 120–240 ms, since all its blocks are given back (and discarded) in one
  transaction of the file system. So files lose their end piece by piece.

Where a file system knows no `O_DIRECT`, the writes are buffered and synced in small steps.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

BLOCK: Final = 1 << 20
"""Bytes at once: few enough that a sync does not wait long for one, and many that the thread seldom asks for the
interpreter, which a busy event loop keeps for milliseconds each time."""
_ALIGNED: Final = 4_096
_ROOM: Final = 64 << 20
"""Bytes that are allocated ahead."""
_SYNC_DIRECT: Final = 8 << 20
"""Bytes until a sync of what is in the device's own cache."""
_CUT: Final = 16 << 20
_CUT_COUNTS: Final = 4 << 20
"""Bytes that giving back `_CUT` bytes counts as."""


class DirectWriter:
    """Writes one new file from its beginning to its end. A context manager: afterwards the descriptor, which stays the
    caller's, is an ordinary one again and the file has the length of what was written."""

    def __init__(self, fd: int, *, room: int = _ROOM) -> None:
        self._fd = fd
        self._view = memoryview(mmap.mmap(-1, BLOCK))  # aligned to pages, as O_DIRECT needs it
        self._room = room
        self._allocated = 0
        self._unsynced = 0
        self.size = 0
        """Bytes written."""
        self._direct = set_direct(fd, on=True)

    def __enter__(self) -> "DirectWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        set_direct(self._fd, on=False)
        if self._allocated > self.size:
            with contextlib.nullcontext() if kind is None else contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)

    def read(self, source: int) -> memoryview:
        """The next block of a pipe or file, whole unless it is the last; empty at the end. Valid until the next call.
        Raises OSError."""
        filled = 0
        while filled < BLOCK and (size := os.readv(source, [self._view[filled:]])):
            filled += size
        return self._view[:filled]

    def write(self, block: memoryview) -> None:
        """Append what `read` has returned. Raises OSError."""
        self._allocate(self.size + len(block))
        while block:
            if self._direct and len(block) % _ALIGNED:
                self._give_up()  # the end of the file
            try:
                size = os.pwrite(self._fd, block, self.size)
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._give_up()  # the flag was accepted, this kind of block is not
                continue
            block = block[size:]
            self.size += size
            self._unsynced += size
        if self._unsynced >= (_SYNC_DIRECT if self._direct else BLOCK):
            self.sync()

    def sync(self) -> None:
        """Raises OSError."""
        os.fdatasync(self._fd)
        self._unsynced = 0

    def _give_up(self) -> None:
        set_direct(self._fd, on=False)
        self._direct = False

    def _allocate(self, end: int) -> None:
        if not self._room or end <= self._allocated:
            return
        try:
            os.posix_fallocate(self._fd, self._allocated, self._room)
            self._allocated += self._room
        except OSError:
            self._room = 0  # not known here, or less room than that is left: then writing says so


def set_direct(fd: int, *, on: bool) -> bool:
    """Turn O_DIRECT on or off; returns whether it is on."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
    if wanted != flags:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, wanted)
        except OSError:
            return bool(flags & os.O_DIRECT)
    return on


def blocks_of(fd: int) -> Iterator[memoryview]:
    """A file from its beginning, read from the disk; each block is valid until the next. Raises OSError."""
    direct = set_direct(fd, on=True)
    try:
        with mmap.mmap(-1, BLOCK) as buffer, memoryview(buffer) as view:
            offset = 0
            while True:
                if direct and offset % _ALIGNED:
                    direct = set_direct(fd, on=False)  # behind the end, or a short read
                try:
                    size = os.preadv(fd, [view], offset)
                except OSError as error:
                    if not direct or error.errno != errno.EINVAL:
                        raise
                    direct = set_direct(fd, on=False)
                    continue
                if not size:
                    return
                offset += size
                with view[:size] as block:
                    yield block
    finally:
        set_direct(fd, on=False)


def write_at(fd: int, data: bytes | memoryview, offset: int, buffer: mmap.mmap) -> None:
    """Write through an aligned buffer that is at least as large, past the cache where the place allows it. Raises
    OSError."""
    with memoryview(buffer) as whole:
        whole[: len(data)] = data
        direct = not (offset % _ALIGNED or len(data) % _ALIGNED) and set_direct(fd, on=True)
        done = 0
        while done < len(data):
            if direct and done % _ALIGNED:
                direct = set_direct(fd, on=False)
            try:
                with whole[done : len(data)] as rest:
                    done += os.pwrite(fd, rest, offset + done)
            except OSError as error:
                if not direct or error.errno != errno.EINVAL:
                    raise
                direct = set_direct(fd, on=False)
        if direct:
            set_direct(fd, on=False)


def shorten(path: str | os.PathLike[str], pause: Callable[[int], None]) -> None:
    """Take a file's end away, piece by piece, until it is short enough to be deleted. What somebody reads under a
    `flock` stays as it is. Raises OSError, and what `pause` raises, which is called after each so many bytes."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        size = os.fstat(fd).st_size
        while size > _CUT:
            size -= _CUT
            os.ftruncate(fd, size)
            pause(_CUT_COUNTS)
    finally:
        os.close(fd)


def keep_whole(fd: int) -> None:
    """While this descriptor is open, `shorten` leaves the file alone."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
