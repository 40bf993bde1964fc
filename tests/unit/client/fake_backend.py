"""A backend in memory whose answers a test can dictate."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.errors import KvorumError
from kvorum.values import encode_payload, encode_value


def row(key: bytes, value: object, number: int) -> pb.KvEntry:
    """A stored row."""
    data, encoding = encode_value(value)
    return pb.KvEntry(key=key, value=data, encoding=encoding, versionstamp=stamp(number))  # type: ignore[arg-type]


def stamp(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"\0\0"


def refused(outcome: pb.Outcome, message: str = "", failed_checks: Sequence[int] = ()) -> WriteOutcome:
    return WriteOutcome(pb.WriteResult(outcome=outcome, message=message, failed_checks=failed_checks), b"")


class FakeConsumer:
    """`kvorum.backend.Consumer`; `deliver` plays the node."""

    def __init__(
        self,
        queue: str,
        credit: int,
        concurrency: int,
        sink: Callable[[pb.Delivery], None],
        *,
        take: bool = False,
        expiring: bool = False,
    ) -> None:
        self.take = take
        self.expiring = expiring
        self.queue = queue
        self.credits = credit
        self.concurrency = concurrency
        self._sink = sink
        self._number = 0
        self.started_leases: list[bytes] = []
        self.settled_leases: list[bytes] = []
        self.closed = False
        self.failed: Callable[[KvorumError], None] | None = None

    def deliver(self, value: object, attempt: int = 1, **more: Any) -> pb.Delivery:
        self._number += 1
        name = self._number.to_bytes(12, "big")
        message = pb.Delivery(
            message_id=name,
            lease_id=b"L" + name[1:],
            attempt=attempt,
            payload=encode_payload(value),
            queue=self.queue,
            taken=self.take,
            **more,
        )
        self._sink(message)
        return message

    def deliver_bytes(self, payload: bytes) -> None:
        self._number += 1
        name = self._number.to_bytes(12, "big")
        self._sink(pb.Delivery(message_id=name, lease_id=b"L" + name[1:], attempt=1, payload=payload))

    def started(self, lease_id: bytes) -> None:
        self.started_leases.append(lease_id)

    def settled(self, lease_id: bytes) -> None:
        self.settled_leases.append(lease_id)

    async def close(self) -> None:
        self.closed = True


class FakeBackend:
    """`kvorum.backend.Backend`. Writes are kept, and answered by `answers` or with the next versionstamp."""

    def __init__(self) -> None:
        self.writes: list[pb.AtomicWrite] = []
        self.timeouts: list[float] = []
        self.reads: list[pb.Read] = []
        self.answers: deque[WriteOutcome | KvorumError] = deque()
        self.rows: dict[bytes, pb.KvEntry] = {}
        self.snapshots: asyncio.Queue[list[pb.KvEntry] | KvorumError | None] = asyncio.Queue()
        self.events: asyncio.Queue[pb.WatchEvent | KvorumError | None] = asyncio.Queue()
        """Of watches of ranges, whose beginnings are kept in `watched`."""
        self.watched: list[pb.StartWatch] = []
        self.consumers: list[FakeConsumer] = []
        self.calls: list[pb.QueueCall] = []
        self.replies: deque[pb.QueueReply | KvorumError] = deque()
        """Of queue calls; one that is not there is OK and empty."""
        self.hold: asyncio.Event | None = None
        """Writes wait for it, if it is there."""
        self.written = asyncio.Event()
        self.closed = False
        self.watches_ended = 0

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        self.reads.append(read)
        self.timeouts.append(timeout)
        result = pb.ReadResult(status=pb.READ_STATUS_OK)
        for key in read.keys:
            result.entries.append(self.rows.get(key) or pb.KvEntry(key=key))
        for wanted in read.ranges:
            keys = sorted((key for key in self.rows if wanted.start <= key < wanted.end), reverse=wanted.reverse)
            if wanted.count_only:
                result.ranges.add(count=len(keys))
            else:
                result.ranges.add(entries=[self.rows[key] for key in keys[: wanted.limit]])
        return result

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        self.writes.append(pb.AtomicWrite.FromString(op))
        self.timeouts.append(timeout)
        self.written.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, KvorumError):
                raise answer
            return answer
        return WriteOutcome(pb.WriteResult(outcome=pb.OUTCOME_DONE), stamp(len(self.writes)))

    async def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        try:
            while (snapshot := await self.snapshots.get()) is not None:
                if isinstance(snapshot, KvorumError):
                    raise snapshot
                yield snapshot
        finally:
            self.watches_ended += 1

    async def watch_range(
        self, start: bytes, end: bytes, *, since: bytes, keys_only: bool
    ) -> AsyncIterator[pb.WatchEvent]:
        self.watched.append(pb.StartWatch(start=start, end=end, since=since, keys_only=keys_only))
        try:
            while (event := await self.events.get()) is not None:
                if isinstance(event, KvorumError):
                    raise event
                yield event
        finally:
            self.watches_ended += 1

    async def consume(
        self,
        queue: str,
        *,
        credits: int,
        concurrency: int,
        deliver: Callable[[pb.Delivery], None],
        failed: Callable[[KvorumError], None] | None = None,
        take: bool = False,
        expiring: bool = False,
    ) -> FakeConsumer:
        consumer = FakeConsumer(queue, credits, concurrency, deliver, take=take, expiring=expiring)
        consumer.failed = failed
        self.consumers.append(consumer)
        return consumer

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        self.calls.append(call)
        self.timeouts.append(timeout)
        reply = self.replies.popleft() if self.replies else pb.QueueReply(status=pb.READ_STATUS_OK)
        if isinstance(reply, KvorumError):
            raise reply
        return reply

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        return pb.StatusResponse(node_id="fake")

    async def close(self) -> None:
        self.closed = True

    @property
    def settles(self) -> list[pb.Settle]:
        return [settle for write in self.writes for settle in write.settles]
