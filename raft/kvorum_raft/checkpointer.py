"""Decides when a checkpoint is made, and makes it step by step.

One is due when the log since the newest one has grown by more than the larger of a minimum and a quarter of the state:
the copying is a bounded part of what is written anyway. It is due as well when applying that log has taken some
seconds, for that is how long a cluster is away that lost power as a whole: many small entries are soon as much work as
few megabytes. Then the copying takes no more than a few megabytes of each second. Not all nodes should make theirs at
the same moment, so each waits for its turn (see `checkpoint_turns`), but not until the log is three times as long;
where nobody gives turns, each waits a little longer than the one before it. While a snapshot is sent or received, one
is due after twice as much. A failure costs nothing but a longer log, so it is logged, counted and tried again; only a
failing disk is a fault.
"""

import errno
import logging
from collections.abc import Callable
from typing import Final, TypeVar, cast

from kvorum_raft.background import Background, Caught, Stopping
from kvorum_raft.base import Base
from kvorum_raft.checkpoint_turns import Need, Turn
from kvorum_raft.checkpoints import Checkpoints, Draft
from kvorum_raft.errors import Overloaded, RaftFault
from kvorum_raft.manifest import Manifest
from kvorum_raft.seams import StateFacts, StateImage, StateMachine

T = TypeVar("T")
MINIMUM: Final = 32 << 20
REPLAY: Final = 2.0
"""Seconds of applying after which one is due."""
_COPIED: Final = 4 << 20
"""Bytes for each second since the newest one, at most, that are copied because of REPLAY."""
_ENTRY: Final = 0.0002
"""Seconds that an entry takes to be applied, about, of which nothing else is known."""
_RETRY: Final = 30.0
_BUSY: Final = 2
_LATER: Final = 0.25
"""Of the bytes after which one is due, for each node that comes before this one."""
_OVERDUE: Final = 3
"""Times those bytes: then one is made although it is others' turn."""
_log = logging.getLogger("kvorum.raft")


class Checkpointer:
    """`describe` says what the log knows of the entry at which an image stands (None: nothing, so that no checkpoint of
    it can be made). All callbacks come in the event loop. `clock` gives seconds, `minimum` is bytes of the log,
    `turn` says whether it is this node's, and `rank` how many nodes make theirs earlier if nobody gives turns.
    `far_behind` says that there is much to apply, which then comes before what would only make it shorter next time."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        machine: StateMachine,
        background: Background,
        describe: Callable[[StateFacts], Base | None],
        *,
        clock: Callable[[], float],
        on_done: Callable[[Manifest], None],
        on_failed: Callable[[str], None],
        on_fault: Callable[[RaftFault], None],
        minimum: int = MINIMUM,
        retry: float = _RETRY,
        turn: Callable[[], Turn] = lambda: Turn.UNSAID,
        rank: Callable[[], int] = lambda: 0,
        far_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._checkpoints = checkpoints
        self._machine = machine
        self._background = background
        self._describe = describe
        self._clock = clock
        self._on_done, self._on_failed, self._on_fault = on_done, on_failed, on_fault
        self._minimum, self._retry = minimum, retry
        self._turn, self._rank, self._far_behind = turn, rank, far_behind
        self._image: StateImage | None = None
        self._draft: Draft | None = None
        self.applied_bytes = 0
        """Of log, that was noted so far."""
        self.replay_bytes = 0
        """Of log, behind the newest one."""
        self._bytes_at_start = 0
        self.kept_bytes = self.due_bytes()
        """Of log, that stays though the newest one covers it."""
        self._replay = 0.0
        """Seconds that it takes to apply what came behind the newest one."""
        self._replay_at_start = 0.0
        self._forced = False
        self.was_wanted = False
        """The last one, or the one that is being made, was forced."""
        self._abandoned = False
        self._stopped = False
        self._not_before = float("-inf")
        self._began_at = 0.0
        self._newest_at = clock()
        self._seconds = 0.0
        self._copied_at = 0.0
        self._rate = 0.0
        self._behind = False
        self._made = 0
        self._unturned = 0
        self._failures = 0

    @property
    def busy(self) -> bool:
        """One is being made."""
        return self._draft is not None

    def note_bytes(self, size: int) -> None:
        """Entries of that size were applied, or found in the log behind the newest checkpoint at the start."""
        self.applied_bytes += size
        self.replay_bytes += size

    def note_applying(self, seconds: float) -> None:
        """That is how long it took to apply them."""
        self._replay += seconds

    def note_entries(self, count: int) -> None:
        """So many were found at the start, applied already."""
        self._replay += count * _ENTRY

    def force(self) -> None:
        """Make one at the next `tick`, or after the running one, whether due or not; if that fails, later, until one is
        made."""
        self._forced = True

    def restart(self, replay_bytes: int = 0) -> None:
        """A snapshot became the state: the newest checkpoint is that one now, and the one that is being made is not
        wanted any more."""
        self.replay_bytes = replay_bytes
        self._replay = 0.0
        self._newest_at = self._clock()
        self._abandoned = self.busy

    def tick(self, *, others: bool = False) -> None:
        """Between two entries, about once a second: begin one if it is time; `others` says that the disk is busy with a
        snapshot."""
        if self.need(others=others) is not Need.DUE or not (self._forced or self._may_begin(_BUSY if others else 1)):
            return
        turn = self._turn()
        self._unturned += turn is Turn.WAIT
        self._checkpoints.copier.hurry(alone=turn is Turn.GO)
        self.was_wanted, self._forced = self._forced, False
        self._began_at = self._clock()
        self.kept_bytes = self.due_bytes()
        self._bytes_at_start, self._replay_at_start = self.replay_bytes, self._replay
        with Caught() as caught:
            self._begin()
        if caught.error is not None:
            self._failed(caught.error)

    def need(self, *, others: bool = False) -> Need:
        """Whether one is due, or is being made."""
        if self.busy:
            return Need.BUSY
        if self._stopped or self._clock() < self._not_before:
            return Need.NONE
        return Need.DUE if self._forced or self._is_due(_BUSY if others else 1) else Need.NONE

    def _may_begin(self, times: float) -> bool:
        turn = self._turn()
        if turn is Turn.UNSAID:
            return self._is_due(times * (1 + _LATER * self._rank()))
        return turn is Turn.GO or self._is_due(times * _OVERDUE)

    def _is_due(self, times: float = 1) -> bool:
        if self.replay_bytes >= self.due_bytes() * times:
            return True
        copied = self._clock() - self._newest_at >= self._machine.size() / _COPIED * times
        return self._replay >= REPLAY * times and copied and not self._far_behind()

    def due_bytes(self) -> int:
        """Of log, after which one is due."""
        return max(self._minimum, self._machine.size() // 4)

    def stop(self) -> None:
        """After `Background.stop`: let go of the image. An unfinished draft is deleted at the next start."""
        self._stopped = True
        self._draft = None
        self._close_image()

    def statistics(self) -> dict[str, float]:
        """Numbers for metrics: seconds and bytes. `checkpoints_held_back` is 1 if the next one was due before the last
        one was made: their pace, and not the length of the log, says how often they are made;
        `checkpoints_out_of_turn` counts those that could not wait for their turn."""
        newest = self._checkpoints.newest
        return {
            "checkpoints": float(self._made),
            "checkpoint_failures": float(self._failures),
            "checkpoint_seconds": self._seconds,
            "checkpoint_age": self._clock() - self._newest_at,
            "checkpoint_bytes": float(newest.size if newest is not None else 0),
            "checkpoint_rate": self._rate,
            "checkpoint_stretched_seconds": self._checkpoints.copier.stretched,
            "checkpoints_held_back": float(self._behind),
            "checkpoints_out_of_turn": float(self._unturned),
            "replay_bytes": float(self.replay_bytes),
            "replay_seconds": self._replay,
        }

    # ------------------------------------------------------------------ steps

    def _begin(self) -> None:
        self._checkpoints.check_room(self._machine.size())
        image = self._image = self._machine.image()
        base = self._describe(image.facts)
        if base is None:
            raise ValueError(f"the log does not know entry {image.facts.index}")
        draft = self._draft = self._checkpoints.draft(image, base)
        self._submit(draft, draft.copy, self._copied)

    def _copied(self, draft: Draft, _: None) -> None:
        self._close_image()
        self._copied_at = self._clock()
        if self._abandoned:
            self._submit(draft, draft.discard, self._discarded)
        else:
            self._submit(draft, lambda: draft.verify(self._machine.inspect), self._verified)

    def _verified(self, draft: Draft, _: None) -> None:
        if self._abandoned:
            self._submit(draft, draft.discard, self._discarded)
        else:
            self._submit(draft, draft.publish, self._published)

    def _discarded(self, draft: Draft, _: None) -> None:
        self._ended()

    def _ended(self) -> None:
        self._draft, self._abandoned = None, False
        self._checkpoints.copier.hurry(alone=False)  # what else is copied now has no turn

    def _published(self, draft: Draft, manifest: Manifest) -> None:
        """The checkpoint is whole, even if an old one cannot be deleted."""
        self._submit(draft, lambda: self._tidy(manifest), self._finished)

    def _tidy(self, manifest: Manifest) -> Manifest:
        try:
            self._checkpoints.keep()
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            _log.warning("an old checkpoint cannot be deleted: %s", error)
        return manifest

    def _finished(self, draft: Draft, manifest: Manifest) -> None:
        abandoned = self._abandoned
        self._ended()
        now = self._clock()
        self._made += 1
        self._seconds = now - self._began_at
        self._rate = manifest.size / max(self._copied_at - self._began_at, 1e-6)
        if not abandoned:
            self.replay_bytes -= self._bytes_at_start
            self._replay -= self._replay_at_start
            self._newest_at = now
        self._behind = self._is_due()
        _log.info("a checkpoint of entry %d: %d bytes in %.1f s", manifest.base.index, manifest.size, self._seconds)
        self._on_done(manifest)

    def _submit(self, draft: Draft, step: Callable[[], T], then: Callable[[Draft, T], None]) -> None:
        """Run one step off the loop and go on with its result, unless something went wrong or it is not wanted any
        more."""

        def done(result: T | None, error: Exception | None) -> None:
            if draft is not self._draft:
                return
            if error is None:
                then(draft, cast("T", result))
            else:
                self._failed(error)

        try:
            self._background.submit(step, done)
        except Overloaded as error:
            draft.discard()
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Nothing is lost: the log keeps what the checkpoint would have covered."""
        self._close_image()
        self._ended()
        if isinstance(error, Stopping):
            return
        self._failures += 1
        self._forced = self._forced or self.was_wanted
        self._not_before = self._clock() + self._retry
        fault = fault_of(error, "making a checkpoint failed")
        if fault is not None:
            self._on_fault(fault)
            return
        text = f"{type(error).__name__}: {error}"
        _log.error("a checkpoint could not be made, the next attempt is in %.0f s: %s", self._retry, text)
        self._on_failed(text)

    def _close_image(self) -> None:
        image, self._image = self._image, None
        if image is not None:
            image.close()


def fault_of(error: Exception, what: str) -> RaftFault | None:
    """What a node must not live on with: the disk failed, rather than being full or the like."""
    if isinstance(error, RaftFault):
        return error
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return RaftFault(f"{what}: {error}")
    return None
