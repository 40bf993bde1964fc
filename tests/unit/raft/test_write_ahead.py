"""The write-ahead file: what was acknowledged is read back, what was torn is not, and nothing else is a frame."""

import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from kvorum_raft import write_ahead
from kvorum_raft.base import Base
from kvorum_raft.entry import DamagedRecord, Entry, Kind, make
from kvorum_raft.errors import RaftFault
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore
from kvorum_raft.write_ahead import ALIGNED, MAX_FRAME, SIZE, File, Frame, SyncedFile, WriteAhead, frames

EPOCH = b"epoch 01"
HEADER = 24
"""Bytes of a frame before its body."""
MAP = 1 << 30


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
    ahead.begin(b"epoch 02")
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


# ---- the log that it belongs to


def _batch(first: int, last: int, term: int = 1) -> Batch:
    entries = [make(Kind.COMMAND, index, term, 1000 + index, b"p%d" % index) for index in range(first, last + 1)]
    return Batch(last, HardState(term, "B", 0, last, 0, 0), None, entries)


def _killed(store: LogStore) -> None:
    """As the kernel does it: no transaction, no words."""
    store._env.close()
    assert store._file is not None
    store._file.close()


def _indices(store: LogStore) -> list[int]:
    return [entry.index for entry in store.verify(cache=1 << 20).tail]


def _syncs(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two made something durable, from now on."""
    found: list[str] = []
    ahead, commit = store._ahead, store._commit
    assert ahead is not None
    append = ahead.append
    monkeypatch.setattr(ahead, "append", lambda frame: found.append("ahead") or append(frame))
    monkeypatch.setattr(store, "_commit", lambda *how, **more: found.append("environment") or commit(*how, **more))
    return found


def test_what_only_appends_is_durable_without_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 3), _batch(4, 4)])
    store.write([Batch(5, HardState(1, "B", 2, 4, 0, 0))])
    assert syncs == ["ahead", "ahead"]
    assert _indices_in_environment(tmp_path, store) == []
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4]
    assert store.verify(cache=1 << 20).state == HardState(1, "B", 2, 4, 0, 0)
    store.close()


@pytest.mark.parametrize("state", [HardState(2, "B", 0, 3, 0, 0), HardState(1, "C", 0, 3, 0, 0)], ids=["term", "vote"])
def test_a_term_or_vote_is_never_only_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: HardState
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 3)])
    store.write([Batch(4, state)])
    store.write([Batch(5, state)])
    assert syncs == ["ahead", "environment", "ahead"]
    _killed(store)
    (tmp_path / "write-ahead").write_bytes(bytes(SIZE))  # the newest frame is lost
    store = LogStore.open(tmp_path, map_size=MAP)
    assert store.verify(cache=1 << 20).state == state
    store.close()


def _voted(path: Path) -> LogStore:
    """A log with the term and the vote of these batches."""
    store = LogStore.open(path, map_size=MAP)
    store.write([Batch(0, HardState(1, "B"))])
    return store


def _indices_in_environment(path: Path, store: LogStore) -> list[int]:
    with store._env.begin(db=store._log) as txn, txn.cursor() as cursor:
        return [int.from_bytes(key, "big") for key in cursor.iternext(values=False)]


@pytest.mark.parametrize(
    "change",
    [
        Batch(9, HardState(2, "B", 0, 2, 0, 0), truncate_from=3),
        Batch(9, HardState(1, "B", 0, 5, 0, 0), records={b"small": b"record"}),
        Batch(9, HardState(1, "B", 3, 5, 3, 1), base=Base(3, 1, 1003)),
        Batch(9, HardState(1, "B", 9, 9, 9, 1), base=Base(9, 1, 1009), reset=True),
    ],
    ids=["cut", "record", "base", "reset"],
)
def test_whatever_does_more_goes_to_the_environment_with_all_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Batch
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 5)])
    store.write([change])
    assert syncs == ["ahead", "environment"]
    left = {2: [1, 2], 5: [4, 5] if change.base else [1, 2, 3, 4, 5], 9: []}[change.state.last_index]
    assert _indices_in_environment(tmp_path, store) == left
    last = change.state.last_index
    store.write([_batch(last + 1, last + 2, term=3)])
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices_in_environment(tmp_path, store) == [*left, last + 1, last + 2]
    store.close()


def test_a_full_file_moves_into_the_environment_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    frames_of_one = SIZE // ALIGNED
    for index in range(1, 2 * frames_of_one + 10):
        store.write([_batch(index, index)])
    assert [at for at, sync in enumerate(syncs) if sync == "environment"] == [frames_of_one, 2 * frames_of_one + 1]
    last = 2 * frames_of_one + 9
    _killed(store)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices_in_environment(tmp_path, store) == list(range(1, last + 1))
    store.close()


def test_a_large_batch_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _voted(tmp_path)
    syncs = _syncs(store, monkeypatch)
    store.write([_batch(1, 2)])
    large = make(Kind.COMMAND, 3, 1, 2000, bytes(MAX_FRAME))
    store.write([Batch(3, HardState(1, "B", 0, 3, 0, 0), None, [large])])
    assert syncs == ["ahead", "environment"]
    assert _indices_in_environment(tmp_path, store) == [1, 2, 3]
    store.close()


def test_entries_are_read_wherever_they_are(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 4)])
    store._commit(store._waiting, None)
    store.write([_batch(5, 6)])
    store.write([_batch(7, 9)])

    def read(first: int, count: int, size: int = 10**6) -> list[int]:
        return [entry.index for entry in store.read(first, count, size)]

    assert read(3, 2) == [3, 4]
    assert read(3, 9) == [3, 4], "what the environment holds is enough of an answer"
    assert read(5, 9) == [5, 6, 7, 8, 9] and read(6, 2) == [6, 7] and read(8, 5, 1) == [8]
    assert read(10, 1) == []
    store.close()


def test_entries_that_move_while_they_are_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 4)])
    waiting = store._read_waiting

    def moved_meanwhile(first: int, count: int, max_bytes: int) -> list[Entry]:
        store._commit(store._waiting, None)
        return waiting(first, count, max_bytes)

    monkeypatch.setattr(store, "_read_waiting", moved_meanwhile)
    assert [entry.index for entry in store.read(2, 2, 10**6)] == [2, 3]
    store.close()


def test_entries_that_move_and_are_followed_by_others_while_they_are_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads may wait for the processor as long as it takes to write all of that."""
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 4)])
    waiting = store._read_waiting

    def moved_meanwhile(first: int, count: int, max_bytes: int) -> list[Entry]:
        store._commit(store._waiting, None)
        store.write([_batch(5, 6)])
        return waiting(first, count, max_bytes)

    monkeypatch.setattr(store, "_read_waiting", moved_meanwhile)
    assert [entry.index for entry in store.read(2, 2, 10**6)] == [2, 3]
    store.close()


def test_an_entry_out_of_order_is_an_error_and_the_last_thing(tmp_path: Path) -> None:
    for wrong in (_batch(2, 3), _batch(4, 5)):
        store = LogStore.open(tmp_path / str(wrong.seq), map_size=MAP)
        store.write([_batch(1, 2)])
        with pytest.raises(lmdb.KeyExistsError, match=f"entry {wrong.entries[0].index} cannot follow entry 2"):
            store.write([wrong])
        with pytest.raises(lmdb.Error, match="has failed before"):
            store.write([_batch(3, 3)])
        store.close()
        store = LogStore.open(tmp_path / str(wrong.seq), map_size=MAP)
        assert _indices(store) == [1, 2]
        store.close()


class Failing:
    """A file whose next write fails, with a part of it written."""

    def __init__(self, path: Path, whole: bool) -> None:
        self._file: File = SyncedFile(path, whole)
        self.fails = False
        self.content, self.close = self._file.content, self._file.close

    def write(self, offset: int, data: bytes) -> None:
        if self.fails:
            self.fails = False
            self._file.write(offset, data[:512])
            raise OSError(5, "Input/output error")
        self._file.write(offset, data)


def test_after_a_failed_write_nothing_is_written_any_more(tmp_path: Path) -> None:
    """Not at the end, either: nobody knows what of it is on the disk."""
    opened: list[Failing] = []

    def open_file(path: Path, whole: bool) -> Failing:
        opened.append(Failing(path, whole))
        return opened[-1]

    store = LogStore.open(tmp_path, map_size=MAP, open_file=open_file)
    store.write([_batch(1, 2)])
    opened[0].fails = True
    large = make(Kind.COMMAND, 3, 1, 2000, b"z" * 8_000)
    with pytest.raises(OSError, match="Input/output"):
        store.write([Batch(3, HardState(1, "B", 0, 3, 0, 0), None, [large])])
    with pytest.raises(lmdb.Error, match="has failed before"):
        store.write([_batch(3, 3)])
    store.close()
    assert _format(tmp_path) == b"2"
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2]
    store.close()


def _format(path: Path) -> bytes:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(db=meta) as txn:
            return bytes(txn.get(b"format"))


def test_a_log_that_was_closed_is_one_that_older_versions_know(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 2)])
    store.close()
    assert _format(tmp_path) == b"1"
    with lmdb.open(str(tmp_path), map_size=MAP, max_dbs=4) as env:
        log = env.open_db(b"log")
        with env.begin(db=log, write=True) as txn:  # an older version goes on
            assert txn.stat()["entries"] == 2
            txn.put((3).to_bytes(8, "big"), make(Kind.COMMAND, 3, 1, 1003, b"").record)
            txn.put(b"state", _state(3), db=env.open_db(b"meta", txn))
    (tmp_path / "write-ahead").unlink()
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3]
    store.write([_batch(4, 4)])
    _killed(store)
    assert _format(tmp_path) == b"2"
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4]
    store.close()


def _state(last: int) -> bytes:
    from kvorum_raft.log_store import encode_state

    return encode_state(HardState(1, "B", 0, last, 0, 0))


def _without_file(path: Path) -> None:
    (path / "write-ahead").unlink()


def _short(path: Path) -> None:
    os.truncate(path / "write-ahead", SIZE - 1)


def _spoilt(path: Path) -> None:
    with (path / "write-ahead").open("r+b") as file:
        file.seek(50)
        byte = file.read(1)
        file.seek(50)
        file.write(bytes([byte[0] ^ 1]))


def _without_epoch(path: Path) -> None:
    with lmdb.open(str(path), map_size=MAP, max_dbs=4) as env, env.begin(write=True) as txn:
        txn.delete(b"epoch", db=env.open_db(b"meta", txn))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_file, "its write-ahead file is missing"),
        (_short, "its write-ahead file has 2,097,151 bytes instead of 2,097,152"),
        (_spoilt, "frame 0 of its write-ahead file is damaged, and frame 1 comes after it"),
        (_without_epoch, "it has a write-ahead file of no epoch"),
    ],
)
def test_a_damaged_file_is_named_and_not_taken_for_an_empty_one(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    store = _voted(tmp_path)
    store.write([_batch(1, 2)])
    store.write([_batch(3, 3)])
    _killed(store)
    damage(tmp_path)
    for _ in range(2):
        with pytest.raises(RaftFault, match=f"is damaged: {words}") as caught:
            LogStore.open(tmp_path, map_size=MAP)
        assert "\n" not in str(caught.value)


def test_a_start_that_dies_at_any_moment_is_followed_by_one_that_finds_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore.open(tmp_path, map_size=MAP)
    store.write([_batch(1, 3)])
    store.write([_batch(4, 5)])
    _killed(store)

    class Dies(Exception):
        pass

    def dies(*_: object) -> None:
        raise Dies

    for moment in ("frames", "WriteAhead"):  # before the transaction, and after it
        with monkeypatch.context() as patch, pytest.raises(Dies):
            patch.setattr(f"kvorum_raft.log_store.{moment}", dies)
            LogStore.open(tmp_path, map_size=MAP)
    store = LogStore.open(tmp_path, map_size=MAP)
    assert _indices(store) == [1, 2, 3, 4, 5]
    store.close()


def test_the_page_cache_is_dropped_before_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SyncedFile(tmp_path / "file", False)
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, what: advice.append(what))
    file.content()
    file.close()
    assert advice == [os.POSIX_FADV_DONTNEED]


def test_a_frame_is_a_part_of_the_file() -> None:
    assert write_ahead.MAX_FRAME < write_ahead.SIZE and write_ahead.SIZE % write_ahead.ALIGNED == 0
