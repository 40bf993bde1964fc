"""Keys longer than LMDB's, against a sorted list."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum_node.store import trie
from kvorum_node.store.records import State
from kvorum_node.store.rows import Rows
from tests.unit.store.harness import random_key


@contextmanager
def rows() -> Iterator[Rows]:
    with (
        tempfile.TemporaryDirectory() as folder,
        lmdb.open(folder, map_size=1 << 28, sync=False) as env,
        env.begin(write=True) as txn,
    ):
        yield Rows(txn, State())


def put(rows: Rows, key: bytes, row: bytes) -> None:
    rows.swap(trie.make_place(rows, key), trie.ROOT + key, row)


def delete(rows: Rows, key: bytes) -> bool:
    name = trie.locate(rows.txn, key)
    if name is None or not rows.txn.delete(name):
        return False
    trie.prune(rows, key)
    return True


def check(rows: Rows, model: dict[bytes, bytes], low: bytes, high: bytes | None) -> None:
    expected = sorted((key, row) for key, row in model.items() if low <= key and (high is None or key < high))
    assert list(trie.scan(rows.txn, low, high)) == expected
    assert list(trie.scan(rows.txn, low, high, reverse=True)) == expected[::-1]
    if high is not None:
        assert list(trie.keys(rows.txn, low, high)) == [key for key in sorted(model) if low <= key < high]


# keys that share chunks, differ at chunk ends, and extend each other
KEYS = st.builds(
    lambda size, fill, tail: (bytes([fill]) * size + tail)[:2_048],
    st.sampled_from([0, 1, 493, 494, 495, 496, 989, 990, 991, 1_484, 1_485, 1_979, 1_980, 2_048]),
    st.sampled_from([0, 1, 2, 255]),
    st.binary(max_size=3).map(lambda tail: bytes(b % 4 if b < 250 else 255 for b in tail)),
)
BOUNDS = st.one_of(KEYS, KEYS.map(lambda key: key + b"\x00"), st.just(b""), st.just(b"\xff"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.booleans(), KEYS), max_size=25),
    st.lists(st.tuples(BOUNDS, st.none() | BOUNDS), min_size=1, max_size=6),
)
def test_equals_a_sorted_list(steps: list[tuple[bool, bytes]], ranges: list[tuple[bytes, bytes | None]]) -> None:
    with rows() as tested:
        model: dict[bytes, bytes] = {}
        for number, (remove, key) in enumerate(steps):
            if remove:
                assert delete(tested, key) == (model.pop(key, None) is not None)
            else:
                model[key] = b"%d" % number
                put(tested, key, model[key])
        for low, high in [(b"", None), *ranges]:
            check(tested, model, low, high)
        for key in list(model):
            assert delete(tested, key)
        assert tested.txn.stat()["entries"] == 0, "nodes were left behind"


@pytest.mark.parametrize("seed", range(3))
def test_many_keys(seed: int) -> None:
    rng = random.Random(seed)
    with rows() as tested:
        model: dict[bytes, bytes] = {}
        for number in range(400):
            key = random_key(rng)
            if rng.random() < 0.25 and model:
                key = rng.choice(sorted(model))
                del model[key]
                assert delete(tested, key)
            else:
                model[key] = number.to_bytes(2, "big")
                put(tested, key, model[key])
        for key, row in model.items():
            name = trie.locate(tested.txn, key)
            assert name is not None
            assert len(name) <= 511
            assert tested.read(name, trie.ROOT + key) == row
        for _ in range(100):
            low, high = random_key(rng), random_key(rng)
            check(tested, model, low, high)
            check(tested, model, low[:495], low + b"\x00")


def test_a_longest_key_takes_five_levels() -> None:
    with rows() as tested:
        put(tested, b"k" * 2_048, b"row")
        assert tested.txn.stat()["entries"] == 5
        assert trie.locate(tested.txn, b"k" * 2_047 + b"x") is not None
        assert trie.locate(tested.txn, b"x" * 2_048) is None


def test_an_empty_or_inverted_range_has_no_rows() -> None:
    with rows() as tested:
        put(tested, b"b", b"")
        assert list(trie.scan(tested.txn, b"b", b"b")) == []
        assert list(trie.scan(tested.txn, b"c", b"a", reverse=True)) == []
        assert list(trie.keys(tested.txn, b"b", b"b")) == list(trie.keys(tested.txn, b"c", b"a")) == []


def test_rows_of_other_tables_do_not_show() -> None:
    with rows() as tested:
        tested.txn.put(b"\x80state", b"x")
        assert list(trie.scan(tested.txn)) == []
        assert list(trie.scan(tested.txn, reverse=True)) == []
        assert list(trie.keys(tested.txn, b"", b"\xff" * 2_049)) == []
