"""Real nodes whose cluster changes its members, and the command line that changes them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvorum_node.dev_cluster import HOST, free_ports
from tests.integration.cluster_fixture import ThreeNodes


class GrowingCluster(ThreeNodes):
    """Three nodes to begin with. Numbers count from 0, node ids from n1."""

    def cluster(self, *words: str, status: int = 0) -> str:
        """`kvorum cluster WORDS` against all nodes; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "kvorum.cli", "cluster", *words, "--url", self.url],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout if status == 0 else done.stderr

    def members(self) -> dict[str, dict[str, Any]]:
        """Rows of `members --json` by node id."""
        view = json.loads(self.cluster("members", "--json"))
        return {row["node"]: row for row in view["members"]}

    def place(self, number: int) -> tuple[str, ...]:
        """Options that say where a node is."""
        text = self.config(number).read_text()
        found = dict(line.split(" = ") for line in text.splitlines() if "_listen = " in line)
        client, peer = (found[name].strip('"') for name in ("client_listen", "peer_listen"))
        return "--peer-address", peer, "--client-address", client

    def new_node(self) -> int:
        """Start one more node, with an empty folder, that waits to be let in. Returns its number."""
        number = self.nodes
        self.write_joining(number)
        self.nodes += 1
        self.start(number)
        return number

    def write_joining(self, number: int) -> None:
        """A configuration with free ports that names nobody else."""
        client, http, peer = free_ports(3, self)
        extra = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self._settings.items())
        name = f"n{number + 1}"
        self.config(number).write_text(
            f'node_id = "{name}"\ndata_dir = "{name}"\njoin = true\n'
            f'client_listen = "{HOST}:{client}"\npeer_listen = "{HOST}:{peer}"\n'
            f'http_listen = "{HOST}:{http}"\n{extra}'
        )

    def wait_until_gone(self, number: int) -> None:
        """Wait for a node that ends by itself."""
        self._children[number].wait(60)
        del self._children[number]

    def wipe(self, number: int) -> None:
        """The node's disk is lost."""
        shutil.rmtree(self.data_dir(number))

    def set_key(self, number: int, key: str, value: str) -> None:
        """Put a setting into a node's configuration."""
        file: Path = self.config(number)
        file.write_text(f"{key} = {value}\n" + file.read_text())

    def number_of(self, node_id: str) -> int:
        return int(node_id.removeprefix("n")) - 1
