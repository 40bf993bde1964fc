"""Sender and receiver together: a snapshot arrives whole, whatever happens to the connection, the nodes and the
chunks."""

import random
from pathlib import Path

import pytest

from kvorum_raft._proto import raft_pb2 as pb
from tests.unit.raft.fake_state import assert_all_whole, checkpoints_in
from tests.unit.raft.snapshot_link import CHUNK, FOLLOWER, Link, Receiving, Sending


@pytest.fixture
def link(tmp_path: Path) -> Link:
    return Link(Sending(tmp_path / "leader"), Receiving(tmp_path / "follower"))


def assert_arrived(link: Link) -> None:
    receiving = link.receiving
    (manifest,) = receiving.completed
    assert link.installed == [(manifest.base.index, manifest.base.index)]
    found = checkpoints_in(receiving.folder)
    assert manifest in found.manifests
    assert_all_whole(found, receiving.machine)
    assert not list(receiving.folder.glob("incoming-*"))
    assert receiving.faults == []


def test_it_arrives_and_every_chunk_goes_once(link: Link) -> None:
    link.run()
    assert_arrived(link)
    assert link.receiving.completed == [link.sending.manifest]
    assert link.chunks == -(-link.sending.manifest.size // CHUNK)
    assert link.sending.one.progress(FOLLOWER) is None
    assert link.sending.now < 1, "without waiting for anything"


@pytest.mark.parametrize("what", ["follower restarts", "connection breaks", "both"])
def test_it_goes_on_where_it_was_after_each_step(tmp_path: Path, what: str) -> None:
    steps = Link(Sending(tmp_path / "leader"), Receiving(tmp_path / "whole")).run()
    assert steps > 60
    for stop in range(0, steps, 3):
        sending = Sending(tmp_path / f"leader{stop}")
        link = Link(sending, Receiving(tmp_path / f"follower{stop}"))
        link.heartbeat()
        for _ in range(stop):
            link.step()
        progress = sending.one.progress(FOLLOWER)
        acknowledged = 0 if progress is None else progress[0]
        if what != "connection breaks":
            link.receiving.restart()
        link.reconnect()
        link.chunks = 0
        published = bool(link.receiving.checkpoints.manifests)
        link.run()
        assert sending.manifest in link.receiving.completed
        assert_all_whole(link.receiving.checkpoints, link.receiving.machine)
        if not published:
            left = sending.manifest.size - acknowledged
            assert link.chunks <= -(-left // CHUNK), "nothing that was acknowledged goes again"


def test_a_new_leader_with_the_same_file_goes_on(tmp_path: Path) -> None:
    first = Sending(tmp_path / "one")
    receiving = Receiving(tmp_path / "follower")
    link = Link(first, receiving)
    link.heartbeat()
    for _ in range(40):
        link.step()
    progress = first.one.progress(FOLLOWER)
    assert progress is not None and 0 < progress[0] < progress[1]
    first.one.stop()
    receiving.replies.clear()
    second = Link(Sending(tmp_path / "two"), receiving)
    second.run()
    assert_arrived(second)
    assert second.chunks * CHUNK <= progress[1] - progress[0] + CHUNK


def test_a_new_leader_with_another_file_begins_anew(tmp_path: Path) -> None:
    receiving = Receiving(tmp_path / "follower")
    first = Link(Sending(tmp_path / "one"), receiving)
    first.heartbeat()
    for _ in range(40):
        first.step()
    receiving.replies.clear()
    second = Link(Sending(tmp_path / "two", size=9_000, index=60), receiving)
    late_chunks = first.sending.take()
    second.heartbeat()
    second.step()
    for envelope in late_chunks:
        receiving.deliver(envelope)
    second.run()
    assert_arrived(second)
    assert receiving.completed == [second.sending.manifest]


def test_a_newer_checkpoint_during_a_transfer_does_not_disturb_it(link: Link) -> None:
    sending = link.sending
    link.heartbeat()
    for _ in range(30):
        link.step()
    for _ in range(3):
        sending.newer()
        sending.checkpoints.keep()
    assert sending.manifest not in sending.checkpoints.manifests
    assert sending.one.lowest_index == sending.manifest.base.index
    link.run()
    assert_arrived(link)
    assert link.receiving.completed == [sending.manifest]
    assert sending.one.statistics()["snapshots"] == 0
    link.installed.clear()
    link.run()
    assert link.receiving.completed[-1] == sending.checkpoints.newest


@pytest.mark.parametrize("seed", range(30))
def test_lost_repeated_changed_and_reordered_chunks(link: Link, seed: int) -> None:
    rng = random.Random(seed)
    held: list[pb.Envelope] = []

    def disturb(envelope: pb.Envelope) -> list[pb.Envelope]:
        if envelope.WhichOneof("body") == "snapshot_offer" or rng.random() < 0.6:
            return [envelope]
        kind = rng.randrange(5)
        if kind == 0:
            return []
        if kind == 1:
            return [envelope, envelope]
        if kind == 2:
            changed = pb.Envelope.FromString(envelope.SerializeToString())
            data = bytearray(changed.snapshot_chunk.data)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            changed.snapshot_chunk.data = bytes(data)
            return [changed]
        if kind == 3:
            held.append(envelope)
            return []
        late = held[:]
        held.clear()
        return [envelope, *late]

    link.disturb = disturb
    link.run()
    assert_arrived(link)


@pytest.mark.parametrize("seed", range(20))
def test_everything_at_random(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sending, receiving = Sending(tmp_path / "leader"), Receiving(tmp_path / "follower", window=rng.choice((1, 3, 16)))
    link = Link(sending, receiving)
    link.disturb = lambda envelope: [] if rng.random() < 0.1 else [envelope] * rng.choice((1, 1, 1, 2))
    for _ in range(rng.randrange(150)):
        kind = rng.random()
        if kind < 0.03:
            receiving.restart()
            link.reconnect()
        elif kind < 0.06:
            link.reconnect()
        elif kind < 0.08:
            sending.newer(rng.randbytes(rng.randrange(20_000)))
            sending.checkpoints.keep()
        elif kind < 0.2:
            link.heartbeat(rng.choice((0.1, 2.5)))
        elif kind < 0.4 and receiving.replies:
            link.reply()
        elif kind < 0.6:
            receiving.background.run_one()
        else:
            link.step()
        assert not set(receiving.checkpoints.manifests) - set(receiving.completed) or receiving.background.waiting
        assert sending.one.statistics()["snapshots"] <= 1
    link.run()
    assert_all_whole(checkpoints_in(receiving.folder), receiving.machine)
    assert receiving.commit == link.installed[0][0] > 0


def test_a_slow_disk_is_waited_for(tmp_path: Path) -> None:
    """The receiver holds no more than its window, the sender goes back once to what was left out."""
    link = Link(Sending(tmp_path / "leader"), Receiving(tmp_path / "follower", window=2))
    link.run()
    assert_arrived(link)
    assert link.chunks <= 3 * -(-link.sending.manifest.size // CHUNK)


def test_a_background_that_is_full_is_waited_for(tmp_path: Path) -> None:
    link = Link(Sending(tmp_path / "leader"), Receiving(tmp_path / "follower", jobs=2))
    link.run()
    assert_arrived(link)


def test_a_damaged_file_of_the_leader_is_given_up_for_another(tmp_path: Path) -> None:
    sending = Sending(tmp_path / "leader")
    newer = sending.newer()
    raw = bytearray(sending.checkpoints.path(newer).read_bytes())
    raw[3000] ^= 1
    sending.checkpoints.path(newer).write_bytes(raw)
    link = Link(sending, Receiving(tmp_path / "follower"))
    link.run()
    assert_arrived(link)
    assert link.receiving.completed == [sending.manifest], "the older one"
    assert sending.one.statistics()["snapshots_refused"] == 1
    assert link.receiving.one.statistics()["snapshots_damaged"] == 2
