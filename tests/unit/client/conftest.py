"""A client over a backend in memory."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


Interrupt = Callable[[threading.Event], AbstractContextManager[None]]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Interrupts the main thread, as Ctrl-C does, once the event is set. One signal is not enough for certain: Python
    does not see one that comes just before a thread begins to wait for a lock."""
    interrupted = threading.Event()

    def handler(*_: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    main = threading.main_thread()
    assert threading.current_thread() is main

    def send(when: threading.Event) -> None:
        assert when.wait(60)
        while not interrupted.wait(0.02):
            signal.pthread_kill(main.ident or 0, signal.SIGUSR2)

    @contextmanager
    def interrupting(when: threading.Event) -> Iterator[None]:
        thread = threading.Thread(target=send, args=(when,))
        thread.start()
        yield
        thread.join()

    before = signal.signal(signal.SIGUSR2, handler)
    yield interrupting
    signal.signal(signal.SIGUSR2, before)
