"""One client's stream: frames in, frames out.

Two loops: one reads a frame and hands its parts to the service, the other writes whatever has gathered since its last
frame. They share an outbox and nothing waits inside a frame, so a slow read holds up no write. Whatever arrives, a
stream ends at worst: everything that it registered is taken back in `close`.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import Unauthenticated
from kvorum_raft.quiet_log import QuietLog

from ..service import Answer, NodeService
from ..unread import SMALL, Holding
from ..watches import Watch
from .endings import ProtocolError, ResumableError
from .guard import StreamGuard
from .outbox import FRAME_TARGET, RESULTS, Outbox
from .queues import StreamQueues
from .reads import StreamReads
from .sessions import SESSION_SIZE, StreamSession
from .traces import FrameTraces, StreamTraces
from .unfinished import FRAME, Call
from .watches import StreamWatches

logger = logging.getLogger("kvorum.api")

PROTOCOL = 1
STALL = 30.0
"""Seconds that one frame may take to be accepted by the client's side before the stream is cut."""
FLUSH = 2.0
"""Seconds for the last frames of a stream that ends."""
_WRITES = pb.ClientFrame.WRITES_FIELD_NUMBER
_POINTS = pb.ClientFrame.POINT_READS_FIELD_NUMBER


class Stream:
    """See the module. `run` returns when the stream has ended."""

    def __init__(
        self,
        service: NodeService,
        node_id: str,
        context: Any,
        *,
        stall: float = STALL,
        call: Call | None = None,
        greeted: Callable[[bool], None] | None = None,
        quiet: QuietLog | None = None,
        owner: Hashable = None,
    ) -> None:
        """`call` counts what is heard. `greeted` is told that the client has said hello, and whether it is nobody by
        that. `quiet` is the log of what clients do wrong, which they can at will: that of all streams. `owner` is the
        connection, which shares its turns among its streams; None: the stream is all of it."""
        self._service = service
        self._node_id = node_id
        self._context = context
        self._stall = stall
        self._call = call or Call(0.0)
        self._loop = asyncio.get_running_loop()
        self._waker: asyncio.Future[None] | None = None
        """What the writer waits for while there is nothing to send."""
        self._drained: asyncio.Future[None] | None = None
        """What the reader waits for while the client has too much to read."""
        self._writer: asyncio.Task[None] | None = None
        self._unread = service.unread
        self._holding = Holding(service.unread, self.give_up)
        self.cut_off = ""
        """Why the stream was ended without a word in it, as its client reads nothing."""
        self._stall_timer: asyncio.TimerHandle | None = None
        self._greeted = False
        self._on_greeted = greeted
        self._ending = False
        self._clock = self._loop.time
        self._quiet = quiet or QuietLog(logger, self._clock)
        self._outbox = outbox = Outbox(
            self._wake, load=service.store.delivery, take=self._event, loadable=self.loadable
        )
        self._guard = guard = StreamGuard(service, self._rights_changed, self._break_off)
        self._queues = StreamQueues(
            service, outbox, guard, self, session=self._confirmed_session, expired=self._session_expired
        )
        self._session = StreamSession(service, outbox, guard, self._queues)
        self._watches = StreamWatches(service, outbox, guard, self.loadable)
        self._reads = StreamReads(service, outbox, guard, self, owner=self if owner is None else owner)
        tracing = service.tracing
        self._traces = None if tracing is None else StreamTraces(service, tracing, node_id)
        self._stop_listening: Callable[[], None] | None = None

    async def run(self) -> None:
        self._writer = writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        served_by = asyncio.current_task()
        assert served_by is not None
        # gRPC may have a frame for longer than this stream lives, and its task lives as long as that.
        served_by.add_done_callback(partial(_closed, self._holding))
        self._unread.open(self._holding)
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done():
                return  # the client is gone, or too slow
            self._say_why(reader)
            self._ending = True
            self._wake()
            await asyncio.wait((writer,), timeout=FLUSH)
            if not writer.done():
                self.cut_off = f"the client has not taken the last frames within {FLUSH:g} s"
        finally:
            self.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            # Its error holds the frame that was being written, and this stream: without the collector of cycles both
            # would stay.
            self._writer = None
            self._holding.over()

    def end(self, why: str) -> None:
        """The node stops: the client shall go elsewhere."""
        self._outbox.put_error(why, final=False)
        self._ending = True
        self._wake()

    def _break_off(self, error: ProtocolError) -> None:
        """The client is told why it is not heard any more."""
        self._quiet.warning("ending", f"ending a stream: {error}")
        self._outbox.put_error(str(error), final=True)
        self._ending = True
        self._wake()

    def give_up(self, why: str) -> None:
        """The client does not read, and others need the room. It would not read why on the stream, either."""
        self._quiet.warning("slow", f"a stream is cut off: {why}")
        self._cut_off(why)

    def _cut_off(self, why: str) -> None:
        self.cut_off = why
        if self._writer is not None:
            self._writer.cancel()

    def close(self) -> None:
        """Take back everything that this stream registered."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._watches.close()
        self._reads.close()
        self._guard.close()
        self._queues.close()
        self._session.close()
        self._outbox.clear()
        if self._traces is not None:
            self._traces.close()

    # ---- the two loops

    async def _read(self) -> None:
        context, session, clock, outbox, call = self._context, self._session, self._clock, self._outbox, self._call
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            session.heard_at = clock()
            size = len(data)
            call.heard += size + FRAME
            if size > limits.MAX_FRAME_SIZE:
                raise ProtocolError(
                    f"a frame has at most {limits.MAX_FRAME_SIZE:,} bytes (MAX_FRAME_SIZE), got {size:,}"
                )
            try:
                frame = pb.ClientFrame.FromString(data)
            except DecodeError:
                raise ProtocolError("a frame cannot be decoded") from None
            if not self._greeted:
                self._greet(frame)
            if size > limits.MAX_FRAME_OPERATIONS:  # each has a byte at least; looking costs 2 µs
                _check_size(frame)
            self._take_in(frame)
            if outbox.size > SMALL:
                del data, frame
                await self._until_read()

    async def _until_read(self) -> None:
        """Whoever has twice as much to read as it may have ready is not heard until it has read some of it."""
        if self._outbox.overflows:
            raise ResumableError("the answers are not read fast enough")
        while self._outbox.size > max(SMALL, 2 * self._holding.ahead) and not self._ending:
            self._drained = self._loop.create_future()
            await self._drained
        self._drained = None

    async def _write(self) -> None:
        outbox, clock, holding = self._outbox, self._clock, self._holding
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
            holding.sends(len(frame), outbox.held, clock())
            if self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._stall, self._look_for_stall)
            await write(frame)
            holding.sent(outbox.held)
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(None)
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
        since = self._holding.since
        if since is None:
            return  # the next frame sets it
        left = since + self._stall - self._clock()
        if left <= 0:
            self._cut_off(f"the client has not taken a frame for {self._stall:g} s")
        else:
            self._stall_timer = self._loop.call_later(left, self._look_for_stall)

    @property
    def stands_still(self) -> bool:
        """The client is to take something, and `resume` follows when it has."""
        return self._holding.since is not None or self._outbox.size > 0

    def room(self) -> int:
        """Bytes of answers that may be made for the client now."""
        outbox = self._outbox
        self._holding.count(outbox.held)
        return self._holding.ahead - outbox.size

    @property
    def is_full(self) -> bool:
        """Nothing is free for anybody."""
        return self._holding.is_full

    def takes(self, size: int) -> bool:
        """Whether an answer of so many bytes may be sent to the client, although it takes it when it likes to."""
        return self._holding.takes(size, self.room())

    def loadable(self) -> int:
        """Bytes of what can be had from the state at any time that may be loaded now. If there are none, and there is
        nothing to be taken by the client first, whatever waits is told when there are."""
        self._holding.count(self._outbox.held)
        most = min(FRAME_TARGET, self._holding.ahead)
        if most <= 0 and self._holding.since is None:
            self._unread.wait(self._holding, self._room_is_back)
        return most

    def _room_is_back(self) -> None:
        self._resume_stalled()
        self._wake()

    def _resume_stalled(self) -> None:
        """The client has read on: so do we."""
        self._reads.resume()
        self._queues.resume()
        self._watches.resume()

    def _say_why(self, reader: "asyncio.Task[None]") -> None:
        error = reader.exception() if not reader.cancelled() else None
        if isinstance(error, ProtocolError):
            self._quiet.warning("ending", f"ending a stream: {error}")
            self._outbox.put_error(str(error), final=True)
        elif isinstance(error, ResumableError):
            self._quiet.warning("ending", f"ending a stream: {error}")
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
            caller = self._guard.caller = self._service.access.caller(hello.token)
            if too_many := self._service.access.enter(caller):
                raise ResumableError(too_many)
        if self._on_greeted is not None:
            access = self._service.access
            self._on_greeted(access.on and bool(access.problem(self._guard.caller)))
        leader = self._service.leader
        self._outbox.put_hello(
            pb.HelloReply(
                protocol=PROTOCOL,
                cluster_id=own,
                node_id=self._node_id,
                leader=leader,
                point_reads=True,
                traces=self._traces is not None,
            )
        )
        self._stop_listening = self._service.on_leader(self._leader_changed)
        if hello.session:
            self._session.use(hello.session)
        frame.ClearField("hello")

    def _take_in(self, frame: pb.ClientFrame) -> None:
        fields = frame.ListFields()
        if len(fields) == 1:  # mostly: to ask for all the others takes 2.5 µs
            field, content = fields[0]
            if field.number == _WRITES:
                self._take_writes(content, self._answer)
                return
            if field.number == _POINTS:
                self._reads.take_points(content)
                return
        self._take_all(frame)

    def _take_all(self, frame: pb.ClientFrame) -> None:
        if frame.HasField("hello"):
            raise ProtocolError("hello is said once")
        self._session.look_again()
        traces = self._traces.of(frame) if frame.traces and self._traces is not None else None
        # Reads first: what asks the followers whether this node still leads then goes with the entry, and is no message
        # of its own.
        if frame.reads:
            self._reads.take(frame.reads, traces)
        if frame.point_reads:
            self._reads.take_points(frame.point_reads)
        if frame.HasField("writes"):
            if traces is None:
                self._take_writes(frame.writes, self._answer)
            else:
                traces.write(frame.writes, self._answer, partial(self._take_writes, frame.writes))
        if frame.HasField("open_session"):
            self._session.open(frame.open_session)
        for start in frame.watches:
            self._watches.start(start)
        for number in frame.stop_watches:
            self._watches.stop(number)
        self._take_queues(frame, traces)
        if frame.ping:
            self._outbox.put_pong(frame.ping)

    def _take_queues(self, frame: pb.ClientFrame, traces: FrameTraces | None) -> None:
        for request in frame.consumers:
            self._queues.start(request, later=bool(self._session.claimed))
        for number in frame.stop_consumers:
            self._queues.stop(number)
        for call in frame.queue_calls:
            self._queues.call(call, traces)
        for report in frame.started:
            self._service.delivery.started(self._session.id, report.consumer, report.lease_ids)
        if frame.HasField("goodbye"):
            self._queues.goodbye(self._session.id, release=frame.goodbye.release)

    def _take_writes(self, group: pb.WriteGroup, answer: Answer) -> None:
        session = group.session
        if session != self._session.id or not session:
            if len(session) != SESSION_SIZE:
                text = f"a session id has {SESSION_SIZE} bytes, got {len(session)}"
                answer(self._service.refuse(group, pb.OUTCOME_INVALID, text))
                return
            self._session.use(session)
        if not self._service.consensus.is_leader:
            answer(self._service.refuse(group, pb.OUTCOME_NOT_LEADER))
            return
        try:
            principal = self._service.access.stamp(self._guard.caller)
        except Unauthenticated as error:
            answer(self._service.refuse(group, pb.OUTCOME_UNAUTHENTICATED, str(error)))
            return
        if principal and (over := self._service.access.over(self._guard.caller, len(group.writes))):
            answer(self._service.refuse(group, pb.OUTCOME_OVERLOADED, over))
            return
        self._service.write(group, answer, principal)

    def _answer(self, answer: pb.ResultGroup) -> None:
        if self._stop_listening is None:
            return
        self._outbox.put(RESULTS, answer.SerializeToString())
        if answer.results and answer.results[0].outcome == pb.OUTCOME_NOT_LEADER:
            self._outbox.put_leader(self._service.leader)

    # ---- news from within

    def _event(self, watch: Watch) -> pb.WatchEvent | None:
        return self._watches.event(watch)

    def _rights_changed(self) -> None:
        """What the token may do can have changed: end what it may not."""
        if not self._guard.unchanged():
            self._watches.end_refused()
            self._queues.end_refused()

    def _confirmed_session(self) -> bytes:
        return self._session.confirmed()

    def _session_expired(self, session: bytes) -> None:
        """A consumer's session is closed. A client that only listens makes no write that would tell it."""
        if session in (self._session.id, self._session.claimed):
            answer = pb.ResultGroup(session=session)
            answer.results.add(outcome=pb.OUTCOME_SESSION_EXPIRED, message="the session of this consumer is closed")
            self._answer(answer)

    def _leader_changed(self) -> None:
        self._outbox.put_leader(self._service.leader)


def _closed(holding: Holding, _: "asyncio.Task[Any]") -> None:
    holding.close()


def _check_size(frame: pb.ClientFrame) -> None:
    operations = len(frame.writes.writes) + len(frame.reads) + len(frame.watches) + len(frame.stop_watches)
    operations += sum(len(points.keys) for points in frame.point_reads)
    operations += len(frame.consumers) + len(frame.stop_consumers) + len(frame.started) + len(frame.queue_calls)
    operations = max(operations, len(frame.traces))  # each is of an operation
    if operations > limits.MAX_FRAME_OPERATIONS:
        raise ProtocolError(
            f"a frame has at most {limits.MAX_FRAME_OPERATIONS:,} operations (MAX_FRAME_OPERATIONS), got {operations:,}"
        )
