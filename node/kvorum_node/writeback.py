"""Writes the state's dirty pages to the disk bit by bit, before the kernel does it all at once.

The state is committed without syncs: its pages stay in memory until the kernel finds them half a minute old, and then
it writes all of them as fast as the disk can. At 8 MB/s of growth on three nodes that was a gigabyte every 30 seconds,
and the log's syncs stood still for 400 ms (and a node whose syncs take longer than that gives leadership away). Nobody
needs these pages on the disk, so there is nothing to wait for: what matters is only that few are left for the kernel.
It counts the 30 seconds for the file, not for each page: what is dirty then is written, however young it is.

Every second the file is gone through in windows, and those with many dirty pages are written, one at a time, with a
pause after each. Windows with few are left alone: scattered pages cost a request each, and are changed again soon. The
pauses are shorter if the round before had much to write: else a round would last the longer the more there is, and
leave the more behind.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger("kvorum.node")

PERIOD: Final = 1.0
"""Seconds between two rounds: little more than what is dirtied in that time is what the kernel finds at most."""
RATE: Final = 32e6
MAX_RATE: Final = 128e6
"""Bytes a second: at first, and when a round would last too long at that rate."""
_LARGE: Final = 2 << 30
"""Bytes. Going through so many takes 30 ms of a processor; the period grows with a larger file."""
WINDOW: Final = 1 << 20
_PAGE: Final = 4_096
_DENSE: Final = WINDOW // _PAGE // 4
_AT_ONCE: Final = 64
_BREATH: Final = 0.001
_CACHESTAT: Final = 451
_WAIT_BEFORE_WRITE_WAIT_AFTER: Final = 7


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class Pages:
    """What the kernel knows of a file's pages, and does with them. Needs Linux 6.5, glibc or musl."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # A question takes 15 us: giving the interpreter away for it, and waiting to have it back from a busy event
        # loop, takes longer, and there are thousands in a round.
        self._quick = ctypes.PyDLL(None, use_errno=True)
        self._found = (ctypes.c_uint64 * 5)()

    def dirty(self, fd: int, offset: int, size: int) -> int:
        """How many pages of the range are dirty. Raises OSError if the kernel cannot tell."""
        place = _Range(offset, size)
        if self._quick.syscall(_CACHESTAT, fd, ctypes.byref(place), self._found, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(self._found[1])

    def write(self, fd: int, offset: int, size: int) -> None:
        """Write the dirty ones and wait for it; no sync: it says nothing about what outlasts a power cut. Raises
        OSError."""
        place, length = ctypes.c_int64(offset), ctypes.c_int64(size)
        if self._libc.sync_file_range(fd, place, length, _WAIT_BEFORE_WRITE_WAIT_AFTER):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class Writeback:
    """Of one file, which may be replaced by another one at any time. `wait(seconds)` is what its pauses are; it returns
    True to end."""

    def __init__(self, path: Path, *, pages: Pages | None = None, wait: Callable[[float], bool] | None = None) -> None:
        self._path = path
        self._ending = threading.Event()
        self._wait = wait if wait is not None else self._ending.wait
        self._pages = pages
        self._thread: threading.Thread | None = None
        self._rounds = 0
        self._written = 0
        self._rate = RATE
        self._period = PERIOD

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="kvorum-writeback", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the window in its hands."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def statistics(self) -> dict[str, float]:
        """Bytes, and bytes a second."""
        return {
            "writeback_rounds": self._rounds,
            "writeback_bytes": self._written,
            "writeback_rate": self._rate,
        }

    def run(self) -> None:
        """The thread. If the kernel cannot do this, it does what it did before."""
        try:
            pages = self._pages if self._pages is not None else Pages()
            while not self._wait(self._period):
                self._round(pages)
        except (OSError, AttributeError) as error:
            logger.info("the state is written by the kernel alone: %s", error)

    def _round(self, pages: Pages) -> None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # a snapshot is taking its place
        before = self._written
        try:
            size = os.fstat(fd).st_size
            self._period = PERIOD * max(1.0, size / _LARGE)
            for number, offset in enumerate(range(0, size, WINDOW)):
                count = pages.dirty(fd, offset, WINDOW)
                pause = 0.0 if number % _AT_ONCE else _BREATH  # the interpreter is the event loop's
                if count >= _DENSE:
                    pages.write(fd, offset, WINDOW)
                    self._written += count * _PAGE
                    pause = count * _PAGE / self._rate
                if pause and self._wait(pause):
                    return
            self._rounds += 1
            self._rate = min(MAX_RATE, max(RATE, 2 * (self._written - before) / self._period))
        finally:
            os.close(fd)
