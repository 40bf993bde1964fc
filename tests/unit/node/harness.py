"""Virtual time, and a consensus of one that is told when to commit: a whole node service without loop, thread or
socket.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.lists import ListReader
from kvorum_node.read_jobs import ReadJob
from kvorum_node.service import NodeService, ServiceSettings
from kvorum_node.store import Store
from kvorum_raft.errors import NotLeader, RaftError, UnknownOutcome
from kvorum_raft.seams import Applied, Member, Status

START_MS = 1_700_000_000_000


def filled(folder: Path, values: Iterable[bytes]) -> Store:
    """A store with so many rows, whose keys are their numbers."""
    store = Store.open(folder, durable=False)
    batch = pb.Batch(data_version=1)
    group = batch.commands.add().writes
    for number, value in enumerate(values):
        op = pb.AtomicWrite()
        op.mutations.add(key=b"\x02%04d\x00" % number, type=1, value=value, encoding=3)
        group.writes.add(seq=number + 1, op=op.SerializeToString())
    store.apply_now(1, 1, batch.SerializeToString())
    return store


class VirtualTimers:
    """`kvorum_node.timers.Timers` in which time passes only by `advance`."""

    class Handle:
        def __init__(self) -> None:
            self.cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, VirtualTimers.Handle, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        handle = self.Handle()
        heapq.heappush(self._heap, (self._now + max(0.0, delay), next(self._order), handle, callback, args))
        return handle

    def advance(self, seconds: float) -> None:
        """Let time pass; everything that is due runs at its own moment."""
        end = self._now + seconds
        while self._heap and self._heap[0][0] <= end:
            at, _, handle, callback, args = heapq.heappop(self._heap)
            self._now = max(self._now, at)
            if not handle.cancelled:
                callback(*args)
        self._now = end

    def settle(self) -> None:
        """Run what is due now, and entries on their way."""
        self.advance(0.05)


class FakeFuture:
    """As much of a future as the proposer uses; its callbacks come in a later turn, as asyncio's do."""

    def __init__(self, timers: VirtualTimers) -> None:
        self._timers = timers
        self._callbacks: list[Callable[[Any], None]] = []
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        if self._done:
            return
        self._done, self._result, self._error = True, result, error
        for callback in self._callbacks:
            self._timers.call_soon(callback, self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result


class FakeConsensus:
    """Commits each entry after `latency`, or holds entries while `held`. Time is the timers'."""

    def __init__(self, machine: Any, timers: VirtualTimers, *, latency: float = 0.001) -> None:
        self.machine = machine
        self.timers = timers
        self.latency = latency
        self.held = False
        self.jump_ms = 0
        """By how much an operator has set the cluster's time ahead."""
        self.leading = True
        self.unapplied = 0
        """Entries that are committed and not applied."""
        self.known_leader: Member | None = Member("n1", "n1:7403", "n1:7401")
        self.refuse_with: RaftError | None = None
        self.payloads: list[bytes] = []
        self._waiting: list[tuple[bytes, FakeFuture]] = []
        self._applied: list[Callable[[Applied], None]] = []
        self._leadership: list[Callable[[bool], None]] = []
        self._installed: list[Callable[[int], None]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def propose(self, payload: bytes) -> Any:
        if not self.leading:
            raise NotLeader("not the leader")
        if self.refuse_with is not None:
            raise self.refuse_with
        self.payloads.append(payload)
        future = FakeFuture(self.timers)
        self._waiting.append((payload, future))
        if not self.held:
            self.timers.call_later(self.latency, self._commit_one)
        return future

    def release(self) -> None:
        """Commit what was held, and hold no more."""
        self.held = False
        for _ in list(self._waiting):
            self._commit_one()

    def fail_waiting(self, error: RaftError | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            future.resolve(None, error or UnknownOutcome("lost"))

    def depose(self, leader: Member | None = None) -> None:
        """Another node leads from now on (or nobody)."""
        self.leading = False
        self.known_leader = leader
        self.fail_waiting()
        self._tell()

    def elect(self) -> None:
        self.leading = True
        self.known_leader = Member("n1", "n1:7403", "n1:7401")
        self._tell()

    def _tell(self) -> None:
        for callback in self._leadership:
            callback(self.leading)

    def _commit_one(self) -> None:
        if not self._waiting or self.held:
            return
        payload, future = self._waiting.pop(0)
        self.apply(payload, future)

    def apply(self, payload: bytes, future: FakeFuture | None = None) -> Any:
        """Apply an entry, also one that another leader proposed."""
        index, time_ms = self.machine.applied_index + 1, self.now_ms()
        applied = Applied(index, time_ms, self.machine.apply_now(index, time_ms, payload))
        for callback in self._applied:
            callback(applied)
        if future is not None:
            future.resolve(applied)
        return applied.result

    async def read_index(self) -> int:
        return int(self.machine.applied_index)

    def now_ms(self) -> int:
        # Rounded down, as a clock that is read in between two milliseconds.
        return START_MS + self.jump_ms + int(self.timers.time() * 1000 + 1e-6)

    @property
    def is_leader(self) -> bool:
        return self.leading

    @property
    def leader(self) -> Member | None:
        return self.known_leader

    @property
    def commit_index(self) -> int:
        return int(self.machine.applied_index) + self.unapplied

    def status(self) -> Status:
        index = self.machine.applied_index
        return Status("n1", b"", "leader" if self.leading else "follower", 1, self.leader, index, index, index, index)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        self._leadership.append(callback)

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        self._applied.append(callback)

    def on_installed(self, callback: Callable[[int], None]) -> None:
        self._installed.append(callback)

    def install(self, *payloads: bytes) -> None:
        """The state jumps ahead by these entries, as a snapshot does: nobody hears of any of them."""
        for payload in payloads:
            self.machine.apply_now(self.machine.applied_index + 1, self.now_ms(), payload)
        for callback in self._installed:
            callback(self.machine.applied_index)


class InlineLists(ListReader):
    """The reader of lists with a thread that is none: each slice is a turn of the loop."""

    def __init__(self, store: Store, timers: VirtualTimers) -> None:
        super().__init__(store)
        self._turns = timers
        self.slices = 0

    def start(self) -> None: ...

    def begin(self, job: ReadJob) -> bool:
        self._open[job] = None
        self._turns.call_soon(self._slice, job)
        return True

    def resume(self, job: ReadJob) -> None:
        if job.idle:
            job.idle = False
            self._turns.call_soon(self._slice, job)

    def _slice(self, job: ReadJob) -> None:
        self.slices += 1
        part = job.step(self._store)
        if not part.more:
            job.release()
        self._stepped(job, part)


class UpToDate:
    """A barrier before a state that is always up to date; the real one needs a loop."""

    def wait(self, passed: Callable[[RaftError | None], None]) -> None:
        passed(None)


class Node:
    """A service over a real store and a fake consensus, in virtual time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.timers = VirtualTimers()
        self.store = Store.open(folder, durable=False)
        self.consensus = FakeConsensus(self.store, self.timers)
        self.lists = InlineLists(self.store, self.timers)
        self.service = NodeService(
            self.store, self.consensus, self.timers, ServiceSettings(**settings), lists=self.lists
        )
        self.service.calls._barrier = UpToDate()  # type: ignore[assignment]
        self.service._started = True
        self.service._leadership(True)
        self.seq = itertools.count(1)

    def close(self) -> None:
        self.store.close()

    def open_session(self) -> bytes:
        found: list[bytes] = []
        self.service.open_session("test", lambda session, error: found.append(session))
        self.timers.settle()
        assert len(found[0]) == 10
        self.service.connected(found[0])
        return found[0]

    def write(self, op: pb.AtomicWrite, session: bytes = b"", *, settle: bool = True) -> list[pb.WriteResult]:
        """Commit one write; the list gets its result when it is there."""
        results: list[pb.WriteResult] = []
        group = pb.WriteGroup(session=session)
        group.writes.add(seq=next(self.seq), op=op.SerializeToString())
        self.service.write(group, lambda answer: results.extend(answer.results))
        if settle:
            self.timers.settle()
        return results

    def enqueue(
        self, payload: bytes = b"m", *, queue: str = "q", delay_ms: int = 0, settle: bool = True, **more: Any
    ) -> None:
        op = pb.AtomicWrite()
        op.enqueues.add(queue=queue, payload=payload, delay_ms=delay_ms, **more)
        self.write(op, settle=settle)

    def settle_message(
        self, delivery: pb.Delivery, kind: int = pb.SETTLE_KIND_ACK, session: bytes = b"", **more: Any
    ) -> int:
        op = pb.AtomicWrite()
        op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind, **more)
        return self.write(op, session)[0].outcome

    def call(self, **call: Any) -> pb.QueueReply:
        """Make a call about queues; the answer must come in time."""
        replies: list[pb.QueueReply] = []
        self.service.calls.submit(pb.QueueCall(id=next(self.seq), **call), replies.append)
        self.timers.settle()
        (reply,) = replies
        return reply

    def define(self, queue: str = "q", **policy: Any) -> None:
        reply = self.call(define=pb.DefineQueue(name=queue, policy=pb.QueuePolicy(**policy).SerializeToString()))
        assert reply.status == pb.READ_STATUS_OK, reply.message

    def queue(self, name: str = "q", **more: Any) -> pb.QueueInfo:
        """How a queue stands."""
        reply = self.call(queues=pb.ListQueues(name=name, one=True, **more))
        return reply.queues[0] if reply.queues else pb.QueueInfo()


class Receiver:
    """A consumer that keeps what it gets, with the moment of it."""

    def __init__(
        self,
        node: Node,
        session: bytes,
        *,
        number: int = 1,
        queue: str = "q",
        credits: int = 10,
        concurrency: int = 1,
        held: Any = (),
        take: bool = False,
        expiring: bool = False,
    ) -> None:
        self.node = node
        self.session = session
        self.got: list[pb.Delivery] = []
        self.times: list[float] = []
        request = pb.StartConsumer(
            id=number,
            queue=queue,
            credits=credits,
            concurrency=concurrency,
            held=held,
            take=take,
            expiring=expiring,
        )
        self.consumer = node.service.delivery.start_consumer(session, request, self._take)
        node.timers.settle()

    def _take(self, delivery: pb.Delivery) -> None:
        self.got.append(delivery)
        self.times.append(self.node.timers.time())

    def started(self, *deliveries: pb.Delivery) -> None:
        self.node.service.delivery.started(
            self.session, self.consumer.holder[1], [delivery.lease_id for delivery in deliveries]
        )

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.got]

    def die(self) -> None:
        """The consumer's process is gone: its connection ends without a goodbye."""
        self.node.service.delivery.stop_consumer(self.consumer)
        self.node.service.disconnected(self.session)
