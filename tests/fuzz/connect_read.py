"""The body of a read over KV Connect: refused with 400, or answered as a sorted list of rows says, whichever way it is
carried out. Watches likewise.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.http import datapath
from kvorum_node.http.message import Refusal
from kvorum_node.reads import check_read
from tests.unit.store.harness import Replica, init_cluster, put

KEYS = [
    b"\x02a\0",
    b"\x02k\0\x02a\0",
    b"\x02k\0\x02b\0",
    b"\x02k\0\x02b\0\x14",
    b"k" * 495,
    b"k" * 496,
    b"k" * 2_048,
    b"\xfe",
    b"\0",
]

SEEDS = [
    bytes.fromhex(text)
    for text in (
        "",
        "0a0d0a030261001204026100001801",
        "0a0e0a04026b00001204026b00ff1864",
        "0a100a04026b00001204026b00ff18032001",
        "0a090a03026b0012 01ff180a 2000".replace(" ", "").replace("0a09", "0a0c"),
        "0a050a030261000a050a03026200",
    )
] + [
    dp.SnapshotRead(
        ranges=[dp.ReadRange(start=key, end=key + b"\0", limit=1) for key in KEYS[:5]]
        + [dp.ReadRange(end=b"\xff", limit=900)]
    ).SerializeToString(),
    dp.SnapshotRead(ranges=[dp.ReadRange(start=b"k", end=b"k" * 2_049, limit=3, reverse=True)]).SerializeToString(),
    dp.Watch(keys=[dp.WatchKey(key=key) for key in KEYS]).SerializeToString(),
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    folder = Path(tempfile.mkdtemp(prefix="kvorum-fuzz-"))
    try:
        replica = Replica(folder / "state")
        replica.apply(init_cluster())
        for at, key in enumerate(KEYS):
            replica.commit(put(key, b"%d" % at))
        yield partial(check, replica)
        replica.store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(replica: Replica, body: bytes) -> None:
    _read(replica, body)
    _watch(replica, body)


def _read(replica: Replica, body: bytes) -> None:
    try:
        request = datapath.read_of(body)
    except Refusal as refusal:
        assert (refusal.status, bool(refusal.text)) == (400, True)
        return
    wanted = datapath.ranges_of(request)
    assert check_read(wanted) == "", "what was let in is refused later"
    with replica.store.snapshot() as snapshot:
        pieces = [[pb.RangeResult(entries=snapshot.range(one)).SerializeToString()] for one in wanted.ranges]
        output = dp.SnapshotReadOutput.FromString(b"".join(datapath.ranges_output(pieces)))
        points = datapath.points_of(request)
        if points is not None:
            assert check_read(points.read) == ""
            entries = [snapshot.get(key) for key in points.read.keys]
            if points.certain or all(entry.versionstamp for entry in entries):
                assert dp.SnapshotReadOutput.FromString(datapath.points_output(entries)) == output
    assert (output.status, output.read_is_strongly_consistent) == (dp.SR_SUCCESS, True)
    assert [[row.key for row in found.values] for found in output.ranges] == [_expected(one) for one in request.ranges]


def _expected(wanted: dp.ReadRange) -> list[bytes]:
    keys = sorted((key for key in KEYS if wanted.start <= key < wanted.end), reverse=wanted.reverse)
    return keys[: wanted.limit]


def _watch(replica: Replica, body: bytes) -> None:
    try:
        keys = datapath.watch_of(body)
    except Refusal as refusal:
        assert (refusal.status, bool(refusal.text)) == (400, True)
        return
    assert len(keys) <= limits.MAX_WATCHED_KEYS
    with replica.store.snapshot() as snapshot:
        frame = datapath.watch_frame([snapshot.get(key) for key in keys], None)
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    shown = dp.WatchOutput.FromString(frame[4:])
    assert [part.changed for part in shown.keys] == [True] * len(keys)
    assert [part.HasField("entry_if_changed") for part in shown.keys] == [key in KEYS for key in keys]
