"""The short way of sums leaves behind what the long one does, answers the same, and is taken by the commonest ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import counters
from tests.unit.store.harness import (
    BYTES,
    LE64,
    V8,
    Replica,
    add,
    combine,
    delete,
    group,
    put,
    suffixed,
    u64,
    write,
)

TOP = (1 << 64) - 1
SUM, MAX, MIN = pb.MUTATION_TYPE_SUM, pb.MUTATION_TYPE_MAX, pb.MUTATION_TYPE_MIN
NUMBERS = (0, 1, 1, 1, 2, 255, 256, -1, -3, 1 << 31, 1 << 53, (1 << 63) - 1, TOP, TOP + 1, -(1 << 70))


def one_sum(rng: random.Random, key: bytes) -> pb.Mutation:
    number = rng.choice(NUMBERS)
    kind = rng.randrange(10)
    if kind < 4:
        return add(key, number)
    if kind == 4:
        return add(key, float(rng.choice((1, 2, -1, 0.5, 2.0**40))))
    if kind == 5:
        return add(
            key, number, low=rng.choice((None, 0, 5)), high=rng.choice((None, 10, TOP)), clamp=rng.random() < 0.5
        )
    if kind == 6:
        return combine(SUM, key, number)
    if kind == 7:
        return combine(rng.choice((SUM, MAX, MIN)), key, u64(number & TOP)[: rng.choice((8, 8, 8, 7))])
    if kind == 8:
        return pb.Mutation(key=key, type=pb.MUTATION_TYPE_ADD, value=u64(number & TOP), encoding=LE64)
    return combine(SUM, key, u64(number & TOP))


def something_else(rng: random.Random, key: bytes) -> pb.Mutation:
    return rng.choice(
        (
            put(key, u64(rng.choice((0, 5, TOP))), encoding=LE64),
            put(key, u64(7), encoding=LE64, expire_in_ms=60_000),
            put(key, b"\xff\x0fI\x04", encoding=V8),
            put(key, b"raw!raw!", encoding=BYTES),
            delete(key),
            suffixed(key),
        )
    )


def damaged(rng: random.Random, op: bytes) -> bytes:
    changed = bytearray(op)
    place = rng.randrange(len(changed) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        changed[place : place + 1] = bytes((rng.choice((rng.randrange(256), 0x80, 0x0A, 0x12, 0)),))
    elif kind == 1:
        changed[place:place] = rng.randbytes(1)
    elif kind == 2:
        del changed[place : place + rng.randrange(3)]
    else:  # a second key, behind what stands behind the first one: the last one counts
        more = b"\x0a\x01" + rng.choice((b"A", b"z"))
        changed += more
        changed[1] = (changed[1] + len(more)) & 0xFF
    return bytes(changed)


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    one, other = Replica(tmp_path / "one", data_version=3), Replica(tmp_path / "other")
    short = 0
    add_short: Callable[[Any, bytes, bytes], bool] = counters.add

    def counted(entry: Any, op: bytes, stamp: bytes) -> bool:
        nonlocal short
        done = add_short(entry, op, stamp)
        short += done
        return done

    monkeypatch.setattr(counters, "add", counted)
    keys = [b"A", b"B", b"C" * 5, b"z", b"D" * 90, b"E" * 110, b"F" * 495, b"G" * 496, b"H" * 2_048, b"I" * 2_049, b""]
    session = one.session()
    results = [[session]]
    changed: list[list[bytes]] = [[]]
    for entry in range(60):
        ops: list[pb.AtomicWrite | bytes] = []
        for _ in range(rng.randrange(1, 24)):
            key = rng.choice(keys[:4] if rng.random() < 0.6 else keys)
            parts = [something_else(rng, key) if rng.random() < 0.15 else one_sum(rng, key)]
            if rng.random() < 0.1:
                parts.append(one_sum(rng, rng.choice(keys[:4])))
            op = write(*parts).SerializeToString()
            ops.append(damaged(rng, op) if rng.random() < 0.2 else op)
        applied = one.apply(group(*ops, session=session, first_seq=1 + 30 * entry))
        results.append(list(applied.outputs))
        changed.append(list(applied.changed_keys))
    assert short > 100
    monkeypatch.setattr(counters, "add", lambda entry, op, stamp: False)
    for log_entry in one.log:
        applied = other.store.apply_now(*log_entry)
        assert list(applied.outputs) == results.pop(0)
        assert list(applied.changed_keys) == changed.pop(0)
    assert one.store.state_hash() == other.store.state_hash()
    assert one.store.statistics()["keys"] == other.store.statistics()["keys"]
    for replica in (one, other):
        replica.check_hash()
        replica.store.close()


@pytest.mark.parametrize(
    "mutation", [add(b"k", 1), add(b"k", -1), combine(SUM, b"k", u64(3)), add(b"k" * 100, 5), add(b"k", 1.0)]
)
def test_the_commonest_ones_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: pb.Mutation) -> None:
    replica = Replica(tmp_path)
    replica.commit(put(mutation.key, u64(10), encoding=LE64))
    add_short: Callable[[Any, bytes, bytes], bool] = counters.add
    done: list[bool] = []
    monkeypatch.setattr(counters, "add", lambda *given: done.append(add_short(*given)) or done[-1])
    replica.commit(mutation)
    assert done == [True]
    replica.store.close()


def test_nothing_is_taken_for_one_that_came_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a sum that the entry knows by then, whatever its key."""
    usual = write(add(b"key", 1)).SerializeToString()
    rest = usual[7:]
    lookalikes = [
        b"\x12" + bytes((2 + len(rest),)) + b"\x0a\x00" + rest,  # an empty key, written out
        b"\x12" + bytes((122 + len(rest),)) + b"\x0a\x78" + b"k" * 120 + rest,  # a length that goes on in the next byte
        *(usual[:at] + bytes((usual[at] + by,)) + usual[at + 1 :] for at in range(7) for by in (-1, 1)),
        *(usual[:at] + bytes((usual[at] | 0x80,)) + usual[at + 1 :] for at in (1, 3)),
        usual + write(add(b"more", 1)).SerializeToString(),
        usual + write(pb.Check(key=b"absent", versionstamp=bytes(10))).SerializeToString(),
        b"\x12" + bytes((len(usual) - 2 + 5,)) + usual[2:] + b"\x0a\x03yek",
        usual[:-1],
        usual + b"\x00",
    ]
    outcomes = []
    hashes = []
    for way in ("short", "long"):
        replica = Replica(tmp_path / way)
        for op in lookalikes:
            outcomes.append(replica.apply(group(usual, op, usual)).outputs[0].SerializeToString())
        hashes.append(replica.store.state_hash())
        replica.store.close()
        monkeypatch.setattr(counters, "add", lambda entry, op, stamp: False)
    half = len(lookalikes)
    assert outcomes[:half] == outcomes[half:]
    assert hashes[0] == hashes[1]
