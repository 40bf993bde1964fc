"""What waits to go out on one stream, and the frames made of it.

Answers are kept as encoded fields of `pb.ServerFrame`, so a frame is one join and its size is known to the byte;
nothing is copied between messages. What can be had again from the state is not kept at all: a dirty watch is a
reference, from which the newest event is made when there is room, and a delivery beyond the first few is the name of
its lease. So what a slow client can make a node hold is bounded by its answers, and those by `MAX_BYTES`. What all
clients together can is bounded by `Unread`, which says how much may be loaded.
"""

from collections import deque
from collections.abc import Callable

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb

from ..proposer import varint
from ..watches import Watch

MAX_BYTES = 32 * 1_048_576
"""Answers that may wait; a client that lets more gather is cut off."""
FRAME_TARGET = 1_048_576
"""Bytes beyond which nothing is loaded from the state into a frame."""

RESULTS, READS, WATCHES, SESSION, DELIVERIES, LEADER = b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32", b"\x3a"
QUEUE_REPLIES, POINTS = b"\x5a", b"\x62"
ENDED_CONSUMERS = b"\x6a"
_HELLO = b"\x0a"

DeliveryName = tuple[bytes, bytes]
"""Message id and lease id."""


class Outbox:
    """`wake` is called when something was put in.

    `load` reads a delivery from the state, `take` makes the event of a watch. `loadable` says how many bytes of these
    may go into a frame now; if none, it wakes the stream when that has changed.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        load: Callable[[bytes, bytes], pb.Delivery | None],
        take: Callable[[Watch], pb.WatchEvent | None],
        loadable: Callable[[], int] = lambda: FRAME_TARGET,
    ) -> None:
        self._wake = wake
        self._load = load
        self._take = take
        self._loadable = loadable
        self._most = FRAME_TARGET
        """Bytes that could be loaded for the last frame."""
        self._fields: deque[bytes] = deque()
        self.size = 0
        """Bytes of answers that wait."""
        self.gathered = 0
        """Bytes of what is to become an answer, and is kept elsewhere."""
        self._sessions: deque[pb.SessionOpened] = deque()
        self._deliveries: deque[bytes | DeliveryName] = deque()
        self._delivery_bytes = 0
        self._watches: dict[Watch, None] = {}
        self._leader: pb.Leader | None = None
        self._pong: int | None = None
        self._error: tuple[str, bool] | None = None

    @property
    def delivery_bytes(self) -> int:
        """Bytes of the deliveries that wait here themselves."""
        return self._delivery_bytes

    @property
    def held(self) -> int:
        """Bytes of all that waits."""
        return self.size + self._delivery_bytes + self.gathered

    @property
    def overflows(self) -> bool:
        return self.size > MAX_BYTES

    def put(self, tag: bytes, message: bytes) -> None:
        """Queue a field that may be repeated in a frame."""
        field = b"".join((tag, varint(len(message)), message))
        self._fields.append(field)
        self.size += len(field)
        self._wake()

    def put_hello(self, hello: pb.HelloReply) -> None:
        self.put(_HELLO, hello.SerializeToString())

    def put_session(self, session: bytes, status: "pb.ReadStatus | None" = None, message: str = "") -> None:
        """A session, or why there is none."""
        self._sessions.append(pb.SessionOpened(session=session, status=status, message=message))
        self._wake()

    def put_delivery(self, delivery: pb.Delivery) -> None:
        if not self._deliveries:
            self._wake()  # else it was done for those that wait already
        # What was taken cannot be had again; `TakeRoom` bounds how much of it is on its way.
        if self._delivery_bytes > self._most and not delivery.taken:
            self._deliveries.append((delivery.message_id, delivery.lease_id))
        else:
            message = delivery.SerializeToString()
            self._delivery_bytes += len(message)
            self._deliveries.append(message)

    def put_watch(self, watch: Watch) -> None:
        self._watches[watch] = None
        self._wake()

    def drop_watch(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    def put_leader(self, leader: pb.Leader) -> None:
        self._leader = leader
        self._wake()

    def put_pong(self, number: int) -> None:
        self._pong = number
        self._wake()

    def put_error(self, message: str, *, final: bool) -> None:
        """The last thing that this stream says."""
        if self._error is None:
            self._error = (message, final)
        self._wake()

    def clear(self) -> None:
        """Nobody takes any of this any more."""
        self._fields.clear()
        self._deliveries.clear()
        self._watches.clear()
        self.size = self._delivery_bytes = self.gathered = 0

    def next_frame(self) -> bytes:
        """The next frame, a serialised `pb.ServerFrame`; empty when nothing waits. Its error comes last."""
        fields = self._fields
        if not (
            fields
            or self._deliveries
            or self._watches
            or self._leader is not None
            or self._pong is not None
            or self._sessions
            or self._error is not None
        ):
            return b""  # asked after each frame
        parts: list[bytes] = []
        size = 0
        while fields and size + len(fields[0]) <= limits.MAX_FRAME_SIZE:
            field = fields.popleft()
            parts.append(field)
            size += len(field)
        self.size -= size
        if not fields:
            # These fields stand once in a frame. They follow the answers: a leader's notice must not overtake
            # results of its term.
            size = self._single_fields(parts, size)
        if self._deliveries or self._watches:
            self._most = self._loadable()
            size = self._load_deliveries(parts, size)
            size = self._load_watches(parts, size)
        loads = self._most > 0 and (self._deliveries or self._watches)
        if self._error is not None and not fields and not loads and not self._sessions:
            frame = pb.ServerFrame(error=self._error[0], error_is_final=self._error[1])
            parts.append(frame.SerializeToString())
            self._error = None
        return b"".join(parts)

    def _single_fields(self, parts: list[bytes], size: int) -> int:
        if self._leader is None and self._pong is None and not self._sessions:
            return size
        frame = pb.ServerFrame()
        if self._sessions:
            frame.session.CopyFrom(self._sessions.popleft())
            frame.session.SetInParent()
        if self._leader is not None:
            frame.leader.CopyFrom(self._leader)
            self._leader = None
        if self._pong is not None:
            frame.pong = self._pong
            self._pong = None
        data = frame.SerializeToString()
        if data:
            parts.append(data)
        return size + len(data)

    def _load_deliveries(self, parts: list[bytes], size: int) -> int:
        while self._deliveries and size < FRAME_TARGET:
            delivery = self._deliveries[0]
            if isinstance(delivery, bytes):
                self._deliveries.popleft()
                self._delivery_bytes -= len(delivery)
                message = delivery
            elif size >= self._most:
                break
            else:
                self._deliveries.popleft()
                loaded = self._load(*delivery)
                if loaded is None:
                    continue  # the lease has ended meanwhile
                message = loaded.SerializeToString()
            field = DELIVERIES + varint(len(message)) + message
            parts.append(field)
            size += len(field)
        return size

    def _load_watches(self, parts: list[bytes], size: int) -> int:
        while self._watches and size < self._most:
            watch = next(iter(self._watches))
            del self._watches[watch]
            event = self._take(watch)
            if event is not None:
                message = event.SerializeToString()
                field = WATCHES + varint(len(message)) + message
                parts.append(field)
                size += len(field)
        return size
