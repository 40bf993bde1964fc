"""Whose lists have the places of the reader, and for how long: a client that does not read keeps nobody out."""

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node import lists
from kvorum_node.lists import ListReader
from kvorum_node.read_jobs import ListJob
from kvorum_node.store import Store
from tests.unit.node.harness import filled

LONG = pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=900)])
SHORT = pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1)])


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store, None, None]:
    store = filled(tmp_path / "state", [b"value"] * 900)
    yield store
    store.close()


class Bench:
    """Lists of several owners, and the order in which each had something for the first time."""

    def __init__(self, store: Store) -> None:
        self.reader = ListReader(store)
        self.reader.start()
        self.order: list[str] = []
        self.parts: dict[str, list[pb.ReadResult]] = {}
        self.jobs: dict[str, ListJob] = {}
        self._news = asyncio.Event()

    def ask(
        self, name: str, owner: str, *, idle: bool = False, may_begin: Callable[[ListJob], bool] | None = None
    ) -> None:
        """A list that takes its rows, or one whose taker stays away after the first of them."""
        parts = self.parts[name] = []

        def take(job: ListJob, part: pb.ReadResult) -> None:
            if not parts:
                self.order.append(name)
            parts.append(part)
            self._news.set()
            if part.more and not idle:
                job.resume()

        job = self.reader.submit(LONG if idle else SHORT, take, owner=owner, may_begin=may_begin)
        assert job is not None
        self.jobs[name] = job

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def statuses(self, name: str) -> list[int]:
        return [part.status for part in self.parts[name]]


@pytest.fixture
async def bench(store: Store, monkeypatch: pytest.MonkeyPatch) -> "Generator[Bench, None, None]":
    monkeypatch.setattr(lists, "IDLE_PATIENCE", 1_000.0)
    monkeypatch.setattr(lists, "LOOK", 0.01)
    made = Bench(store)
    yield made
    made.reader.stop()


async def test_one_owner_has_a_part_of_the_places(bench: Bench) -> None:
    for number in range(lists.MAX_PLACES + 5):
        bench.ask(f"a{number}", "a", idle=True)
    bench.ask("b", "b")
    await bench.until(lambda: bench.statuses("b") == [pb.READ_STATUS_OK])
    figures = bench.reader.statistics()
    assert (figures["lists_open"], figures["lists_waiting"]) == (lists.MAX_PLACES, 5)


async def test_owners_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_OPEN", 1)
    bench.ask("first", "a", idle=True)
    for number in range(5):
        bench.ask(f"a{number}", "a")
    bench.ask("b", "b")
    bench.ask("c", "c")
    await bench.until(lambda: bool(bench.parts["first"]))
    bench.jobs["first"].cancel()
    await bench.until(lambda: len(bench.order) == 8)
    assert bench.order == ["first", "a0", "b", "c", "a1", "a2", "a3", "a4"]


async def test_an_idle_list_gives_way_while_others_wait_and_only_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_OPEN", 2)
    bench.ask("oldest", "a", idle=True)
    await bench.until(lambda: bool(bench.parts["oldest"]))
    bench.ask("old", "a", idle=True)
    await bench.until(lambda: bool(bench.parts["old"]))
    monkeypatch.setattr(lists, "IDLE_PATIENCE", 0.0)
    bench.reader._look_for_old()
    assert bench.reader.statistics()["lists_open"] == 2, "nobody waits for their places"
    bench.ask("b", "b")
    await bench.until(lambda: bench.statuses("b") == [pb.READ_STATUS_OK])
    assert bench.statuses("oldest") == [pb.READ_STATUS_OK, pb.READ_STATUS_TOO_OLD]
    assert "others wait" in bench.parts["oldest"][1].message
    assert bench.statuses("old") == [pb.READ_STATUS_OK], "one place was asked for"


async def test_an_idle_list_does_not_give_way_to_others_of_its_owner(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is slow, and would have to begin again and again."""
    monkeypatch.setattr(lists, "MAX_OPEN", 2)
    monkeypatch.setattr(lists, "IDLE_PATIENCE", 0.0)
    for name in ("first", "second"):
        bench.ask(name, "a", idle=True)
        await bench.until(lambda name=name: bool(bench.parts[name]))  # type: ignore[misc]
    bench.ask("third", "a")
    bench.reader._look_for_old()
    assert not any(job.given_up for job in bench.jobs.values())
    bench.ask("other", "b")
    await bench.until(lambda: bench.statuses("other") == [pb.READ_STATUS_OK])
    assert bench.statuses("second") == [pb.READ_STATUS_OK]


async def test_who_has_most_in_a_full_line_makes_room_for_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_OPEN", 1)
    monkeypatch.setattr(lists, "MAX_WAITING", 3)
    bench.ask("first", "a", idle=True)
    for number in range(3):
        bench.ask(f"a{number}", "a")
    assert bench.reader.submit(SHORT, lambda job, part: None, owner="a") is None, "its own line is the longest"
    bench.ask("b", "b")
    assert (bench.statuses("a2"), bench.statuses("a1")) == ([pb.READ_STATUS_OVERLOADED], [])
    assert bench.reader.meter.codes()["overloaded"] == 1
    bench.ask("c", "c")
    assert bench.statuses("a1") == [pb.READ_STATUS_OVERLOADED]
    bench.jobs["first"].cancel()
    await bench.until(lambda: all(bench.parts[name] for name in ("a0", "b", "c")))
    assert {bench.parts[name][0].status for name in ("a0", "b", "c")} == {pb.READ_STATUS_OK}


async def test_a_list_that_may_not_begin_leaves_its_place_to_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_OPEN", 1)
    kept: list[ListJob] = []

    def may_begin(job: ListJob) -> bool:
        if job in kept:
            return True
        kept.append(job)
        return False

    bench.ask("first", "a", idle=True)
    for name in ("kept", "cancelled"):
        bench.ask(name, "b", may_begin=may_begin)
    bench.ask("c", "c")
    await bench.until(lambda: bool(bench.parts["first"]))
    bench.jobs["first"].cancel()
    await bench.until(lambda: bool(bench.parts["c"]))
    assert kept == [bench.jobs["kept"], bench.jobs["cancelled"]] and bench.order == ["first", "c"]
    kept[1].cancel()
    for job in kept:
        job.begin()
    await bench.until(lambda: bench.statuses("kept") == [pb.READ_STATUS_OK])
    figures = bench.reader.statistics()
    assert (figures["lists_open"], figures["lists_waiting"], bench.parts["cancelled"]) == (0, 0, [])


@pytest.mark.parametrize("owner", lists.OWN)
async def test_what_waits_for_no_client_has_places_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    monkeypatch.setattr(lists, "MAX_OPEN", 1)
    bench.ask("first", "a", idle=True)
    bench.ask("second", "b")
    for number in range(lists.MAX_PLACES + 1):
        bench.ask(f"own{number}", owner)
    await bench.until(lambda: len(bench.order) == lists.MAX_PLACES + 2)
    assert bench.parts["second"] == []
