"""Signs of life on stderr while something takes long: only on a terminal, so that logs and pipes stay clean."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status


def on_terminal() -> bool:
    """Whether stderr is one."""
    return sys.stderr is not None and sys.stderr.isatty()


def _console() -> Console:
    return Console(stderr=True, markup=False, highlight=False)


class Waiting:
    """`with Waiting("…")`: a line that moves until the block ends; `say` changes it."""

    def __init__(self, text: str) -> None:
        self._status: Status | None = _console().status(text) if on_terminal() else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)


class Bar:
    """`with Bar("…", total)`: how much of `total` is done; with `total=None` how much."""

    def __init__(self, text: str, total: float | None) -> None:
        self._bar: Progress | None = None
        if on_terminal():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=_console(), transient=True)
            self._task = self._bar.add_task(text, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: float, text: str | None = None) -> None:
        """So much is done by now."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
