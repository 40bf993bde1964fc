"""Every fuzz target on its seeds and on a few thousand changes to them; `scripts/fuzz` goes on for as long as one
likes."""

import time

import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, load

COUNT = {"operations": 400, "connect_write": 1_500, "requests": 1_000, "frames": 600, "wire": 700, "tokens": 1_500}
SLOW = 2.0
"""Seconds of computing for one input: none has more than a few KiB."""


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_declared_errors(name: str) -> None:
    target = load(name)
    with target.opened() as check:
        for data in (*target.SEEDS, *mutated(target.SEEDS, COUNT.get(name, 3_000), seed=4)):
            begun = time.process_time()
            try:
                check(data)
            except Exception as error:
                error.add_note(f"{name}: {data.hex()}")
                raise
            assert time.process_time() - begun < SLOW, f"{name}: {data.hex()}"
