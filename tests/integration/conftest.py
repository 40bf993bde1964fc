"""A three-node cluster of real processes, shared by the tests that do not harm it; and databases of all kinds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster_fixture import pace_of
from tests.pace import Pace


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Three running nodes. Tests that kill nodes make a cluster of their own."""
    cluster = DevCluster(tmp_path_factory.mktemp("cluster"))
    cluster.start_all()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def cluster_url(shared_cluster: DevCluster) -> str:
    """Its address for `kvorum.open_kv`."""
    return shared_cluster.url


@pytest.fixture
def start_pace(request: pytest.FixtureRequest) -> Callable[[], Pace]:
    """Begins to count the seconds of a test whose target is the shared cluster or a database of its own process."""

    def start() -> Pace:
        if request.node.callspec.params["target"] == "cluster":
            return pace_of(request.getfixturevalue("shared_cluster"))
        return Pace()

    return start


@pytest.fixture(params=["memory", "folder", "cluster"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, as `open_kv` takes it."""
    if request.param == "memory":
        return ":memory:"
    if request.param == "folder":
        return str(tmp_path / "test.kv")
    url = request.getfixturevalue("cluster_url")
    assert isinstance(url, str)
    return url
