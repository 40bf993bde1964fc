"""The part of the core that every role shares: state, terms, members and applying."""

import logging
import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.appends import AppendHeader
from kvorum_raft.checkpoint_turns import Need, Turn, Turns
from kvorum_raft.config import Limits, Timing
from kvorum_raft.core_partners import Install, Listener, Snapshots, Transfer
from kvorum_raft.entry import Entry, Kind, make
from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.errors import Discarded, DiskFull, RaftError, RaftFault, UnknownOutcome
from kvorum_raft.histogram import Histogram
from kvorum_raft.isolation import Isolation
from kvorum_raft.journal import RaftJournal
from kvorum_raft.library import Library
from kvorum_raft.progress import Progress
from kvorum_raft.reads import ReadRounds
from kvorum_raft.seams import Applied, StateMachine
from kvorum_raft.work import Work

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
_COUNTED: Final = (
    *("elections", "elections_left", "pre_votes", "step_downs", "applied"),
    *("refusals", "installs", "transfers", "leader_changes"),
)
_log = logging.getLogger("kvorum.raft")


class CoreState(Library):
    """State and what each role does with it; see `pysyncobj_fixes` for the rules."""

    def __init__(
        self,
        node_id: str,
        journal: RaftJournal,
        transport: Transport,
        machine: StateMachine,
        listener: Listener,
        entry_clock: EntryClock,
        *,
        timing: Timing,
        limits: Limits,
        clock: Callable[[], float],
        rng: random.Random,
        new_id: Callable[[], bytes],
        stopwatch: Callable[[], float] | None = None,
        first_payload: Callable[[bytes], bytes] | None = None,
        joining: bool = False,
        incarnation: bytes | None = None,
    ) -> None:
        self.node_id = node_id
        self._isolation = Isolation(node_id)
        self.journal = journal
        self.machine = machine
        self.entry_clock = entry_clock
        self.configuration: cf.Configuration | None = None
        self._formation: cf.Configuration | None = None
        self._listener = listener
        self._timing, self._limits = timing, limits
        self._clock, self._rng, self._new_id = clock, rng, new_id
        self._stopwatch = clock if stopwatch is None else stopwatch
        """For what is measured and never judged: a loop's clock may count in milliseconds."""
        self._first_payload = first_payload
        self._joining = joining
        self._incarnation = incarnation
        self.snapshots: Snapshots | None = None
        self.low_space = False
        """This node's disk is nearly full."""
        self.low_on_space: set[str] = set()
        """Leader: voters that said so of theirs."""
        self.checkpoint_need = Need.NONE
        """Of this node."""
        self._install: Install | None = None
        self._transfer: Transfer | None = None
        self.rounds = ReadRounds(limit=limits.reads)
        self._begin_with_nothing()
        super().__init__(node_id, transport, timing)
        self._take_stored()

    def _begin_with_nothing(self) -> None:
        """What no restart remembers."""
        self._progress: dict[Node, Progress] = {}
        self._pre_votes: set[str] = set()
        self._pre_vote_attempt = 0
        self._asking = False
        """Pre-votes are being collected."""
        self._asked_at = float("-inf")
        self._votes: set[str] = set()
        self._contact = float("-inf")
        self._waited_for_clock = False
        self._verified = 0
        self._owed_round: int | None = None
        self._said_last: tuple[int, int] | None = None
        """Follower: the newest round that was answered, and up to where, if that was all there is."""
        self._held: deque[tuple[int, Node, pb.Envelope]] = deque()
        self._uncommitted: deque[tuple[int, int, float]] = deque()  # (index, bytes, when) of each entry
        self._uncommitted_bytes = 0
        self._committed_bytes = 0
        """Leader: of its own term's, since it last looked whether followers know of them."""
        self._work: Work | None = None
        """The entry that is being applied."""
        self._not_ahead = 0
        """Index of an entry that could not be worked out before it was committed, and is tried again then."""
        self._waited = False
        """Follower: the last step left applying to the next one."""
        self._voters: frozenset[str] = frozenset()
        self._office_proof = float("-inf")
        """Leader: when a message was sent that a quorum has answered, as far as that is known."""
        self._counts = False
        self._unable: set[str] = set()
        """Leader: who did not take over when asked."""
        self._configured_by: Entry | None = None
        self._waits_for_others = 0
        self._resign = False
        self._round_times: dict[int, float] = {}
        self._newest_round = (0, 0.0)
        """Leader: its number, and the stopwatch when it began."""
        self._notice_due: float | None = None
        self._proposed_at = self._busy_at = float("-inf")
        """Leader: when a command was proposed, and when that was soon after the one before."""
        self._said: tuple[AppendHeader, pb.Envelope] | None = None
        """Leader: the newest append, which the next follower may get as well."""
        self._turns = Turns()
        self._turn = Turn.UNSAID
        """What the leader said last."""
        self._unsent = False
        self.stopped = False
        self.applied_bytes = 0
        self.counters = dict.fromkeys(_COUNTED, 0)
        self.commit_seconds, self.apply_seconds = Histogram(), Histogram()
        self.round_trips: dict[str, Histogram] = {}
        """Leader: of its rounds, by node id."""

    def _take_stored(self) -> None:
        """Start from what journal and machine hold, instead of what the library's constructor assumed."""
        journal, applied = self.journal, self.machine.applied_index
        self.hollow = applied < journal.base_index
        """The state is behind the beginning of the log: it takes a snapshot to go on. Until then this node stores,
        acknowledges and votes, since its log is whole. It leads only if nobody else can, and only to pass its log on
        to somebody who then takes over."""
        if applied > journal.last_index:
            raise RaftFault(f"the state holds entry {applied}, but the log ends at entry {journal.last_index}")
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.term
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        journal.setRaftCommitIndex(max(applied, journal.base_index))
        self._SyncObj__raftCommitIndex = journal.commit_bound
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftElectionDeadline = self._clock() + self._SyncObj__generateRaftTimeout()
        self.entry_clock.entry_seen(journal.base_time_ms)
        if journal.last_index > journal.base_index:
            self.entry_clock.entry_seen(journal.entry(journal.last_index).time_ms)

    # ------------------------------------------------------------------ what others ask

    @property
    def state(self) -> int:
        return self._SyncObj__raftState

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def leader_id(self) -> str | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    @property
    def far_behind(self) -> bool:
        """There is so much to apply that this node would lead for a while and take nothing: after a restart that built
        its state anew, say."""
        return self.journal.last_index - self._SyncObj__raftLastApplied > self._limits.far_behind

    @property
    def leads(self) -> bool:
        """Leads, and has applied an entry of its own term."""
        noop = self._SyncObj__noopIDx
        return self._SyncObj__raftState == LEADER and noop is not None and self._SyncObj__raftLastApplied >= noop

    @property
    def takes_proposals(self) -> bool:
        """Leads, and is not about to let somebody else lead."""
        return self.leads and self._transfer is None

    @property
    def applying(self) -> bool:
        """An entry is applied in part, and to be gone on with."""
        return self._work is not None and not self._work.ready

    @property
    def uncommitted_bytes(self) -> int:
        return self._uncommitted_bytes

    @property
    def checkpoint_turn(self) -> Turn:
        """Whether this node is to make its checkpoint now."""
        if self.state == LEADER:
            return self._turns.of(self.node_id)
        return self._turn if self._SyncObj__raftLeader is not None else Turn.UNSAID

    def match_index(self, node_id: str) -> int:
        """What a peer acknowledged, as far as this node leads; 0 otherwise."""
        progress = self._progress.get(Node(node_id))
        return progress.match_index if progress is not None and self.state == LEADER else 0

    def is_connected(self, node_id: str) -> bool:
        """True if messages to that peer have a connection."""
        return Node(node_id) in self._SyncObj__connectedNodes

    def hears(self, node_id: str) -> bool:
        """True if this node leads, and that peer has answered it within the longest election timeout."""
        progress = self._progress.get(Node(node_id))
        lately = self._clock() - self._timing.election_max
        return self.state == LEADER and progress is not None and progress.connected and progress.heard_at > lately

    def clock_offset_ms(self) -> float | None:
        """This node's wall clock minus the cluster's middle one; None if that is not known."""
        if self._SyncObj__raftState == LEADER:
            median = self.entry_clock.median_ms(self._quorum())
            return None if median is None else float(self.entry_clock.wall_ms() - median)
        return self.entry_clock.own_offset_ms(self._quorum())

    def next_wakeup(self, now: float) -> float:
        """Seconds until the core wants a tick even if nothing happens."""
        wait = self._timing.tick
        if self._notice_due is not None:
            wait = min(wait, self._notice_due - now)
        if self.state != LEADER and self.configuration is not None:
            wait = min(wait, self._SyncObj__raftElectionDeadline - now + 0.0005)
        return max(wait, 0.0005)

    # ------------------------------------------------------------------ membership

    def form(self, formation: cf.Configuration) -> None:
        """The members and their incarnations, before the log names them; what the log says has precedence."""
        self._formation = formation
        self._configure()

    def _configure(self) -> None:
        """The newest configuration in the log rules, committed or not; truncation brings the previous one back."""
        entries = self.journal.configurations
        if entries and entries[-1] is self._configured_by:
            return  # the common case: asked after each append
        self._configured_by = entries[-1] if entries else None
        found = cf.decode(entries[-1].payload) if entries else self._formation
        if found is None or found == self.configuration:
            return
        self._forget_replaced(found)
        self.configuration = found
        self._voters = found.voters
        own = found.find(self.node_id)
        self._counts = own is not None and not own.learner and self._incarnation in (None, own.incarnation)
        others = {Node(node_id) for node_id in found.incarnations if node_id != self.node_id}
        self._SyncObj__otherNodes = others
        now = self._clock()
        for node in others - self._progress.keys():
            self._progress[node] = self._new_progress(node, now)
        for node in self._progress.keys() - others:
            self._forget(node)
        for node, progress in self._progress.items():
            progress.voter = self._is_voter(node)
        self._office_proof = float("-inf")
        self.entry_clock.forget_others(found.voters)
        self._listener.configured(found, bool(entries) and entries[-1].index <= self._SyncObj__raftCommitIndex)

    def _forget_replaced(self, found: cf.Configuration) -> None:
        """Whoever speaks from another folder under a known name has acknowledged, voted and answered nothing."""
        before = self.configuration.incarnations if self.configuration is not None else {}
        for node_id, incarnation in before.items():
            if found.incarnations.get(node_id) != incarnation:
                self._forget(Node(node_id))
                self._votes.discard(node_id)
                self._pre_votes.discard(node_id)
                self.rounds.forget(node_id)

    def _new_progress(self, node: Node, now: float) -> Progress:
        connected = node in self._SyncObj__connectedNodes
        return Progress(self.journal.last_index + 1, now, connected=connected, voter=self._is_voter(node))

    def _forget(self, node: Node) -> None:
        self._progress.pop(node, None)
        self.round_trips.pop(node.id, None)
        if self.snapshots is not None:
            self.snapshots.forget(node)

    def _observe(self, node: Node, wall_ms: int, asked_at: float | None) -> None:
        """A wall clock; only those of voters count."""
        if node.id in self._voters:
            self.entry_clock.observe(node.id, wall_ms, asked_at)

    def _quorum(self) -> int:
        return self.configuration.quorum if self.configuration is not None else 1 << 30

    def _is_voter(self, node: Node) -> bool:
        return node.id in self._voters

    @property
    def votes(self) -> bool:
        """Counts in the configuration that is in force: this very folder, not one that had its name before."""
        return self._counts

    # ------------------------------------------------------------------ roles

    def _rearm(self, now: float) -> None:
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._rng.uniform(self._timing.election_min, self._timing.election_max)

    def _send(self, node: Node, envelope: pb.Envelope, *, promise: bool = True) -> bool:
        """Send now, or, if term or vote are not synced yet, as soon as they are."""
        if promise and not self.journal.term_durable:
            self._held.append((self.journal.term_seq, node, envelope))
            return True
        return bool(self._SyncObj__transport.send(node, envelope))

    def _set_leader(self, leader: Node | None) -> None:
        if leader != self._SyncObj__raftLeader:
            self._SyncObj__raftLeader = leader
            self.counters["leader_changes"] += leader is not None
            self._listener.role_changed()

    def _follow(self, term: int, leader: Node | None) -> None:
        led, replaced = self._SyncObj__raftState == LEADER, term > self.term
        if replaced:
            self._SyncObj__setCurrentTerm(term, None)
            self._forget_owed()
            self._held.clear()
        self._SyncObj__setState(FOLLOWER)
        if led:
            self._leave_office(replaced=replaced)
        self._set_leader(leader)

    def _forget_owed(self) -> None:
        """What the last leader sent says nothing about the next one's log."""
        self._verified, self._owed_round, self._said_last = 0, None, None

    def _leave_office(self, *, replaced: bool) -> None:
        """`replaced`: because somebody else campaigns or leads."""
        self.counters["step_downs"] += 1
        self._forget_owed()
        self._rearm(self._clock())
        self._notice_due = self._said = None
        self._uncommitted.clear()
        self._uncommitted_bytes = self._committed_bytes = 0
        self._give_up_work_ahead()
        if self.snapshots is not None:
            self.snapshots.stop_sending()
        self._leave_transfer(replaced=replaced)
        self.entry_clock.leave_office()
        self._fail_waiting("leadership was lost with the entry in the log")
        self.rounds.fail("leadership was lost")

    def _fail_waiting(self, reason: str) -> None:
        """What is applied later is not told any more. A change of the members has no result to wait for: it is done if
        it is committed."""
        waiting, commit = self._SyncObj__commandsWaitingCommit, self._SyncObj__raftCommitIndex
        done = {entry.index for entry in self.journal.configurations if entry.index <= commit}
        callbacks = [(callback, index in done) for index in sorted(waiting) for _, callback in waiting[index]]
        waiting.clear()
        for callback, is_done in callbacks:
            callback(None, None if is_done else UnknownOutcome(reason))

    def _append_own(self, kind: Kind, payload: bytes) -> int:
        time_ms = self.entry_clock.now_ms()
        entry = make(kind, self.journal.last_index + 1, self._SyncObj__raftCurrentTerm, time_ms, payload)
        self.entry_clock.entry_seen(time_ms)
        self.journal.append(entry)
        self._uncommitted.append((entry.index, entry.size, self._stopwatch()))
        self._uncommitted_bytes += entry.size
        return entry.index

    def stop(self, why: str) -> None:
        """End: whoever waits is told; nothing is sent any more."""
        if self.stopped:
            return
        self._fail_waiting(why)
        if self._SyncObj__raftState == LEADER:
            self._follow(self.term, None)
        self.stopped = True
        self._held.clear()
        self.rounds.fail(why)
        self._give_up_work()
        self._install = None

    def _give_up_work(self) -> None:
        if self._work is not None:
            self._work.give_up()
            self._work = None

    def _give_up_work_ahead(self) -> None:
        """Whoever leads next may put another entry in the place of one that is not committed."""
        if self._work is not None and self._work.entry.index > self._SyncObj__raftCommitIndex:
            self._give_up_work()

    def _leave_transfer(self, *, replaced: bool) -> None:
        transfer = self._transfer
        if transfer is not None:
            known = transfer.asked and replaced
            doubt = f"this node does not lead any more, and does not know whether node {transfer.to.id} does"
            self._end_transfer(None if known else UnknownOutcome(doubt))

    def _end_transfer(self, error: RaftError | None) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.callback(error)
            self._listener.role_changed()

    # ------------------------------------------------------------------ commit and apply

    def _set_commit(self, index: int) -> None:
        before = self._SyncObj__raftCommitIndex
        self._SyncObj__raftCommitIndex = index
        self.journal.setRaftCommitIndex(index)
        if self._uncommitted:
            now = self._stopwatch()
            while self._uncommitted and self._uncommitted[0][0] <= index:
                _, size, since = self._uncommitted.popleft()
                self._uncommitted_bytes -= size
                self._committed_bytes += size
                self.commit_seconds.observe(now - since)
        noop = self._SyncObj__noopIDx
        if self._SyncObj__raftState == LEADER and noop is not None and before < noop <= index:
            self.rounds.term_committed(index)
        for entry in self.journal.configurations:
            if before < entry.index <= index and self.configuration is not None:
                self._listener.configured(self.configuration, True)
                self._resign = not self.votes

    def _SyncObj__applyLogEntries(self) -> bool:
        limit = min(self._SyncObj__raftCommitIndex, self.journal.durable_index)
        if self.hollow or self._install is not None:
            return False
        end = self._clock() + self._timing.apply_slice
        while self._work is not None or self._SyncObj__raftLastApplied < limit or self._may_work_ahead():
            work = self._work or self._begin_work()
            entry = work.entry
            if entry.index > limit:
                return self._work_ahead(work)
            answers = entry.index in self._SyncObj__commandsWaitingCommit
            if not self._apply_slice(work):
                return True
            if answers or self._clock() >= end:
                break  # what was answered is to be sent before the next entry takes its time
        return (self._SyncObj__raftLastApplied < limit or self._may_work_ahead()) and not self.stopped

    def _begin_work(self) -> Work:
        following = self.journal.entry(self._SyncObj__raftLastApplied + 1)
        self._work = Work(following, self._SyncObj__doApplyCommand(following), self._stopwatch)
        return self._work

    def _may_work_ahead(self) -> bool:
        """Leader: on the next entry, which is not committed yet."""
        index = self._SyncObj__raftLastApplied + 1
        return self.leads and index <= self.journal.last_index and index != self._not_ahead

    def _work_ahead(self, work: Work) -> bool:
        """A slice of an entry that is not committed; True if there is more to do. Nothing that goes wrong is a fault:
        the entry may never be committed, and if it is, it goes wrong again."""
        if work.ready:
            return False
        try:
            work.go_on()
        except Exception as error:  # noqa: BLE001 - it is raised again when the entry is committed
            _log.warning("entry %d, not committed yet, cannot be applied: %s", work.entry.index, error)
            self._work, self._not_ahead = None, work.entry.index
            return False
        if work.done:
            raise RaftFault(f"the state machine applied entry {work.entry.index}, which is not committed")
        return not work.ready

    def _SyncObj__doApplyCommand(self, entry: Entry) -> Generator[bool | None, None, Any]:
        payload = entry.payload if entry.kind is Kind.COMMAND else b""
        return self.machine.apply(entry.index, entry.time_ms, payload)

    def _apply_slice(self, work: Work) -> bool:
        """True when the entry is applied. Raises RaftFault for whatever goes wrong in the machine."""
        entry = work.entry
        if self.journal.term_at(entry.index) != entry.term:
            raise RaftFault(f"entry {entry.index} of term {entry.term} was worked out, and another one is in its place")
        try:
            work.go_on()
            if work.ready:
                work.go_on()
        except DiskFull:
            raise
        except Exception as error:
            raise RaftFault(f"applying entry {entry.index} failed: {type(error).__name__}: {error}") from error
        if not work.done:
            return False
        self._work = None
        if self.machine.applied_index != entry.index:
            raise RaftFault(
                f"the state machine is at entry {self.machine.applied_index} after it applied entry {entry.index}"
            )
        self._SyncObj__raftLastApplied = entry.index
        self.counters["applied"] += 1
        self.applied_bytes += entry.size
        self.apply_seconds.observe(work.seconds)
        applied = Applied(entry.index, entry.time_ms, work.result, work.seconds)
        waiting = self._SyncObj__commandsWaitingCommit.pop(entry.index, ())
        self._isolated(self._listener.applied, applied)
        for term, callback in waiting:
            if term == entry.term:
                self._isolated(callback, applied, None)
            else:
                replaced = Discarded(f"entry {entry.index} of term {entry.term} was committed in its place")
                self._isolated(callback, None, replaced)
        if entry.index == self._SyncObj__noopIDx and self._SyncObj__raftState == LEADER:
            self._listener.role_changed()
        return True

    def _isolated(self, callback: Callable[..., None], *arguments: Any) -> None:
        """The entry is applied, whatever those who hear of it do: their exceptions are logged, except ours."""
        with self._isolation:
            callback(*arguments)
