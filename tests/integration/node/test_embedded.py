"""The embedded backend on real folders: durability, ownership, watch, queue, expiry."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path

import pytest

import kvorum
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.embedded import EmbeddedBackend, open_embedded
from tests.integration.node.raw import enqueue_op, set_op, settle_op
from tests.pace import Pace

WRITER = """
import asyncio, sys
from kvorum_node.embedded import open_embedded
from tests.integration.node.raw import set_op
async def main():
    backend = await open_embedded(sys.argv[1])
    async def caller(caller):
        for number in range(10**9):
            await backend.write(set_op(b"\\x02%d-%d\\x00" % (caller, number)), timeout=10)
            sys.stdout.write(f"{caller}-{number}\\n")
            sys.stdout.flush()
    await asyncio.gather(*[caller(number) for number in range(8)])
asyncio.run(main())
"""

HOLDER = """
import asyncio, sys
from kvorum_node.embedded import open_embedded
async def main():
    backend = await open_embedded(sys.argv[1])
    async def deliver(delivery): pass
    got = asyncio.Queue()
    consumer = await backend.consume("q", credits=10, concurrency=1, deliver=got.put_nowait)
    first = await got.get()
    consumer.started(first.lease_id)
    print("held", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = await open_embedded(tmp_path / "app.kv")
    yield backend
    await backend.close()


def start(program: str, folder: Path) -> "subprocess.Popen[str]":
    root = Path(__file__).parents[3]
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root)


async def get(backend: EmbeddedBackend, *keys: bytes) -> Sequence[pb.KvEntry]:
    return (await backend.read(pb.Read(keys=keys), timeout=10)).entries


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    child = start(WRITER, folder)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline().strip() for _ in range(500)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [line for line in child.stdout.read().splitlines(keepends=False) if line.count("-") == 1]
    child.wait()
    child.stdout.close()
    backend = await open_embedded(folder)
    # The last line may have been cut in the middle of its number.
    for name in acknowledged[:-1]:
        (entry,) = await get(backend, b"\x02%b\x00" % name.encode())
        assert entry.versionstamp, name
    await backend.close()


async def test_a_second_owner_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    child = start(WRITER, folder)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(errors.DatabaseLocked, match=f"{child.pid}"):
        await open_embedded(folder)
    child.kill()
    child.communicate()
    backend = await open_embedded(folder)
    with pytest.raises(errors.DatabaseLocked, match="this process"):
        await open_embedded(folder)
    await backend.close()
    await (await open_embedded(folder)).close()


async def test_messages_of_a_killed_process_are_delivered_again_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    backend = await open_embedded(folder)
    for number in range(3):
        await backend.write(enqueue_op(b"%d" % number), timeout=10)
    await backend.close()
    child = start(HOLDER, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    child.kill()
    child.communicate()
    backend = await open_embedded(folder)
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    await backend.consume("q", credits=10, concurrency=1, deliver=got.put_nowait)
    found = [await asyncio.wait_for(got.get(), 60) for _ in range(3)]
    assert sorted((delivery.payload, delivery.attempt) for delivery in found) == [(b"0", 2), (b"1", 1), (b"2", 1)]
    await backend.close()


async def test_a_program_that_reads_until_something_changes_lets_it_change(backend: EmbeddedBackend) -> None:
    read = pb.Read(keys=[b"\x02flag\x00"])
    write = pb.AtomicWrite(mutations=[pb.Mutation(key=b"\x02flag\x00", type=pb.MUTATION_TYPE_SET, encoding=3)])
    async with asyncio.timeout(60):
        writing = asyncio.create_task(backend.write(write.SerializeToString(), timeout=5))
        while not (await backend.read(read, timeout=5)).entries[0].versionstamp:
            pass
        await writing


async def test_concurrent_writes_share_transactions(backend: EmbeddedBackend) -> None:
    before = backend.statistics()["proposer_entries"]
    outcomes = await asyncio.gather(
        *[backend.write(set_op(b"\x02%d\x00" % number), timeout=10) for number in range(1_000)]
    )
    assert {outcome.result.outcome for outcome in outcomes} == {pb.OUTCOME_DONE}
    assert len({outcome.versionstamp for outcome in outcomes}) == 1_000
    assert backend.statistics()["proposer_entries"] - before <= 4


async def test_failed_checks_are_told_by_index(backend: EmbeddedBackend) -> None:
    await backend.write(set_op(b"\x02a\x00"), timeout=10)
    op = pb.AtomicWrite.FromString(set_op(b"\x02b\x00"))
    op.checks.add(key=b"\x02b\x00")
    op.checks.add(key=b"\x02a\x00")
    op.checks.add(key=b"\x02a\x00", versionstamp=bytes(10))
    outcome = await backend.write(op.SerializeToString(), timeout=10)
    assert (outcome.result.outcome, list(outcome.result.failed_checks), outcome.versionstamp) == (
        pb.OUTCOME_CHECK_FAILED,
        [1, 2],
        b"",
    )
    assert not (await get(backend, b"\x02b\x00"))[0].versionstamp


async def test_bad_input_is_an_error_by_name(backend: EmbeddedBackend) -> None:
    for op in (b"\xff\xff", set_op(b""), set_op(bytes(3_000)), set_op(b"\x02a\x00", bytes(70_000))):
        with pytest.raises(errors.InvalidArgument):
            await backend.write(op, timeout=10)
    with pytest.raises(errors.InvalidArgument, match="MAX_READ_RANGES"):
        await backend.read(pb.Read(keys=[b"k"] * 11), timeout=10)
    with pytest.raises(errors.LimitExceeded):
        await backend.consume("q", credits=2_000, concurrency=1, deliver=lambda delivery: None)


async def test_a_large_list_is_whole(backend: EmbeddedBackend) -> None:
    await asyncio.gather(
        *[backend.write(set_op(b"\x02%04d\x00" % number, bytes(20_000)), timeout=10) for number in range(300)]
    )
    read = pb.Read(
        ranges=[pb.ReadRange(end=b"\xff", limit=900), pb.ReadRange(end=b"\xff", limit=2, reverse=True)],
        keys=[b"\x020007\x00"],
    )
    answer = await backend.read(read, timeout=10)
    assert [entry.key for entry in answer.ranges[0].entries] == [b"\x02%04d\x00" % number for number in range(300)]
    assert len(answer.ranges[1].entries) == 2
    assert answer.entries[0].versionstamp
    assert not answer.more


async def test_watch_and_expiry(backend: EmbeddedBackend) -> None:
    events = backend.watch([b"\x02a\x00", b"\x02b\x00"])
    assert [entry.versionstamp for entry in await anext(events)] == [b"", b""]
    begun, pace = time.monotonic(), Pace()
    await backend.write(set_op(b"\x02b\x00", expire_in_ms=200), timeout=10)
    entries = await anext(events)
    assert [bool(entry.versionstamp) for entry in entries] == [False, True]
    assert not (await anext(events))[1].versionstamp
    assert pace.seconds() < 2
    assert time.monotonic() - begun >= 0.199
    await events.aclose()  # type: ignore[attr-defined]
    assert backend.statistics()["watches"] == 0


async def test_an_unread_watch_gets_the_newest(backend: EmbeddedBackend) -> None:
    events = backend.watch([b"\x02a\x00"])
    await anext(events)
    for number in range(20):
        await backend.write(set_op(b"\x02a\x00", b"%d" % number), timeout=10)
    assert [entry.value for entry in await anext(events)] == [b"19"]
    await events.aclose()  # type: ignore[attr-defined]


async def test_p75_a_delay_beyond_the_lease_in_real_time(tmp_path: Path) -> None:
    """P75: delay longer than the lease, 3 consumers → delivered once, when due."""
    backend = await open_embedded(tmp_path / "app.kv", lease=0.1)
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    for _ in range(3):
        await backend.consume("q", credits=1, concurrency=1, deliver=got.put_nowait)
    begun, pace = time.monotonic(), Pace()
    await backend.write(enqueue_op(b"late", delay_ms=600), timeout=10)
    delivery = await asyncio.wait_for(got.get(), 60)
    assert pace.seconds() < 2
    assert time.monotonic() - begun >= 0.599
    await asyncio.sleep(0.5)  # five leases: time in which a second delivery would come
    assert got.empty()
    outcome = await backend.write(settle_op(delivery), timeout=10)
    assert outcome.result.outcome == pb.OUTCOME_DONE
    await backend.close()


async def test_closing_gives_unstarted_messages_back(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    backend = await open_embedded(folder)
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    consumer = await backend.consume("q", credits=10, concurrency=1, deliver=got.put_nowait)
    for number in range(2):
        await backend.write(enqueue_op(b"%d" % number), timeout=10)
    first = await got.get()
    consumer.started(first.lease_id)
    await backend.close()
    backend = await open_embedded(folder)
    again: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    await backend.consume("q", credits=10, concurrency=1, deliver=again.put_nowait)
    found = [await asyncio.wait_for(again.get(), 60) for _ in range(2)]
    assert sorted((delivery.payload, delivery.attempt) for delivery in found) == [(b"0", 2), (b"1", 1)]
    await backend.close()


async def test_a_stopped_consumer_gets_nothing_more(backend: EmbeddedBackend) -> None:
    got: list[pb.Delivery] = []
    consumer = await backend.consume("q", credits=10, concurrency=1, deliver=got.append)
    await consumer.close()
    await backend.write(enqueue_op(b"x"), timeout=10)
    assert got == []
    later: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    await backend.consume("q", credits=10, concurrency=1, deliver=later.put_nowait)
    assert (await asyncio.wait_for(later.get(), 60)).attempt == 1


async def test_close_ends_everything(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    backend = await open_embedded(tmp_path / "app.kv")
    events = backend.watch([b"\x02a\x00"])
    await anext(events)
    waiting = [asyncio.ensure_future(backend.write(set_op(b"\x02%d\x00" % number), timeout=10)) for number in range(50)]
    await asyncio.sleep(0)
    await backend.close()
    await backend.close()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    done = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert all(outcome.outcome == "not applied" for outcome in outcomes if isinstance(outcome, errors.KvorumError))
    for call in (
        backend.read(pb.Read(keys=[b"k"]), timeout=1),
        backend.write(b"", timeout=1),
        backend.status(timeout=1),
    ):
        with pytest.raises(errors.Closed):
            await call
    assert set(threading.enumerate()) == threads
    assert asyncio.all_tasks() == tasks
    backend = await open_embedded(tmp_path / "app.kv")
    for number in range(50):
        (entry,) = await get(backend, b"\x02%d\x00" % number)
        assert bool(entry.versionstamp) == (number in done)
    await backend.close()


async def test_a_private_database_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = await open_embedded(None)
    await backend.write(set_op(b"\x02a\x00"), timeout=10)
    assert len(names(tmp_path)) == 1
    await backend.close()
    assert names(tmp_path) == []


async def test_a_fault_of_the_disk_is_told_to_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = await open_embedded(tmp_path / "app.kv")
    await backend.write(set_op(b"\x02before\x00"), timeout=10)
    events = backend.watch([b"\x02a\x00"])
    await anext(events)

    def broken(*_: object) -> Generator[None, None, None]:
        yield
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(backend._store, "apply", broken)
    with pytest.raises(errors.OutcomeUnknown, match="Input/output"):
        await backend.write(set_op(b"\x02a\x00"), timeout=10)
    with pytest.raises(errors.DatabaseCorrupt, match="Input/output"):
        await backend.write(set_op(b"\x02b\x00"), timeout=10)
    with pytest.raises(errors.DatabaseCorrupt, match="Input/output"):
        await asyncio.wait_for(anext(events), 60)
    await backend.close()
    backend = await open_embedded(tmp_path / "app.kv")
    before, after = await get(backend, b"\x02before\x00", b"\x02a\x00")
    assert (bool(before.versionstamp), bool(after.versionstamp)) == (True, False)
    await backend.close()


async def test_places_that_are_no_database_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(errors.InvalidArgument, match="is a file"):
        await open_embedded(tmp_path / "file")
    for name in ("raft", "state"):
        (tmp_path / "node" / name).mkdir(parents=True)
    with pytest.raises(errors.InvalidArgument, match="node"):
        await open_embedded(tmp_path / "node")


async def test_status(backend: EmbeddedBackend) -> None:
    status = await backend.status(timeout=1)
    assert (status.role, len(status.cluster_id), len(status.state_hash)) == ("local", 16, 16)


async def test_a_timeout_is_an_unknown_outcome(backend: EmbeddedBackend) -> None:
    with pytest.raises(errors.OutcomeUnknown):
        await backend.write(set_op(b"\x02a\x00"), timeout=0)


async def damaged(folder: Path, repeated: int, value: bytes, at: int, put: bytes) -> None:
    """Make a database of 100 rows, and put these bytes into each of its pages that has the value."""
    async with kvorum.open_kv(folder) as kv:
        for number in range(100):
            await kv.set(("d", number), f"value {number} " * repeated)
    data = bytearray((folder / "data.mdb").read_bytes())
    for page in range(0, len(data), 4_096):
        if data.find(value, page, page + 4_096) >= 0:
            data[page + at : page + at + len(put)] = put
    (folder / "data.mdb").write_bytes(data)


async def test_damage_in_the_data_file_is_told_as_such_and_holds_nobody_up(tmp_path: Path) -> None:
    await damaged(tmp_path, 100, b"value 50 value 50", 10, bytes(2))  # what kind of page it is
    async with kvorum.open_kv(tmp_path) as kv:
        for _ in range(2):
            with pytest.raises(errors.DatabaseCorrupt, match="the data file is damaged"):
                await kv.get(("d", 50), timeout=2_000)
            with pytest.raises(errors.DatabaseCorrupt, match="the data file is damaged"):
                await kv.list(start=("d", 50), end=("d", 51), timeout=2_000).page()
        together = await asyncio.gather(*(kv.get(("d", number)) for number in (50, 10)), return_exceptions=True)
        assert isinstance(together[0], errors.DatabaseCorrupt)
        assert isinstance(together[1], kvorum.Entry) and together[1].value == "value 10 " * 100
        assert len(await kv.list(start=("d", 10), end=("d", 20)).page()) == 10


async def test_damage_in_a_later_slice_of_a_list_is_told_as_such(tmp_path: Path) -> None:
    await damaged(tmp_path, 1_000, b"value 90 value 90", 2_048, b"!")
    everything = pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1_000)])
    backend = await open_embedded(tmp_path)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(errors.DatabaseCorrupt, match="damaged"):
                await backend.read(everything, timeout=2_000)
    finally:
        await backend.close()


async def test_a_data_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    async with kvorum.open_kv(tmp_path) as kv:
        for number in range(20):
            await kv.set(("d", number), b"x" * 60_000)
    os.truncate(tmp_path / "data.mdb", 8_192)
    for _ in range(2):
        with pytest.raises(errors.DatabaseCorrupt, match=r"it has 8,192 bytes, and had [\d,]+ when it was last closed"):
            await kvorum.open_kv(tmp_path)


@pytest.mark.parametrize("period", [0.2, 3_600])
async def test_a_full_map_refuses_growth_and_takes_deletes_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, period: float
) -> None:
    """Whatever the disk's speed: a fast one fills a small map between two periodic looks."""
    monkeypatch.setattr("kvorum_node.space.PERIOD", period)
    backend = await open_embedded(tmp_path / "small.kv", map_size=64 << 20)
    value = bytes(60_000)
    written = 0
    try:
        with pytest.raises(errors.NoSpace) as caught:
            for number in range(10_000):
                await backend.write(set_op(b"\x02%d\x00" % number, value), timeout=10)
                written = number + 1
        assert caught.value.outcome == "not applied"
        assert "delete keys" in str(caught.value)
        assert written > 100
        deletes = [
            pb.AtomicWrite(mutations=[pb.Mutation(key=b"\x02%d\x00" % number, type=pb.MUTATION_TYPE_DELETE)])
            for number in range(written)
        ]
        await asyncio.gather(*(backend.write(op.SerializeToString(), timeout=10) for op in deletes))
        async with asyncio.timeout(60):
            while True:
                try:
                    await backend.write(set_op(b"\x02again\x00", value), timeout=10)
                    break
                except errors.NoSpace:
                    await asyncio.sleep(0.05)
        assert (await get(backend, b"\x02again\x00"))[0].value == value
        assert (await get(backend, b"\x020\x00"))[0].versionstamp == b""
    finally:
        await backend.close()


async def test_a_burst_that_outruns_the_check_is_refused_and_the_database_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvorum_node.space.PERIOD", 3_600)
    backend = await open_embedded(tmp_path / "small.kv", map_size=16 << 20)
    try:
        ops = [set_op(b"\x02%d\x00" % number, bytes(60_000)) for number in range(600)]
        results = await asyncio.gather(*(backend.write(op, timeout=30) for op in ops), return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert refused, "the map never got full"
        assert {type(error) for error in refused} == {errors.NoSpace}
        entries = await get(backend, *[b"\x02%d\x00" % number for number in range(10)])
        assert [bool(entry.versionstamp) for entry in entries] == [
            not isinstance(result, BaseException) for result in results[:10]
        ]
        delete = pb.AtomicWrite(mutations=[pb.Mutation(key=b"\x020\x00", type=pb.MUTATION_TYPE_DELETE)])
        await backend.write(delete.SerializeToString(), timeout=10)
    finally:
        await backend.close()
    again = await open_embedded(tmp_path / "small.kv", map_size=16 << 20)
    await again.close()
