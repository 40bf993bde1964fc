"""etcd servers on this machine, beside which keys and values are measured."""

import time
from pathlib import Path
from typing import Final

from bench.servers import PATIENCE, Servers
from kvorum_node.dev_cluster import HOST, free_ports

SETTINGS: Final = (
    "defaults, but for room of 8 GiB (2 GiB would be full before the end); the client talks to the leader. It syncs its"
    " log on a majority before it acknowledges, as kvorum does. It keeps every former value of a key until it is told"
    " to compact, which nobody does here."
)
ROOM: Final = 8 << 30
READY: Final = ("ready to serve client requests", "serving insecure client requests")


class EtcdCluster(Servers):
    """`start` them, also again after `stop`, which kills."""

    def __init__(self, binary: Path, folder: Path, nodes: int = 3) -> None:
        super().__init__(binary, folder)
        ports = free_ports(2 * nodes)
        self.names = [f"e{number + 1}" for number in range(nodes)]
        self._clients = dict(zip(self.names, ports[:nodes], strict=True))
        self._peers = dict(zip(self.names, ports[nodes:], strict=True))

    def start(self) -> None:
        """Returns when all of them serve, which they do once there is a leader."""
        self.folder.mkdir(parents=True, exist_ok=True)
        members = ",".join(f"{name}=http://{HOST}:{port}" for name, port in self._peers.items())
        said = {name: self._ready(name) for name in self.names}
        for name in self.names:
            client, peer = f"http://{HOST}:{self._clients[name]}", f"http://{HOST}:{self._peers[name]}"
            options = {
                "name": name,
                "data-dir": str(self.folder / name),
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": members,
                "quota-backend-bytes": str(ROOM),
            }
            self.spawn(name, [f"--{option}={value}" for option, value in options.items()])
        deadline = time.monotonic() + PATIENCE
        while any(self._ready(name) <= said[name] for name in self.names):
            self.check(deadline, "does not serve")
            time.sleep(0.02)

    def _ready(self, name: str) -> int:
        """How often it has said so."""
        try:
            log = self.log(name)
        except FileNotFoundError:
            return 0
        return sum(log.count(word) for word in READY[:1])

    def address(self, name: str) -> str:
        """host:port."""
        return f"{HOST}:{self._clients[name]}"

    def leader(self) -> str:
        """Name of the server that was elected last."""
        # Each server logs who leads; the leader alone says of itself that it became it, in the highest term.
        terms: dict[int, str] = {}
        for name in self.names:
            for line in self.log(name).splitlines():
                head, found, tail = line.partition(" became leader at term ")
                if found and head:
                    terms[int(tail.split('"')[0].split()[0])] = name
        return terms[max(terms)]
