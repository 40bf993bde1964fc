"""The keeper: one task that stays connected to the leader, and the traffic of that connection.

It connects, stays while the node leads, and goes where the hints say otherwise. What is under way (`writes`, `reads`,
`points`, `calls`, `watches`, `consumers`) does no I/O: the keeper lets each part fill the next frame, and hands it what
came.

All traffic goes to the leader. Reads that need no leader are also sent while connected to a node that does not lead, so
that they work when there is no majority. Spreading them over the other nodes would need a second connection and nothing
else: `Reads.fill` knows them apart already.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Final

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.cluster.counters import Counters
from kvorum.cluster.points import FULL
from kvorum.cluster.route import Address, Route, name, parse
from kvorum.cluster.traces import Traces
from kvorum.cluster.under_way import UnderWay
from kvorum.rights import refused
from kvorum.tls import ChannelTls

logger = logging.getLogger("kvorum")

PROTOCOL: Final = 1
_RESULTS: Final = pb.ServerFrame.RESULTS_FIELD_NUMBER
_POINTS: Final = pb.ServerFrame.POINT_ANSWERS_FIELD_NUMBER
HELLO_TIMEOUT: Final = 1.5
MAX_HELLO_TIMEOUT: Final = 5.0
LEADERLESS: Final = 0.8
"""Seconds to stay with a node that knows no leader, waiting for it to tell of one, before another node is asked."""
STEADY: Final = 0.5
"""Seconds that a useful connection must last to make failures forgotten: a request that breaks each stream must not be
repeated in a tight loop."""
SESSION_PATIENCE: Final = 2.0
"""Seconds for a session to be opened, before the connection is called useless."""
FIRST_RETRY: Final = 0.02
MAX_RETRY: Final = 0.5
"""Seconds before refused operations are tried again on the same connection: jittered, doubled with each round."""

COMPLAIN_AFTER: Final = 30.0
COMPLAIN_EVERY: Final = 60.0
"""Seconds without a leader until that is logged, and until it is logged again."""
HOPELESS_RETRY: Final = 15.0
"""Seconds, about, until a client that every node refuses for good, and that nobody asks for anything, looks again."""


def closed_read(why: str) -> errors.Closed:
    """The error of a read or watch that is cut off: nothing was to be applied."""
    return errors.Closed(why, outcome=None)


class Keeper:
    """See the module. `start`, then `stop`; `wake` when there is something to send."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        under_way: UnderWay,
        counters: Counters,
        rng: random.Random,
        *,
        client_name: str,
        token: str,
        tls: ChannelTls | None,
        connect: Callable[..., Connection] = Connection,
        led: Callable[[], None] = lambda: None,
    ) -> None:
        """`led` is called when the connected node has come to lead, and when a session was opened."""
        self._connect = connect
        self._led = led
        self._loop = loop
        self._route = route
        self._under_way = under_way
        self.traces: Traces | None = None
        """None unless the program traces."""
        self._node_traces = False
        """The node that was connected last traces as well."""
        self._writes = under_way.writes
        self._reads = under_way.reads
        self._points = under_way.points
        self._calls = under_way.calls
        self._watches = under_way.watches
        self._consumers = under_way.consumers
        self._counters = counters
        self._rng = rng
        self._client_name = client_name
        self._token = token
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._cluster_id = b""
        self.newest = b""
        """The newest state that this client has seen, as a versionstamp."""
        self.hello_timeout = HELLO_TIMEOUT
        """Seconds that a node gets to answer Hello; longer when no node did in time."""
        self.connected = asyncio.Event()
        """Set while a connection is up."""
        self.changed = asyncio.Event()
        """Set when a connection began or ended, or its node's idea of the leader changed."""
        self._wanted = asyncio.Event()
        """Set when something was asked for."""
        self.connection: Connection | None = None
        self._node_id = ""
        self._worked = False
        """The connected node did something for us: it was not a waste of time to come here."""
        self._leading = False
        self._hint: Address | None = None
        self._hint_term = 0
        self._alone_since = loop.time()
        """When the last connection to a leader ended."""
        self._complain_at = 0.0
        self._session_asked = False
        self._session_refused = ""
        self._retry_timer: asyncio.TimerHandle | None = None
        self._session_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = self._loop.create_task(self._keep())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Say goodbye and disconnect. May be called twice."""
        first, self._stopping = not self._stopping, True
        self.connected.set()  # nobody waits for a node any longer
        if self._task is not None:
            if first:  # a second one would interrupt the goodbye
                self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def leading(self) -> Address | None:
        """The address of the connected node, if it leads."""
        return self.connection.address if self.connection is not None and self._leading else None

    @property
    def cluster_id(self) -> bytes:
        """Empty before the first connection."""
        return self._cluster_id

    @property
    def stopped(self) -> bool:
        """It is over, by `stop` or by a fault of this package."""
        return self._stopping

    def trace(self, traces: Traces) -> None:
        """Tell nodes that trace which operations belong to which trace."""
        traces.wanted = self._node_traces
        self.traces = traces

    def wake(self) -> None:
        """There may be something to send."""
        if self.connection is not None:
            self.connection.wake()
        else:
            self._wanted.set()

    def why(self) -> str:
        """What stands in the way, for messages."""
        if self.connection is not None:
            if self._leading:
                return f" ({self._session_refused})" if self._session_refused else ""
            return f" ({name(self.connection.address)} knows no leader)"
        problems = self._route.problems()
        return f" ({problems})" if problems else " (no connection)"

    # ---- the task

    async def _keep(self) -> None:
        """Be connected to the leader, as far as that is possible, until cancelled."""
        while True:
            if delay := self._route.delay():
                await asyncio.sleep(delay)
            if self._route.hopeless and not self._under_way.expecting():
                await self._rest()
            address = self._route.next()
            connection = self._connect(address, self._loop, self._tls)
            farewell = None
            try:
                await self._greet(connection)
                await self._stay(connection)
            except NodeFailed as failure:
                self._route.failed(address, failure.problem, final=failure.final, dead=failure.dead)
                self._complain()
                self._counters.failed_connections += self.connection is None
                if self._route.hopeless:
                    # Waiting would not help anybody.
                    self._wanted.clear()
                    self._under_way.end(self._refusal(), errors.WrongCluster, errors.WrongCluster)
            except asyncio.CancelledError:
                farewell = pb.ClientFrame(goodbye=pb.Goodbye(release=True))
                raise
            finally:
                self._detach()
                await connection.close(farewell)

    def _complain(self) -> None:
        """Calls end with errors that say what is wrong; what waits for ever, such as a consumer, has only the log."""
        now = self._loop.time()
        if now - self._alone_since >= COMPLAIN_AFTER and now >= self._complain_at and self._under_way.expecting():
            self._complain_at = now + COMPLAIN_EVERY
            logger.warning("no leader for %.0f s: %s", now - self._alone_since, self._route.problems())

    async def _rest(self) -> None:
        """Wait until something is asked for, or a while: whoever is at these addresses may change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOPELESS_RETRY * (0.75 + self._rng.random() / 2)):
                await self._wanted.wait()

    def _refusal(self) -> str:
        advice = "; if the cluster was made anew, open a new client" if self._cluster_id else ""
        return self._route.refusals() + advice

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        """Only a fault of this package ends it before `close`; then nobody may be left waiting."""
        if keeper.cancelled() or (error := keeper.exception()) is None:
            return
        self._stopping = True
        why = f"the client failed: {type(error).__name__}: {error}"
        self._under_way.end(why, errors.Closed, closed_read)
        self.changed.set()
        self._loop.call_exception_handler({"message": why, "exception": error, "task": keeper})

    async def _greet(self, connection: Connection) -> None:
        hello = pb.Hello(
            protocol=PROTOCOL,
            client=self._client_name,
            token=self._token,
            cluster_id=self._cluster_id,
            session=self._writes.session_id,
        )
        patience = min(MAX_HELLO_TIMEOUT, self.hello_timeout * 1.5 ** min(self._route.rounds, 10))
        frame = await connection.greet(hello, patience)
        reply = frame.hello
        if reply.protocol != PROTOCOL:
            raise NodeFailed(f"it speaks protocol {reply.protocol}, this client {PROTOCOL}", final=True)
        if self._cluster_id and reply.cluster_id and reply.cluster_id != self._cluster_id:
            raise NodeFailed(
                f"it belongs to cluster {reply.cluster_id.hex()}, this client to {self._cluster_id.hex()}", final=True
            )
        self._cluster_id = self._cluster_id or reply.cluster_id
        self.connection = connection
        self._node_id = reply.node_id
        self._route.met(connection.address, reply.node_id)
        self._points.known = reply.point_reads
        self._node_traces = reply.traces
        if self.traces is not None:
            self.traces.wanted = reply.traces
        self._worked = False
        self._leader_is(frame.leader if frame.HasField("leader") else reply.leader)
        self.connected.set()
        connection.ended.add_done_callback(lambda _: self.changed.set())
        connection.start(self._fill, self._receive, self._under_way.expecting)

    async def _stay(self, connection: Connection) -> None:
        """Return to follow a hint, or to try the same node again; NodeFailed when another one should be tried."""
        used = False
        begun = self._loop.time()
        while not connection.ended.done():
            self.changed.clear()
            hint = self._hint
            if self._leading:
                self._counters.connections += not used
                used = True
                await self.changed.wait()
                if self._worked and self._loop.time() - begun >= STEADY:
                    self._route.succeeded(connection.address)
            elif hint is not None and hint != connection.address and self._route.usable(hint, self._hint_term):
                self._route.saw_term(self._hint_term)
                self._route.follow(hint)
                return
            else:
                try:
                    async with asyncio.timeout(LEADERLESS * (0.75 + self._rng.random() / 2)):
                        await self.changed.wait()
                except TimeoutError:
                    raise NodeFailed("it knows no leader that can be reached", dead=False) from None
        failure = connection.ended.result()
        if self._worked and not failure.dead and not failure.final:
            # It may be the stream only. If it is the node, its port refuses us in no time.
            self._route.follow(connection.address)
            return
        raise failure

    def _detach(self) -> None:
        """Nothing is on a stream any more."""
        if self.connection is not None:
            self.connection = None
            self._under_way.connection_lost()
        if self._leading:
            self._alone_since = self._loop.time()
        self._leading = False
        self._hint = None
        for timer in (self._retry_timer, self._session_timer):
            if timer is not None:
                timer.cancel()
        self._retry_timer = self._session_timer = None
        self._session_asked = False
        if not self._stopping:
            self.connected.clear()
        self.changed.set()

    # ---- what the connection asks for and brings

    def _fill(self, frame: pb.ClientFrame) -> bool:
        """Put everything that can go into the next frame."""
        room = limits.MAX_FRAME_OPERATIONS
        writes, session = self._writes, self._writes.session_id
        if self._leading:
            if (writes.needs_session or (not session and self._consumers.open)) and not self._session_asked:
                self._ask_for_session(frame)
                room -= 1
            if session:
                room -= self._consumers.fill(frame, session, room)
            room -= self._watches.fill(frame, self.newest, room)
            room -= self._calls.fill(frame, (room + 1) // 2)
        # Half of a full frame at most is reads, so that neither kind starves the other.
        half = (room + 1) // 2
        count = self._points.fill(frame, self.newest, half, leading=self._leading)
        count += self._reads.fill(frame, half - count, leading=self._leading)
        if self._leading:
            count += writes.fill(frame, room - count)
        if not count and room == limits.MAX_FRAME_OPERATIONS:
            return False
        if self.traces is not None:
            self.traces.fill(frame, writes.live)
        self._counters.frames += 1
        self._counters.operations += count
        return True

    def _receive(self, frame: pb.ServerFrame) -> None:
        """Hand a frame's parts to those who know what they mean."""
        if self.connection is None:
            return  # saying goodbye
        fields = frame.ListFields()
        kind = fields[0][0].number if self._worked and len(fields) == 1 else 0
        # Mostly: to ask for all the other parts takes 1 µs.
        if kind == _RESULTS:
            lost_leader, refused = self._take_results(frame), self._writes.has_refused
        elif kind == _POINTS:
            lost_leader, refused = self._take_points(frame), self._points.has_refused
        else:
            self._receive_all(frame)
            return
        if lost_leader:
            self._leader_is(None)
        if refused and self._retry_timer is None:
            self._plan_retry()

    def _receive_all(self, frame: pb.ServerFrame) -> None:
        lost_leader = bool(frame.results) and self._take_results(frame)
        if frame.point_answers:
            lost_leader |= self._take_points(frame)
        if frame.reads:
            lost_leader |= self._reads.answered(frame.reads)
            self.newest = max(self.newest, frame.reads[-1].read_versionstamp)
        if frame.queue_replies:
            lost_leader |= self._calls.answered(frame.queue_replies)
        if frame.watches:
            self._watches.events(frame.watches)
            self.newest = max(self.newest, *(max(event.read_versionstamp, event.through) for event in frame.watches))
        if self._watches.has_stops or self._reads.has_place:
            self.wake()
        if frame.deliveries:
            self._consumers.deliveries(frame.deliveries, self._writes.session_id)
        if frame.HasField("session") and self._session_asked:
            self._session_answered(frame.session)
        if frame.ended_consumers:
            self._consumers.ended(frame.ended_consumers)
        if lost_leader:
            self._leader_is(None)
        elif not self._worked:
            parts = (self._writes, self._reads, self._points, self._calls, self._watches)
            refused = any(part.refusals for part in parts)
            answered = (
                frame.results
                or frame.reads
                or frame.point_answers
                or frame.queue_replies
                or frame.watches
                or frame.HasField("session")
            )
            self._worked = bool(answered) and not refused
        if frame.HasField("leader"):
            self._leader_is(frame.leader)
        if frame.error and frame.error_is_final:
            # What this stream carried must not be sent again; what else waits may go to the next one.
            self._writes.give_up_all(f"the node ended the stream: {frame.error}", errors.Unavailable, sent_only=True)
            self._reads.give_up_all(lambda: errors.Unavailable(frame.error), sent_only=True)
            self._points.give_up_all(lambda: errors.Unavailable(frame.error), sent_only=True)
            self._calls.give_up_all(lambda: errors.Unavailable(frame.error), sent_only=True)
        if self._retry_timer is None:
            self._plan_retry()

    def _take_results(self, frame: pb.ServerFrame) -> bool:
        """True if the node said that it does not lead."""
        session = self._writes.session_id
        lost_leader = self._writes.answered(frame.results)
        for group in frame.results:
            if group.stamp_prefix:
                # The whole entry is applied where one of its results is known.
                self.newest = max(self.newest, group.stamp_prefix + b"\xff\xff")
        if session and not self._writes.session_id:
            self._consumers.connection_lost()
            self.wake()
        return lost_leader

    def _take_points(self, frame: pb.ServerFrame) -> bool:
        """True if the node said that it does not lead."""
        answers = frame.point_answers
        self.newest = max(self.newest, answers[-1].read_versionstamp)
        if len(answers) == 1 or any(len(answer.rows) < FULL for answer in answers):
            return self._points.answered(answers)
        # Who is answered in one turn asks again in one frame, for ever. Full batches take a turn each: so the first is
        # on its way again while the callers of the next one work, and the node works at the same time.
        self._spread(iter(list(answers)))
        return False

    def _spread(self, answers: Iterator[pb.PointAnswers]) -> None:
        answer = next(answers, None)
        if answer is not None:
            self._points.answered((answer,))
            self._loop.call_soon(self._spread, answers)

    def _ask_for_session(self, frame: pb.ClientFrame) -> None:
        frame.open_session.client = self._client_name
        self._session_asked = True
        self._session_timer = self._loop.call_later(SESSION_PATIENCE, self._session_overdue)

    def _session_answered(self, opened: pb.SessionOpened) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
        session_id = opened.session
        problem = refused(opened.status, opened.message)
        if problem is not None:
            # Nothing of what waits for a session was sent; what comes later may fare better.
            self._writes.give_up_all(f"no session was opened: {problem}", lambda: type(problem)(*problem.args))
            self._consumers.end_all(lambda: type(problem)(*problem.args))
            self._session_timer = self._loop.call_later(MAX_RETRY, self._ask_again)
        elif session_id:
            self._session_asked = False
            self._session_refused = ""
            self._writes.session_opened(session_id)
            self.wake()
            self._led()
        else:
            self._session_refused = "the node opens no more sessions"
            self._session_timer = self._loop.call_later(MAX_RETRY, self._ask_again)

    def _ask_again(self) -> None:
        self._session_asked = False
        self.wake()

    def _session_overdue(self) -> None:
        if self.connection is not None:
            self.connection.fail(NodeFailed(f"it opened no session within {SESSION_PATIENCE:g} s"))

    def _leader_is(self, leader: pb.Leader | None) -> None:
        """The connected node tells who leads; None: not itself, at least."""
        self._leading = leader is not None and bool(leader.node_id) and leader.node_id == self._node_id
        self._hint = None
        if leader is not None and leader.node_id and not self._leading:
            self._hint = self._route.place(leader.node_id, parse(leader.address))
        if leader is not None:
            self._hint_term = leader.term
            if self._leading:
                self._route.saw_term(leader.term)
        self.changed.set()
        if self._leading:
            self.wake()
            self._led()

    def _plan_retry(self) -> None:
        """Refused operations go again a little later, unless the connection changes before."""
        all_parts = (self._writes, self._reads, self._points, self._calls, self._watches)
        parts = [part for part in all_parts if part.has_refused]
        if parts:
            rounds = max(part.refusals for part in parts)
            delay = min(MAX_RETRY, FIRST_RETRY * 2.0 ** min(rounds - 1, 10)) * (0.5 + self._rng.random() / 2)
            self._retry_timer = self._loop.call_later(delay, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._writes.retry_refused()
        self._reads.retry_refused()
        self._points.retry_refused()
        self._calls.retry_refused()
        self._watches.retry_refused()
        self.wake()
