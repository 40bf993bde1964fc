"""A slow scan of the whole state for damage that nobody has run into yet: a disk may forget what is read once a year.

It runs in a thread of its own, because rows that nobody reads are not in memory, and to fault them in on the loop would
hold up everything else; and by short slices with pauses several times as long, because the thread shares the
interpreter with the loop. One read transaction holds all of a scan, so that the content hash can be compared.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from .store import StoreFault

logger = logging.getLogger("kvorum.node")

SLICE_ROWS: Final = 64
"""Rows between two pauses: well below a millisecond."""
PAUSE: Final = 0.002
"""Seconds of a pause at least."""
REST: Final = 4
"""A pause is this many times as long as the slice before it."""


class ScrubStore(Protocol):
    def scrub(self, rows: int) -> Iterator[int]: ...


class Scrubber:
    """Scans about every `interval` seconds. `on_damage` is called in the thread, once; no scan follows."""

    def __init__(
        self,
        store: ScrubStore,
        interval: float,
        on_damage: Callable[[StoreFault], None],
        *,
        rng: random.Random,
        pause: float = PAUSE,
    ) -> None:
        self._store = store
        self._interval = interval
        self._on_damage = on_damage
        self._rng = rng
        self._pause = pause
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._scans = self._rows = 0
        self._took = self._longest_slice = 0.0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kvorum-scrub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give up what is under way; waits for the slice in its hands. The store may be closed afterwards."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def statistics(self) -> dict[str, float]:
        """Of the scans that were completed; seconds."""
        return {
            "scrubs": self._scans,
            "scrubbed_rows": self._rows,
            "scrub_seconds": self._took,
            "scrub_longest_slice": self._longest_slice,
        }

    def _run(self) -> None:
        """The thread. Nodes that were started together should not scan together."""
        while not self._ending.wait(self._interval * self._rng.uniform(0.5, 1.5)):
            try:
                self._scan()
            except StoreFault as fault:
                logger.critical("the state is damaged: %s", fault)
                self._on_damage(fault)
                return

    def _scan(self) -> None:
        began = time.monotonic()
        slices = self._store.scrub(SLICE_ROWS)
        rows = 0
        try:
            while not self._ending.is_set():
                turn = time.monotonic()
                found = next(slices, None)
                if found is None:
                    self._scans += 1
                    self._rows += rows
                    self._took = time.monotonic() - began
                    return
                rows = found
                spent = time.monotonic() - turn
                self._longest_slice = max(self._longest_slice, spent)
                self._ending.wait(max(self._pause, REST * spent))
        finally:
            close = getattr(slices, "close", None)
            if close is not None:
                close()
