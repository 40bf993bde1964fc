"""Room in the map, reader slots, and long reads (cases P42, P44, P45)."""

import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Space, Store, StoreFault
from tests.unit.store.harness import START_MS, batch, delete, group, put, write

ROOT = Path(__file__).parents[3]
MAP = 64 << 20
MIB = 1 << 20


def apply(store: Store, *writes: pb.AtomicWrite) -> None:
    store.apply_now(store.applied_index + 1, START_MS, batch(group(*writes)))


def key(number: int) -> bytes:
    return b"key-%08d" % number


# ---- room


def fill(store: Store, rng: random.Random, first: int, *, value_size: int) -> int:
    """Write until there is little room, in entries of 1 MiB at most; the number behind the last key."""
    number = first
    while not store.space().low:
        count = min(4_096, MIB // (value_size + 40))
        apply(store, *(write(put(key(number + at), rng.randbytes(value_size))) for at in range(count)))
        number += count
    return number


@pytest.mark.parametrize(("value_size", "map_size"), [(20, MAP // 4), (1_000, MAP // 2), (60_000, MAP)])
def test_p42_little_room_is_known_before_the_map_is_full(tmp_path: Path, value_size: int, map_size: int) -> None:
    """Whoever refuses growth while room is low can always delete, in any order, until there is room again."""
    rng = random.Random(value_size)
    store = Store.open(tmp_path / "state", durable=False, map_size=map_size)
    end = 0
    for _ in range(3):
        first, end = end, fill(store, rng, end, value_size=value_size)
        assert store.space().map_bytes == map_size
        assert store.space().used_bytes > map_size // 2
        doomed = rng.sample(range(first, end), (end - first) * 3 // 4)
        deleted = 0
        while deleted < len(doomed):
            some = doomed[deleted : deleted + 200]
            apply(store, *(write(delete(key(number))) for number in some))
            deleted += len(some)
        assert not store.space().low, "what was freed is room again"
    assert store.recompute_hash() == store.state_hash()
    store.close()


def test_room_that_a_reader_may_still_see_is_not_counted(tmp_path: Path) -> None:
    rng = random.Random(1)
    store = Store.open(tmp_path / "state", durable=False, map_size=MAP)
    end = fill(store, rng, 0, value_size=1_000)
    for first in range(0, end * 3 // 4, 500):
        apply(store, *(write(delete(key(number))) for number in range(first, first + 500)))
    assert not store.space().low
    with store.snapshot():
        assert store.space().low
    assert not store.space().low
    store.close()


@pytest.mark.parametrize(
    ("used", "size", "low"),
    [
        (0, 1 << 40, False),
        ((1 << 40) * 94 // 100, 1 << 40, False),
        ((1 << 40) * 96 // 100, 1 << 40, True),
        (0, 128 * MIB, False),
        (111 * MIB, 128 * MIB, False),
        (113 * MIB, 128 * MIB, True),
        (2 * MIB, 4 * MIB, False),
        (4 * MIB - 1, 4 * MIB, True),
    ],
)
def test_the_reserve(used: int, size: int, low: bool) -> None:
    assert Space(used, size).low == low


# ---- readers


def test_p45_three_hundred_snapshots_at_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state", durable=False, map_size=MAP)
    for number in range(300):
        apply(store, write(put(key(number), b"%d" % number)))
    with ExitStack() as stack:
        snapshots = []
        for number in range(300):
            snapshots.append(stack.enter_context(store.snapshot()))
            apply(store, write(put(b"last", b"%d" % number)))
        assert store.statistics()["snapshots"] == 300
        for number, snapshot in enumerate(snapshots):
            assert len(snapshot.range(pb.ReadRange(start=b"k", end=b"l", limit=1_000))) == 300
            assert snapshot.get(b"last").value == (b"%d" % (number - 1) if number else b"")
    assert store.statistics()["snapshots"] == 0
    store.close()


def test_more_readers_than_slots_is_an_error_and_no_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state", durable=False, map_size=MAP, max_readers=4)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(store.snapshot())
        with pytest.raises(StoreFault, match="cannot be used"):
            store.snapshot()
        assert store.statistics()["snapshots"] == 4
    apply(store, write(put(b"a")))
    with store.snapshot() as snapshot:
        assert snapshot.get(b"a").value == b"v"
    store.close(clean=False)
    store = Store.open(tmp_path / "state", durable=False, map_size=MAP)
    assert not store.rebuilt
    store.close()


HOLDER = """
import sys
from pathlib import Path
from kvorum_node.store import Store
store = Store.open(Path(sys.argv[1]), durable=True, map_size=1 << 26, max_readers=8)
held = [store.snapshot() for _ in range(7)]
print("held", flush=True)
sys.stdin.read()
"""


def test_p45_the_slots_of_killed_processes_are_free_again(tmp_path: Path) -> None:
    """Each one leaves seven of eight slots taken; a reader that is gone would also keep pages from being used again."""
    folder = tmp_path / "db"
    Store.open(folder, durable=True, map_size=1 << 26).close()
    sizes = []
    for turn in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"held\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
        store = Store.open(folder, durable=True, map_size=1 << 26, max_readers=8)
        with ExitStack() as stack:
            for _ in range(7):
                stack.enter_context(store.snapshot())
        for number in range(20):
            apply(store, write(put(b"key", b"%d" % number * 10_000)))
        sizes.append(store.statistics()["used_bytes"])
        store.close(clean=turn % 2 == 0)
    assert sizes[-1] <= sizes[3] + 16 * 4_096, sizes


def test_p44_long_scans_while_the_data_grows_a_hundredfold(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state", durable=False, map_size=1 << 30)
    rng = random.Random(3)
    for number in range(64):
        apply(store, write(put(key(number), rng.randbytes(1_000))))
    small = store.size()
    everything = pb.ReadRange(start=b"", end=b"\xff", limit=1 << 31)
    with ExitStack() as stack:
        scans = [stack.enter_context(store.snapshot()).iter_range(everything) for _ in range(8)]
        first = [next(scan).key for scan in scans]
        for number in range(64, 64 * 100, 64):
            apply(store, *(write(put(key(number + at), rng.randbytes(1_000))) for at in range(64)))
        assert store.size() > 60 * small
        assert first == [key(0)] * 8
        assert [len(list(scan)) for scan in scans] == [63] * 8
    assert store.recompute_hash() == store.state_hash()
    store.close()
