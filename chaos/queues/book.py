"""Where a process writes down what it does, in the moment in which it does it: it may be killed in the next one."""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from .history import Record, to_json


class Book:
    """A file of records, a line each; `with Book(path) as book`. What was written outlives this process."""

    def __init__(self, path: Path) -> None:
        """Errors: OSError."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: Record) -> None:
        """Errors: OSError."""
        line = f"{to_json(record)}\n".encode()
        if os.write(self._file, line) != len(line):
            raise OSError("a record was written in part: the disk is full")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def now() -> int:
    """Nanoseconds, the same clock for all processes of the machine."""
    return time.monotonic_ns()
