"""The cluster backend: what callers see. The keeper does the talking, see `kvorum.cluster.keeper`.

The parts that know rules (`writes`, `reads`, `points`, `calls`, `watches`, `consumers`, `route`) do no I/O. Everything
runs on one event loop. An operation costs a future and an element in a bucket of deadlines, a read of one key not even
that; it has no task and no timer of its own.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum.backend import WriteOutcome
from kvorum.cluster.calls import Calls, PendingCall
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.cluster.consumers import ClusterConsumer, Consumers
from kvorum.cluster.counters import Counters
from kvorum.cluster.deadlines import WIDTH, Deadlines
from kvorum.cluster.heartbeat import Heartbeat, Wanted
from kvorum.cluster.keeper import HELLO_TIMEOUT, Keeper, closed_read
from kvorum.cluster.points import Batch, Points
from kvorum.cluster.reads import PendingRead, Reads, RowPromise
from kvorum.cluster.returns import Returns
from kvorum.cluster.route import Address, Route, name
from kvorum.cluster.traces import Submit, Traces
from kvorum.cluster.under_way import UnderWay
from kvorum.cluster.watches import Watches
from kvorum.cluster.writes import PendingWrite, Writes, refusal
from kvorum.durations import shown_seconds
from kvorum.link import wrong_loop
from kvorum.process import THIS
from kvorum.tls import ChannelTls

REST_AFTER: Final = 5.0
"""Seconds for which the heartbeat goes on when nothing depends on it any more: who asks for a batch of messages again
and again has a consumer each time, and a thread and a connection for each would be most of the work."""


class ClusterBackend:
    """`kvorum.backend.Backend` over a cluster. Make one with `kvorum.cluster.connect`.

    `connect` makes the connection to a node.
    """

    remote = True

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        token: str | None = None,
        tls: ChannelTls | None = None,
        rng: random.Random | None = None,
        connect: Callable[..., Connection] = Connection,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._pid = THIS.pid
        self._thread = threading.get_ident()
        self._counters = Counters()
        self._writes = Writes(self._counters)
        self._reads = Reads(self._counters)
        self._points = Points(
            self._counters,
            began=self._batch_began,
            ended=self._batch_ended,
            wake=self._wake,
            otherwise=self._read_singly,
        )
        self._calls = Calls(self._counters)
        self._watches = Watches(loop)
        self._returns = Returns(loop, self.write, lambda: self._closed)
        self._consumers = Consumers(self._counters, self._wake, self._returns.give_back, self._keep_leases, loop.time)
        self._submit_write: Submit[PendingWrite] = self._writes.submit
        self._submit_read: Submit[PendingRead] = self._reads.submit
        self._submit_call: Submit[PendingCall] = self._calls.submit
        self._write_deadlines: Deadlines[PendingWrite] = Deadlines(loop, self._write_expired)
        self._read_deadlines: Deadlines[PendingRead] = Deadlines(loop, self._read_expired)
        self._batch_deadlines: Deadlines[Batch] = Deadlines(loop, self._batch_expired)
        self._buckets: dict[Batch, dict[Batch, None]] = {}
        """Where the deadlines of batches are."""
        self._call_deadlines: Deadlines[PendingCall] = Deadlines(loop, self._call_expired)
        self._closed = False
        rng = rng or random.Random()
        self._route = Route(addresses, loop.time, rng)
        client_name = f"kvorum-python/{__version__} pid {self._pid}"
        self._heartbeat = Heartbeat(
            loop,
            addresses,
            client_name=client_name,
            token=token or "",
            tls=tls,
            place=self._route.known_place,
        )
        self._rest_timer: asyncio.TimerHandle | None = None
        self._heartbeat_fits = connect is Connection
        """The connections are real ones."""
        self._under_way = UnderWay(self._writes, self._reads, self._points, self._calls, self._watches, self._consumers)
        self._token = token or ""
        self._keeper = Keeper(
            loop,
            self._route,
            self._under_way,
            self._counters,
            rng,
            client_name=client_name,
            token=token or "",
            tls=tls,
            connect=connect,
            led=self._keep_leases,
        )

    def carry(self, current: Callable[[], str]) -> None:
        """See `Carrier.carry`; once, before the first call."""
        traces = Traces(current)
        self._submit_write = traces.noting_writes(self._writes.submit)
        self._submit_read = traces.noting_reads(self._reads.submit)
        self._submit_call = traces.noting_calls(self._calls.submit)
        self._keeper.trace(traces)

    @property
    def carries(self) -> bool:
        """See `Carrier.carries`."""
        traces = self._keeper.traces
        return traces is not None and traces.wanted

    async def open(self, timeout: float) -> None:
        """Start, and wait until a node answers. Errors: ConnectFailed, WrongCluster."""
        begun = self._loop.time()
        # Each address gets its turn, even when the first ones are frozen.
        self._keeper.hello_timeout = min(HELLO_TIMEOUT, max(0.1, timeout / len(self._route.addresses) * 0.8))
        self._keeper.start()
        try:
            async with asyncio.timeout(timeout - min(0.05, timeout / 10)):
                while not self._keeper.connected.is_set() and not self._route.hopeless:
                    self._keeper.changed.clear()
                    await self._keeper.changed.wait()
        except TimeoutError:
            pass
        except BaseException:
            await self.close()
            raise
        self._keeper.hello_timeout = HELLO_TIMEOUT
        if self._keeper.connected.is_set():
            return
        problems = self._route.problems()
        refusals = self._route.refusals() if self._route.hopeless else ""
        await self.close()
        if refusals:
            raise errors.WrongCluster(refusals)
        tried = problems or "; ".join(f"{name(address)}: not answered yet" for address in self._route.addresses)
        raise errors.ConnectFailed(f"no node answered within {shown_seconds(self._loop.time() - begun)}: {tried}")

    # ---- the Backend seam

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        """See `Backend.write`."""
        self._check_usable()
        loop = self._loop
        promise: asyncio.Future[WriteOutcome] = loop.create_future()
        pending = self._submit_write(op, promise, timeout)
        bucket = self._write_deadlines.add(loop.time() + timeout, pending)
        self._keeper.wake()
        try:
            return await promise
        except asyncio.CancelledError:
            _mark_retrieved(promise)
            raise
        finally:
            bucket.pop(pending, None)
            self._writes.forget(pending)
            del promise, pending  # an error holds this frame, and they hold the error

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        """See `Backend.read`. Reads that are not strong are never older than what this client has seen."""
        self._check_usable()
        promise: asyncio.Future[pb.ReadResult] = self._loop.create_future()
        if read.consistency != pb.CONSISTENCY_STRONG and read.min_versionstamp < self._keeper.newest:
            read.min_versionstamp = self._keeper.newest
        pending = self._submit_read(read, promise, timeout)
        bucket = self._read_deadlines.add(self._loop.time() + timeout, pending)
        self._wake()
        try:
            return await promise
        except asyncio.CancelledError:
            _mark_retrieved(promise)
            raise
        finally:
            bucket.pop(pending, None)
            self._reads.forget(pending)
            del promise, pending  # an error holds this frame, and they hold the error

    def point(
        self, key: bytes, consistency: "pb.Consistency", max_age_ms: int, *, timeout: float
    ) -> "asyncio.Future[bytes]":
        """See `PointReader.point`; as fresh as `read`."""
        self._check_usable()
        loop = self._loop
        promise: asyncio.Future[bytes] = loop.create_future()
        moment = int((loop.time() + timeout) / WIDTH)
        self._points.submit(key, promise, moment, timeout, consistency, max_age_ms)
        return promise

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        """See `Backend.queue_call`."""
        self._check_usable()
        promise: asyncio.Future[pb.QueueReply] = self._loop.create_future()
        pending = self._submit_call(call, promise, timeout)
        bucket = self._call_deadlines.add(self._loop.time() + timeout, pending)
        self._wake()
        try:
            return await promise
        except asyncio.CancelledError:
            _mark_retrieved(promise)
            raise
        finally:
            bucket.pop(pending, None)
            self._calls.forget(pending)
            del promise, pending  # an error holds this frame, and they hold the error

    async def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        """See `Backend.watch`. Errors while iterating: InvalidArgument, Overloaded, WrongCluster, Closed."""
        self._check_usable()
        watch = self._watches.start(keys)
        self._wake()
        try:
            while True:
                yield await watch.next()
        finally:
            self._watches.stop(watch)
            self._wake()

    async def watch_range(
        self, start: bytes, end: bytes, *, since: bytes, keys_only: bool
    ) -> AsyncIterator[pb.WatchEvent]:
        """See `Backend.watch_range`. Errors while iterating: Compacted, InvalidArgument, Overloaded, WrongCluster,
        Closed."""
        self._check_usable()
        watch = self._watches.start_range((start, end), since, keys_only=keys_only)
        self._wake()
        try:
            while True:
                event = await watch.next()
                if self._watches.resume(watch):
                    self._wake()
                yield event
        finally:
            self._watches.stop(watch)
            self._wake()

    async def consume(
        self,
        queue: str,
        *,
        credits: int,
        concurrency: int,
        deliver: Callable[[pb.Delivery], None],
        failed: Callable[[errors.KvorumError], None] | None = None,
        take: bool = False,
        expiring: bool = False,
    ) -> ClusterConsumer:
        """See `Backend.consume`. Registered when a connection and a session are there; does not wait for them.
        `failed` is called with WrongCluster, or Closed."""
        self._check_usable()
        if not 0 < credits <= limits.MAX_CREDITS:
            raise errors.LimitExceeded("MAX_CREDITS", limits.MAX_CREDITS, credits)
        return self._consumers.start(queue, credits, concurrency, deliver, failed, take=take, expiring=expiring)

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        """The status of the connected node. Errors: DeadlineExceeded, Unavailable, Closed."""
        self._check_usable()
        deadline = self._loop.time() + timeout
        self._wake()
        try:
            async with asyncio.timeout(timeout):
                await self._keeper.connected.wait()
        except TimeoutError:
            within = f"no node answered within {shown_seconds(timeout)}"
            raise errors.DeadlineExceeded(f"{within}{self._keeper.why()}") from None
        self._check_usable()
        connection = self._keeper.connection
        assert connection is not None
        try:
            return await connection.status(deadline - self._loop.time(), self._token)
        except NodeFailed as failure:
            self._check_usable()
            raise errors.Unavailable(f"{name(connection.address)}: {failure.problem}") from failure

    def statistics(self) -> dict[str, float]:
        """Counts since opening; see `kvorum.cluster.counters`."""
        return self._counters.figures()

    async def close(self) -> None:
        """See `Backend.close`. Does nothing in a forked process: the connection is the parent's."""
        if THIS.pid != self._pid:
            return
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()
        self._closed = True
        self._under_way.end("this client is closed", errors.Closed, closed_read)
        self._write_deadlines.close()
        self._read_deadlines.close()
        self._batch_deadlines.close()
        self._call_deadlines.close()
        self._rest()
        await self._keeper.stop()
        await self._heartbeat.close()
        await self._returns.ended()

    # ---- small things

    def _keep_leases(self) -> None:
        """Have the heartbeat hold the session while anything depends on it."""
        if self._closed or not self._heartbeat_fits:
            return
        if not self._consumers.leasing:
            if self._rest_timer is None:
                self._rest_timer = self._loop.call_later(REST_AFTER, self._rest)
            return
        self._forget_rest()
        leader, session = self._keeper.leading, self._writes.session_id
        if leader is not None and session:
            self._heartbeat.beat(Wanted(session, leader, self._keeper.cluster_id))

    def _rest(self) -> None:
        self._forget_rest()
        self._heartbeat.rest()

    def _forget_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _wake(self) -> None:
        self._keeper.wake()

    def _check_usable(self) -> None:
        if THIS.pid != self._pid:
            raise errors.Closed(
                f"this client was opened by process {self._pid} and does not survive a fork: open another one here"
            )
        if self._closed or self._keeper.stopped:
            raise errors.Closed
        # The running loop is asked for only if this cannot be it: with Python 3.11 that is a system call, which takes
        # as long as all the rest of this, 0.4 µs.
        if threading.get_ident() == self._thread and self._loop.is_running():
            return
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()

    def _write_expired(self, pending: PendingWrite) -> None:
        within = f"no answer within {shown_seconds(pending.timeout)}"
        last = pending.last_refusal
        definite: errors.KvorumError
        if last is not None and last.outcome in (pb.OUTCOME_OVERLOADED, pb.OUTCOME_NO_SPACE):
            definite = refusal(last)
        else:
            definite = errors.DeadlineExceeded(f"{within}{self._keeper.why()}; not applied")
        self._writes.give_up(pending, within, definite)

    def _read_expired(self, pending: PendingRead) -> None:
        self._reads.give_up(pending, self._too_late(pending))

    def _too_late(self, asked: PendingRead | Batch) -> errors.DeadlineExceeded:
        last = f" (last answer: {asked.last_refusal})" if asked.last_refusal else self._keeper.why()
        return errors.DeadlineExceeded(f"no answer within {shown_seconds(asked.timeout)}{last}")

    def _batch_began(self, batch: Batch) -> None:
        self._buckets[batch] = self._batch_deadlines.add((batch.moment + 0.5) * WIDTH, batch)

    def _batch_ended(self, batch: Batch) -> None:
        self._buckets.pop(batch).pop(batch, None)

    def _batch_expired(self, batch: Batch) -> None:
        self._points.expired(batch, partial(self._too_late, batch))

    def _read_singly(self, batch: Batch) -> None:
        """The connected node is older than `pb.PointReads`, or may not answer all of them."""
        self._wake()
        for key, promise in zip(batch.keys, batch.promises, strict=True):
            if promise.done():
                continue
            read = pb.Read(keys=(key,), consistency=batch.consistency, max_age_ms=batch.max_age_ms)
            if batch.consistency:
                read.min_versionstamp = self._keeper.newest
            try:
                pending = self._reads.submit(read, RowPromise(promise), batch.timeout)
            except errors.Overloaded as error:
                promise.set_exception(error)
            else:
                self._read_deadlines.add((batch.moment + 0.5) * WIDTH, pending)

    def _call_expired(self, pending: PendingCall) -> None:
        last = f" (last answer: {pending.last_refusal})" if pending.last_refusal else self._keeper.why()
        text = f"no answer within {shown_seconds(pending.timeout)}{last}"
        kind = errors.Overloaded if pending.overloaded else errors.DeadlineExceeded
        self._calls.give_up(pending, kind(text))


def _mark_retrieved(promise: "asyncio.Future[Any]") -> None:
    """A caller that is cancelled in the very turn in which its error came must not leave a log line about it."""
    if promise.done() and not promise.cancelled():
        promise.exception()
