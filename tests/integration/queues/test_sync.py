"""Named queues for programs without asyncio, on every kind of database."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kvorum.sync
from kvorum import Outgoing
from kvorum.errors import InvalidArgument, StaleLease

PATIENCE = 60.0

WORKER = """
import signal, sys, time
import kvorum.sync
def handle(message):
    print("begun", message.value, flush=True)
    time.sleep(1.0)
    print("done", message.value, flush=True)
with kvorum.sync.open_kv(sys.argv[1]) as kv:
    kv.queue("q").listen(handle, concurrency=1, prefetch=3, signals=(signal.SIGTERM,))
    print("drained", kv.queue("q").stats().messages, flush=True)
"""

ASYNC_WORKER = """
import asyncio, signal, sys
import kvorum
async def handle(message):
    print("begun", message.value, flush=True)
    await asyncio.sleep(1.0)
    print("done", message.value, flush=True)
async def main():
    async with kvorum.open_kv(sys.argv[1]) as kv:
        await kv.queue("q").listen(handle, concurrency=1, prefetch=3, signals=(signal.SIGTERM,))
        print("drained", (await kv.queue("q").stats()).messages, flush=True)
asyncio.run(main())
"""


@pytest.fixture
def kv(target: str) -> Iterator[kvorum.sync.Kv]:
    with kvorum.sync.open_kv(target) as opened:
        yield opened


def test_send_receive_settle(kv: kvorum.sync.Kv, name: str) -> None:
    queue = kv.queue(name)
    sent = queue.send("a", headers={"k": "v"})
    assert [one.duplicate for one in queue.send_batch(["b", Outgoing("c", group="g")])] == [False, False]
    values = []
    with queue.receive(prefetch=0) as receiver:
        for message in receiver:
            values.append(message.value)
            if message.value == "a":
                assert (message.id, dict(message.headers)) == (sent.id, {"k": "v"})
                message.atomic().set((name,), 1).ack().commit()
            elif message.value == "b":
                message.retry(delay=timedelta(hours=1), reason="later")
            else:
                message.ack()
                with pytest.raises(StaleLease):
                    message.ack()
                break
    assert values == ["a", "b", "c"] and kv.get((name,)).value == 1
    (info,) = queue.peek()
    assert (info.state, info.failures[0].reason) == ("scheduled", "later")
    assert queue.reschedule(info.id, delay=0) and queue.find(info.id) is not None
    batch = queue.receive_batch(max=1, wait=15_000)
    assert batch.values == ["b"]
    batch.ack_all()
    assert not queue.cancel(info.id) and queue.stats().messages == 0


def test_listening_stops_when_its_event_is_set(kv: kvorum.sync.Kv, name: str) -> None:
    queue, stop = kv.queue(name), threading.Event()
    queue.send_batch(list(range(10)))
    seen: list[Any] = []

    def handle(batch: kvorum.sync.Batch) -> None:
        seen.extend(batch.values)
        if len(seen) == 10:
            stop.set()

    queue.listen(handle, batch=4, batch_wait=50, stop=stop)
    assert sorted(seen) == list(range(10)) and queue.stats().messages == 0


def test_requests_topics_and_schedules(kv: kvorum.sync.Kv, name: str) -> None:
    stop = threading.Event()
    serving = threading.Thread(target=lambda: kv.queue(name).serve(lambda message: sum(message.value), stop=stop))
    serving.start()
    try:
        assert kv.request(name, [1, 2, 3], timeout=15_000) == 6
    finally:
        stop.set()
        serving.join(PATIENCE)
    docs = kv.topic(name)
    docs.define(retention=timedelta(hours=1))
    assert docs.subscribe(name + "a") == 0
    docs.send("new")
    assert kv.queue(name + "a").receive_batch(max=1, wait=15_000).values == ["new"]
    assert docs.subscriptions() == [name + "a"] and name in [topic.name for topic in kv.topics()]
    docs.remove()
    kv.schedule(name, "0 6 * * *", queue=name)
    assert name in [one.name for one in kv.schedules()]
    kv.unschedule(name)


def test_dead_letters_and_policies(kv: kvorum.sync.Kv, name: str) -> None:
    queue = kv.queue(name)
    queue.define(max_attempts=1)
    policy = queue.policy()
    assert policy is not None and policy.max_attempts == 1
    queue.send_batch([1, 2])
    queue.receive_batch(max=2, wait=15_000).reject_all(reason="no")
    assert [letter.value for letter in queue.dead] == [1, 2]
    assert queue.dead.requeue(where=lambda letter: letter.value == 2) == 1
    assert queue.dead.purge() == 1 and queue.purge() == 1
    queue.pause()
    assert [one.paused for one in kv.queues(name)] == [True]
    queue.resume()
    assert queue.remove() == 0


def test_signals_reach_the_main_thread_only(kv: kvorum.sync.Kv, name: str) -> None:
    problems: list[Exception] = []

    def listen() -> None:
        try:
            kv.queue(name).listen(print, signals=(signal.SIGTERM,))
        except InvalidArgument as error:
            problems.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join(PATIENCE)
    assert len(problems) == 1 and "main thread" in str(problems[0])


@pytest.mark.parametrize("worker", [WORKER, ASYNC_WORKER], ids=["sync", "async"])
def test_a_signal_drains_a_worker(tmp_path: Path, worker: str) -> None:
    """What runs is finished, what waits goes back without an attempt, and the process goes on."""
    url = str(tmp_path / "test.kv")
    with kvorum.sync.open_kv(url) as kv:
        kv.queue("q").send_batch([1, 2, 3])
    process = subprocess.Popen([sys.executable, "-c", worker, url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun 1\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        assert out.splitlines() == ["done 1", "drained 2"] and process.returncode == 0
    finally:
        process.kill()
        process.wait()
    with kvorum.sync.open_kv(url) as kv:
        assert [info.attempt for info in kv.queue("q").peek()] == [0, 0]
