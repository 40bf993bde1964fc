"""A key exists until a sweep deletes it, and never a moment shorter."""

import pytest

from kvorum._proto import kvorum_pb2 as pb
from tests.unit.store.harness import START_MS, Replica, add, delete, group, put, suffixed, sweep, u64, write

LE64 = pb.VALUE_ENCODING_LE64


def swept(replica: Replica, limit: int = 1_000) -> int:
    count: int = replica.apply(sweep(limit)).outputs[0]
    return count


def test_p18_expiry(replica: Replica) -> None:
    """P18: a key that expires in 2 s is gone at 2.1 s (after the sweep that is due then), and not before 2 s."""
    replica.commit(put(b"a", expire_in_ms=2_000))
    replica.now_ms = START_MS + 1_999
    assert swept(replica) == 0
    assert replica.get(b"a") is not None
    replica.now_ms = START_MS + 2_100
    assert replica.store.next_expiry_ms() == START_MS + 2_000
    assert replica.get(b"a") is not None, "only a sweep deletes"
    assert swept(replica) == 1
    assert replica.get(b"a") is None
    assert replica.store.next_expiry_ms() is None


def test_a_key_is_present_for_all_until_swept(replica: Replica) -> None:
    replica.commit(put(b"a", expire_in_ms=1))
    replica.now_ms += 10
    assert replica.commit(pb.Check(key=b"a")).outcome == pb.OUTCOME_CHECK_FAILED
    assert [entry.key for entry in replica.rows()] == [b"a"]
    result = replica.apply(sweep())
    assert result.changed_keys == [b"a"]
    assert replica.commit(pb.Check(key=b"a")).outcome == pb.OUTCOME_DONE


def test_expiry_counts_from_the_entrys_time(replica: Replica) -> None:
    result = replica.apply(group(write(put(b"a", expire_in_ms=500)), write(put(b"b", expire_in_ms=300))))
    assert result.earliest_expiry_ms == START_MS + 300
    with replica.store.snapshot() as snapshot:
        assert snapshot.expire_at_ms(b"a") == START_MS + 500
        assert snapshot.expire_at_ms(b"missing") is None


def test_zero_expires_with_the_next_sweep(replica: Replica) -> None:
    replica.commit(put(b"a", expire_in_ms=0))
    assert replica.get(b"a") is not None
    assert swept(replica) == 1


@pytest.mark.parametrize("successor", [put(b"a", u64(1), encoding=LE64), add(b"a", 1), put(b"a", expire_in_ms=9_000)])
def test_a_newer_write_replaces_the_expiry(replica: Replica, successor: pb.Mutation) -> None:
    replica.commit(put(b"a", u64(1), encoding=LE64, expire_in_ms=1))
    replica.commit(successor)
    replica.now_ms += 100
    assert swept(replica) == 0
    assert replica.get(b"a") is not None


def test_a_deleted_key_leaves_no_expiry(replica: Replica) -> None:
    replica.commit(put(b"a", expire_in_ms=1), put(b"a", expire_in_ms=5))
    assert replica.store.next_expiry_ms() == START_MS + 5
    replica.commit(delete(b"a"))
    assert replica.store.next_expiry_ms() is None


def test_long_and_suffixed_keys_expire(replica: Replica) -> None:
    replica.commit(put(b"k" * 2_048, expire_in_ms=1), suffixed(b"s", expire_in_ms=1))
    rows = len(replica.rows())
    replica.now_ms += 1
    assert (rows, swept(replica), replica.rows()) == (2, 2, [])


def test_a_sweep_is_bounded_and_takes_the_earliest_first(replica: Replica) -> None:
    for at in range(5):
        replica.commit(put(b"%d" % at, expire_in_ms=10 - at))
    replica.now_ms += 20
    assert swept(replica, 2) == 2
    assert [entry.key for entry in replica.rows()] == [b"0", b"1", b"2"]
    assert swept(replica) == 3


def test_a_sweep_never_deletes_more_than_a_thousand(replica: Replica) -> None:
    replica.apply(group(*(write(put(b"%d" % at, expire_in_ms=0)) for at in range(1_100))))
    assert swept(replica, 4_000_000_000) == 1_000
    assert swept(replica, 0) == 100


def test_a_sweep_takes_a_versionstamp_number(replica: Replica) -> None:
    outputs = replica.apply(sweep(), group(write(put(b"a")))).outputs
    assert outputs[1].results[0].number == 1


def test_an_older_entry_time_counts_as_the_newest_seen(replica: Replica) -> None:
    replica.commit(put(b"a", expire_in_ms=10))
    replica.now_ms -= 5_000
    result = replica.apply(group(write(put(b"b", expire_in_ms=20))))
    assert result.time_ms == START_MS
    assert result.earliest_expiry_ms == START_MS + 20
