"""What one stream reads: keys, which are answered together as far as there is room, and lists, which come in slices.

What is made for a client waits until it has taken what was made before (see `Unread`): point reads and lists that have
not begun are kept, lists that have begun stay where they are.

An answer is judged by the caller's rights when it leaves, so by a state at least as new as the one that it shows.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any, Protocol

from kvorum._proto import kvorum_pb2 as pb

from ..access import Refusal
from ..read_jobs import ListJob
from ..reads import Pending, PendingPoints, PendingRead
from ..service import NodeService
from ..store.rights import for_keys, for_read
from ..unread import AHEAD, TINY
from .endings import ResumableError
from .guard import StreamGuard
from .outbox import FRAME_TARGET, POINTS, READS, Outbox
from .traces import FrameTraces

MAX_LISTS = 1_000
"""Lists under way on one stream."""
MAX_STALLED_READS = 8_192
"""Reads that may wait for the client to read; one that asks for more without reading is cut off."""
OTHERS_NEED = "its client does not read, and others need the room for their reads: begin it anew"


class Room(Protocol):
    """What a stream's client has room for."""

    @property
    def stands_still(self) -> bool:
        """It is to take something, and `resume` follows when it has."""
        ...

    @property
    def is_full(self) -> bool:
        """Nothing is free for anybody."""
        ...

    def room(self) -> int:
        """Bytes that may be made for it now; 0 or less: nothing."""
        ...

    def takes(self, size: int) -> bool:
        """Whether an answer of so many bytes that is made already may be sent to it."""
        ...

    def loadable(self) -> int:
        """The same of what can be had later from the state; if it is none, `resume` follows."""
        ...

    def give_up(self, why: str) -> None:
        """End the stream, since it takes nothing."""
        ...


class StreamReads:
    """Takes the reads of frames, and puts their answers into the outbox."""

    def __init__(
        self, service: NodeService, outbox: Outbox, guard: StreamGuard, room: Room, *, owner: Hashable
    ) -> None:
        """`owner` is whose turn is taken by its lists."""
        self._room = room
        self._owner = owner
        self._unread = service.unread
        self._service = service
        self._outbox = outbox
        self._guard = guard
        self._lists: dict[ListJob, pb.ReadResult | None] = {}
        """With what was read of them and is not sent."""
        self._stalled_lists: list[ListJob] = []
        self._unbegun: list[ListJob] = []
        """Lists whose turn had come while there was no room."""
        self._stalled_reads: list[Pending] = []
        self._stalled_keys = 0
        """For how many reads they count."""
        self._closed = False

    def close(self) -> None:
        """The stream has ended: answers that still come are thrown away."""
        self._closed = True
        self._forget_stalled()
        for job in (*self._lists, *self._unbegun):
            job.cancel()
        self._lists.clear()
        self._unbegun.clear()

    def take(self, reads: Any, traces: FrameTraces | None) -> None:
        """The reads of a frame. Raises ResumableError."""
        if self._stalled_keys > MAX_STALLED_READS:
            raise ResumableError("the answers are not read fast enough")
        if sum(1 for read in reads if read.ranges) + len(self._lists) + len(self._unbegun) > MAX_LISTS:
            raise ResumableError(f"more than {MAX_LISTS:,} lists are under way on one connection")
        if self._service.access.on:
            if over := self._service.access.over(self._guard.caller, len(reads)):
                self._service.reads.turned_away(reads, pb.READ_STATUS_OVERLOADED)
                for read in reads:
                    self._answer(_denied(read, (pb.READ_STATUS_OVERLOADED, over)))
            else:
                self._submit([self._judged(read) for read in reads], traces)
            return
        self._submit([PendingRead(read, self._answer, self._take_slice, self._has_room) for read in reads], traces)

    def _submit(self, items: list[PendingRead], traces: FrameTraces | None) -> None:
        for item in items:
            if item.read.ranges:
                item.owner, item.may_begin = self._owner, self._may_begin
        if traces is not None:
            for item in items:
                traces.read(item)
        self._service.reads.submit(items)

    def take_points(self, reads: Any) -> None:
        """The reads of one key each. Raises ResumableError."""
        if self._stalled_keys > MAX_STALLED_READS:
            raise ResumableError("the answers are not read fast enough")
        if self._service.access.on:
            if over := self._service.access.over(self._guard.caller, sum(len(read.keys) for read in reads)):
                self._service.reads.turned_away(reads, pb.READ_STATUS_OVERLOADED)
                for read in reads:
                    self._answer_points(pb.PointAnswers(id=read.id, status=pb.READ_STATUS_OVERLOADED, message=over))
            else:
                self._service.reads.submit([self._judged_points(read) for read in reads])
            return
        self._service.reads.submit([PendingPoints(read, self._answer_points, self._has_room) for read in reads])

    def resume(self) -> None:
        """The client has read on: so do we."""
        if self._stalled_lists:
            self._resume_lists()
        jobs, self._unbegun = self._unbegun, []
        for number, job in enumerate(jobs):
            if self._unbegun:  # there is no room again
                self._unbegun += jobs[number:]
                break
            job.begin()
        if self._stalled_reads:
            reads, self._stalled_reads, self._stalled_keys = self._stalled_reads, [], 0
            self._service.reads.has_room(self)
            self._service.reads.resume(reads)

    # ---- answers

    def _has_room(self, item: Pending) -> int:
        room = self._room.room()
        if room > 0:
            return room
        if self._closed:  # a stream that has ended takes its answers, and throws them away
            return AHEAD
        if not self._room.stands_still:
            return -TINY
        if not self._stalled_reads:
            self._service.reads.no_room(self, self._give_up)
        self._stalled_reads.append(item)
        self._stalled_keys += item.keys
        return 0

    def _may_begin(self, job: ListJob) -> bool:
        """The turn of a list has come. If there is no room at all, its first slice is judged."""
        if self._room_of_lists() > 0 or self._closed or not self._room.stands_still:
            return True
        self._unbegun.append(job)
        return False

    def _give_up(self) -> None:
        """Others need the room."""
        self._forget_stalled()
        self._room.give_up(OTHERS_NEED)

    def _forget_stalled(self) -> None:
        self._service.reads.has_room(self)
        self._service.reads.forget(self._stalled_reads)
        self._stalled_reads, self._stalled_keys = [], 0

    def _answer(self, answer: pb.ReadResult) -> None:
        if self._closed:
            return
        self._outbox.put(READS, answer.SerializeToString())
        if answer.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _answer_points(self, answer: pb.PointAnswers) -> None:
        if self._closed:
            return
        self._outbox.put(POINTS, answer.SerializeToString())
        if answer.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _take_slice(self, job: ListJob, part: pb.ReadResult) -> None:
        """A slice of a list: gather up to about a frame, send, and go on when the client has taken it."""
        if self._closed:
            job.cancel()
            return
        self._forget(job)
        size, room = job.size, self._room_of_lists()
        if size > TINY and self._room.is_full:
            job.deny(pb.READ_STATUS_OVERLOADED)
            self._answer(_denied(job.read, (pb.READ_STATUS_OVERLOADED, self._unread.refusal())))
        elif not part.more:
            self._answer(part)
        elif size < min(FRAME_TARGET, room):
            self._keep(job, part)
            job.resume()
        elif room > 0 or not self._room.stands_still:
            self._send_slice(job, part)
            if self._outbox.size < min(FRAME_TARGET, self._room_of_lists()):
                job.resume()
            else:
                self._stalled_lists.append(job)
        else:
            self._keep(job, part)
            self._stalled_lists.append(job)

    def _send_slice(self, job: ListJob, part: pb.ReadResult) -> None:
        """What there is of a list that goes on."""
        self._answer(part)
        job.keep(None)
        self._lists[job] = None

    def _resume_lists(self) -> None:
        """What was read of them goes first, or each would gather more and more."""
        jobs, self._stalled_lists = self._stalled_lists, []
        most = min(FRAME_TARGET, self._room.room() + self._outbox.size)
        for number, job in enumerate(jobs):
            if 0 < self._outbox.size >= most:
                self._stalled_lists += jobs[number:]
                return
            if job.idle and (part := self._lists.get(job)) is not None:
                self._forget(job)
                self._send_slice(job, part)
            job.resume()

    def _room_of_lists(self) -> int:
        """Bytes: what others of them have gathered takes room, too."""
        return self._room.room() - self._outbox.gathered

    def _keep(self, job: ListJob, part: pb.ReadResult) -> None:
        """For the next slice, which is added to it."""
        job.keep(part)
        self._lists[job] = part
        job.gathered = job.size
        self._outbox.gathered += 2 * job.size  # as a message, some twice of what it is encoded

    def _forget(self, job: ListJob) -> None:
        """Nothing is kept of it any more."""
        self._outbox.gathered -= 2 * job.gathered
        job.gathered = 0
        self._lists.pop(job, None)

    # ---- while tokens are asked for

    def _judged(self, read: pb.Read) -> PendingRead:
        refusal = partial(self._guard.refusal, lambda rights: for_read(rights, read))

        def reply(answer: pb.ReadResult) -> None:
            refused = refusal() if answer.status == pb.READ_STATUS_OK else None
            if refused is not None:
                self._service.reads.took_back(read, refused[0])
            self._answer(answer if refused is None else _denied(read, refused))

        def take(job: ListJob, part: pb.ReadResult) -> None:
            refused = refusal() if part.status == pb.READ_STATUS_OK else None
            if refused is None:
                self._take_slice(job, part)
                return
            job.deny(refused[0])
            self._forget(job)
            self._answer(_denied(read, refused))

        return PendingRead(read, reply, take, self._has_room)

    def _judged_points(self, read: pb.PointReads) -> PendingPoints:
        """One key that may not be read refuses all of them: the client asks for each by itself."""
        refused: list[Refusal] = []

        def reply(answer: pb.PointAnswers) -> None:
            if refused:  # nothing follows that
                self._service.reads.took_back(read, refused[0][0], len(answer.rows))
                return
            refusal = None
            if answer.status == pb.READ_STATUS_OK:
                refusal = self._guard.refusal(partial(for_keys, keys=read.keys))
            if refusal is not None:
                refused.append(refusal)
                self._service.reads.took_back(read, refusal[0], len(answer.rows))
                answer = pb.PointAnswers(id=read.id, status=refusal[0], message=refusal[1])
            self._answer_points(answer)

        return PendingPoints(read, reply, self._has_room)


def _denied(read: pb.Read, refusal: Refusal) -> pb.ReadResult:
    return pb.ReadResult(id=read.id, status=refusal[0], message=refusal[1])
