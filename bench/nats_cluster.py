"""Three NATS servers with JetStream on this machine, beside which queues are measured."""

import time
from pathlib import Path
from typing import Final

from bench.servers import PATIENCE, Servers
from kvorum_node.dev_cluster import HOST, free_ports

SETTINGS: Final = (
    "three servers, JetStream with 3 replicas in files, work queue retention, defaults otherwise. JetStream confirms"
    " when a majority has written, without an fsync (it syncs every 2 minutes, and 2.9 has no setting for that): it"
    " survives killed processes, but not a power cut of all. kvorum confirms after an fsync on a majority."
)


class NatsCluster(Servers):
    """`start` them, `stop` them."""

    def __init__(self, binary: Path, folder: Path) -> None:
        super().__init__(binary, folder)
        self.servers: dict[str, str] = {}
        """URL of each by its name."""

    def start(self) -> None:
        """Returns when all of them take connections, and have elected a leader."""
        self.folder.mkdir(parents=True)
        ports = free_ports(6)
        clients, routes = ports[:3], ports[3:]
        listed = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        for number, (client, route) in enumerate(zip(clients, routes, strict=True), 1):
            name = f"n{number}"
            config = self.folder / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nlisten: "{HOST}:{client}"\njetstream {{ store_dir: "{self.folder / name}" }}\n'
                f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: [{listed}] }}\n'
            )
            self.spawn(name, ["-c", str(config)])
            self.servers[name] = f"nats://{HOST}:{client}"
        self.wait_for(clients)
        deadline = time.monotonic() + PATIENCE
        while not any("JetStream cluster new metadata leader" in self.log(name) for name in self.servers):
            self.check(deadline, "has elected no leader")
            time.sleep(0.05)
