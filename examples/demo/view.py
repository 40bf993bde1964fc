"""What one sees of the demo: a live table in a terminal, plain lines elsewhere."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Facts = list[tuple[str, str]]


class View:
    """Shows what happens as it happens. `facts` gives the current figures, `progress` a share between 0 and 1."""

    def __init__(self, facts: Callable[[], Facts], progress: Callable[[], float]) -> None:
        self._facts = facts
        self._progress = progress
        self._console = Console()
        self._live = self._console.is_terminal
        self._events: list[str] = []
        self._started = time.monotonic()

    def say(self, event: str) -> None:
        """Report an event."""
        line = f"{time.monotonic() - self._started:6.2f} s  {event}"
        if self._live:
            self._events = [*self._events, line][-12:]
        else:
            print(line, flush=True)

    async def run(self) -> None:
        """Redraw until cancelled."""
        if not self._live:
            while True:
                await asyncio.sleep(2)
                self.say("; ".join(f"{name} {value}" for name, value in self._facts()))
        with Live(self._draw(), console=self._console, refresh_per_second=8) as live:
            try:
                while True:
                    await asyncio.sleep(0.125)
                    live.update(self._draw())
            finally:
                live.update(self._draw())
                self._live = False  # what is still to be said comes below the picture

    def _draw(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text("progress", style="dim"), ProgressBar(total=1.0, completed=self._progress(), width=40))
        for name, value in self._facts():
            table.add_row(Text(name, style="dim"), Text(value, style="bold"))
        return Group(table, Text(), *(Text(event) for event in self._events))


class OneLine(logging.Handler):
    """Shows what the library logs (a handler that failed, for one) as one line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._say(f"a handler failed, as it should: {error}" if error else record.getMessage())


def finish(problems: list[str], summary: str) -> int:
    """Print the summary, and the verdict in the last line; returns the exit status."""
    sys.stdout.flush()
    print(f"  {summary}")
    for problem in problems:
        print(f"  PROBLEM  {problem}")
    print(f"demo: FAILED {len(problems)} problem(s)" if problems else "demo: ok", flush=True)
    return 1 if problems else 0
