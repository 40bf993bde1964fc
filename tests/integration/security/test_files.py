"""What a node writes is read by its user alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvorum
from tests.integration.cluster_fixture import ThreeNodes


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _readable(folder: Path) -> list[str]:
    """Files and folders below one that others could reach: what lies in a closed folder is closed."""
    found = []
    for path in sorted(folder.iterdir()):
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            found.append(path.name)
        elif path.is_dir():
            found += [f"{path.name}/{name}" for name in _readable(path)]
    return found


async def test_nobody_else_reads_a_nodes_files(tmp_path: Path, usual_umask: None) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    with ThreeNodes(tmp_path, archive=str(archive)) as cluster:
        async with kvorum.open_kv(cluster.url) as kv:
            await kv.set(("a",), 1)
        nodes = [cluster.base_dir / f"n{number}" for number in (1, 2, 3)]
        assert all((node / "state" / "data.mdb").exists() for node in nodes)
        assert [_readable(node) for node in nodes] == [[], [], []]
        cluster.kill(0)
        (nodes[0] / "state").chmod(0o755)  # as earlier versions made it
        cluster.start(0)
        assert _readable(nodes[0]) == []
        assert _readable(archive) == []
