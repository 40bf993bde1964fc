"""What is measured side by side: a system's servers, and the client process that talks to them."""

import contextlib
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.etcd_cluster import EtcdCluster
from bench.kv_ends import Job
from bench.measure import clock
from bench.peers import ROOT, Peers
from bench.process import Child
from bench.queues import node_pids
from kvorum_node.dev_cluster import DevCluster

DENO: Final = ("run", "--quiet", "-A", "--unstable-kv", "--no-config", "--no-lock", "--no-remote")
CLIENT: Final = "client"


class Side(ABC):
    """A running system with a client."""

    def __init__(self, name: str, client: Child) -> None:
        self.name = name
        self.client = client
        if client.line() != "ready":
            raise RuntimeError(f"the {client.name} said something else than that it is ready")

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Of its servers, by what each is: `leader`, `follower …`."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to all servers at once; returns when they are gone."""

    @abstractmethod
    def start(self) -> None:
        """All servers again."""

    def ask(self, job: Job) -> dict[str, Any]:
        """Let the client do something that takes as long as it takes."""
        self.client.tell(asdict(job))
        self.client.answer()
        now = clock()
        self.client.tell({"begin": now, "end": now, "wait": 0, "seconds": 0})
        return self.client.answer()


class KvorumSide(Side):
    """`client` is that of Python unless another one is given."""

    def __init__(self, cluster: DevCluster, client: Child | None = None) -> None:
        self.cluster = cluster
        addresses = [cluster.client_address(number) for number in range(cluster.nodes)]
        leader = addresses[cluster.leader()]
        servers = [leader, *(address for address in addresses if address != leader)]
        super().__init__(
            "kvorum",
            client or Child("client of kvorum", [sys.executable, "-m", "bench.kv_kvorum", *servers]),
        )

    def pids(self) -> dict[str, int]:
        return node_pids(self.cluster)

    def kill(self) -> None:
        kill_all(self.cluster)

    def start(self) -> None:
        self.cluster.start_all()


@contextlib.contextmanager
def started(cluster: DevCluster) -> Iterator[DevCluster]:
    """Running nodes, which are killed in the end: nothing of theirs is kept."""
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        stack.callback(kill_all, cluster)
        cluster.start_all()
        yield cluster


def kill_all(cluster: DevCluster) -> None:
    """SIGKILL to all nodes at once; returns when they are gone."""
    for number in range(cluster.nodes):
        if pid := cluster.pid(number):
            os.kill(pid, signal.SIGKILL)
    for number in range(cluster.nodes):
        cluster.kill(number)


class EtcdSide(Side):
    """Under the interpreter that has aetcd."""

    def __init__(self, cluster: EtcdCluster, python: Path) -> None:
        self._cluster = cluster
        address = cluster.address(cluster.leader())
        super().__init__("etcd", Child("client of etcd", [str(python), "-m", "bench.kv_etcd", address]))

    def pids(self) -> dict[str, int]:
        leader = self._cluster.leader()
        return {
            ("leader" if name == leader else f"follower {name}"): self._cluster.pid(name)
            for name in self._cluster.names
        }

    def kill(self) -> None:
        self._cluster.stop()

    def start(self) -> None:
        self._cluster.start()


class DenoFile(Side):
    """Deno's own file: the client is the server."""

    def pids(self) -> dict[str, int]:
        return {}

    def kill(self) -> None:
        raise NotImplementedError("a file has no servers")

    def start(self) -> None:
        raise NotImplementedError("a file has no servers")


def deno(program: Path, target: str, folder: Path) -> Child:
    """A Deno program that has this database open."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "DENO_DIR": str(folder / "deno"),
        "DENO_NO_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
        "DENO_KV_ACCESS_TOKEN": "bench",
    }
    command = [str(program), *DENO, str(ROOT / "bench" / "kv_deno.mjs"), target]
    return Child("Deno program", command, environment=own)


@contextlib.contextmanager
def kvorum_side(folder: Path, nodes: int = 3) -> Iterator[KvorumSide]:
    """Nodes and a client, ended whatever happens."""
    with contextlib.ExitStack() as stack:
        side = KvorumSide(stack.enter_context(started(DevCluster(folder, nodes))))
        stack.callback(side.client.stop)
        yield side


@contextlib.contextmanager
def etcd_side(folder: Path, peers: Peers, nodes: int = 3) -> Iterator[EtcdSide]:
    """The same of etcd."""
    cluster = EtcdCluster(peers.found["etcd"], folder, nodes)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        side = EtcdSide(cluster, peers.found["clients"])
        stack.callback(side.client.stop)
        yield side


@contextlib.contextmanager
def deno_sides(folder: Path, peers: Peers, cluster: DevCluster) -> Iterator[list[Side]]:
    """The same Deno program with a cluster that runs, by KV Connect to its leader, and with a file."""
    program = peers.found["deno"]
    with contextlib.ExitStack() as stack:
        remote = deno(program, cluster.http_url(cluster.leader()), folder)
        stack.callback(remote.stop)
        local = deno(program, str(folder / "local.sqlite"), folder)
        stack.callback(local.stop)
        yield [KvorumSide(cluster, remote), DenoFile("deno file", local)]
