"""Writes the image of a state into a file, as fast as the disk can spare.

The bytes pass a pipe: a helper thread lets the state machine write into it, this side takes them out at a bounded rate
and writes them past the page cache (see `direct`). The hash is made of the bytes in the pipe, so that reading the file
back later compares two different ways. While the log's own writes are slow, the pace stretches, but never below a
floor: a log that nothing is cut from is no help to anybody either.
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
from kvorum_raft.direct import DirectWriter, blocks_of
from kvorum_raft.seams import StateImage

RATE: Final = 64e6
"""Bytes a second, if other nodes may be copying too. Twice that is what three nodes on one disk copy without being
noticed; the rest is for slower disks, and for the processor, which copies and hashes."""
ALONE: Final = 100e6
"""If no other node does."""
_FLOOR: Final = 1 / 4
"""Of the rate."""
_SLOW: Final = 0.02
"""Seconds that a write of the log takes, before the copy waits for it."""
_POLL: Final = 0.005
BLOCK: Final = 1 << 20
HASH_SIZE: Final = 32
_PIPE_SIZE: Final = 1 << 20
_MAX_LAG: Final = 0.05


def never() -> bool:
    """For those who never stop."""
    return False


def no_latency() -> float:
    """A log that nobody writes."""
    return 0.0


class Pace:
    """Holds a thread back to `rate` bytes a second; time lost elsewhere is made up only for a moment. `latency` says
    for how many seconds the log's write that is under way has lasted, from any thread."""

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
        self.latency: Callable[[], float] = no_latency
        self.times = 1.0
        """The rate, times this, is what is kept."""
        self.stretched = 0.0
        """Seconds that were lost to slow writes of the log, in all."""

    def took(self, size: int) -> None:
        """Wait until that many bytes more are allowed."""
        now = self._clock()
        seconds = size / (self._rate * self.times)
        self._due = max(self._due, now - _MAX_LAG) + seconds
        if self._due > now:
            self._sleep(self._due - now)
        if self.latency() > _SLOW:
            self._stretch(seconds * (1 / _FLOOR - 1))

    def _stretch(self, most: float) -> None:
        began = now = self._clock()
        while now - began < most and self.latency() > _SLOW:
            self._sleep(_POLL)
            now = self._clock()
        self.stretched += now - began
        self._due = max(self._due, now)  # not made up for: the log has just got room


class Copier(Protocol):
    """How an image becomes a file."""

    @property
    def direct(self) -> bool:
        """Whether large files are to be written past the page cache."""
        ...

    @property
    def stretched(self) -> float:
        """Seconds that were lost to slow writes of the log, in all."""
        ...

    def watch(self, latency: Callable[[], float]) -> None:
        """Have regard to the log: see `Pace`."""
        ...

    def hurry(self, *, alone: bool) -> None:
        """Whether no other node copies at the same time, as far as is known."""
        ...

    def copy(self, image: StateImage, fd: int) -> tuple[int, bytes]:
        """Write all of it; returns size and BLAKE2b-256. Raises OSError, Stopping, or what the image raised."""
        ...

    def pause(self, size: int) -> None:
        """Called with each so many bytes that are written or read. Raises Stopping."""
        ...


class PipeCopier:
    """Paced, `rate` in bytes a second."""

    def __init__(
        self,
        rate: float = RATE,
        *,
        stopping: Callable[[], bool] = never,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stopping = stopping
        self._pace = Pace(rate, clock=clock, sleep=sleep)

    @property
    def direct(self) -> bool:
        """See `Copier`."""
        return True

    @property
    def stretched(self) -> float:
        """See `Copier`."""
        return self._pace.stretched

    def watch(self, latency: Callable[[], float]) -> None:
        """See `Copier`."""
        self._pace.latency = latency

    def hurry(self, *, alone: bool) -> None:
        """See `Copier`."""
        self._pace.times = ALONE / RATE if alone else 1.0

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
        with DirectWriter(fd) as out:
            while block := out.read(source):
                self.pause(len(block))
                digest.update(block)
                out.write(block)
        return out.size, digest.digest()

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

    direct = False
    stretched = 0.0

    def watch(self, latency: Callable[[], float]) -> None:
        """See `Copier`."""

    def hurry(self, *, alone: bool) -> None:
        """See `Copier`."""

    def copy(self, image: StateImage, fd: int) -> tuple[int, bytes]:
        """See `Copier`."""
        image.copy_to(fd)
        return hash_of(fd)

    def pause(self, size: int) -> None:
        """See `Copier`."""


def hash_of(fd: int) -> tuple[int, bytes]:
    """Size and BLAKE2b-256 of a file, read from its beginning, as fast as it can be read. Raises OSError."""
    digest = hashlib.blake2b(digest_size=HASH_SIZE)
    size = 0
    while block := os.pread(fd, BLOCK, size):
        digest.update(block)
        size += len(block)
    return size, digest.digest()


def hash_on_disk(fd: int, pause: Callable[[int], None] | None) -> tuple[int, bytes]:
    """The same past the page cache, which may hold something else than the disk; `pause` is called after each block
    with its size. Raises OSError, and what `pause` raises."""
    digest = hashlib.blake2b(digest_size=HASH_SIZE)
    size = 0
    for block in blocks_of(fd):
        digest.update(block)
        size += len(block)
        if pause is not None:
            pause(len(block))
    return size, digest.digest()


def write_all(fd: int, data: bytes) -> None:
    """Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
