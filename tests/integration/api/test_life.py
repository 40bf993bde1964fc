"""Opening and closing."""

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import kvorum
import kvorum.sync
from kvorum.errors import Closed, ConnectFailed, DatabaseLocked, InvalidArgument
from kvorum.process import THIS
from tests.integration.api.conftest import Open
from tests.pace import Pace

CALLS: list[Callable[[kvorum.Kv], Awaitable[object]]] = [
    lambda kv: kv.get(("a",)),
    lambda kv: kv.get_many([]),
    lambda kv: kv.list(prefix=()).page(),
    lambda kv: kv.set(("a",), 1),
    lambda kv: kv.delete(("a",)),
    lambda kv: kv.atomic().commit(),
    lambda kv: kv.enqueue(1),
    lambda kv: kv.listen_queue(print),
    lambda kv: kv.status(),
]


async def test_a_closed_client_refuses_every_call_and_can_be_closed_again(kv: kvorum.Kv) -> None:
    assert not kv.closed
    await kv.close()
    await kv.close()
    assert kv.closed
    for call in CALLS:
        with pytest.raises(Closed, match="this client is closed"):
            await call(kv)
    with pytest.raises(Closed):
        async for _ in kv.watch([("a",)]):
            pytest.fail("a watch of a closed client emitted something")
    assert kv.statistics() == {}


async def test_a_client_opened_before_closing_serves_until_then(open_client: Open, space: str) -> None:
    kv = await open_client()
    rows = kv.list(prefix=(space,))
    operation = kv.atomic().set((space,), 1)
    await kv.close()
    with pytest.raises(Closed):
        await rows.page()
    with pytest.raises(Closed):
        await operation.commit()


async def test_status_and_statistics(kv: kvorum.Kv) -> None:
    await kv.get(("a",))
    status = await kv.status()
    assert status.version == kvorum.__version__ and len(status.cluster_id) == 16
    assert kv.statistics() and all(isinstance(figure, (int, float)) for figure in kv.statistics().values())


async def test_an_embedded_database_keeps_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    async with kvorum.open_kv(folder) as kv:
        await kv.set(("a",), 1)
        with pytest.raises(DatabaseLocked):
            await kvorum.open_kv(folder)
    with kvorum.sync.open_kv(folder) as again:
        assert again.get(("a",)).value == 1


async def test_without_a_target_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVORUM_URL", raising=False)
    async with kvorum.open_kv() as kv:
        await kv.set(("a",), 1)
    assert (tmp_path / "kvorum.kv").is_dir()
    monkeypatch.setenv("KVORUM_URL", str(tmp_path / "other.kv"))
    async with kvorum.open_kv() as kv:
        assert not (await kv.get(("a",))).exists
    assert (tmp_path / "other.kv").is_dir()


async def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "CLEAN").write_text("a file that a new database would delete")
    for open_it in (lambda: kvorum.open_kv(tmp_path), lambda: kvorum.open_kv(tmp_path / ".." / tmp_path.name)):
        with pytest.raises(InvalidArgument, match=r"is no kvorum database, and holds other things \(CLEAN\)"):
            await open_it()
    assert names(tmp_path) == ["CLEAN"]
    # What a first start that was cut off leaves, and the root of a file system, may become a database.
    begun = tmp_path / "begun"
    (begun / "lost+found").mkdir(parents=True)
    for name in ("LOCK", "FORMAT.new"):
        (begun / name).touch()
    for _ in range(2):
        async with kvorum.open_kv(begun) as kv:
            await kv.set(("a",), 1)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_an_opening_is_for_one_client(tmp_path: Path) -> None:
    opening = kvorum.open_kv(":memory:")
    async with opening:
        with pytest.raises(RuntimeError, match="opened already"):
            await opening
    with pytest.raises(InvalidArgument, match="is a URL of KV Connect"):
        kvorum.open_kv("http://127.0.0.1:4512")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def own_sockets() -> set[str]:
    """The sockets of this process."""
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.add(str(descriptor.readlink()))
        except OSError:
            continue
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.parametrize("style", ["async", "sync"])
async def test_p22_a_dead_address_is_told_in_time_and_leaves_nothing(
    style: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """P22 · opening a dead URL resolves, calls hang, retries go on after close → connect to a closed port with timeout
    2 s; close → typed error ≤ 2 s; no thread, socket or log line afterwards."""
    import kvorum.cluster  # what loading gRPC leaves for good is not a leftover of a client

    def target() -> str:
        return f"kvorum://127.0.0.1:{closed_port()}"

    own_thread = ThreadPoolExecutor(1)  # of the test, for blocking calls

    async def fail() -> None:
        with pytest.raises(ConnectFailed):
            if style == "async":
                await kvorum.open_kv(target(), timeout=2_000)
            else:
                opening = partial(kvorum.sync.open_kv, target(), timeout=2_000)
                await asyncio.get_running_loop().run_in_executor(own_thread, opening)

    await fail()  # gRPC's own threads begin with the first channel, and stay
    caplog.set_level(logging.DEBUG)
    threads, sockets = set(threading.enumerate()), own_sockets()
    pace = Pace()
    await fail()
    assert pace.seconds() <= 2.5
    caplog.clear()
    capfd.readouterr()
    await asyncio.sleep(0.5)  # retries would come within this time
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= threads
    assert own_sockets() <= sockets
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    own_thread.shutdown()


@pytest.mark.parametrize("target", ["folder", "cluster"], indirect=True)
async def test_a_closed_client_leaves_nothing(target: str, space: str, caplog: pytest.LogCaptureFixture) -> None:
    """P22, for a client that was at work: no task, thread, socket or log line."""
    async with kvorum.open_kv(target):
        pass  # gRPC's own threads begin with the first channel, and stay
    tasks, threads, sockets = asyncio.all_tasks(), set(threading.enumerate()), own_sockets()
    caplog.set_level(logging.DEBUG)
    kv = await kvorum.open_kv(target)
    key = (space,)
    listening = asyncio.ensure_future(kv.listen_queue(print, queue=space))
    watch = kv.watch([key])
    await anext(watch)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.01)
    await kv.set(key, 1)
    await kv.close()
    await listening
    caplog.clear()
    await asyncio.sleep(0.2)
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) <= threads
    assert own_sockets() <= sockets
    assert not caplog.records


def test_a_client_does_not_survive_a_fork(tmp_path: Path) -> None:
    """Only the thread that forked lives on in the child, so a call there could wait for ever."""
    kv = kvorum.sync.open_kv(tmp_path / "app.kv")
    try:
        # The check alone, without forking a process that has threads.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(THIS, "pid", THIS.pid + 1)
            with pytest.raises(Closed, match="forked"):
                kv.get(("a",))
        assert not kv.get(("a",)).exists
    finally:
        kv.close()
