"""A three-node cluster of real processes, shared by the tests of one run that do not harm it."""

from collections.abc import Iterator

import pytest

from kvorum_node.dev_cluster import DevCluster


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
