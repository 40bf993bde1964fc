"""Ranges that hold a key, against asking each of them."""

import random

import pytest

from kvorum_node.ranges import Range, Ranges


def holding(ranges: Ranges[int], key: bytes) -> list[int]:
    return sorted(owner for owners in ranges.holding(key) for owner in owners)


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_what_a_search_through_all_finds(seed: int) -> None:
    rng = random.Random(seed)
    ranges: Ranges[int] = Ranges()
    known: dict[int, Range] = {}
    pool: list[Range] = []
    for _ in range(120):
        base = rng.randbytes(rng.randrange(4))
        pool.append((base + b"\0", base + b"\xff"))
        pool.append((min(pair := (rng.randbytes(2), rng.randbytes(2))), max(pair)))
    for step in range(1_500):
        if rng.random() < (0.7 if step < 700 else 0.4) or not known:
            known[step] = rng.choice(pool)
            ranges.add(known[step], step)
        else:
            owner = rng.choice(list(known))
            bounds = known.pop(owner)
            ranges.remove(bounds, owner)
            ranges.remove(bounds, owner)
        if step % 10 == 0:
            for _ in range(5):
                key = rng.randbytes(rng.randrange(1, 4))
                expected = sorted(owner for owner, (start, end) in known.items() if start <= key < end)
                assert holding(ranges, key) == expected
        assert len(ranges) == len(set(known.values()))


def test_many_ranges_cost_a_key_little() -> None:
    """A key of one of 20,000 prefixes looks at few ends of ranges."""
    looked = 0

    class End(bytes):
        def __le__(self, other: bytes) -> bool:
            nonlocal looked
            looked += 1
            return super().__le__(other)

    ranges: Ranges[int] = Ranges()
    for number in range(20_000):
        base = b"%05d" % number
        ranges.add((base + b"\0", End(base + b"\xff")), number)
    ranges._build()
    looked = 0
    assert holding(ranges, b"12345\x02") == [12_345]
    assert 0 < looked < 200
