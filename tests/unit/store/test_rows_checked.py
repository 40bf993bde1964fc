"""Each row's checksum, on each way to read it; the scrub; what damage leaves behind."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import DatabaseCorrupt
from kvorum_node.store import DATA_VERSION, Damaged, Store, StoreFault, checked, environment
from kvorum_node.store import records as layout
from tests.unit.store.harness import (
    START_MS,
    Replica,
    batch,
    close_sessions,
    define,
    define_schedule,
    define_topic,
    delete,
    enqueue,
    group,
    init_cluster,
    lease,
    open_session,
    put,
    release,
    settle,
    subscribe,
    sweep,
    write,
)

LONG = b"long" * 300
ALL = pb.ReadRange(start=b"", end=b"\xff" * 4, limit=1_000)
DOWN = pb.ReadRange(start=b"", end=b"\xff" * 4, limit=1_000, reverse=True)
USER = b"\x00"


class Patient(Replica):
    """A replica with one of everything, whose rows can be changed from below."""

    def fill(self) -> None:
        self.apply(init_cluster())
        self.client = self.session()
        self.apply(group(write(put(b"a", b"1")), session=self.client))
        self.commit(put(LONG, b"2", expire_in_ms=50))
        self.commit(enqueue(b"job", queue="q", keys=[b"dead"]))
        self.apply(
            define("s", ordered=True, max_attempts=5),
            define_topic("t", 1_000),
            define_schedule("cron", enqueue(b"tick", queue="s"), START_MS + 1_000),
        )
        self.commit(enqueue(b"retained", topic="t"), enqueue(b"one", queue="s", ttl_ms=1_000))
        self.apply(subscribe("t", "u"))
        self.commit(enqueue(b"failed", queue="d"), enqueue(b"two", queue="s", dedup_id=b"id", window_ms=1_000))
        (dead,) = self.lease(self.client, queue="d")
        self.commit(settle(dead, pb.SETTLE_KIND_REJECT, reason="no"))
        self.commit(enqueue(b"other", queue="r"))
        (self.held,) = self.lease(self.client, queue="r")
        made = pb.PutToken(id=b"token--1", secret=bytes(32), name="one")
        self.apply(pb.Command(put_token=made), pb.Command(switch_auth=pb.SwitchAuth(on=False)))
        owned = open_session()
        owned.principal = made.id
        self.apply(owned)

    def names(self, table: bytes) -> list[bytes]:
        with self.store._env.begin() as txn, txn.cursor() as cursor:
            return [name for name in cursor.iternext(keys=True, values=False) if name.startswith(table)]

    def change(self, name: bytes, how: "Callable[[bytes], bytes | None] | Callable[[bytes], None]") -> None:
        """From below, as a broken disk would."""
        with self.store._env.begin(write=True) as txn:
            row = how(txn.get(name, b""))
            if row is None:
                txn.delete(name)
            else:
                txn.put(name, row)
        self.store._commands.forget()

    def damage(self, table: bytes, at: int = 0) -> bytes:
        name = self.names(table)[at]
        self.change(name, lambda row: bytes([row[0] ^ 1]) + row[1:])
        return name


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    made = Patient(tmp_path / "state", data_version=DATA_VERSION)
    made.fill()
    return made


def end(patient: Patient) -> None:
    patient.store.close(clean=False)


def snapshot_get(key: bytes) -> Callable[[Patient], object]:
    return lambda patient: patient.entry(key)


def snapshot_range(selected: pb.ReadRange) -> Callable[[Patient], object]:
    return lambda patient: patient.rows(selected.start, selected.end, reverse=selected.reverse)


def commit(*parts: pb.Mutation | pb.Check | pb.Enqueue) -> Callable[[Patient], object]:
    return lambda patient: patient.commit(*parts)


def command(made: pb.Command) -> Callable[[Patient], object]:
    return lambda patient: patient.apply(made)


def versionstamp(patient: Patient) -> object:
    with patient.store.snapshot() as snapshot:
        return snapshot.versionstamp


def expiry_of_long(patient: Patient) -> object:
    with patient.store.snapshot() as snapshot:
        return snapshot.expire_at_ms(LONG)


def topics(patient: Patient) -> object:
    with patient.store.snapshot() as snapshot:
        return snapshot.topic_infos(b"", 5)


def sweep_later(patient: Patient) -> object:
    patient.now_ms += 100
    return patient.apply(sweep())


def use_session(patient: Patient) -> object:
    return patient.apply(group(write(put(b"z")), session=patient.client, first_seq=5))


WAYS: list[tuple[str, bytes, int, Callable[[Patient], object]]] = [
    ("get", USER, 0, snapshot_get(b"a")),
    ("range", USER, 0, snapshot_range(ALL)),
    ("range, descending", USER, 0, snapshot_range(DOWN)),
    ("get through a node", USER, 1, snapshot_get(LONG)),
    ("range through a node", USER, 1, snapshot_range(ALL)),
    ("range through a node, descending", USER, 1, snapshot_range(DOWN)),
    ("get below a node", USER, -1, snapshot_get(LONG)),
    ("range below a node", USER, -1, snapshot_range(ALL)),
    ("expiry of a key", USER, -1, expiry_of_long),
    ("check", USER, 0, commit(pb.Check(key=b"a", kind=pb.CHECK_KIND_EXISTS), put(b"b"))),
    ("overwrite", USER, 0, commit(put(b"a"))),
    ("overwrite below a node", USER, -1, commit(put(LONG))),
    ("overwrite through a node", USER, 1, commit(put(LONG))),
    ("delete", USER, 0, commit(delete(b"a"))),
    ("delete through a node", USER, 1, commit(delete(LONG))),
    ("sweep, index", layout.EXPIRY, 0, sweep_later),
    ("sweep, key", USER, -1, sweep_later),
    ("session of a write", layout.SESSION, 0, use_session),
    ("sessions", layout.SESSION, 0, lambda patient: patient.store.session_ids()),
    (
        "session exists",
        layout.SESSION,
        0,
        lambda patient: patient.store.session_exists(patient.names(layout.SESSION)[0][1:]),
    ),
    ("results of a write", layout.RESULT, 0, use_session),
    ("closing a session", layout.RESULT, 0, lambda patient: patient.apply(close_sessions(patient.client))),
    ("lease, message", layout.MESSAGE, 0, command(lease(b"", queue="q"))),
    ("lease, payload", layout.PAYLOAD, 0, command(lease(b"", queue="q"))),
    ("leases", layout.MESSAGE, -1, lambda patient: patient.store.leases()),
    ("release", layout.MESSAGE, -1, lambda patient: patient.apply(release(patient.held, counts=True))),
    (
        "delivery",
        layout.PAYLOAD,
        -1,
        lambda patient: patient.store.delivery(patient.held.message_id, patient.held.lease_id),
    ),
    ("settings of a queue", layout.QUEUE, 0, lambda patient: patient.store.queue_facts("s")),
    ("policy of an enqueue", layout.QUEUE, 0, commit(enqueue(queue="s"))),
    ("policy of a lease", layout.QUEUE, 0, command(lease(b"", queue="s"))),
    ("counters", layout.TALLY, -1, commit(enqueue(queue="s"))),
    ("counters of a list", layout.TALLY, 0, lambda patient: patient.queue("d")),
    ("deduplication", layout.DEDUP, 0, commit(enqueue(queue="s", dedup_id=b"id"))),
    ("failures", layout.FAILURES, 0, lambda patient: patient.peek("d", pb.PEEK_KIND_DEAD)),
    ("topic of a message", layout.TOPIC, 0, commit(enqueue(topic="t"))),
    ("topics", layout.TOPIC, 0, topics),
    ("subscription", layout.SUBSCRIPTION, 0, command(subscribe("t", "u"))),
    ("retained message", layout.RETAINED, 0, command(subscribe("t", "v", since_ms=500))),
    ("schedule", layout.SCHEDULE, 0, command(define_schedule("cron", None))),
    ("applied index", layout.STATE_KEY, 0, versionstamp),
    ("cluster", layout.CLUSTER_KEY, 0, versionstamp),
    ("cluster of an entry", layout.CLUSTER_KEY, 0, commit(put(b"b"))),
]


@pytest.mark.parametrize(("table", "at", "way"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_every_way_to_read_a_row_checks_it(
    patient: Patient, table: bytes, at: int, way: Callable[[Patient], object]
) -> None:
    name = patient.damage(table, at)
    index, digest = patient.store.applied_index, patient.store.state_hash()
    with pytest.raises(StoreFault, match="damaged") as caught:
        way(patient)
    shown = bytes(8) if table == USER else name[:64]  # below a node, it is the logical name that is shown
    assert shown.hex() in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (patient.store.applied_index, patient.store.state_hash()) == (index, digest)
    assert (patient.path / "DAMAGED").exists(), "the next start must not trust it"
    end(patient)


CHECKED = [USER, *set(layout.HASHED_TABLES) - {layout.QUARANTINED}, layout.EXPIRY]
EMPTY = list(layout.INDEXES)


@pytest.mark.parametrize(
    ("how", "table"),
    [("changed", table) for table in sorted(CHECKED)]
    + [(how, table) for how in ("missing", "other name") for table in sorted(CHECKED + EMPTY)],
)
def test_a_scrub_finds_whatever_is_wrong(patient: Patient, how: str, table: bytes) -> None:
    name = patient.names(table)[0]
    stored: list[bytes] = []
    if how == "changed":
        patient.damage(table)
    else:
        patient.change(name, stored.append)  # which returns None: deleted
    if how == "other name":
        patient.change(name[:-1] + bytes([name[-1] ^ 0xFF]), lambda _: stored[0])
    with pytest.raises(StoreFault, match="damaged"):
        list(patient.store.scrub(10))
    end(patient)


def test_a_scrub_of_a_sound_state_goes_through_in_slices(patient: Patient) -> None:
    for number in range(100):
        patient.commit(put(b"key-%d" % number))
    steps = list(patient.store.scrub(10))
    assert steps == [*range(10, steps[-1], 10), steps[-1]]
    assert steps[-1] > 100
    scrub = patient.store.scrub(10)
    next(scrub)
    patient.commit(delete(b"key-1"))
    patient.commit(put(b"key-200"))
    assert list(scrub)[-1] == steps[-1], "it stays with its snapshot"
    scrub = patient.store.scrub(10)
    next(scrub)
    assert patient.store.statistics()["snapshots"] == 1
    scrub.close()  # type: ignore[attr-defined]
    assert patient.store.statistics()["snapshots"] == 0
    patient.store.close()


def test_rows_that_were_swapped_are_found(patient: Patient) -> None:
    """Both checksums would be right if they did not cover the names."""
    patient.commit(put(b"b", b"other"))
    one, two = bytes(8) + b"a", bytes(8) + b"b"
    rows: list[bytes] = []
    for name in (one, two):
        patient.change(name, rows.append)
    patient.change(one, lambda _: rows[1])
    patient.change(two, lambda _: rows[0])
    for key in (b"a", b"b"):
        with pytest.raises(Damaged):
            patient.entry(key)
    end(patient)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 100])
def test_every_flipped_bit_of_a_row_is_found(size: int) -> None:
    rng = random.Random(size)
    name, row = rng.randbytes(20), rng.randbytes(size)
    stored = checked.seal(name, row)
    assert checked.unseal(name, stored) == row
    for bit in range(len(stored) * 8):
        changed = (int.from_bytes(stored, "big") ^ (1 << bit)).to_bytes(len(stored), "big")
        with pytest.raises(Damaged):
            checked.unseal(name, changed)
    for end_at in range(len(stored)):
        with pytest.raises(Damaged):
            checked.unseal(name, stored[:end_at])
    with pytest.raises(Damaged):
        checked.unseal(name + b"x", stored)


# ---- afterwards


def reopened(path: Path) -> Store:
    return Store.open(path, durable=False, map_size=1 << 30)


def test_a_state_that_was_found_damaged_is_not_trusted_again(patient: Patient) -> None:
    patient.damage(USER)
    with pytest.raises(StoreFault):
        patient.entry(b"a")
    patient.store.close()
    assert (patient.path / "DAMAGED").exists()
    store = reopened(patient.path)
    assert store.rebuilt
    assert store.applied_index == 0
    assert not (patient.path / "DAMAGED").exists()
    store.close()
    store = reopened(patient.path)
    assert not store.rebuilt
    store.close()


@pytest.mark.parametrize("table", [layout.STATE_KEY, layout.CLUSTER_KEY])
def test_a_state_that_cannot_say_where_it_stands_is_rebuilt(patient: Patient, table: bytes) -> None:
    patient.damage(table)
    patient.store.close()
    store = reopened(patient.path)
    assert store.rebuilt
    store.close()


def test_damage_that_lmdb_finds_is_damage(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise lmdb.PageNotFoundError("mdb_get: MDB_PAGE_NOTFOUND")

    monkeypatch.setattr("kvorum_node.store.commands.execute", failing)
    with pytest.raises(Damaged, match="PAGE_NOTFOUND"):
        patient.commit(put(b"a"))
    end(patient)
    assert (patient.path / "DAMAGED").exists()


def test_an_embedded_database_is_not_marked_and_not_deleted(tmp_path: Path) -> None:
    made = Patient(tmp_path / "db", durable=True)
    made.fill()
    made.damage(USER)
    with pytest.raises(StoreFault):
        made.entry(b"a")
    made.store.close()
    assert not (made.path / "DAMAGED").exists()
    made.store = Store.open(made.path, durable=True, map_size=1 << 30)
    assert made.entry(LONG).value == b"2"
    made.damage(layout.STATE_KEY)
    made.store.close()
    with pytest.raises(DatabaseCorrupt, match="damaged"):
        Store.open(made.path, durable=True, map_size=1 << 30)
    assert (made.path / "data.mdb").exists()


# ---- runs that end early


def start(path: Path, *, clean: bool = False, good: bool = False) -> bool:
    """One run; whether its state was trusted."""
    store = reopened(path)
    if good:
        store.proved_good()
    store.close(clean=clean)
    return not store.rebuilt


def test_after_many_starts_that_ended_early_the_state_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "state"
    many = environment.MAX_STARTS
    found = [start(path) for _ in range(2 * many + 3)]
    assert found == [True] * (many + 1) + [False] + [True] * many + [False]


@pytest.mark.parametrize("ending", [{"good": True}, {"clean": True}])
def test_a_run_that_proved_itself_forgives_those_before_it(tmp_path: Path, ending: dict[str, bool]) -> None:
    path = tmp_path / "state"
    for _ in range(3):
        assert [start(path) for _ in range(2)] == [True] * 2
        assert start(path, **ending)


def test_a_full_disk_does_not_keep_a_run_from_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    start(path)
    store = reopened(path)

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(environment.Environment, "proved_good", full)
        store.proved_good()
    store.proved_good()
    store.close(clean=False)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"count": "x"}', b'{"count": 99}'])
def test_a_damaged_counter_is_no_reason_to_trust(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    start(path)
    (path / "STARTS").write_bytes(content)
    assert not start(path)
    assert start(path)


def test_a_start_is_counted_before_the_data_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "state"
    start(path)

    def dying(*_: object, **__: object) -> lmdb.Environment:
        raise MemoryError("as if the process had ended here")

    for _ in range(environment.MAX_STARTS):
        with pytest.raises(MemoryError):
            Store.open(path, durable=False, open_env=dying)
    assert not start(path)


# ---- quarantine


def test_a_quarantined_commit_is_answered_and_not_executed(tmp_path: Path) -> None:
    plain = Replica(tmp_path / "plain")
    plain.apply(init_cluster(), open_session())
    (session,) = plain.store.session_ids()
    plain.apply(group(write(put(b"a")), write(put(b"b")), write(put(b"c")), session=session))
    plain.apply(sweep(), lease(b""), open_session())
    plain.apply(group(write(put(b"b")), session=session, first_seq=2))
    stores = []
    for name in ("one", "two"):
        store = Store.open(
            tmp_path / name, durable=False, map_size=1 << 26, quarantine=frozenset({(2, 1), (3, 2), (9, 9)})
        )
        results = [store.apply_now(*entry) for entry in plain.log]
        stores.append(store)
    outcomes = [(result.outcome, result.message) for result in results[1].outputs[0].results]
    assert outcomes == [
        (pb.OUTCOME_DONE, ""),
        (pb.OUTCOME_INVALID, "quarantined by the operator"),
        (pb.OUTCOME_DONE, ""),
    ]
    assert results[1].changed_keys == [b"a", b"c"]
    assert results[2].outputs == [0, 0, b""]
    repeated = results[3].outputs[0].results[0]
    assert (repeated.outcome, repeated.message) == outcomes[1], "the answer stays the same when it is asked for again"
    for store in stores:
        assert store.quarantined() == [(2, 1), (3, 2)]
        assert store.state_hash() == store.recompute_hash() == stores[0].state_hash() != plain.store.state_hash()
        with store.snapshot() as snapshot:
            assert not snapshot.get(b"b").versionstamp
            assert snapshot.get(b"c").versionstamp
    assert len(stores[0].session_ids()) == len(plain.store.session_ids()) - 1
    assert plain.store.quarantined() == []
    list(stores[0].scrub(3))
    for store in (*stores, plain.store):
        store.close()


def test_a_batch_without_quarantined_commits_costs_nothing_of_the_state(patient: Patient, tmp_path: Path) -> None:
    other = Store.open(tmp_path / "other", durable=False, map_size=1 << 26, quarantine=frozenset({(1_000, 0)}))
    for entry in patient.log:
        other.apply_now(*entry)
    assert other.state_hash() == patient.store.state_hash()
    other.apply_now(other.applied_index + 1, START_MS, batch(group(write(put(b"x")))))
    other.close()
    patient.store.close()
