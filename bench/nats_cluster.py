"""Three NATS servers with JetStream on this machine, beside which queues are measured.

Wants Debian's `nats-server` (`apt-get install nats-server`) and an interpreter with `nats-py` and `uvloop`, which must
not be the repository's: `python -m venv FOLDER; FOLDER/bin/pip install nats-py uvloop`.
"""

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from kvorum_node.dev_cluster import HOST, free_ports

PATIENCE: Final = 20.0
SETTINGS: Final = (
    "three servers, JetStream with 3 replicas in files, work queue retention, defaults otherwise. JetStream confirms"
    " when a majority has written, without an fsync (it syncs every 2 minutes, and 2.9 has no setting for that): it"
    " survives killed processes, but not a power cut of all. kvorum confirms after an fsync on a majority."
)


class NatsCluster:
    """Synchronous. `start` them, `stop` them; the folder holds everything."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if found is None:
            raise SystemExit(
                "nats-server is not installed: apt-get install nats-server, or go without with --only kvorum"
            )
        self._binary = found
        self._folder = folder.resolve()
        self._children: list[subprocess.Popen[bytes]] = []
        self.servers: dict[str, str] = {}
        """URL of each by its name."""

    def start(self) -> None:
        """Returns when all of them take connections."""
        self._folder.mkdir(parents=True)
        ports = free_ports(6)
        clients, routes = ports[:3], ports[3:]
        listed = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        for number, (client, route) in enumerate(zip(clients, routes, strict=True), 1):
            name = f"n{number}"
            config = self._folder / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nlisten: "{HOST}:{client}"\njetstream {{ store_dir: "{self._folder / name}" }}\n'
                f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: [{listed}] }}\n'
            )
            with (self._folder / f"{name}.log").open("ab") as log:
                self._children.append(
                    subprocess.Popen(
                        [self._binary, "-c", str(config)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
            self.servers[name] = f"nats://{HOST}:{client}"
        deadline = time.monotonic() + PATIENCE
        for port in clients:
            while True:
                try:
                    socket.create_connection((HOST, port), 1.0).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        while not any("JetStream cluster new metadata leader" in self._log(name) for name in self.servers):
            if time.monotonic() > deadline:
                raise TimeoutError("the NATS servers have elected no leader: " + self._log("n1")[-2_000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill them: nothing of theirs is kept."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        self._children.clear()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def version(self) -> str:
        return subprocess.run([self._binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")
