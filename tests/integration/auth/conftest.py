"""Three nodes that ask for tokens."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import kvorum
from tests.integration.cluster_fixture import ThreeNodes

ROOT = secrets.token_hex(16)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    folder = tmp_path_factory.mktemp("auth")
    with start(folder) as cluster:
        yield cluster


def start(folder: Path) -> ThreeNodes:
    file = folder / "root-token"
    file.write_text(f"{ROOT}\n")
    return ThreeNodes(folder, root_token_file=str(file))


@pytest.fixture
async def root(cluster: ThreeNodes) -> AsyncIterator[kvorum.Kv]:
    """A client with the root token, of a cluster that asks for tokens."""
    async with kvorum.open_kv(cluster.url, token=ROOT) as kv:
        await kv.auth.on()
        yield kv
        for token in await kv.auth.list():
            await kv.auth.revoke(token.id)
