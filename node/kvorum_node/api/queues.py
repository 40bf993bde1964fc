"""What one stream has to do with queues: its consumers, and its calls about queues."""

from collections.abc import Callable
from functools import partial

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import LimitExceeded

from ..access import Refusal
from ..metrics.operations import code_of_read
from ..queue import TAKE_BYTES, Consumer, TakeRoom
from ..queue_calls import Call
from ..service import NodeService
from ..store import check_queue_name
from ..store.rights import RECEIVE, for_queue
from ..unread import SMALL
from .endings import ProtocolError
from .guard import StreamGuard
from .outbox import ENDED_CONSUMERS, FRAME_TARGET, QUEUE_REPLIES, Outbox
from .reads import Room
from .traces import FrameTraces

MAX_CONSUMERS = 1_000
MAX_QUEUE_CALLS = 16
"""Calls about queues under way on one stream; each may bring a megabyte."""


class StreamQueues:
    """`session` is asked for the one that the stream speaks for, `expired` is told that a consumer's is closed."""

    def __init__(
        self,
        service: NodeService,
        outbox: Outbox,
        guard: StreamGuard,
        room: Room,
        *,
        session: Callable[[], bytes],
        expired: Callable[[bytes], None],
    ) -> None:
        self._service = service
        self._outbox = outbox
        self._guard = guard
        self._room = room
        self._session = session
        self._expired = expired
        self._closed = False
        self._consumers: dict[int, Consumer] = {}
        self._take_room = TakeRoom(self._waiting)
        self._calls: set[Call] = set()

    def close(self) -> None:
        """The stream has ended."""
        self._closed = True
        for call in self._calls:
            call.cancel()
        self._calls.clear()
        self.stop_consumers()

    # ---- consumers

    def start(self, request: pb.StartConsumer, *, later: bool) -> None:
        """Begin what a client asks for, once its token allows it. `later`: after a round, as its session is not known
        here yet. Raises ProtocolError."""
        begin = partial(self._begin, request)
        if self._service.access.on:
            self._guard.start_consumer(request, begin, partial(self.ended, request.id), later=later)
        else:
            begin()

    def _begin(self, request: pb.StartConsumer) -> None:
        self._guard.listen()
        session = self._session()
        if not session:
            raise ProtocolError("a consumer needs a session")
        if not 1 <= request.credits <= limits.MAX_CREDITS:
            raise ProtocolError(
                f"a consumer has 1 to {limits.MAX_CREDITS:,} credits (MAX_CREDITS), got {request.credits}"
            )
        if len(request.held) > limits.MAX_CREDITS:
            raise ProtocolError(f"a consumer holds at most {limits.MAX_CREDITS:,} messages, got {len(request.held):,}")
        try:
            check_queue_name(request.queue)
        except LimitExceeded as error:
            raise ProtocolError(str(error)) from None
        if request.id not in self._consumers and len(self._consumers) >= MAX_CONSUMERS:
            raise ProtocolError(f"more than {MAX_CONSUMERS:,} consumers on one connection")
        if self._service.access.on and not self._service.store.session_exists(session):
            self._expired(session)
            return
        self._consumers[request.id] = self._service.delivery.start_consumer(
            session, request, self._outbox.put_delivery, lambda: self._expired(session), self._take_room
        )

    def stop(self, number: int) -> None:
        """The client wants no more of it."""
        self._guard.forget_consumer(number)
        self._stop(number)

    def _stop(self, number: int) -> None:
        consumer = self._consumers.pop(number, None)
        if consumer is not None:
            self._service.delivery.stop_consumer(consumer)

    def end_refused(self) -> None:
        """What the token may do can have changed: end what it may not receive."""
        for number, consumer in list(self._consumers.items()):
            refusal = self._guard.refusal(partial(for_queue, right=RECEIVE, name=consumer.queue))
            if refusal is not None:
                self._consumers.pop(number)
                self._service.delivery.deprive(consumer)
                self.ended(number, refusal)

    def ended(self, number: int, refusal: Refusal | None) -> None:
        """Say that a consumer gets nothing more. None: what its token may do could not be found out."""
        status, message = refusal or (pb.READ_STATUS_NO_LEADER, "this node could not confirm what the token may do")
        ended = pb.ConsumerEnded(consumer=number, status=status, message=message)
        self._outbox.put(ENDED_CONSUMERS, ended.SerializeToString())

    def stop_consumers(self) -> None:
        """The stream has another session, or none."""
        for consumer in self._consumers.values():
            self._service.delivery.stop_consumer(consumer)
        self._consumers.clear()

    def goodbye(self, session: bytes, *, release: bool) -> None:
        """The session's consumers end; with `release`, so do its leases."""
        self._service.delivery.stop_session(session)
        self._consumers.clear()
        if release and session:
            self._service.delivery.goodbye(session)

    def _waiting(self) -> int:
        """Bytes of the messages that are on their way and cannot be had again, and of those that have no room now."""
        waiting, loadable = self._outbox.delivery_bytes, self._room.loadable()
        if loadable >= FRAME_TARGET:
            return waiting
        if loadable <= 0:
            return TAKE_BYTES
        return waiting + TAKE_BYTES - max(loadable, 2 * SMALL)  # one at least, or nobody would look again

    def resume(self) -> None:
        """The client has read on."""
        if self._take_room.blocked:
            self._take_room.blocked = False
            for consumer in list(self._consumers.values()):
                if consumer.take:
                    self._service.delivery.resume(consumer)

    # ---- calls

    def call(self, request: pb.QueueCall, traces: FrameTraces | None) -> None:
        """Take a call about queues."""
        if len(self._calls) >= MAX_QUEUE_CALLS:
            message = f"more than {MAX_QUEUE_CALLS} calls about queues are under way on one connection"
            self._service.calls.meter.refused(code_of_read(pb.READ_STATUS_OVERLOADED))
            self._reply(pb.QueueReply(id=request.id, status=pb.READ_STATUS_OVERLOADED, message=message))
            return
        answered = self._answered if traces is None else traces.call(request, self._answered)
        call = self._service.calls.submit(request, answered, self._guard.caller)
        if not call.ended:
            self._calls.add(call)

    def _answered(self, reply: pb.QueueReply) -> None:
        self._calls = {call for call in self._calls if not call.ended}
        self._reply(reply)

    def _reply(self, reply: pb.QueueReply) -> None:
        if self._closed:
            return
        data = reply.SerializeToString()
        if not self._room.takes(len(data)):  # it is a page, so the answer to a question
            text = self._service.unread.refusal()
            self._service.calls.meter.others[code_of_read(pb.READ_STATUS_OVERLOADED)] += 1
            data = pb.QueueReply(id=reply.id, status=pb.READ_STATUS_OVERLOADED, message=text).SerializeToString()
        self._outbox.put(QUEUE_REPLIES, data)
        if reply.status == pb.READ_STATUS_NO_LEADER:
            self._outbox.put_leader(self._service.leader)
