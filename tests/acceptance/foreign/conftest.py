"""One cluster, and one process of each foreign client with a database open at each of its nodes."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import kvorum.sync
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.process import PATIENCE, TOKEN, Foreign, install

NODES = 3


@dataclass(frozen=True)
class Client:
    """A client at one database: call it with a program."""

    process: Foreign
    at: int
    local: bool
    """Deno's own database instead of ours: what it does is what ours must do."""
    url: str

    @property
    def kind(self) -> str:
        return self.process.kind

    @property
    def deno(self) -> bool:
        return self.kind == "deno"

    def __call__(self, code: str, *, patience: float = PATIENCE, **arguments: Any) -> Any:
        return self.process.run(code, at=self.at, patience=patience, **arguments)

    def start(self, code: str, **arguments: Any) -> Any:
        return self.process.start(code, at=self.at, **arguments)

    def refusal(self, call: str, **arguments: Any) -> tuple[str, str]:
        """Name and message of the error that a call throws; it must throw."""
        error = self(f"return await tools.refused(async () => {{ {call} }})", **arguments)
        return error["name"], error["message"]


@pytest.fixture(scope="session")
def clients_installed() -> None:
    """Fails where they cannot be installed: without them nothing here is tested."""
    install()


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster that no test here harms."""
    cluster = DevCluster(tmp_path_factory.mktemp("foreign-cluster"), NODES, settings={"kv_connect_token": TOKEN})
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def processes(
    clients_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, tuple[str, ...]], Foreign]]:
    """The process of a client at these addresses, started when it is first asked for."""
    folder = tmp_path_factory.mktemp("foreign-clients")
    running: dict[tuple[str, tuple[str, ...]], Foreign] = {}

    def process(kind: str, addresses: tuple[str, ...]) -> Foreign:
        found = running.get((kind, addresses))
        if found is not None and not found.alive:  # its test has failed, the others need not
            running.pop((kind, addresses)).close()
        if (kind, addresses) not in running:
            running[kind, addresses] = Foreign(kind, addresses, folder)
        return running[kind, addresses]

    yield process
    for client in running.values():
        client.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, processes: Callable[[str, tuple[str, ...]], Foreign]) -> Client:
    kind, node = request.param
    if node is None:
        return Client(processes(kind, (":memory:",)), 0, True, ":memory:")
    nodes: DevCluster = request.getfixturevalue("nodes")  # not for Deno's own database
    urls = tuple(nodes.http_url(number) for number in range(NODES))
    return Client(processes(kind, urls), node, False, urls[node])


@pytest.fixture
def other(client: Client, processes: Callable[[str, tuple[str, ...]], Foreign]) -> Client:
    """Another client than `client`, at the node after the one that `client` is at."""
    kind = "kv-connect-kit" if client.kind == "deno" else "deno"
    nodes = tuple(client.process.addresses)
    at = (client.at + 1) % NODES
    return Client(processes(kind, nodes), at, False, nodes[at])


@pytest.fixture
def javascript(processes: Callable[[str, tuple[str, ...]], Foreign], nodes: DevCluster) -> list[Client]:
    """The JavaScript clients, each at another node."""
    urls = tuple(nodes.http_url(number) for number in range(NODES))
    return [Client(processes(kind, urls), at, False, urls[at]) for at, kind in enumerate(JAVASCRIPT)]


JAVASCRIPT = ("deno", "@deno/kv", "kv-connect-kit")
OWN = pytest.param(("deno", None), id="deno's own")


def at(kinds: Iterable[str], nodes: Iterable[int] = range(NODES), own: bool = False) -> pytest.MarkDecorator:
    """Which clients a test is run with; `own`: with Deno's own database too."""
    chosen = [pytest.param((kind, node), id=f"{kind} node {node + 1}") for kind in kinds for node in nodes]
    return pytest.mark.parametrize("client", [*chosen, OWN] if own else chosen, indirect=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`client` is every JavaScript client at every node, and Deno's own database, unless a test says otherwise."""
    marked = any("client" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "client" in metafunc.fixturenames and not marked:
        mark = at(JAVASCRIPT, own=True)
        metafunc.parametrize(*mark.args, **mark.kwargs)


@pytest.fixture(scope="session")
def kv(nodes: DevCluster) -> Iterator[kvorum.sync.Kv]:
    """Our own client at the same cluster."""
    with kvorum.sync.open_kv(nodes.url) as kv:
        yield kv


_numbers = itertools.count(1)


@pytest.fixture
def p() -> str:
    """A first key part that no other test uses."""
    return f"p{next(_numbers)}"
