"""Files of backups and of the archive, in pieces of any size: BadFile, or what was written. The first byte says of
which kind the rest is, and in which pieces it comes; checksums are made right where the second byte says so, so that
changes come through to what lies behind them."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.backup import names
from kvorum_node.backup.frames import BACKUP, MAX_FRAME, SEGMENT, BadFile, Decoder, encode
from kvorum_node.backup.replaying import first_commits
from kvorum_raft.entry import Kind, make

_HEAD = 12
_BACKUP = pb.BackupHeader(
    format=1,
    cluster_id=bytes(16),
    index=12,
    bookmark=bytes(10),
    content_hash=bytes(16),
    state_hash=bytes(32),
    size=5,
    node_id="n1",
)
_SEGMENT = pb.SegmentHeader(format=1, cluster_id=bytes(16), first=3, last=4, skipped=[pb.Skipped(index=3, number=1)])
_BATCH = pb.Batch(data_version=3)
_BATCH.commands.add().writes.writes.add(seq=1, op=b"op")
_BATCH.commands.add().sweep.limit = 3
_RECORDS = [make(Kind.COMMAND, index, 1, 5, _BATCH.SerializeToString()).record for index in (3, 4)]

SEEDS = [
    b"\0\0" + b"".join(encode(BACKUP, _BACKUP, [b"state", b"more of it" * 20])),
    b"\1\1" + b"".join(encode(BACKUP, _BACKUP, [b"state"])),
    b"\2\0" + b"".join(encode(SEGMENT, _SEGMENT, _RECORDS)),
    b"\3\1" + b"".join(encode(SEGMENT, _SEGMENT, _RECORDS)),
    b"\4\2" + _BATCH.SerializeToString(),
    b"\5\0" + names.Base(bytes(16), "n/1", 4, 2, 9).name.encode(),
    b"\5\0" + names.Segment(bytes(16), "n1", 4, 8, 9).name.encode(),
]


def _mended(data: bytes) -> bytes:
    """With the checksum of each frame as it should be."""
    parts, at = [data[:8]], 8
    while at + _HEAD <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        head, payload = data[at : at + 8], data[at + _HEAD : at + _HEAD + size]
        parts += [head, zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big"), payload]
        at += _HEAD + size
    return b"".join([*parts, data[at:]])


def _decode(decoder: "Decoder[pb.BackupHeader] | Decoder[pb.SegmentHeader]", data: bytes, piece: int) -> None:
    try:
        for at in range(0, len(data), piece):
            for payload in decoder.feed(data[at : at + piece]):
                assert len(payload) <= MAX_FRAME
                assert decoder.header is not None
        decoder.finish()
    except BadFile:
        return
    assert decoder.taken == len(data)


def _check(data: bytes) -> None:
    kind, how, rest = data[:1], data[1:2], data[2:]
    if kind == b"\4":
        try:
            first_commits(rest, how[0] if how else 0)
        except BadFile:
            return
    elif kind == b"\5":
        found = names.parse(rest.decode("utf-8", "replace"))
        assert found is None or names.parse(found.name) == found
    else:
        content = _mended(rest) if how and how[0] & 1 else rest
        piece = 1 + (how[0] >> 1) * 50 if how else 1
        if kind in (b"\2", b"\3"):
            _decode(Decoder(SEGMENT, pb.SegmentHeader), content, piece)
        else:
            _decode(Decoder(BACKUP, pb.BackupHeader), content, piece)


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    """See `targets.Target`."""
    yield _check
