"""`SafeSyncObj`: PySyncObj 0.3.17 with its consensus core replaced. The overrides lie here and in core_*.py.

The library's own core loses acknowledged writes on healthy machines (tests/simulation shows each case against both
classes), and its extension points cannot mend that: the faults are in the message handler, the replication loop and the
tick. Its private methods, however, are always reached as `self._SyncObj__<name>(...)`, so a subclass that defines that
name replaces them. What is used of the library is the frame: constructor, node, transport and journal contracts, the
state fields, the waiting-callback table and the small setters. The version is pinned, and upstream.py holds the
fingerprint of each method that we replace or rely on, so that an upgrade fails loudly.

Rules that this core keeps, beyond textbook Raft:

* Every message carries a term. Nothing of a new term leaves before that term and the vote in it are synced (`_send`
  holds it back), except pre-votes and their answers, which promise nothing.
* A follower acknowledges only what is equal to the leader's log *and* synced. One acknowledgement covers everything
  that a sync finished.
* A leader sends before its own sync but counts itself only up to its durable index, and commits only entries of its own
  term.
* A log is cut only at the first conflict, and never at or below the commit index: that is a fault, not an event.
* Applied ≤ min(commit, own durable index). A leader works out what comes next meanwhile (`work`), in a transaction that
  is ended then, and given up with its office. An exception while applying is a fault. Whoever waits is told the truth:
  `UnknownOutcome` when leadership ends with the entry in the log.
* Answers name the round that they answer. A round's *sending* time is what counts as contact, so that an answer that
  lay in a socket for seconds proves nothing.
"""

import logging
from typing import Final

from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.core_follower import FollowerSide
from kvorum_raft.core_leader import LeaderSide
from kvorum_raft.core_state import CANDIDATE, FOLLOWER, LEADER
from kvorum_raft.entry import Entry
from kvorum_raft.errors import NotLeader, Overloaded, ProtocolError, RaftError

MAX_TERM_STEP: Final = 1 << 32
"""Terms that elections cannot pass through while a node is away: a hundred a second for a year."""

_HOLLOW_WAITS: Final = 3
"""Election timeouts that a node without a state leaves to the others."""
_WAITS_FAR_BEHIND: Final = 1
"""Those that a node with much to apply leaves to them. If they have as much, none of them is to lose more time."""
_FEW_ENTRIES: Final = 2
"""So many may be left unapplied for a moment."""
_ANSWERS_TO_LEADERS: Final = ("append_reply", "snapshot_reply")
_LEARNING: Final = ("append", "snapshot_offer", "snapshot_chunk")
_log = logging.getLogger("kvorum.raft")
__all__ = ["CANDIDATE", "FOLLOWER", "LEADER", "SafeSyncObj"]


class SafeSyncObj(LeaderSide, FollowerSide):
    """One node's Raft core: no I/O, no threads, no time but `clock`. Drive it by `tick`, `durable` and the transport's
    callbacks."""

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self.tick()

    def tick(self, *, judge: bool = True) -> bool:
        """One step; True if there is more to apply at once. `judge=False` leaves the timers alone (input may be waiting
        unread)."""
        if self.stopped:
            return False
        now = self._clock()
        if judge and self.configuration is not None:
            if self._SyncObj__raftState == LEADER:
                self._judge_office(now)
                if self.hollow or (not self.leads and self.far_behind):
                    self._pass_on()
                if self._transfer is not None:
                    self._pursue_transfer(now)
            elif self._SyncObj__raftElectionDeadline <= now:
                self._election_due(now)
        if self._SyncObj__raftState == LEADER:
            self._advance_commit()
            if self._resign:
                self._leave_if_removed()
        if self._SyncObj__raftState == LEADER:
            self._replicate(now)  # before applying: followers and the disk work meanwhile
        writes = self.journal.flush()
        applied, last = self._SyncObj__raftLastApplied, self.journal.last_index
        more = not self._waits_with_applying(writes=writes) and self._SyncObj__applyLogEntries()
        if more or self._unsent or self._SyncObj__raftLastApplied != applied or len(self.rounds):
            # who heard of it may have proposed something, and time has passed
            if self._SyncObj__raftState == LEADER:
                self._serve_reads()
                now = self._clock()
                # Mostly nobody has: to find that out costs 0.2 µs, and to replicate nothing 0.9 (10 in a cold cache).
                if self._unsent or self.journal.last_index != last or self._has_to_speak(now):
                    self._replicate(now)
            self.journal.flush()
        unsent, self._unsent = self._unsent, False
        return more or unsent

    def _waits_with_applying(self, *, writes: bool) -> bool:
        """A follower that has just given something to the log's writer leaves it the interpreter, and applies what was
        committed before when that is synced and answered: the leader waits for the answer, and nobody for the other.
        Not twice in a row, and not while it catches up."""
        behind = self._SyncObj__raftCommitIndex - self._SyncObj__raftLastApplied
        self._waited = writes and not self._waited and behind <= _FEW_ENTRIES and self._SyncObj__raftState == FOLLOWER
        return self._waited

    # ------------------------------------------------------------------ elections

    def _election_due(self, now: float) -> None:
        self._rearm(now)
        if not self._may_campaign():
            return
        if self.installing or self._waits_for_others < self._waits_due():
            self._waits_for_others += 1
            self.counters["elections_left"] += 1
            self._set_leader(None)
            return  # without a state, or with an old one, it could serve nobody
        if self.journal.unsynced_age(now) > self._timing.election_min:
            return  # its disk hangs: it could lead nobody
        if not self._waited_for_clock and self.entry_clock.own_clock_is_off(self._quorum()):
            self._waited_for_clock = True
            _log.warning(
                "node %s: the wall clock is more than 1 s off the cluster's; others campaign first", self.node_id
            )
            return
        self._SyncObj__setState(FOLLOWER)
        self._set_leader(None)
        self._pre_votes = self._own_vote()
        self._asking = True
        self._pre_vote_attempt += 1
        self._asked_at = now
        self.counters["pre_votes"] += 1
        if self._enough(self._pre_votes):
            self._campaign(now)
            return
        body = pb.PreVote(
            last_index=self.journal.last_index, last_term=self.journal.last_term, attempt=self._pre_vote_attempt
        )
        for node in self._SyncObj__otherNodes:
            self._send(
                node, pb.Envelope(term=self.term + 1, wall_ms=self.entry_clock.wall_ms(), pre_vote=body), promise=False
            )

    def _campaign(self, now: float, *, transfer: bool = False) -> None:
        self._pre_votes, self._asking = set(), False
        self._votes = set()
        self._asked_at = now
        self.counters["elections"] += 1
        self._rearm(now)
        self._SyncObj__setState(CANDIDATE)
        self._SyncObj__setCurrentTerm(self.term + 1, self.node_id)
        body = pb.RequestVote(last_index=self.journal.last_index, last_term=self.journal.last_term, transfer=transfer)
        for node in self._SyncObj__otherNodes:
            self._send(node, pb.Envelope(term=self.term, wall_ms=self.entry_clock.wall_ms(), request_vote=body))

    def _waits_due(self) -> int:
        """Election timeouts that this node leaves to the others."""
        if self.hollow:
            return _HOLLOW_WAITS
        return _WAITS_FAR_BEHIND if self.far_behind and not self._enough(self._own_vote()) else 0

    def _may_campaign(self) -> bool:
        """A voter may; so may one that the newest configuration takes out while that is not committed, since nobody
        else may have a log as long as its own. It does not count itself."""
        entries = self.journal.configurations
        if self.votes or len(entries) < 2 or entries[-1].index <= self._SyncObj__raftCommitIndex:
            return self.votes
        before = cf.decode(entries[-2].payload).find(self.node_id)
        return before is not None and not before.learner and self._incarnation in (None, before.incarnation)

    def _own_vote(self) -> set[str]:
        return {self.node_id} if self.votes else set()

    def _enough(self, votes: set[str]) -> bool:
        return len(votes & self._voters) >= self._quorum()

    def _count_votes(self) -> None:
        if self._enough(self._votes):
            self._SyncObj__onBecomeLeader()

    # ------------------------------------------------------------------ durability

    def durable(self, seq: int) -> None:
        """The disk has synced everything up to this mutation. A tick must follow."""
        self.journal.on_durable(seq)
        while self._held and self._held[0][0] <= self.journal.durable_seq:
            _, node, envelope = self._held.popleft()
            if envelope.term >= self.term:
                self._SyncObj__transport.send(node, envelope)
        if self._SyncObj__raftState == CANDIDATE and self.journal.term_durable:
            self._votes |= self._own_vote()
            self._count_votes()
        self._finish_install()
        if self._owed_round is not None and self._SyncObj__raftState == FOLLOWER:
            self._pay_acknowledgement()

    # ------------------------------------------------------------------ messages

    def _SyncObj__onMessageReceived(self, node: Node, envelope: pb.Envelope) -> None:
        """Raises ProtocolError for what no sound peer sends, RaftFault for what must not be."""
        if self.stopped:
            return
        body = envelope.WhichOneof("body")
        if self.configuration is None and not (self._joining and body in _LEARNING):
            return  # an empty folder answers nobody, except the leader whom it is to learn from
        spoken_of = envelope.term
        if body == "pre_vote_reply":
            spoken_of = max(spoken_of, envelope.pre_vote_reply.current_term)
        if spoken_of > self.term + MAX_TERM_STEP:
            # One such message, adopted and stored, would use up the terms of the whole cluster for good.
            raise ProtocolError(f"node {node.id} speaks of term {envelope.term}, far beyond term {self.term}")
        entries: list[Entry] = []
        if body == "append":  # before its term is adopted: nonsense proves nothing about another leader
            entries = self._parse_entries(envelope.append, envelope.term)
        elif body == "snapshot_offer" and envelope.snapshot_offer.manifest.base.term > envelope.term:
            raise ProtocolError(f"node {node.id} leads term {envelope.term} and offers a snapshot of a later one")
        if body == "pre_vote":
            self._answer_pre_vote(node, envelope)
        elif body == "pre_vote_reply":
            self._count_pre_vote(node, envelope)
        elif body == "request_vote" and envelope.term > self.term and self._leader_lives():
            if envelope.request_vote.transfer and self._in_term(node, envelope):
                self._answer_vote(node, envelope)
        elif self._in_term(node, envelope):
            if body == "append":
                self._receive_append(node, envelope, entries)
            else:
                self._handle(body, node, envelope)

    def _in_term(self, node: Node, envelope: pb.Envelope) -> bool:
        """Adopt a newer term, refuse an older one."""
        if envelope.term > self.term:
            self._follow(envelope.term, None)
        elif envelope.term < self.term:
            if envelope.WhichOneof("body") in ("append", "request_vote", "snapshot_offer", "snapshot_chunk"):
                self._send(node, pb.Envelope(term=self.term, wall_ms=self.entry_clock.wall_ms(), stale=pb.Stale()))
            return False
        return True

    def _handle(self, body: str | None, node: Node, envelope: pb.Envelope) -> None:
        """Of this term; appends go another way."""
        if body in _ANSWERS_TO_LEADERS:
            if self._SyncObj__raftState == LEADER:
                self._answered(body, node, envelope)
        elif body in ("snapshot_offer", "snapshot_chunk"):
            self._receive_snapshot(node, envelope)
        elif body == "timeout_now":
            self._take_over(node)
        elif body == "state_hash":
            self._listener.state_hash(node, envelope.state_hash)
        elif body == "request_vote":
            self._answer_vote(node, envelope)
        elif body == "vote":
            self._count_vote(node, envelope)
        elif body == "read_index":
            self._answer_read(node, envelope.read_index.id)
        elif body == "read_index_reply":
            self._read_answered(node, envelope.read_index_reply)
        elif body != "stale":
            raise ProtocolError(f"node {node.id} sends {body} where it does not belong")

    def _answered(self, body: str | None, node: Node, envelope: pb.Envelope) -> None:
        if body == "append_reply":
            self._acknowledged(node, envelope.append_reply, envelope.wall_ms)
        else:
            self._snapshot_replied(node, envelope.snapshot_reply)

    def _count_vote(self, node: Node, envelope: pb.Envelope) -> None:
        self._observe(node, envelope.wall_ms, self._asked_at)
        if self._SyncObj__raftState == CANDIDATE and envelope.vote.granted and self._is_voter(node):
            self._votes.add(node.id)
            self._count_votes()

    def _take_over(self, node: Node) -> None:
        """The leader asks this node to lead."""
        able = self.votes and not self.hollow and not self.installing and not self.far_behind
        if self._SyncObj__raftState == FOLLOWER and node == self._SyncObj__raftLeader and able:
            _log.info("node %s takes over from node %s", self.node_id, node.id)
            self._campaign(self._clock(), transfer=True)

    def _leader_lives(self) -> bool:
        return self._SyncObj__raftState == LEADER or self._clock() - self._contact < self._timing.election_min

    def _up_to_date(self, last_term: int, last_index: int) -> bool:
        return (last_term, last_index) >= (self.journal.last_term, self.journal.last_index)

    def _answer_pre_vote(self, node: Node, envelope: pb.Envelope) -> None:
        body = envelope.pre_vote
        granted = (
            envelope.term > self.term and not self._leader_lives() and self._up_to_date(body.last_term, body.last_index)
        )
        reply = pb.PreVoteReply(granted=granted, attempt=body.attempt, current_term=self.term)
        answer = pb.Envelope(term=envelope.term, wall_ms=self.entry_clock.wall_ms(), pre_vote_reply=reply)
        self._send(node, answer, promise=False)

    def _count_pre_vote(self, node: Node, envelope: pb.Envelope) -> None:
        reply = envelope.pre_vote_reply
        if reply.attempt == self._pre_vote_attempt:
            self._observe(node, envelope.wall_ms, self._asked_at)
        if reply.current_term > self.term:
            self._follow(reply.current_term, None)
        elif (
            reply.granted
            and reply.attempt == self._pre_vote_attempt
            and envelope.term == self.term + 1
            and self._asking
            and self._is_voter(node)
            and self._SyncObj__raftState == FOLLOWER
        ):
            self._pre_votes.add(node.id)
            if self._enough(self._pre_votes):
                self._campaign(self._clock())

    def _answer_vote(self, node: Node, envelope: pb.Envelope) -> None:
        body = envelope.request_vote
        mine = self._SyncObj__votedForNodeId
        granted = (
            self._SyncObj__raftState != LEADER
            and mine in (None, node.id)
            and self._up_to_date(body.last_term, body.last_index)
        )
        if granted:
            if mine is None:
                self._SyncObj__setCurrentTerm(self.term, node.id)
            self._rearm(self._clock())
        vote = pb.Vote(granted=granted)
        self._send(node, pb.Envelope(term=self.term, wall_ms=self.entry_clock.wall_ms(), vote=vote))

    def _answer_read(self, node: Node, read_id: int) -> None:
        def answer(index: int, error: RaftError | None) -> None:
            reply = pb.ReadIndexReply(id=read_id, ok=error is None, index=index)
            self._send(node, pb.Envelope(term=self.term, read_index_reply=reply))

        try:
            self.read_index(answer)
        except (NotLeader, Overloaded) as error:
            answer(0, error)
