"""A node's own `Backend`: what its HTTP port speaks to, and nothing else (rules J1).

Reads and watches are served from this node's state after ReadIndex, so any node answers them. Writes go through the
client library's session client, connected to this node first and to the leader as soon as that is known: it numbers
them, repeats them under the same number to each new leader, and folds the outcomes (rules C and H1). So a write is
applied once however often the leader dies meanwhile, and "unknown" is said only if nobody can know.

While nobody leads, everything is held: clients of KV Connect do not fail over by themselves.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Consumer, WriteOutcome
from kvorum.cluster import Address, ClusterBackend
from kvorum.tracing import current_traceparent

from .access import INSIDER, Caller
from .range_reader import RangeReader
from .read_jobs import HTTP, ListJob
from .reads import PendingRead
from .service import NodeService
from .store.rights import Rights, for_keys

FIRST_PAUSE: Final = 0.02
MAX_PAUSE: Final = 0.25
"""Seconds before a refused read is tried again; sooner if the leader changes."""
WOKEN: Final = 8
"""Watchers woken in one turn of the loop: each builds and sends a frame, 0.1 ms and more."""
MAX_TOKENS: Final = 64
"""Tokens with which is written through one node at a time."""
CONNECT_TIMEOUT: Final = 2.0
"""Seconds that one round of connecting the session client may take."""


class Front:
    """`kvorum.backend.Backend`. `addresses` are where the session client begins: this node's own suffices, since it
    tells where the leader is."""

    def __init__(
        self,
        service: NodeService,
        addresses: Sequence[Address],
        *,
        connect: Callable[..., ClusterBackend] = ClusterBackend,
        token: str = "",
    ) -> None:
        """`token`: whose writes these are; empty: this node's."""
        self._service = service
        self._addresses = list(addresses)
        self._connect = connect
        self._token = token
        self._others: dict[str, Front] = {}
        """Of other tokens, the one that was used last last."""
        self._writing = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._client: ClusterBackend | None = None
        self._opening: asyncio.Task[ClusterBackend] | None = None
        self._closed = False
        self._to_wake: deque[asyncio.Event] = deque()
        self._waking = False
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, and replaced, when the leader changes."""
        self._stop_listening = service.on_leader(self._tell)

    # ---- the Backend seam

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        """See `Backend.read`."""
        whole = pb.ReadResult()

        def take(part: pb.ReadResult | None) -> None:
            if part is None:
                whole.Clear()
                return
            if not whole.ranges:
                whole.ranges.extend(pb.RangeResult() for _ in part.ranges)
            for have, more in zip(whole.ranges, part.ranges, strict=True):
                have.entries.extend(more.entries)
                have.count += more.count

        last = await self.read_slices(read, take, timeout=timeout)
        last.ClearField("ranges")
        whole.MergeFrom(last)
        return whole

    async def read_slices(
        self, read: pb.Read, take: Callable[[pb.ReadResult | None], None], *, timeout: float
    ) -> pb.ReadResult:
        """The same answer in slices, which are to be put together: their sizes are bounded, that of a list is not.

        `take` gets each slice, the last included, and None when the read begins anew; what it raises of `kvorum.errors`
        ends the read. Returns the last slice, which has all but the rows of the others.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pause, last = FIRST_PAUSE, ""
        while True:
            self._check_open()
            news = self._news
            answer = await self._try_to_read(read, deadline, last, take)
            if answer.status == pb.READ_STATUS_OK:
                return answer
            if answer.status == pb.READ_STATUS_INVALID:
                raise errors.InvalidArgument(answer.message)
            last = answer.message
            take(None)
            if not await self._pause(news, min(pause, deadline - loop.time())):
                raise errors.Unavailable(f"no answer within {timeout:g} s: {last}")
            pause = min(MAX_PAUSE, pause * 2)

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        """See `Backend.write`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            client = self._client or await self._opened(deadline - loop.time())
            self._writing += 1
            try:
                return await client.write(op, timeout=max(0.001, deadline - loop.time()))
            except errors.Closed as error:
                # Only a fault of its own ends the session client before this object does: make another one.
                if self._closed or error.outcome != "not applied" or client is not self._client:
                    raise
                self._client = None
            finally:
                self._writing -= 1

    async def watch(self, keys: Sequence[bytes], caller: Caller = INSIDER) -> AsyncIterator[Sequence[pb.KvEntry]]:
        """See `Backend.watch`. Ends with Unavailable when this node loses its leader for long or stops: the watcher
        starts again, here or elsewhere, and misses intermediate states only. Until its first snapshot it is held. Ends
        with Unauthenticated or PermissionDenied when the caller may not read the keys any more."""
        self._check_open()
        if len(keys) > limits.MAX_WATCHED_KEYS:
            raise errors.LimitExceeded("MAX_WATCHED_KEYS", limits.MAX_WATCHED_KEYS, len(keys))
        service, wake = self._service, asyncio.Event()
        missing = partial(for_keys, keys=keys)
        stop_listening = service.access.listen(wake.set) if caller is not INSIDER else None
        try:
            async with aclosing(self._watch(keys, wake, lambda: self._judge(caller, missing))) as snapshots:
                async for entries in snapshots:
                    yield entries
        finally:
            if stop_listening is not None:
                stop_listening()

    async def _watch(
        self, keys: Sequence[bytes], wake: asyncio.Event, check: Callable[[], None]
    ) -> AsyncGenerator[Sequence[pb.KvEntry], None]:
        service = self._service
        while True:
            news = self._news
            unreadable = service.unreadable()
            if not unreadable:
                watch = service.watch(list(keys), lambda _: self._wake(wake))
                try:
                    while not watch.ended:
                        await wake.wait()
                        wake.clear()
                        check()
                        if watch.dirty:
                            yield service.hub.take(watch)[0]
                    if watch.open:
                        raise errors.Unavailable(watch.ended)
                finally:
                    service.hub.remove(watch)
            self._check_open()
            await self._pause(news, MAX_PAUSE)

    async def watch_range(
        self, start: bytes, end: bytes, *, since: bytes, keys_only: bool
    ) -> AsyncIterator[pb.WatchEvent]:
        """See `Backend.watch_range`; as `watch`, it ends with Unavailable when this node loses its leader or stops."""
        self._check_open()
        reader = RangeReader(self._service, (start, end), since, keys_only=keys_only, check=self._check_open)
        try:
            while True:
                yield await reader.next()
        finally:
            reader.close()

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
    ) -> Consumer:
        """See `Backend.consume`; `failed` as in the cluster's client."""
        client = await self._opened(CONNECT_TIMEOUT)
        return await client.consume(
            queue,
            credits=credits,
            concurrency=concurrency,
            deliver=deliver,
            failed=failed,
            take=take,
            expiring=expiring,
        )

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        """See `Backend.queue_call`."""
        client = await self._opened(timeout)
        return await client.queue_call(call, timeout=timeout)

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        """See `Backend.status`."""
        client = await self._opened(timeout)
        return await client.status(timeout=timeout)

    async def close(self) -> None:
        """See `Backend.close`."""
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._tell()
        for other in self._others.values():
            await other.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._client is not None:
            await self._client.close()

    # ---- beyond it

    def of(self, token: str) -> "Front":
        """The same for the writes of a token; empty: for this node's."""
        if not token or token == self._token:
            return self
        front = self._others.pop(token, None)
        if front is None:
            self._make_room()
            front = Front(self._service, self._addresses, connect=self._connect, token=token)
        self._others[token] = front
        return front

    def _make_room(self) -> None:
        """Each has a session and a connection to the leader: those that were not used for longest give way."""
        idle = [token for token, other in self._others.items() if not other._writing and other._opening is None]
        for token in idle[: max(0, len(self._others) + 1 - MAX_TOKENS)]:
            task = asyncio.get_running_loop().create_task(self._others.pop(token).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if len(self._others) >= 2 * MAX_TOKENS:
            raise errors.Overloaded(f"more than {2 * MAX_TOKENS} tokens are being written with on this node")

    def check(self, caller: Caller, missing: Callable[[Rights], str]) -> None:
        """See `Access.check`; Overloaded if its token has done as much as it may."""
        over = self._service.access.over(caller, 1)
        if over:
            raise errors.Overloaded(over)
        self._judge(caller, missing)

    def _judge(self, caller: Caller, missing: Callable[[Rights], str]) -> None:
        self._service.access.check(caller, missing)

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; empty while the cluster is being formed."""
        return self._service.store.cluster_id

    def now_ms(self) -> int:
        """The cluster's time: that of the newest entry, advanced by the monotonic clock."""
        return self._service.consensus.now_ms()

    async def leader_known(self, timeout: float) -> bool:
        """Wait until this node is in a cluster and knows its leader; False if it does not within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not (self.cluster_id and self._service.leader.node_id):
            if self._closed or not await self._pause(self._news, min(MAX_PAUSE, deadline - loop.time())):
                return False
        return True

    def statistics(self) -> dict[str, float]:
        """Of the session client."""
        if self._client is None:
            return {}
        return {f"front_{name}": value for name, value in self._client.statistics().items()}

    # ---- inside

    def _wake(self, watcher: asyncio.Event) -> None:
        """A thousand watchers of one key must not have the loop all at once."""
        self._to_wake.append(watcher)
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN, len(self._to_wake))):
            self._to_wake.popleft().set()
        self._waking = bool(self._to_wake)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.Closed("this node stops")

    async def _opened(self, timeout: float) -> ClusterBackend:
        """The session client; connects it when it is first needed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            self._check_open()
            if self._client is not None:
                return self._client
            if self._opening is None:
                self._opening = loop.create_task(self._open())
            opening = self._opening
            await asyncio.wait([opening], timeout=max(0.0, deadline - loop.time()))
            if not opening.done():
                raise errors.Unavailable(f"no node answered within {timeout:g} s; not applied")
            if self._opening is opening:
                self._opening = None
            if opening.cancelled():
                continue
            error = opening.exception()
            if error is None:
                self._client = opening.result()
            elif not isinstance(error, errors.ConnectFailed | errors.WrongCluster):
                raise error
            elif not await self._pause(self._news, min(MAX_PAUSE, deadline - loop.time())):
                raise errors.Unavailable(f"{error}; not applied")

    async def _open(self) -> ClusterBackend:
        client = self._connect(self._addresses, token=self._token) if self._token else self._connect(self._addresses)
        if self._service.tracing is not None:
            client.carry(current_traceparent)
        await client.open(CONNECT_TIMEOUT)
        return client

    async def _try_to_read(
        self, read: pb.Read, deadline: float, last: str, take: Callable[[pb.ReadResult | None], None]
    ) -> pb.ReadResult:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[pb.ReadResult] = loop.create_future()
        item = PendingRead(read, partial(_resolve, future), partial(_gather, future, take))
        item.owner = HTTP
        self._service.reads.submit([item])
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise errors.DeadlineExceeded(f"no answer in time{f': {last}' if last else ''}") from None
        finally:
            if item.job is not None:
                item.job.cancel()
            del future, item  # an error holds this frame, and they hold the error

    async def _pause(self, news: "asyncio.Future[None]", seconds: float) -> bool:
        """Wait for news of the leader, but no longer than this; False if there is no time left at all."""
        if seconds <= 0:
            return False
        await asyncio.wait([news], timeout=seconds)
        return True

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)


def _resolve(future: "asyncio.Future[pb.ReadResult]", answer: pb.ReadResult) -> None:
    if not future.done():
        future.set_result(answer)


def _gather(
    future: "asyncio.Future[pb.ReadResult]",
    take: Callable[[pb.ReadResult | None], None],
    job: ListJob,
    part: pb.ReadResult,
) -> None:
    """Hand the slices of a list on."""
    if future.done():
        job.cancel()
        return
    if part.status == pb.READ_STATUS_OK:
        try:
            take(part)
        except errors.KvorumError as error:
            # Without this frame, which holds the future and with it the error: all that was read so far would stay
            # until the collector of cycles comes by, which may be GiB later.
            future.set_exception(error.with_traceback(None))
            job.cancel()
            return
    if part.more:
        job.resume()
    else:
        future.set_result(part)
