"""A node's inside: state, consensus and everything that lives between them. The gRPC API and the embedded store are
two faces of it.

It owns no threads and no sockets of its own; what it is given (store, consensus, timers) decides whether it is a
replica or a database in a program's process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import RaftError
from kvorum_raft.seams import Applied, Consensus

from .access import Access
from .admission import Shortage, admit, refuse_all
from .barrier import Barrier
from .lag import LoopLag
from .leader_news import LeaderNews
from .lists import ListReader
from .metrics.operations import Meter, code_of_write
from .proposer import Proposal, Proposer, ProposerLimits, outcome_of, proposal, write_proposal
from .queue import Delivery
from .queue_calls import QueueCalls
from .queue_rates import QueueRates
from .range_watches import MAX_WATCHES, Deliver, HasRoom, RangeHub, RangeWatch
from .reads import Reads
from .schedules import Ticker
from .sessions import SessionKeeper
from .shapes import Shapes
from .slow import Facts, SlowLog, milliseconds, of_writes
from .store import Store
from .sweeper import Sweeper
from .timers import Timers
from .tracing import NO_TRACES, node_tracing
from .unread import Unread
from .watches import ChangeHub, Watch

logger = logging.getLogger("kvorum.node")

TIME_JUMP = 500.0
"""Milliseconds by which entry time may run ahead of the loop's before alarms are set anew."""

LAG_PATIENCE = 1.0
"""Seconds within which what was committed must be applied, or this node is not ready."""

Answer = Callable[[pb.ResultGroup], None]


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Times are seconds."""

    lease: float = limits.DEFAULT_LEASE / 1000
    session_idle: float = limits.SESSION_IDLE / 1000
    max_election_timeout: float = 1.0
    read_patience: float = 5.0
    """How long a strong read waits for the leader to confirm itself."""
    slow_operation: float = 0.0
    """What takes longer is logged; 0: nothing."""
    unread_answers: int = limits.MAX_UNREAD_SIZE
    """Bytes; see `Unread`."""
    unfinished_requests: int = limits.MAX_UNFINISHED_SIZE
    """Bytes of requests that have come only in part."""
    proposer: ProposerLimits = field(default_factory=ProposerLimits)


class NodeService:
    """See the module. Callbacks come on the loop, possibly before the call that they answer returns."""

    def __init__(
        self,
        store: Store,
        consensus: Consensus,
        timers: Timers,
        settings: ServiceSettings | None = None,
        *,
        lists: ListReader | None = None,
        no_space: Callable[[], str] = str,
        unreadable: Callable[[], str] = str,
        common_data_version: Callable[[], int] | None = None,
        root_hash: bytes = b"",
        on_late: Callable[[float], None] | None = None,
        more_statistics: Sequence[Callable[[], dict[str, float]]] = (),
    ) -> None:
        self.settings = settings = settings or ServiceSettings()
        self.no_space = no_space
        """Why writes that grow the database are refused, and what to do; empty: they are not."""
        self.unreadable = unreadable
        """Why the state of this node may not be read at all; empty: it may."""
        self._more_statistics = more_statistics
        self.store = store
        self.consensus = consensus
        self.access = Access(store, timers, consensus.now_ms, root_hash)
        self.tracing = node_tracing()
        """None unless this process traces."""
        traced = None if self.tracing is None else self.tracing.slow
        self.slow = SlowLog(settings.slow_operation, timers.time, traced)
        self.unread = Unread(settings.unread_answers, timers)
        self.delivery = Delivery(store, consensus, timers, lease=settings.lease)
        self._timers = timers
        self.proposer = self._make_proposer(common_data_version)
        self.delivery.attach(self.proposer)
        self.hub = ChangeHub(store, timers)
        self.ranges = RangeHub(store, timers)
        self.barrier = Barrier(consensus, timers, patience=settings.read_patience)
        self.lists = lists if lists is not None else ListReader(store)
        self.reads = Reads(
            store, self.barrier, self.lists, timers, now_ms=consensus.now_ms, unreadable=unreadable, slow=self.slow
        )
        self.reads.full = self.unread.refusal
        self.lists.slow = self.slow
        self.sweeper = Sweeper(store, consensus, self.proposer, timers)
        self.ticker = Ticker(store, consensus, self.proposer, timers)
        self.rates = QueueRates(self.lists, timers, self.delivery.consumers_of)
        self.calls = self._make_calls()
        self.sessions = SessionKeeper(store, self.proposer, timers, idle=settings.session_idle)
        self.lag = LoopLag(timers, on_late=on_late)
        self.writes = Meter()
        self._shapes = Shapes()
        self._time_ahead = float("-inf")
        """Entry time − loop time, ms, when alarms were last set by it."""
        self._leading = False
        patience = 3 * settings.max_election_timeout
        self._news = LeaderNews(consensus, timers, patience=patience, lost=self._leaderless)
        self._reached: dict[int, asyncio.Future[None]] = {}
        """Whoever waits for an entry to be applied."""
        self._started = False
        consensus.on_applied(self._applied)
        consensus.on_installed(self._installed)
        consensus.on_leadership(self._leadership)

    def _make_proposer(self, common_data_version: Callable[[], int] | None) -> Proposer:
        return Proposer(
            self.consensus,
            self._timers,
            bounds=self.settings.proposer,
            companions=self.delivery.companions,
            common_data_version=common_data_version,
            proved_data_version=lambda: self.store.proved_version,
        )

    def _make_calls(self) -> QueueCalls:
        return QueueCalls(
            self.consensus,
            self.proposer,
            self.barrier,
            self.lists,
            self.rates,
            self._timers,
            self.access,
            no_space=self.no_space,
            slow=self.slow,
        )

    async def start(self) -> None:
        self.lists.start()
        self.lag.start()
        self._started = True
        self._news.start()
        await self.consensus.start()
        # A consensus layer that knew its leader at once has nothing to announce.
        self._leadership(self.consensus.is_leader)

    async def stop(self) -> None:
        """End everything that waits, truthfully, then the consensus layer. The store stays open: it is the caller's."""
        if not self._started:
            return
        self._started = False
        self.lag.stop()
        self._news.stop()
        self.proposer.stop()
        self.hub.end_all("the node stops")
        self.ranges.end_all("the node stops")
        self.reads.stop()
        await self.barrier.stop()
        await self.consensus.stop()
        self._set_office(leading=False)
        self.lists.stop()
        self.unread.stop()

    async def drain(self, patience: float) -> None:
        """Take no more writes, and wait until those in the log are answered, at most `patience` seconds."""
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not idle.done():
                idle.set_result(None)

        self.proposer.stop()
        self.proposer.when_idle(tell)
        await asyncio.wait([idle], timeout=patience)

    # ---- writes

    def write(self, group: pb.WriteGroup, answer: Answer, principal: bytes = b"") -> None:
        """Commit a group. `answer` is called once or several times; each write is answered once. `principal`: see
        `Access.stamp`."""
        no_space = self.no_space()
        shortage = Shortage(no_space, self._is_absent) if no_space else None
        parts, refused = admit(group, shortage, data_version=self.proposer.data_version, shapes=self._shapes)
        since = perf_counter()
        if refused:
            for result in refused:
                self.writes.refused(code_of_write(result.outcome))
            answer(pb.ResultGroup(session=group.session, results=refused))
        for part in parts:
            enqueues = part.enqueues
            followers = self.delivery.submitted(part.group)
            if followers:
                enqueues = dict(Counter(followers) + Counter(enqueues or {}))
            self.proposer.submit(
                write_proposal(
                    part.data,
                    partial(self._written, part.group, answer, since),
                    commits=part.commits,
                    weight=part.weight,
                    enqueues=enqueues,
                    principal=principal,
                )
            )

    def refuse(self, group: pb.WriteGroup, outcome: "pb.Outcome", message: str = "") -> pb.ResultGroup:
        """The answer to a group that does not come as far as `write`."""
        self.writes.refused(code_of_write(outcome), len(group.writes))
        return refuse_all(group, outcome, message)

    def _written(
        self, group: pb.WriteGroup, answer: Answer, since: float, results: Any, error: RaftError | None
    ) -> None:
        if error is None:
            answer(results)
            seconds = perf_counter() - since
            self.writes.answered(seconds, len(results.results))
            if seconds >= self.slow.threshold:
                self._slow_write(group, since, seconds, pb.OUTCOME_DONE)
        else:
            outcome = outcome_of(error)
            answer(self.refuse(group, outcome, str(error)))
            seconds = perf_counter() - since
            if seconds >= self.slow.threshold:
                self._slow_write(group, since, seconds, outcome)

    def _slow_write(self, group: pb.WriteGroup, since: float, seconds: float, outcome: "pb.Outcome") -> None:
        """Phases: it waited for its entry; that was logged here and on a majority; and applied. Of one that failed only
        how long it took is known."""

        def facts() -> Facts:
            told = {"code": code_of_write(outcome), **of_writes(group)}
            if outcome != pb.OUTCOME_DONE:
                return told
            waited, applied = self.proposer.proposed_at - since, self.proposer.applied_within
            return {
                **told,
                "waited_ms": milliseconds(waited),
                "logged_ms": milliseconds(max(0.0, seconds - waited - applied)),
                "applied_ms": milliseconds(applied),
            }

        self.slow.took("write", seconds, facts, len(group.writes))

    def _is_absent(self, key: bytes) -> bool:
        with self.store.snapshot() as snapshot:
            return not snapshot.get(key).versionstamp

    def open_session(
        self, client: str, answer: Callable[[bytes, RaftError | None], None], principal: bytes = b""
    ) -> None:
        """Open a session; `answer` gets its id, 10 bytes, or b"" if there are too many."""
        command = pb.Command(principal=principal, open_session=pb.OpenSession(client=client))
        self.proposer.submit(proposal(command, partial(self._session_opened, answer)), urgent=True)

    def submit(self, command: pb.Command, done: Callable[[Any, RaftError | None], None]) -> None:
        """Propose one of the node's own commands."""
        item: Proposal = proposal(command, done)
        self.proposer.submit(item, urgent=True)

    # ---- connections

    def connected(self, session: bytes) -> None:
        self.sessions.connected(session)
        self.delivery.connected(session)

    def disconnected(self, session: bytes, silent: float = 0.0) -> None:
        """`silent`: seconds since the client was heard of on this connection."""
        self.sessions.disconnected(session)
        self.delivery.disconnected(session, silent)

    # ---- watches

    def watch(self, keys: list[bytes], notify: Callable[[Watch], None]) -> Watch:
        """Watch keys; the first snapshot holds everything that was committed before this call.

        End it with `hub.remove`.
        """
        watch = self.hub.add(keys, notify)
        self.barrier.wait(partial(self._watch_ready, watch))
        return watch

    def _watch_ready(self, watch: Watch, error: RaftError | None) -> None:
        if error is None:
            watch.begin()
        else:
            self.hub.remove(watch)
            watch.end(str(error))

    def watch_range(
        self, bounds: tuple[bytes, bytes], since: bytes, *, keys_only: bool, deliver: Deliver, has_room: HasRoom
    ) -> RangeWatch:
        """Watch a range; see `RangeHub.add`. Its first event shows a state that holds everything that was committed
        before this call.

        End it with `ranges.remove`.
        """
        ranges = self.ranges
        full = ranges.is_full
        watch = ranges.add(bounds, since, keys_only=keys_only, deliver=deliver, has_room=has_room)
        if full:
            self._timers.call_soon(ranges.end, watch, f"more than {MAX_WATCHES:,} ranges are watched on this node")
        else:
            self.barrier.wait(partial(self._range_ready, watch))
        return watch

    def _range_ready(self, watch: RangeWatch, error: RaftError | None) -> None:
        if error is None:
            self.ranges.begin(watch)
        else:
            self.ranges.end(watch, str(error))

    # ---- readiness

    async def behind(self, patience: float) -> str:
        """Wait until the state holds every entry that is known here to be committed now, at most `patience` seconds.
        Returns what is missing then; empty: nothing."""
        index = self.consensus.commit_index
        if self.store.applied_index >= index:
            return ""
        reached = self._reached.get(index)
        if reached is None:
            reached = self._reached[index] = asyncio.get_running_loop().create_future()
        await asyncio.wait([reached], timeout=patience)
        if self.store.applied_index >= index:
            return ""
        return f"entry {index:,} is committed, and the state of this node is at entry {self.store.applied_index:,}"

    def _tell_reached(self, index: int) -> None:
        for waited_for in [number for number in self._reached if number <= index]:
            reached = self._reached.pop(waited_for)
            if not reached.done():
                reached.set_result(None)

    # ---- leadership

    @property
    def leader(self) -> pb.Leader:
        """Who leads, for clients: without a node while nobody does, and while this node leads but cannot serve yet."""
        return self._news.message

    def on_leader(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when `leader` changes. Returns how to stop that."""
        return self._news.listen(listener)

    def statistics(self) -> dict[str, float]:
        figures: dict[str, float] = dict(self.store.statistics())
        for part in (
            self.proposer,
            self.delivery,
            self.hub,
            self.ranges,
            self.barrier,
            self.lists,
            self.reads,
            self.sweeper,
            self.ticker,
            self.calls,
            self.sessions,
            self.lag,
            self.access,
            self.slow,
            self.unread,
        ):
            figures.update(part.statistics())
        outcomes = self.proposer.outcomes
        figures["write_conflicts"] = outcomes[pb.OUTCOME_CHECK_FAILED]
        figures["write_stale_leases"] = outcomes[pb.OUTCOME_STALE_LEASE]
        figures.update(NO_TRACES if self.tracing is None else self.tracing.statistics())
        figures["corruptions"] = bool(self.reads.damage) + bool(self.lists.damage)
        for more in self._more_statistics:
            figures.update(more())
        return figures

    # ---- news of the consensus layer

    def _applied(self, applied: Applied) -> None:
        ahead = applied.time_ms - self._timers.time() * 1000
        if ahead > self._time_ahead + TIME_JUMP:
            # An operator has set the cluster's time: alarms that were set by the old one would ring too late.
            self._time_ahead = ahead
            self.sweeper.time_moved()
            self.delivery.time_moved()
            self.ticker.time_moved()
        result = applied.result
        if result is not None:
            if result.auth_changed:  # before anything that this entry has changed is told to anybody
                self.access.changed()
            if result.denials:
                self.access.applied(result.denials, result.denied, leading=self._leading)
            if result.changed_keys:
                self.hub.applied(result.changed_keys)
            self.ranges.applied(applied.index, result.changed_keys)
            if result.earliest_expiry_ms is not None:
                self.sweeper.expires(result.earliest_expiry_ms)
            if (
                result.granted
                or result.ended
                or result.ready
                or result.leased
                or result.extended
                or result.policies_changed
            ):
                self.delivery.applied(result)
            if result.schedules_changed:
                self.ticker.changed()
            if result.closed_sessions:
                self.sessions.closed(result.closed_sessions)
        self.reads.applied(applied.index)
        if self._reached:
            self._tell_reached(applied.index)

    def _installed(self, index: int) -> None:
        """A snapshot is the state now: what lies between the old one and it was never applied here (rules E1).

        Only a follower installs one. What belongs to an office (sweeper, sessions, leases, ticks) begins from the state
        when the office is taken, so there is nothing in it that could be out of date. Lists go on from the snapshot
        that they hold.
        """
        self.access.changed()
        self.hub.installed()
        self.ranges.installed()
        self.reads.applied(index)
        self._tell_reached(index)
        self._news.tell()

    def _leadership(self, leading: bool) -> None:
        if not self._started:
            return
        self._set_office(leading=leading)
        self._news.changed()

    def _set_office(self, *, leading: bool) -> None:
        if leading == self._leading:
            return
        self._leading = leading
        logger.info("this node %s", "leads" if leading else "does not lead any more")
        for part in (self.sweeper, self.sessions, self.delivery, self.ticker, self.rates):
            if leading:
                part.took_office()
            else:
                part.left_office()

    def _leaderless(self) -> None:
        """No leader for three maximum election timeouts: what this node shows may be old for long (rules E2)."""
        self.hub.end_all("this node has lost contact with the leader")
        self.ranges.end_all("this node has lost contact with the leader")

    def _session_opened(
        self, answer: Callable[[bytes, RaftError | None], None], session: Any, error: RaftError | None
    ) -> None:
        if error is None:
            self.sessions.opened(session)
            answer(session, None)
        else:
            answer(b"", error)


async def settle_down(service: NodeService, command: pb.Command) -> Any:
    """Propose a command and wait for its output; raises what went wrong."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(output: Any, error: RaftError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(output)
        else:
            future.set_exception(error)

    service.submit(command, done)
    return await future


__all__ = ["NodeService", "ServiceSettings", "settle_down"]
