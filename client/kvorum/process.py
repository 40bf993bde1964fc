"""Which process this is, without asking the kernel for each call: that takes 0.2 µs, a thirtieth of a whole get."""

import os
from typing import Final


class Process:
    """The process that runs this. Its one attribute belongs to the process, as the number itself does."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.pid = os.getpid()


THIS: Final = Process()
"""Whatever was opened with another `pid` belongs to the process that this one was forked from."""
