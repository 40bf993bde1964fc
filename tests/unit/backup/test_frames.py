"""The format of backups and segments: what is written is read, and nothing else passes for it."""

import random
from collections.abc import Iterable

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.backup import frames
from kvorum_node.backup.frames import BACKUP, MAX_FRAME, SEGMENT, BadFile, Decoder, Encoder, encode

PAYLOADS = [b"a", b"bb" * 3_000, bytes(range(256)), b"\x00" * 70_000]


def header(**changes: object) -> pb.BackupHeader:
    fields: dict[str, object] = {
        "format": 1,
        "cluster_id": bytes(16),
        "index": 12,
        "term": 3,
        "time_ms": 99,
        "bookmark": bytes(10),
        "content_hash": bytes(16),
        "data_format": 4,
        "size": 5,
        "state_hash": bytes(32),
        "node_id": "n1",
    }
    return pb.BackupHeader(**{**fields, **changes})  # type: ignore[arg-type]


def segment_header() -> pb.SegmentHeader:
    return pb.SegmentHeader(format=1, cluster_id=bytes(16), first=3, last=9, content_hash=bytes(16))


def whole() -> bytes:
    return b"".join(encode(BACKUP, header(), PAYLOADS))


def decode(pieces: Iterable[bytes]) -> list[bytes]:
    decoder = Decoder(BACKUP, pb.BackupHeader)
    found = [payload for piece in pieces for payload in decoder.feed(piece)]
    assert decoder.finish() == header()
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 4_096, 1 << 20])
def test_what_is_written_is_read_in_pieces_of_any_size(size: int) -> None:
    assert decode(cut(whole(), size)) == PAYLOADS


def test_segments_are_no_backups() -> None:
    segment = b"".join(encode(SEGMENT, segment_header(), PAYLOADS))
    decoder = Decoder(SEGMENT, pb.SegmentHeader)
    assert [*decoder.feed(segment)] == PAYLOADS
    assert decoder.finish() == segment_header()
    with pytest.raises(BadFile, match="no backup"):
        decode([segment])


@pytest.mark.parametrize("data", [b"", b"K", b"KVORUMB", b"no backup", b"PK\x03\x04" * 100])
def test_other_files_are_told(data: bytes) -> None:
    with pytest.raises(BadFile):
        decode([data])


def test_a_cut_at_any_place_is_found() -> None:
    """At each boundary of a frame, one byte before and after it, and at random places."""
    data = whole()
    places = {0, 1, 8, len(data) - 1, *random.Random(1).sample(range(len(data)), 300)}
    encoder, at = Encoder(BACKUP), 0
    for part in (encoder.begin(header()), *map(encoder.data, PAYLOADS)):
        at += len(part)
        places |= {at - 1, at, at + 1, at + 12}
    for place in places:
        with pytest.raises(BadFile):
            decode([data[:place]])


def test_each_changed_byte_is_found() -> None:
    small = b"".join(encode(BACKUP, header(), [b"a", b"bcd" * 40]))
    for place in range(len(small)):
        for mask in (1, 0x80, 0xFF):
            changed = bytearray(small)
            changed[place] ^= mask
            with pytest.raises(BadFile):
                decode([bytes(changed)])


def test_changed_bytes_in_long_frames_are_found() -> None:
    data, rng = whole(), random.Random(2)
    for place in rng.sample(range(len(data)), 200):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        with pytest.raises(BadFile):
            decode(cut(bytes(changed), 10_000))


def test_nothing_may_follow_or_be_left_out_or_come_twice() -> None:
    encoder = Encoder(BACKUP)
    begin, first, second, end = encoder.begin(header()), encoder.data(b"1"), encoder.data(b"2"), encoder.end()
    for parts in (
        (begin, first, second, end, b"\x00"),
        (begin, first, second, end, end),
        (begin, first, end),
        (begin, second, first, end),
        (begin, first, first, second, end),
        (first, second, end),
        (begin, begin[8:], first, second, end),
        (begin, end),
    ):
        with pytest.raises(BadFile):
            decode(parts)
    with pytest.raises(BadFile):
        decode([begin + first + second + end[:-1]])
    assert decode([begin, first, second, end]) == [b"1", b"2"]


def test_a_newer_format_is_told_apart_from_damage() -> None:
    data = b"".join(encode(BACKUP, header(format=2), [b"a"]))
    with pytest.raises(BadFile, match="format 2; this version of kvorum knows formats up to 1"):
        decode([data])


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_id": b"short"},
        {"content_hash": b""},
        {"state_hash": bytes(31)},
        {"bookmark": bytes(11)},
        {"index": 0},
        {"size": 0},
        {"size": 1 << 50},
        {"stamp_base": (1 << 62) + 1},
        {"format": 0},
    ],
)
def test_a_header_that_makes_no_sense(changes: dict[str, object]) -> None:
    with pytest.raises(BadFile, match="header makes no sense"):
        decode([b"".join(encode(BACKUP, header(**changes), [b"a"]))])


def test_no_size_in_a_file_makes_anybody_wait_for_more_than_a_frame() -> None:
    begin = Encoder(BACKUP).begin(header())
    for size in (MAX_FRAME + 1, 0xFFFF_FFFF):
        decoder = Decoder(BACKUP, pb.BackupHeader)
        with pytest.raises(BadFile, match="a frame of"):
            [*decoder.feed(begin + frames._HEAD.pack(2, size) + bytes(4))]
    encoder = Encoder(BACKUP)
    for payload in (b"", bytes(MAX_FRAME + 1)):
        with pytest.raises(ValueError, match="a data frame of"):
            encoder.data(payload)
