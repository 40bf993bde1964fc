"""Atomic writes of every kind, well formed and not quite, made from choices: what admission lets in is applied by
replicas that cut their work differently, with equal answers and hashes, and it can be read back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from kvorum._proto import kvorum_pb2 as pb
from tests.fuzz.choices import Choices
from tests.fuzz.replicas import Pair, pair

KEYS = (
    b"u",
    b"n",
    b"z",
    b"o",
    b"b",
    b"k",
    b"",
    b"k" * 495,
    b"k" * 496,
    b"k" * 2_048,
    b"k" * 2_026 + b"\xff",
    b"\xff",
    b"\0",
)
OPERANDS = (
    b"\1" + bytes(7), b"\xff" * 8, b"", b"short", b"\xff\x0fI\x02", b"\xff\x0fI\x01", b"\xff\x10U\x05",
    b"\xff\x0fN\0\0\0\0\0\0\xf8\x7f", b"\xff\x0fN\0\0\0\0\0\0\xf0\x7f", b"\xff\x0fN\0\0\0\0\0\0\xf0\xff",
    b"\xff\x0fN\xff\xff\xff\xff\xff\xff\xef\x7f", b"\xff\x0fZ\x10" + b"\xff" * 8, b"\xff\x0fZ\x11" + b"\xff" * 8,
    b"\xff\x0fZ\x00", b"\xff\x0fZ\x80\x20" + b"\xff" * 2_048, b"\xff\x0fo{\x00", b"\xff\x0f0",
)  # fmt: skip
TYPES = (1, 2, 3, 4, 5, 9, 16, 17, 18, 0, 6, 99)
SEEDS = [bytes(range(256)), bytes(range(255, -1, -1)), b"\3" * 200, bytes((at * 7) % 256 for at in range(400)), b""]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    with pair() as replicas:
        yield partial(check, replicas)


def check(replicas: Pair, data: bytes) -> None:
    choices = Choices(data)
    ops: list[bytes] = []
    while choices.left and len(ops) < 8:
        op = _write(choices)
        ops.append(op.SerializeToString() if not choices.chance() else op.SerializeToString() + choices.raw(3))
    results = replicas.propose(*ops)
    assert [result.seq for result in results] == list(range(1, len(ops) + 1))
    if data[-1:] == b"\xff":
        replicas.sweep(after_ms=choices.number() % (1 << 40))


def _write(choices: Choices) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    for _ in range(choices.byte() % 4):
        kind = choices.byte() % 16
        if kind < 9:
            _mutation(op, choices)
        elif kind < 12:
            _check(op, choices)
        elif kind < 14:
            _enqueue(op, choices)
        else:
            _settle(op, choices)
    return op


def _key(choices: Choices) -> bytes:
    return choices.content(2_050) if choices.chance() else choices.pick(KEYS)


def _mutation(op: pb.AtomicWrite, choices: Choices) -> None:
    made = op.mutations.add(key=_key(choices), type=choices.pick(TYPES))
    kind = made.type
    if kind in (1, 9) or choices.chance():
        made.value = choices.content()
        made.encoding = choices.pick((3, 1, 2, 0, 9))  # type: ignore[assignment]
    if kind in (3, 4, 5, 16):
        made.value = choices.pick(OPERANDS)
        made.encoding = choices.pick((1, 2, 1, 2, 3))  # type: ignore[assignment]
        if choices.chance():
            made.sum_min, made.sum_max = choices.pick(OPERANDS), choices.pick(OPERANDS)
        made.sum_clamp = choices.chance()
    if kind in (1, 9, 17) and choices.chance():
        made.expire_in_ms = choices.number()
    if kind == 18:
        made.end = _key(choices) + b"\xff"
        made.limit = choices.byte() % 5
    if choices.byte() == 255:
        made.end = b"x"


def _check(op: pb.AtomicWrite, choices: Choices) -> None:
    stamp = choices.pick((b"", bytes(10), (2).to_bytes(8, "big") + bytes(2), b"\xff" * 10, b"short"))
    op.checks.add(key=_key(choices), versionstamp=stamp, kind=choices.byte() % 5)


def _enqueue(op: pb.AtomicWrite, choices: Choices) -> None:
    queue = choices.pick(("", "q", "ü" * 128, "ü" * 129))
    made = op.enqueues.add(queue=queue, payload=choices.content(), delay_ms=choices.number())
    for _ in range(choices.byte() % 3):
        made.keys_if_undelivered.append(_key(choices))
    if choices.chance():
        made.backoff.delays_ms.extend(choices.number() % (1 << 32) for _ in range(choices.byte() % 66))


def _settle(op: pb.AtomicWrite, choices: Choices) -> None:
    made = op.settles.add(message_id=bytes(12), lease_id=choices.pick((bytes(12), b"\xff" * 12, b"short")))
    made.kind = choices.byte() % 6  # type: ignore[assignment]
    if choices.chance():
        made.delay_ms = choices.number()
    if choices.chance():
        made.reason = "ü" * choices.pick((1, 512, 513))
