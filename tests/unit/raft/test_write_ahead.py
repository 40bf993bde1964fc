"""The write-ahead file: what was acknowledged is read back, what was torn is not, and nothing else is a frame."""

import os
import random
import zlib
from pathlib import Path

import pytest

from kvorum_raft import write_ahead
from kvorum_raft.entry import DamagedRecord
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.write_ahead import ALIGNED, MAX_FRAME, SIZE, Frame, SyncedFile, WriteAhead, frames

EPOCH = b"epoch 01"
HEADER = 24
"""Bytes of a frame before its body."""


class Memory:
    """A `File` that keeps what was written."""

    def __init__(self) -> None:
        self.bytes = bytearray(SIZE)

    def content(self) -> bytes:
        return bytes(self.bytes)

    def write(self, offset: int, data: bytes) -> None:
        self.bytes[offset : offset + len(data)] = data

    def close(self) -> None: ...


def _written(*found: Frame) -> Memory:
    file = Memory()
    ahead = WriteAhead(file, EPOCH)
    for one in found:
        frame = ahead.frame(one.state, one.entries)
        assert frame is not None
        ahead.append(frame)
    return file


FRAMES = [
    Frame(b"state 0", [b"first", b"second"]),
    Frame(b"state 1", []),
    Frame(b"state 2", [b"x" * 20_000, b"", b"y" * 5_000]),
    Frame(b"state 3", [b"last"]),
]


def test_what_was_written_comes_back_in_order() -> None:
    assert frames(_written(*FRAMES).content(), EPOCH) == FRAMES
    assert frames(Memory().content(), EPOCH) == []
    assert frames(b"", EPOCH) == []


def test_each_frame_begins_where_nothing_was_acknowledged_yet() -> None:
    ahead = WriteAhead(Memory(), EPOCH)
    for one in FRAMES:
        frame = ahead.frame(one.state, one.entries)
        assert frame is not None and len(frame) % ALIGNED == 0
        ahead.append(frame)


def test_frames_of_another_epoch_are_none() -> None:
    file = _written(*FRAMES)
    assert frames(file.content(), b"epoch 02") == []
    ahead = WriteAhead(file, b"epoch 02")
    frame = ahead.frame(b"new", [b"entry"])
    assert frame is not None
    ahead.append(frame)
    assert frames(file.content(), b"epoch 02") == [Frame(b"new", [b"entry"])]
    assert [one.state for one in frames(_written(*FRAMES).content(), EPOCH)] == [one.state for one in FRAMES]


def test_a_new_epoch_begins_at_the_beginning() -> None:
    file = Memory()
    ahead = WriteAhead(file, EPOCH)
    for _ in range(3):
        ahead.append(ahead.frame(b"old", [b"entry"]) or b"")
    ahead = WriteAhead(file, b"epoch 02")
    ahead.append(ahead.frame(b"new", []) or b"")
    assert frames(file.content(), b"epoch 02") == [Frame(b"new", [])]
    assert file.bytes[:4] == b"kvwa" and file.bytes[ALIGNED : ALIGNED + 4] == b"kvwa"


def test_what_is_too_large_or_has_no_room_is_no_frame() -> None:
    ahead = WriteAhead(Memory(), EPOCH)
    assert ahead.frame(b"", [bytes(MAX_FRAME)]) is None
    room = SIZE
    while (frame := ahead.frame(b"state", [bytes(200_000)])) is not None:
        ahead.append(frame)
        room -= len(frame)
    assert 0 <= room < 200_000 + ALIGNED


@pytest.mark.parametrize("seed", range(60))
def test_a_torn_frame_at_the_end_counts_as_none(seed: int) -> None:
    """Any part of its sectors may be on the disk."""
    rng = random.Random(seed)
    before, after = _written(*FRAMES[:2]), _written(*FRAMES[:3])
    start = 2 * ALIGNED
    end = start + 25_000 + ALIGNED
    torn = bytearray(before.bytes)
    kept = [rng.random() < 0.5 for _ in range(start, end, 512)]
    for at, keep in zip(range(start, end, 512), kept, strict=True):
        if keep:
            torn[at : at + 512] = after.bytes[at : at + 512]
    expected = FRAMES[:3] if torn == after.bytes else FRAMES[:2]
    assert frames(bytes(torn), EPOCH) == expected


def test_a_damaged_frame_that_others_follow_is_damage_and_no_end() -> None:
    whole = _written(*FRAMES)
    for at in (0, 5, 9, 20, 30, ALIGNED + 2, ALIGNED + 30, 2 * ALIGNED + 9_000):
        spoilt = bytearray(whole.bytes)
        spoilt[at] ^= 0x10
        with pytest.raises(DamagedRecord, match=r"frame \d of its write-ahead file is damaged, and frame \d comes"):
            frames(bytes(spoilt), EPOCH)


def test_a_frame_in_the_place_of_another_one_is_damage_and_no_end() -> None:
    spoilt = _written(FRAMES[0], FRAMES[1], FRAMES[3])
    spoilt.bytes[ALIGNED : 2 * ALIGNED] = spoilt.bytes[2 * ALIGNED : 3 * ALIGNED]
    spoilt.bytes[2 * ALIGNED :] = bytes(SIZE - 2 * ALIGNED)
    with pytest.raises(DamagedRecord, match="frame 1 of its write-ahead file is damaged, and frame 2 comes after it"):
        frames(spoilt.content(), EPOCH)


def test_every_changed_bit_of_the_last_frame_is_seen() -> None:
    whole = _written(FRAMES[0])
    used = HEADER + 4 * 4 + len(b"state 0firstsecond")
    for at in range(used):
        for bit in range(8):
            spoilt = bytearray(whole.bytes)
            spoilt[at] ^= 1 << bit
            assert frames(bytes(spoilt), EPOCH) == []


def test_a_value_that_looks_like_a_frame_is_none() -> None:
    """What a client can write lies within a frame; it does not know the epoch."""
    forged = _written(Frame(b"forged", [b"entry"])).bytes[:ALIGNED]
    forged = forged.replace(EPOCH, b"guessed!")
    value = bytes(ALIGNED - HEADER - 4 * 3 - len(b"state")) + bytes(forged) * 3
    file = _written(Frame(b"state", [value]))
    assert frames(file.content(), EPOCH) == [Frame(b"state", [value])]
    file.bytes[40] ^= 1  # torn: the copies of the forged frame are not mistaken for later ones
    assert frames(file.content(), EPOCH) == []


@pytest.mark.parametrize("seed", range(40))
def test_nonsense_is_no_frame(seed: int) -> None:
    """With a checksum that fits: a body that does not hold together."""
    rng = random.Random(seed)
    body = rng.randbytes(rng.randrange(0, 200))
    if seed % 2:
        body = rng.randrange(0, 6).to_bytes(4, "big") + body
    checked = EPOCH + bytes(4) + len(body).to_bytes(4, "big") + body
    data = b"kvwa" + zlib.crc32(checked).to_bytes(4, "big") + checked
    for found in frames(data + bytes(-len(data) % ALIGNED), EPOCH):
        assert len(found.state) + sum(map(len, found.entries)) <= len(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        bytes(4),
        b"\0\0\0\1",
        b"\0\0\0\1\0\0\0",
        b"\0\0\0\1\0\0\0\2x",
        b"\0\0\0\1\0\0\0\1xy",
        b"\xff\xff\xff\xff\0\0\0\1x",
    ],
)
def test_a_body_that_does_not_come_out_even_is_no_frame(body: bytes) -> None:
    checked = EPOCH + bytes(4) + len(body).to_bytes(4, "big") + body
    data = b"kvwa" + zlib.crc32(checked).to_bytes(4, "big") + checked
    assert frames(data + bytes(-len(data) % ALIGNED), EPOCH) == []
    even = EPOCH + bytes(4) + b"\0\0\0\x09" + b"\0\0\0\1\0\0\0\1x"
    assert frames(b"kvwa" + zlib.crc32(even).to_bytes(4, "big") + even, EPOCH) == [Frame(b"x", [])]


def test_nonsense_of_any_kind_is_answered(tmp_path: Path) -> None:
    rng = random.Random(1)
    whole = bytes(_written(*FRAMES).bytes[: 12 * ALIGNED])
    for _ in range(3_000):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = frames(bytes(data), EPOCH)
        except DamagedRecord:
            continue
        assert found == FRAMES[: len(found)]


# ---- the real file


def test_a_real_file_is_made_whole_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = SyncedFile(path, False)
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (SIZE, 0o600)
    assert path.stat().st_blocks * 512 >= SIZE, "its blocks are there: a write into them needs no metadata"
    file.write(ALIGNED, b"content")
    file.close()
    again = SyncedFile(path, True)
    assert again.content()[ALIGNED : ALIGNED + 7] == b"content" and len(again.content()) == SIZE
    again.close()


def test_a_file_that_was_not_finished_is_made_anew_unless_it_should_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(DamagedRecord, match="is missing"):
        SyncedFile(path, True)
    path.write_bytes(b"begun")
    with pytest.raises(DamagedRecord, match="has 5 bytes instead of"):
        SyncedFile(path, True)
    SyncedFile(path, False).close()
    assert path.read_bytes() == bytes(SIZE)


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_file_of_any_other_size_gets_the_right_one_or_is_damage(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    with pytest.raises(DamagedRecord, match=f"has {size:,} bytes instead of 2,097,152"):
        SyncedFile(path, True)
    assert path.stat().st_size == size, "what is damaged stays as it is"
    SyncedFile(path, False).close()
    SyncedFile(path, True).close()


def test_a_file_that_is_there_is_synced_before_anybody_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a copy, or of a process that was killed before its own sync: then a power cut could take its size."""
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    SyncedFile(path, False).close()
    assert synced == [path.stat().st_ino]


@pytest.mark.parametrize("whole", [False, True])
def test_a_link_is_not_followed(tmp_path: Path, whole: bool) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * SIZE if whole else b"somebody else's")
    before = other.read_bytes()
    (tmp_path / "file").symlink_to(other)
    with pytest.raises(ConfigurationError, match="file is a symbolic link: the file itself must be there"):
        SyncedFile(tmp_path / "file", whole)
    assert other.read_bytes() == before


def test_a_folder_in_its_place_is_an_error(tmp_path: Path) -> None:
    for whole in (False, True):
        with pytest.raises(IsADirectoryError):
            SyncedFile(tmp_path, whole)


def test_it_is_written_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SyncedFile(tmp_path / "file", False)
    calls: list[str] = []
    write, sync = os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda *what: calls.append("write") or write(*what))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync") or sync(fd))
    file.write(0, b"content")
    assert calls == ["write", "sync"]
    monkeypatch.setattr(os, "fdatasync", lambda fd: os.fstat(-1))
    with pytest.raises(OSError):
        file.write(0, b"content")
    file.close()


def test_a_write_that_takes_only_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SyncedFile(tmp_path / "file", False)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:3], offset))
    file.write(10, b"0123456789")
    monkeypatch.undo()
    assert file.content()[10:20] == b"0123456789"
    file.close()


def test_a_read_that_takes_only_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SyncedFile(tmp_path / "file", False)
    file.write(SIZE - 10, b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 300_000), offset))
    assert len(file.content()) == SIZE and file.content()[-10:] == b"0123456789"
    file.close()


def test_the_page_cache_is_dropped_before_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SyncedFile(tmp_path / "file", False)
    """And all of it is written before: only clean pages are dropped."""
    calls: list[object] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or sync(fd))
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, what: calls.append((start, size, what)))
    file.content()
    file.close()
    assert calls == ["sync", (0, 0, os.POSIX_FADV_DONTNEED)]


def test_a_frame_is_a_part_of_the_file() -> None:
    assert write_ahead.MAX_FRAME < write_ahead.SIZE and write_ahead.SIZE % write_ahead.ALIGNED == 0
