"""The change history: what stands in it, what goes, and from when on (rules A6, E1)."""

import random
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import DatabaseCorrupt
from kvorum_node.store import DATA_VERSION, Store, records
from kvorum_node.store.history import DELETED, EXPIRED, Bounds, first_place, unpack
from tests.unit.store.harness import (
    START_MS,
    Replica,
    add,
    batch,
    delete,
    delete_range,
    enqueue,
    group,
    init_cluster,
    put,
    release,
    settle,
    suffixed,
    sweep,
    touch,
    write,
)
from tests.unit.store.test_determinism import Traffic

SMALL = Bounds(20_000, 60)


def stamp(index: int, number: int = 0) -> bytes:
    return index.to_bytes(8, "big") + number.to_bytes(2, "big")


def changes(store: Store, since: bytes = bytes(10)) -> list[tuple[bytes, str, bytes, bytes]]:
    """Stamp, what happened, key, value of everything after `since`."""
    found = []
    with store.snapshot() as snapshot:
        assert snapshot.oldest <= since or since == bytes(10)
        for _, packed in snapshot.history(first_place(since)):
            for key, row in unpack(packed):
                what = {DELETED: "delete", EXPIRED: "expire"}.get(row[:1], "set")
                value = records.value_of(row)[1] if what == "set" else b""
                if row[1:11] > since:
                    found.append((row[1:11], what, key, value))
    return found


class Writer(Replica):
    """A replica of a formed cluster that keeps little history."""

    bounds = SMALL

    def _open(self) -> Store:
        return Store.open(
            self.path,
            durable=self.durable,
            map_size=1 << 30,
            slice_commits=self.slice_commits,
            history_bounds=self.bounds,
        )


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(tmp_path / "state", data_version=DATA_VERSION)
    made.apply(init_cluster())
    return made


def end(writer: Writer) -> None:
    writer.check_hash()
    list(writer.store.scrub(1_000))
    writer.store.close()


def test_what_a_commit_did_to_each_key_in_the_end(writer: Writer) -> None:
    writer.apply(
        group(
            write(put(b"a", b"1")),
            write(put(b"a", b"2"), put(b"b", b"3"), put(b"a", b"4")),
            write(delete(b"a"), put(b"c" * 1_000, b"5"), delete(b"nothing")),
        )
    )
    writer.commit(add(b"n", 7), suffixed(b"s", b"6"))
    assert changes(writer.store) == [
        (stamp(2), "set", b"a", b"1"),
        (stamp(2, 1), "set", b"a", b"4"),
        (stamp(2, 1), "set", b"b", b"3"),
        (stamp(2, 2), "delete", b"a", b""),
        (stamp(2, 2), "set", b"c" * 1_000, b"5"),
        (stamp(3), "set", b"n", writer.entry(b"n").value),
        (stamp(3), "set", b"s\x02" + stamp(3).hex().encode() + b"\x00", b"6"),
    ]
    end(writer)


def test_a_key_that_comes_and_goes_in_one_commit_was_never_there(writer: Writer) -> None:
    writer.commit(put(b"old"))
    writer.commit(put(b"new"), delete(b"new"), put(b"old", b"x"), delete(b"old"))
    writer.commit(put(b"new"), delete(b"new"), put(b"new", b"y"))
    writer.commit(delete(b"new"), put(b"new", b"z"), delete(b"new"))
    assert [found[:3] for found in changes(writer.store)[1:]] == [
        (stamp(3), "delete", b"old"),
        (stamp(4), "set", b"new"),
        (stamp(5), "delete", b"new"),
    ]
    end(writer)


def test_what_is_refused_or_changes_nothing_leaves_nothing(writer: Writer) -> None:
    assert writer.commit(put(b"a"), add(b"a", 1)).outcome == pb.OUTCOME_TYPE_ERROR
    assert writer.commit(put(b"a"), pb.Check(key=b"a", versionstamp=bytes(10))).outcome == pb.OUTCOME_CHECK_FAILED
    assert writer.commit(delete(b"a")).outcome == pb.OUTCOME_DONE
    writer.commit(enqueue())
    assert changes(writer.store) == []
    writer.commit(put(b"a"))
    writer.commit(touch(b"a", 5_000))
    assert len(changes(writer.store)) == 1
    end(writer)


def test_what_a_sweep_deletes_has_expired(writer: Writer) -> None:
    writer.commit(put(b"a", expire_in_ms=5), put(b"b", expire_in_ms=5), put(b"c", expire_in_ms=500))
    writer.now_ms += 10
    writer.apply(sweep())
    assert changes(writer.store)[3:] == [(stamp(3), "expire", b"a", b""), (stamp(3), "expire", b"b", b"")]
    end(writer)


def test_a_deleted_range_is_a_change_of_each_of_its_keys(writer: Writer) -> None:
    writer.commit(*(put(b"k%d" % at) for at in range(5)))
    writer.commit(delete_range(b"k1", b"k4"), put(b"k2", b"again"))
    assert [found[1:] for found in changes(writer.store)[5:]] == [
        ("delete", b"k1", b""),
        ("set", b"k2", b"again"),
        ("delete", b"k3", b""),
    ]
    end(writer)


def test_messages_that_cannot_be_delivered_are_changes(writer: Writer) -> None:
    session = writer.session()
    for body in (b"1", b"2"):
        writer.commit(enqueue(body, keys=[b"dead", b"dead", b"also"], backoff=()))
    one, two = writer.lease(session, count=2)
    before = stamp(writer.store.applied_index, 0xFFFF)
    writer.commit(settle(one, pb.SETTLE_KIND_REJECT))
    writer.apply(release(two, counts=True))
    index = writer.store.applied_index
    assert changes(writer.store, before) == [
        (stamp(index - 1), "set", b"dead", b"1"),
        (stamp(index - 1), "set", b"also", b"1"),
        (stamp(index), "set", b"dead", b"2"),
        (stamp(index), "set", b"also", b"2"),
    ]
    end(writer)


def test_the_newest_change_of_each_key_is_its_row(tmp_path: Path) -> None:
    """Whatever traffic: the history, read to its end, leads to the state."""
    replica = Replica(tmp_path / "state", data_version=DATA_VERSION)
    Traffic(replica, 5).run(200)
    state: dict[bytes, bytes] = {}
    for at, what, key, _ in changes(replica.store):
        if what == "set":
            state[key] = at
        else:
            del state[key]  # KeyError: a key that was not there has gone
    assert state == {row.key: row.versionstamp for row in replica.rows(end=b"\xff" * 2_049)}
    replica.store.close()


def test_large_and_many_changes_take_several_rows_in_order(writer: Writer) -> None:
    writer.bounds = Bounds(1 << 30, 1 << 20)
    writer.reopen()
    values = [bytes([at % 256]) * (60_000 if at % 7 == 0 else 40) for at in range(500)]
    writer.apply(group(*(write(put(b"%03d" % at, value)) for at, value in enumerate(values))))
    found = changes(writer.store)
    assert [value for _, _, _, value in found] == values
    assert [at for at, *_ in found] == [stamp(2, number) for number in range(500)]
    figures = writer.store.statistics()
    assert figures["history_rows"] > 2 * 500 / 7
    assert figures["history_bytes"] < sum(map(len, values)) + 500 * 40
    end(writer)


# ---- bounds


def test_it_stays_within_its_bounds_and_says_what_is_left(writer: Writer) -> None:
    rng = random.Random(3)
    whole: list[tuple[bytes, str, bytes, bytes]] = []
    for _ in range(300):
        puts = [put(b"k%d" % rng.randrange(9), bytes(rng.randrange(400))) for _ in range(rng.choice((1, 1, 2, 20)))]
        writer.apply(group(*(write(one) for one in puts)))
        before = stamp(writer.store.applied_index - 1, 0xFFFF)
        whole += changes(writer.store, before)
        figures = writer.store.statistics()
        assert figures["history_bytes"] <= SMALL.size
        assert figures["history_rows"] <= SMALL.rows
        with writer.store.snapshot() as snapshot:
            oldest = snapshot.oldest
        assert changes(writer.store, oldest) == [change for change in whole if change[0] > oldest]
    assert len(changes(writer.store, oldest)) > 5
    end(writer)


def test_an_entry_larger_than_the_bounds_stands_until_the_next(writer: Writer) -> None:
    writer.commit(put(b"a"))
    writer.apply(group(*(write(put(b"%d" % at, bytes(1_000))) for at in range(100))))
    assert len(changes(writer.store, stamp(2, 0xFFFF))) == 100
    writer.commit(put(b"b"))
    with writer.store.snapshot() as snapshot:
        assert snapshot.oldest == stamp(3, 0xFFFF), "what is cut is gone as a whole"
    assert [found[2] for found in changes(writer.store, stamp(3, 0xFFFF))] == [b"b"]
    end(writer)


def test_one_entry_drops_a_bounded_number_of_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "state", data_version=DATA_VERSION)
    writer.bounds = Bounds(1 << 30, 1 << 20)
    writer.reopen()
    for at in range(400):
        writer.commit(put(b"a", b"%d" % at))
    writer.bounds = Bounds(1_000, 10)
    writer.reopen()
    left = [int(writer.store.statistics()["history_rows"])]
    while left[-1] > 10:
        writer.commit(put(b"a"))
        left.append(int(writer.store.statistics()["history_rows"]))
        assert left[-2] - left[-1] == 15 or left[-1] <= 10
    large = batch(group(*(write(put(b"a", bytes(60_000))) for _ in range(10))), data_version=DATA_VERSION)
    writer.bounds = Bounds(1 << 30, 1 << 20)
    writer.reopen()
    for at in range(3_000):
        writer.commit(put(b"a", b"%d" % at))
    writer.bounds = Bounds(1_000, 10)
    writer.slice_commits = 100
    writer.reopen()
    steps = sum(1 for _ in writer.store.apply(writer.store.applied_index + 1, START_MS, large))
    assert steps > 20, "trimming is sliced"
    end(writer)


@pytest.mark.parametrize("seed", range(2))
def test_slices_restarts_and_checkpoints_do_not_matter_while_it_is_trimmed(tmp_path: Path, seed: int) -> None:
    first = Writer(tmp_path / "first", data_version=DATA_VERSION)
    Traffic(first, seed).run(150)
    with first.store.snapshot() as snapshot:
        assert snapshot.oldest > stamp(2), "there was something to trim"
    rng = random.Random(seed)
    for number, size in enumerate((1, 7, 100_000)):
        other = Writer(tmp_path / str(number), slice_commits=size)
        for index, time_ms, payload in first.log:
            if rng.random() < 0.1:  # give it up midway first
                steps = other.store.apply(index, time_ms, payload)
                for _ in range(rng.randrange(9)):
                    next(steps, None)
                steps.close()
            if other.store.applied_index < index:
                other.store.apply_now(index, time_ms, payload)
            if rng.random() < 0.1:
                other.reopen(clean=rng.random() < 0.5)
            if rng.random() < 0.05:
                take_over(other, tmp_path)
        assert other.store.state_hash() == first.store.state_hash()
        assert changes(other.store) == changes(first.store)
        end(other)
    end(first)


def take_over(writer: Writer, folder: Path) -> None:
    """Go on from a checkpoint of the state."""
    image = writer.store.image()
    with (folder / "checkpoint").open("wb") as file:
        image.copy_to(file.fileno())
    image.close()
    writer.store.adopt(writer.store.prepare(folder / "checkpoint"))


# ---- from when on


def test_entries_of_version_1_write_none_and_leave_the_old_format(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "state")
    writer.apply(init_cluster())
    writer.commit(put(b"a"))
    writer.commit(put(b"b"), put(b"c"), delete(b"a"))
    assert changes(writer.store) == []
    with writer.store.snapshot() as snapshot:
        assert snapshot.oldest == b""
    assert state_format(writer) == 2
    end(writer)


def test_the_first_entry_of_version_2_begins_it_whatever_it_does(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "state")
    writer.apply(init_cluster())
    writer.commit(put(b"a"))
    writer.reopen()
    writer.apply_payload(batch(data_version=2))
    assert state_format(writer) == 3
    writer.commit(put(b"b"))  # version 1 again: a leader that has not heard of all others yet
    with writer.store.snapshot() as snapshot:
        assert snapshot.oldest == stamp(2, 0xFFFF)
    assert changes(writer.store, stamp(2, 0xFFFF)) == [(stamp(4), "set", b"b", b"v")]
    end(writer)


def state_format(writer: Writer) -> int:
    with writer.store._env.begin() as txn:
        return records.state_format(txn.get(records.STATE_KEY, b""))


@pytest.mark.parametrize("durable", [False, True])
def test_a_program_that_knows_no_history_refuses_it(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a version from before would, which knew format 2 alone; nothing is changed by its try."""
    writer = Writer(tmp_path / "state", durable=durable)
    writer.apply(init_cluster())
    writer.commit(put(b"a"))
    with monkeypatch.context() as older:
        older.setattr(records, "KNOWN_FORMATS", (2,))
        writer.reopen()  # it can go on where there is none yet
        writer.commit(put(b"b"))
    writer.data_version = 2
    writer.commit(put(b"c"))
    take = tmp_path / "checkpoint"
    image = writer.store.image()
    with take.open("wb") as file:
        image.copy_to(file.fileno())
    image.close()
    writer.store.close()
    with monkeypatch.context() as older:
        older.setattr(records, "KNOWN_FORMATS", (2,))
        with pytest.raises(DatabaseCorrupt, match=r"data.mdb has data format 3; this version of kvorum knows 2"):
            writer._open()
        with pytest.raises(ValueError, match="data format 3"):
            Store.open(tmp_path / "other", durable=False).inspect(take)
    writer.store = writer._open()
    assert not writer.store.rebuilt
    assert writer.get(b"c") is not None
    end(writer)


# ---- P55


@pytest.mark.parametrize("cut", range(4))
def test_p55_a_delete_is_there_until_it_is_said_to_be_gone(tmp_path: Path, cut: int) -> None:
    """P55, the store's part: put, delete, then trim to just before, at, and behind the delete: whoever may resume
    gets it."""
    writer = Writer(tmp_path / "state", data_version=DATA_VERSION)
    writer.bounds = Bounds(1 << 20, 1 << 10)
    writer.reopen()
    writer.apply(init_cluster())
    writer.commit(put(b"k"))  # entry 2
    writer.commit(delete(b"k"))  # entry 3
    writer.commit(put(b"other"))  # entry 4
    writer.bounds = Bounds(1 << 20, 4 - cut)  # of what are then 4 rows
    writer.reopen()
    writer.commit(put(b"other"))
    with writer.store.snapshot() as snapshot:
        oldest = snapshot.oldest
    assert oldest == (stamp(0, 0xFFFF), stamp(2, 0xFFFF), stamp(3, 0xFFFF), stamp(4, 0xFFFF))[cut]
    for since in (stamp(1, 0xFFFF), stamp(2), stamp(2, 0xFFFF)):
        if since >= oldest:
            assert (stamp(3), "delete", b"k", b"") in changes(writer.store, since)
    end(writer)
