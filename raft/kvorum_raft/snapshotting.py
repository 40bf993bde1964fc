"""Checkpoints and snapshots of one node: what the core, the log and the disk have to do with each other's steps.

*Here* a checkpoint is made now and then, and the log is cut behind the older of two. *To* a follower that needs entries
which were cut, the newest one is sent. *From* a leader one may come: it becomes a checkpoint, then the beginning of the
log, then the state. At the start, a state that is gone or lies behind the log is rebuilt from the newest checkpoint
that can be read.

Invariant: the log begins at or before the last entry of a verified checkpoint on this disk, or the node is *hollow* and
says so to its leader.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.background import Background, Caught
from kvorum_raft.base import Base
from kvorum_raft.checkpoint_turns import Need
from kvorum_raft.checkpointer import Checkpointer, fault_of
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.errors import RaftFault
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_cutter import LogCutter
from kvorum_raft.manifest import Manifest
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.seams import PreparedState, StateFacts, StateMachine
from kvorum_raft.snapshot_receiver import SnapshotReceiver
from kvorum_raft.snapshot_sender import SnapshotSender

_TICK: Final = 0.25
_TURNS: Final = 4
"""So many nodes make their checkpoints after different lengths of the log."""
_FORCE_AGAIN: Final = 30.0
"""Seconds between two checkpoints that are made because a follower could not use the one before."""
_STORE_AGAIN: Final = 10.0
"""Seconds until a snapshot that found no room is stored again: the file that came is kept."""
_log = logging.getLogger("kvorum.raft")


def restore(machine: StateMachine, checkpoints: Checkpoints, journal: RaftJournal) -> Manifest | None:
    """At the start, before anything else is done with them: if the state was lost, or lies before the beginning of the
    log, take the newest checkpoint that can be read; the log does the rest. None: nothing was to be done, or nothing
    could be.

    Checkpoints that the log does not lead up to (a snapshot whose installation was cut off, say) are deleted. Raises
    OSError.
    """
    for manifest in checkpoints.manifests:
        base = manifest.base
        if journal.term_at(base.index) != base.term:
            _log.warning("the checkpoint of entry %d does not belong to this log", base.index)
            checkpoints.drop(manifest)
    if machine.applied_index >= max(journal.base_index, 1):
        return None
    for manifest in reversed(checkpoints.manifests):
        try:
            checkpoints.verify(manifest)
            machine.adopt(machine.prepare(checkpoints.path(manifest)))
        except ValueError as error:
            _log.error("the checkpoint of entry %d cannot be used: %s", manifest.base.index, error)
            checkpoints.drop(manifest)
        else:
            if machine.applied_index != manifest.base.index:
                raise RaftFault(f"the checkpoint of entry {manifest.base.index} is of entry {machine.applied_index}")
            _log.info("the state is rebuilt from the checkpoint of entry %d", manifest.base.index)
            return manifest
    return None


class Snapshotting:
    """Implements `core_partners.Snapshots`. `installed` is told the index of a snapshot that has become the state."""

    def __init__(
        self,
        core: SafeSyncObj,
        journal: RaftJournal,
        machine: StateMachine,
        checkpoints: Checkpoints,
        background: Background,
        *,
        clock: Callable[[], float],
        send: Callable[[Node, pb.Envelope], bool],
        installed: Callable[[int], None],
        fault: Callable[[Exception], None],
        minimum: int,
    ) -> None:
        self._core = core
        self._journal = journal
        self._machine = machine
        self._checkpoints = checkpoints
        self._background = background
        self._clock = clock
        self._on_installed = installed
        self._fault = fault
        self._noted, self._noted_applying = 0, 0.0
        self._again: tuple[float, Node, Manifest] | None = None
        self._tick_due = self._forced_until = float("-inf")
        self.checkpointer = Checkpointer(
            checkpoints,
            machine,
            background,
            self._describe,
            clock=clock,
            on_done=self._made,
            on_failed=lambda why: None,
            on_fault=fault,
            minimum=minimum,
            turn=lambda: core.checkpoint_turn,
            rank=self._rank,
            far_behind=lambda: core.far_behind,
        )
        self._sender = SnapshotSender(checkpoints, send, lambda: core.term, core.entry_clock.wall_ms, clock)
        self._receiver = SnapshotReceiver(
            checkpoints,
            machine,
            background,
            reply=core.reply_snapshot,
            wanted=core.wants_snapshot,
            complete=self._complete,
            declined=lambda node, manifest: core.decline_snapshot(node, manifest.file_hash),
            on_fault=fault,
        )
        self._cutter = LogCutter(core, journal, checkpoints, lambda: self._sender.lowest_index, clock)
        covered = checkpoints.newest.base.index if checkpoints.newest else 0
        self.checkpointer.note_bytes(journal.bytes_between(covered, core.applied_index))
        self.checkpointer.note_entries(max(0, core.applied_index - covered))
        self._plan_cut()

    def _describe(self, facts: StateFacts) -> Base | None:
        return self._journal.base_at(facts.index) if self._journal.term_at(facts.index) is not None else None

    def _rank(self) -> int:
        configuration = self._core.configuration
        return 0 if configuration is None else sum(one < self._core.node_id for one in configuration.voters) % _TURNS

    # ------------------------------------------------------------------ checkpoints and the log's beginning

    def tick(self) -> None:
        """Between two entries, now and then."""
        now = self._clock()
        self._store_again(now)
        if now < self._tick_due:
            self._cutter.tick()
            return
        self._tick_due = now + _TICK
        self._sender.expire()
        if self._core.hollow or self._core.installing:
            self._core.checkpoint_need = Need.NONE
            return
        self.checkpointer.note_bytes(self._core.applied_bytes - self._noted)
        self._noted = self._core.applied_bytes
        applying = self._core.apply_seconds.sum
        self.checkpointer.note_applying(applying - self._noted_applying)
        self._noted_applying = applying
        others = self._sender.lowest_index is not None or self._receiver.progress() is not None
        if not self._core.applying:
            self.checkpointer.tick(others=others)
        self._core.checkpoint_need = self.checkpointer.need(others=others)

    def _made(self, manifest: Manifest) -> None:
        self._plan_cut(wanted=self.checkpointer.was_wanted)

    def _plan_cut(self, *, wanted: bool = False) -> None:
        one = self.checkpointer
        self._cutter.plan(one.applied_bytes, one.replay_bytes, one.kept_bytes, wanted=wanted)

    def _store_again(self, now: float) -> None:
        """What found no room, if it is still wanted."""
        if self._again is None or now < self._again[0]:
            return
        (_, node, manifest), self._again = self._again, None
        if self._core.wants_snapshot(manifest.base.index):
            self._complete(node, manifest)
        else:
            self._receiver.release()
            self._core.decline_snapshot(node, manifest.file_hash)

    # ------------------------------------------------------------------ core_partners.Snapshots

    def needed_by(self, node: Node) -> None:
        if self._checkpoints.newest is None:
            self.checkpointer.force()
        else:
            self._sender.needed_by(node)

    def replied(self, node: Node, reply: pb.SnapshotReply) -> int | None:
        refused = self._sender.refused
        answer = self._sender.replied(node, reply)
        if self._sender.refused > refused and self._clock() >= self._forced_until:
            self._forced_until = self._clock() + _FORCE_AGAIN
            self.checkpointer.force()  # none that is here is of use to it
        return None if answer is None else answer[0]

    def lost(self, node: Node) -> None:
        self._sender.lost(node)

    def forget(self, node: Node) -> None:
        self._sender.forget(node)

    def stop_sending(self) -> None:
        self._sender.stop()

    def received(self, node: Node, envelope: pb.Envelope) -> None:
        if self._core.installing:
            return  # it is told when that is done
        if envelope.WhichOneof("body") == "snapshot_offer":
            self._receiver.offered(node, envelope.snapshot_offer)
        else:
            self._receiver.chunk(node, envelope.snapshot_chunk)

    def progress(self, node: Node) -> tuple[int, int] | None:
        """(bytes acknowledged, bytes) of what is being sent to that node."""
        return self._sender.progress(node)

    # ------------------------------------------------------------------ a snapshot has arrived

    def _complete(self, node: Node, manifest: Manifest) -> None:
        """It is a checkpoint of this node now."""
        path = self._checkpoints.path(manifest)
        prepare = partial(self._machine.prepare, path, self._checkpoints.copier.pause)
        self._background.submit(prepare, partial(self._prepared, node, manifest))

    def _prepared(
        self, node: Node, manifest: Manifest, prepared: PreparedState | None, error: Exception | None
    ) -> None:
        fault = fault_of(error, "preparing a state failed") if error is not None else None
        if fault is not None:
            self._fault(fault)
            return
        if prepared is None and not isinstance(error, ValueError):
            _log.error("the snapshot of entry %d cannot be stored yet: %s", manifest.base.index, error)
            self._again = (self._clock() + _STORE_AGAIN, node, manifest)
            return
        if prepared is None:
            _log.error("the snapshot of entry %d cannot become the state: %s", manifest.base.index, error)
            self._receiver.release()
            self._core.reply_snapshot(node, pb.SnapshotReply(file_hash=manifest.file_hash, failed=True))
            return
        adopt = partial(self._machine.adopt, prepared)
        took = False
        with Caught() as caught:
            took = self._core.install(manifest.base, adopt, partial(self._installed, node, manifest))
        if caught.error is not None:  # the state may be half the old one and half the new one
            self._fault(caught.error)
        elif not took:
            self._background.submit(prepared.discard, self._dropped)
            self._receiver.release()
            self._core.decline_snapshot(node, manifest.file_hash)

    def _installed(self, node: Node, manifest: Manifest) -> None:
        index = manifest.base.index
        self._receiver.release()
        self.checkpointer.restart()
        self._cutter.reset()
        self._again = None
        self._background.submit(partial(self._drop_older, self._journal.base_index), self._dropped)
        self._core.reply_snapshot(node, pb.SnapshotReply(file_hash=manifest.file_hash, installed=True, index=index))
        self._on_installed(index)

    def _drop_older(self, base_index: int) -> None:
        """The log does not lead on from them any more."""
        for manifest in self._checkpoints.manifests:
            if manifest.base.index < base_index:
                self._checkpoints.drop(manifest)

    def _dropped(self, _: None, error: Exception | None) -> None:
        fault = fault_of(error, "deleting a checkpoint failed") if error is not None else None
        if fault is not None:
            self._fault(fault)
        elif error is not None:
            _log.warning("an old checkpoint cannot be deleted: %s", error)

    # ------------------------------------------------------------------

    def hold_log(self, bound: Callable[[], int | None]) -> None:
        """See `LogCutter.hold`."""
        self._cutter.hold = bound

    def stop(self) -> None:
        self._background.stop()
        self._sender.stop()
        self.checkpointer.stop()
        self._receiver.stop()

    def statistics(self) -> dict[str, float]:
        return {
            **self.checkpointer.statistics(),
            **self._sender.statistics(),
            **self._receiver.statistics(),
            "log_base_index": self._journal.base_index,
            "hollow": float(self._core.hollow),
        }
