"""How a blocking client hands calls over to its loop."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kvorum.background import Background
from kvorum.errors import Closed
from tests.unit.client.conftest import Interrupt

PATIENCE = 60


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.stop()


class HeldUp:
    """Keeps the loop busy while the block runs."""

    def __init__(self, background: Background) -> None:
        self._loop = background.loop
        self._busy, self._go_on = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self._loop.call_soon_threadsafe(self._hold_up)
        assert self._busy.wait(PATIENCE)

    def _hold_up(self) -> None:
        self._busy.set()
        assert self._go_on.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()


def test_many_threads_get_each_its_own_answer(background: Background) -> None:
    async def twice(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with ThreadPoolExecutor(16) as pool:
        with HeldUp(background):
            answers = [pool.submit(background.call, partial(twice, number)) for number in range(200)]
        assert [answer.result(PATIENCE) for answer in answers] == [2 * number for number in range(200)]


def test_a_call_has_the_context_of_its_thread(background: Background) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")

    async def look() -> str:
        return name.get()

    def ask(who: str) -> str:
        name.set(who)
        return background.call(look)

    with ThreadPoolExecutor(4) as pool:
        names = [f"thread {number}" for number in range(40)]
        assert list(pool.map(ask, names)) == names
    assert background.call(look) == "nobody"


def test_what_a_call_raises_is_raised_and_freed_with_its_last_user(background: Background) -> None:
    class OwnError(Exception):
        pass

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OwnError("as it is")

    gc.disable()
    try:
        with pytest.raises(OwnError, match="as it is") as caught:
            background.call(fail)
        seen = weakref.ref(caught.value)
        del caught
        background.call(lambda: asyncio.sleep(0))  # its task is gone by now
        assert seen() is None
    finally:
        gc.enable()


def test_an_interrupt_cancels_what_is_under_way(background: Background, interrupt: Interrupt) -> None:
    running, ended = threading.Event(), threading.Event()

    async def for_ever() -> None:
        running.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.set()
            raise

    with interrupt(running), pytest.raises(KeyboardInterrupt):
        background.call(for_ever)
    assert ended.wait(PATIENCE)


def test_what_is_interrupted_before_it_began_never_begins(background: Background, interrupt: Interrupt) -> None:
    begun: list[bool] = []

    async def begin() -> None:
        begun.append(True)

    handed_over = threading.Event()
    with HeldUp(background), interrupt(handed_over), pytest.raises(KeyboardInterrupt):
        _call(background, begin, handed_over)
    background.call(lambda: asyncio.sleep(0))
    assert not begun


def test_stopping_ends_what_is_under_way_and_what_was_just_handed_over(background: Background) -> None:
    running = threading.Event()

    async def for_ever() -> None:
        running.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(background.call, for_ever)
        assert running.wait(PATIENCE)
        with HeldUp(background):
            handed_over = threading.Event()
            second = pool.submit(_call, background, for_ever, handed_over)
            assert handed_over.wait(PATIENCE)
            background.stop(wait=False)
        for call in (first, second):
            with pytest.raises(Closed) as caught:
                call.result(PATIENCE)
            assert caught.value.outcome == "unknown"
    with pytest.raises(Closed) as caught:
        background.call(for_ever)
    assert caught.value.outcome == "not applied"


def _call(background: Background, call: Any, handed_over: threading.Event) -> None:
    """With the news that it was handed over, if the loop is held up."""
    lock = background._lock

    class Lock:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            handed_over.set()

    background._lock = Lock()  # type: ignore[assignment]
    background.call(call)
