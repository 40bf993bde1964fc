"""A follower receives a snapshot: the mirror image of `snapshot_sender`.

One at a time, from the leader. Chunks are taken in order only and written off the loop; what does not fit (a gap, a
chunk that was changed on its way, too many that wait) is left out, and the sender is told once where to go on. When all
is there, it is synced, read back, compared with the manifest and opened by the state machine; only then it becomes a
checkpoint, and the core decides what to do with it. Until then nothing of the node's log or state is touched.

Stages: opening → receiving → checking → complete. Each result of a job is looked at only if it belongs to the transfer
that is going on.
"""

import logging
import zlib
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeVar, cast

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.background import Background, Stopping
from kvorum_raft.checkpointer import fault_of
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.errors import ConfigurationError, Overloaded, ProtocolError, RaftFault
from kvorum_raft.incoming import Incoming
from kvorum_raft.manifest import FILE_HASH_SIZE, Manifest
from kvorum_raft.seams import StateMachine

MAX_CHUNK: Final = 1 << 20
_REMEMBERED: Final = 8
T = TypeVar("T")
_log = logging.getLogger("kvorum.raft")


class _Stage(Enum):
    OPENING = auto()
    RECEIVING = auto()
    CHECKING = auto()
    COMPLETE = auto()


class _Transfer:
    """One snapshot on its way in."""

    def __init__(self, node: Node, incoming: Incoming) -> None:
        self.node = node
        self.incoming = incoming
        self.stage = _Stage.OPENING
        self.written = 0
        self.taken = 0
        """Written, or waiting to be."""
        self.waiting = 0
        """Chunks that wait to be written."""
        self.owes_answer = False
        """To an offer, as soon as nothing waits."""
        self.told = -1
        """Value of `taken` when the sender was last told to go back there."""

    @property
    def manifest(self) -> Manifest:
        return self.incoming.manifest


class SnapshotReceiver:
    """Everything is called, and calls back, in the event loop.

    `wanted(index)`: a snapshot up to there would help. `declined(node, manifest)`: it would not, the core says what it
    has. `complete(node, manifest)`: it is a verified checkpoint now; the core answers `installed` when it is the state,
    or calls `release` if that came to nothing. `window` bounds the chunks that wait for the disk.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        machine: StateMachine,
        background: Background,
        reply: Callable[[Node, pb.SnapshotReply], None],
        wanted: Callable[[int], bool],
        complete: Callable[[Node, Manifest], None],
        declined: Callable[[Node, Manifest], None],
        *,
        on_fault: Callable[[RaftFault], None],
        window: int = 16,
        sync_every: int = 8 << 20,
    ) -> None:
        self._checkpoints = checkpoints
        self._machine = machine
        self._background = background
        self._reply, self._wanted, self._complete, self._declined = reply, wanted, complete, declined
        self._on_fault = on_fault
        self._window, self._sync_every = window, sync_every
        self._transfer: _Transfer | None = None
        self._past: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._complaint = ""
        names = ("snapshots_received", "snapshot_bytes_received", "snapshots_damaged", "snapshots_not_stored")
        self._counters = dict.fromkeys(names, 0)

    # ------------------------------------------------------------------ what arrives

    def offered(self, node: Node, offer: pb.SnapshotOffer) -> None:
        """Raises ProtocolError for nonsense."""
        try:
            manifest = Manifest.from_message(offer.manifest)
        except ConfigurationError as error:
            _log.error("a snapshot that %s offers cannot be used: %s", node.id, error)
            self._fail(node, offer.manifest.file_hash)
            return
        except ValueError as error:
            raise ProtocolError(f"{node.id} offers nonsense: {error}") from error
        if not manifest.base.configuration:
            raise ProtocolError(f"{node.id} offers a snapshot without a configuration")
        self._remember(manifest.file_hash)
        transfer = self._transfer
        if not self._wanted(manifest.base.index):
            if transfer is not None and transfer.manifest == manifest:
                self._drop(transfer)
            self._declined(node, manifest)
        elif transfer is not None and transfer.manifest == manifest:
            transfer.node = node
            transfer.told = -1
            transfer.owes_answer = transfer.waiting > 0  # what waits need not be sent again
            if transfer.stage is not _Stage.OPENING and not transfer.owes_answer:
                self._acknowledge(transfer)
        elif transfer is None or transfer.stage is not _Stage.CHECKING:
            # what is being checked is nearly usable, so another offer waits: the sender repeats it
            if transfer is not None:
                self._drop(transfer)
            self._begin(node, manifest)

    def chunk(self, node: Node, chunk: pb.SnapshotChunk) -> None:
        """Raises ProtocolError for nonsense."""
        size = len(chunk.data)
        if len(chunk.file_hash) != FILE_HASH_SIZE or not 0 < size <= MAX_CHUNK:
            raise ProtocolError(f"{node.id} sends a chunk of {size} bytes of a snapshot")
        transfer = self._transfer
        if transfer is None or transfer.manifest.file_hash != chunk.file_hash:
            if chunk.file_hash not in self._past:
                raise ProtocolError(f"{node.id} sends a chunk of a snapshot that it has not offered")
            return
        if chunk.offset + size > transfer.manifest.size:
            raise ProtocolError(f"{node.id} sends a chunk behind the end of a snapshot")
        if transfer.stage is not _Stage.RECEIVING or node != transfer.node:
            return
        if chunk.offset < transfer.taken:
            return  # again, because of something else that was left out; an answer would make the sender go back anew
        intact = zlib.crc32(chunk.data) == chunk.crc
        if not intact or chunk.offset != transfer.taken or transfer.waiting >= self._window:
            self._go_back(transfer)
        else:
            self._take(transfer, chunk.data)

    def release(self) -> None:
        """What `complete` announced did not become the state: the next offer begins anew."""
        transfer = self._transfer
        if transfer is not None and transfer.stage is _Stage.COMPLETE:
            self._transfer = None

    def stop(self) -> None:
        """After `Background.stop`. What has arrived stays for the next start."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.incoming.close()

    def progress(self) -> tuple[int, int] | None:
        """(bytes written, bytes) of what is arriving."""
        transfer = self._transfer
        return None if transfer is None else (transfer.written, transfer.manifest.size)

    def statistics(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {name: float(value) for name, value in self._counters.items()}

    # ------------------------------------------------------------------ receiving

    def _begin(self, node: Node, manifest: Manifest) -> None:
        incoming = Incoming(self._checkpoints, manifest, sync_every=self._sync_every)
        transfer = self._transfer = _Transfer(node, incoming)
        if manifest in self._checkpoints.manifests:
            # it was complete before, and then the node stopped, or the state was lost
            transfer.stage, transfer.written = _Stage.CHECKING, manifest.size
            self._submit(
                transfer, lambda: self._checkpoints.verify(manifest, paced=True), self._is_whole, self._is_damaged
            )
        else:
            self._submit(transfer, incoming.open, self._opened)

    def _opened(self, transfer: _Transfer, size: int) -> None:
        transfer.stage = _Stage.RECEIVING
        transfer.written = transfer.taken = size
        self._acknowledge(transfer)
        if size == transfer.manifest.size:
            self._check(transfer)

    def _take(self, transfer: _Transfer, data: bytes) -> None:
        offset = transfer.taken
        accepted = self._submit(
            transfer,
            lambda: transfer.incoming.write(offset, data),
            lambda _, nothing: self._has_written(transfer, len(data)),
        )
        if accepted:
            transfer.taken += len(data)
            transfer.waiting += 1
            self._counters["snapshot_bytes_received"] += len(data)

    def _has_written(self, transfer: _Transfer, size: int) -> None:
        transfer.waiting -= 1
        transfer.written += size
        transfer.owes_answer = transfer.owes_answer and transfer.waiting > 0
        if not transfer.owes_answer:
            self._acknowledge(transfer)
        if transfer.written == transfer.manifest.size:
            self._check(transfer)

    def _go_back(self, transfer: _Transfer) -> None:
        """Once for each place: every chunk behind a gap has the same gap before it."""
        if transfer.told != transfer.taken and not transfer.owes_answer:
            transfer.told = transfer.taken
            self._acknowledge(transfer)

    def _acknowledge(self, transfer: _Transfer) -> None:
        self._reply(transfer.node, pb.SnapshotReply(file_hash=transfer.manifest.file_hash, offset=transfer.written))

    # ------------------------------------------------------------------ checking

    def _check(self, transfer: _Transfer) -> None:
        transfer.stage = _Stage.CHECKING
        self._submit(transfer, transfer.incoming.sync, self._synced)

    def _synced(self, transfer: _Transfer, _: None) -> None:
        self._submit(transfer, transfer.incoming.check_bytes, self._has_right_bytes)

    def _has_right_bytes(self, transfer: _Transfer, _: None) -> None:
        self._submit(transfer, lambda: transfer.incoming.check_content(self._machine.inspect), self._is_right)

    def _is_right(self, transfer: _Transfer, _: None) -> None:
        self._submit(transfer, transfer.incoming.publish, self._published)

    def _published(self, transfer: _Transfer, manifest: Manifest) -> None:
        transfer.stage = _Stage.COMPLETE
        self._counters["snapshots_received"] += 1
        self._complaint = ""
        _log.info("a snapshot of entry %d has arrived: %d bytes", manifest.base.index, manifest.size)
        self._complete(transfer.node, manifest)

    def _is_whole(self, transfer: _Transfer, _: None) -> None:
        transfer.stage = _Stage.COMPLETE
        self._complete(transfer.node, transfer.manifest)

    def _is_damaged(self, transfer: _Transfer, error: Exception) -> None:
        """The one that was here already: fetch it again."""
        _log.warning("a checkpoint is fetched anew: %s", error)
        transfer.stage, transfer.written = _Stage.OPENING, 0
        manifest, incoming = transfer.manifest, transfer.incoming

        def replace() -> int:
            self._checkpoints.drop(manifest)
            return incoming.open()

        self._submit(transfer, replace, self._opened)

    # ------------------------------------------------------------------ jobs

    def _submit(
        self,
        transfer: _Transfer,
        job: Callable[[], T],
        then: Callable[[_Transfer, T], None],
        otherwise: Callable[[_Transfer, Exception], None] | None = None,
    ) -> bool:
        """Run it off the loop and go on with its result, if this is still the transfer. False if too much waits."""

        def done(result: T | None, error: Exception | None) -> None:
            if transfer is not self._transfer:
                return
            if error is None:
                then(transfer, cast("T", result))
            elif isinstance(error, ValueError) and otherwise is not None:
                otherwise(transfer, error)
            else:
                self._has_failed(transfer, error)

        try:
            self._background.submit(job, done)
        except Overloaded as error:
            if transfer.stage is _Stage.RECEIVING:
                self._go_back(transfer)
            else:
                self._has_failed(transfer, error)
            return False
        return True

    def _has_failed(self, transfer: _Transfer, error: Exception) -> None:
        """What is wrong with the file is told to the leader, which offers another one. What is wrong here (a full disk)
        is not: it would make the leader write checkpoint after checkpoint; its next offer is the next attempt."""
        if isinstance(error, Stopping):
            return
        fault = fault_of(error, "receiving a snapshot failed")
        if fault is not None:
            self._on_fault(fault)
            return
        text = f"{type(error).__name__}: {error}"
        self._drop(transfer)
        if isinstance(error, OSError | Overloaded):
            self._counters["snapshots_not_stored"] += 1
            if text != self._complaint:
                self._complaint = text
                _log.error("a snapshot from %s cannot be stored: %s", transfer.node.id, text)
        else:
            self._counters["snapshots_damaged"] += 1
            _log.error("a snapshot from %s cannot be used: %s", transfer.node.id, text)
            self._fail(transfer.node, transfer.manifest.file_hash)

    def _drop(self, transfer: _Transfer) -> None:
        """Forget it and delete what has arrived, after the writes that wait."""
        self._transfer = None
        try:
            self._background.submit(transfer.incoming.delete, self._deleted)
        except Overloaded:
            _log.debug("what has arrived of a snapshot is deleted when the next one begins")

    def _deleted(self, _: None, error: Exception | None) -> None:
        if error is None or isinstance(error, Stopping):
            return
        fault = fault_of(error, "deleting a snapshot failed")
        if fault is not None:
            self._on_fault(fault)
        else:
            _log.warning("what has arrived of a snapshot cannot be deleted: %s", error)

    def _fail(self, node: Node, file_hash: bytes) -> None:
        self._reply(node, pb.SnapshotReply(file_hash=file_hash, failed=True))

    def _remember(self, file_hash: bytes) -> None:
        """Chunks of it may still be on their way when it is not received any more."""
        if file_hash in self._past:
            self._past.remove(file_hash)
        self._past.append(file_hash)
