"""The processes of a run that are no nodes: producers that send, consumers that are killed and come again."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .book import Book, now
from .history import Loss

PATIENCE: Final = 60.0
"""Seconds that one may take to end in order."""
TAIL: Final = 1_500


class ProcessFailed(Exception):
    """One has ended that nobody killed; the message has the end of what it said."""


class Crowd:
    """All of them: `async with Crowd(...) as crowd`; they are gone afterwards. Errors of all methods: ProcessFailed."""

    def __init__(self, folder: Path, common: Mapping[str, str | int | float]) -> None:
        self._folder = folder
        self._common = common
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lives: Counter[int] = Counter()
        self._book = Book(folder / "crowd.jsonl")
        self.kills = 0

    async def __aenter__(self) -> "Crowd":
        return self

    async def __aexit__(self, *raised: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            await asyncio.to_thread(process.wait)
        with self._book:
            pass

    @property
    def files(self) -> list[Path]:
        """What all have written down."""
        return sorted(self._folder.glob("*.jsonl"))

    def start_producer(self, number: int, rate: float, messages: int) -> None:
        self._start("producer", f"p{number}", {"rate": rate, "messages": messages})

    def start_consumer(self, number: int, thinking: float) -> None:
        """One of that number; each of its lives has a name of its own."""
        life = self._lives[number]
        self._lives[number] += 1
        self._start("consumer", f"c{number}.{life}", {"thinking": thinking})

    def _start(self, what: str, name: str, options: Mapping[str, float]) -> None:
        given = {"file": self._folder / f"{name}.jsonl", "name": name, **self._common, **options}
        command = [sys.executable, "-m", f"chaos.queues.{what}"]
        command += [text for key, value in given.items() for text in (f"--{key}", str(value))]
        with (self._folder / f"{name}.err").open("wb") as errors:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, start_new_session=True
            )

    async def kill_consumer(self, number: int) -> None:
        """kill -9."""
        name = f"c{number}.{self._lives[number] - 1}"
        self.check()
        process = self._running.pop(name)
        process.kill()
        at = now()
        await asyncio.to_thread(process.wait)
        self._book.write(Loss(name, at))
        self.kills += 1

    def check(self, *, ended: str = "") -> None:
        """Nobody has ended, but those whose names begin so."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None and (status or not (ended and name.startswith(ended))):
                said = (self._folder / f"{name}.err").read_text(errors="replace")[-TAIL:]
                raise ProcessFailed(f"{name} has ended with status {status}: {said.strip()}")

    async def sent(self, seconds: float) -> None:
        """Wait until the producers have sent all that they may, or so long."""
        producers = [process for name, process in self._running.items() if name.startswith("p")]
        deadline = time.monotonic() + seconds
        for process in producers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, max(0.0, deadline - time.monotonic()))
        self.check(ended="p")

    async def end(self, what: str) -> None:
        """Let those whose names begin so come to an end."""
        names = [name for name in self._running if name.startswith(what)]
        for name in names:
            process = self._running[name]
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"stop\n")
                process.stdin.flush()
        for name in names:
            try:
                await asyncio.to_thread(self._running[name].wait, PATIENCE)
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"{name} did not end within {PATIENCE:g} s") from None
        self.check(ended=what)
        for name in names:
            del self._running[name]
