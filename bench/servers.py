"""Servers of another system on this machine, beside which kvorum is measured: their processes and their ports."""

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvorum_node.dev_cluster import HOST

PATIENCE: Final = 30.0


class Servers:
    """Synchronous. The folder holds everything; nothing of theirs is kept."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary = binary
        self.folder = folder.resolve()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(self, name: str, arguments: Sequence[str]) -> None:
        """Start one of them; it writes to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [str(self.binary), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, ports: Sequence[int]) -> None:
        """Until all of them take connections. Errors: TimeoutError, with what a server said."""
        deadline = time.monotonic() + PATIENCE
        for port in ports:
            while True:
                try:
                    socket.create_connection((HOST, port), 1.0).close()
                    break
                except OSError:
                    self.check(deadline, "takes no connections")
                    time.sleep(0.02)

    def check(self, deadline: float, what: str) -> None:
        """Errors: TimeoutError if it is over; RuntimeError if a server has ended."""
        for name, child in self._children.items():
            if (status := child.poll()) is not None:
                raise RuntimeError(
                    f"{self.binary.name} {name} has ended with status {status}: {self.log(name)[-2_000:]}"
                )
        if time.monotonic() > deadline:
            name = next(iter(self._children))
            raise TimeoutError(f"{self.binary.name} {what} within {PATIENCE:g} s: {self.log(name)[-2_000:]}")

    def stop(self) -> None:
        """SIGKILL, and wait until they are gone."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        self._children.clear()

    def pid(self, name: str) -> int:
        """Of one that was started."""
        return self._children[name].pid

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    @property
    def version(self) -> str:
        """The first line that it says of itself."""
        said = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True)
        return said.stdout.strip().splitlines()[0]
