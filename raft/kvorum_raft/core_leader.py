"""What a leader does: take proposals, replicate, commit, prove to readers that it still leads, and see when it does
not."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.appends import AppendHeader
from kvorum_raft.checkpoint_turns import Need, Turns
from kvorum_raft.core_partners import ProposalCallback, Transfer
from kvorum_raft.core_state import FOLLOWER, LEADER, CoreState
from kvorum_raft.entry import HEADER_SIZE, Entry, Kind
from kvorum_raft.errors import (
    ChangePending,
    NotLeader,
    Overloaded,
    ProtocolError,
    RaftError,
    RaftFault,
    UnknownOutcome,
)
from kvorum_raft.histogram import Histogram
from kvorum_raft.progress import Progress
from kvorum_raft.reads import ReadCallback

_ROUND_TIMES: Final = 4096
_MESSAGES_AT_ONCE: Final = 2
"""With entries, for one peer in one step: catching up must not stall the loop."""
_SILENT_ROUNDS: Final = 3
_BUSY: Final = 0.02
"""Seconds within which another entry makes a leader busy."""
_BUSY_NOTICES: Final = 3
"""How much longer a busy leader waits for the next entry until it tells of a commit by a message of its own."""
_NOTICE_BYTES: Final = 4 << 10
"""Of what was committed: with so much, telling followers at once costs little beside applying it, which they do while
the leader does. Else they begin when the next entry comes, and its acknowledgement waits for that."""
_COLD_BYTES: Final = 128 << 10
"""Of entries that must be read from the disk, in one step: a MiB takes 6 ms, and 35 now and then."""
_log = logging.getLogger("kvorum.raft")


class LeaderSide(CoreState):
    """See `pysyncobj_fixes`."""

    _median_offset: float | None = None
    """The median clock − our monotonic one, ms."""

    def propose(self, payload: bytes, callback: ProposalCallback) -> int:
        """Append a command; returns its index. Raises NotLeader, Overloaded, or ValueError for an empty or too large
        payload."""
        if self._SyncObj__raftState != LEADER or self.stopped:
            raise NotLeader("this node does not lead")
        if self._transfer is not None:
            raise NotLeader("leadership is being handed over")
        if not 0 < len(payload) <= self._limits.entry:
            raise ValueError(f"a payload of {len(payload)} bytes; 1 to {self._limits.entry} are allowed")
        size = len(payload) + HEADER_SIZE
        if self._uncommitted_bytes + size > self._limits.uncommitted:
            raise Overloaded(
                f"{self._uncommitted_bytes} bytes wait to be committed; the limit is {self._limits.uncommitted}"
            )
        now = self._clock()
        if now - self._proposed_at < _BUSY:
            self._busy_at = now
        self._proposed_at = now
        index = self._append_own(Kind.COMMAND, payload)
        self._SyncObj__commandsWaitingCommit[index].append((self._SyncObj__raftCurrentTerm, callback))
        return index

    def read_index(self, callback: ReadCallback) -> None:
        """Leader: call back with an index that covers everything committed up to now. Raises NotLeader, Overloaded."""
        if self._SyncObj__raftState != LEADER or self.stopped:
            raise NotLeader("this node does not lead")
        noop = self._SyncObj__noopIDx
        known = noop is not None and self._SyncObj__raftCommitIndex >= noop
        self.rounds.ask(self._SyncObj__raftCommitIndex if known else None, callback)

    # ------------------------------------------------------------------ members and office

    def change(self, configuration: cf.Configuration, callback: ProposalCallback) -> int:
        """Append a configuration that differs by one voter at most from the one in force; it is in force at once.

        Returns its index. Raises NotLeader, ChangePending.
        """
        if not self.leads or self.stopped or self._transfer is not None:
            raise NotLeader("this node does not lead, or has only just begun to")
        if self.journal.configurations[-1].index > self._SyncObj__raftCommitIndex:
            raise ChangePending("another change of the members is not committed yet: try again")
        index = self._append_own(Kind.CONFIGURATION, configuration.encode())
        self._SyncObj__commandsWaitingCommit[index].append((self._SyncObj__raftCurrentTerm, callback))
        self._configure()
        return index

    def transfer(self, node_id: str | None, callback: Callable[[RaftError | None], None]) -> str:
        """Hand leadership to a voter: to this one, or to the one that has most of the log; returns its id.

        `callback` gets None when that one was asked and this node does not lead any more because of somebody's
        campaign. UnknownOutcome if it leaves office otherwise, or after an election timeout in which nobody took over;
        it leads on then. Raises NotLeader, ValueError.
        """
        if self._SyncObj__raftState != LEADER or self.stopped:
            raise NotLeader("this node does not lead")
        if self._transfer is not None:
            raise ValueError("leadership is being handed over already")
        to = self._successor() if node_id is None else Node(node_id)
        if to is None or to not in self._progress or not self._is_voter(to):
            raise ValueError(f"node {node_id} is not a voter" if node_id else "no other voter can take over")
        if self._progress[to].unfit:
            raise ValueError(f"node {to.id} has no state yet, or much to apply before it could lead: try again later")
        self.counters["transfers"] += 1
        self._transfer = Transfer(to, self._clock() + self._timing.election_max, callback)
        self._listener.role_changed()  # whoever proposes by itself must know, and begin again if it comes to nothing
        return str(to.id)

    def set_time(self, unix_ms: int, callback: ProposalCallback) -> None:
        """Let the time jump forward to this, by an entry that carries it. Raises NotLeader."""
        if not self.leads or self.stopped or self._transfer is not None:
            raise NotLeader("this node does not lead, or has only just begun to")
        self.entry_clock.jump(unix_ms)
        index = self._append_own(Kind.NO_OP, b"")
        self._SyncObj__commandsWaitingCommit[index].append((self._SyncObj__raftCurrentTerm, callback))

    def _successor(self) -> Node | None:
        """Who could lead best: has a state and little to apply, did not fail to take over before, was heard lately, has
        most of the log."""
        lately = self._clock() - self._timing.election_min
        found = [
            (node.id not in self._unable, progress.heard_at > lately, progress.match_index, node.id)
            for node, progress in self._progress.items()
            if progress.voter and progress.connected and not progress.unfit
        ]
        return Node(max(found)[-1]) if found else None

    @property
    def has_successor(self) -> bool:
        """Leader: somebody else could lead at once."""
        return self._successor() is not None

    def slowest_follower(self) -> int | None:
        """Leader: what the one has that is furthest behind, among those that answer and need no snapshot."""
        if self._SyncObj__raftState != LEADER:
            return None
        lately = self._clock() - self._timing.election_max
        return min(
            (
                progress.match_index
                for progress in self._progress.values()
                if progress.connected and progress.heard_at > lately and not progress.snapshotting
            ),
            default=None,
        )

    def _pass_on(self) -> None:
        """A leader without a state, or with much to apply, makes somebody else's log complete, who then takes over."""
        if self._transfer is None and self._SyncObj__raftState == LEADER:
            successor = self._successor()
            if successor is not None and self._progress[successor].match_index == self.journal.last_index:
                self.transfer(successor.id, lambda error: None)

    def _pursue_transfer(self, now: float) -> None:
        transfer = self._transfer
        if transfer is None:
            return
        progress = self._progress.get(transfer.to)
        if now > transfer.deadline or progress is None:
            self._unable.add(transfer.to.id)
            if self._unable >= self._voters - {self.node_id}:
                self._unable.clear()
            self._end_transfer(UnknownOutcome(f"node {transfer.to.id} did not take over: this node leads on"))
        elif not transfer.asked and progress.match_index == self.journal.last_index:
            transfer.asked = self._send(transfer.to, pb.Envelope(term=self.term, timeout_now=pb.TimeoutNow()))

    def _leave_if_removed(self) -> None:
        """The configuration without this node is committed: let somebody else lead, at once if possible."""
        if not self._resign or self._SyncObj__raftLastApplied < self.journal.configurations[-1].index:
            return  # whoever asked for it is told when it is applied
        self._resign = False
        successor = self._successor()
        if successor is not None:
            self._send(successor, pb.Envelope(term=self.term, timeout_now=pb.TimeoutNow()))
        self.step_down("it is not a voter any more")

    def refused_as_removed(self) -> None:
        """A member has committed that this folder was removed. Whoever waits here for just that is told that it is
        done: this node may never hear of the commit, and it makes no difference whether it is of its own entry."""
        for entry in self.journal.configurations:
            if self._incarnation in cf.decode(entry.payload).removed:
                for _, callback in self._SyncObj__commandsWaitingCommit.pop(entry.index, ()):
                    callback(None, None)
                return  # later changes name it as well, and were made for something else

    def _judge_office(self, now: float) -> None:
        age = self.journal.unsynced_age(now)
        if age > self._timing.election_max:
            self.step_down(f"its oldest log write waits {age:.2f} s for its sync")
            return
        if age > self._timing.slow_sync and self._transfer is None and self._successor() is not None:
            _log.warning("node %s hands over: its oldest log write waits %.2f s for its sync", self.node_id, age)
            self.transfer(None, lambda error: None)
        limit = now - self._timing.election_max
        if self._office_proof > limit:
            return
        heard = sorted((progress.heard_at for progress in self._progress.values() if progress.voter), reverse=True)
        if self.votes:
            heard.insert(0, now)
        quorum = self._quorum()
        self._office_proof = heard[quorum - 1] if len(heard) >= quorum else float("-inf")
        if self._office_proof <= limit:
            answered = sum(at > limit for at in heard)
            voters = len(self._voters)
            self.step_down(f"only {answered} of {voters} voters answered within {self._timing.election_max} s")

    def step_down(self, why: str) -> None:
        """Leave office, whoever may take over."""
        _log.warning("node %s steps down in term %d: %s", self.node_id, self.term, why)
        self._follow(self.term, None)

    def _SyncObj__onBecomeLeader(self) -> None:
        now, journal = self._clock(), self.journal
        self._SyncObj__setState(LEADER)
        self._progress = {node: self._new_progress(node, now) for node in self._SyncObj__otherNodes}
        self._office_proof = float("-inf")
        self._resign = False
        self.low_on_space.clear()
        self._unable.clear()
        self._turns = Turns()
        self.rounds.start_term()
        self._round_times.clear()
        self.entry_clock.take_office(0, self._quorum())
        _log.info("node %s leads term %d from entry %d on", self.node_id, self.term, journal.last_index + 1)
        if journal.configurations:
            self._SyncObj__noopIDx = self._append_own(Kind.NO_OP, b"")
        else:
            assert self.configuration is not None
            founding = cf.Configuration(self._new_id(), self.configuration.members)
            self._SyncObj__noopIDx = self._append_own(Kind.CONFIGURATION, founding.encode())
            self._configure()
        if self._first_payload is not None and journal.first_command is None and self.configuration is not None:
            self._append_own(Kind.COMMAND, self._first_payload(self.configuration.cluster_id))
        self._begin_round(now)
        self._set_leader(self._SyncObj__selfNode)

    def needs_step(self) -> bool:
        """False if a step now would find nothing to do but to look at the timers, which ring by themselves; nothing may
        have been written to the journal since the last one.

        Of two followers' answers and the own sync, which come one by one, a single one commits an entry: with one
        caller a leader takes 2 steps for each entry instead of 3.8, which last 290 µs instead of 350, apply included.
        """
        journal, commit = self.journal, self._SyncObj__raftCommitIndex
        if (
            self._SyncObj__raftLastApplied < commit
            or self.applying
            or self._unsent
            or self._resign
            or self._transfer is not None
            or self._install is not None
            or self.hollow
        ):
            return True
        if self._SyncObj__raftState != LEADER:
            return self._SyncObj__raftState != FOLLOWER
        last = journal.last_index
        # What this node has not synced itself it does not apply, so its own sync is waited for to commit that.
        if len(self.rounds) or (commit < last and min(self._quorum_has(), journal.durable_index) > commit):
            return True
        for progress in self._progress.values():
            if progress.next_index <= last and progress.connected and not progress.probing:
                return True
        return False

    def _quorum_has(self) -> int:
        """What a quorum of the voters has synced."""
        durable = [progress.match_index for progress in self._progress.values() if progress.voter]
        if self._counts:
            durable.append(self.journal.durable_index)
        durable.sort(reverse=True)
        return durable[self._quorum() - 1]

    def _advance_commit(self) -> None:
        if self._SyncObj__raftCommitIndex == self.journal.last_index:
            return
        index = self._quorum_has()
        if index > self._SyncObj__raftCommitIndex and self.journal.term_at(index) == self.term:
            self._set_commit(index)

    # ------------------------------------------------------------------ reads

    def _serve_reads(self) -> None:
        if len(self.rounds):
            self.rounds.serve(self._confirmed())

    def _confirmed(self) -> int:
        own_id = self.node_id if self.votes else ""
        return self.rounds.confirmed(self._voters, self._quorum(), own_id)

    # ------------------------------------------------------------------ replication

    def _replicate(self, now: float) -> None:
        if now >= self._SyncObj__newAppendEntriesTime:
            self.entry_clock.steer(self._quorum())
            self._begin_round(now)
        elif len(self.rounds) and self.rounds.wants_round(self._confirmed()):
            self._begin_round(now)
        last = self.journal.last_index
        for node, progress in self._progress.items():
            if progress.next_index <= last and progress.connected and not progress.probing:
                self._send_entries(node, progress)
        self._notice_commit(now)

    def _has_to_speak(self, now: float) -> bool:
        """Even if there are no new entries: to prove that it leads, or to tell of a commit."""
        due = self._notice_due
        return now >= self._SyncObj__newAppendEntriesTime or len(self.rounds) > 0 or (due is not None and now >= due)

    def _SyncObj__sendAppendEntries(self) -> None:
        self._begin_round(self._clock())

    def _begin_round(self, now: float) -> None:
        """Something to everybody: entries if there are any, proof of leadership in any case."""
        self._SyncObj__newAppendEntriesTime = now + self._timing.heartbeat
        self._median_offset = None
        number = self.rounds.begin()
        self._round_times[number] = now
        self._newest_round = number, self._stopwatch()
        if len(self._round_times) > _ROUND_TIMES:
            del self._round_times[next(iter(self._round_times))]
        self._give_turn(now)
        urgent = len(self.rounds) > 0
        for node, progress in self._progress.items():
            if progress.connected and not self._send_entries(node, progress, urgent=urgent):
                self._send_append(node, progress, [], urgent=urgent)
        if len(self.rounds):
            self._serve_reads()

    def _give_turn(self, now: float) -> None:
        """Who may make a checkpoint. Whoever does not answer is asked no more."""
        lately = now - self._timing.election_max
        alive = (
            node.id for node, progress in self._progress.items() if progress.connected and progress.heard_at > lately
        )
        self._turns.decide(now, self.node_id, self.checkpoint_need, alive)

    def _send_entries(self, node: Node, progress: Progress, *, urgent: bool = False) -> bool:
        """What the window allows; True if something was sent."""
        limits, sent = self._limits, 0
        if progress.next_index <= self.journal.base_index:
            return False  # cut meanwhile: the next message asks for a snapshot
        while progress.next_index <= self.journal.last_index and progress.may_send(
            limits.window_bytes, limits.window_messages
        ):
            cold = progress.next_index < self.journal.cached_from
            size = min(limits.append_bytes, _COLD_BYTES) if cold else limits.append_bytes
            entries = self.journal.entries(progress.next_index, limits.append_entries, size)
            if not self._send_append(node, progress, entries, urgent=urgent):
                return True  # the connection broke; the transport reports it
            progress.sent(entries[-1].index, sum(entry.size for entry in entries))
            urgent, sent = False, sent + 1
            if sent == _MESSAGES_AT_ONCE or cold:
                self._unsent = True
                break
        return sent > 0

    def _send_append(self, node: Node, progress: Progress, entries: list[Entry], *, urgent: bool = False) -> bool:
        prev = progress.next_index - 1
        prev_term = self.journal.term_at(prev)
        if prev_term is None or progress.snapshotting:
            self._ask_for_snapshot(node, progress, prev)
            prev, prev_term, entries = 0, 0, []  # matches any log, and says nothing about it
        header = AppendHeader(
            self._SyncObj__raftCurrentTerm,
            prev,
            prev_term,
            len(entries),
            self._SyncObj__raftCommitIndex,
            self.rounds.round,
            urgent or progress.probing,  # a probe must be answered, whatever was answered before
            self.entry_clock.now_ms(),
            self._turns.of(node.id),
        )
        if self._said is None or self._said[0] != header:  # mostly the next follower gets the same
            self._said = header, header.message(self._median_ms(), entries)
        progress.commit_sent = min(self._SyncObj__raftCommitIndex, prev + len(entries))
        return self._send(node, self._said[1])

    def _median_ms(self) -> int:
        """Of the clocks known when the round began, 0 if too few are: to sort them for each message costs 2 µs."""
        if self._median_offset is None:
            median = self.entry_clock.median_ms(self._quorum())
            if median is None:
                return 0
            self._median_offset = median - self._clock() * 1000
        return round(self._median_offset + self._clock() * 1000)

    def _ask_for_snapshot(self, node: Node, progress: Progress, prev: int) -> None:
        if self.snapshots is None:
            raise RaftFault(f"node {node.id} needs entry {prev}, which the log does not hold any more")
        if not progress.snapshotting:
            progress.probe()
            progress.snapshotting = True
            _log.info("node %s needs a snapshot: its log ends before entry %d", node.id, self.journal.base_index)
        self.snapshots.needed_by(node)

    def _notice_commit(self, now: float) -> None:
        """Followers learn of a commit with the next entries; if none come soon, a message of its own says so."""
        commit = self._SyncObj__raftCommitIndex
        told, self._committed_bytes = self._committed_bytes, 0
        if self._notice_due is None and all(progress.commit_sent >= commit for progress in self._progress.values()):
            return  # mostly
        lately = now - _SILENT_ROUNDS * self._timing.heartbeat  # who does not answer hears of it in the next round
        behind = [
            (node, progress)
            for node, progress in self._progress.items()
            if progress.commit_sent < commit
            and progress.heard_at > lately
            and not progress.probing
            and progress.connected
        ]
        if not behind:
            self._notice_due = None
        elif self._notice_due is None and told < _NOTICE_BYTES:
            # Where one entry follows the other within some ms, the next one will say it, which saves a message to each
            # follower. On a machine so busy that entries are further apart nothing was saved that could be measured.
            patience = _BUSY_NOTICES if now - self._busy_at < _BUSY else 1
            self._notice_due = now + patience * self._timing.commit_notice
        elif told >= _NOTICE_BYTES or (self._notice_due is not None and now >= self._notice_due):
            self._notice_due = None
            for node, progress in behind:
                self._send_append(node, progress, [])
                progress.commit_sent = commit

    def _acknowledged(self, node: Node, reply: pb.AppendReply, wall_ms: int) -> None:
        progress = self._progress.get(node)
        if progress is None:
            return
        if max(reply.match_index, reply.prev_index if reply.success else 0) > self.journal.last_index:
            raise ProtocolError(f"node {node.id} acknowledges entry {reply.match_index}, which does not exist")
        number, node_id = reply.round, node.id
        sent_at = self._round_times.get(number)
        if sent_at is not None:
            if progress.voter:
                self.entry_clock.observe(node_id, wall_ms, sent_at)
            if sent_at > progress.heard_at:
                progress.heard_at = sent_at
                self._time_round(node_id, number, sent_at)
            self.rounds.answered(node_id, number)
        if reply.low_space and progress.voter:
            self.low_on_space.add(node_id)
        elif self.low_on_space:
            self.low_on_space.discard(node_id)
        self._turns.heard(node_id, Need.received(reply.checkpoint_need))
        progress.unfit = reply.wants_snapshot or reply.far_behind
        if reply.wants_snapshot and self.snapshots is not None:
            self.snapshots.needed_by(node)
        if progress.snapshotting and reply.match_index < self.journal.base_index:
            return
        if reply.success:
            progress.acknowledged(reply.match_index, reply.prev_index)
        elif progress.refused(reply.prev_index, reply.hint_index):
            self.counters["refusals"] += 1
            self._send_append(node, progress, [])

    def _time_round(self, node_id: str, number: int, begun: float) -> None:
        """It has answered a round for the first time. An older one took a heartbeat at least, for which the loop's
        clock, of milliseconds, will do."""
        trips = self.round_trips.get(node_id)
        if trips is None:
            trips = self.round_trips[node_id] = Histogram()
        newest, since = self._newest_round
        trips.observe(self._stopwatch() - since if number == newest else self._clock() - begun)

    def _snapshot_replied(self, node: Node, reply: pb.SnapshotReply) -> None:
        progress = self._progress.get(node)
        if progress is None or self.snapshots is None:
            return
        index = self.snapshots.replied(node, reply)
        if index is None:
            return
        if index > self.journal.last_index:
            raise ProtocolError(f"node {node.id} has a snapshot up to entry {index}, which does not exist")
        progress.acknowledged(index, index)
        progress.probe()  # the entries behind it may be another leader's
        self._send_append(node, progress, [])

    # ------------------------------------------------------------------ connections

    def _SyncObj__onNodeConnected(self, node: Node) -> None:
        self._SyncObj__connectedNodes.add(node)
        progress = self._progress.get(node)
        if progress is None:
            return
        progress.connected = True
        if self._SyncObj__raftState == LEADER:
            progress.lost_connection()
            self._send_append(node, progress, [])

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:
        self._SyncObj__connectedNodes.discard(node)
        self.low_on_space.discard(node.id)
        self._turns.forget(node.id)
        # What was held back for it was an answer to a folder, and another one may speak under that name next.
        self._held = deque(held for held in self._held if held[1] != node)
        progress = self._progress.get(node)
        if self.snapshots is not None:
            self.snapshots.lost(node)
        if progress is not None:
            progress.connected = False
            progress.lost_connection()
