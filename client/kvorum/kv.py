"""The client: everything that a program does with a database, embedded or a cluster."""

import asyncio
import builtins
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from kvorum import limits, tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.atomic import AtomicOperation
from kvorum.auth import Auth
from kvorum.backend import Backend
from kvorum.changes import Follower, RangeWatch, select_watched
from kvorum.commit import CommitResult, commit_result
from kvorum.consistency import STRONG, Consistency, freshness, relax
from kvorum.durations import Duration, seconds
from kvorum.embedded import open_embedded
from kvorum.entry import Entry, answered, own_key, time_left, unpacked
from kvorum.errors import LimitExceeded
from kvorum.keys import KeyPart, encode_key
from kvorum.link import Link
from kvorum.listing import ListIterator, Walk, count_read
from kvorum.mutation import (
    SetKey,
    check_list,
    delete_mutation,
    delete_range_mutation,
    read_key,
    read_keys,
    set_write,
    too_long,
    touch_write,
)
from kvorum.opening import Opening
from kvorum.queues.desk import Desk
from kvorum.queues.infos import Misfire, QueueStats, ScheduleInfo, TopicInfo, listed_queues
from kvorum.queues.listener import DEFAULT_CONCURRENCY, Handler, Terms
from kvorum.queues.message import Message
from kvorum.queues.outgoing import SendOptions, enqueue_message
from kvorum.queues.queue import Queue
from kvorum.queues.schedules import listed_schedules, schedule_call, schedule_name
from kvorum.queues.topic import Topic, listed_topics
from kvorum.steps import DELETE_STEP, delete_in_steps
from kvorum.target import Folder, parse_target
from kvorum.tls import TlsOption, resolve
from kvorum.transaction import DEFAULT_ATTEMPTS, Transaction, run
from kvorum.watch import Watch

T = TypeVar("T")


class Kv:
    """An open database. Made by `kvorum.open_kv`; belongs to the event loop that opened it.

    Calls may be made concurrently, and that is what makes them cheap: those that are made at the same time travel
    together. Every call takes a `timeout` (a timedelta or milliseconds), else the client's own.

    Errors of all reads: Unavailable (also DeadlineExceeded, Overloaded), Closed. Errors of all writes: those, with
    nothing changed, OutcomeUnknown, NoSpace. Cancelling a write leaves its outcome unknown.
    """

    def __init__(
        self, backend: Backend, *, timeout: float = limits.DEFAULT_TIMEOUT / 1000, target: str = "a backend of your own"
    ) -> None:
        """For programs that bring their own backend; `timeout` is seconds, `target` what `repr` shows."""
        self._target = target
        self._link = Link(backend, timeout)
        self._desk = Desk(self._link)
        self.auth = Auth(self._link)
        """Tokens, of a cluster."""
        self._watches: weakref.WeakSet[Watch | RangeWatch | Follower] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None

    # ---- reading

    async def get(
        self,
        key: Sequence[KeyPart],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Entry:
        """The entry of a key; value and versionstamp are None if it is absent.

        Errors: InvalidKey, LimitExceeded, InvalidArgument, DataError.
        """
        asked, max_age_ms = STRONG, 0
        encoded = encode_key(key)
        if len(encoded) > limits.MAX_READ_KEY_SIZE:
            raise too_long(encoded)
        if consistency != "strong" or max_age is not None:
            asked, max_age_ms = freshness(consistency, max_age)
        link = self._link
        within = link.timeout if timeout is None else link.within(timeout)
        if link.point is not None:
            return unpacked(key, await link.point(encoded, asked, max_age_ms, timeout=within))
        read = pb.Read(keys=(encoded,), consistency=asked, max_age_ms=max_age_ms)
        answer = await link.backend.read(read, timeout=within)
        return answered(own_key(key), answer.entries[0])

    async def get_many(
        self,
        keys: Sequence[Sequence[KeyPart]],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> list[Entry]:
        """The entries of up to 10 keys, in their order, from one snapshot. Errors: as `get`."""
        check_list(keys, "keys")
        if len(keys) > limits.MAX_READ_RANGES:
            raise LimitExceeded("MAX_READ_RANGES", limits.MAX_READ_RANGES, len(keys), "keys of a read")
        read = pb.Read(keys=read_keys(keys))
        relax(read, consistency, max_age)
        link = self._link
        within = link.within(timeout)
        if not keys and not link.closed:
            return []
        answer = await link.backend.read(read, timeout=within)
        return [answered(own_key(key), row) for key, row in zip(keys, answer.entries, strict=True)]

    async def expires_in(
        self,
        key: Sequence[KeyPart],
        *,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> timedelta | None:
        """How long a key has to live, in the cluster's time; None if it does not expire, or is absent.

        A key that is due is there until it is swept, a moment later. Errors: as `get`.
        """
        read = pb.Read(keys=(read_key(key),), with_expiry=True)
        relax(read, consistency, max_age)
        link = self._link
        return time_left(await link.backend.read(read, timeout=link.within(timeout)))

    async def count(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """The number of keys that a list with the same selector would show, in one snapshot.

        The node looks at each key, though not at its value: about a million in a second, and it gives up after 10 s.

        Errors: InvalidKey, InvalidArgument, LimitExceeded.
        """
        read = count_read(prefix, start, end, consistency, max_age)
        link = self._link
        answer = await link.backend.read(read, timeout=link.within(timeout))
        return answer.ranges[0].count

    def list(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        limit: int | None = None,
        reverse: bool = False,
        cursor: str | None = None,
        batch_size: int | None = None,
        keys_only: bool = False,
        consistency: Consistency = "strong",
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> ListIterator:
        """Entries in the order of their keys: below a prefix (not the prefix itself), from `start` on, before `end`.

        Give `prefix`, `prefix` with `start` or `end`, or `start` and `end`; None is the same as not given, and the
        prefix `()` means everything. Entries are read in batches of `batch_size` (≤ 1,000; by default the limit, at
        most 500; without a limit 100, and twice as many each time); each batch is one snapshot, and `timeout` is for
        each. From the second one on a cluster reads the next batch while this one is worked on, unless batches are
        smaller than 100. `cursor` is that of an earlier list. With `keys_only` the values stay where they are, and are
        None.

        Errors: InvalidKey, InvalidArgument, LimitExceeded, at once; DataError while iterating.
        """
        walk = Walk(
            prefix,
            start,
            end,
            limit=limit,
            reverse=reverse,
            cursor=cursor,
            batch_size=batch_size,
            consistency=consistency,
            max_age=max_age,
            keys_only=keys_only,
        )
        return ListIterator(walk, self._link, self._link.within(timeout))

    def watch(self, keys: Sequence[Sequence[KeyPart]], *, raw: bool = False) -> Watch:
        """Entries of up to 10 keys, all from one snapshot: now, and whenever one of them has changed.

        Changes that follow each other quickly may be seen as one. Outlives connections; ends when the client is closed.
        With `raw` mutations that change nothing emit too, such as the deletion of an absent key, and what was seen
        before may come again.

        Errors: InvalidKey, LimitExceeded, Closed, at once.
        """
        watch = Watch(keys, self._link, raw=raw)
        self._watches.add(watch)
        return watch

    def watch_prefix(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        since: str | None = None,
        keys_only: bool = False,
        progress: bool = False,
    ) -> RangeWatch:
        """Every change of the keys below a prefix, or of what `list` would select so, commit by commit, each once.

        From now on (from its `ready` on, to be exact), or after the versionstamp `since`, which is the `resume` of a
        watch before. `progress` also gives marks, without changes, every few seconds in which other keys were changed.
        Outlives connections; ends when the client is closed. Fetch steadily: the changes wait in the database, which
        keeps the newest 64 MiB of them.

        Errors: InvalidKey, InvalidArgument, LimitExceeded, Closed, at once. While iterating also Compacted;
        InvalidArgument where the database has not come to `since`, which is a place in another one then; WrongCluster.
        """
        selected = select_watched(prefix, start, end)
        watch = RangeWatch(selected, since, self._link, keys_only=keys_only, progress=progress)
        self._watches.add(watch)
        return watch

    def follow(
        self,
        prefix: Sequence[KeyPart] | None = None,
        *,
        start: Sequence[KeyPart] | None = None,
        end: Sequence[KeyPart] | None = None,
        keys_only: bool = False,
        timeout: Duration | None = None,
    ) -> Follower:
        """A `Listing` of the keys below a prefix, and then `Changes` of them, without a gap: to keep a copy.

        If changes were missed that are not kept any more, another listing comes, which replaces the copy. `timeout` is
        for each page of a listing; a listing is held in memory as a whole.

        Errors: InvalidKey, InvalidArgument, LimitExceeded, at once.
        """
        selected = select_watched(prefix, start, end)
        follower = Follower(selected, self._link, self._link.within(timeout), keys_only=keys_only)
        self._watches.add(follower)
        return follower

    # ---- writing

    async def set(
        self, key: SetKey, value: object, *, expire_in: Duration | None = None, timeout: Duration | None = None
    ) -> CommitResult:
        """Store a value, to be removed `expire_in` after the commit; without it an earlier expiry is dropped.

        Errors: InvalidKey, InvalidValue, InvalidArgument, LimitExceeded.
        """
        link = self._link
        op = set_write(key, value, expire_in)
        within = link.timeout if timeout is None else link.within(timeout)
        return commit_result(await link.backend.write(op, timeout=within))

    async def delete(self, key: Sequence[KeyPart], *, timeout: Duration | None = None) -> CommitResult:
        """Remove a key; fine if it is absent. Errors: InvalidKey, LimitExceeded."""
        link = self._link
        op = pb.AtomicWrite(mutations=(delete_mutation(key),))
        return commit_result(await link.backend.write(op.SerializeToString(), timeout=link.within(timeout)))

    async def touch(
        self, key: Sequence[KeyPart], *, expire_in: Duration | None, timeout: Duration | None = None
    ) -> bool:
        """Let a key expire `expire_in` (above zero) from now on instead of when it would have; None: never. False if it
        is absent.

        Value and versionstamp stay as they are: checks still pass, and no watch hears of it.

        Errors: InvalidKey, InvalidArgument, LimitExceeded.
        """
        link = self._link
        op = touch_write(key, expire_in)
        return commit_result(await link.backend.write(op, timeout=link.within(timeout))).ok

    async def delete_range(
        self, start: Sequence[KeyPart], end: Sequence[KeyPart], *, timeout: Duration | None = None
    ) -> int:
        """Remove every key from `start` on and before `end`, and return how many there were.

        In commits of up to 1,000 keys, so it is not atomic: after an error some are gone (a note of the error says how
        many for certain), and calling again goes on. `timeout` is for each commit. All or nothing, up to 1,000 keys:
        `AtomicOperation.delete_range`.

        Errors: InvalidKey, LimitExceeded.
        """
        mutation = delete_range_mutation(None, start, end, limit=DELETE_STEP)
        return await delete_in_steps(self._link, mutation, timeout)

    async def delete_prefix(self, prefix: Sequence[KeyPart], *, timeout: Duration | None = None) -> int:
        """Remove every key below a prefix, but not the prefix itself. See `delete_range`."""
        mutation = delete_range_mutation(prefix, None, None, limit=DELETE_STEP)
        return await delete_in_steps(self._link, mutation, timeout)

    def atomic(self) -> AtomicOperation:
        """An atomic operation, to be filled and committed."""
        return AtomicOperation(self._link)

    async def transaction(
        self,
        function: Callable[[Transaction], Awaitable[T]],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: Duration | None = None,
    ) -> T:
        """Run a coroutine function that reads and writes through a `Transaction`, commit it, and return its result.

        All of it happens at once, as if nobody else were there, or not at all: if anything that it read was written
        meanwhile it runs again, after a short random pause, up to `attempts` times within `timeout`. So it should do
        nothing but read and write through the transaction. What it raises is passed on, and nothing is written.

        Errors: Conflict; those of an atomic operation, of which OutcomeUnknown is never tried again.
        """
        return await run(self._link, function, attempts, timeout)

    # ---- queues

    async def enqueue(
        self,
        value: object,
        *,
        queue: str = "",
        delay: Duration | None = None,
        keys_if_undelivered: Sequence[Sequence[KeyPart]] = (),
        backoff_schedule: Sequence[Duration] | None = None,
        timeout: Duration | None = None,
    ) -> CommitResult:
        """Put a message on a queue, to be delivered at least once, `delay` after the commit (≤ 366 days).

        A delivery that fails is repeated after each step of `backoff_schedule` (≤ 64 steps of ≤ 1 hour; by default
        100 ms, 1 s, 5 s, 30 s, 60 s; empty: no retry). Then the value is stored under each of `keys_if_undelivered`
        (≤ 10), or dropped.

        Errors: InvalidValue, InvalidKey, InvalidArgument, LimitExceeded.
        """
        link = self._link
        made = (enqueue_message(value, queue, delay, keys_if_undelivered, backoff_schedule),)
        op = pb.AtomicWrite(enqueues=made).SerializeToString()
        return commit_result(await link.backend.write(op, timeout=link.within(timeout)), made)

    @overload
    async def listen_queue(
        self,
        handler: Callable[[Any], Awaitable[object] | object],
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: Literal[False] = False,
    ) -> None: ...
    @overload
    async def listen_queue(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: Literal[True],
    ) -> None: ...
    async def listen_queue(
        self,
        handler: Handler,
        *,
        queue: str = "",
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int | None = None,
        with_message: bool = False,
    ) -> None:
        """Handle the messages of a queue until the client is closed. Several listeners, here or elsewhere, share them.

        `handler` is called with each message's value, or with the `Message`, up to `concurrency` at a time; `prefetch`
        more messages are held ready (by default as many again). When it returns, the message is done; when it raises,
        that is logged, and the message comes again by its backoff schedule. A handler may be called twice for one
        message, so its effects should be commits that check, or acknowledge it (`AtomicOperation.ack`).

        Closing the client lets running handlers finish, within the client's timeout. Cancelling this call cancels them;
        their messages are ready again at once. Messages whose handler was not called go back without counting.

        Errors: InvalidArgument, LimitExceeded, Unavailable, Closed. WrongCluster, at any time, when the cluster was
        made anew: no more can come to this client; running handlers are cancelled.
        """
        terms = Terms(queue=queue, concurrency=concurrency, prefetch=prefetch)
        argument: Callable[[Sequence[Message]], object] = _message if with_message else _value
        await self._desk.listen(Message, handler, terms, argument)

    def queue(self, name: str) -> Queue:
        """A queue by its name, without any I/O. Errors: InvalidArgument, LimitExceeded."""
        return Queue(self._desk, name)

    async def queues(
        self, prefix: str = "", *, counts: bool = False, timeout: Duration | None = None
    ) -> "builtins.list[QueueStats]":
        """The queues that are defined or were used, in order of their names.

        `counts`: also ready, scheduled and waiting messages, else 0; counting takes a look at each message.
        """
        return await listed_queues(self._desk, prefix, timeout, counts=counts)

    def topic(self, name: str) -> Topic:
        """A topic by its name, without any I/O. Errors: InvalidArgument, LimitExceeded."""
        return Topic(self._desk, name)

    async def topics(self, *, timeout: Duration | None = None) -> "builtins.list[TopicInfo]":
        """All topics, in order of their names."""
        return await listed_topics(self._desk, timeout)

    async def request(
        self, queue: str, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> Any:
        """Send a message and wait for its answer, which whoever handles it sends (`Queue.serve`); see `SendOptions`, of
        which ttl and deduplication are of no use here.

        A request that is not handled within `timeout` is dropped. An answer is waited for by this client alone.

        Errors: RequestTimeout: no answer came in time, the work may be done; RemoteError: the answer is an error;
        DeadlineExceeded: it was not sent; those of `Queue.send`.
        """
        return await self._desk.requester.request(queue, value, timeout, options)

    async def schedule(
        self,
        name: str,
        cron: str,
        *,
        queue: str | None = None,
        topic: str | None = None,
        value: object = None,
        time_zone: str = "UTC",
        misfire: Misfire = "once",
        grace: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """Have a message sent at each tick of a cron expression, exactly one; replaces the schedule of that name.

        `cron`: five fields, or six with seconds at the end, in `time_zone` (`"Europe/Berlin"`). A tick that is later
        than `grace` (60 s) was missed, as when there was no leader: `misfire` is `"skip"`, `"once"` for all that were
        missed, or `"all"`. `Message.tick` tells which tick a message stands for.

        Errors: InvalidArgument (also of an expression that never comes true), InvalidValue, LimitExceeded.
        """
        call = schedule_call(name, cron, queue, topic, value, time_zone, misfire, grace, options)
        await self._desk.call(timeout, schedule=call)

    async def unschedule(self, name: str, *, timeout: Duration | None = None) -> None:
        """Remove a schedule; fine if it is not there. Messages that it has sent stay."""
        await self._desk.call(timeout, schedule=pb.DefineSchedule(name=schedule_name(name)))

    async def schedules(self, *, timeout: Duration | None = None) -> "builtins.list[ScheduleInfo]":
        """All schedules, in order of their names. Errors: DataError."""
        return await listed_schedules(self._desk, timeout)

    # ---- the client itself

    async def status(self, *, timeout: Duration | None = None) -> pb.StatusResponse:
        """What the node that this client is connected to says of itself; of an embedded database: its own figures."""
        link = self._link
        return await link.backend.status(timeout=link.within(timeout))

    def statistics(self) -> dict[str, float]:
        """Figures since opening: on a cluster retries, reconnects, unknown outcomes and others."""
        figures = getattr(self._link.backend, "statistics", None)
        return {} if figures is None else dict(figures())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._link.closed

    @property
    def link(self) -> Link:
        """For the blocking client."""
        return self._link

    @property
    def desk(self) -> Desk:
        """For the blocking client."""
        return self._desk

    async def close(self) -> None:
        """Release everything. Listeners end in order, watches end, later calls raise Closed. May be called again.

        Called by a queue's handler it does not wait, since that handler must end first.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(self._link.cut()))
        if not self._desk.owns(asyncio.current_task()):
            await asyncio.shield(self._closing)

    async def _close(self, backend: Backend) -> None:
        try:
            await self._desk.close()
            for watch in list(self._watches):
                await watch.aclose()
        finally:
            await backend.close()

    def __repr__(self) -> str:
        return f"<kvorum.Kv {self._target}{', closed' if self.closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _value(messages: Sequence[Message]) -> object:
    return messages[0].value


def _message(messages: Sequence[Message]) -> object:
    return messages[0]


def open_kv(
    target: str | os.PathLike[str] | None = None,
    *,
    token: str | None = None,
    tls: TlsOption = None,
    timeout: Duration | None = None,
) -> Opening:
    """Open a database: `kv = await open_kv(…)`, or `async with open_kv(…) as kv`.

    `target`: the path of a folder (embedded: in this process, no server; made if absent, refused if it holds other
    things), `":memory:"` (embedded, gone after closing), `kvorum://host:port,host:port` (a cluster, by any of its
    nodes; the port is 7401 by default), or None: `$KVORUM_URL`, else the folder `kvorum.kv`. `timeout` (a timedelta or
    milliseconds; 10 s by default) is for opening and for each call that names none. `token` and `tls` are for clusters,
    and of no meaning to a folder. `token`: None takes `$KVORUM_TOKEN`, or what is in the file `$KVORUM_TOKEN_FILE`.
    `tls`: True (the machine's CAs), the path of a CA's PEM file or its content, a `kvorum.Tls`; None: what
    `$KVORUM_CA_FILE`, `$KVORUM_CERT_FILE` and `$KVORUM_KEY_FILE` say, else no TLS; False: none.

    Errors when opening: ConnectFailed, WrongCluster; DatabaseLocked, DatabaseCorrupt, OSError, ModuleNotFoundError (an
    embedded database needs `kvorum[node]`), InvalidArgument.
    """
    place = parse_target(target, os.environ)
    within = limits.DEFAULT_TIMEOUT / 1000 if timeout is None else seconds(timeout, "timeout")

    async def open_it() -> Kv:
        if isinstance(place, Folder):
            return Kv(await open_embedded(place.path), timeout=within, target=str(place))
        from kvorum.cluster import connect  # gRPC takes a while to import, and an embedded database needs none

        shown = tokens.from_environment() if token is None else tokens.check(token)
        backend = await connect(place.addresses, timeout=within, token=shown, tls=resolve(tls, os.environ))
        return Kv(backend, timeout=within, target=str(place))

    return Opening(open_it)
