"""Entries in, results out: order, time, versions, slices, and what a fault leaves behind."""

import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import SWEEP_LIMIT
from kvorum_node.store import DATA_VERSION, Store, StoreFault, history
from kvorum_node.store.commits import execute
from kvorum_node.store.queues import deaths, policies, timers, topics
from kvorum_raft.seams import StateMachine
from tests.unit.store.harness import (
    CLUSTER_ID,
    START_MS,
    Replica,
    add,
    batch,
    close_sessions,
    enqueue,
    group,
    init_cluster,
    lease,
    open_session,
    put,
    release,
    settle,
    sweep,
    write,
)


def test_it_is_the_state_machine_of_the_consensus_layer(replica: Replica) -> None:
    machine: StateMachine = replica.store
    assert machine.applied_index == 1


def test_where_it_stands(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state")
    store = replica.store
    assert (store.applied_index, store.applied_time_ms, store.cluster_id, store.stamp_base) == (0, 0, b"", 0)
    assert store.state_hash() == bytes(16)
    replica.apply(init_cluster())
    assert (store.applied_index, store.applied_time_ms, store.cluster_id) == (1, START_MS, CLUSTER_ID)
    replica.commit(put(b"a"))
    seen = store.state_hash()
    replica.reopen()
    store = replica.store
    assert (store.applied_index, store.applied_time_ms, store.cluster_id) == (2, START_MS, CLUSTER_ID)
    assert store.state_hash() == seen == store.recompute_hash()
    store.close()


def test_an_empty_payload_moves_index_and_time_only(replica: Replica) -> None:
    before = replica.store.state_hash()
    result = replica.store.apply_now(7, START_MS + 5, b"")
    assert (result.index, result.time_ms, result.outputs) == (7, START_MS + 5, [])
    assert (replica.store.applied_index, replica.store.applied_time_ms) == (7, START_MS + 5)
    assert replica.store.state_hash() == before
    replica.reopen(clean=False)
    assert replica.store.applied_index == 7


@pytest.mark.parametrize("index", [0, 1])
def test_an_entry_out_of_order_is_a_fault(replica: Replica, index: int) -> None:
    with pytest.raises(StoreFault, match=f"entry {index} comes after entry 1"):
        replica.store.apply_now(index, START_MS, b"")


def test_newer_apply_semantics_are_a_fault(replica: Replica) -> None:
    payload = batch(group(write(put(b"a"))), data_version=DATA_VERSION + 1)
    with pytest.raises(StoreFault, match=r"entry 2 needs data version 5; this version of kvorum knows 4: upgrade"):
        replica.store.apply_now(2, START_MS, payload)
    assert replica.store.applied_index == 1


def test_an_undecodable_entry_is_a_fault(replica: Replica) -> None:
    with pytest.raises(StoreFault, match="entry 2 cannot be decoded"):
        replica.store.apply_now(2, START_MS, b"\xff\xff\xff")
    assert replica.store.applied_index == 1
    replica.commit(put(b"a"))


def test_the_first_init_cluster_counts(replica: Replica) -> None:
    other = pb.InitCluster(cluster_id=b"y" * 16, stamp_base=5)
    replica.apply(pb.Command(init_cluster=other))
    assert (replica.store.cluster_id, replica.store.stamp_base) == (CLUSTER_ID, 0)


@pytest.mark.parametrize(("cluster_id", "base"), [(b"short", 0), (bytes(16), 1 << 63)])
def test_an_impossible_init_cluster_is_a_fault(tmp_path: Path, cluster_id: bytes, base: int) -> None:
    replica = Replica(tmp_path / "state")
    with pytest.raises(StoreFault, match="impossible id"):
        replica.apply(pb.Command(init_cluster=pb.InitCluster(cluster_id=cluster_id, stamp_base=base)))
    replica.store.close()


def test_outputs_of_commands(replica: Replica) -> None:
    outputs = replica.apply(
        group(write(put(b"a", expire_in_ms=0)), write(enqueue())), open_session(), sweep(), lease(b""),
        release(counts=True), close_sessions(), pb.Command(), init_cluster(),
    ).outputs  # fmt: skip
    assert isinstance(outputs[0], pb.ResultGroup)
    assert outputs[1:] == [(2).to_bytes(8, "big") + b"\x00\x02", 1, 1, None, None, None, None]


def worked_out(store: Store, payload: bytes) -> Generator[bool | None, None, Any]:
    """An entry that only has to be ended."""
    steps = store.apply(store.applied_index + 1, START_MS, payload)
    while next(steps) is not True:
        pass
    return steps


def test_what_is_worked_out_is_not_seen_before_its_end(replica: Replica) -> None:
    session = replica.session()
    before = replica.store.applied_index, replica.store.state_hash(), replica.store.statistics()
    steps = worked_out(replica.store, batch(group(write(put(b"a")), session=session), open_session()))
    assert (replica.store.applied_index, replica.store.state_hash(), replica.store.statistics()) == before
    assert len(replica.store.session_ids()) == 1
    with replica.store.snapshot() as snapshot:
        with pytest.raises(StopIteration) as end:
            next(steps)
        assert not snapshot.get(b"a").versionstamp, "it began before"
    assert end.value.value.outputs[0].results[0].outcome == pb.OUTCOME_DONE
    assert replica.store.applied_index == before[0] + 1
    assert len(replica.store.session_ids()) == 2
    assert replica.store.recompute_hash() == replica.store.state_hash()


def test_what_is_worked_out_and_given_up_leaves_nothing(tmp_path: Path) -> None:
    """Neither in the state nor in what is remembered of it: another entry at its place has the same results as on a
    node that never saw the first."""
    stores = []
    for given_up in (False, True):
        replica = Replica(tmp_path / str(given_up), data_version=DATA_VERSION)
        session = replica.session()
        replica.commit(enqueue())
        (held,) = replica.lease(session)
        if given_up:
            writes = group(write(put(b"a")), write(settle(held)), write(enqueue()), session=session)
            payload = batch(writes, lease(session, count=2), close_sessions(session), data_version=DATA_VERSION)
            worked_out(replica.store, payload).close()
        writes = group(write(put(b"b")), write(settle(held)), session=session)
        result = replica.apply(writes, lease(session, count=2))
        stores.append((replica.store.state_hash(), result.outputs, [grant.delivery for grant in result.granted]))
        assert replica.store.recompute_hash() == replica.store.state_hash()
        replica.store.close()
    assert stores[0] == stores[1]


def pauses(store: Store, payload: bytes) -> int:
    steps = store.apply(store.applied_index + 1, START_MS, payload)
    return sum(1 for step in steps if step is None)


def test_slices(replica: Replica) -> None:
    small = [write(put(b"%d" % at, expire_in_ms=0)) for at in range(1_000)]
    assert pauses(replica.store, batch(group(*small))) == 1_000 // 256
    heavy = [write(put(b"%d" % at, bytes(60_000))) for at in range(20)]
    assert pauses(replica.store, batch(group(*heavy))) == 2
    assert pauses(replica.store, batch(group(*small))) == 3
    assert pauses(replica.store, batch(sweep())) == SWEEP_LIMIT // 256
    messages = [write(*(enqueue() for _ in range(100))) for _ in range(10)]
    assert pauses(replica.store, batch(group(*messages))) >= 3
    assert pauses(replica.store, batch(lease(b"", count=1_000))) == 3
    held = [pb.Delivery(message_id=info.message_id, lease_id=info.lease_id) for info in replica.store.leases()]
    assert pauses(replica.store, batch(release(*held, counts=True))) == 3
    sessions = [replica.session() for _ in range(300)]
    assert pauses(replica.store, batch(*(group(write(), session=session) for session in sessions))) == 2
    assert pauses(replica.store, batch(close_sessions(*sessions))) == 2
    assert pauses(replica.store, batch(group(*small, session=b"unknown"))) == 3


def test_what_becomes_of_messages_is_cut_by_its_size(tmp_path: Path) -> None:
    """Small settles that write ten large values each, and the history of them: up to 640 KB a step."""
    replica = Replica(tmp_path / "messages", data_version=DATA_VERSION)
    session = replica.session()
    keys = [b"undelivered%d" % number for number in range(10)]
    for _ in range(12):
        replica.commit(enqueue(bytes(60_000), keys=keys, backoff=()))
    held = replica.lease(session, count=12)
    rejected = write(*(settle(delivery, pb.SETTLE_KIND_REJECT) for delivery in held[:6]))
    assert pauses(replica.store, batch(group(rejected), data_version=DATA_VERSION)) >= 6 + 1
    assert pauses(replica.store, batch(release(*held[6:], counts=True), data_version=DATA_VERSION)) >= 6 + 1
    replica.store.close()


def test_nothing_shows_before_the_entry_is_complete(replica: Replica) -> None:
    payload = batch(group(*(write(put(b"%04d" % at)) for at in range(600))))
    before = replica.store.state_hash()
    for _ in replica.store.apply(2, START_MS + 1, payload):
        assert replica.store.applied_index == 1
        assert replica.store.state_hash() == before
        assert replica.rows() == []
    assert len(replica.rows()) == 600


def test_a_given_up_entry_changes_nothing(replica: Replica) -> None:
    before = replica.store.state_hash()
    large = write(*(put(b"%04d" % at) for at in range(900)))
    for payload in (
        batch(group(*(write(put(b"%04d" % at)) for at in range(600)))),
        batch(group(large)),  # given up inside the commit's own transaction
    ):
        steps = replica.store.apply(2, START_MS, payload)
        next(steps)
        steps.close()
        assert (replica.store.applied_index, replica.store.state_hash()) == (1, before)
        replica.check_hash()
    replica.commit(put(b"a"))
    assert [entry.key for entry in replica.rows()] == [b"a"]


def test_any_other_exception_is_a_fault_and_changes_nothing(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    session = replica.session()
    before, index = replica.store.state_hash(), replica.store.applied_index
    calls = 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError
        return execute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("kvorum_node.store.commands.execute", failing)
    payload = batch(group(*(write(put(b"%d" % at)) for at in range(5)), session=session))
    with pytest.raises(MemoryError):
        replica.store.apply_now(index + 1, START_MS, payload)
    assert (replica.store.applied_index, replica.store.state_hash()) == (index, before)
    result = replica.store.apply_now(index + 1, START_MS, payload)
    assert {answer.outcome for answer in result.outputs[0].results} == {pb.OUTCOME_DONE}


def test_p42_a_full_map_is_a_fault_and_changes_nothing(tmp_path: Path) -> None:
    """P42, the store's part: a small map that fills up ends in an error, not a crash; deletes still work."""
    store = Store.open(tmp_path / "state", durable=False, map_size=1 << 20)
    index = 0
    with pytest.raises(lmdb.MapFullError):
        while True:
            store.apply_now(index + 1, START_MS, batch(group(write(put(b"%d" % index, bytes(20_000))))))
            index += 1
    assert store.applied_index == index > 10
    assert store.state_hash() == store.recompute_hash()
    used, size = store.statistics()["used_bytes"], store.statistics()["map_bytes"]
    assert 0.9 * size < used <= size
    keys = [pb.Mutation(key=b"%d" % at, type=pb.MUTATION_TYPE_DELETE) for at in range(index)]
    for key in keys:
        store.apply_now(store.applied_index + 1, START_MS, batch(group(write(key))))
    assert store.statistics()["keys"] == 0
    assert store.state_hash() == store.recompute_hash()
    store.close()


def test_too_many_commits_in_an_entry_are_refused_not_misnumbered(replica: Replica) -> None:
    writes = pb.WriteGroup(writes=[pb.Write(seq=1)] * 65_536)
    outputs = replica.apply(
        pb.Command(writes=writes), group(write(put(b"late"))), open_session(), sweep(), lease(b""), init_cluster()
    ).outputs
    assert [result.outcome for result in outputs[1].results] == [pb.OUTCOME_INVALID]
    assert outputs[2:] == [b"", 0, 0, None]
    assert {result.outcome for result in outputs[0].results} == {pb.OUTCOME_DONE}
    assert replica.rows() == []


def test_statistics(replica: Replica) -> None:
    session = replica.session()
    replica.commit(put(b"a"), put(b"b" * 1_000), enqueue(), enqueue())
    (delivery,) = replica.lease(session)
    replica.commit(settle(delivery))
    figures = replica.store.statistics()
    assert (figures["keys"], figures["messages"], figures["sessions"]) == (2, 1, 1)
    assert figures["map_bytes"] == 1 << 30
    assert 0 < figures["used_bytes"] < 1 << 20
    assert figures["applied_index"] == replica.store.applied_index
    assert all(isinstance(value, (int, float)) for value in figures.values())


def test_counters_survive_a_restart(replica: Replica) -> None:
    replica.session()
    replica.commit(put(b"a"), put(b"b" * 1_000), enqueue())
    before = replica.store.statistics()
    replica.reopen()
    after = replica.store.statistics()
    names = ("keys", "messages", "sessions", "rows", "applied_index", "applied_time_ms")
    assert [after[name] for name in names] == [before[name] for name in names]


def test_a_closed_store_says_so(replica: Replica) -> None:
    replica.store.close()
    replica.store.close()
    for use in (replica.store.snapshot, replica.store.leases, lambda: replica.store.apply_now(9, 0, b"")):
        with pytest.raises(StoreFault, match="closed"):
            use()
    replica.reopen()


def test_constants_of_apply_belong_to_the_data_version() -> None:
    """Replicas of two versions must apply one entry alike: who changes one of these needs a new DATA_VERSION."""
    assert DATA_VERSION == 4
    assert (limits.MAX_WRITE_KEY_SIZE, limits.MAX_VALUE_SIZE, limits.MAX_QUEUE_NAME_SIZE) == (2_048, 65_536, 256)
    assert (limits.SESSION_WINDOW, limits.MAX_SESSIONS) == (4_096, 100_000)
    assert (limits.SWEEP_LIMIT, limits.MAX_CREDITS) == (1_000, 1_000)
    assert (limits.MAX_DELETED_RANGE_KEYS, limits.MAX_READ_KEY_SIZE) == (1_000, 2_049)
    assert limits.DEFAULT_BACKOFF == (100, 1_000, 5_000, 30_000, 60_000)
    assert (limits.MAX_HISTORY_SIZE, limits.MAX_HISTORY_ROWS) == (64 << 20, 1 << 18)
    assert (limits.MAX_GROUP_SIZE, limits.MAX_DEDUP_ID_SIZE, limits.MAX_HEADERS_SIZE) == (128, 128, 4_096)
    assert (limits.MAX_FAILURES, limits.MAX_QUEUES, limits.QUEUE_CHUNK) == (10, 100_000, 256)
    assert (limits.MAX_REASON_SIZE, limits.DEFAULT_LEASE) == (1_024, 30_000)
    assert (limits.MAX_TOPICS, limits.MAX_SUBSCRIPTIONS, limits.MAX_COPIES) == (10_000, 256, 10_000)
    assert (limits.MAX_TOPIC_SIZE, limits.MAX_TOPIC_MESSAGES, limits.MAX_SCHEDULES) == (64 << 20, 100_000, 10_000)
    assert (deaths.WRITTEN_AT_ONCE, deaths.MOVED_AT_ONCE, topics.MAX_COPIED_SIZE) == (4 << 20, 4 << 20, 32 << 20)
    assert (topics._TRIMMED_BY_PUBLISH, topics._TRIMMED_BY_SWEEP, topics._FILLED_AT_ONCE) == (4, 256, 4 << 20)
    assert (topics._FILL_PAUSE, timers._COPIED_AT_ONCE, policies.EXPONENTIAL_ATTEMPTS) == (1_000, 16, 20)
    assert (limits.MAX_TOKENS, limits.MAX_TOKEN_SIZE, limits.MAX_TOKEN_NAME_SIZE) == (1_000, 16_384, 128)
    assert (history._ROW_SIZE, history._STEPS, history._BYTES_FOR_STEP) == (8_000, 16, 256)


def test_closing_while_in_use(replica: Replica) -> None:
    """An entry and a snapshot that are still open end with the store; the entry leaves nothing."""
    snapshot = replica.store.snapshot()
    before = replica.store.state_hash()
    steps = replica.store.apply(2, START_MS, batch(group(*(write(put(b"%d" % at)) for at in range(600)))))
    next(steps)
    replica.store.close()
    steps.close()
    snapshot.close()
    replica.reopen()
    assert (replica.store.applied_index, replica.store.state_hash()) == (1, before)


# ---- nothing that stands in the log may stop a node

FRAGMENTS = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda op, cut, junk: op.SerializeToString()[:cut] + junk,
        st.sampled_from(
            [
                write(put(b"k", expire_in_ms=1), add(b"k", 1)),
                write(pb.Check(key=b"k" * 600), enqueue(b"p", queue="q", keys=[b"k"], backoff=[1, 2])),
                write(pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_RETRY)),
            ]
        ),
        st.integers(0, 80),
        st.binary(max_size=10),
    ),
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    replica = Replica(tmp_path_factory.mktemp("fuzzed") / "state")
    replica.commit(put(b"k"), put(b"n", bytes(8), encoding=pb.VALUE_ENCODING_LE64), enqueue())
    yield replica
    replica.check_hash()
    replica.store.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FRAGMENTS, min_size=1, max_size=4))
def test_any_operation_bytes_have_a_result(fuzzed: Replica, ops: list[bytes]) -> None:
    results = fuzzed.apply(group(*ops)).outputs[0].results
    assert len(results) == len(ops)
    assert all(result.outcome for result in results)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_in_operations_have_a_result(fuzzed: Replica, seed: int) -> None:
    rng = random.Random(seed)
    whole = write(
        put(b"k", expire_in_ms=99), add(b"n", 5, low=1, high=9, clamp=True), enqueue(b"p", delay_ms=5, keys=[b"d"]),
        pb.Check(key=b"k", kind=pb.CHECK_KIND_EXISTS),
        pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_ACK),
    ).SerializeToString()  # fmt: skip
    for _ in range(60):
        ops = []
        for _ in range(10):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            ops.append(bytes(data))
        results = fuzzed.apply(group(*ops)).outputs[0].results
        assert all(result.outcome for result in results)
    fuzzed.check_hash()
