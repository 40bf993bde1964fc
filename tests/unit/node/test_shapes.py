"""Writes known by their shape are judged as if they had been looked into."""

import random

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.admission import Shortage, admit
from kvorum_node.shapes import _MAX_SHAPES, Shapes

ONE = b"\xff\x0fN" + bytes(6) + b"\xf0\x3f"
BIG = b"\xff\x0fZ\x10" + bytes(8)
Judged = tuple[int, dict[str, int] | None, list[int]]


def _set(key: bytes, value: bytes, **options: object) -> pb.AtomicWrite:
    encoding = options.pop("encoding", pb.VALUE_ENCODING_V8)
    return pb.AtomicWrite(
        mutations=[pb.Mutation(type=pb.MUTATION_TYPE_SET, key=key, value=value, encoding=encoding, **options)]  # type: ignore[arg-type]
    )


def _send(queue: str, payload: bytes, **options: object) -> pb.AtomicWrite:
    return pb.AtomicWrite(enqueues=[pb.Enqueue(queue=queue, payload=payload, **options)])  # type: ignore[arg-type]


def _sum(
    key: bytes, amount: bytes, kind: "pb.MutationType" = pb.MUTATION_TYPE_ADD, **options: object
) -> pb.AtomicWrite:
    encoding = options.pop("encoding", pb.VALUE_ENCODING_V8)
    return pb.AtomicWrite(mutations=[pb.Mutation(type=kind, key=key, value=amount, encoding=encoding, **options)])  # type: ignore[arg-type]


def _checked(op: pb.AtomicWrite, key: bytes, stamp: bytes) -> pb.AtomicWrite:
    op.checks.add(key=key, versionstamp=stamp)
    return op


def _judged(op: bytes, shapes: Shapes | None) -> Judged:
    """Weight, ready messages and refusals of one write."""
    parts, refused = admit(pb.WriteGroup(writes=[pb.Write(seq=1, op=op)]), shapes=shapes)
    ready = parts[0].enqueues if parts else None
    return sum(part.weight for part in parts), ready, [int(result.outcome) for result in refused]


def _random_op(rng: random.Random) -> bytes:
    key = b"\x02" + rng.randbytes(rng.choice((0, 3, 9, 140))) + b"\x00"
    value = rng.randbytes(rng.choice((0, 1, 8, 127, 128, 5_000)))
    queue = rng.choice(("", "q", "ä", "other", "a" * 140))
    kind = rng.randrange(11)
    if kind < 2:
        encodings = (pb.VALUE_ENCODING_V8, pb.VALUE_ENCODING_BYTES, pb.VALUE_ENCODING_LE64, 0, 9)
        op = _set(key, value, encoding=rng.choice(encodings))
    elif kind < 4:
        op = _send(queue, value)
    elif kind == 4:
        op = _send(queue, value, delay_ms=rng.choice((0, 1, 1 << 50)), topic=rng.choice(("", "t")))
    elif kind == 5:
        op = _set(key, value, expire_in_ms=rng.choice((0, 5)))
    elif kind == 6:
        op = _set(key, value)
        op.checks.add(key=key, kind=pb.CHECK_KIND_EXISTS)
    elif kind < 9:
        kinds = (pb.MUTATION_TYPE_SUM, pb.MUTATION_TYPE_ADD, pb.MUTATION_TYPE_MIN, pb.MUTATION_TYPE_MAX)
        amount = rng.choice((ONE, ONE, BIG, bytes(8), value[:9]))
        op = _sum(key, amount, rng.choice(kinds), encoding=rng.choice((pb.VALUE_ENCODING_V8, pb.VALUE_ENCODING_LE64)))
        if rng.random() < 0.3:
            op.mutations[0].sum_max = rng.choice((ONE, b"x"))
        if rng.random() < 0.3:
            _checked(op, key, rng.choice((b"", bytes(10))))
    elif kind == 9:
        op = _checked(_set(key, value), key[: rng.choice((3, 200))], rng.randbytes(rng.choice((0, 10, 10, 9))))
    else:
        op = pb.AtomicWrite(settles=[pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_ACK)])
        op.each = rng.random() < 0.5
    return op.SerializeToString()


def test_what_is_known_by_its_shape_is_judged_as_if_it_were_decoded() -> None:
    """Writes of all kinds, and such with some bytes changed: the bytes that decide are all looked at."""
    rng = random.Random(7)
    shapes = Shapes()
    known = refused = 0
    for _ in range(8_000):
        op = bytearray(_random_op(rng))
        for _ in range(rng.choice((0, 0, 1, 2))):
            if op:
                op[rng.randrange(min(len(op), rng.choice((6, 20, 6_000))))] = rng.choice((0, 1, 2, 8, 16, 24, 127, 255))
        data = bytes(op)
        known += shapes.find(data) is not None
        expected = _judged(data, None)
        refused += bool(expected[2])
        assert _judged(data, shapes) == expected, data
    assert known > 300
    assert refused > 300


def test_one_message_and_one_set_make_those_like_them_known() -> None:
    shapes = Shapes()
    for op in (_send("q", b"x" * 100), _set(b"\x02a\x00", b"v" * 300), _set(b"\x02a\x00", b"v", encoding=0)):
        _judged(op.SerializeToString(), shapes)
    message = shapes.find(_send("q", b"y" * 100).SerializeToString())
    assert message is not None
    assert (message.weight, dict(message.ready)) == (1, {"q": 1})
    large = shapes.find(_set(b"\x02b\x00", b"w" * 300).SerializeToString())
    assert large is not None
    assert (large.weight, dict(large.ready)) == (1, {})
    for other in (
        _send("r", b"y" * 100),
        _send("q", b"y" * 99),
        _send("q", b"y" * 98, delay_ms=1),
        _set(b"\x02b\x00", b"w" * 300, encoding=pb.VALUE_ENCODING_BYTES),
        _set(b"\x02bc\x00", b"w" * 299),
    ):
        assert shapes.find(other.SerializeToString()) is None


def test_a_sum_and_a_checked_set_make_those_like_them_known() -> None:
    shapes = Shapes()
    stamp, key, other = bytes(range(10)), b"\x02a\x00", b"\x02b\x00"
    for op in (
        _sum(key, ONE),
        _checked(_set(key, b"value"), key, stamp),
        _checked(_set(key, b"value"), key, b""),
        _checked(_sum(b"\x02long\x00", BIG), b"\x02long\x00", stamp),
    ):
        _judged(op.SerializeToString(), shapes)
    for op in (
        _sum(other, ONE),
        _checked(_set(other, b"VALUE"), other, bytes(10)),
        _checked(_set(other, b"VALUE"), b"\x02c\x00", b""),
        _checked(_sum(b"\x02LONG\x00", BIG), b"\x02LONG\x00", bytes(10)),
    ):
        shape = shapes.find(op.SerializeToString())
        assert shape is not None
        assert (shape.weight, dict(shape.ready)) == (1, {})
    wrong = b"\xff\x0fX" + ONE[3:]
    for op in (
        _sum(other, wrong),
        _sum(other, ONE, pb.MUTATION_TYPE_MAX),
        _checked(_set(other, b"VALUE"), other, bytes(9)),
    ):
        assert shapes.find(op.SerializeToString()) is None


def test_the_shapes_of_a_program_that_takes_turns_are_not_made_anew_each_time() -> None:
    shapes = Shapes()
    first, second = _send("qa", b"x").SerializeToString(), _send("qb", b"x").SerializeToString()
    assert first[:5] == second[:5]
    for _ in range(4):
        for op in (first, second):
            _judged(op, shapes)
    assert shapes.find(first) is not None
    for _ in range(8):
        _judged(second, shapes)
    assert shapes.find(second) is not None, "what does not come any more has made room"


def test_there_is_a_bounded_number_of_shapes() -> None:
    shapes = Shapes()
    for size in range(1, 3 * _MAX_SHAPES):
        _judged(_send("q", bytes(size)).SerializeToString(), shapes)
        assert len(shapes._shapes) <= _MAX_SHAPES


def test_while_space_is_short_a_known_shape_lets_nothing_in() -> None:
    shapes = Shapes()
    op = _set(b"\x02a\x00", b"v").SerializeToString()
    _judged(op, shapes)
    assert shapes.find(op) is not None
    shortage = Shortage("n1 is full", lambda key: True)
    parts, refused = admit(pb.WriteGroup(writes=[pb.Write(seq=1, op=op)]), shortage, shapes=shapes)
    assert not parts
    assert [result.outcome for result in refused] == [pb.OUTCOME_NO_SPACE]


def test_a_value_above_the_limit_is_refused_whatever_was_seen() -> None:
    shapes = Shapes()
    for extra, outcomes in ((0, []), (1, [pb.OUTCOME_INVALID]), (0, [])):
        op = _send("q", bytes(limits.MAX_VALUE_SIZE + extra)).SerializeToString()
        assert _judged(op, shapes)[2] == outcomes
