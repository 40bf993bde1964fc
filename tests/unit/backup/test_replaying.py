"""Any moment from an archive: exact to the entry by hash, exact to the commit, whatever the segments are cut like."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.group import kvorum
from kvorum.cli.session import UNAVAILABLE
from kvorum_node.backup import names
from kvorum_node.backup.catalog import Goal, NoWay, check_chain
from kvorum_node.backup.frames import SEGMENT, BadFile, encode
from kvorum_node.backup.replaying import Mismatch, first_commits, from_archive, rebuilt
from kvorum_node.backup.restoring import from_backup, restore_node
from kvorum_node.backup.saving import bookmark
from kvorum_node.backup.targets import LocalFolder
from kvorum_node.store import Store
from tests.unit.backup.archives import TERM, Recorded, catalog_of, segment_header
from tests.unit.backup.conftest import backup_of, stream
from tests.unit.backup.test_restoring import MEMBER, NOW_MS, reopened
from tests.unit.store.harness import CLUSTER_ID, Replica
from tests.unit.store.test_images import rows


@contextmanager
def state_at(target: LocalFolder, goal: Goal, folder: Path) -> Iterator[Store]:
    with rebuilt(from_archive(catalog_of(target), goal), folder) as store:
        yield store


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded.make(tmp_path / "data", 11)
    yield made
    made.replica.store.close()


@pytest.fixture
def target(tmp_path: Path) -> LocalFolder:
    (tmp_path / "archive").mkdir()
    return LocalFolder(tmp_path / "archive")


def archive(recorded: Recorded, target: LocalFolder, tmp_path: Path, cuts: list[int]) -> None:
    """A base at each but the last cut's entry that is divisible by 3, and segments between cuts."""
    at = 0
    for cut in cuts:
        recorded.run(cut - max(recorded.replica.store.applied_index, 1))
        if at:
            recorded.put_segment(target, at + 1, cut)
        if not at or cut % 3 == 0:
            recorded.put_base(target, tmp_path / "spool")
        at = cut


@pytest.mark.parametrize("seed", range(3))
def test_each_entry_by_its_hash(tmp_path: Path, target: LocalFolder, seed: int) -> None:
    recorded, rng = Recorded.make(tmp_path / "data", seed), random.Random(seed)
    cuts = sorted(rng.sample(range(5, 61), 7))
    archive(recorded, target, tmp_path, cuts)
    for entry in [cuts[0], cuts[-1], *rng.sample(range(cuts[0], cuts[-1]), 8)]:
        with state_at(target, Goal(stamp=bookmark(entry)), tmp_path) as store:
            assert store.applied_index == entry
            assert store.state_hash() == recorded.hashes[entry]
            assert store.recompute_hash() == store.state_hash()
    with state_at(target, Goal(), tmp_path) as store:
        assert store.state_hash() == recorded.hashes[cuts[-1]]
    assert check_chain(catalog_of(target), catalog_of(target).segments) == []
    recorded.replica.store.close()


def commits_of(payload: bytes) -> int:
    batch = pb.Batch.FromString(payload)
    return sum(len(command.writes.writes) if command.HasField("writes") else 1 for command in batch.commands)


def test_each_commit_of_an_entry(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    """Compared with a store that has applied the same entries and *skipped* the later commits: another way."""
    archive(recorded, target, tmp_path, [8, 30])
    tried = 0
    for index, _, payload in recorded.replica.log[8:30]:
        count = commits_of(payload)
        if count < 4:
            continue
        for number in {0, count // 2, count - 2}:
            tried += 1
            later = frozenset((index, one) for one in range(number + 1, count))
            expected = Store.open(tmp_path / f"model-{index}-{number}", durable=False, quarantine=later)
            for at, time_ms, other in recorded.replica.log[:index]:
                expected.apply_now(at, time_ms, other)
            stamp = index.to_bytes(8, "big") + number.to_bytes(2, "big")
            with state_at(target, Goal(stamp=stamp), tmp_path) as store:
                assert store.applied_index == index
                assert rows(store) == rows(expected)
                assert store.leases() == expected.leases()
                assert store.next_expiry_ms() == expected.next_expiry_ms()
                assert store.session_ids() == expected.session_ids()
                assert store.recompute_hash() == store.state_hash()
                assert store.quarantined() == []
            expected.close()
    assert tried > 10


def test_first_commits_keeps_numbers_and_nothing_else() -> None:
    batch = pb.Batch(data_version=3)
    batch.commands.add().open_session.client = "a"
    for count in (2, 3):
        group = batch.commands.add().writes
        for seq in range(count):
            group.writes.add(seq=seq, op=b"%d" % seq)
    batch.commands.add().sweep.limit = 1
    payload = batch.SerializeToString()
    sizes = [[len(c.writes.writes) for c in pb.Batch.FromString(first_commits(payload, n)).commands] for n in range(9)]
    assert sizes == [[], [0], [0, 1], [0, 2], [0, 2, 1], [0, 2, 2], [0, 2, 3], [0, 2, 3, 0], [0, 2, 3, 0]]
    assert pb.Batch.FromString(first_commits(payload, 8)) == batch
    assert first_commits(b"", 5) == b""
    with pytest.raises(BadFile):
        first_commits(b"\xff\xff", 1)


def test_by_time(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    archive(recorded, target, tmp_path, [5, 20, 33])
    times = {index: time_ms for index, time_ms, _ in recorded.replica.log}
    for moment in {times[7], times[20] - 1, times[25], times[33], times[33] + 1_000}:
        last = max(index for index, time_ms in times.items() if time_ms <= moment)
        with state_at(target, Goal(time_ms=moment), tmp_path) as store:
            assert store.applied_index == last
            assert store.state_hash() == recorded.hashes[last]
    with pytest.raises(NoWay, match="oldest base is newer"), state_at(target, Goal(time_ms=times[1] - 1), tmp_path):
        pass


def test_two_nodes_fill_each_others_gaps(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    """Bases of one node, overlapping segments of two, of which neither has all."""
    recorded.run(4)
    recorded.put_base(target, tmp_path / "spool")
    recorded.run(36)
    for node, parts in (("n1", [(5, 12), (13, 20), (33, 40)]), ("n/2", [(9, 18), (18, 35)])):
        for first, last in parts:
            recorded.put_segment(target, first, last, node)
    for entry in (5, 12, 13, 19, 25, 36, 40):
        with state_at(target, Goal(stamp=bookmark(entry)), tmp_path) as store:
            assert store.state_hash() == recorded.hashes[entry]
    assert [*catalog_of(target).coverage()] == [(5, 40)]


def test_a_gap_is_told_and_never_passed_over(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    recorded.run(5)
    recorded.put_base(target, tmp_path / "spool")
    recorded.run(25)
    recorded.put_segment(target, 6, 12)
    recorded.put_segment(target, 16, 20)
    recorded.put_base(target, tmp_path / "spool")  # of entry 31
    assert catalog_of(target).coverage() == [(6, 12), (16, 20)]
    told = CliRunner().invoke(kvorum, ["pitr", "verify", str(target)])
    assert told.exit_code == UNAVAILABLE, told.output
    assert "GAP: entries 13 to 15" in told.stdout and "1 gaps" in told.stderr
    with state_at(target, Goal(stamp=bookmark(12)), tmp_path) as store:
        assert store.state_hash() == recorded.hashes[12]
    for entry in (13, 15, 16, 20, 30):
        told = r"entries 13 to \d+ are missing.*" + bookmark(12).hex()
        with pytest.raises(NoWay, match=told), state_at(target, Goal(bookmark(entry)), tmp_path):
            pass
    with state_at(target, Goal(stamp=bookmark(31)), tmp_path) as store:
        assert store.applied_index == 31
    inside = recorded.replica.log[13][1]
    told = r"entries 13 to 15 are missing.*" + bookmark(12).hex()
    with pytest.raises(NoWay, match=told), state_at(target, Goal(time_ms=inside), tmp_path):
        pass
    with pytest.raises(NoWay, match="oldest base is of entry 6"), state_at(target, Goal(bookmark(3)), tmp_path):
        pass


def test_a_base_is_not_taken_for_a_commit_in_the_middle_of_its_last_entry(
    recorded: Recorded, target: LocalFolder, tmp_path: Path
) -> None:
    recorded.run(10)
    recorded.put_base(target, tmp_path / "spool")
    with pytest.raises(NoWay, match="oldest base"), state_at(target, Goal(bookmark(11)[:8] + b"\0\1"), tmp_path):
        pass


def test_skipped_commits_are_skipped_again(target: LocalFolder, tmp_path: Path) -> None:
    plain = Recorded.make(tmp_path / "plain", 4)
    plain.run(20)
    index = next(at for at, _, payload in plain.replica.log if at > 8 and commits_of(payload) > 2)
    skipped = [(index, 1)]
    nodes = Replica(tmp_path / "skipping")
    nodes.store.skip(skipped)
    hashes = {}
    for at, time_ms, payload in plain.replica.log:
        nodes.store.apply_now(at, time_ms, payload)
        hashes[at] = nodes.store.state_hash()
        if at == 5:
            data = backup_of(nodes.store, tmp_path / "spool")
            target.put(names.Base(CLUSTER_ID, "n1", 5, TERM, 1).name, [data])
    plain.hashes = hashes
    plain.put_segment(target, 6, 21, skipped=skipped)
    with state_at(target, Goal(), tmp_path) as store:
        assert store.quarantined() == skipped
        assert store.state_hash() == hashes[21] == nodes.store.state_hash()
    plain.put_segment(target, 6, 21)
    with pytest.raises(Mismatch, match="content hash"), state_at(target, Goal(), tmp_path):
        pass
    nodes.store.close()
    plain.replica.store.close()


def test_damaged_segments(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    recorded.run(5)
    recorded.put_base(target, tmp_path / "spool")
    recorded.run(15)
    segment = recorded.put_segment(target, 7, 21)
    file = tmp_path / "archive" / segment.name
    good, rng = file.read_bytes(), random.Random(6)
    for place in rng.sample(range(len(good)), 40):
        changed = bytearray(good)
        changed[place] ^= 1 << rng.randrange(8)
        for data in (bytes(changed), good[:place]):
            file.write_bytes(data)
            with pytest.raises(BadFile), state_at(target, Goal(), tmp_path):
                pass
            (problem,) = check_chain(catalog_of(target), catalog_of(target).segments)
            assert segment.name in problem
    file.write_bytes(good)
    assert check_chain(catalog_of(target), catalog_of(target).segments) == []
    for wrong in (
        names.Segment(CLUSTER_ID, "n1", 7, 22, TERM),
        names.Segment(CLUSTER_ID, "n1", 6, 21, TERM),
        names.Segment(CLUSTER_ID, "n1", 7, 21, TERM + 1),
    ):
        catalog = catalog_of(target)
        target.put(wrong.name, [good])
        with pytest.raises(BadFile):
            [*catalog.entries(wrong)]
        target.delete(wrong.name)


def test_a_damaged_base_or_segment_has_a_stand_in(
    recorded: Recorded, target: LocalFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older base, or another node's segment that has the same entries."""
    recorded.run(5)
    recorded.put_base(target, tmp_path / "spool")
    recorded.run(10)
    newer = recorded.put_base(target, tmp_path / "spool")
    recorded.run(20)
    bad = recorded.put_segment(target, 7, 30)
    for first, last in ((7, 12), (13, 22), (20, 36)):
        recorded.put_segment(target, first, last, "n2")
    root = tmp_path / "archive"
    for name, places in ((newer.name, (60, 5_000, -5)), (bad.name, (30, 200, 2_000, -3))):
        good = (root / name).read_bytes()
        for place in places:
            damaged = bytearray(good)
            damaged[place] ^= 1
            (root / name).write_bytes(damaged)
            for goal, entry in ((Goal(), 36), (Goal(bookmark(29)), 29), (Goal(bookmark(17)), 17)):
                with state_at(target, goal, tmp_path) as store:
                    assert store.state_hash() == recorded.hashes[entry]
            assert name in caplog.text
            caplog.clear()
        (root / name).write_bytes(good)
    (root / bad.name).write_bytes(good[:300])
    target.delete(names.Segment(CLUSTER_ID, "n2", 13, 22, TERM).name)
    for goal in (Goal(bookmark(19)), Goal()):  # nobody has entries 13 to 19 now, but the newer base has 16
        with state_at(target, Goal(bookmark(16)), tmp_path) as store:
            assert store.applied_index == 16
        with pytest.raises(ValueError, match=r"damaged|missing"), state_at(target, goal, tmp_path):
            pass


def test_entries_out_of_order_or_of_another_term(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    recorded.run(5)
    recorded.put_base(target, tmp_path / "spool")
    recorded.run(10)
    entries = recorded.entries(7, 16)
    for shuffled in (entries[::-1], entries[:4] + entries[5:], [*entries, entries[-1]], entries[:-1]):
        segment = names.Segment(CLUSTER_ID, "n1", 7, 16, TERM)
        parts = encode(SEGMENT, segment_header(7, 16, b""), [one.record for one in shuffled])
        target.put(segment.name, parts, replace=True)
        with pytest.raises(BadFile), state_at(target, Goal(), tmp_path):
            pass
    other = names.Segment(CLUSTER_ID, "n2", 7, 16, TERM + 1)
    header = segment_header(7, 16, b"")
    header.last_term = TERM + 1
    target.put(other.name, encode(SEGMENT, header, [one.record for one in entries]))
    recorded.put_segment(target, 7, 16)
    header.prev_term = TERM + 5
    target.put(other.name, encode(SEGMENT, header, [one.record for one in entries]), replace=True)
    (problem,) = check_chain(catalog_of(target), catalog_of(target).segments)
    assert "entry 6 is of term 3" in problem


def test_restored_from_an_archive_and_backed_up_again(recorded: Recorded, target: LocalFolder, tmp_path: Path) -> None:
    """Point-in-time restore makes a new cluster as a restored backup does, and its archive begins anew."""
    archive(recorded, target, tmp_path, [5, 25])
    made = restore_node(from_archive(catalog_of(target), Goal(bookmark(18))), tmp_path / "n1", MEMBER, NOW_MS)
    assert (made.entry, made.old_hash, made.bookmark) == (18, recorded.hashes[18], bookmark(18))
    store = reopened(tmp_path / "n1")
    data = backup_of(store, tmp_path / "spool")
    again = restore_node(from_backup(stream(data)), tmp_path / "n2", MEMBER, NOW_MS + 1)
    assert again.cluster_id != made.cluster_id != CLUSTER_ID
    assert again.stamp_base > made.stamp_base
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "data", "n1", "n2", "spool"]
