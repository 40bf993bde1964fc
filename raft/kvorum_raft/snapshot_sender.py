"""A leader sends its newest checkpoint to followers that need entries which its log does not have any more.

One transfer for each follower: an offer, answered by the offset from which the follower wants the file, then chunks
within a window, each acknowledged by the offset up to which everything has been written there. Connections keep the
order, so a repeated offset means that something behind it was dropped: sending goes back to it, once. If nothing
advances for a while, the offer is made again, and its answer begins everything anew.

The file is held open: a newer checkpoint may take its place on the disk meanwhile, the transfer goes on.
"""

import errno
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.direct import keep_whole
from kvorum_raft.errors import ProtocolError, RaftFault
from kvorum_raft.manifest import Manifest

MAX_IN_FLIGHT: Final = 1 << 20
_MAX_TRANSFERS: Final = 16
_SILENCE: Final = 2.0
_STALE: Final = 30.0
_FORGET: Final = 60.0
_log = logging.getLogger("kvorum.raft")


@dataclass(slots=True)
class _Transfer:
    manifest: Manifest
    fd: int
    heard_at: float
    """When something last advanced."""
    asked_at: float
    """When the core last said that the follower needs it."""
    offered_at: float = float("-inf")
    acknowledged: int | None = None
    """Written there; None while the offer has not been answered."""
    reached: int = 0
    """Acknowledged last, for whoever looks."""
    sent: int = 0
    rewound_to: int = -1
    failures: int = 0


@dataclass(slots=True)
class _Refused:
    """Checkpoints that a follower could not use."""

    hashes: set[bytes] = field(default_factory=set)
    until: float = 0.0


class SnapshotSender:
    """All in the event loop. `send` is as `Transport.send`; `term` and `wall` (Unix milliseconds) go into the
    envelopes; `clock` gives seconds; `chunk` is bytes, `window` chunks."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        send: Callable[[Node, pb.Envelope], bool],
        term: Callable[[], int],
        wall: Callable[[], int],
        clock: Callable[[], float],
        *,
        chunk: int = 64 << 10,
        window: int = 8,
    ) -> None:
        if not 0 < chunk * window <= MAX_IN_FLIGHT:
            raise ValueError(f"{window} chunks of {chunk} bytes; at most {MAX_IN_FLIGHT} bytes may be on their way")
        self._checkpoints = checkpoints
        self._send, self._term, self._wall, self._clock = send, term, wall, clock
        self._chunk, self._window = chunk, chunk * window
        self._transfers: dict[Node, _Transfer] = {}
        self._refused: dict[Node, _Refused] = {}
        self._counters = dict.fromkeys(("snapshots_sent", "snapshot_bytes_sent", "snapshots_refused"), 0)

    # ------------------------------------------------------------------ what the core says

    def needed_by(self, node: Node) -> None:
        """At every heartbeat while the follower needs a snapshot. Does nothing while no checkpoint can be offered.

        Raises RaftFault if the disk fails."""
        now = self._clock()
        self.expire()
        transfer = self._transfers.get(node)
        if transfer is not None and transfer.acknowledged is None and now - transfer.heard_at > _STALE:
            newest = self._choose(node, now)
            if newest is not None and newest != transfer.manifest:
                self.forget(node)
                transfer = None
        if transfer is None:
            transfer = self._begin(node, now)
        if transfer is None:
            return
        transfer.asked_at = now
        if now - max(transfer.heard_at, transfer.offered_at) >= _SILENCE or transfer.offered_at == float("-inf"):
            self._offer(node, transfer, now)

    def replied(self, node: Node, reply: pb.SnapshotReply) -> tuple[int, int] | None:
        """An answer to an offer or a chunk. Returns, when the follower has installed it, (up to where its log is
        durable there, index of the snapshot).

        Raises ProtocolError for nonsense and RaftFault if the disk fails.
        """
        transfer = self._transfers.get(node)
        if transfer is None or reply.file_hash != transfer.manifest.file_hash:
            return None  # of an earlier transfer
        if reply.offset > transfer.manifest.size:
            raise ProtocolError(f"{node.id} has {reply.offset} bytes of a snapshot of {transfer.manifest.size}")
        if reply.installed:
            index = transfer.manifest.base.index
            self._counters["snapshots_sent"] += 1
            self.forget(node)
            return reply.index, index
        if reply.failed:
            self._has_failed(node, transfer)
        elif transfer.offered_at != float("-inf"):  # else it was said on a connection that is gone
            self._advance(node, transfer, reply.offset)
        return None

    def lost(self, node: Node) -> None:
        """The connection is gone: the same file is offered again, for a while, since part of it is there."""
        transfer = self._transfers.get(node)
        if transfer is not None:
            transfer.acknowledged, transfer.rewound_to = None, -1
            transfer.offered_at = float("-inf")

    def forget(self, node: Node) -> None:
        """It needs nothing any more, or is no member."""
        transfer = self._transfers.pop(node, None)
        if transfer is not None:
            os.close(transfer.fd)

    def stop(self) -> None:
        """At the end of office: close all files."""
        for node in list(self._transfers):
            self.forget(node)
        self._refused.clear()

    def progress(self, node: Node) -> tuple[int, int] | None:
        """(bytes acknowledged, bytes) of what is being sent to it."""
        transfer = self._transfers.get(node)
        return None if transfer is None else (transfer.reached, transfer.manifest.size)

    @property
    def refused(self) -> int:
        """How often a follower could not use a checkpoint, tried twice."""
        return self._counters["snapshots_refused"]

    @property
    def lowest_index(self) -> int | None:
        """Of the snapshots under way: whoever gets the oldest one needs the log behind it."""
        return min((one.manifest.base.index for one in self._transfers.values()), default=None)

    def statistics(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {**{name: float(value) for name, value in self._counters.items()}, "snapshots": len(self._transfers)}

    # ------------------------------------------------------------------ transfers

    def _begin(self, node: Node, now: float) -> _Transfer | None:
        manifest = self._choose(node, now)
        if manifest is None or len(self._transfers) >= _MAX_TRANSFERS:
            return None
        try:
            fd = os.open(self._checkpoints.path(manifest), os.O_RDONLY)
            keep_whole(fd)
        except OSError as error:
            self._judge(error)
            _log.warning("the checkpoint %s cannot be offered: %s", manifest.name, error)
            return None
        transfer = self._transfers[node] = _Transfer(manifest, fd, heard_at=now, asked_at=now)
        _log.info("node %s gets a snapshot of entry %d, %d bytes", node.id, manifest.base.index, manifest.size)
        return transfer

    def _choose(self, node: Node, now: float) -> Manifest | None:
        """The newest one that the follower has not refused; after a while all are tried again."""
        refused = self._refused.get(node)
        if refused is not None and now >= refused.until:
            del self._refused[node]
            refused = None
        hashes = refused.hashes if refused is not None else set()
        return next((one for one in reversed(self._checkpoints.manifests) if one.file_hash not in hashes), None)

    def _offer(self, node: Node, transfer: _Transfer, now: float) -> None:
        transfer.acknowledged, transfer.rewound_to = None, -1
        transfer.offered_at = now
        self._post(node, pb.Envelope(snapshot_offer=pb.SnapshotOffer(manifest=transfer.manifest.message())))

    def _advance(self, node: Node, transfer: _Transfer, offset: int) -> None:
        before = transfer.acknowledged
        if before is None:
            transfer.sent = offset
        elif offset > before:
            transfer.sent = max(transfer.sent, offset)
        elif offset == before and transfer.sent > offset and transfer.rewound_to != offset:
            transfer.sent = transfer.rewound_to = offset
            self._fill_window(node, transfer)
            return
        else:
            return
        transfer.acknowledged = transfer.reached = offset
        transfer.heard_at = self._clock()
        self._fill_window(node, transfer)

    def _fill_window(self, node: Node, transfer: _Transfer) -> None:
        acknowledged, size = transfer.acknowledged, transfer.manifest.size
        while acknowledged is not None and transfer.sent < size and transfer.sent - acknowledged < self._window:
            data = self._read(transfer, min(self._chunk, size - transfer.sent))
            if not data:
                _log.error("the checkpoint %s is shorter than its manifest says", transfer.manifest.name)
                self._refuse(node, transfer)
                return
            chunk = pb.SnapshotChunk(
                file_hash=transfer.manifest.file_hash, offset=transfer.sent, crc=zlib.crc32(data), data=data
            )
            if not self._post(node, pb.Envelope(snapshot_chunk=chunk)):
                return  # `lost` follows, or else the next offer
            transfer.sent += len(data)
            self._counters["snapshot_bytes_sent"] += len(data)
        # The file was written past the page cache: what the next acknowledgement asks for is read meanwhile.
        os.posix_fadvise(transfer.fd, transfer.sent, self._window, os.POSIX_FADV_WILLNEED)

    def _read(self, transfer: _Transfer, size: int) -> bytes:
        try:
            return os.pread(transfer.fd, size, transfer.sent)
        except OSError as error:
            self._judge(error)
            _log.error("the checkpoint %s cannot be read: %s", transfer.manifest.name, error)
            return b""

    def _judge(self, error: OSError) -> None:
        if error.errno == errno.EIO:
            raise RaftFault(f"a checkpoint cannot be read: {error}") from error

    def _has_failed(self, node: Node, transfer: _Transfer) -> None:
        """Once may be the fault of what lay there already; twice is the file's."""
        transfer.failures += 1
        now = self._clock()
        if transfer.failures > 1:
            self._refuse(node, transfer)
        else:
            _log.warning("node %s could not use the snapshot of entry %d", node.id, transfer.manifest.base.index)
            transfer.heard_at = now
            self._offer(node, transfer, now)

    def _refuse(self, node: Node, transfer: _Transfer) -> None:
        _log.error("node %s cannot use the snapshot of entry %d", node.id, transfer.manifest.base.index)
        self._counters["snapshots_refused"] += 1
        refused = self._refused.setdefault(node, _Refused())
        refused.hashes &= {one.file_hash for one in self._checkpoints.manifests}
        refused.hashes.add(transfer.manifest.file_hash)
        refused.until = self._clock() + _STALE
        self.forget(node)

    def expire(self) -> None:
        """Now and then: nobody says when a follower has caught up by other means, or will not come back."""
        now = self._clock()
        for node, transfer in list(self._transfers.items()):
            if now - transfer.asked_at > _FORGET:
                self.forget(node)
        for node, refused in list(self._refused.items()):
            if now >= refused.until:
                del self._refused[node]

    def _post(self, node: Node, envelope: pb.Envelope) -> bool:
        envelope.term, envelope.wall_ms = self._term(), self._wall()
        return self._send(node, envelope)
