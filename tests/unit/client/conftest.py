"""A client over a backend in memory."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvorum import Kv
from tests.unit.client.fake_backend import FakeBackend


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def kv(backend: FakeBackend) -> Kv:
    return Kv(backend, timeout=5.0)


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, as Ctrl-C does."""

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    main = threading.main_thread()
    assert threading.current_thread() is main
    before = signal.signal(signal.SIGUSR2, handler)
    yield lambda: signal.pthread_kill(main.ident or 0, signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
