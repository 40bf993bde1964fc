"""Random changes to seeds: what the tests do where no fuzzer that looks at coverage is at hand."""

import random
from collections.abc import Iterator, Sequence

EDGES = (0x00, 0x01, 0x0A, 0x12, 0x22, 0x5E, 0x7F, 0x80, 0xFE, 0xFF)


def mutated(seeds: Sequence[bytes], count: int, seed: int, *, longest: int = 8_192) -> Iterator[bytes]:
    """`count` inputs, always the same ones for the same seed."""
    rng = random.Random(seed)
    pool = list(seeds)
    for _ in range(count):
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            _change(data, pool, rng)
        made = bytes(data[:longest])
        if rng.random() < 0.02:
            pool.append(made)  # changes add up
        yield made


def _change(data: bytearray, pool: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(8)
    if kind == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1 and data:
        data[at % len(data)] = rng.choice(EDGES)
    elif kind == 2 and data:
        data[at % len(data)] = rng.randrange(256)
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 9)))
    elif kind == 4:
        del data[at : at + rng.choice((1, 1, 2, 8, 64))]
    elif kind == 5:
        size = rng.randrange(1, 33)
        data[at:at] = data[at : at + size]
    elif kind == 6:
        other = rng.choice(pool)
        begin = rng.randrange(len(other) + 1)
        data[at:] = other[begin:]
    else:
        data[at:at] = bytes([rng.choice(EDGES)]) * rng.choice((2, 5, 10, 300))
