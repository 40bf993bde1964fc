"""A sender and a receiver with a connection between them that delivers when the test says so."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import RaftFault
from kvorum_raft.manifest import Manifest
from kvorum_raft.snapshot_receiver import SnapshotReceiver
from kvorum_raft.snapshot_sender import SnapshotSender
from tests.unit.raft.fake_state import FakeMachine, StepBackground, checkpoints_in, write

LEADER, FOLLOWER = Node("leader"), Node("follower")
CHUNK = 1000


class Sending:
    """The leader's side."""

    def __init__(self, folder: Path, *, size: int = 20_500, index: int = 50) -> None:
        self.machine = FakeMachine(bytes(i * 7 % 251 for i in range(size)), index)
        self.checkpoints = checkpoints_in(folder)
        self.manifest = write(self.checkpoints, self.machine)
        self.now = 0.0
        self.sent: deque[pb.Envelope] = deque()
        self.connected = True
        self.one = SnapshotSender(
            self.checkpoints, self._send, lambda: 7, lambda: 1234, lambda: self.now, chunk=CHUNK, window=4
        )

    def _send(self, node: Node, envelope: pb.Envelope) -> bool:
        assert envelope.term == 7 and envelope.wall_ms == 1234
        if self.connected:
            self.sent.append(envelope)
        return self.connected

    def newer(self, data: bytes = b"newer" * 1000) -> Manifest:
        self.machine.put(data)
        return write(self.checkpoints, self.machine)

    def take(self) -> list[pb.Envelope]:
        taken = list(self.sent)
        self.sent.clear()
        return taken


class Receiving:
    """The follower's side; `complete` installs at once unless the test does it."""

    def __init__(self, folder: Path, *, jobs: int = 64, window: int = 16) -> None:
        self.folder = folder
        self.jobs, self.window = jobs, window
        self.machine = FakeMachine()
        self.commit = 0
        self.replies: deque[pb.SnapshotReply] = deque()
        self.completed: list[Manifest] = []
        self.declined: list[Manifest] = []
        self.faults: list[RaftFault] = []
        self.installs = True
        self.start()

    def start(self) -> None:
        self.checkpoints = checkpoints_in(self.folder)
        self.background = StepBackground(self.jobs)
        self.one = SnapshotReceiver(
            self.checkpoints,
            self.machine,
            self.background,
            lambda node, reply: self.replies.append(reply),
            lambda index: index > self.commit,
            self._complete,
            self._decline,
            on_fault=self.faults.append,
            window=self.window,
            sync_every=5 * CHUNK,
        )

    def restart(self) -> None:
        """The process ends, and what it had not begun to write is lost."""
        self.background.stop()
        self.one.stop()
        self.replies.clear()
        self.start()

    def _complete(self, node: Node, manifest: Manifest) -> None:
        assert node == LEADER
        self.checkpoints.verify(manifest)
        self.completed.append(manifest)
        if self.installs:
            self.commit = manifest.base.index
            self.one.release()
            self.replies.append(
                pb.SnapshotReply(file_hash=manifest.file_hash, installed=True, index=manifest.base.index)
            )

    def _decline(self, node: Node, manifest: Manifest) -> None:
        self.declined.append(manifest)
        self.replies.append(pb.SnapshotReply(file_hash=manifest.file_hash, installed=True, index=self.commit))

    def deliver(self, envelope: pb.Envelope) -> None:
        if envelope.WhichOneof("body") == "snapshot_offer":
            self.one.offered(LEADER, envelope.snapshot_offer)
        else:
            self.one.chunk(LEADER, envelope.snapshot_chunk)


class Link:
    """Both, and what lies between. `disturb(envelope)` says what becomes of one: the envelopes that arrive instead."""

    def __init__(self, sending: Sending, receiving: Receiving) -> None:
        self.sending, self.receiving = sending, receiving
        self.installed: list[tuple[int, int]] = []
        self.disturb: Callable[[pb.Envelope], list[pb.Envelope]] = lambda envelope: [envelope]
        self.chunks = 0

    def step(self) -> bool:
        """One thing happens; False if there is nothing."""
        if self.sending.sent:
            for envelope in self.disturb(self.sending.sent.popleft()):
                self.chunks += envelope.WhichOneof("body") == "snapshot_chunk"
                self.receiving.deliver(envelope)
        elif not self.receiving.background.run_one():
            if not self.receiving.replies:
                return False
            self.reply()
        return True

    def reply(self) -> None:
        answer = self.sending.one.replied(FOLLOWER, self.receiving.replies.popleft())
        if answer is not None:
            self.installed.append(answer)

    def heartbeat(self, seconds: float = 0.1) -> None:
        self.sending.now += seconds
        if not self.installed:
            self.sending.one.needed_by(FOLLOWER)

    def reconnect(self) -> None:
        self.sending.sent.clear()
        self.receiving.replies.clear()
        self.sending.one.lost(FOLLOWER)

    def run(self, *, limit: int = 100_000) -> int:
        """Until it is installed; returns the steps."""
        steps = 0
        while not self.installed:
            self.heartbeat()
            while self.step():
                steps += 1
                assert steps < limit, "it does not come to an end"
            assert self.sending.now < 1000, "nothing advances any more"
        return steps
