"""Jobs run in order and off the loop; their results and errors come back in it; stopping waits for what runs."""

import asyncio
import threading
from functools import partial

import pytest

from kvorum_raft.background import Stopping, ThreadBackground, check_stopping
from kvorum_raft.errors import Overloaded


async def test_jobs_run_in_order_in_one_other_thread_and_answer_in_the_loop() -> None:
    background = ThreadBackground(asyncio.get_running_loop())
    ran: list[tuple[int, int]] = []
    answers: list[tuple[int | None, int]] = []
    finished = asyncio.Event()

    def job(number: int) -> int:
        ran.append((number, threading.get_ident()))
        return number * 2

    for number in range(20):
        background.submit(partial(job, number), lambda result, error: answers.append((result, threading.get_ident())))
    background.submit(lambda: None, lambda result, error: finished.set())
    await finished.wait()
    background.stop()
    assert [number for number, _ in ran] == list(range(20))
    assert len({thread for _, thread in ran} | {threading.get_ident()}) == 2
    assert answers == [(number * 2, threading.get_ident()) for number in range(20)]


async def test_an_exception_is_an_answer_and_the_next_job_runs() -> None:
    background = ThreadBackground(asyncio.get_running_loop())
    answers: list[object] = []
    finished = asyncio.Event()

    def fails() -> int:
        raise KeyError("why")

    def last(result: int | None, error: Exception | None) -> None:
        answers.append(result)
        finished.set()

    background.submit(fails, lambda result, error: answers.extend((result, error)))
    background.submit(lambda: 7, last)
    await finished.wait()
    background.stop()
    assert answers[0] is None and isinstance(answers[1], KeyError) and answers[2] == 7


async def test_too_many_jobs_are_refused() -> None:
    background = ThreadBackground(asyncio.get_running_loop(), max_jobs=3)
    begun, go_on = threading.Event(), threading.Event()

    def blocks() -> None:
        begun.set()
        go_on.wait()

    background.submit(blocks, lambda result, error: None)
    begun.wait()
    for _ in range(3):
        background.submit(lambda: None, lambda result, error: None)
    with pytest.raises(Overloaded):
        background.submit(lambda: None, lambda result, error: None)
    go_on.set()
    background.stop()


async def test_stop_waits_for_the_running_job_and_drops_the_others() -> None:
    background = ThreadBackground(asyncio.get_running_loop())
    begun = threading.Event()
    seen: list[str] = []

    def looks_now_and_then() -> None:
        begun.set()
        try:
            while True:
                check_stopping(background.stopping)
        except Stopping:
            seen.append("ended")
            raise

    background.submit(looks_now_and_then, lambda result, error: seen.append("answered"))
    background.submit(lambda: seen.append("began"), lambda result, error: seen.append("answered"))
    begun.wait()
    background.stop()
    assert seen == ["ended"]
    background.stop()
    background.submit(lambda: seen.append("began"), lambda result, error: None)
    await asyncio.sleep(0)
    assert seen == ["ended"]
    assert not any(thread.name == "kvorum-checkpoint" for thread in threading.enumerate())


async def test_an_answer_that_is_on_its_way_when_it_stops_is_not_delivered() -> None:
    background = ThreadBackground(asyncio.get_running_loop())
    ran = threading.Event()
    answers: list[object] = []
    background.submit(ran.set, lambda result, error: answers.append(result))
    ran.wait()
    background.stop()  # the answer may lie in the loop's queue
    await asyncio.sleep(0)
    assert answers == []


def test_a_loop_that_has_ended_is_no_harm() -> None:
    loop = asyncio.new_event_loop()
    background = ThreadBackground(loop)
    begun, go_on = threading.Event(), threading.Event()

    def blocks() -> None:
        begun.set()
        go_on.wait()

    background.submit(blocks, lambda result, error: None)
    begun.wait()
    loop.close()
    go_on.set()
    background.stop()


def test_nothing_runs_before_the_first_job() -> None:
    loop = asyncio.new_event_loop()
    before = threading.active_count()
    background = ThreadBackground(loop)
    assert threading.active_count() == before
    background.stop()
    loop.close()
