"""What is told from the bytes of the commonest operations is what protobuf makes of them."""

import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import commits
from kvorum_node.store.wire import acknowledgement, plain_message, plain_set, varint
from tests.unit.store.harness import BYTES, LE64, V8, Replica, enqueue, group, put, settle, write

SIZES = (0, 1, 2, 100, 126, 127, 128, 129, 300, 2_048, 2_049, 16_370, 16_383, 16_384, 16_400, 70_000)


def described(op: bytes) -> pb.AtomicWrite | None:
    """What the short ways say of an operation."""
    ack, message, known = acknowledgement(op), plain_message(op), plain_set(op)
    assert [ack, message, known].count(None) >= 2
    made = pb.AtomicWrite()
    if ack is not None:
        made.settles.add(message_id=ack[0], lease_id=ack[1], kind=pb.SETTLE_KIND_ACK)
    elif message is not None:
        made.enqueues.add(payload=message[1]).queue = message[0].decode()  # may raise: the queue need not be UTF-8
    elif known is not None:
        key, encoding, value, checked_key, versionstamp = known
        if checked_key is not None:
            made.checks.add(key=checked_key, versionstamp=versionstamp)
        made.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value).encoding = encoding  # type: ignore[assignment]
    else:
        return None
    return made


def check(op: bytes) -> bool:
    """Whether a short way is taken; if so, it says what protobuf says."""
    try:
        found = described(op)
    except UnicodeDecodeError:
        with pytest.raises(DecodeError):
            pb.AtomicWrite.FromString(op)
        return True
    assert found is None or found == pb.AtomicWrite.FromString(op), op.hex()
    return found is not None


def made(rng: random.Random, sizes: tuple[int, ...] = SIZES) -> pb.AtomicWrite:
    kind = rng.randrange(4)
    if kind == 0:
        return write(settle(pb.Delivery(message_id=rng.randbytes(12), lease_id=rng.randbytes(12))))
    if kind == 1:
        return write(enqueue(rng.randbytes(rng.choice(sizes)), queue=rng.choice(("q", "work", "x" * 127, "x" * 128))))
    key = rng.randbytes(rng.choice(sizes))
    parts: list[pb.Check | pb.Mutation] = [put(key, rng.randbytes(rng.choice(sizes)), encoding=rng.choice((V8, BYTES)))]
    if kind == 2:
        parts.append(pb.Check(key=rng.randbytes(rng.choice(sizes)), versionstamp=rng.choice((b"", bytes(10)))))
    return write(*parts)


def test_the_commonest_ones_are_told() -> None:
    for size in (1, 100, 127, 128, 14_000):
        for op in (
            write(enqueue(bytes(size), queue="work")), write(put(b"k" * min(size, 2_048), bytes(size))),
            write(put(b"k", bytes(size), encoding=V8), pb.Check(key=b"k")),
            write(put(b"k", bytes(size)), pb.Check(key=b"k", versionstamp=bytes(10))),
        ):  # fmt: skip
            assert check(op.SerializeToString())
    assert check(write(settle(pb.Delivery(message_id=bytes(12), lease_id=bytes(12)))).SerializeToString())


def test_all_else_is_not() -> None:
    delivery = pb.Delivery(message_id=bytes(12), lease_id=bytes(12))
    for op in (
        write(put(b"k", bytes(8), encoding=LE64)), write(put(b"k", expire_in_ms=5)), write(put(b"k"), put(b"l")),
        write(put(b"k"), pb.Check(key=b"k", kind=pb.CHECK_KIND_EXISTS)), write(put(b"k"), pb.Check(key=b"k" * 200)),
        write(put(b"k"), pb.Check(key=b"k"), pb.Check(key=b"l")), write(settle(delivery), settle(delivery)),
        write(enqueue(queue="q", delay_ms=1)), write(enqueue(queue="q", group="")), write(enqueue(queue="")),
        write(enqueue(queue="q"), enqueue(queue="q")), write(settle(delivery, delay_ms=0)), write(),
        write(settle(delivery, pb.SETTLE_KIND_RETRY)), pb.AtomicWrite(settles=[settle(delivery)], each=True),
        write(settle(delivery), put(b"k")), write(enqueue(queue="q"), put(b"k")),
    ):  # fmt: skip
        assert not check(op.SerializeToString()), op


def test_damaged_ones_are_taken_for_nothing_else() -> None:
    rng = random.Random(1)
    told = 0
    for at in range(20_000):
        op = bytearray(made(rng, SIZES if at % 50 == 0 else SIZES[:9]).SerializeToString())
        for _ in range(rng.randrange(3)):
            place = rng.randrange(min(len(op), 50) + 1)
            kind = rng.randrange(3)
            if kind == 0:
                op[place : place + 1] = bytes((rng.choice((rng.randrange(256), 0x80, 0x0A, 0x12, 0)),))
            elif kind == 1:
                op[place:place] = rng.randbytes(1)
            else:
                del op[place : place + rng.randrange(3)]
        told += check(bytes(op))
    assert 5_000 < told < 19_000


def test_a_length_of_three_bytes_is_not_taken_for_one_of_two() -> None:
    """Whatever follows: here a third byte that would also be the first tag within."""
    for low in (0x80, 0xFF):
        size = low & 0x7F | 0x80 << 7
        payload = size - 3 - 3  # a queue of one byte; a tag, and a length of two bytes that goes on in the payload
        within = b"\x0a\x01q\x12" + bytes((payload & 0x7F | 0x80, payload >> 7)) + b"\x00" * payload
        assert not check(b"\x1a" + bytes((low, 0x80)) + within)


def test_lengths() -> None:
    for size in SIZES:
        assert pb.Delivery(payload=bytes(size) or b"x").SerializeToString().startswith(b"\x2a" + varint(size or 1))


def test_both_ways_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    one, other = Replica(tmp_path / "one", data_version=3), Replica(tmp_path / "other")
    session = one.session()
    expected: list[list[Any]] = [[session]]
    keys = [bytes((65 + at,)) * rng.choice((1, 5, 600, 2_048)) for at in range(12)] + [b"x" * 2_049]
    for entry in range(40):
        writes = []
        for _ in range(rng.randrange(1, 20)):
            key = rng.choice(keys)
            parts: list[pb.Check | pb.Mutation | pb.Enqueue] = [
                put(key, rng.randbytes(5), encoding=rng.choice((V8, BYTES)))
            ]
            if rng.random() < 0.5:
                stamp = rng.choice((b"", one.entry(key).versionstamp))
                parts.append(pb.Check(key=rng.choice((key, key, b"A")), versionstamp=stamp))
            if rng.random() < 0.3:
                parts = [enqueue(rng.randbytes(5), queue=rng.choice(("q", "r")))]
            writes.append(write(*parts))
        expected.append(list(one.apply(group(*writes, session=session, first_seq=1 + 20 * entry)).outputs))
    for name in ("plain_set", "plain_message", "acknowledgement"):
        monkeypatch.setattr(commits, name, lambda op: None)
    for log_entry in one.log:
        answers = other.store.apply_now(*log_entry).outputs
        assert answers == expected.pop(0)
    assert one.store.state_hash() == other.store.state_hash()
    one.check_hash()
    for replica in (one, other):
        replica.store.close()
