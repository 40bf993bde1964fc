"""One log gives one state, whatever the slice size, the restarts and the hash seed; and a model agrees with it."""

import random
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import DATA_VERSION
from tests.unit.store.harness import (
    LE64,
    Replica,
    add,
    close_sessions,
    combine,
    delete,
    delete_range,
    enqueue,
    group,
    hashes_by_hash_seed,
    init_cluster,
    lease,
    number,
    open_session,
    put,
    random_key,
    release,
    settle,
    suffixed,
    sweep,
    touch,
    u64,
    write,
)

KINDS = (pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_REJECT, pb.SETTLE_KIND_RETURN)


class Traffic:
    """Random entries that reach every part of the state machine."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.rng = random.Random(seed)
        self.keys = [random_key(self.rng) for _ in range(25)] + [b"n%d" % at for at in range(5)]
        self.sessions: list[bytes] = []
        self.seq = 1
        self.held: list[pb.Delivery] = []

    def mutation(self) -> pb.Mutation:
        rng = self.rng
        key = rng.choice(self.keys)
        kind = rng.randrange(10)
        if kind <= 2:
            return put(key, bytes(rng.randrange(200)), expire_in_ms=rng.choice((None, 0, 10, 100)))
        if kind == 3:
            return put(key, u64(rng.randrange(100)), encoding=LE64)
        if kind == 4:
            return delete(key)
        if kind == 5:
            return add(key, rng.choice((1, -5, 2.5, 1 << 70)), low=0, clamp=rng.random() < 0.5)
        if kind == 6:
            return combine(pb.MUTATION_TYPE_SUM, key, rng.choice((u64(7), 3, 1.5)))
        if kind == 7:
            return touch(key, rng.choice((None, 5, 50)))
        if kind == 8:
            return delete_range(key, max(key, rng.choice(self.keys)) + b"\x00", limit=rng.choice((0, 2, 7)))
        return suffixed(key[:100], expire_in_ms=rng.choice((None, 30)))

    def write(self) -> pb.AtomicWrite:
        rng = self.rng
        parts: list[pb.Check | pb.Mutation | pb.Enqueue | pb.Settle] = []
        parts += [self.mutation() for _ in range(rng.choice((0, 1, 1, 1, 2, 5)))]
        if rng.random() < 0.2:
            key = rng.choice(self.keys)
            parts.append(pb.Check(key=key, versionstamp=self.replica.entry(key).versionstamp))
        if rng.random() < 0.2:
            parts.append(
                enqueue(rng.randbytes(20), queue=rng.choice("ab"), delay_ms=rng.choice((0, 20)), keys=[b"dead"])
            )
        if self.held and rng.random() < 0.3:
            parts.append(settle(self.held.pop(rng.randrange(len(self.held))), rng.choice(KINDS)))
        return write(*parts)

    def commands(self) -> list[pb.Command]:
        rng = self.rng
        made: list[pb.Command] = []
        for _ in range(rng.randrange(1, 4)):
            roll = rng.random()
            session = rng.choice(self.sessions) if self.sessions else b""
            if roll < 0.6:
                writes = [self.write() for _ in range(rng.randrange(1, 6))]
                first = max(1, self.seq - rng.choice((0, 0, 0, 3)))
                made.append(group(*writes, session=session, first_seq=first, ack_below=max(1, self.seq - 30)))
                self.seq += len(writes)
            elif roll < 0.75:
                made.append(lease(session, queue=rng.choice("ab"), count=rng.randrange(1, 5)))
            elif roll < 0.85:
                made.append(sweep(rng.choice((1, 3, 1_000))))
            elif roll < 0.9:
                made.append(open_session(f"client {rng.randrange(100)}"))
            elif roll < 0.92 and len(self.sessions) > 2:
                made.append(close_sessions(self.sessions.pop(0)))
            elif self.held:
                made.append(release(self.held.pop(0), counts=rng.random() < 0.5))
        return made

    def run(self, entries: int) -> None:
        self.replica.apply(init_cluster(), open_session())
        for _ in range(entries):
            self.replica.now_ms += self.rng.randrange(10)
            result = self.replica.apply(*self.commands())
            self.held += [grant.delivery for grant in result.granted]
            self.sessions += [output for output in result.outputs if isinstance(output, bytes)]


@pytest.mark.parametrize("seed", range(3))
def test_slices_and_restarts_do_not_matter(tmp_path: Path, seed: int) -> None:
    first = Replica(tmp_path / "first", data_version=DATA_VERSION)
    Traffic(first, seed).run(120)
    first.check_hash()
    rng = random.Random(seed)
    for number_, size in enumerate((1, 7, 100_000)):
        other = Replica(tmp_path / str(number_), slice_commits=size)
        other.replay_roughly(first.log, rng)
        assert other.store.state_hash() == first.store.state_hash()
        other.check_hash()
        assert other.rows() == first.rows()
        assert other.store.leases() == first.store.leases()
        assert other.store.next_expiry_ms() == first.store.next_expiry_ms()
        other.store.close()
    first.store.close()


def test_results_are_the_same_on_every_replica(tmp_path: Path) -> None:
    first = Replica(tmp_path / "first", data_version=DATA_VERSION)
    Traffic(first, 9).run(80)
    one, two = Replica(tmp_path / "one"), Replica(tmp_path / "two", slice_commits=3)
    for entry in first.log:
        assert one.store.apply_now(*entry) == two.store.apply_now(*entry)
    for replica in (first, one, two):
        replica.store.close()


def test_entry_boundaries_change_stamps_only(tmp_path: Path) -> None:
    """The same writes in one entry or in many: the same keys and values."""
    writes = [write(put(b"%d" % (at % 7), b"%d" % at), add(b"n", at)) for at in range(50)]
    one, many = Replica(tmp_path / "one"), Replica(tmp_path / "many")
    one.apply(group(*writes))
    for made in writes:
        many.apply(group(made))
    assert [(row.key, row.value) for row in one.rows()] == [(row.key, row.value) for row in many.rows()]
    one.store.close()
    many.store.close()


def test_the_hash_seed_does_not_matter(tmp_path: Path) -> None:
    assert len(hashes_by_hash_seed(tmp_path, __name__, 2)) == 1


def test_the_hash_of_a_known_log(tmp_path: Path) -> None:
    """A change of formats or of the hash must be noticed: replicas of two versions would take each other for
    damaged."""
    replica = Replica(tmp_path / "state")
    replica.apply(init_cluster(), open_session("golden"))
    session = (1).to_bytes(8, "big") + b"\x00\x01"
    replica.apply(
        group(
            write(put(b"a", b"1")), write(put(b"k" * 700, number(1.5), expire_in_ms=50)), write(add(b"text", -1)),
            write(enqueue(b"x", queue="q"), enqueue(b"y", queue="q", keys=[b"d"], backoff=[1])), session=session,
        ),
        lease(session, queue="q"),
    )  # fmt: skip
    assert replica.store.state_hash().hex() == GOLDEN
    replica.store.close()


GOLDEN = "5a6b4cc91accb7e587f35a124e015b55"
