"""A node's archiver over a store, a made-up log and a folder: nothing is left out, whatever happens to it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from kvorum_node.backup import names
from kvorum_node.backup.archiver import Archiver, ArchiveSettings, outdated
from kvorum_node.backup.catalog import Goal, check_chain
from kvorum_node.backup.frames import MAX_FRAME, SEGMENT, encode
from kvorum_node.backup.replaying import from_archive, rebuilt
from kvorum_node.backup.saving import Backups, bookmark
from kvorum_node.backup.targets import ArchiveTarget, LocalFolder
from kvorum_raft.entry import Entry, Kind, make
from kvorum_raft.log_reader import LogReader
from tests.unit.backup.archives import TERM, Recorded, catalog_of, segment_header
from tests.unit.store.harness import CLUSTER_ID

SETTINGS = ArchiveSettings(every=10.0, segment_bytes=1 << 20, base_every=1_000.0)


class FakeLog:
    """`LogReader` of what a replica has applied; `term` is that of all entries."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self.base_index = 0
        self.term = TERM

    @property
    def applied_index(self) -> int:
        return self._recorded.replica.store.applied_index

    def term_at(self, index: int) -> int:
        return self.term if self.base_index <= index <= self.applied_index and index else 0

    def entries(self, first: int, max_bytes: int) -> list[Entry]:
        assert first > self.base_index
        return self._recorded.entries(first, min(first + 3, self.applied_index))


class Flaky:
    """Fails in the middle of a file while told to, or behind its end."""

    def __init__(self, inner: ArchiveTarget) -> None:
        self._inner = inner
        self.names, self.get, self.delete, self.halt = inner.names, inner.get, inner.delete, inner.halt
        self.failing = False
        self.losing = False

    def put(self, name: str, parts: Iterable[bytes], *, replace: bool = False) -> int:
        size = self._inner.put(name, self._half(parts) if self.failing else parts, replace=replace)
        if self.losing:
            raise OSError(5, "the answer is lost")
        return size

    def _half(self, parts: Iterable[bytes]) -> Iterable[bytes]:
        yield next(iter(parts))
        raise OSError(5, "the target is gone")


@dataclass
class Bench:
    """Everything around an archiver."""

    recorded: Recorded
    folder: Path
    inner: ArchiveTarget
    settings: ArchiveSettings = SETTINGS
    now: float = 1_000.0
    is_low: bool = False
    made: list[Archiver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = FakeLog(self.recorded)
        self.target = Flaky(self.inner)
        self.backups = Backups(
            self.recorded.replica.store, self.folder / "spool", node_id="n1", term_at=self.log.term_at, rate=1e12
        )
        self.start()

    def start(self) -> None:
        """As after a restart of the node."""
        self.archiver = Archiver(
            self.recorded.replica.store,
            lambda: cast("LogReader", self.log),
            self.backups,
            self.target,
            "n1",
            self.settings,
            tight=lambda: self.is_low,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        self.made.append(self.archiver)

    async def round(self, seconds: float = 0.0) -> dict[str, float]:
        self.now += seconds
        await self.archiver._round()
        task = self.archiver._base_task
        if task is not None:
            await asyncio.wait([task])
        return self.archiver.statistics()

    async def applied(self, entries: int) -> dict[str, float]:
        """Apply, and let that become old enough to be archived."""
        self.recorded.run(entries)
        await self.round()
        return await self.round(SETTINGS.every)

    def check(self, *entries: int) -> None:
        """These moments can be restored; by default the newest one."""
        for entry in entries or (self.log.applied_index,):
            with rebuilt(from_archive(catalog_of(self.target), Goal(bookmark(entry))), self.folder) as store:
                assert store.state_hash() == self.recorded.hashes[entry]
        catalog = catalog_of(self.target)
        assert check_chain(catalog, catalog.segments) == []

    def files(self) -> list[names.Base | names.Segment]:
        return [one for one in map(names.parse, self.target.names("")) if one is not None]


async def until(condition: Callable[[], object]) -> None:
    """Let others have their turn until it is true."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


@pytest.fixture
def target(tmp_path: Path) -> ArchiveTarget:
    """The integration tests have another one."""
    (tmp_path / "archive").mkdir()
    return LocalFolder(tmp_path / "archive")


@pytest.fixture
async def bench(tmp_path: Path, target: ArchiveTarget) -> AsyncIterator[Bench]:
    recorded = Recorded.make(tmp_path / "data", 21)
    recorded.run(5)
    made = Bench(recorded, tmp_path, target)
    yield made
    made.backups.halt()
    for archiver in made.made:
        await archiver.stop()
    made.backups.stop()
    recorded.replica.store.close()


async def test_a_base_and_then_segments_without_a_gap(bench: Bench) -> None:
    assert bench.archiver.bound() == 0  # nothing is cut before it is known what is archived
    facts = await bench.round()
    assert (facts["archive_bases"], facts["archive_entry"], bench.archiver.bound()) == (1, 6, 6)
    bench.check(6)
    for number in range(1, 6):
        facts = await bench.applied(7)
        assert facts["archive_segments"] == number
        assert facts["archive_lag_entries"] == 0
        assert bench.archiver.bound() == bench.log.applied_index
        bench.check()
    assert catalog_of(bench.target).coverage() == [(7, bench.log.applied_index)]
    bench.check(9, 20, 30)


async def test_entries_wait_for_others_but_not_too_long(bench: Bench) -> None:
    await bench.round()
    bench.recorded.run(3)
    facts = await bench.round()
    assert (facts["archive_segments"], facts["archive_lag_entries"]) == (0, 3)
    assert (await bench.round(SETTINGS.every - 1))["archive_age_seconds"] == SETTINGS.every - 1
    bench.recorded.run(3)
    facts = await bench.round(1)
    assert (facts["archive_segments"], facts["archive_lag_entries"], facts["archive_age_seconds"]) == (1, 0, 0)
    assert (await bench.round(100.0))["archive_segments"] == 1  # nothing new, no segment


async def test_a_segment_is_closed_when_it_is_large(bench: Bench) -> None:
    bench.settings = ArchiveSettings(every=1e9, segment_bytes=500, base_every=1e9)
    bench.start()
    await bench.round()
    bench.recorded.run(40)
    facts = await bench.round()
    assert facts["archive_segments"] > 5
    assert facts["archive_lag_entries"] < 10
    bench.check(int(facts["archive_entry"]))


async def test_a_restart_goes_on_where_the_archive_ends(bench: Bench) -> None:
    await bench.round()
    await bench.applied(10)
    bench.recorded.run(4)
    await bench.round()  # read, and not written yet
    bench.start()
    assert bench.archiver.bound() == 0
    await bench.round()
    facts = await bench.applied(5)
    assert (facts["archive_bases"], facts["archive_gaps"], facts["archive_segments"]) == (0, 0, 1)
    bench.check()
    assert len(catalog_of(bench.target).coverage()) == 1


async def test_a_node_that_is_behind_waits(bench: Bench) -> None:
    """After its start it applies what it had applied before."""
    await bench.round()
    await bench.applied(10)
    reached = bench.log.applied_index
    ahead = names.Segment(CLUSTER_ID, "n1", reached + 1, reached + 5, TERM)
    bench.target.put(ahead.name, [b"of the run before"])
    bench.start()
    assert (await bench.round())["archive_entry"] == 0
    bench.recorded.run(5)
    assert (await bench.round())["archive_entry"] == reached + 5


async def test_a_target_that_fails_costs_nothing_but_time(bench: Bench) -> None:
    await bench.round()
    await bench.applied(5)
    reached = bench.log.applied_index
    bench.target.failing = True
    bench.recorded.run(10)
    await bench.round()
    for _ in range(3):
        with pytest.raises(OSError, match="target is gone"):
            await bench.round(SETTINGS.every)
        assert bench.archiver.bound() == reached
        assert bench.archiver.statistics()["archive_lag_entries"] == 10
    bench.target.failing = False
    facts = await bench.round()
    assert (facts["archive_lag_entries"], facts["archive_gaps"]) == (0, 0)
    bench.check()
    assert len(bench.files()) == 3
    assert not [path for path in bench.folder.glob("archive/**/.*") if path.is_file()]


async def test_a_lost_answer_leaves_a_file_that_is_known_again(bench: Bench) -> None:
    """The header of the second attempt says another time, the entries are the same."""
    await bench.round()
    bench.target.losing = True
    bench.recorded.run(5)
    await bench.round()
    for _ in range(2):
        with pytest.raises(OSError, match="answer is lost"):
            await bench.round(SETTINGS.every)
    left = [one for one in bench.files() if isinstance(one, names.Segment)]
    bench.target.losing = False
    facts = await bench.round(1)
    assert (facts["archive_lag_entries"], facts["archive_gaps"]) == (0, 0)
    assert [one for one in bench.files() if isinstance(one, names.Segment)] == left
    bench.check()


async def test_a_damaged_file_in_the_way_is_written_anew(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.round()
    bench.recorded.run(5)
    segment = names.Segment(CLUSTER_ID, "n1", bench.log.applied_index - 4, bench.log.applied_index, TERM)
    bench.target.put(segment.name, [b"half of a segment"])
    await bench.round()
    assert (await bench.round(SETTINGS.every))["archive_lag_entries"] == 0
    assert "damaged, and written anew" in caplog.text
    bench.check()


async def test_a_file_in_the_way_that_goes_on_behind_its_end_is_written_anew(bench: Bench) -> None:
    await bench.round()
    bench.recorded.run(5)
    first, last = bench.log.applied_index - 4, bench.log.applied_index
    segment = names.Segment(CLUSTER_ID, "n1", first, last, TERM)
    own = [entry.record for entry in bench.recorded.entries(first, last)]
    more = make(Kind.NO_OP, last + 1, TERM, 7, b"").record
    bench.target.put(segment.name, [b"".join(encode(SEGMENT, segment_header(first, last, b""), [*own, more]))])
    await bench.round()
    assert (await bench.round(SETTINGS.every))["archive_lag_entries"] == 0
    bench.check()


async def test_another_history_of_the_same_name_is_never_replaced(bench: Bench) -> None:
    """E.g. of a second node with this one's id."""
    await bench.round()
    bench.recorded.run(5)
    first, last = bench.log.applied_index - 4, bench.log.applied_index
    segment = names.Segment(CLUSTER_ID, "n1", first, last, TERM)
    others = [make(Kind.NO_OP, index, TERM, 7, b"") for index in range(first, last + 1)]
    data = b"".join(encode(SEGMENT, segment_header(first, last, b""), (one.record for one in others)))
    bench.target.put(segment.name, [data])
    await bench.round()
    for _ in range(2):
        with pytest.raises(OSError, match="two histories"):
            await bench.round(SETTINGS.every)
        assert bench.archiver.bound() == first - 1
        with bench.target.get(segment.name) as file:
            assert file.read() == data


async def test_a_full_disk_makes_a_gap_that_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.round()
    await bench.applied(5)
    before = bench.log.applied_index
    bench.target.failing = True
    bench.recorded.run(10)
    bench.is_low = True
    assert bench.archiver.bound() is None
    bench.log.base_index = bench.log.applied_index - 2  # the log was cut
    cut = bench.log.base_index
    bench.target.failing = bench.is_low = False
    with caplog.at_level(logging.CRITICAL):
        facts = await bench.round()
    assert f"gap: entries {before + 1} to {cut} were cut off" in caplog.text
    assert (facts["archive_gaps"], facts["archive_bases"]) == (1, 2)
    anew = bench.log.applied_index
    facts = await bench.applied(6)
    bench.check(before, anew, bench.log.applied_index)
    assert catalog_of(bench.target).coverage() == [(7, before), (anew + 1, bench.log.applied_index)]
    bench.start()  # and after a restart there is no second gap
    facts = await bench.applied(3)
    assert (facts["archive_gaps"], facts["archive_bases"]) == (0, 0)
    bench.check()


async def test_a_gap_is_told_once_however_often_the_base_behind_it_fails(bench: Bench) -> None:
    await bench.round()
    await bench.applied(5)
    bench.recorded.run(10)
    bench.log.base_index = bench.log.applied_index - 2
    bench.target.failing = True
    for _ in range(3):
        with pytest.raises(OSError, match="target is gone"):
            await bench.round(1)
    bench.target.failing = False
    assert (await bench.round(1))["archive_gaps"] == 1
    bench.recorded.run(10)
    bench.log.base_index = bench.log.applied_index
    assert (await bench.round(1))["archive_gaps"] == 2
    bench.check()


async def test_what_was_read_before_the_cut_is_archived_all_the_same(bench: Bench) -> None:
    await bench.round()
    bench.recorded.run(10)
    await bench.round()
    read = bench.log.applied_index
    bench.recorded.run(10)
    bench.log.base_index = read + 5
    facts = await bench.round()
    assert facts["archive_gaps"] == 1
    bench.check(read, bench.log.applied_index)


async def test_a_gap_over_a_restart(bench: Bench) -> None:
    await bench.round()
    await bench.applied(5)
    before = bench.log.applied_index
    bench.recorded.run(10)
    bench.log.base_index = bench.log.applied_index
    bench.start()
    facts = await bench.round()
    assert (facts["archive_gaps"], facts["archive_bases"]) == (1, 1)
    bench.check(before, bench.log.applied_index)


async def test_another_history_is_not_mixed_in(bench: Bench) -> None:
    await bench.round()
    await bench.applied(5)
    bench.log.term = TERM + 1
    bench.start()
    for _ in range(2):
        with pytest.raises(OSError, match="two histories"):
            await bench.round()
    assert bench.archiver.bound() == 0


async def test_bases_by_schedule_while_segments_go_on(bench: Bench) -> None:
    await bench.round()
    for number in range(1, 5):
        await bench.applied(5)
        facts = await bench.round(SETTINGS.base_every)
        assert facts["archive_bases"] == 1 + number
        assert facts["archive_base_age_seconds"] < SETTINGS.base_every
    bases = [one for one in bench.files() if isinstance(one, names.Base)]
    assert len(bases) == 5
    bench.check(*(base.entry for base in bases), bench.log.applied_index)
    assert len(catalog_of(bench.target).coverage()) == 1


async def test_retention(bench: Bench) -> None:
    bench.settings = ArchiveSettings(every=10.0, base_every=1_000.0, keep=2_500.0)
    bench.start()
    await bench.round()
    moments = []
    for _ in range(6):
        await bench.applied(5)
        await bench.round(SETTINGS.base_every)
        moments.append((bench.now, bench.log.applied_index))
    catalog = catalog_of(bench.target)
    assert len(catalog.bases) == 4  # made 3,000, 2,000, 1,000 and 0 seconds ago
    assert catalog.segments[0].first <= catalog.bases[0].entry + 1
    bench.check(*(entry for moment, entry in moments if moment >= bench.now - 2_500))


def test_what_is_outdated() -> None:
    def base(entry: int, made_ms: int) -> str:
        return names.Base(CLUSTER_ID, "n1", entry, TERM, made_ms).name

    def segment(first: int, last: int) -> str:
        return names.Segment(CLUSTER_ID, "n1", first, last, TERM).name

    bases = [base(10, 100), base(20, 200), base(30, 300)]
    segments = [segment(11, 15), segment(16, 20), segment(19, 21), segment(21, 29), segment(30, 31)]
    listed = [*bases, *segments, "notes.txt"]
    assert outdated(listed, 99) == []
    assert outdated(listed, 199) == []
    assert outdated(listed, 200) == [bases[0], segments[0], segments[1]]
    assert outdated(listed, 299) == [bases[0], segments[0], segments[1]]
    assert outdated(listed, 1_000) == [bases[0], bases[1], *segments[:4]]


async def test_the_loop_goes_on_after_failures(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that a node runs, with pauses that a test can wait for."""
    monkeypatch.setattr("kvorum_node.backup.archiver.POLL", 0.0)
    monkeypatch.setattr("kvorum_node.backup.archiver.RETRY", 0.0)
    bench.target.failing = True
    bench.archiver.start()
    await until(lambda: bench.archiver.statistics()["archive_failures"] >= 2)
    bench.now += 7.0
    assert bench.archiver.statistics()["archive_failing_seconds"] >= 7.0
    bench.target.failing = False
    await until(lambda: bench.archiver.statistics()["archive_entry"])
    await until(lambda: not bench.archiver.statistics()["archive_failing_seconds"])
    bench.check(6)


async def test_the_loop_outlives_a_fault_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the log would be kept for an archive that nobody writes, without a word."""
    monkeypatch.setattr("kvorum_node.backup.archiver.POLL", 0.0)
    monkeypatch.setattr("kvorum_node.backup.archiver.RETRY", 0.0)
    faults = [ZeroDivisionError("a fault")]
    find = bench.archiver._find_place

    async def find_place(log: LogReader) -> bool:
        if faults:
            raise faults.pop()
        return await find(log)

    monkeypatch.setattr(bench.archiver, "_find_place", find_place)
    bench.archiver.start()
    await until(lambda: bench.archiver.statistics()["archive_entry"])
    assert bench.archiver.statistics()["archive_failures"] == 1
    assert "by a fault of this node" in caplog.text and "ZeroDivisionError" in caplog.text


def test_names_say_all_and_stay_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    target = LocalFolder(tmp_path / "archive")
    for node in ("n1", "../../etc", "a/b", "..", "Knoten ä", "x" * 128, "%2F", "~"):
        for one in (
            names.Base(CLUSTER_ID, node, 12, 3, 1_700_000_000_000),
            names.Segment(CLUSTER_ID, node, 1, 99, 1 << 40),
        ):
            assert names.parse(one.name) == one
            assert target.put(one.name, [b"a", b"b"]) == 2
            with target.get(one.name) as file:
                assert file.read() == b"ab"
    assert len(target.names("")) == 16
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    assert len(target.names(names.place(CLUSTER_ID, "a/b"))) == 2
    for name in target.names(""):
        target.delete(name)
        target.delete(name)
    assert target.names("") == []


def test_nothing_is_archived_below_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    root = tmp_path / "mount" / "archive"
    target = LocalFolder(root)
    for call in (lambda: target.put("n1/a", [b"a"]), lambda: target.names("")):
        with pytest.raises(FileNotFoundError, match="mount its disk, or make it"):
            cast("Any", call)()
    assert list(tmp_path.iterdir()) == []
    root.mkdir(parents=True)
    target.put("n1/a", [b"a"])


@pytest.mark.parametrize("restarted", [False, True])
def test_an_archive_that_has_vanished_is_not_made_anew(tmp_path: Path, restarted: bool) -> None:
    """As of a volume that is unmounted under the node: what follows would be a hole in the real one for ever."""
    root, elsewhere = tmp_path / "archive", tmp_path / "unmounted"
    root.mkdir()
    target = LocalFolder(root)
    target.put("n1/a", [b"a"])
    if restarted:
        target = LocalFolder(root)
        assert target.names("") == ["n1/a"]
    root.rename(elsewhere)
    root.mkdir()
    with pytest.raises(FileNotFoundError, match="has vanished"):
        target.put("n1/b", [b"b"])
    assert list(root.iterdir()) == []
    target.put("n2/b", [b"b"])
    root.rename(tmp_path / "other")
    elsewhere.rename(root)
    target.put("n1/b", [b"b"])
    assert target.names("") == ["n1/a", "n1/b"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../b", "..", "a//b", "a/.hidden", "a\\b", "a b", "a\nb", "ä"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    target = LocalFolder(tmp_path)
    for call in (lambda: target.put(name, []), lambda: target.get(name), lambda: target.delete(name)):
        with pytest.raises(ValueError, match="no name"):
            cast("Any", call)()
    assert names.parse(name) is None


def test_entries_of_the_log_fit_into_a_frame() -> None:
    from kvorum_raft.config import Limits
    from kvorum_raft.entry import HEADER_SIZE

    assert Limits().entry + HEADER_SIZE <= MAX_FRAME
