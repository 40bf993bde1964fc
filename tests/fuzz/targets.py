"""The fuzz targets, by the names of their modules.

Each has SEEDS, inputs to begin with, and `opened`, a context manager that gives a function of one input, which raises
what is no declared error.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, cast

TARGETS: Final = (
    "keys",
    "values",
    "rows",
    "metadata",
    "peer_frames",
    "connect_read",
    "connect_write",
    "operations",
    "requests",
    "wire",
    "frames",
    "archived",
    "tokens",
    "traceparent",
)


class Target(Protocol):
    SEEDS: Sequence[bytes]

    @staticmethod
    def opened() -> AbstractContextManager[Callable[[bytes], None]]: ...


def load(name: str) -> Target:
    """Import one."""
    return cast("Target", importlib.import_module(f"tests.fuzz.{name}"))
