"""Snapshots: one state for as long as they are open."""

import random

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import packed, unpacked
from tests.unit.store.harness import BYTES, Replica, add, group, put, random_key, touch, write


def test_a_snapshot_does_not_move(replica: Replica) -> None:
    replica.commit(put(b"a", b"1"))
    with replica.store.snapshot() as before:
        replica.commit(put(b"a", b"2"), put(b"b", b"2"))
        assert before.get(b"a").value == b"1"
        assert before.get(b"b") == pb.KvEntry(key=b"b")
        assert before.versionstamp == (2).to_bytes(8, "big") + b"\xff\xff"
        assert before.applied_index == 2
    with replica.store.snapshot() as after:
        assert after.get(b"a").value == b"2"
        assert after.versionstamp > after.get(b"b").versionstamp > before_stamp()


def before_stamp() -> bytes:
    return (2).to_bytes(8, "big") + b"\xff\xff"


@pytest.mark.parametrize("reverse", [False, True])
def test_ranges(replica: Replica, reverse: bool) -> None:
    rng = random.Random(3)
    model = {random_key(rng): b"%d" % at for at in range(150)}
    replica.apply(group(*(write(put(key, value, expire_in_ms=9)) for key, value in model.items())))
    for _ in range(60):
        low, high, limit = random_key(rng), random_key(rng) + b"\x00", rng.choice((1, 2, 5, 1_000))
        expected = sorted((key for key in model if low <= key < high), reverse=reverse)[:limit]
        rows = replica.rows(low, high, limit=limit, reverse=reverse)
        assert [entry.key for entry in rows] == expected
        assert all(entry.value == model[entry.key] and entry.encoding == BYTES for entry in rows)
    with replica.store.snapshot() as snapshot:
        for key, value in model.items():
            assert snapshot.get(key).value == value


def test_rows_of_many_keys_are_those_of_single_ones(replica: Replica) -> None:
    rng = random.Random(7)
    keys = [random_key(rng) for _ in range(300)]
    for at, key in enumerate(keys[:200]):
        replica.commit(put(key, b"%d" % at * rng.randrange(50), expire_in_ms=rng.choice((None, 1_000 + at))))
        if at % 5 == 0:
            replica.commit(touch(key, rng.choice((None, 5_000))))
    replica.commit(add(b"a number", 7))
    keys += [b"", b"a number", b"\x80state", b"x" * 2_049, keys[0]]
    with replica.store.snapshot() as snapshot:
        rows = snapshot.packed(keys, 1 << 30)
        assert [unpacked(("k",), row)[1:] for row in rows if not row] == [(None, None)] * rows.count(b"")
        assert rows == [packed(snapshot.get(key)) for key in keys]
    assert len([row for row in rows if row]) > 150


def test_rows_of_many_keys_end_with_the_one_that_finds_no_room(replica: Replica) -> None:
    keys = [b"%d" % at for at in range(10)]
    replica.commit(*(put(key, bytes(1_000)) for key in keys))
    with replica.store.snapshot() as snapshot:
        assert [len(snapshot.packed(keys, room)) for room in (0, 1_010, 1_011, 5_055, 10**6)] == [1, 1, 2, 6, 10]
        assert snapshot.packed([], 0) == []


def test_empty_ranges(replica: Replica) -> None:
    replica.commit(put(b"b"))
    assert replica.rows(b"b", b"b") == []
    assert replica.rows(b"c", b"a") == []
    assert replica.rows(b"c", b"a", reverse=True) == []
    assert replica.rows(limit=0) == []
    assert [entry.key for entry in replica.rows(b"b", b"b\x00")] == [b"b"]


def test_an_iterator_is_lazy(replica: Replica) -> None:
    replica.apply(group(*(write(put(b"%03d" % at)) for at in range(300))))
    with replica.store.snapshot() as snapshot:
        rows = snapshot.iter_range(pb.ReadRange(start=b"", end=b"\xff", limit=250))
        first = [next(rows).key for _ in range(3)]
        replica.commit(put(b"000", b"newer"))
        rest = [entry.key for entry in rows]
    assert first + rest == [b"%03d" % at for at in range(250)]


def test_keys_of_other_kinds_are_absent(replica: Replica) -> None:
    with replica.store.snapshot() as snapshot:
        for key in (b"", b"\x80state", b"x" * 2_049, b"x" * 10_000):
            assert snapshot.get(key) == pb.KvEntry(key=key)


def test_closed_by_hand(replica: Replica) -> None:
    snapshot = replica.store.snapshot()
    snapshot.close()
    with replica.store.snapshot() as other:
        assert other.applied_index == 1
