"""What a leader does: take proposals, replicate, commit, prove to readers that it still leads, and see when it does
not."""

import logging
from typing import Final

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.core_state import LEADER, CoreState, ProposalCallback
from kvorum_raft.entry import HEADER_SIZE, Entry, Kind
from kvorum_raft.errors import NotLeader, Overloaded, ProtocolError, RaftFault
from kvorum_raft.progress import Progress
from kvorum_raft.reads import ReadCallback

_ROUND_TIMES: Final = 4096
_MESSAGES_AT_ONCE: Final = 2
"""With entries, for one peer in one step: catching up must not stall the loop."""
_log = logging.getLogger("kvorum.raft")


class LeaderSide(CoreState):
    """See `pysyncobj_fixes`."""

    def propose(self, payload: bytes, callback: ProposalCallback) -> int:
        """Append a command; returns its index. Raises NotLeader, Overloaded, or ValueError for an empty or too large
        payload."""
        if self._SyncObj__raftState != LEADER or self.stopped:
            raise NotLeader("this node does not lead")
        if not 0 < len(payload) <= self._limits.entry:
            raise ValueError(f"a payload of {len(payload)} bytes; 1 to {self._limits.entry} are allowed")
        size = len(payload) + HEADER_SIZE
        if self._uncommitted_bytes + size > self._limits.uncommitted:
            raise Overloaded(
                f"{self._uncommitted_bytes} bytes wait to be committed; the limit is {self._limits.uncommitted}"
            )
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

    # ------------------------------------------------------------------ office

    def _judge_office(self, now: float) -> None:
        age = self.journal.unsynced_age(now)
        if age > self._timing.slow_sync:
            self._step_down(f"its oldest log write waits {age:.2f} s for its sync")
            return
        limit = now - self._timing.election_max
        heard = 1 + sum(progress.heard_at > limit for progress in self._progress.values())
        if heard < self._quorum():
            self._step_down(
                f"only {heard} of {len(self._progress) + 1} members answered within {self._timing.election_max} s"
            )

    def _step_down(self, why: str) -> None:
        _log.warning("node %s steps down in term %d: %s", self.node_id, self.term, why)
        self._follow(self.term, None)

    def _SyncObj__onBecomeLeader(self) -> None:
        now, journal = self._clock(), self.journal
        self._SyncObj__setState(LEADER)
        self._progress = {node: Progress(journal.last_index + 1, now) for node in self._SyncObj__otherNodes}
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

    def _advance_commit(self) -> None:
        durable = [self.journal.durable_index, *(progress.match_index for progress in self._progress.values())]
        durable.sort(reverse=True)
        index = durable[self._quorum() - 1]
        if index > self._SyncObj__raftCommitIndex and self.journal.term_at(index) == self.term:
            self._set_commit(index)

    # ------------------------------------------------------------------ reads

    def _serve_reads(self) -> None:
        if len(self.rounds):
            self.rounds.serve(self._confirmed())

    def _confirmed(self) -> int:
        return self.rounds.confirmed([node.id for node in self._progress], self._quorum())

    # ------------------------------------------------------------------ replication

    def _replicate(self, now: float) -> None:
        if now >= self._SyncObj__newAppendEntriesTime:
            self.entry_clock.steer(self._quorum())
            self._begin_round(now)
        elif len(self.rounds) and self.rounds.wants_round(self._confirmed()):
            self._begin_round(now)
        last = self.journal.last_index
        for node, progress in self._progress.items():
            if progress.next_index <= last and not progress.probing and node in self._SyncObj__connectedNodes:
                self._send_entries(node, progress)
        self._notice_commit(now)

    def _SyncObj__sendAppendEntries(self) -> None:
        self._begin_round(self._clock())

    def _begin_round(self, now: float) -> None:
        """Something to everybody: entries if there are any, proof of leadership in any case."""
        self._SyncObj__newAppendEntriesTime = now + self._timing.heartbeat
        self._round_times[self.rounds.begin()] = now
        if len(self._round_times) > _ROUND_TIMES:
            del self._round_times[next(iter(self._round_times))]
        urgent = len(self.rounds) > 0
        for node, progress in self._progress.items():
            if node in self._SyncObj__connectedNodes and not self._send_entries(node, progress, urgent=urgent):
                self._send_append(node, progress, [], urgent=urgent)
        if len(self.rounds):
            self._serve_reads()

    def _send_entries(self, node: Node, progress: Progress, *, urgent: bool = False) -> bool:
        """What the window allows; True if something was sent."""
        limits, sent = self._limits, 0
        while progress.next_index <= self.journal.last_index and progress.may_send(
            limits.window_bytes, limits.window_messages
        ):
            entries = self.journal.entries(progress.next_index, limits.append_entries, limits.append_bytes)
            if not self._send_append(node, progress, entries, urgent=urgent):
                return True  # the connection broke; the transport reports it
            progress.sent(entries[-1].index, sum(entry.size for entry in entries))
            urgent, sent = False, sent + 1
            if sent == _MESSAGES_AT_ONCE:
                self._unsent = True
                break
        return sent > 0

    def _send_append(self, node: Node, progress: Progress, entries: list[Entry], *, urgent: bool = False) -> bool:
        prev = progress.next_index - 1
        prev_term = self.journal.term_at(prev)
        if prev_term is None:
            raise RaftFault(f"node {node.id} needs entry {prev}, which the log does not hold any more")
        body = pb.Append(
            prev_index=prev,
            prev_term=prev_term,
            commit_index=self._SyncObj__raftCommitIndex,
            round=self.rounds.round,
            urgent=urgent,
            time_ms=self.entry_clock.now_ms(),
            median_ms=self.entry_clock.median_ms(self._quorum()) or 0,
            entries=[entry.record for entry in entries],
        )
        progress.probe_sent = progress.probing
        progress.commit_sent = min(self._SyncObj__raftCommitIndex, prev + len(entries))
        return self._send(node, pb.Envelope(term=self.term, append=body))

    def _notice_commit(self, now: float) -> None:
        """Followers learn of a commit with the next entries; if none come soon, a message of its own says so."""
        commit = self._SyncObj__raftCommitIndex
        behind = [
            (node, progress)
            for node, progress in self._progress.items()
            if progress.commit_sent < commit and not progress.probing and node in self._SyncObj__connectedNodes
        ]
        if not behind:
            self._notice_due = None
        elif self._notice_due is None:
            self._notice_due = now + self._timing.commit_notice
        elif now >= self._notice_due:
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
        sent_at = self._round_times.get(reply.round)
        self.entry_clock.observe(node.id, wall_ms, sent_at)
        if sent_at is not None:
            progress.heard_at = max(progress.heard_at, sent_at)
            self.rounds.answered(node.id, reply.round)
        if reply.success:
            progress.acknowledged(reply.match_index, reply.prev_index)
        elif progress.refused(reply.prev_index, reply.hint_index):
            self.counters["refusals"] += 1
            self._send_append(node, progress, [])

    # ------------------------------------------------------------------ connections

    def _SyncObj__onNodeConnected(self, node: Node) -> None:
        self._SyncObj__connectedNodes.add(node)
        progress = self._progress.get(node)
        if progress is not None and self._SyncObj__raftState == LEADER:
            progress.lost_connection()
            self._send_append(node, progress, [])

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:
        self._SyncObj__connectedNodes.discard(node)
        progress = self._progress.get(node)
        if progress is not None:
            progress.lost_connection()
