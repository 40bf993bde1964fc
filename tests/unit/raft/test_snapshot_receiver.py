"""What a follower takes: nothing that it does not want, nothing that is not whole, and no nonsense at all."""

import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ProtocolError
from kvorum_raft.incoming import Incoming
from kvorum_raft.manifest import MAX_SIZE, Manifest
from tests.unit.raft.fake_state import assert_all_whole, broken_disk, checkpoints_in, no_space, write
from tests.unit.raft.snapshot_link import CHUNK, LEADER, Receiving, Sending


@pytest.fixture
def sending(tmp_path: Path) -> Sending:
    return Sending(tmp_path / "leader")


@pytest.fixture
def receiving(tmp_path: Path) -> Receiving:
    return Receiving(tmp_path / "follower")


def offer(sending: Sending, manifest: Manifest | None = None) -> pb.SnapshotOffer:
    return pb.SnapshotOffer(manifest=(manifest or sending.manifest).message())


def chunk(sending: Sending, offset: int) -> pb.SnapshotChunk:
    data = sending.checkpoints.path(sending.manifest).read_bytes()[offset : offset + CHUNK]
    return pb.SnapshotChunk(file_hash=sending.manifest.file_hash, offset=offset, crc=zlib.crc32(data), data=data)


def begin(sending: Sending, receiving: Receiving, upto: int = 0) -> None:
    """Offered, and received up to there."""
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    for offset in range(0, upto, CHUNK):
        receiving.one.chunk(LEADER, chunk(sending, offset))
        receiving.background.run_all()
    receiving.replies.clear()


def said(receiving: Receiving) -> list[int]:
    """Offsets of the replies so far."""
    assert not any(one.failed or one.installed for one in receiving.replies)
    found = [one.offset for one in receiving.replies]
    receiving.replies.clear()
    return found


def test_what_is_written_is_acknowledged_when_it_is_written(sending: Sending, receiving: Receiving) -> None:
    receiving.one.offered(LEADER, offer(sending))
    assert said(receiving) == []
    receiving.background.run_all()
    assert said(receiving) == [0]
    for offset in (0, 1000, 2000):
        receiving.one.chunk(LEADER, chunk(sending, offset))
    assert said(receiving) == []
    receiving.background.run_one()
    assert said(receiving) == [1000]
    assert receiving.one.progress() == (1000, sending.manifest.size)
    receiving.background.run_all()
    assert said(receiving) == [2000, 3000]


def test_a_gap_is_told_once(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving, 2000)
    for offset in (3000, 4000, 5000):
        receiving.one.chunk(LEADER, chunk(sending, offset))
    assert said(receiving) == [2000]
    receiving.one.chunk(LEADER, chunk(sending, 1000))
    assert said(receiving) == [], "what is there already needs no answer"
    receiving.one.chunk(LEADER, chunk(sending, 2000))
    receiving.background.run_all()
    assert said(receiving) == [3000]
    for offset in (0, 2000):
        receiving.one.chunk(LEADER, chunk(sending, offset))
    assert said(receiving) == []
    damaged = chunk(sending, 3000)
    damaged.data = bytes(CHUNK)
    receiving.one.chunk(LEADER, damaged)
    assert said(receiving) == [3000]


def test_no_more_than_the_window_waits_for_the_disk(sending: Sending, tmp_path: Path) -> None:
    receiving = Receiving(tmp_path / "follower", window=3)
    begin(sending, receiving)
    for offset in range(0, 20_000, CHUNK):
        receiving.one.chunk(LEADER, chunk(sending, offset))
    assert len(receiving.background.waiting) == 3
    receiving.background.run_all()
    assert said(receiving) == [0, 1000, 2000, 3000]


def test_an_offer_again_while_chunks_wait_is_answered_when_they_are_written(
    sending: Sending, receiving: Receiving
) -> None:
    begin(sending, receiving)
    for offset in (0, 1000, 2000):
        receiving.one.chunk(LEADER, chunk(sending, offset))
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert said(receiving) == [3000]
    receiving.one.offered(LEADER, offer(sending))
    assert said(receiving) == [3000]


def test_what_is_not_wanted_is_declined_and_given_up(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving, 3000)
    receiving.commit = 50
    receiving.one.offered(LEADER, offer(sending))
    assert receiving.declined == [sending.manifest] and receiving.one.progress() is None
    receiving.one.chunk(LEADER, chunk(sending, 3000))  # was on its way
    receiving.background.run_all()
    assert list(receiving.folder.iterdir()) == []


def test_chunks_of_another_than_the_leader_are_ignored(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving)
    receiving.one.chunk(Node("deposed"), chunk(sending, 0))
    assert not receiving.background.waiting and said(receiving) == []


def finish(sending: Sending, receiving: Receiving) -> None:
    for offset in range(0, sending.manifest.size, CHUNK):
        receiving.one.chunk(LEADER, chunk(sending, offset))
        receiving.background.run_one()


@pytest.mark.parametrize("steps", range(6))
def test_a_crash_between_any_two_steps_of_the_end(sending: Sending, receiving: Receiving, steps: int) -> None:
    begin(sending, receiving)
    finish(sending, receiving)
    for _ in range(steps):
        receiving.background.run_one()
    receiving.restart()
    found = receiving.checkpoints.manifests
    assert found == ((sending.manifest,) if steps >= 4 else ())
    assert_all_whole(receiving.checkpoints, receiving.machine)
    receiving.commit = 0
    receiving.completed.clear()
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert receiving.completed == [sending.manifest], "nothing has to be sent again"


@pytest.mark.parametrize("what", ["bytes", "content"])
def test_a_file_that_is_not_what_was_offered_is_deleted(sending: Sending, receiving: Receiving, what: str) -> None:
    manifest = sending.manifest
    wrong = (
        Manifest(manifest.base, manifest.content_hash, manifest.size, b"?" * 32)
        if what == "bytes"
        else Manifest(manifest.base, b"?" * 16, manifest.size, manifest.file_hash)
    )
    sending.manifest = wrong
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    raw = sending.checkpoints.path(manifest).read_bytes()
    for offset in range(0, manifest.size, CHUNK):
        data = raw[offset : offset + CHUNK]
        receiving.one.chunk(
            LEADER, pb.SnapshotChunk(file_hash=wrong.file_hash, offset=offset, crc=zlib.crc32(data), data=data)
        )
        receiving.background.run_one()
    receiving.background.run_all()
    assert receiving.replies[-1] == pb.SnapshotReply(file_hash=wrong.file_hash, failed=True)
    assert receiving.completed == [] and receiving.checkpoints.manifests == ()
    assert list(receiving.folder.iterdir()) == []


def test_while_one_is_being_checked_another_offer_waits(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving)
    finish(sending, receiving)
    newer = sending.newer()
    receiving.one.offered(LEADER, offer(sending, newer))
    receiving.one.offered(LEADER, offer(sending))
    assert receiving.replies[-1].offset == sending.manifest.size
    receiving.background.run_all()
    assert receiving.completed == [sending.manifest]
    receiving.one.offered(LEADER, offer(sending, newer))
    receiving.background.run_all()
    assert receiving.replies[-1] == pb.SnapshotReply(file_hash=newer.file_hash, offset=0)


def test_a_complete_one_is_not_checked_again_until_it_is_released(sending: Sending, receiving: Receiving) -> None:
    receiving.installs = False
    begin(sending, receiving)
    finish(sending, receiving)
    receiving.background.run_all()
    receiving.replies.clear()
    receiving.one.offered(LEADER, offer(sending))
    receiving.one.chunk(LEADER, chunk(sending, 0))
    assert said(receiving) == [sending.manifest.size] and not receiving.background.waiting
    receiving.one.release()
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert receiving.completed == [sending.manifest] * 2


def test_a_checkpoint_of_its_own_that_is_damaged_is_fetched(sending: Sending, receiving: Receiving) -> None:
    write(receiving.checkpoints, sending.machine)
    assert receiving.checkpoints.manifests == (sending.manifest,)
    file = receiving.checkpoints.path(sending.manifest)
    file.write_bytes(bytes(sending.manifest.size))
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert said(receiving) == [0]
    finish(sending, receiving)
    receiving.background.run_all()
    assert receiving.completed == [sending.manifest]
    assert_all_whole(receiving.checkpoints, receiving.machine)


def test_a_full_disk_ends_the_transfer_and_a_broken_one_the_node(
    sending: Sending, receiving: Receiving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = no_space()

    def fails(self: Incoming, offset: int, data: bytes) -> None:
        raise error

    monkeypatch.setattr(Incoming, "write", fails)
    for _ in range(5):
        begin(sending, receiving)
        receiving.one.chunk(LEADER, chunk(sending, 0))
        receiving.one.chunk(LEADER, chunk(sending, 1000))
        receiving.background.run_all()
        assert not receiving.replies, "it is not the file's fault"
        assert receiving.faults == [] and list(receiving.folder.iterdir()) == []
    assert caplog.text.count("No space left") == 1 and receiving.one.statistics()["snapshots_not_stored"] == 5
    error = broken_disk()
    begin(sending, receiving)
    receiving.one.chunk(LEADER, chunk(sending, 0))
    receiving.background.run_all()
    assert len(receiving.faults) == 1 and not receiving.replies


def test_what_lies_there_and_cannot_be_gone_on_with_is_deleted(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving, 3000)
    receiving.restart()
    (state,) = receiving.folder.glob("incoming-*/state")
    state.write_bytes(bytes(sending.manifest.size + 1))
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert said(receiving) == [0]


def test_bytes_that_a_power_cut_took_are_found_at_the_end(sending: Sending, receiving: Receiving) -> None:
    begin(sending, receiving, 3000)
    receiving.restart()
    (state,) = receiving.folder.glob("incoming-*/state")
    state.write_bytes(bytes(3000))
    receiving.one.offered(LEADER, offer(sending))
    receiving.background.run_all()
    assert said(receiving) == [3000]
    for offset in range(3000, sending.manifest.size, CHUNK):
        receiving.one.chunk(LEADER, chunk(sending, offset))
        receiving.background.run_all()
    assert receiving.replies[-1].failed and receiving.completed == []
    begin(sending, receiving)
    finish(sending, receiving)
    receiving.background.run_all()
    assert receiving.completed == [sending.manifest]


def test_an_offer_of_a_newer_version_is_refused_without_ending_anything(sending: Sending, receiving: Receiving) -> None:
    newer = offer(sending)
    newer.manifest.format = 2
    receiving.one.offered(LEADER, newer)
    assert list(receiving.replies) == [pb.SnapshotReply(file_hash=sending.manifest.file_hash, failed=True)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: setattr(m, "size", 0),
        lambda m: setattr(m, "size", MAX_SIZE + 1),
        lambda m: setattr(m, "file_hash", b"x" * 31),
        lambda m: setattr(m, "content_hash", b""),
        lambda m: setattr(m.base, "configuration", b""),
        lambda m: setattr(m.base, "configuration", b"nonsense"),
        lambda m: m.ClearField("base"),
    ],
)
def test_offers_that_are_nonsense(sending: Sending, receiving: Receiving, spoil: Callable[[pb.Manifest], None]) -> None:
    bad = offer(sending)
    spoil(bad.manifest)
    with pytest.raises(ProtocolError):
        receiving.one.offered(LEADER, bad)
    assert not receiving.background.waiting and not receiving.replies


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: setattr(c, "data", b""),
        lambda c: setattr(c, "data", bytes((1 << 20) + 1)),
        lambda c: setattr(c, "offset", 20_500),
        lambda c: setattr(c, "offset", (1 << 64) - 1),
        lambda c: setattr(c, "file_hash", b"x" * 31),
        lambda c: setattr(c, "file_hash", b"x" * 32),
    ],
)
def test_chunks_that_are_nonsense(
    sending: Sending, receiving: Receiving, spoil: Callable[[pb.SnapshotChunk], None]
) -> None:
    begin(sending, receiving)
    bad = chunk(sending, 0)
    spoil(bad)
    with pytest.raises(ProtocolError):
        receiving.one.chunk(LEADER, bad)
    assert not receiving.background.waiting and not receiving.replies


@pytest.mark.parametrize("seed", range(20))
def test_fuzz(sending: Sending, receiving: Receiving, seed: int) -> None:
    """Whatever arrives: a ProtocolError at most, no fault, nothing published that is not whole, files bounded."""
    rng = random.Random(seed)
    frames: list[pb.SnapshotOffer | pb.SnapshotChunk] = [offer(sending), offer(sending, sending.newer())]
    frames += [chunk(sending, offset) for offset in range(0, sending.manifest.size, CHUNK)]
    refused = 0
    for _ in range(400):
        frame = rng.choice(frames[:2] if rng.random() < 0.1 else frames)
        raw = bytearray(frame.SerializeToString())
        if rng.random() < 0.5:
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(min(len(raw), 120))] = rng.randrange(256)
        try:
            parsed = type(frame).FromString(bytes(raw))
        except Exception as error:
            if type(error).__name__ == "DecodeError":
                continue
            raise
        try:
            if isinstance(parsed, pb.SnapshotOffer):
                receiving.one.offered(LEADER, parsed)
            else:
                receiving.one.chunk(LEADER, parsed)
        except ProtocolError:
            refused += 1
        if rng.random() < 0.5:
            receiving.background.run_one()
        if rng.random() < 0.01:
            receiving.restart()
        assert len(list(receiving.folder.glob("incoming-*"))) <= 2
    receiving.background.run_all()
    assert refused > 20 and receiving.faults == []
    assert_all_whole(checkpoints_in(receiving.folder), receiving.machine)
