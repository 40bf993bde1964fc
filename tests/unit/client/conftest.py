"""A client over a backend in memory."""

import pytest

from kvorum import Kv
from tests.unit.client.fake_backend import FakeBackend


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def kv(backend: FakeBackend) -> Kv:
    return Kv(backend, timeout=5.0)
