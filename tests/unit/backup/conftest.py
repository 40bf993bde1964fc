"""A store with something of everything in it, and backups of it."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum_node.backup.saving import StoreFacts, spool
from kvorum_node.store import Store
from kvorum_raft.copier import PipeCopier
from tests.unit.store.harness import Replica
from tests.unit.store.test_determinism import Traffic


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Replica]:
    """A replica of data version 3 after a few dozen entries of all kinds."""
    (tmp_path / "data").mkdir()
    made = Replica(tmp_path / "data" / "state")
    Traffic(made, 1).run(60)
    yield made
    made.store.close()


def backup_of(store: Store, folder: Path) -> bytes:
    """The bytes of a backup's file."""
    image, facts = store.image(), StoreFacts(store)
    try:
        copied = spool(image, facts, folder, PipeCopier(1e12), node_id="n1", term=7)
    finally:
        image.close()
    try:
        return b"".join(copied.parts())
    finally:
        copied.close()


@pytest.fixture
def backup(busy: Replica, tmp_path: Path) -> bytes:
    """Of that replica."""
    return backup_of(busy.store, tmp_path / "spool")


def stream(data: bytes) -> io.BytesIO:
    """As it is read from a file."""
    return io.BytesIO(data)
