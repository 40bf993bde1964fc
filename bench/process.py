"""Processes that are measured: what they have used, and talking with them by lines of JSON."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers import ROOT

TICKS: Final = os.sysconf("SC_CLK_TCK")
LIMIT: Final = 900.0
"""Seconds that an answer may take, that to fill a large space included; then the process is killed."""


def cpu_seconds(pid: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _status_mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def anonymous_mib(pid: int) -> float:
    """Memory of a process that is its own: heap and stacks, without mapped files."""
    return _status_mib(pid, "RssAnon:")


def peak_mib(pid: int) -> float:
    """Largest resident set so far, mapped files included."""
    return _status_mib(pid, "VmHWM:")


def memory(pids: dict[str, int]) -> dict[str, dict[str, float]]:
    """Of each."""
    return {
        name: {"anonymous_mib": round(anonymous_mib(pid), 1), "peak_mib": round(peak_mib(pid), 1)}
        for name, pid in pids.items()
    }


class Child:
    """A process that reads and writes lines of JSON. It finds the modules of this repository's `bench`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        files: Sequence[int] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=files,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
                **(environment or {}),
            },
        )
        self.pid = self._child.pid

    def line(self) -> str:
        """What it prints next. Errors: RuntimeError if it has ended, or was too slow."""
        assert self._child.stdout is not None
        guard = threading.Timer(LIMIT, self._child.kill)
        guard.start()
        try:
            line = self._child.stdout.readline()
        finally:
            guard.cancel()
        if not line:
            raise RuntimeError(f"the {self.name} has ended with status {self._child.wait()}")
        return line.strip()

    def answer(self) -> dict[str, Any]:
        """The same, read. Errors: RuntimeError also if it says that it has failed."""
        said: dict[str, Any] = json.loads(self.line())
        if "error" in said:
            raise RuntimeError(f"the {self.name} has failed: {said['error']}")
        return said

    def tell(self, what: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()

    def stop(self) -> None:
        """End its input; kill it if that does not end it."""
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        try:
            self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
