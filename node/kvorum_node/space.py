"""How much room is left: on the file system of the data folder, and in the address space of the state (rules A8).

A database that fills its disk cannot even delete: every write needs pages before it frees any. So growth is refused
while there still is a reserve, large enough for what a node must write all the same: the log, a checkpoint, deletes.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from kvorum_raft.seams import FileSystem

from .timers import Handle, Timers

logger = logging.getLogger("kvorum.node")

PERIOD: Final = 0.2
"""Seconds between looks."""
SHARE: Final = 0.05
"""Part of a disk, or of the map, that is kept free."""
LEAST: Final = 1 << 30
"""Bytes of a disk that are kept free at least."""
EMBEDDED_MOST: Final = 64 << 20
"""Bytes of a disk that an embedded database keeps free at most: it has no log and no checkpoints to write, and lives on
disks that others fill."""


AMPLIFICATION: Final = 8
"""Bytes on the disk that a byte of a write takes at most, about, until it is looked again."""


class Room(NamedTuple):
    """Bytes."""

    free: int
    size: int


def reserve(size: int) -> int:
    """Bytes that a node of a cluster keeps free of a disk of `size` bytes."""
    return max(LEAST, int(size * SHARE))


def embedded_reserve(size: int) -> int:
    """The same of an embedded database."""
    return min(EMBEDDED_MOST, int(size * SHARE))


class MapSpace(Protocol):
    """What a state tells of its map (`Store.space`); bytes."""

    @property
    def used_bytes(self) -> int: ...
    @property
    def map_bytes(self) -> int: ...
    @property
    def margin_bytes(self) -> int: ...


class SpaceWatch:
    """Looks every 200 ms between `start` and `stop`; `low` and `problem` say what the last look showed.

    `map_space` tells of the state's map. `least` makes the bytes of disk to be kept free from its size.
    """

    def __init__(
        self,
        folder: Path,
        timers: Timers,
        map_space: Callable[[], MapSpace],
        *,
        least: Callable[[int], int],
        reusable: Callable[[], int] = int,
        statvfs: Callable[[Path], FileSystem] = os.statvfs,
    ) -> None:
        """`reusable`: bytes inside of the files that can be used again, and so need no room on the disk."""
        self._reusable = reusable
        self._margin = 0
        self._spent = 0
        self._folder = folder
        self._timers = timers
        self._map_space = map_space
        self._least = least
        self._statvfs = statvfs
        self._handle: Handle | None = None
        self._problem = ""
        self._disk = Room(0, 0)
        self._map_free = 0
        self._shortages = 0
        self._blind = False
        self._tight = False

    def start(self) -> None:
        if self._handle is None:
            self._look_again()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def low(self) -> bool:
        return bool(self._problem)

    def tight(self) -> bool:
        """Less than twice of what is kept free is left: who takes room that others could do without should stop now,
        since what he gives back inside of LMDB's files does not come back to the disk."""
        return self._tight or self.low()

    def problem(self) -> str:
        """What is short, in one line; empty while there is room."""
        return self._problem

    def statistics(self) -> dict[str, float]:
        """Bytes, and how often it became short."""
        return {
            "disk_free_bytes": self._disk.free,
            "disk_bytes": self._disk.size,
            "map_free_bytes": self._map_free,
            "space_low": float(self.low()),
            "space_shortages": self._shortages,
        }

    def spend(self, size: int) -> None:
        """So many bytes are about to be written: look before the next turn if they may use up what is left."""
        self._spent += size
        if self._spent * AMPLIFICATION > self._margin:
            self.look()

    def look(self) -> None:
        """Judge now."""
        self._spent = 0
        self._margin = sys.maxsize
        problem = self._disk_problem() or self._map_problem()
        if bool(problem) != bool(self._problem):
            if problem:
                self._shortages += 1
                logger.warning("%s: writes that grow the database are refused", problem)
            else:
                logger.info("there is room again: all writes are taken")
        self._problem = problem

    def _look_again(self) -> None:
        self.look()
        self._handle = self._timers.call_later(PERIOD, self._look_again)

    def _disk_problem(self) -> str:
        try:
            found = self._statvfs(self._folder)
        except OSError as error:
            # Whoever writes there will find out; to refuse everything for want of a number would help nobody.
            if not self._blind:
                logger.error("cannot see how full the disk of %s is: %s", self._folder, error.strerror)
            self._blind = True
            return ""
        self._blind = False
        unit = found.f_frsize
        disk = self._disk = Room(found.f_bavail * unit, found.f_blocks * unit)
        least = self._least(disk.size)
        margin = disk.free - least
        self._tight = margin < least
        if margin < 0:
            margin += self._reusable()
        self._margin = margin
        if margin >= 0:
            return ""
        return f"the disk of {self._folder} has {_size(disk.free)} left, less than the reserve of {_size(least)}"

    def _map_problem(self) -> str:
        found = self._map_space()
        self._map_free = found.map_bytes - found.used_bytes
        self._margin = min(self._margin, found.margin_bytes)
        if found.margin_bytes >= 0:
            return ""
        return f"the database's map of {_size(found.map_bytes)} has {_size(self._map_free)} left"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
