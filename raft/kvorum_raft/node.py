"""`RaftNode`: the consensus layer of one node, as an asyncio owner of the core, the log and the peers' connections.

Everything but the log writer runs in one event loop. Messages, proposals and finished syncs change the core at once and
ask for a *step* (`SafeSyncObj.tick`), which runs once for all that happened in one turn of the loop; without events
there is one every 50 ms. A step that comes late does not judge timers at first: what would answer them may lie unread
in the sockets, so the loop reads those before.
"""

import asyncio
import fcntl
import heapq
import logging
import os
import random
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.admission import Admissions
from kvorum_raft.config import RaftConfig
from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.errors import ConfigurationError, NotLeader, ProtocolError, RaftError, RaftFault, Refused
from kvorum_raft.faults import REFUSED_MARKER, OnFault, check_refused, exit_process, write_marker
from kvorum_raft.follower_reads import FollowerReads
from kvorum_raft.isolation import Isolation
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_store import LmdbDisk, LogStore
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Applied, Consensus, Member, PeerView, StateMachine, Status
from kvorum_raft.transport import PeerTransport

_LATE: Final = 0.15
_MAX_DRAINS: Final = 64
_ROLES: Final = ("follower", "candidate", "leader")
_log = logging.getLogger("kvorum.raft")

if TYPE_CHECKING:

    def _conforms(node: "RaftNode") -> Consensus:
        return node


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class _Guard:
    """Around every entry into the core: whatever it raises ends the node, except what only says that a peer talks
    nonsense."""

    def __init__(self, fault: Callable[[Exception], None]) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ProtocolError):
            return False
        self._fault(error)
        return True


class RaftNode:
    """One voter of a cluster; implements `seams.Consensus`.

    `machine.applied_index` may be behind the log: what is missing is applied again. `first_payload(cluster_id)` makes
    the first command of a new cluster. `on_fault` is called once, when nothing may be sent any more; by default it ends
    the process. `wall` gives Unix milliseconds. `open_log` (as `LogStore.open`) and `make_disk` are what simulations
    replace: the log's environment and the thread that writes it.
    """

    def __init__(
        self,
        config: RaftConfig,
        machine: StateMachine,
        *,
        first_payload: Callable[[bytes], bytes] | None = None,
        on_fault: OnFault | None = None,
        wall: Callable[[], int] = _wall_ms,
        rng: random.Random | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        open_log: Callable[..., LogStore] = LogStore.open,
        make_disk: Callable[[LogStore, Callable[[int, RaftFault | None], None]], LmdbDisk] = LmdbDisk,
    ) -> None:
        self._config = config
        self._open_log = open_log
        self._make_disk = make_disk
        self._machine = machine
        self._first_payload = first_payload
        self._folder = config.data_dir / "raft"
        self._on_fault = on_fault if on_fault is not None else exit_process(self._folder)
        self._wall = wall
        self._rng = rng if rng is not None else random.Random(secrets.randbits(64))
        self._random_bytes = random_bytes
        self._guard = _Guard(self._fault)
        self._members = {member.node_id: member for member in config.members}
        self._on_leadership: list[Callable[[bool], None]] = []
        self._on_applied: list[Callable[[Applied], None]] = []
        self._role_seen: tuple[bool, str | None] = (False, None)
        self._state_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_number = 0
        self._lock_fd: int | None = None
        self._store: LogStore | None = None
        self._running = False
        self._failed = False
        self._step_asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._last_step = 0.0
        self._drains_left = 0
        self._drained_at = 0
        self._messages = 0
        self._writer_ended: asyncio.Event | None = None
        self.late_steps = 0
        self.longest_step = 0.0

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Check the folder, bind the peer port, begin.

        Raises ConfigurationError or Refused with one line for the operator, RaftFault for damage. Reads the whole log
        before it returns.
        """
        self._config.check()
        self._loop = asyncio.get_running_loop()
        try:
            self._open()
            await self._transport.start()
        except BaseException:
            await self._close()
            raise
        self._running = True
        self._last_step = self._loop.time()
        with self._guard:
            self._admissions.try_form()
        self._ask_step()

    def _open(self) -> None:
        config, loop = self._config, self._loop
        self._lock_folder()
        check_refused(self._folder)
        store = self._store = self._open_log(self._folder / "log", map_size=config.map_size)
        identity = ids.started(store.get(ids.IDENTITY_KEY), config.node_id, self._random_bytes)
        stored = store.verify(cache=config.limits.log_cache)
        formation = store.get(ids.FORMATION_KEY)
        admissions = [ids.decode_admission(record) for record in store.records(ids.ADMISSION_PREFIX)]
        store.put_now({ids.IDENTITY_KEY: identity.encode()})
        self._disk = self._make_disk(store, self._report)
        self._journal = RaftJournal(self._disk, stored, cache=config.limits.log_cache, clock=loop.time)
        self._transport = PeerTransport(config, self, self._rng)
        self._core = SafeSyncObj(
            config.node_id,
            self._journal,
            self._transport,
            self._machine,
            self,
            EntryClock(config.node_id, self._wall, loop.time),
            timing=config.timing,
            limits=config.limits,
            clock=loop.time,
            rng=self._rng,
            new_id=lambda: self._random_bytes(cf.ID_SIZE),
            first_payload=self._first_payload,
        )
        self._reads = FollowerReads(
            self._core.ask_leader,
            loop.time,
            limit=config.limits.reads,
            timeout=config.timing.election_max,
            first_id=1 + int.from_bytes(self._random_bytes(7), "big"),
        )
        quiet = QuietLog(_log, loop.time)
        self._admissions = Admissions(config, identity, admissions, self._journal, self._core, quiet, self._broadcast)
        self._writer_ended = asyncio.Event()
        self._disk.start()
        if formation is not None or self._journal.configurations:
            self._core.form(
                cf.decode(formation) if formation is not None else cf.decode(self._journal.configurations[-1].payload)
            )

    def _lock_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(f"cannot use the folder {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ConfigurationError(f"the folder {self._folder} is in use by another process") from error
        self._lock_fd = fd

    async def stop(self) -> None:
        """Complete everything that waits, write what is queued, close. May be called more than once."""
        if self._running:
            self._running = False
            self._end("this node stops")
            if not self._failed:
                self._journal.flush(anyway=True)
        await self._close()

    def _end(self, why: str) -> None:
        """Nothing is sent or promised any more."""
        self._core.stop(why)
        self._reads.fail(why)
        for _, _, future in self._state_waiters:
            if not future.done():
                future.set_exception(NotLeader(why))
        self._state_waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_role()

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None and hasattr(self, "_disk") and self._writer_ended is not None:
            await self._transport.stop()
            if not self._disk.ended:
                self._disk.finish()
                await self._writer_ended.wait()
            self._disk.join()
        if store is not None:
            store.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _fault(self, error: Exception) -> None:
        """An invariant is broken: stop at once, then tell the owner."""
        if self._failed:
            return
        self._failed = True
        cause = error if isinstance(error, RaftError) else RaftFault(f"{type(error).__name__}: {error}")
        _log.critical("node %s stops: %s", self._config.node_id, cause, exc_info=None if cause is error else error)
        if isinstance(cause, Refused) and cause.lasting:
            write_marker(self._folder, REFUSED_MARKER, str(cause))
        self._transport.destroy()
        self._end("this node failed")
        self._on_fault(cause)

    # ------------------------------------------------------------------ steps

    def _ask_step(self) -> None:
        if not self._step_asked:
            self._step_asked = True
            self._loop.call_soon(self._step)

    def _on_timer(self) -> None:
        self._timer = None
        self._step()

    def _step(self) -> None:
        self._step_asked = False
        if not self._running or self._failed:
            return
        now = self._loop.time()
        judge = self._caught_up(now)
        with self._guard:
            if self._core.tick(judge=judge) or not judge:
                self._ask_step()
            self._reads.check_age()
            end = self._loop.time()
            self.longest_step = max(self.longest_step, end - now)
            self._set_timer(end)

    def _caught_up(self, now: float) -> bool:
        """False while input may lie unread after a pause of the process: another turn of the loop reads it first."""
        if now - self._last_step > _LATE:
            self.late_steps += 1
            self._drains_left, self._drained_at = _MAX_DRAINS, -1
        self._last_step = now
        if not self._drains_left:
            return True
        if self._drained_at == self._messages and self._drains_left <= _MAX_DRAINS - 2:
            self._drains_left = 0
            return True
        self._drained_at = self._messages
        self._drains_left -= 1
        return False

    def _set_timer(self, now: float) -> None:
        due = now + self._core.next_wakeup(now)
        if self._timer is not None:
            if self._timer_due <= due + 0.001 and self._timer_due > now:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._on_timer)

    def _report(self, seq: int, fault: RaftFault | None) -> None:
        """In the writer thread."""
        try:
            self._loop.call_soon_threadsafe(self._durable, seq, fault)
        except RuntimeError:
            _log.debug("the event loop ended before the log writer")

    def _durable(self, seq: int, fault: RaftFault | None) -> None:
        if fault is not None and not self._failed:
            self._fault(fault)
        if seq < 0 or fault is not None:
            if self._writer_ended is not None:
                self._writer_ended.set()
            return
        if self._failed:
            return
        with self._guard:
            self._core.durable(seq)
            self._admissions.durable(seq)
        if self._running:
            self._ask_step()

    # ------------------------------------------------------------------ Consensus

    def propose(self, payload: bytes) -> "asyncio.Future[Applied]":
        """See `seams.Consensus`. ValueError for an empty or too large payload."""
        if not self._running or self._failed:
            raise NotLeader("this node is not running")
        future: asyncio.Future[Applied] = self._loop.create_future()

        def done(applied: Applied | None, error: RaftError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            elif applied is not None:
                future.set_result(applied)

        try:
            self._core.propose(payload, done)
        except RaftFault as fault:
            self._fault(fault)
            raise
        self._ask_step()
        return future

    async def read_index(self) -> int:
        """See `seams.Consensus`."""
        if not self._running or self._failed:
            raise NotLeader("this node is not running")
        if self._core.state == LEADER:
            future: asyncio.Future[int] = self._loop.create_future()

            def done(index: int, error: RaftError | None) -> None:
                if future.done():
                    return
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(index)

            self._core.read_index(done)
            self._ask_step()
        else:
            future = self._reads.read()
        await self._state_at(await future)
        return self._core.applied_index

    async def _state_at(self, index: int) -> None:
        if self._core.applied_index >= index:
            return
        if not self._running or self._failed:
            raise NotLeader("this node is not running")
        self._ask_step()
        self._waiter_number += 1
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._state_waiters, (index, self._waiter_number, future))
        await future

    def now_ms(self) -> int:
        if not self._running:
            return self._wall()
        return self._core.entry_clock.now_ms()

    @property
    def is_leader(self) -> bool:
        return self._running and not self._failed and self._core.leads

    @property
    def leader(self) -> Member | None:
        leader_id = self._core.leader_id if self._running and not self._failed else None
        return self._member(leader_id) if leader_id is not None else None

    def _member(self, node_id: str) -> Member | None:
        """Addresses of the configuration file, which can be newer than those in the log."""
        if node_id in self._members:
            return self._members[node_id]
        voter = self._core.configuration.find(node_id) if self._core.configuration is not None else None
        return voter.member if voter is not None else None

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        self._on_leadership.append(callback)

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        self._on_applied.append(callback)

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; empty until the cluster's first entry is committed, and while the node does not run."""
        if not self._running:
            return b""
        return self._admissions.identity.cluster_id

    @property
    def forming_waits_for(self) -> list[str]:
        """Listed nodes that were not met yet, while the cluster is being formed."""
        return self._admissions.forming_waits_for if self._running else []

    def status(self) -> Status:
        if not self._running:
            return Status(self._config.node_id, b"", _ROLES[0], 0, None, 0, self._machine.applied_index, 0, 0)
        core, journal = self._core, self._journal
        configuration = core.configuration
        others = list(configuration.incarnations if configuration else self._members)
        peers = [
            PeerView(member, self._transport.is_connected(node_id), core.match_index(node_id))
            for node_id in others
            if node_id != self._config.node_id and (member := self._member(node_id)) is not None
        ]
        return Status(
            node_id=self._config.node_id,
            cluster_id=self.cluster_id,
            role=_ROLES[core.state],
            term=core.term,
            leader=self.leader,
            commit_index=core.commit_index,
            applied_index=core.applied_index,
            last_log_index=journal.last_index,
            durable_index=journal.durable_index,
            peers=tuple(peers),
            statistics=self.statistics(),
        )

    def statistics(self) -> dict[str, float]:
        """Counters since the start, and gauges; seconds and bytes."""
        if not self._running:
            return {}
        core = self._core
        found: dict[str, float] = {
            "term": core.term,
            "commit_index": core.commit_index,
            "applied_index": core.applied_index,
            "uncommitted_bytes": core.uncommitted_bytes,
            "reads_served": core.rounds.served,
            "reads_waiting": len(core.rounds) + len(self._reads) + len(self._state_waiters),
            "rounds": core.rounds.round,
            "log_transactions": self._disk.transactions,
            "log_unsynced_age": self._journal.unsynced_age(self._loop.time()),
            "late_steps": self.late_steps,
            "longest_step": self.longest_step,
        }
        found.update(self._journal.statistics())
        found.update(core.counters)
        found.update({f"peer_{name}": value for name, value in self._transport.counters.items()})
        return found

    # ------------------------------------------------------------------ what the core reports (Listener)

    def applied(self, applied: Applied) -> None:
        for callback in self._on_applied:
            callback(applied)
        while self._state_waiters and self._state_waiters[0][0] <= applied.index:
            future = heapq.heappop(self._state_waiters)[2]
            if not future.done():
                future.set_result(None)

    def role_changed(self) -> None:
        self._reads.fail("the leader changed")
        self._loop.call_soon(self._tell_role)

    def _tell_role(self) -> None:
        role = (self.is_leader, self._core.leader_id if self._running else None)
        if role != self._role_seen:
            self._role_seen = role
            for callback in self._on_leadership:
                with Isolation(self._config.node_id):
                    callback(role[0])

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        if committed:
            self._admissions.committed(configuration)

    def read_answered(self, read_id: int, ok: bool, index: int) -> None:
        self._reads.answered(read_id, ok, index)

    # ------------------------------------------------------------------ what the transport reports (Owner)

    def hello(self, target: str) -> pb.Hello:
        return self._admissions.hello(target)

    def admit(self, hello: pb.Hello, done: Callable[[pb.Reject | None], None]) -> None:
        if self._failed:
            done(pb.Reject(code=pb.Reject.BUSY, text="this node is stopping"))
            return
        with self._guard:
            self._admissions.judge(hello, done)

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None:
        with self._guard:
            self._admissions.rejected_by(node_id, reject)

    def peer_connected(self, node: Node, hello: pb.Hello) -> None:
        with self._guard:
            if not hello.formed or self._core.configuration is None:
                self._transport.send(node, self._admissions.formation())
            self._transport._onNodeConnected(node)
            self._ask_step()

    def peer_disconnected(self, node: Node) -> None:
        with self._guard:
            self._transport._onNodeDisconnected(node)
            if node.id == self._core.leader_id:
                self._reads.fail("the connection to the leader broke")

    def received(self, node: Node, incarnation: bytes, envelope: pb.Envelope) -> None:
        if not self._running or self._failed:
            return
        self._messages += 1
        with self._guard:
            if envelope.WhichOneof("body") == "formation":
                try:
                    self._admissions.reported(node.id, incarnation, envelope.formation)
                except ValueError as error:
                    raise ProtocolError(f"a formation report that makes no sense: {error}") from error
            else:
                self._transport.deliver(node, envelope)
            self._ask_step()

    def _broadcast(self, envelope: pb.Envelope) -> None:
        for member in self._config.peers:
            self._transport.send(Node(member.node_id), envelope)
