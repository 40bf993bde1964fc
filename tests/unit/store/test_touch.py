"""Touching keys and deleting ranges: what stays, what goes, and what both may not do."""

from pathlib import Path

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import DATA_VERSION, StoreFault, checked
from tests.unit.store.harness import (
    LE64,
    START_MS,
    Replica,
    add,
    delete,
    delete_range,
    enqueue,
    group,
    init_cluster,
    open_session,
    put,
    sweep,
    touch,
    u64,
    write,
)

LONG = b"k" * 2_048


@pytest.fixture
def replica(replica: Replica) -> Replica:
    replica.data_version = DATA_VERSION
    return replica


def check(replica: Replica) -> None:
    """Everything fits together, indexes included."""
    list(replica.store.scrub(1_000))


def expiry(replica: Replica, key: bytes) -> int | None:
    with replica.store.snapshot() as snapshot:
        return snapshot.expire_at_ms(key)


# ---- touch


@pytest.mark.parametrize("key", [b"a", LONG])
@pytest.mark.parametrize("first", [None, 10, 50])
def test_a_touch_changes_the_expiry_and_nothing_else(replica: Replica, key: bytes, first: int | None) -> None:
    replica.commit(put(key, u64(7), encoding=LE64, expire_in_ms=first))
    before = replica.entry(key)
    replica.now_ms += 5
    for expire_in, at in ((20, START_MS + 25), (70, START_MS + 75), (None, None), (None, None), (1, START_MS + 6)):
        result = replica.apply(group(write(touch(key, expire_in))))
        assert result.outputs[0].results[0].outcome == pb.OUTCOME_DONE
        assert result.changed_keys == [], "no watch hears of it"
        assert result.earliest_expiry_ms == at
        assert replica.entry(key) == before
        assert expiry(replica, key) == replica.store.next_expiry_ms() == at
        with replica.store.snapshot() as snapshot:
            assert snapshot.get(key, with_expiry=True).expire_at_ms == (at or 0)
        check(replica)
    replica.now_ms = START_MS + 5
    assert replica.apply(sweep()).outputs == [0]
    replica.now_ms += 1
    assert replica.apply(sweep()).outputs == [1]
    assert replica.get(key) is None and replica.store.next_expiry_ms() is None


def test_a_touched_key_still_passes_the_checks_of_who_read_it(replica: Replica) -> None:
    replica.commit(put(b"a"))
    stamp = replica.entry(b"a").versionstamp
    replica.commit(touch(b"a", 9))
    assert replica.commit(pb.Check(key=b"a", versionstamp=stamp)).outcome == pb.OUTCOME_DONE


def test_an_absent_key_stays_absent(replica: Replica) -> None:
    assert replica.commit(touch(b"none", 5)).outcome == pb.OUTCOME_DONE
    assert replica.commit(touch(b"none")).outcome == pb.OUTCOME_DONE
    assert replica.commit(touch(LONG, 5)).outcome == pb.OUTCOME_DONE
    assert (replica.get(b"none"), replica.store.next_expiry_ms()) == (None, None)
    assert replica.store.statistics()["keys"] == 0


def test_keys_of_one_commit_touched_to_one_time_by_others_do_not_collide(replica: Replica) -> None:
    """Their rows have one versionstamp, and each was touched by the first mutation of a commit, to the same time."""
    keys = [b"%d" % at for at in range(20)]
    replica.commit(*(put(key, expire_in_ms=3) for key in keys))
    replica.apply(group(*(write(touch(key, 7)) for key in keys)))
    check(replica)
    replica.commit(touch(b"3", 100), touch(b"4"))
    check(replica)
    replica.now_ms += 7
    assert replica.apply(sweep()).outputs == [18]
    assert [row.key for row in replica.rows()] == [b"3", b"4"]
    check(replica)


def test_the_scrub_knows_touched_rows(replica: Replica) -> None:
    """Their index rows must be there, and nothing else."""
    replica.commit(put(b"a", expire_in_ms=5))
    replica.commit(touch(b"a", 9))
    with replica.store._env.begin(write=True) as txn, txn.cursor() as cursor:
        assert cursor.set_range(b"\xb0")
        name, row = cursor.item()
        cursor.delete()
    with pytest.raises(StoreFault, match="missing"):
        check(replica)
    with replica.store._env.begin(write=True) as txn:
        txn.put(name, row)
    check(replica)
    other = name[:9] + bytes(12)
    with replica.store._env.begin(write=True) as txn:
        txn.put(other, checked.seal(other, b"a"))
    with pytest.raises(StoreFault, match="not what was written"):
        check(replica)
    with replica.store._env.begin(write=True) as txn:
        txn.delete(other)


def test_within_one_commit_the_last_touch_or_set_counts(replica: Replica) -> None:
    replica.commit(put(b"a", expire_in_ms=5), touch(b"a", 9), touch(b"a", 4))
    assert expiry(replica, b"a") == START_MS + 4
    replica.commit(touch(b"a", 9), put(b"a"))
    assert expiry(replica, b"a") is None
    replica.commit(touch(b"a", 9), delete(b"a"))
    assert replica.store.next_expiry_ms() is None
    check(replica)


@pytest.mark.parametrize("successor", [put(b"a", u64(1), encoding=LE64), add(b"a", 1), delete(b"a")])
def test_a_newer_write_drops_the_expiry_of_a_touched_key(replica: Replica, successor: pb.Mutation) -> None:
    replica.commit(put(b"a", u64(1), encoding=LE64))
    replica.commit(touch(b"a", 5))
    assert replica.commit(successor).outcome == pb.OUTCOME_DONE
    assert replica.store.next_expiry_ms() is None
    check(replica)


def test_a_sum_reads_the_value_of_a_touched_row(replica: Replica) -> None:
    replica.commit(put(b"a", u64(40), encoding=LE64))
    replica.commit(touch(b"a", 5))
    replica.commit(add(b"a", 2))
    assert replica.get(b"a") == (LE64, u64(42))


# ---- ranges


def fill(replica: Replica, count: int, *, longer: bytes = b"") -> list[bytes]:
    keys = [b"r%05d" % at + longer for at in range(count)]
    for begin in range(0, count, 500):
        replica.apply(group(*(write(put(key)) for key in keys[begin : begin + 500])))
    return keys


def keys_of(replica: Replica) -> list[bytes]:
    return [row.key for row in replica.rows()]


@pytest.mark.parametrize("longer", [b"", b"x" * 1_000], ids=["short", "long"])
def test_a_range_takes_its_start_and_not_its_end(replica: Replica, longer: bytes) -> None:
    keys = fill(replica, 10, longer=longer)
    result = replica.apply(group(write(delete_range(keys[3], keys[6]))))
    answer = result.outputs[0].results[0]
    assert (answer.outcome, answer.deleted) == (pb.OUTCOME_DONE, 3)
    assert result.changed_keys == keys[3:6], "watches hear of each key"
    assert keys_of(replica) == keys[:3] + keys[6:]
    assert replica.store.statistics()["keys"] == 7
    assert replica.commit(delete_range(b"", b"\xff" * 2_049)).deleted == 7
    assert keys_of(replica) == []
    check(replica)


def test_a_range_may_be_empty_or_hold_nothing(replica: Replica) -> None:
    keys = fill(replica, 3)
    for start, end in ((keys[1], keys[1]), (keys[2], keys[0]), (b"s", b"t")):
        answer = replica.commit(delete_range(start, end))
        assert (answer.outcome, answer.deleted) == (pb.OUTCOME_DONE, 0)
    assert keys_of(replica) == keys


def test_expiring_and_touched_keys_leave_no_index_behind(replica: Replica) -> None:
    replica.commit(put(b"ra", expire_in_ms=5), put(b"rb"), put(LONG, expire_in_ms=5))
    replica.commit(touch(b"rb", 3))
    assert replica.commit(delete_range(b"k", b"s")).deleted == 3
    assert replica.store.next_expiry_ms() is None
    check(replica)


def test_a_limit_takes_the_first_keys(replica: Replica) -> None:
    keys = fill(replica, 1_500)
    assert replica.commit(delete_range(b"r", b"s", limit=2)).deleted == 2
    assert replica.commit(delete_range(b"r", b"s", limit=1_000)).deleted == 1_000
    assert keys_of(replica) == keys[1_002:]
    assert replica.commit(delete_range(b"r", b"s", limit=1_000)).deleted == 498


def test_more_keys_than_a_commit_may_delete_are_a_range_error_and_nothing_happens(replica: Replica) -> None:
    most = limits.MAX_DELETED_RANGE_KEYS
    keys = fill(replica, most + 1)
    before = replica.store.state_hash()
    for parts in (
        [delete_range(b"r", b"s")],
        [put(b"other"), delete_range(b"r", b"s")],
        [delete_range(b"r", keys[500]), put(b"other"), delete_range(keys[500], b"s")],
        [delete_range(b"r", b"s", limit=most), delete_range(b"r", b"s", limit=1)],
    ):
        answer = replica.commit(*parts)
        assert (answer.outcome, answer.deleted) == (pb.OUTCOME_RANGE_ERROR, 0)
        assert "1,000 keys (MAX_DELETED_RANGE_KEYS)" in answer.message
        assert replica.store.state_hash() == before
    assert replica.commit(delete(keys[0]), delete_range(b"r", b"s")).deleted == most
    assert keys_of(replica) == []


def test_each_commit_counts_anew(replica: Replica) -> None:
    fill(replica, 10)
    results = (
        replica.apply(
            group(
                write(delete_range(b"r", b"s", limit=4)),
                write(put(b"x")),
                write(put(b"y"), put(b"z")),
                write(delete_range(b"r", b"s")),
            )
        )
        .outputs[0]
        .results
    )
    assert [result.deleted for result in results] == [4, 0, 0, 6]


def test_the_checks_of_a_commit_hold_back_its_ranges(replica: Replica) -> None:
    keys = fill(replica, 3)
    answer = replica.commit(pb.Check(key=b"none", kind=pb.CHECK_KIND_EXISTS), delete_range(b"r", b"s"))
    assert (answer.outcome, answer.deleted, keys_of(replica)) == (pb.OUTCOME_CHECK_FAILED, 0, keys)


def test_a_repeated_write_gets_the_number_that_it_got_first(replica: Replica) -> None:
    fill(replica, 5)
    session = replica.session()
    op = write(delete_range(b"r", b"s"))
    first = replica.apply(group(op, session=session, first_seq=1)).outputs[0].results[0]
    fill(replica, 2)
    replica.reopen()
    again = replica.apply(group(op, session=session, first_seq=1)).outputs[0].results[0]
    assert (first.deleted, again.deleted, again.outcome) == (5, 5, pb.OUTCOME_DONE)
    assert list(again.failed_checks) == [] and again.number == first.number
    assert len(keys_of(replica)) == 2


def test_a_large_range_is_deleted_in_slices(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state", slice_commits=64, data_version=DATA_VERSION)
    replica.apply(init_cluster())
    fill(replica, 1_000)
    payload = pb.Batch(data_version=DATA_VERSION, commands=[group(write(delete_range(b"r", b"s")))]).SerializeToString()
    steps = replica.store.apply(replica.store.applied_index + 1, START_MS, payload)
    assert sum(1 for _ in steps) >= 30, "a slice deletes 32 keys at most"
    assert keys_of(replica) == []
    replica.store.close()


def test_an_entry_that_is_given_up_in_the_middle_of_a_range_leaves_nothing(replica: Replica) -> None:
    keys = fill(replica, 900)
    before = replica.store.state_hash()
    payload = pb.Batch(data_version=DATA_VERSION, commands=[group(write(delete_range(b"r", b"s")))]).SerializeToString()
    steps = replica.store.apply(replica.store.applied_index + 1, START_MS, payload)
    for _ in range(4):
        next(steps)
    steps.close()
    assert (replica.store.state_hash(), keys_of(replica)) == (before, keys)


# ---- what apply refuses


@pytest.mark.parametrize(
    "mutation",
    [
        delete_range(b"a", b""),
        delete_range(b"a" * 2_050, b"b"),
        delete_range(b"a", b"b" * 2_050),
        delete_range(b"a", b"b", limit=1_001),
        touch(b""),
        touch(b"k" * 2_049),
        touch(b"a", (1 << 53) + 1),
    ],
)
def test_what_validation_should_have_refused_is_invalid(replica: Replica, mutation: pb.Mutation) -> None:
    replica.commit(put(b"a"))
    before = replica.store.state_hash()
    for parts in ([mutation], [put(b"b"), mutation]):
        assert replica.commit(*parts).outcome == pb.OUTCOME_INVALID
    assert replica.store.state_hash() == before


@pytest.mark.parametrize("mutation", [touch(b"a", 5), touch(b"a"), delete_range(b"a", b"b")])
def test_an_entry_of_data_version_1_knows_neither(replica: Replica, mutation: pb.Mutation) -> None:
    """A node of that version refuses them with these words, and the words are a part of the state."""
    replica.data_version = 1
    replica.commit(put(b"a", expire_in_ms=50))
    for parts in ([mutation], [put(b"b"), mutation], [enqueue(), mutation]):
        answer = replica.commit(*parts)
        assert (answer.outcome, answer.message) == (pb.OUTCOME_INVALID, "unknown mutation type")
    assert (keys_of(replica), expiry(replica, b"a")) == ([b"a"], START_MS + 50)


GOLDEN = "280efcdcab3cc36dd4ba982765b64aa0"


def test_the_hash_of_a_known_log(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state")
    replica.apply(init_cluster(), open_session("golden"))
    session = (1).to_bytes(8, "big") + b"\x00\x01"
    replica.data_version = 2
    replica.apply(
        group(
            write(put(b"a", expire_in_ms=5), put(b"b"), put(b"c"), put(b"d")),
            write(touch(b"a", 9), touch(b"b", 9)),
            write(delete_range(b"c", b"e")),
            session=session,
        )
    )
    assert replica.store.state_hash().hex() == GOLDEN
    replica.store.close()
