from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.store.harness import Replica, init_cluster


@pytest.fixture
def replica(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Replica]:
    """An empty replica of a formed cluster, whose entries are of the module's REPLICA_VERSION, if it has one; its
    content hash is checked at the end."""
    made = Replica(tmp_path / "state")
    made.apply(init_cluster())
    made.data_version = getattr(request.module, "REPLICA_VERSION", made.data_version)
    yield made
    made.check_hash()
    made.store.close()
