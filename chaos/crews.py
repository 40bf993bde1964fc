"""The crews of a run, seen from the trial: processes that are started, told to stop, and give account."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from .crew import Account
from .network import Seat

PATIENCE: Final = 60.0
"""Seconds that a crew may take to come to an end of its calls."""
TAIL: Final = 2_000


def words_of(options: Mapping[str, object]) -> list[str]:
    """Options of `chaos.crew` as they stand on its command line."""
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


class CrewFailed(Exception):
    """A client saw something that it must not see; the message has the end of what its crew said."""


class Crew:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self._process = process
        self._file = file
        self._said: set[str] = set()
        self._more = asyncio.Event()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(
        cls, number: int, seat: Seat | None, folder: Path, options: list[str], environment: Mapping[str, str]
    ) -> "Crew":
        """`options` are those of `chaos.crew`, without number and file; `environment` comes on top of this process'
        own. Errors: OSError."""
        file = folder / f"crew{number}.jsonl"
        command = [sys.executable, "-m", "chaos.crew", "--number", str(number), "--file", str(file), *options]
        with file.with_suffix(".err").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(command if seat is None else seat.command(*command)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                pass_fds=() if seat is None else (seat.namespace,),
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(process, file)

    async def says(self, word: str) -> None:
        """Wait until it has said this. Errors: CrewFailed."""
        while word not in self._said:
            if self._hearing.done():
                await self._process.wait()
                said = self._file.with_suffix(".err").read_text(errors="replace")[-TAIL:]
                raise CrewFailed(f"{self._file.stem} has ended with status {self._process.returncode}: {said.strip()}")
            self._more.clear()
            await self._more.wait()

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                self._said.add(line.decode().strip())
                self._more.set()
        finally:
            asyncio.get_running_loop().call_soon(self._more.set)

    def tell(self, word: str) -> None:
        """`stop` or `end`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    def account(self) -> Account:
        """What it has written down last; nothing if it came to nothing. Errors: those of `Account.read`."""
        return Account.read(self._file) if self._file.with_suffix(".counts").exists() else Account()

    async def kill(self) -> None:
        """If it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)


class Crews:
    """All of them: `async with Crews(...) as crews`; they are gone afterwards. Errors of all methods: CrewFailed."""

    def __init__(
        self,
        folder: Path,
        seats: Sequence[Seat | None],
        options: list[str],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """One for each seat; what they see goes to `folder`."""
        self._folder = folder
        self._seats = seats
        self._options = options
        self._environment = environment
        self._crews: list[Crew] = []

    async def __aenter__(self) -> "Crews":
        for number, seat in enumerate(self._seats):
            self._crews.append(await Crew.start(number, seat, self._folder, self._options, self._environment))
        return self

    async def __aexit__(self, *raised: object) -> None:
        for crew in self._crews:
            await crew.kill()

    async def one_is_full(self) -> None:
        """Return when a crew has made all calls that it may."""
        waits = [asyncio.ensure_future(crew.says("full")) for crew in self._crews]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for wait in done:
            wait.result()

    async def work(self) -> None:
        """Return when all of them do."""
        async with asyncio.timeout(PATIENCE):
            for crew in self._crews:
                await crew.says("working")

    async def stop(self) -> None:
        """No further calls, but those of handlers."""
        await self._all("stop", "stopped")

    async def end(self) -> None:
        """Close all clients."""
        await self._all("end", "ended")

    async def give_up(self) -> None:
        """After a failure: let those that still can write down what they saw."""
        with contextlib.suppress(CrewFailed, TimeoutError):
            await self.stop()

    async def _all(self, order: str, answer: str) -> None:
        for crew in self._crews:
            crew.tell(order)
        async with asyncio.timeout(PATIENCE):
            for crew in self._crews:
                await crew.says(answer)

    def account(self) -> Account:
        """What all have seen so far, in the order of the clock."""
        whole = Account()
        for crew in self._crews:
            account = crew.account()
            whole.operations += account.operations
            whole.deliveries += account.deliveries
            whole.figures += account.figures
            whole.deeds += account.deeds
        whole.operations.sort(key=lambda operation: operation.invoked)
        return whole
