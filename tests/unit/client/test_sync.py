"""The blocking client: the same surface, for many threads, and nothing left behind."""

import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kvorum
import kvorum.sync
from kvorum.errors import Closed, InvalidArgument
from tests.unit.client.conftest import Interrupt


def surface(kind: type) -> dict[str, Any]:
    """Public names, with the parameters of methods."""
    found: dict[str, Any] = {}
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            method = callable(member)
            found[name] = list(inspect.signature(member).parameters.values())[1:] if method else None
    return found


def without_annotations(parameters: list[inspect.Parameter] | None) -> Any:
    return parameters and [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize(
    ("asynchronous", "blocking", "renamed"),
    [
        (kvorum.Kv, kvorum.sync.Kv, {"link": None, "desk": None}),
        (kvorum.Queue, kvorum.sync.Queue, {"batching": None}),
        (kvorum.Topic, kvorum.sync.Topic, {}),
        (kvorum.DeadLetters, kvorum.sync.DeadLetters, {}),
        (kvorum.Message, kvorum.sync.Message, {}),
        (kvorum.Batch, kvorum.sync.Batch, {}),
        (kvorum.Receiver, kvorum.sync.Receiver, {"aclose": "close"}),
        (kvorum.AtomicOperation, kvorum.sync.AtomicOperation, {}),
        (kvorum.Transaction, kvorum.sync.Transaction, {}),
        (kvorum.ListIterator, kvorum.sync.ListIterator, {}),
        (kvorum.Watch, kvorum.sync.Watch, {"aclose": "close", "next_emission": None}),
    ],
)
def test_both_clients_have_the_same_surface(asynchronous: type, blocking: type, renamed: dict[str, str | None]) -> None:
    wanted = {renamed.get(name, name): parameters for name, parameters in surface(asynchronous).items()}
    wanted.pop(None, None)
    assert {name: without_annotations(parameters) for name, parameters in surface(blocking).items()} == {
        name: without_annotations(parameters) for name, parameters in wanted.items()
    }
    assert without_annotations([*inspect.signature(kvorum.open_kv).parameters.values()]) == without_annotations(
        [*inspect.signature(kvorum.sync.open_kv).parameters.values()]
    )


@pytest.fixture
def threads_before() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_many_threads_share_a_client(threads_before: set[threading.Thread]) -> None:
    with kvorum.sync.open_kv(":memory:") as kv, ThreadPoolExecutor(16) as pool:

        def work(number: int) -> int:
            kv.atomic().sum(("total",), 1).set(("row", number), number).commit()
            value = kv.get(("row", number)).value
            assert isinstance(value, int)
            return value

        assert sorted(pool.map(work, range(300))) == list(range(300))
        assert kv.get(("total",)).value == 300
        assert len(list(kv.list(prefix=("row",), batch_size=7))) == 300
    assert set(threading.enumerate()) <= threads_before


def test_a_failed_opening_leaves_no_thread(threads_before: set[threading.Thread], tmp_path: Any) -> None:
    (tmp_path / "file").write_text("not a database")
    with pytest.raises(InvalidArgument, match="is a file"):
        kvorum.sync.open_kv(tmp_path / "file")
    assert set(threading.enumerate()) <= threads_before


def test_calls_that_wait_end_when_another_thread_closes(threads_before: set[threading.Thread]) -> None:
    kv = kvorum.sync.open_kv(":memory:")
    watch = kv.watch([("a",)])
    assert [entry.value for entry in next(watch)] == [None]
    outcomes: list[object] = []

    def run(call: Callable[[], object]) -> None:
        outcomes.append(call())

    waiting = [
        threading.Thread(target=run, args=(call,))
        for call in (lambda: next(watch, "ended"), lambda: kv.listen_queue(print), lambda: kv.listen_queue(print))
    ]
    for thread in waiting:
        thread.start()
    kv.enqueue("so that the listeners are known to be there", queue="other")
    while kv.statistics()["queue_consumers"] < 2:
        kv.get(("a",))
    kv.close()
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(map(str, outcomes)) == ["None", "None", "ended"]
    assert set(threading.enumerate()) <= threads_before


def test_a_watch_can_be_closed_from_another_thread() -> None:
    with kvorum.sync.open_kv(":memory:") as kv, kv.watch([("a",)]) as watch:
        next(watch)
        emissions: list[object] = []
        waiting = threading.Thread(target=lambda: emissions.extend(watch))
        waiting.start()
        kv.set(("a",), 1)
        while not emissions:
            kv.get(("a",))
        watch.close()
        waiting.join(60)
        assert not waiting.is_alive() and len(emissions) == 1
        assert list(watch) == []


def test_handlers_run_at_the_same_time_and_what_they_raise_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with kvorum.sync.open_kv(":memory:") as kv:
        together = threading.Barrier(3, timeout=10)
        attempts: list[tuple[str, int]] = []

        def handler(message: kvorum.sync.Message) -> None:
            if message.value == "together":
                together.wait()
            attempts.append((message.value, message.attempt))
            if message.value == "stop iteration" and message.attempt == 1:
                raise StopIteration  # no future can carry this one
            if len(attempts) == 5:
                kv.close()

        operation = kv.atomic()
        for _ in range(3):
            operation.enqueue("together")
        operation.enqueue("stop iteration", backoff_schedule=[0]).commit()
        kv.listen_queue(handler, concurrency=4, with_message=True)
    assert sorted(attempts) == [("stop iteration", 1), ("stop iteration", 2)] + [("together", 1)] * 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        record.getMessage() for record in caplog.records if "Exception in queue handler" in record.getMessage()
    ]


def test_a_blocking_call_on_the_client_s_own_thread_is_refused() -> None:
    with kvorum.sync.open_kv(":memory:") as kv:
        problems: list[BaseException] = []
        done = threading.Event()

        def inside() -> None:
            try:
                kv.get(("a",))
            except RuntimeError as error:
                problems.append(error)
            done.set()

        kv._background.loop.call_soon_threadsafe(inside)
        assert done.wait(60)
        assert "would wait for ever" in str(problems[0])


def test_an_interrupt_cancels_the_call(interrupt: Interrupt) -> None:
    """As the main thread is interrupted while it waits."""
    with kvorum.sync.open_kv(":memory:") as kv:
        listening = threading.Event()

        def wait_for_it() -> None:
            while not kv.statistics()["queue_consumers"]:
                kv.get(("a",))
            listening.set()

        other = threading.Thread(target=wait_for_it)
        other.start()
        with interrupt(listening), pytest.raises(KeyboardInterrupt):
            kv.listen_queue(print)
        other.join()
        while kv.statistics()["queue_consumers"]:
            kv.get(("a",))


def test_a_closed_client_refuses_and_its_atomic_operations_too() -> None:
    kv = kvorum.sync.open_kv(":memory:")
    operation = kv.atomic().set(("a",), 1)
    rows = kv.list(prefix=())
    kv.close()
    kv.close()
    for call in (operation.commit, rows.page, lambda: kv.watch([("a",)]), lambda: kv.get(("a",))):
        with pytest.raises(Closed):
            call()
    assert kv.closed and kv.statistics() == {}
