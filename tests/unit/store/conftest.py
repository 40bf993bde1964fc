from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.store.harness import Replica, init_cluster


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    """An empty replica of a formed cluster; its content hash is checked at the end."""
    made = Replica(tmp_path / "state")
    made.apply(init_cluster())
    yield made
    made.check_hash()
    made.store.close()
