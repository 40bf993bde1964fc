"""Three real nodes, and the command line against them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvorum_node.backup.catalog import Catalog, open_catalog
from kvorum_node.backup.targets import ArchiveTarget
from kvorum_node.dev_cluster import PAUSE
from tests.integration.node.growing import GrowingCluster


class BackedUp(GrowingCluster):
    """With `kvorum` commands as an operator types them."""

    archive: str
    """Where the nodes' archive lies, if there is one."""
    target: ArchiveTarget
    """The same."""
    env: Mapping[str, str] = {}
    """Variables of the commands, besides the cluster's URL."""

    @property
    def catalog(self) -> Catalog:
        return self.catalog_of("")

    def catalog_of(self, cluster: str) -> Catalog:
        """What is in the archive, of the cluster whose id begins so. Raises ValueError if there is nothing."""
        return open_catalog(self.target, cluster)

    def kvorum(self, *words: str, status: int = 0) -> str:
        """What it prints; on stderr, if it is to fail."""
        done = subprocess.run(
            [sys.executable, "-m", "kvorum.cli", *words],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={"PATH": "", "KVORUM_URL": self.url, **self.env},
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout if status == 0 else done.stderr

    def told(self, *words: str) -> dict[str, Any]:
        """What a command says with --json."""
        found: dict[str, Any] = json.loads(self.kvorum(*words, "--json"))
        return found

    def wipe_all(self) -> None:
        """Kill all nodes, and lose their disks."""
        for number in range(self.nodes):
            self.kill(number)
            self.wipe(number)

    def regrow(self) -> None:
        """After the first node's folder was restored: start it, and let the others in with empty folders."""
        nodes, self.nodes = self.nodes, 1
        self.start(0)
        self.leader()
        for number in range(1, nodes):
            self.set_key(number, "join", "true")
            self.nodes = number + 1
            self.start(number)
            self.cluster("add", f"n{number + 1}", *self.place(number), "--promote")


def wait_for(condition: Callable[[], object], patience: float = 60.0) -> None:
    """Until it is true."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it has not come true"
        time.sleep(PAUSE)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BackedUp]:
    with BackedUp(tmp_path, lease_ms=1_000) as started:
        yield started
