"""Writes the image of a state into a file, as fast as the disk can spare.

An unpaced copy stalls the log's syncs for hundreds of milliseconds, because the file system writes everything that is
dirty before it can commit. So the bytes pass a pipe: a helper thread lets the state machine write into it, this side
takes them out at a bounded rate, and syncs every few MiB so that no single sync has much to write. The hash is made
of the bytes in the pipe, so that reading the file back later compares two different ways.
"""

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from kvorum_raft.background import Caught, check_stopping
from kvorum_raft.seams import StateImage

BLOCK: Final = 1 << 20
HASH_SIZE: Final = 32
_SYNC_EVERY: Final = 8 << 20
_PIPE_SIZE: Final = 1 << 20
_MAX_LAG: Final = 0.05


def never() -> bool:
    """For those who never stop."""
    return False


class Pace:
    """Holds a thread back to `rate` bytes a second; time lost elsewhere is made up only for a moment."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._due = clock()

    def took(self, size: int) -> None:
        """Wait until that many bytes more are allowed."""
        now = self._clock()
        self._due = max(self._due, now - _MAX_LAG) + size / self._rate
        if self._due > now:
            self._sleep(self._due - now)


class Copier(Protocol):
    """How an image becomes a file."""

    def copy(self, image: StateImage, fd: int) -> tuple[int, bytes]:
        """Write all of it; returns size and BLAKE2b-256. Raises OSError, Stopping, or what the image raised."""
        ...

    def pause(self, size: int) -> None:
        """Called after each so many bytes that are read back. Raises Stopping."""
        ...


class PipeCopier:
    """Paced, `rate` in bytes a second."""

    def __init__(
        self,
        rate: float = 100e6,
        *,
        stopping: Callable[[], bool] = never,
        sync_every: int = _SYNC_EVERY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stopping = stopping
        self._sync_every = sync_every
        self._pace = Pace(rate, clock=clock, sleep=sleep)

    def copy(self, image: StateImage, fd: int) -> tuple[int, bytes]:
        """See `Copier`. When it returns or raises, nothing uses the image any more."""
        source, sink = os.pipe()
        with contextlib.suppress(OSError):  # an unprivileged user may have used up what pipes may hold
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        feeder = _Feeder(image, sink)
        feeder.start()
        try:
            size, digest = self._drain(source, fd)
        finally:
            os.close(source)  # a feeder that still writes gets EPIPE
            feeder.join()
        feeder.check()
        return size, digest

    def _drain(self, source: int, fd: int) -> tuple[int, bytes]:
        digest = hashlib.blake2b(digest_size=HASH_SIZE)
        size, synced = 0, 0
        while block := os.read(source, BLOCK):
            self.pause(len(block))
            digest.update(block)
            write_all(fd, block)
            size += len(block)
            if size - synced >= self._sync_every:
                os.fdatasync(fd)
                synced = size
        return size, digest.digest()

    def pause(self, size: int) -> None:
        """See `Copier`."""
        check_stopping(self._stopping)
        self._pace.took(size)


class _Feeder:
    """The thread that writes the image into the pipe."""

    def __init__(self, image: StateImage, sink: int) -> None:
        self._image, self._sink = image, sink
        self._caught = Caught()
        self._whole = False
        self._thread = threading.Thread(target=self._run, name="kvorum-image", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def check(self) -> None:
        """Raises what the image raised: the end of the pipe alone does not say that all was written."""
        if self._caught.error is not None:
            raise self._caught.error
        if not self._whole:
            raise OSError("the image of the state was not written to its end")

    def _run(self) -> None:
        try:
            with self._caught:
                self._image.copy_to(self._sink)
                self._whole = True
        finally:
            os.close(self._sink)


class PlainCopier:
    """Straight into the file, without threads or pauses: for simulations."""

    def copy(self, image: StateImage, fd: int) -> tuple[int, bytes]:
        """See `Copier`."""
        image.copy_to(fd)
        return hash_of(fd)

    def pause(self, size: int) -> None:
        """See `Copier`."""


def hash_of(fd: int, pause: Callable[[int], None] = lambda size: None) -> tuple[int, bytes]:
    """Size and BLAKE2b-256 of a file, read from its beginning. Raises OSError."""
    digest = hashlib.blake2b(digest_size=HASH_SIZE)
    size = 0
    while block := os.pread(fd, BLOCK, size):
        digest.update(block)
        size += len(block)
        pause(len(block))
    return size, digest.digest()


def write_all(fd: int, data: bytes) -> None:
    """Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
