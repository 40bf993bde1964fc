"""`RaftNode`: the consensus layer of one node, as an asyncio owner of the core, the log and the peers' connections.

Everything but the log writer and the background thread runs in one event loop. Messages, proposals and finished syncs
change the core at once and ask for a *step* (`SafeSyncObj.tick`, see `stepping`).
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.admission import Admissions
from kvorum_raft.background import Background, ThreadBackground
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.comparing import Comparing
from kvorum_raft.config import RaftConfig
from kvorum_raft.copier import PipeCopier, no_latency
from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.errors import Diverged, NotLeader, ProtocolError, RaftError, RaftFault, Refused
from kvorum_raft.faults import (
    REBUILD_MARKER,
    REFUSED_MARKER,
    OnFault,
    check_refused,
    exit_process,
    has_marker,
    kind_of,
    remove_marker,
    write_marker,
)
from kvorum_raft.folder_lock import FolderLock
from kvorum_raft.follower_reads import FollowerReads
from kvorum_raft.guard import Guard, GuardedBackground
from kvorum_raft.isolation import Isolation
from kvorum_raft.journal import RaftJournal
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_store import LogStore
from kvorum_raft.membership import Membership
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.report import Parts, Reporting
from kvorum_raft.seams import Administration, Applied, Consensus, Member, StateMachine
from kvorum_raft.snapshotting import Snapshotting, restore
from kvorum_raft.stepping import Stepper
from kvorum_raft.transport import PeerTransport
from kvorum_raft.waiters import StateWaiters

_LEADING: Final = ("append", "snapshot_offer", "snapshot_chunk")
_REPLIES: Final = ("pre_vote_reply", "vote", "append_reply", "snapshot_reply")
"""Of these only what members' own folders say counts."""
_FAREWELL: Final = 1.0
"""Seconds between the end of a refused node's part and that of its process."""
_LOOK_EVERY: Final = 0.01
"""Seconds between looks at what changes slowly or has pauses of its own: seven calls that most steps do without."""
_T = TypeVar("_T")
_log = logging.getLogger("kvorum.raft")

if TYPE_CHECKING:

    def _conforms(node: "RaftNode") -> tuple[Consensus, Administration]:
        return node, node


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _checkpoints(folder: Path, stopping: Callable[[], bool]) -> Checkpoints:
    return Checkpoints(folder, copier=PipeCopier(stopping=stopping))


def _never_low() -> bool:
    return False


class RaftNode(Reporting):
    """One voter of a cluster; implements `seams.Consensus`.

    `machine.applied_index` may be behind the log: what is missing is applied again. `first_payload(cluster_id)` makes
    the first command of a new cluster. `on_fault` is called once, when nothing may be sent any more; by default it ends
    the process. `wall` gives Unix milliseconds. `open_log` (as `LogStore.open`) and `make_disk` are what simulations
    replace: the log's environment and the thread that writes it; so are `make_checkpoints(folder, stopping)` and
    `make_background(loop)`. `stopwatch` gives the seconds that metrics are made of. `low_space`
    says whether this node's disk is nearly full.
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
        make_background: Callable[[asyncio.AbstractEventLoop], Background] = ThreadBackground,
        make_checkpoints: Callable[[Path, Callable[[], bool]], Checkpoints] = _checkpoints,
        stopwatch: Callable[[], float] = time.perf_counter,
        low_space: Callable[[], bool] = _never_low,
    ) -> None:
        self._config = config
        self._open_log = open_log
        self._make_disk = make_disk
        self._make_background = make_background
        self._make_checkpoints = make_checkpoints
        self._low_space = low_space
        self._stopwatch = stopwatch
        self._machine = machine
        self._first_payload = first_payload
        self._folder = config.data_dir / "raft"
        self._on_fault = on_fault if on_fault is not None else exit_process(self._folder)
        self._wall = wall
        self._rng = rng if rng is not None else random.Random(secrets.randbits(64))
        self._random_bytes = random_bytes
        self._guard = Guard(self._fault)
        self._on_leadership: list[Callable[[bool], None]] = []
        self._on_applied: list[Callable[[Applied], None]] = []
        self._on_installed: list[Callable[[int], None]] = []
        self._role_seen: tuple[bool, str | None, Member | None] = (False, None, None)
        self._isolation = Isolation(config.node_id)
        self._waiters = StateWaiters(config.limits.reads)
        self._hold_log: Callable[[], int | None] | None = None
        self._lock = FolderLock(self._folder)
        self._store: LogStore | None = None
        self._running = False
        self._failed = False
        self._look_due = float("-inf")
        self._stepped_seq = -1
        """Where the journal was after the last step."""
        self._writer_ended: asyncio.Event | None = None

    # ------------------------------------------------------------------ life

    def hold_log(self, bound: Callable[[], int | None]) -> None:
        """Entries behind this one are not cut off, however many checkpoints cover them; None: they may be. Called
        often. To be called before `start`."""
        self._hold_log = bound

    async def start(self) -> None:
        """Check the folder, bind the peer port, begin.

        Raises ConfigurationError or Refused with one line for the operator, RaftFault for damage. Reads the whole log
        before it returns.
        """
        self._config.check()
        self._loop = asyncio.get_running_loop()
        try:
            self._open()
            await self._transport.bind()
            # Only now: a start that fails before it could meet anybody takes no place in the list of starts.
            self._begin()
            self._transport.serve()
        except BaseException:
            await self._close()
            raise
        self._running = True
        self._stepper.start()
        with self._guard:
            self._admissions.try_form()
        self._ask_step()

    def _begin(self) -> None:
        assert self._store is not None
        self._store.put_now({ids.IDENTITY_KEY: self._admissions.identity.encode()})

    def _open(self) -> None:
        """From the folder up; nothing is sent yet."""
        config, loop = self._config, self._loop
        self._lock.take()
        check_refused(self._folder)
        store = self._store = self._open_log(self._folder / "log", map_size=config.map_size)
        identity = ids.started(store.get(ids.IDENTITY_KEY), config.node_id, self._random_bytes)
        stored = store.verify(cache=config.limits.log_cache)
        formation = store.get(ids.FORMATION_KEY)
        admissions = [ids.decode_admission(record) for record in store.records(ids.ADMISSION_PREFIX) if record]
        self._disk = self._make_disk(store, self._report)
        self._journal = RaftJournal(self._disk, stored, cache=config.limits.log_cache, clock=loop.time)
        self._transport = PeerTransport(config, self, self._rng)
        background = GuardedBackground(self._make_background(loop), self._guard, self._ask_step)
        checkpoints = self._open_checkpoints(background.stopping)
        empty = formation is None and not stored.configurations
        self._core = self._make_core(identity.incarnation, joining=config.join and empty)
        self._snapshots = self._core.snapshots = self._make_snapshots(checkpoints, background)
        if self._hold_log is not None:
            self._snapshots.hold_log(self._hold_log)
        quiet = QuietLog(_log, loop.time)
        self._admissions = Admissions(config, identity, admissions, self._journal, self._core, quiet, self._broadcast)
        self._stepper = Stepper(loop, self._tick, self._core.next_wakeup)
        self._comparing = Comparing(self._core, self._machine, self._transport.send, every=config.limits.hash_every)
        self._membership = Membership(self._core, self._transport.meet, self._ask_step)
        self._reads = self._make_reads()
        self._parts = self._make_parts()
        self._writer_ended = asyncio.Event()
        self._disk.start()
        if self._journal.configurations and formation is None:
            formation = self._journal.configurations[-1].payload
        if formation is not None:
            self._core.form(cf.decode(formation))

    def _make_core(self, incarnation: bytes, *, joining: bool) -> SafeSyncObj:
        config, loop = self._config, self._loop
        return SafeSyncObj(
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
            stopwatch=self._stopwatch,
            first_payload=self._first_payload,
            joining=joining,
            incarnation=incarnation,
        )

    def _make_snapshots(self, checkpoints: Checkpoints, background: Background) -> Snapshotting:
        checkpoints.copier.watch(getattr(self._disk, "latency", no_latency))
        return Snapshotting(
            self._core,
            self._journal,
            self._machine,
            checkpoints,
            background,
            clock=self._loop.time,
            send=self._transport.send,
            installed=self._installed,
            fault=self._fault,
            minimum=self._config.limits.checkpoint_log,
        )

    def _make_reads(self) -> FollowerReads:
        return FollowerReads(
            self._core.ask_leader,
            self._loop.time,
            limit=self._config.limits.reads,
            timeout=self._config.timing.election_max,
            first_id=1 + int.from_bytes(self._random_bytes(7), "big"),
        )

    def _make_parts(self) -> Parts:
        return Parts(
            self._core,
            self._journal,
            self._disk,
            self._transport,
            self._admissions,
            self._snapshots,
            self._comparing,
            self._reads,
            self._waiters,
            self._stepper,
            {member.node_id: member for member in self._config.members},
            self._loop.time,
        )

    def _open_checkpoints(self, stopping: Callable[[], bool]) -> Checkpoints:
        """And with them, if it must be, the state."""
        checkpoints = self._make_checkpoints(self._config.data_dir / "checkpoints", stopping)
        try:
            checkpoints.load()
            if has_marker(self._folder, REBUILD_MARKER):
                if self._machine.applied_index:
                    raise RaftFault(f"{self._folder / REBUILD_MARKER} is there, but the state was not thrown away")
                checkpoints.clear()
                remove_marker(self._folder, REBUILD_MARKER)
            restore(self._machine, checkpoints, self._journal)
        except OSError as error:
            kind = kind_of(error, checkpoints.folder)
            raise kind(f"the checkpoints in {checkpoints.folder} cannot be used: {error}") from error
        return checkpoints

    async def stop(self) -> None:
        """Complete everything that waits, write what is queued, close. May be called more than once."""
        if self._running:
            self._running = False
            if not self._failed:
                self._admissions.note_acknowledged(self._loop.time(), leaving=True)
            self._end("this node stops")
            if not self._failed:
                self._journal.flush(anyway=True)
        await self._close()

    def _end(self, why: str) -> None:
        """Nothing is sent or promised any more."""
        self._core.stop(why)
        self._reads.fail(why)
        self._waiters.fail(why)
        self._stepper.stop()
        self._tell_role()

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None and hasattr(self, "_disk") and self._writer_ended is not None:
            await self._transport.stop()
            if hasattr(self, "_snapshots"):
                self._snapshots.stop()
            if not self._disk.ended:
                self._disk.finish()
                await self._writer_ended.wait()
            self._disk.join()
        if store is not None:
            store.close()
        self._lock.release()

    def _fault(self, error: Exception) -> None:
        """An invariant is broken: stop at once, then tell the owner."""
        if self._failed:
            return
        self._failed = True
        kind = kind_of(error, self._folder)
        cause = error if isinstance(error, RaftError) else kind(f"{type(error).__name__}: {error}")
        _log.critical("node %s stops: %s", self._config.node_id, cause, exc_info=None if cause is error else error)
        if isinstance(cause, Refused) and cause.lasting:
            write_marker(self._folder, REFUSED_MARKER, str(cause))
        elif isinstance(cause, Diverged):
            write_marker(self._folder, REBUILD_MARKER, str(cause))
        self._transport.destroy()
        if isinstance(cause, Refused):
            self._end(f"this node takes no part any more ({cause}): its cluster's members tell what was done")
            # Nothing is wrong with this process, so whoever waited, for its own removal say, shall get his answer.
            self._loop.call_later(_FAREWELL, self._on_fault, cause)
        else:
            self._end("this node failed")
            self._on_fault(cause)

    # ------------------------------------------------------------------ steps

    def _ask_step(self) -> None:
        self._stepper.ask()

    def _tick(self, judge: bool) -> bool:
        more = False
        now = self._loop.time()
        looks = now >= self._look_due
        with self._guard:
            if looks:
                self._look_due = now + _LOOK_EVERY
                self._core.low_space = self._low_space()
                self._admissions.note_acknowledged(now)
            more = self._core.tick(judge=judge)
            self._stepped_seq = self._journal.seq
            if looks:
                self._snapshots.tick()
                self._reads.check_age()
        return more

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
        core = self._core
        installing = core.installing
        with self._guard:
            core.durable(seq)
            self._admissions.durable(seq)
        if self._running and (installing or self._journal.seq != self._stepped_seq or core.needs_step()):
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
        if self._core.applied_index == self._core.commit_index:
            self._stepper.at_once()
        else:
            self._ask_step()  # what was answered is to be sent before the next entry is applied
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
        await self._waiters.wait(index)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        self._on_leadership.append(callback)

    def on_applied(self, callback: Callable[[Applied], None]) -> None:
        self._on_applied.append(callback)

    def on_installed(self, callback: Callable[[int], None]) -> None:
        self._on_installed.append(callback)

    # ------------------------------------------------------------------ Administration

    async def add(self, member: Member) -> None:
        await self._administration.add(member)

    async def promote(self, node_id: str) -> None:
        await self._administration.promote(node_id)

    async def remove(self, node_id: str) -> None:
        await self._administration.remove(node_id)

    async def replace(self, member: Member) -> None:
        await self._administration.replace(member)

    async def transfer(self, node_id: str | None = None) -> str:
        return await self._administration.transfer(node_id)

    async def set_time(self, unix_ms: int) -> None:
        await self._administration.set_time(unix_ms)

    @property
    def _administration(self) -> Membership:
        if not self._running or self._failed:
            raise NotLeader("this node is not running")
        return self._membership

    # ------------------------------------------------------------------ what the core reports (Listener)

    def applied(self, applied: Applied) -> None:
        self._waiters.reached(applied.index)  # their futures wake them after all this
        self._comparing.applied(applied.index)
        for callback in self._on_applied:
            with self._isolation:
                callback(applied)

    def _installed(self, index: int) -> None:
        """A snapshot became the state."""
        self._comparing.installed()
        for callback in self._on_installed:
            with self._isolation:
                callback(index)
        self._waiters.reached(index)

    def state_hash(self, node: Node, message: pb.StateHash) -> None:
        self._comparing.received(node, message)

    def role_changed(self) -> None:
        self._reads.fail("the leader changed")
        self._loop.call_soon(self._tell_role)

    def _tell_role(self) -> None:
        role = (self.is_leader, self._core.leader_id if self._running else None, self.leader)
        if role != self._role_seen:
            self._role_seen = role
            for callback in self._on_leadership:
                with self._isolation:
                    callback(role[0])

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        self._transport.update(one.member for one in configuration.members)
        self._admissions.configured(configuration, committed)
        self._transport.expel(self._admissions.unwanted)
        self._loop.call_soon(self._tell_role)  # a leader's address may be known only now

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
            greeting = self._admissions.greeting(hello)
            if greeting is not None:
                self._transport.send(node, greeting)
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
        self._stepper.messages += 1
        with self._guard:
            body = envelope.WhichOneof("body")
            if not self._admissions.is_member_folder(node.id, incarnation) and self._only_members_may(body, envelope):
                return
            if body == "formation":
                try:
                    self._admissions.reported(node.id, incarnation, envelope.formation)
                except ValueError as error:
                    raise ProtocolError(f"a formation report that makes no sense: {error}") from error
            else:
                self._transport.deliver(node, envelope)
            if (
                body != "append_reply"
                or not envelope.append_reply.success
                or self._journal.seq != self._stepped_seq
                or self._core.needs_step()
            ):
                self._ask_step()

    def _only_members_may(self, body: str | None, envelope: pb.Envelope) -> bool:
        """A guest may lead and ask for votes: this node may be behind. It has no say in anything else, and to lead a
        term in which this node leads is nonsense."""
        if body in _REPLIES or (body == "state_hash" and not envelope.state_hash.verdict):
            return True
        if body in _LEADING and self._core.state == LEADER and envelope.term == self._core.term:
            raise ProtocolError(f"somebody who is no member claims to lead term {envelope.term}")
        return False

    def _broadcast(self, envelope: pb.Envelope) -> None:
        self._transport.broadcast(envelope)
