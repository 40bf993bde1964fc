"""Signals that end listeners: an event loop has one handler for each, and a client any number of listeners."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from kvorum.errors import InvalidArgument


class Signals:
    """Who is to be told of which signal. Belongs to the event loop of its callers."""

    def __init__(self) -> None:
        self._told: dict[int, list[Callable[[], None]]] = {}

    def add(self, number: signal.Signals, tell: Callable[[], None]) -> None:
        """Have `tell` called at each of these signals. Errors: InvalidArgument."""
        if number not in self._told:
            try:
                asyncio.get_running_loop().add_signal_handler(number, self._came, number)
            except (ValueError, RuntimeError) as error:
                raise InvalidArgument(f"{number.name} cannot be listened to here: {error}") from None
        self._told.setdefault(number, []).append(tell)

    def remove(self, number: signal.Signals, tell: Callable[[], None]) -> None:
        """No more."""
        self._told[number].remove(tell)
        if not self._told[number]:
            del self._told[number]
            with suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().remove_signal_handler(number)

    def _came(self, number: int) -> None:
        for tell in list(self._told.get(number, ())):
            tell()
