"""Atomic writes: checks, order of mutations, versionstamps, and that nothing stays of what was refused."""

import pytest

from kvorum._proto import kvorum_pb2 as pb
from tests.unit.store.harness import (
    BYTES,
    LE64,
    V8,
    Replica,
    add,
    combine,
    delete,
    enqueue,
    group,
    init_cluster,
    number,
    put,
    suffixed,
    u64,
    write,
)

SUM = pb.MUTATION_TYPE_SUM
DONE, FAILED = pb.OUTCOME_DONE, pb.OUTCOME_CHECK_FAILED


def stamp(index: int, commit: int = 0) -> bytes:
    return index.to_bytes(8, "big") + commit.to_bytes(2, "big")


def test_set_get_delete(replica: Replica) -> None:
    assert replica.commit(put(b"a", b"1")).outcome == DONE
    assert replica.entry(b"a") == pb.KvEntry(key=b"a", value=b"1", encoding=BYTES, versionstamp=stamp(2))
    replica.commit(put(b"a", b"2", encoding=V8))
    assert replica.entry(b"a") == pb.KvEntry(key=b"a", value=b"2", encoding=V8, versionstamp=stamp(3))
    replica.commit(delete(b"a"))
    assert replica.entry(b"a") == pb.KvEntry(key=b"a")
    assert replica.commit(delete(b"a")).outcome == DONE


@pytest.mark.parametrize("size", [1, 495, 496, 1_000, 2_048])
def test_long_keys_and_values(replica: Replica, size: int) -> None:
    key = b"k" * size
    rows = replica.store.statistics()["rows"]
    replica.commit(put(key, b"v" * 65_536))
    assert replica.get(key) == (BYTES, b"v" * 65_536)
    assert [entry.key for entry in replica.rows()] == [key]
    replica.commit(delete(key))
    assert replica.get(key) is None
    assert replica.store.statistics()["keys"] == 0
    assert replica.store.statistics()["rows"] == rows


def test_equal_values_written_again_get_a_new_versionstamp(replica: Replica) -> None:
    replica.commit(put(b"a", b"1"))
    first = replica.entry(b"a").versionstamp
    replica.commit(put(b"a", b"1"))
    assert replica.entry(b"a").versionstamp > first


def test_all_keys_of_a_commit_share_its_versionstamp_and_commits_are_numbered_through_the_batch(
    replica: Replica,
) -> None:
    answers = replica.apply(group(write(put(b"a"), put(b"b")), write(put(b"c"))), group(write(put(b"d")))).outputs
    assert [result.number for answer in answers for result in answer.results] == [0, 1, 2]
    assert {answer.stamp_prefix for answer in answers} == {stamp(2)[:8]}
    stamps = {entry.key: entry.versionstamp for entry in replica.rows()}
    assert stamps == {b"a": stamp(2, 0), b"b": stamp(2, 0), b"c": stamp(2, 1), b"d": stamp(2, 2)}


def test_the_stamp_base_shifts_stamps(replica: Replica) -> None:
    other = Replica(replica.path.parent / "shifted")
    base = 1_700_000_000_000 << 20
    other.apply(init_cluster(base))
    assert other.store.stamp_base == base
    other.commit(put(b"a"))
    assert other.entry(b"a").versionstamp == stamp(base + 2)
    with other.store.snapshot() as snapshot:
        assert snapshot.versionstamp == stamp(base + 2, 0xFFFF)
    other.store.close()


def test_an_empty_commit_is_done(replica: Replica) -> None:
    assert replica.commit().outcome == DONE


def test_mutations_of_one_key_apply_in_order(replica: Replica) -> None:
    replica.commit(put(b"n", u64(10), encoding=LE64))
    replica.commit(delete(b"n"), combine(SUM, b"n", u64(1)), combine(SUM, b"n", u64(2)))
    assert replica.get(b"n") == (LE64, u64(3))
    replica.commit(put(b"n"), delete(b"n"))
    assert replica.get(b"n") is None


def test_checks_see_the_state_before_the_commit(replica: Replica) -> None:
    assert replica.commit(put(b"a"), pb.Check(key=b"a")).outcome == DONE
    assert replica.commit(put(b"a"), pb.Check(key=b"a")).outcome == FAILED


def test_p12_a_failed_check_is_named(replica: Replica) -> None:
    """P12: three checks, the second is stale: failed_checks == [1]."""
    for key in (b"a", b"b", b"c"):
        replica.commit(put(key))
    stamps = {key: replica.entry(key).versionstamp for key in (b"a", b"b", b"c")}
    replica.commit(put(b"b"))
    checks = [pb.Check(key=key, versionstamp=seen) for key, seen in stamps.items()]
    before = replica.store.state_hash()
    result = replica.commit(*checks, put(b"x"), enqueue())
    assert result.outcome == FAILED
    assert list(result.failed_checks) == [1]
    assert replica.store.state_hash() == before
    assert replica.get(b"x") is None


def test_all_failing_checks_are_named(replica: Replica) -> None:
    replica.commit(put(b"a"))
    checks = [pb.Check(key=b"a"), pb.Check(key=b"b"), pb.Check(key=b"c", versionstamp=stamp(2)), pb.Check(key=b"a")]
    assert list(replica.commit(*checks).failed_checks) == [0, 2, 3]


def test_p13_checks_for_existence_and_not_newer(replica: Replica) -> None:
    """P13: checks "exists" and "not newer than"."""
    exists, not_newer = pb.CHECK_KIND_EXISTS, pb.CHECK_KIND_NOT_NEWER
    assert replica.commit(pb.Check(key=b"a", kind=exists)).outcome == FAILED
    assert replica.commit(pb.Check(key=b"a", kind=not_newer, versionstamp=stamp(99))).outcome == FAILED
    replica.commit(put(b"a"))
    now = replica.entry(b"a").versionstamp
    assert replica.commit(pb.Check(key=b"a", kind=exists)).outcome == DONE
    for seen, outcome in ((now, DONE), (stamp(99), DONE), (stamp(1), FAILED)):
        assert replica.commit(pb.Check(key=b"a", kind=not_newer, versionstamp=seen)).outcome == outcome


def test_p08_a_counter_can_go_down(replica: Replica) -> None:
    """P08: set 100, sum -3: 97; with minimum 0 and clamp never below 0; without clamp an error, nothing applied."""
    replica.commit(put(b"n", number(100.0), encoding=V8))
    replica.commit(add(b"n", -3))
    assert replica.get(b"n") == (V8, number(97.0))
    replica.commit(add(b"n", -200, low=0, clamp=True))
    assert replica.get(b"n") == (V8, number(0.0))
    before = replica.store.state_hash()
    result = replica.commit(put(b"other"), add(b"n", -1, low=0))
    assert result.outcome == pb.OUTCOME_RANGE_ERROR
    assert replica.store.state_hash() == before

    replica.commit(put(b"u", u64(100), encoding=LE64))
    replica.commit(add(b"u", -3))
    assert replica.get(b"u") == (LE64, u64(97))
    assert replica.commit(add(b"u", -98)).outcome == pb.OUTCOME_RANGE_ERROR
    replica.commit(add(b"u", -98, clamp=True))
    assert replica.get(b"u") == (LE64, u64(0))


def test_a_commit_that_fails_midway_leaves_nothing(replica: Replica) -> None:
    replica.commit(put(b"text", b"x"), put(b"old", b"1", expire_in_ms=50))
    before, keys = replica.store.state_hash(), replica.store.statistics()["rows"]
    failing = write(
        put(b"new" * 300), put(b"old", b"2", expire_in_ms=10), delete(b"text"), put(b"text"), add(b"text", 1),
        put(b"z"), enqueue(b"x", queue="q"),
    )  # fmt: skip
    result = replica.apply(group(failing, write(put(b"after"), delete(b"after"))))
    assert [answer.outcome for answer in result.outputs[0].results] == [pb.OUTCOME_TYPE_ERROR, DONE]
    assert result.outputs[0].results[0].message == "unsupported value type"
    assert replica.store.state_hash() == before
    assert replica.store.statistics()["rows"] == keys
    assert result.changed_keys == [b"after", b"after"]
    assert result.ready == {}
    assert result.earliest_expiry_ms is None
    assert replica.store.next_expiry_ms() == replica.now_ms + 50
    assert replica.store.next_due_ms("q") is None


def test_changed_keys(replica: Replica) -> None:
    result = replica.apply(group(write(put(b"a"), delete(b"b"), add(b"c", 1), suffixed(b"d"))))
    suffix = b"\x02" + stamp(2).hex().encode() + b"\x00"
    assert result.changed_keys == [b"a", b"b", b"c", b"d" + suffix, b"d"]


def test_versionstamp_suffix(replica: Replica) -> None:
    replica.commit(suffixed(b"log", b"1"), suffixed(b"log", b"2"), suffixed(b"other", b"3"))
    suffix = b"\x02" + b"00000000000000020000" + b"\x00"
    assert [(entry.key, entry.value) for entry in replica.rows()] == [
        (b"log" + suffix, b"2"),
        (b"other" + suffix, b"3"),
    ]
    longest = b"k" * (2_048 - len(suffix))
    assert replica.commit(suffixed(longest)).outcome == DONE
    assert replica.commit(suffixed(longest + b"k")).outcome == pb.OUTCOME_INVALID


@pytest.mark.parametrize(
    "mutation",
    [
        put(b""),
        put(b"k" * 2_049),
        put(b"k", encoding=pb.VALUE_ENCODING_UNSPECIFIED),
        put(b"k", b"short", encoding=LE64),
        put(b"k", expire_in_ms=(1 << 64) - 1),
        pb.Mutation(key=b"k"),
        pb.Mutation(key=b"k", type=77),  # type: ignore[arg-type]
        pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SET, encoding=9),  # type: ignore[arg-type]
    ],
)
def test_what_the_leader_should_have_refused_is_a_result(replica: Replica, mutation: pb.Mutation) -> None:
    before = replica.store.state_hash()
    assert replica.commit(mutation).outcome == pb.OUTCOME_INVALID
    assert replica.commit(put(b"a"), mutation, put(b"b")).outcome == pb.OUTCOME_INVALID
    assert replica.store.state_hash() == before


def test_an_undecodable_operation_is_a_result(replica: Replica) -> None:
    answers = replica.apply(group(b"\xff\xff", write(put(b"a")))).outputs[0]
    assert [result.outcome for result in answers.results] == [pb.OUTCOME_INVALID, DONE]


def test_a_large_commit_runs_in_slices_and_is_still_all_or_nothing(replica: Replica) -> None:
    keys = [b"key%04d" % at for at in range(1_000)]
    before = replica.store.state_hash()
    payload = pb.Batch(commands=[group(write(*map(put, keys), add(b"key0000", 1)))]).SerializeToString()
    steps = replica.store.apply(2, replica.now_ms, payload)
    pauses = 0
    while True:
        try:
            pauses += next(steps) is None
        except StopIteration as stop:
            outcome = stop.value.outputs[0].results[0].outcome
            break
        assert replica.store.applied_index == 1
        assert replica.rows() == []
    assert pauses == 3
    assert outcome == pb.OUTCOME_TYPE_ERROR
    assert replica.store.state_hash() == before
    assert replica.apply(group(write(*map(put, keys)))).outputs[0].results[0].outcome == DONE
    assert len(replica.rows()) == 1_000


def test_the_wire_sum_on_a_counter(replica: Replica) -> None:
    replica.commit(combine(SUM, b"n", u64((1 << 64) - 1)))
    replica.commit(combine(SUM, b"n", u64(5)))
    assert replica.get(b"n") == (LE64, u64(4))
    assert replica.commit(
        combine(pb.MUTATION_TYPE_MAX, b"n", u64(9)), combine(pb.MUTATION_TYPE_MIN, b"n", u64(6))
    ).outcome
    assert replica.get(b"n") == (LE64, u64(6))
