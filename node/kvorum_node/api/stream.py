"""One client's stream: frames in, frames out.

Two loops: one reads a frame and hands its parts to the service, the other writes whatever has gathered since its last
frame. They share an outbox and nothing waits inside a frame, so a slow read holds up no write. Whatever arrives, a
stream ends at worst: everything that it registered is taken back in `close`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import Unauthenticated
from kvorum_raft.errors import RaftError

from ..access import Refusal
from ..admission import refuse_all
from ..lists import ListJob
from ..range_watches import RangeWatch
from ..reads import Pending, PendingPoints, PendingRead
from ..service import NodeService
from ..store.rights import READ, RECEIVE, for_keys, for_queue, for_range, for_read
from ..watches import Watch
from .endings import ProtocolError, ResumableError
from .guard import StreamGuard
from .outbox import FRAME_TARGET, POINTS, QUEUE_REPLIES, READS, RESULTS, WATCHES, Outbox
from .queues import StreamQueues

logger = logging.getLogger("kvorum.api")

PROTOCOL = 1
MAX_WATCHES = 10_000
MAX_LISTS = 1_000
"""Lists under way on one stream."""
MAX_SESSION_REQUESTS = 16
MAX_STALLED_READS = 8_192
"""Reads that may wait for that; a client that asks for more without reading is cut off."""
READ_AHEAD = 4 * 1_048_576
"""Bytes of answers beyond which point reads wait until the client has read some of them."""
STALL = 30.0
"""Seconds that one frame may take to be accepted by the client's side before the stream is cut."""
FLUSH = 2.0
"""Seconds for the last frames of a stream that ends."""
SESSION_SIZE = 10
_WRITES = pb.ClientFrame.WRITES_FIELD_NUMBER
_POINTS = pb.ClientFrame.POINT_READS_FIELD_NUMBER


class Stream:
    """See the module. `run` returns when the stream has ended."""

    def __init__(self, service: NodeService, node_id: str, context: Any, *, stall: float = STALL) -> None:
        self._service = service
        self._node_id = node_id
        self._context = context
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._waker: asyncio.Future[None] | None = None
        """What the writer waits for while there is nothing to send."""
        self._writing_since: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._outbox = Outbox(self._wake, load=service.store.delivery, take=self._event)
        self._greeted = False
        self._ending = False
        self._session = b""
        self._clock = self._loop.time
        self._heard_at = self._clock()
        """When the client's last frame came."""
        self._session_requests = 0
        self._watches: dict[int, Watch] = {}
        self._watch_ids: dict[Watch, int] = {}
        self._ranges: dict[int, RangeWatch] = {}
        self._stalled_ranges: list[RangeWatch] = []
        self._queues = StreamQueues(service, self._outbox, expired=self._session_expired, reply=self._reply)
        self._caller = service.access.caller("")
        self._guard = StreamGuard(service, self._outbox, self._queues)
        self._lists: dict[ListJob, pb.ReadResult] = {}
        self._stalled_lists: list[ListJob] = []
        self._stalled_reads: list[Pending] = []
        self._stalled_keys = 0
        """For how many reads they count."""
        self._stop_listening: Callable[[], None] | None = None

    async def run(self) -> None:
        self._writer = writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done():
                return  # the client is gone, or too slow
            self._say_why(reader)
            self._ending = True
            self._wake()
            await asyncio.wait((writer,), timeout=FLUSH)
        finally:
            self.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def end(self, why: str) -> None:
        """The node stops: the client shall go elsewhere."""
        self._outbox.put_error(why, final=False)
        self._ending = True
        self._wake()

    def close(self) -> None:
        """Take back everything that this stream registered."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        for watch in self._watch_ids:
            self._service.hub.remove(watch)
        self._watch_ids.clear()
        self._watches.clear()
        for watched in self._ranges.values():
            self._service.ranges.remove(watched)
        self._ranges.clear()
        self._stalled_ranges.clear()
        self._service.reads.forget(self._stalled_reads)
        self._stalled_reads = []
        for job in list(self._lists):
            job.cancel()
        self._lists.clear()
        self._guard.close()
        self._queues.close()
        self._attach(b"")

    # ---- the two loops

    async def _read(self) -> None:
        context = self._context
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            self._heard_at = self._clock()
            if len(data) > limits.MAX_FRAME_SIZE:
                raise ProtocolError(
                    f"a frame has at most {limits.MAX_FRAME_SIZE:,} bytes (MAX_FRAME_SIZE), got {len(data):,}"
                )
            try:
                frame = pb.ClientFrame.FromString(data)
            except DecodeError:
                raise ProtocolError("a frame cannot be decoded") from None
            if not self._greeted:
                self._greet(frame)
            if len(data) > limits.MAX_FRAME_OPERATIONS:  # each has a byte at least; looking costs 2 µs
                _check_size(frame)
            self._take_in(frame)
            if self._outbox.overflows:
                raise ResumableError("the answers are not read fast enough")

    async def _write(self) -> None:
        outbox, clock = self._outbox, self._clock
        write = self._context.write
        while True:
            frame = outbox.next_frame()
            if not frame:
                if self._ending:
                    return
                # A bare future: an Event asks for the running loop, which is a system call with Python 3.11.
                self._waker = self._loop.create_future()
                await self._waker
                self._waker = None
                continue
            self._writing_since = clock()
            if self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._stall, self._look_for_stall)
            await write(frame)
            self._writing_since = None
            if outbox.size < FRAME_TARGET:
                self._resume_stalled()

    def _wake(self) -> None:
        """There may be something to send."""
        waker = self._waker
        if waker is not None and not waker.done():
            waker.set_result(None)

    def _look_for_stall(self) -> None:
        """One timer for all frames, which is set again for what is left of the newest one's time: one for each frame
        costs 5 µs."""
        self._stall_timer = None
        if self._writing_since is None:
            return  # the next frame sets it
        left = self._writing_since + self._stall - self._clock()
        if left <= 0:
            self._writer.cancel()
        else:
            self._stall_timer = self._loop.call_later(left, self._look_for_stall)

    def _resume_stalled(self) -> None:
        """The client has read on: so do we."""
        if self._stalled_lists:
            jobs, self._stalled_lists = self._stalled_lists, []
            for job in jobs:
                job.resume()
        if self._stalled_reads:
            reads, self._stalled_reads, self._stalled_keys = self._stalled_reads, [], 0
            self._service.reads.resume(reads)
        self._queues.resume()
        if self._stalled_ranges:
            ranges, self._stalled_ranges = self._stalled_ranges, []
            self._service.ranges.resume(ranges)

    def _say_why(self, reader: "asyncio.Task[None]") -> None:
        error = reader.exception() if not reader.cancelled() else None
        if isinstance(error, ProtocolError):
            logger.info("ending a stream: %s", error)
            self._outbox.put_error(str(error), final=True)
        elif isinstance(error, ResumableError):
            logger.info("ending a stream: %s", error)
            self._outbox.put_error(str(error), final=False)
        elif error is not None and not isinstance(error, grpc.aio.BaseError | grpc.RpcError | asyncio.CancelledError):
            logger.error("a stream ended by a fault of this node", exc_info=error)
            self._outbox.put_error("internal error", final=False)

    # ---- frames in

    def _greet(self, frame: pb.ClientFrame) -> None:
        if not frame.HasField("hello"):
            raise ProtocolError("the first frame must say hello")
        hello = frame.hello
        if hello.protocol != PROTOCOL:
            raise ProtocolError(f"this node speaks protocol {PROTOCOL}, not {hello.protocol}")
        own = self._service.store.cluster_id
        if hello.cluster_id and hello.cluster_id != own:
            if not own:
                raise ResumableError("this node's cluster is still being formed")
            raise ProtocolError(f"this is cluster {own.hex()}, not {hello.cluster_id.hex()}")
        self._greeted = True
        if hello.token:
            self._caller = self._guard.caller = self._service.access.caller(hello.token)
            if too_many := self._service.access.enter(self._caller):
                raise ResumableError(too_many)
        leader = self._service.leader
        self._outbox.put_hello(
            pb.HelloReply(protocol=PROTOCOL, cluster_id=own, node_id=self._node_id, leader=leader, point_reads=True)
        )
        self._stop_listening = self._service.on_leader(self._leader_changed)
        if hello.session:
            self._use_session(hello.session)
        frame.ClearField("hello")

    def _take_in(self, frame: pb.ClientFrame) -> None:
        fields = frame.ListFields()
        if len(fields) == 1:  # mostly: to ask for all the others takes 2.5 µs
            field, content = fields[0]
            if field.number == _WRITES:
                self._take_writes(content)
                return
            if field.number == _POINTS:
                self._take_points(content)
                return
        self._take_all(frame)

    def _take_all(self, frame: pb.ClientFrame) -> None:
        if frame.HasField("hello"):
            raise ProtocolError("hello is said once")
        # Reads first: what asks the followers whether this node still leads then goes with the entry, and is no message
        # of its own.
        if frame.reads:
            self._take_reads(frame.reads)
        if frame.point_reads:
            self._take_points(frame.point_reads)
        if frame.HasField("writes"):
            self._take_writes(frame.writes)
        if frame.HasField("open_session"):
            self._open_session(frame.open_session)
        for start in frame.watches:
            self._start_watch(start)
        for number in frame.stop_watches:
            self._stop_watch(number)
        for request in frame.consumers:
            self._start_consumer(request)
        for number in frame.stop_consumers:
            self._guard.forget_consumer(number)
            self._queues.stop(number)
        for call in frame.queue_calls:
            self._queues.call(call, self._caller)
        for report in frame.started:
            self._service.delivery.started(self._session, report.consumer, report.lease_ids)
        if frame.HasField("goodbye"):
            self._queues.goodbye(self._session, release=frame.goodbye.release)
        if frame.ping:
            self._outbox.put_pong(frame.ping)

    def _take_writes(self, group: pb.WriteGroup) -> None:
        session = group.session
        if session != self._session or not session:
            if len(session) != SESSION_SIZE:
                answer = refuse_all(
                    group, pb.OUTCOME_INVALID, f"a session id has {SESSION_SIZE} bytes, got {len(session)}"
                )
                self._answer(answer)
                return
            self._use_session(session)
        if not self._service.consensus.is_leader:
            self._answer(refuse_all(group, pb.OUTCOME_NOT_LEADER))
            return
        try:
            principal = self._service.access.stamp(self._caller)
        except Unauthenticated as error:
            self._answer(refuse_all(group, pb.OUTCOME_UNAUTHENTICATED, str(error)))
            return
        if principal and (over := self._service.access.over(self._caller, len(group.writes))):
            self._answer(refuse_all(group, pb.OUTCOME_OVERLOADED, over))
            return
        self._service.write(group, self._answer, principal)

    def _answer(self, answer: pb.ResultGroup) -> None:
        if self._stop_listening is None:
            return
        self._outbox.put(RESULTS, answer.SerializeToString())
        if answer.results and answer.results[0].outcome == pb.OUTCOME_NOT_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _take_reads(self, reads: Any) -> None:
        if self._stalled_keys > MAX_STALLED_READS:
            raise ResumableError("the answers are not read fast enough")
        if sum(1 for read in reads if read.ranges) + len(self._lists) > MAX_LISTS:
            raise ResumableError(f"more than {MAX_LISTS:,} lists are under way on one connection")
        if self._service.access.on:
            if over := self._service.access.over(self._caller, len(reads)):
                for read in reads:
                    self._answer_read(_denied_read(read, (pb.READ_STATUS_OVERLOADED, over)))
            else:
                self._service.reads.submit([self._judged_read(read) for read in reads])
            return
        self._service.reads.submit(
            [PendingRead(read, self._answer_read, self._take_slice, self._has_room) for read in reads]
        )

    def _take_points(self, reads: Any) -> None:
        if self._stalled_keys > MAX_STALLED_READS:
            raise ResumableError("the answers are not read fast enough")
        if self._service.access.on:
            if over := self._service.access.over(self._caller, sum(len(read.keys) for read in reads)):
                for read in reads:
                    self._answer_points(pb.PointAnswers(id=read.id, status=pb.READ_STATUS_OVERLOADED, message=over))
            else:
                self._service.reads.submit([self._judged_points(read) for read in reads])
            return
        self._service.reads.submit([PendingPoints(read, self._answer_points, self._has_room) for read in reads])

    def _judged_points(self, read: pb.PointReads) -> PendingPoints:
        """As `_judged_read`. One key that may not be read refuses all of them: the client asks for each by itself."""
        refused: list[Refusal] = []

        def reply(answer: pb.PointAnswers) -> None:
            if refused:
                return  # nothing follows that
            refusal = None
            if answer.status == pb.READ_STATUS_OK:
                refusal = self._guard.refusal(partial(for_keys, keys=read.keys))
            if refusal is not None:
                refused.append(refusal)
                answer = pb.PointAnswers(id=read.id, status=refusal[0], message=refusal[1])
            self._answer_points(answer)

        return PendingPoints(read, reply, self._has_room)

    def _answer_points(self, answer: pb.PointAnswers) -> None:
        if self._stop_listening is None:
            return
        self._outbox.put(POINTS, answer.SerializeToString())
        if answer.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _judged_read(self, read: pb.Read) -> PendingRead:
        """A read whose answer is judged when it leaves, so by a state at least as new as the one that it shows."""
        refusal = partial(self._guard.refusal, lambda rights: for_read(rights, read))

        def reply(answer: pb.ReadResult) -> None:
            refused = refusal() if answer.status == pb.READ_STATUS_OK else None
            self._answer_read(answer if refused is None else _denied_read(read, refused))

        def take(job: ListJob, part: pb.ReadResult) -> None:
            refused = refusal() if part.status == pb.READ_STATUS_OK else None
            if refused is None:
                self._take_slice(job, part)
                return
            job.cancel()
            self._lists.pop(job, None)
            self._answer_read(_denied_read(read, refused))

        return PendingRead(read, reply, take, self._has_room)

    def _has_room(self, item: Pending) -> bool:
        # A stream that has ended takes its answers, and throws them away.
        if self._outbox.size < READ_AHEAD or self._stop_listening is None:
            return True
        self._stalled_reads.append(item)
        self._stalled_keys += item.keys
        return False

    def _answer_read(self, answer: pb.ReadResult) -> None:
        if self._stop_listening is None:
            return
        self._outbox.put(READS, answer.SerializeToString())
        if answer.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _take_slice(self, job: ListJob, part: pb.ReadResult) -> None:
        """A slice of a list: gather up to about a frame, send, and go on when the client has taken it."""
        if self._stop_listening is None:
            job.cancel()
            return
        gathered = self._lists.get(job)
        if gathered is None:
            gathered = part
        else:
            merge(gathered, part)
        if not part.more:
            self._lists.pop(job, None)
            gathered.more = False
            self._answer_read(gathered)
        elif gathered.ByteSize() < FRAME_TARGET:
            self._lists[job] = gathered
            job.resume()
        else:
            self._answer_read(gathered)
            rest = pb.ReadResult(id=gathered.id)
            for _ in gathered.ranges:
                rest.ranges.add()
            self._lists[job] = rest
            if self._outbox.size < FRAME_TARGET:
                job.resume()
            else:
                self._stalled_lists.append(job)

    # ---- sessions

    def _use_session(self, session: bytes) -> None:
        if len(session) != SESSION_SIZE:
            raise ProtocolError(f"a session id has {SESSION_SIZE} bytes, got {len(session)}")
        if self._service.access.on and not self._guard.owns(session):
            return
        self._attach(session)

    def _attach(self, session: bytes) -> None:
        """This connection keeps `session` alive from now on, and no other one any more."""
        old, self._session = self._session, session
        if session and session != old:
            self._service.connected(session)
        if old and session != old:
            self._queues.stop_consumers()
            self._service.disconnected(old, self._clock() - self._heard_at)

    def _open_session(self, request: pb.OpenSession) -> None:
        if self._session_requests >= MAX_SESSION_REQUESTS:
            raise ProtocolError(f"more than {MAX_SESSION_REQUESTS} sessions are asked for at once")
        principal = b""
        if self._service.consensus.is_leader:
            try:
                principal = self._service.access.stamp(self._caller)
            except Unauthenticated as error:
                self._outbox.put_session(b"", pb.READ_STATUS_UNAUTHENTICATED, str(error))
                return
        self._session_requests += 1
        self._service.open_session(request.client[:256], self._session_opened, principal)

    def _session_opened(self, session: bytes, error: RaftError | None) -> None:
        self._session_requests -= 1
        if self._stop_listening is None:
            return
        if error is not None:
            self._outbox.put_leader(self._service.leader)
        elif session:
            self._attach(session)
        self._outbox.put_session(session)

    # ---- watches

    def _start_watch(self, start: pb.StartWatch) -> None:
        if start.id in self._watches or start.id in self._ranges:
            raise ProtocolError(f"watch {start.id} is open already")
        if self._service.access.on:
            self._guard.start_watch(start, partial(self._begin_watch, start), partial(self._refuse_watch, start.id))
        else:
            self._begin_watch(start)

    def _refuse_watch(self, number: int, refusal: Refusal | None) -> None:
        """None: it could not be judged."""
        status, message = refusal or (None, "this node could not confirm what the token may do")
        event = pb.WatchEvent(id=number, error=message, retryable=refusal is None, status=status)
        self._outbox.put(WATCHES, event.SerializeToString())

    def _begin_watch(self, start: pb.StartWatch) -> None:
        self._guard.listen(self._rights_changed)
        if start.end:
            self._start_range(start)
            return
        problem = ""
        if not 1 <= len(start.keys) <= limits.MAX_WATCHED_KEYS:
            problem = f"a watch has 1 to {limits.MAX_WATCHED_KEYS} keys (MAX_WATCHED_KEYS), got {len(start.keys)}"
        elif any(len(key) > limits.MAX_READ_KEY_SIZE for key in start.keys):
            problem = f"a watched key has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE)"
        if problem:
            self._end_watch(start.id, problem, retryable=False)
        elif len(self._watches) + len(self._ranges) >= MAX_WATCHES:
            self._end_watch(start.id, f"more than {MAX_WATCHES:,} watches on one connection", retryable=False)
        else:
            # The barrier before its first event makes the state at least as new as anything that the client has seen.
            watch = self._service.watch(list(start.keys), partial(_notify_watch, self))
            self._watches[start.id] = watch
            self._watch_ids[watch] = start.id

    def _start_range(self, start: pb.StartWatch) -> None:
        problem = ""
        longest = max(len(start.start), len(start.end))
        if start.keys:
            problem = "a watch is of keys or of a range, not of both"
        elif longest > limits.MAX_READ_KEY_SIZE:
            problem = (
                f"a range bound has at most {limits.MAX_READ_KEY_SIZE:,} bytes (MAX_READ_KEY_SIZE), got {longest:,}"
            )
        elif len(start.since) not in (0, 10):
            problem = f"a versionstamp has 10 bytes, got {len(start.since)}"
        elif len(self._watches) + len(self._ranges) >= MAX_WATCHES:
            problem = f"more than {MAX_WATCHES:,} watches on one connection"
        if problem:
            self._end_watch(start.id, problem, retryable=False)
            return
        self._ranges[start.id] = self._service.watch_range(
            (start.start, start.end),
            start.since,
            keys_only=start.keys_only,
            deliver=partial(self._changes, start.id),
            has_room=self._has_range_room,
        )

    def _has_range_room(self, watch: RangeWatch) -> bool:
        if self._outbox.size < FRAME_TARGET:
            return True
        if len(self._stalled_ranges) >= 2 * MAX_WATCHES:  # most of them were stopped meanwhile
            self._stalled_ranges = [stalled for stalled in self._stalled_ranges if stalled.open]
        self._stalled_ranges.append(watch)
        return False

    def _changes(self, number: int, watch: RangeWatch, event: pb.WatchEvent) -> None:
        if self._stop_listening is None:
            return
        event.id = number
        self._outbox.put(WATCHES, event.SerializeToString())
        if event.error:
            self._ranges.pop(number, None)

    def _end_watch(self, number: int, why: str, *, retryable: bool) -> None:
        event = pb.WatchEvent(id=number, error=why, retryable=retryable)
        self._outbox.put(WATCHES, event.SerializeToString())

    def _stop_watch(self, number: int) -> None:
        self._guard.forget_watch(number)
        watched = self._ranges.pop(number, None)
        if watched is not None:
            self._service.ranges.remove(watched)
        watch = self._watches.pop(number, None)
        if watch is not None:
            del self._watch_ids[watch]
            self._service.hub.remove(watch)
            self._outbox.drop_watch(watch)

    def touched(self, watch: Watch) -> None:
        """A watch has something to take."""
        self._outbox.put_watch(watch)

    def _event(self, watch: Watch) -> pb.WatchEvent | None:
        number = self._watch_ids.get(watch)
        if number is None:
            return None
        if watch.ended:
            self._stop_watch(number)
            return pb.WatchEvent(id=number, error=watch.ended, retryable=True)
        entries, stamp = self._service.hub.take(watch)
        return pb.WatchEvent(id=number, entries=entries, read_versionstamp=stamp)

    def _rights_changed(self) -> None:
        """What the token may do can have changed: end what it may not."""
        guard = self._guard
        if guard.unchanged():
            return
        for number, watch in list(self._watches.items()):
            refusal = guard.refusal(partial(for_keys, keys=watch.keys))
            if refusal is not None:
                self._stop_watch(number)
                self._refuse_watch(number, refusal)
        for number, watched in list(self._ranges.items()):
            start, end = watched.bounds
            refusal = guard.refusal(partial(for_range, right=READ, start=start, end=end))
            if refusal is not None:
                self._stop_watch(number)
                self._refuse_watch(number, refusal)
        for number, queue in self._queues.consumers():
            refusal = guard.refusal(partial(for_queue, right=RECEIVE, name=queue))
            if refusal is not None:
                self._queues.stop(number)
                self._queues.ended(number, refusal)

    # ---- queues

    def _start_consumer(self, request: pb.StartConsumer) -> None:
        begin = partial(self._begin_consumer, request)
        if self._service.access.on:
            self._guard.start_consumer(request, begin, partial(self._queues.ended, request.id))
        else:
            begin()

    def _begin_consumer(self, request: pb.StartConsumer) -> None:
        self._guard.listen(self._rights_changed)
        self._queues.start(self._session, request)

    def _reply(self, reply: pb.QueueReply) -> None:
        if self._stop_listening is None:
            return
        self._outbox.put(QUEUE_REPLIES, reply.SerializeToString())
        if reply.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)

    def _session_expired(self, session: bytes) -> None:
        """A consumer's session is closed. A client that only listens makes no write that would tell it."""
        if session == self._session:
            answer = pb.ResultGroup(session=session)
            answer.results.add(outcome=pb.OUTCOME_SESSION_EXPIRED, message="the session of this consumer is closed")
            self._answer(answer)

    def _leader_changed(self) -> None:
        self._outbox.put_leader(self._service.leader)


def _notify_watch(stream: Stream, watch: Watch) -> None:
    stream.touched(watch)


def _denied_read(read: pb.Read, refusal: Refusal) -> pb.ReadResult:
    return pb.ReadResult(id=read.id, status=refusal[0], message=refusal[1])


def merge(have: pb.ReadResult, part: pb.ReadResult) -> None:
    """Append a slice to those before it."""
    for mine, more in zip(have.ranges, part.ranges, strict=False):
        mine.entries.extend(more.entries)
        mine.count += more.count
    have.entries.extend(part.entries)
    have.time_ms = part.time_ms
    have.status = part.status
    have.message = part.message
    have.read_versionstamp = part.read_versionstamp
    have.more = part.more


def _check_size(frame: pb.ClientFrame) -> None:
    operations = len(frame.writes.writes) + len(frame.reads) + len(frame.watches) + len(frame.stop_watches)
    operations += sum(len(points.keys) for points in frame.point_reads)
    operations += len(frame.consumers) + len(frame.stop_consumers) + len(frame.started) + len(frame.queue_calls)
    if operations > limits.MAX_FRAME_OPERATIONS:
        raise ProtocolError(
            f"a frame has at most {limits.MAX_FRAME_OPERATIONS:,} operations (MAX_FRAME_OPERATIONS), got {operations:,}"
        )
