"""Warnings that something outside can cause at will: logged once in a while, with the number of those left out."""

import logging
from collections.abc import Callable
from typing import Final

_MAX_KEYS: Final = 64


class QuietLog:
    """At most one line for each key in `interval` seconds. Keys are chosen by the program, not by peers; their number
    is bounded all the same."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], interval: float = 10.0) -> None:
        self._logger = logger
        self._clock = clock
        self._interval = interval
        self._next: dict[str, tuple[float, int]] = {}

    def warning(self, key: str, text: str) -> None:
        now = self._clock()
        due, left_out = self._next.get(key, (float("-inf"), 0))
        if now < due:
            self._next[key] = (due, left_out + 1)
            return
        if len(self._next) >= _MAX_KEYS:
            self._next.clear()
        self._next[key] = (now + self._interval, 0)
        self._logger.warning("%s%s", text, f" ({left_out} more like this)" if left_out else "")
