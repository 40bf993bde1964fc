"""What a leader sends to a follower that lags: the right file, no more than the window, nothing for ever."""

import os
import zlib
from pathlib import Path

import pytest
from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ProtocolError, RaftFault
from kvorum_raft.manifest import Manifest
from kvorum_raft.snapshot_sender import SnapshotSender
from tests.unit.raft.fake_state import broken_disk, checkpoints_in, no_space
from tests.unit.raft.snapshot_link import CHUNK, FOLLOWER, Sending


@pytest.fixture
def sending(tmp_path: Path) -> Sending:
    return Sending(tmp_path)


def answer(sending: Sending, offset: int, manifest: Manifest | None = None) -> tuple[int, int] | None:
    file_hash = (manifest or sending.manifest).file_hash
    return sending.one.replied(FOLLOWER, pb.SnapshotReply(file_hash=file_hash, offset=offset))


def fail(sending: Sending, manifest: Manifest) -> None:
    sending.one.replied(FOLLOWER, pb.SnapshotReply(file_hash=manifest.file_hash, failed=True))


def offered(sending: Sending) -> list[bytes]:
    """File hashes of the offers that were sent; nothing else may have been."""
    taken = sending.take()
    assert all(one.WhichOneof("body") == "snapshot_offer" for one in taken)
    return [one.snapshot_offer.manifest.file_hash for one in taken]


def offsets(sending: Sending) -> list[int]:
    """Offsets of the chunks that were sent, which are checked."""
    raw = Path(f"/proc/self/fd/{sending.one._transfers[FOLLOWER].fd}").read_bytes()
    found = []
    for envelope in sending.take():
        chunk = envelope.snapshot_chunk
        assert chunk.data == raw[chunk.offset : chunk.offset + CHUNK] and chunk.crc == zlib.crc32(chunk.data)
        found.append(chunk.offset)
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_offer_is_repeated_only_when_nothing_is_heard(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    (first,) = sending.take()
    assert Manifest.from_message(first.snapshot_offer.manifest) == sending.manifest
    for _ in range(19):
        sending.now += 0.1
        sending.one.needed_by(FOLLOWER)
    assert sending.take() == []
    sending.now += 0.11
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [sending.manifest.file_hash]


def test_the_window_is_kept(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    sending.take()
    answer(sending, 0)
    assert offsets(sending) == [0, 1000, 2000, 3000]
    answer(sending, 1000)
    assert offsets(sending) == [4000]
    answer(sending, 4000)
    assert offsets(sending) == [5000, 6000, 7000]
    assert sending.one.progress(FOLLOWER) == (4000, sending.manifest.size)
    with pytest.raises(ValueError):
        SnapshotSender(sending.checkpoints, lambda node, envelope: True, lambda: 1, lambda: 1, lambda: 0.0, window=17)


def test_a_place_that_is_repeated_is_gone_back_to_once(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    answer(sending, 0)
    answer(sending, 2000)
    sending.take()
    answer(sending, 2000)
    assert offsets(sending) == [2000, 3000, 4000, 5000]
    answer(sending, 2000)
    answer(sending, 1000)
    assert offsets(sending) == []
    answer(sending, 3000)
    assert offsets(sending) == [6000]


def test_an_answer_that_is_ahead_is_followed(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    answer(sending, 1000)
    sending.take()
    answer(sending, 15_000)
    assert offsets(sending) == [15_000, 16_000, 17_000, 18_000]
    answer(sending, 19_500)
    assert offsets(sending) == [19_500, 20_500]
    answer(sending, sending.manifest.size)
    assert offsets(sending) == []


def test_silence_in_the_middle_begins_with_an_offer(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    answer(sending, 0)
    sending.take()
    sending.now = 2.1
    sending.one.needed_by(FOLLOWER)
    assert len(offered(sending)) == 1
    answer(sending, 1000)
    assert offsets(sending) == [1000, 2000, 3000, 4000]


def test_nonsense_and_what_is_late(sending: Sending) -> None:
    assert answer(sending, 5) is None
    sending.one.needed_by(FOLLOWER)
    sending.take()
    with pytest.raises(ProtocolError):
        answer(sending, sending.manifest.size + 1)
    assert sending.one.replied(FOLLOWER, pb.SnapshotReply(file_hash=b"?" * 32, offset=5)) is None
    assert sending.one.replied(FOLLOWER, pb.SnapshotReply()) is None
    assert sending.one.replied(Node("other"), pb.SnapshotReply(file_hash=sending.manifest.file_hash)) is None
    sending.one.lost(FOLLOWER)
    answer(sending, 0)
    assert sending.take() == [], "on the new connection nothing was offered yet"
    sending.one.needed_by(FOLLOWER)
    assert len(offered(sending)) == 1


def test_installed_ends_it(sending: Sending) -> None:
    before = open_files()
    sending.one.needed_by(FOLLOWER)
    assert open_files() == before + 1
    reply = pb.SnapshotReply(file_hash=sending.manifest.file_hash, installed=True, index=70)
    assert sending.one.replied(FOLLOWER, reply) == (70, 50)
    assert open_files() == before
    assert sending.one.replied(FOLLOWER, reply) is None
    assert sending.one.statistics()["snapshots_sent"] == 1


def test_the_newest_is_offered_and_another_one_after_two_failures(sending: Sending) -> None:
    newer = sending.newer()
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [newer.file_hash]
    fail(sending, newer)
    assert offered(sending) == [newer.file_hash]
    fail(sending, newer)
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [sending.manifest.file_hash]
    fail(sending, sending.manifest)
    fail(sending, sending.manifest)
    sending.take()
    for _ in range(10):
        sending.now += 1
        sending.one.needed_by(FOLLOWER)
    assert sending.take() == []
    newest = sending.newer(b"newest")
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [newest.file_hash], "a new one is another chance"
    fail(sending, newest)
    fail(sending, newest)
    sending.now += 31
    sending.take()
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [newest.file_hash], "after a while, all are"


def test_an_offer_that_nobody_answers_is_for_the_newest_after_a_while(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    newer = sending.newer()
    sending.now = 10
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [sending.manifest.file_hash] * 2
    sending.now = 31
    sending.one.needed_by(FOLLOWER)
    assert offered(sending) == [newer.file_hash]


def test_files_of_followers_that_need_nothing_any_more_are_closed(sending: Sending) -> None:
    before = open_files()
    nodes = [Node(f"n{number}") for number in range(20)]
    for node in nodes:
        sending.one.needed_by(node)
    assert open_files() == before + 16
    sending.now = 61
    sending.one.needed_by(nodes[0])
    assert open_files() == before + 1
    sending.one.forget(nodes[0])
    sending.one.needed_by(nodes[1])
    sending.one.stop()
    assert open_files() == before and sending.one.progress(nodes[1]) is None


def test_without_a_checkpoint_nothing_is_offered(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.checkpoints.drop(sending.manifest)
    sending.one.needed_by(FOLLOWER)
    assert sending.take() == [] and sending.one.lowest_index is None


def test_a_connection_that_takes_nothing_is_not_filled(sending: Sending) -> None:
    sending.one.needed_by(FOLLOWER)
    sending.connected = False
    answer(sending, 0)
    assert sending.one.statistics()["snapshot_bytes_sent"] == 0
    sending.connected = True
    answer(sending, 0)
    sending.take()
    sending.now = 2.5
    sending.one.needed_by(FOLLOWER)
    assert len(offered(sending)) == 1


def test_a_file_that_is_too_short_is_given_up(sending: Sending) -> None:
    os.truncate(sending.checkpoints.path(sending.manifest), 3000)
    before = open_files()
    sending.one.needed_by(FOLLOWER)
    answer(sending, 0)
    assert [one.WhichOneof("body") for one in sending.take()] == ["snapshot_offer"] + ["snapshot_chunk"] * 3
    assert open_files() == before
    assert sending.one.statistics()["snapshots_refused"] == 1


def test_a_checkpoint_that_goes_away_before_it_is_opened(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    checkpoints_in(tmp_path).clear()
    sending.one.needed_by(FOLLOWER)
    assert sending.take() == []


def test_a_broken_disk_is_a_fault(sending: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    sending.one.needed_by(FOLLOWER)
    error = broken_disk()

    def pread(fd: int, size: int, offset: int) -> bytes:
        raise error

    monkeypatch.setattr("kvorum_raft.snapshot_sender.os.pread", pread)
    with pytest.raises(RaftFault):
        answer(sending, 0)
    error = no_space()
    answer(sending, 1)
    assert sending.one.statistics()["snapshots_refused"] == 1
