"""The embedded database: the `Backend` of a folder in this process.

The same service as in a node, over a consensus of one. Nothing here deduplicates writes: a caller in the same process
hears the outcome, and after a fault of the disk nobody can. Writes that are made in the same turn of the loop become
one group, and groups that wait while the disk syncs become one transaction.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum.backend import QUESTIONS, WriteOutcome
from kvorum.entry import packed
from kvorum.link import wrong_loop
from kvorum_raft.errors import RaftError

from .access import INSIDER
from .admission import MAX_WEIGHT
from .local import LocalConsensus
from .queue import Consumer
from .range_reader import RangeReader
from .read_jobs import ListJob
from .reads import PendingRead
from .service import NodeService, ServiceSettings, settle_down
from .space import SpaceWatch, embedded_reserve
from .store import DEFAULT_MAP_SIZE, Store, StoreFault, check_queue_name

logger = logging.getLogger("kvorum.node")

SESSION = b""
"""The one session of an embedded database: this process."""
MAX_UNDER_WAY = 65_536
"""Writes that may wait at a time."""
MAX_GOODBYES = 8
"""Entries that closing waits for to give messages back; two do, unless the disk is full."""
MAX_INLINE_READS = 64
"""Reads of single keys that are answered without letting the loop turn: a program that reads until something has
changed must let it change."""

_TOKENS = frozenset(("put_token", "remove_token", "switch_auth", "tokens"))
"""Calls that a cluster only answers."""

_Promise = asyncio.Future[WriteOutcome]


async def open_embedded(
    path: str | Path | None,
    *,
    lease: float = limits.DEFAULT_LEASE / 1000,
    map_size: int = DEFAULT_MAP_SIZE,
) -> "EmbeddedBackend":
    """Open or create the database in folder `path`; None: a private one that is not synced, and removed at close.

    Each commit is durable when it is answered. Must be used on the event loop that opened it. `lease` is seconds,
    `map_size` the size in bytes that the database can never exceed.

    Errors: DatabaseLocked (the folder is open, here or in another process), DatabaseCorrupt, InvalidArgument, OSError.
    """
    private = None if path is not None else Path(tempfile.mkdtemp(prefix="kvorum-"))
    folder = private if private is not None else Path(str(path))
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"the name of a database's folder must be UTF-8, got {str(folder)!a}") from None
    if folder.exists() and not folder.is_dir():
        raise errors.InvalidArgument(f"{folder} is a file; an embedded database is a folder")
    if all((folder / name).is_dir() for name in ("raft", "state")):
        raise errors.InvalidArgument(f"{folder} is the folder of a cluster's node, not an embedded database")
    if (strange := _strange_content(folder)) is not None:
        raise errors.InvalidArgument(
            f"{folder} is no kvorum database, and holds other things ({strange}): name an empty folder, or a new one"
        )
    store: Store | None = None
    try:
        try:
            store = Store.open(folder, durable=private is None, map_size=map_size)
        except StoreFault as fault:
            raise errors.DatabaseCorrupt(str(fault)) from fault
        backend = EmbeddedBackend(store, folder, lease, private=private is not None)
        await backend.start()
    except BaseException:
        if store is not None:
            store.close()
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)
        raise
    return backend


def _strange_content(folder: Path) -> str | None:
    """A name in an existing folder that is certainly none of ours; None if it may become, or is, a database."""
    if not folder.is_dir():
        return None
    names = {entry.name for entry in folder.iterdir()}
    if names & {"FORMAT", "data.mdb"}:
        return None
    # A first start that was cut off leaves the lock and a draft; the root of a file system of its own has its own.
    return min(names - {"LOCK", "FORMAT.new", "lost+found"}, default=None)


class EmbeddedConsumer:
    """`kvorum.backend.Consumer`."""

    def __init__(self, service: NodeService, consumer: Consumer) -> None:
        self._service = service
        self._consumer = consumer

    def started(self, lease_id: bytes) -> None:
        session, number = self._consumer.holder
        self._service.delivery.started(session, number, (lease_id,))

    def settled(self, lease_id: bytes) -> None:
        """Credit comes back when the settle is applied, but for a lease that has lapsed before."""
        self._service.delivery.finished(lease_id)

    async def close(self) -> None:
        self._service.delivery.stop_consumer(self._consumer)


class EmbeddedBackend:
    """`kvorum.backend.Backend` and `PointReader`; made by `open_embedded`."""

    remote = False

    def __init__(self, store: Store, folder: Path, lease: float, *, private: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._folder = folder
        self._private = folder if private else None
        self._consensus = LocalConsensus(
            store, last_time_ms=store.applied_time_ms, check=store.next_expiry_ms, is_full=self._is_full
        )
        self._space = SpaceWatch(folder, self._loop, store.space, least=embedded_reserve, reusable=self._reusable)
        self._service = NodeService(
            store, self._consensus, self._loop, ServiceSettings(lease=lease), no_space=self._no_space
        )
        self._opened_at = time.monotonic()
        self._pending: list[tuple[bytes, _Promise]] = []
        self._promises: dict[int, _Promise] = {}
        self._next_seq = 1
        self._inline_reads = 0
        self._consumers = 0
        self._lists: set[asyncio.Future[pb.ReadResult]] = set()
        self._calls: set[asyncio.Future[pb.QueueReply]] = set()
        self._watchers: set[asyncio.Event] = set()
        self._readers: set[RangeReader] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        service = self._service
        self._space.start()
        await service.start()
        service.connected(SESSION)
        # Leases that are still in the state were those of a process that is gone for certain: no need to wait for them.
        complete: asyncio.Future[None] = self._loop.create_future()
        service.delivery.when_complete(partial(complete.set_result, None))
        await complete
        if service.delivery.lapse(SESSION):
            await self._commands_done()
        if not self._store.cluster_id:
            # Not a cluster's, but the same format: a folder has an identity from its first entry on.
            seed = pb.InitCluster(cluster_id=uuid.uuid4().bytes)
            await settle_down(service, pb.Command(init_cluster=seed))

    # ---- the Backend seam

    async def point(self, key: bytes, consistency: "pb.Consistency", max_age_ms: int, *, timeout: float) -> bytes:
        """See `PointReader.point`: a fifth of what `read` takes."""
        await self._let_others_go()
        row = self._service.reads.at_once(key) if key else None
        if row is None:
            return packed((await self.read(pb.Read(keys=(key,)), timeout=timeout)).entries[0])
        return row

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        """See `Backend.read`."""
        await self._let_others_go()
        # Everything that was answered is in the state: nothing to wait for, whatever consistency was asked for.
        read = _local(read)
        if not read.ranges:
            answers: list[pb.ReadResult] = []
            self._service.reads.submit([PendingRead(read, answers.append, _no_slices)])
            if not answers:
                self._service.reads.serve()
            return self._checked(answers[0])
        future: asyncio.Future[pb.ReadResult] = self._loop.create_future()
        item = PendingRead(read, partial(_resolve, future), partial(_collect, future, []))
        self._service.reads.submit([item])
        self._lists.add(future)
        try:
            async with asyncio.timeout(timeout):
                return self._checked(await future)
        except TimeoutError:
            raise errors.DeadlineExceeded(f"the list was not read within {timeout:g} s") from None
        finally:
            self._lists.discard(future)
            if item.job is not None:
                item.job.cancel()
            del future, item  # an error holds this frame, and they hold the error

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        self._check_open()
        if len(self._promises) + len(self._pending) >= MAX_UNDER_WAY:
            raise errors.Overloaded(f"{MAX_UNDER_WAY:,} writes are under way already")
        self._space.spend(len(op))
        promise: _Promise = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._send)
        self._pending.append((op, promise))
        timer = self._loop.call_later(timeout, _expire, promise, timeout)
        try:
            return await promise
        finally:
            timer.cancel()
            del promise, timer  # an error holds this frame, and they hold the error

    async def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        self._check_open()
        if len(keys) > limits.MAX_WATCHED_KEYS:
            raise errors.LimitExceeded("MAX_WATCHED_KEYS", limits.MAX_WATCHED_KEYS, len(keys))
        wake = asyncio.Event()
        self._watchers.add(wake)
        hub = self._service.hub
        watch = self._service.watch(list(keys), lambda _: wake.set())
        try:
            while True:
                await wake.wait()
                wake.clear()
                if self._closing is not None:
                    return
                if watch.ended:
                    self._check_open()
                    raise errors.Unavailable(watch.ended)
                if watch.dirty:
                    yield hub.take(watch)[0]
        finally:
            self._watchers.discard(wake)
            hub.remove(watch)

    async def watch_range(
        self, start: bytes, end: bytes, *, since: bytes, keys_only: bool
    ) -> AsyncIterator[pb.WatchEvent]:
        """See `Backend.watch_range`."""
        self._check_open()
        reader = RangeReader(self._service, (start, end), since, keys_only=keys_only, check=self._check_open)
        self._readers.add(reader)
        try:
            while True:
                yield await reader.next()
        finally:
            self._readers.discard(reader)
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
    ) -> EmbeddedConsumer:
        """See `Backend.consume`."""
        self._check_open()
        check_queue_name(queue)
        if not 1 <= credits <= limits.MAX_CREDITS:
            raise errors.LimitExceeded("MAX_CREDITS", limits.MAX_CREDITS, credits)
        self._consumers += 1
        request = pb.StartConsumer(
            id=self._consumers, queue=queue, credits=credits, concurrency=concurrency, take=take, expiring=expiring
        )
        return EmbeddedConsumer(self._service, self._service.delivery.start_consumer(SESSION, request, deliver))

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        """See `Backend.queue_call`."""
        self._check_open()
        if call.WhichOneof("call") in _TOKENS:
            raise errors.InvalidArgument("a database in a folder has no tokens: whoever opens it may do everything")
        future: asyncio.Future[pb.QueueReply] = self._loop.create_future()
        changes = call.WhichOneof("call") not in QUESTIONS
        under_way = self._service.calls.submit(call, partial(_resolve, future))
        self._calls.add(future)
        try:
            async with asyncio.timeout(timeout):
                reply = await future
        except TimeoutError:
            if changes:
                raise errors.OutcomeUnknown(f"not done within {timeout:g} s; it may be done in part") from None
            raise errors.DeadlineExceeded(f"not answered within {timeout:g} s") from None
        except errors.Closed as error:
            if changes:
                raise errors.OutcomeUnknown(f"{error}; the change may be made, or made in part") from None
            raise
        finally:
            self._calls.discard(future)
            under_way.cancel()
        if reply.status == pb.READ_STATUS_OK:
            return reply
        if reply.count:
            raise errors.OutcomeUnknown(f"{reply.message}; repeat the call to go on")
        self._check_open()
        if reply.status == pb.READ_STATUS_INVALID:
            raise errors.InvalidArgument(reply.message)
        if reply.status == pb.READ_STATUS_OVERLOADED:
            raise (errors.NoSpace if reply.message == self._no_space() else errors.Overloaded)(reply.message)
        if reply.message and reply.message == self._service.lists.damage:
            raise errors.DatabaseCorrupt(reply.message)
        raise errors.Unavailable(reply.message)

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        self._check_open()
        index = self._store.applied_index
        return pb.StatusResponse(
            node_id="local",
            cluster_id=self._store.cluster_id,
            role="local",
            commit_index=index,
            applied_index=index,
            last_log_index=index,
            durable_index=index,
            state_hash=self._store.state_hash(),
            version=__version__,
            uptime_ms=int((time.monotonic() - self._opened_at) * 1000),
            statistics=self._service.statistics(),
        )

    def statistics(self) -> dict[str, float]:
        return self._service.statistics()

    async def close(self) -> None:
        """See `Backend.close`. What was never started goes back to its queue."""
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    # ---- inside

    async def _let_others_go(self) -> None:
        self._check_open()
        self._inline_reads += 1
        if self._inline_reads >= MAX_INLINE_READS:
            self._inline_reads = 0
            await asyncio.sleep(0)
            self._check_open()

    def _check_open(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()
        if self._closing is not None:
            raise errors.Closed("this database is closed")
        if self._consensus.fault is not None:
            raise errors.DatabaseCorrupt(f"the database stopped and must be opened again: {self._consensus.fault}")

    def _checked(self, answer: pb.ReadResult) -> pb.ReadResult:
        if answer.status == pb.READ_STATUS_OK:
            return answer
        if answer.status == pb.READ_STATUS_INVALID:
            raise errors.InvalidArgument(answer.message)
        if answer.status == pb.READ_STATUS_OVERLOADED:
            raise errors.Overloaded(answer.message)
        if answer.message and answer.message in (self._service.reads.damage, self._service.lists.damage):
            raise errors.DatabaseCorrupt(answer.message)
        raise errors.Unavailable(answer.message)

    def _send(self) -> None:
        """Everything written in this turn of the loop, as groups."""
        pending, self._pending = self._pending, []
        for begin in range(0, len(pending), MAX_WEIGHT):
            group = pb.WriteGroup()
            add = group.writes.add
            for op, promise in pending[begin : begin + MAX_WEIGHT]:
                if promise.done():
                    continue  # its caller is gone, and it was never tried
                seq = self._next_seq
                self._next_seq = seq + 1
                self._promises[seq] = promise
                add(seq=seq, op=op)
            if group.writes:
                self._service.write(group, self._answered, self._service.access.stamp(INSIDER))

    def _answered(self, answer: pb.ResultGroup) -> None:
        prefix, promises = answer.stamp_prefix, self._promises
        for result in answer.results:
            promise = promises.pop(result.seq)
            if promise.done():
                continue
            if result.outcome == pb.OUTCOME_DONE:
                promise.set_result(WriteOutcome(result, prefix + result.number.to_bytes(2, "big")))
            elif 0 < result.outcome <= pb.OUTCOME_DENIED:
                promise.set_result(WriteOutcome(result, b""))
            else:
                promise.set_exception(self._problem(result))

    def _problem(self, result: pb.WriteResult) -> errors.KvorumError:
        if result.outcome == pb.OUTCOME_INVALID:
            return errors.InvalidArgument(result.message)
        if result.outcome == pb.OUTCOME_OVERLOADED:
            return errors.Overloaded(result.message)
        if result.outcome == pb.OUTCOME_NO_SPACE:
            return errors.NoSpace(result.message)
        if result.outcome == pb.OUTCOME_NOT_LEADER:
            return errors.Closed("the database was closed before this write was carried out")
        return errors.OutcomeUnknown(f"the database stopped while this write was under way: {result.message}")

    def _reusable(self) -> int:
        """The data file never shrinks, so what was deleted makes room in it and nowhere else."""
        return int(self._store.statistics()["used_bytes"]) - self._store.space().used_bytes

    def _is_full(self) -> bool:
        """In the writer thread. A look of its own: the loop may not have looked for a while."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize < embedded_reserve(found.f_blocks * found.f_frsize)

    def _no_space(self) -> str:
        problem = self._space.problem()
        return f"{problem}; free space, or delete keys" if problem else ""

    async def _close(self) -> None:
        service = self._service
        await self._give_back()
        self._send()
        service.disconnected(SESSION)
        self._space.stop()
        await service.stop()
        for future in self._lists:
            if not future.done():
                future.set_exception(errors.Closed("this database was closed", outcome=None))
        for call in self._calls:
            if not call.done():
                call.set_exception(errors.Closed("this database was closed", outcome=None))
        for wake in self._watchers:
            wake.set()
        for reader in self._readers:
            reader.wake()
        try:
            self._store.close()
        except OSError as error:
            # Everything that was answered is durable; only the note that it ended in order is missing.
            logger.warning("the database in %s was closed, but that could not be noted: %s", self._folder, error)
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)

    async def _give_back(self) -> None:
        """Say goodbye for all consumers, and wait until that is in the state."""
        delivery = self._service.delivery
        delivery.stop_session(SESSION)
        delivery.goodbye(SESSION)
        if not self._consumers:
            return
        with contextlib.suppress(RaftError):
            for _ in range(MAX_GOODBYES):
                # A Lease on its way may still be granted; it is given back as soon as that is known.
                if self._consensus.fault is not None:
                    break
                await self._commands_done()
                if not delivery.holds(SESSION):
                    break

    async def _commands_done(self) -> None:
        """Wait until every command proposed so far is in the state: they are applied in order, and so is an empty
        one.
        """
        await settle_down(self._service, pb.Command(release=pb.Release()))


def _local(read: pb.Read) -> pb.Read:
    own = pb.Read(keys=read.keys, ranges=read.ranges, with_expiry=read.with_expiry)
    own.consistency = pb.CONSISTENCY_EVENTUAL
    return own


def _expire(promise: _Promise, timeout: float) -> None:
    if not promise.done():
        promise.set_exception(errors.OutcomeUnknown(f"not durable within {timeout:g} s; it may still become so"))


def _resolve(future: "asyncio.Future[Any]", answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _no_slices(job: ListJob, part: pb.ReadResult) -> None:
    raise AssertionError("a point read has no slices")


def _collect(
    future: "asyncio.Future[pb.ReadResult]", parts: list[pb.ReadResult], job: ListJob, part: pb.ReadResult
) -> None:
    """Put the slices of a list together."""
    if future.done():
        job.cancel()
        return
    if part.status != pb.READ_STATUS_OK:
        future.set_result(part)  # the last one, and without ranges
        return
    if parts:
        for have, more in zip(parts[0].ranges, part.ranges, strict=True):
            have.entries.extend(more.entries)
            have.count += more.count
    else:
        parts.append(part)
    if part.more:
        job.resume()
        return
    whole = parts[0]
    if part is not whole:
        whole.read_versionstamp = part.read_versionstamp
        whole.time_ms = part.time_ms
        whole.entries.extend(part.entries)
        whole.more = False
    future.set_result(whole)


__all__ = ["EmbeddedBackend", "EmbeddedConsumer", "open_embedded"]
