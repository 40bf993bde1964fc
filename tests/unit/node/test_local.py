"""The consensus of one, the list thread and the barrier: the parts with threads or tasks, on a real loop."""

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node import read_jobs
from kvorum_node.barrier import Barrier
from kvorum_node.lists import MAX_OPEN, ListReader
from kvorum_node.local import LocalConsensus
from kvorum_node.read_jobs import SLICE_ROWS, ListJob
from kvorum_node.store import Store
from kvorum_raft.errors import NoSpace, NotLeader, Overloaded, RaftError, UnknownOutcome
from kvorum_raft.seams import Applied
from tests.unit.node.harness import filled


class Machine:
    """Applies anything; can be made to wait or fail."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[str] = set()
        self.times: list[int] = []
        self.errors: dict[bytes, Exception] = {}

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        self.gate.wait(60)
        self.threads.add(threading.current_thread().name)
        if payload in self.errors:
            raise self.errors[payload]
        if payload == b"bad disk":
            raise OSError(5, "Input/output error")
        yield
        self.applied_index = index
        self.times.append(time_ms)
        return payload.upper()


async def test_entries_are_applied_in_order_by_one_thread_that_is_not_the_loops() -> None:
    machine = Machine()
    consensus = LocalConsensus(machine)
    seen: list[Applied] = []
    consensus.on_applied(seen.append)
    await consensus.start()
    results = await asyncio.gather(*[consensus.propose(b"entry %d" % number) for number in range(20)])
    assert [(applied.index, applied.result) for applied in results] == [
        (number + 1, b"ENTRY %d" % number) for number in range(20)
    ]
    assert seen == results
    assert machine.threads == {"kvorum-writer"}
    assert await consensus.read_index() == 20
    await consensus.stop()
    with pytest.raises(NotLeader):
        consensus.propose(b"late")
    assert "kvorum-writer" not in {thread.name for thread in threading.enumerate()}


async def test_time_never_goes_back() -> None:
    clock = iter([1_000, 5_000, 3_000, 2_000, 6_000])
    machine = Machine()
    consensus = LocalConsensus(machine, last_time_ms=4_000, clock_ms=lambda: next(clock))
    await consensus.start()
    for _ in range(5):
        await consensus.propose(b"x")
    assert machine.times == [4_000, 5_000, 5_000, 5_000, 6_000]
    await consensus.stop()


async def test_too_much_waiting_is_refused() -> None:
    machine = Machine()
    consensus = LocalConsensus(machine, max_waiting=2)
    await consensus.start()
    machine.gate.clear()
    waiting = [consensus.propose(b"a"), consensus.propose(b"b")]
    with pytest.raises(Overloaded):
        consensus.propose(b"c")
    machine.gate.set()
    await asyncio.gather(*waiting)
    await consensus.stop()


async def test_who_waits_is_answered_whatever_others_do_that_hear_of_the_entry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consensus = LocalConsensus(Machine())
    seen: list[Applied] = []

    def fails(applied: Applied) -> None:
        raise ValueError("a listener's fault")

    consensus.on_applied(fails)
    consensus.on_applied(seen.append)
    await consensus.start()
    async with asyncio.timeout(10):
        applied = await consensus.propose(b"entry")
    assert applied.result == b"ENTRY"
    assert seen == [applied]
    assert "a listener failed" in caplog.text
    await consensus.stop()


async def test_a_fault_ends_it_and_is_told_truthfully() -> None:
    machine = Machine()
    consensus = LocalConsensus(machine)
    news: list[bool] = []
    consensus.on_leadership(news.append)
    await consensus.start()
    machine.gate.clear()
    first, faulty, after = consensus.propose(b"fine"), consensus.propose(b"bad disk"), consensus.propose(b"never")
    machine.gate.set()
    assert (await first).result == b"FINE"
    with pytest.raises(UnknownOutcome):
        await faulty
    with pytest.raises(NotLeader):
        await after
    assert news == [True, False]
    assert isinstance(consensus.fault, OSError)
    assert not consensus.is_leader
    with pytest.raises(NotLeader, match="Input/output"):
        consensus.propose(b"later")
    await consensus.stop()


@pytest.mark.parametrize("error", [lmdb.MapFullError("no room"), lmdb.DiskError("no space left on device")])
async def test_no_room_is_definite_and_no_fault(error: Exception) -> None:
    machine = Machine()
    machine.errors[b"large"] = error
    consensus = LocalConsensus(machine)
    news: list[bool] = []
    consensus.on_leadership(news.append)
    await consensus.start()
    full, delete = consensus.propose(b"large"), consensus.propose(b"delete")
    with pytest.raises(NoSpace):
        await full
    assert ((await delete).index, (await delete).result) == (1, b"DELETE")
    assert (consensus.fault, consensus.is_leader, news) == (None, True, [True])
    await consensus.stop()


@pytest.mark.parametrize("full", [True, False])
async def test_a_write_that_the_disk_took_a_part_of_is_no_room_only_if_the_disk_is_full(full: bool) -> None:
    machine = Machine()
    machine.errors[b"large"] = lmdb.Error("mdb_txn_commit: Input/output error")
    consensus = LocalConsensus(machine, is_full=lambda: full)
    await consensus.start()
    with pytest.raises(NoSpace if full else UnknownOutcome):
        await consensus.propose(b"large")
    assert consensus.is_leader is full
    await consensus.stop()


async def test_no_room_in_the_last_step_of_a_commit_is_a_fault_whose_outcome_is_unknown() -> None:
    """LMDB takes the environment out of service then, which the next look at the state shows."""
    machine = Machine()
    machine.errors[b"large"] = lmdb.DiskError("no space left on device")

    def check() -> None:
        raise lmdb.PanicError("environment had fatal error")

    consensus = LocalConsensus(machine, check=check)
    await consensus.start()
    with pytest.raises(UnknownOutcome):
        await consensus.propose(b"large")
    assert not consensus.is_leader
    await consensus.stop()


# ---- lists


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store, None, None]:
    store = filled(tmp_path / "state", (bytes(100 if number < 900 else 60_000) for number in range(1_000)))
    yield store
    store.close()


class Taker:
    def __init__(self, *, patient: bool = False) -> None:
        self.parts: list[pb.ReadResult] = []
        self.patient = patient
        self.done = asyncio.Event()
        self.some = asyncio.Event()

    def __call__(self, job: ListJob, part: pb.ReadResult) -> None:
        self.parts.append(part)
        self.some.set()
        if not part.more:
            self.done.set()
        elif not self.patient:
            job.resume()


async def test_a_list_comes_in_bounded_slices_of_one_snapshot(store: Store) -> None:
    reader = ListReader(store)
    reader.start()
    taker = Taker()
    ranges = [pb.ReadRange(end=b"\xff", limit=950), pb.ReadRange(end=b"\xff", limit=3, reverse=True)]
    reader.submit(pb.Read(id=4, ranges=ranges, keys=[b"\x020001\x00"]), taker)
    await taker.done.wait()
    first = [entry.key for part in taker.parts for entry in part.ranges[0].entries]
    assert first == [b"\x02%04d\x00" % number for number in range(950)]
    assert [entry.key for part in taker.parts for entry in part.ranges[1].entries] == [
        b"\x02%04d\x00" % number for number in (999, 998, 997)
    ]
    assert max(sum(len(selected.entries) for selected in part.ranges) for part in taker.parts) <= SLICE_ROWS
    assert max(part.ByteSize() for part in taker.parts) < 256 * 1024 + 70_000
    last = taker.parts[-1]
    assert (last.status, last.more, len(last.entries)) == (pb.READ_STATUS_OK, False, 1)
    assert last.read_versionstamp[:8] == (1).to_bytes(8, "big")
    reader.stop()
    assert store.statistics()["readers"] <= 3


async def test_a_slice_that_is_kept_is_gone_on_with(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_jobs, "SLICE_COUNT", 300)
    reader = ListReader(store)
    reader.start()
    ranges = [
        pb.ReadRange(end=b"\xff", limit=950),
        pb.ReadRange(end=b"\xff", count_only=True),
        pb.ReadRange(end=b"\xff", limit=3, reverse=True),
    ]
    read = pb.Read(id=4, ranges=ranges, keys=[b"\x020001\x00"])
    parts, sizes = list[pb.ReadResult](), list[int]()
    done = asyncio.Event()

    def keep(job: ListJob, part: pb.ReadResult) -> None:
        assert part.ByteSize() < job.size + 1_000
        parts.append(part)
        sizes.append(job.size)
        if part.more:
            job.keep(part if len(parts) != 3 else None)  # the third one was sent
            job.resume()
        else:
            done.set()

    reader.submit(read, keep)
    await done.wait()
    sent, last = parts[2], parts[-1]
    assert {id(part) for part in parts} == {id(sent), id(last)}
    assert sizes[:3] == sorted(sizes[:3]) and sizes[3:] == sorted(sizes[3:])
    assert sizes[3] < 256 * 1024 + 70_000
    keys = [[entry.key for part in (sent, last) for entry in part.ranges[at].entries] for at in (0, 2)]
    assert keys[0] == [b"\x02%04d\x00" % number for number in range(950)]
    assert keys[1] == [b"\x02%04d\x00" % number for number in (999, 998, 997)]
    assert sent.ranges[1].count + last.ranges[1].count == 1_000
    assert (sent.more, last.more, len(last.entries), last.status) == (True, False, 1, pb.READ_STATUS_OK)
    reader.stop()


async def test_a_list_that_is_held_too_long_is_given_up(store: Store) -> None:
    reader = ListReader(store, max_age=0.05)
    reader.start()
    taker = Taker(patient=True)
    reader.submit(pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1_000)]), taker)
    await asyncio.wait_for(taker.done.wait(), 60)
    assert [part.status for part in taker.parts] == [pb.READ_STATUS_OK, pb.READ_STATUS_TOO_OLD]
    assert reader.statistics()["lists_open"] == 0
    reader.stop()


async def test_counting_comes_in_slices_and_lets_others_go_between(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_jobs, "SLICE_COUNT", 300)
    reader = ListReader(store)
    reader.start()
    taker, other = Taker(), Taker()
    ranges = [
        pb.ReadRange(end=b"\xff", count_only=True),
        pb.ReadRange(start=b"\x020990", end=b"\xff", limit=3, keys_only=True),
        pb.ReadRange(end=b"\x020100", count_only=True, reverse=True),
    ]
    reader.submit(pb.Read(id=4, ranges=ranges, keys=[b"\x020001\x00"]), taker)
    reader.submit(pb.Read(id=5, ranges=[pb.ReadRange(end=b"\xff", limit=1)]), other)
    await taker.done.wait()
    counts = [[part.ranges[at].count for part in taker.parts] for at in (0, 2)]
    assert [sum(count) for count in counts] == [1_000, 100]
    assert max(counts[0]) == 300 and len(taker.parts) >= 4
    bare = [entry for part in taker.parts for entry in part.ranges[1].entries]
    assert [(entry.key, entry.value, entry.encoding, len(entry.versionstamp)) for entry in bare] == [
        (b"\x02%04d\x00" % number, b"", 0, 10) for number in (990, 991, 992)
    ]
    assert len(other.parts) == 1 and reader.statistics()["list_slices"] == len(taker.parts) + 1
    reader.stop()


async def test_counting_can_be_cancelled_and_is_given_up_when_it_takes_too_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_jobs, "SLICE_COUNT", 256)
    reader = ListReader(store, max_age=0.05)
    reader.start()
    cancelled, slow = Taker(patient=True), Taker(patient=True)
    whole = pb.Read(ranges=[pb.ReadRange(end=b"\xff", count_only=True)])
    job = reader.submit(whole, cancelled)
    await cancelled.some.wait()
    assert job is not None
    job.cancel()
    reader.submit(whole, slow)
    await asyncio.wait_for(slow.done.wait(), 60)
    assert [part.status for part in slow.parts] == [pb.READ_STATUS_OK, pb.READ_STATUS_TOO_OLD]
    assert [part.ranges[0].count for part in cancelled.parts] == [256]
    assert reader.statistics()["lists_open"] == 0
    reader.stop()
    assert store.statistics()["readers"] <= 3


async def test_lists_beyond_the_bound_wait_for_their_turn(store: Store) -> None:
    reader = ListReader(store)
    reader.start()
    patient = [Taker(patient=True) for _ in range(MAX_OPEN)]
    whole = pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=500)])
    jobs = [reader.submit(whole, taker, owner=number) for number, taker in enumerate(patient)]
    late = Taker()
    reader.submit(pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1)]), late, owner="late")
    for taker in patient:
        await taker.some.wait()
    assert (reader.statistics()["lists_open"], late.parts) == (MAX_OPEN, [])
    assert jobs[0] is not None
    jobs[0].cancel()
    await asyncio.wait_for(late.done.wait(), 60)
    reader.stop()
    assert reader.statistics()["lists_open"] == 0


# ---- the barrier


class SlowIndex:
    def __init__(self) -> None:
        self.rounds = 0
        self.go = asyncio.Event()
        self.error: RaftError | None = None

    async def read_index(self) -> int:
        self.rounds += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return 1


async def test_one_round_serves_those_who_came_before_it_and_the_next_one_the_others() -> None:
    consensus = SlowIndex()
    barrier = Barrier(consensus, asyncio.get_running_loop(), patience=5)  # type: ignore[arg-type]
    served: list[tuple[int, RaftError | None]] = []
    for number in range(100):
        barrier.wait(lambda error, number=number: served.append((number, error)))  # type: ignore[misc]
    await asyncio.sleep(0)
    for number in range(100, 200):
        barrier.wait(lambda error, number=number: served.append((number, error)))  # type: ignore[misc]
    assert (consensus.rounds, served) == (1, [])
    consensus.go.set()
    last: asyncio.Future[RaftError | None] = asyncio.get_running_loop().create_future()
    barrier.wait(last.set_result)
    await asyncio.wait_for(last, 60)
    assert served == [(number, None) for number in range(200)]
    assert consensus.rounds == 2


async def test_a_leader_that_cannot_confirm_itself_is_an_error_in_time() -> None:
    consensus = SlowIndex()
    barrier = Barrier(consensus, asyncio.get_running_loop(), patience=0.02)  # type: ignore[arg-type]
    future: asyncio.Future[RaftError | None] = asyncio.get_running_loop().create_future()
    barrier.wait(future.set_result)
    assert isinstance(await asyncio.wait_for(future, 10), NotLeader)
    assert barrier.fresh_at == float("-inf")


async def test_stopping_answers_everybody() -> None:
    consensus = SlowIndex()
    barrier = Barrier(consensus, asyncio.get_running_loop(), patience=5)  # type: ignore[arg-type]
    errors: list[RaftError | None] = []
    barrier.wait(errors.append)
    await asyncio.sleep(0)
    barrier.wait(errors.append)
    await barrier.stop()
    assert [type(error) for error in errors] == [NotLeader, NotLeader]
