"""Replicas compare their content hashes through the leader (rules A6), and the odd one out is rebuilt.

Every node tells the leader its hash after certain entries. A voter that differs from a majority learns so from the
leader, stops, and throws its state away at the next start. A leader that finds itself in the minority hands its office
over first: what it serves may be wrong. Without a majority nobody can say who is right: an alarm, and nothing else.
"""

import logging
from collections.abc import Callable

from pysyncobj.node import Node

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import Diverged, RaftError
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.seams import StateMachine
from kvorum_raft.state_hashes import StateHashes

_log = logging.getLogger("kvorum.raft")


class Comparing:
    """`send` as the transport's. Raises Diverged where this node is the odd one."""

    def __init__(
        self, core: SafeSyncObj, machine: StateMachine, send: Callable[[Node, pb.Envelope], bool], *, every: int
    ) -> None:
        self._core = core
        self._machine = machine
        self._send = send
        self._hashes = StateHashes(every)
        self.alarms = 0
        """Comparisons in which somebody was wrong."""
        self._alarmed_at = 0
        self._led = False

    def applied(self, index: int) -> None:
        if not self._hashes.due(index):
            return
        if self._core.leads != self._led:
            self._led = self._core.leads
            self._hashes.clear()  # what was reported to an earlier leader of this name may be of folders that are gone
        content_hash = self._machine.state_hash()
        self._hashes.own(index, content_hash)
        if self._core.leads:
            self._judge(index)
        elif self._core.leader_id is not None:
            report = pb.StateHash(index=index, content_hash=content_hash)
            self._send(Node(self._core.leader_id), pb.Envelope(term=self._core.term, state_hash=report))

    def installed(self) -> None:
        """The state is another one now."""
        self._hashes.clear()

    def received(self, node: Node, message: pb.StateHash) -> None:
        if message.verdict:
            own = self._hashes.own_at(message.index)
            if node.id == self._core.leader_id and own is not None and own != message.content_hash:
                self.alarms += 1
                raise Diverged(
                    f"after entry {message.index} the state of this node is not that of the majority "
                    f"({own.hex()} instead of {message.content_hash.hex()}): it will be rebuilt"
                )
        elif self._core.leads:
            self._hashes.reported(node.id, message.index, message.content_hash)
            self._judge(message.index)

    def _judge(self, index: int) -> None:
        configuration = self._core.configuration
        if configuration is None:
            return
        verdict = self._hashes.judge(index, configuration.voters, self._core.node_id)
        if verdict is None:
            return
        if index > self._alarmed_at:
            self._alarmed_at = index
            self.alarms += 1
            who = "in the minority: " + ", ".join(sorted(verdict.minority)) if verdict.decided else "no majority agrees"
            _log.critical("the nodes' states differ after entry %d (%s)", index, who)
        if not verdict.decided:
            return
        if verdict.own:
            self._leave_office(index)
            return
        told = pb.StateHash(index=index, content_hash=verdict.content_hash, verdict=True)
        for node_id in verdict.minority:
            self._send(Node(node_id), pb.Envelope(term=self._core.term, state_hash=told))

    def _leave_office(self, index: int) -> None:
        why = f"its state after entry {index} is not that of the majority"
        try:
            self._core.transfer(None, lambda error: self._handed_over(error, why))
        except (RaftError, ValueError):
            self._core.step_down(why)

    def _handed_over(self, error: RaftError | None, why: str) -> None:
        if error is not None:
            self._core.step_down(why)
