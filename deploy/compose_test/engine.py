"""An engine of our own, inside the namespaces that `__main__` made for it."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from .steps import Failed, run

START: Final = 90.0
"""Seconds until it must answer."""
STOP: Final = 30.0


class Engine:
    """Data, run-time files and socket all lie in `folder`. `start`, then `stop`."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._process: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{folder}/engine.sock"

    def start(self) -> None:
        """Errors: Failed, with the end of the engine's log."""
        run(["ip", "link", "set", "lo", "up"], timeout=10)
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        dockerd = shutil.which("dockerd", path=path)
        if dockerd is None:
            raise Failed("dockerd is not there")
        words = [
            dockerd,
            f"--host={self.host}",
            f"--data-root={self._folder}/data",
            f"--exec-root={self._folder}/exec",
            f"--pidfile={self._folder}/engine.pid",
            f"--cgroup-parent=/{self._cgroup}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--storage-driver=overlay2",
            "--log-level=warn",
        ]
        with (self._folder / "engine.log").open("wb") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
                start_new_session=True,
            )
        deadline = time.monotonic() + START
        while True:
            if self._process.poll() is not None:
                raise Failed(f"dockerd ended with status {self._process.returncode}:\n{self.log()}")
            try:
                run(["docker", "info"], timeout=10, env={"DOCKER_HOST": self.host})
                return
            except Failed as error:
                if time.monotonic() > deadline:
                    raise Failed(f"dockerd did not answer within {START:g} s: {error}\n{self.log()}") from None
            time.sleep(0.1)

    def log(self) -> str:
        """The end of what it said."""
        return "\n".join((self._folder / "engine.log").read_text(errors="replace").splitlines()[-30:])

    def stop(self) -> None:
        """Errors: Failed if it does not end; then the end of the namespaces ends it."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            raise Failed(f"dockerd did not end within {STOP:g} s") from None
