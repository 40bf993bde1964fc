"""One rule of the product disabled at a time, to see whether the simulator notices.

Each context manager replaces a method of a shipped class by one that lacks the rule, and nothing else; the product has
no hooks for it. A rule that nobody misses is either superfluous, or not tested.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

from kvorum._proto import kvorum_pb2 as kv
from kvorum_node.store import auth
from kvorum_node.store.commits import execute
from kvorum_node.store.sessions import SessionLog
from kvorum_raft import log_store
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.core_follower import FollowerSide
from kvorum_raft.core_leader import LeaderSide
from kvorum_raft.core_snapshot import SnapshotSide
from kvorum_raft.core_state import CoreState
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.reads import ReadRounds
from kvorum_raft.write_ahead import EPOCH_SIZE, WriteAhead
from tests.simulation.whole.queues.mutations import QUEUE_RULES


@contextmanager
def _truncate_always() -> Iterator[None]:
    """A message's entries replace everything behind their place, as far as it is not known to be committed."""
    conflict = FollowerSide._conflict

    def replaced(self: Any, prev_index: int, prev_term: int) -> int | None:
        hint = conflict(self, prev_index, prev_term)
        if hint is None and self.journal.last_index > (end := max(prev_index, self.commit_index)):
            self.journal.truncate_from(end + 1)
        return hint

    with mock.patch.object(FollowerSide, "_conflict", replaced):
        yield


@contextmanager
def _commit_older_terms() -> Iterator[None]:
    """A leader counts the copies of every entry."""

    def replaced(self: Any) -> None:
        durable = sorted(
            [
                self.journal.durable_index,
                *(one.match_index for node, one in self._progress.items() if node.id in self.configuration.voters),
            ],
            reverse=True,
        )
        index = durable[self._quorum() - 1]
        if index > self.commit_index:
            self._set_commit(index)

    with mock.patch.object(LeaderSide, "_advance_commit", replaced):
        yield


@contextmanager
def _keep_what_is_worked_out() -> Iterator[None]:
    """Whoever led and does not any more goes on with an entry that was not committed."""
    with mock.patch.object(CoreState, "_give_up_work_ahead", lambda self: None):
        yield


@contextmanager
def _acknowledge_at_once() -> Iterator[None]:
    """A follower acknowledges what it has not synced yet."""
    receive = FollowerSide._receive_append

    def pay(self: Any) -> None:
        leader, number = self._SyncObj__raftLeader, self._owed_round
        if leader is None or number is None or not self.journal.term_durable or self.state != 0:
            return
        self._owed_round = None
        reply = pb.AppendReply(success=True, match_index=self._verified, prev_index=self._verified, round=number)
        self._reply(leader, reply)

    def replaced(self: Any, *arguments: Any) -> None:
        receive(self, *arguments)
        self._pay_acknowledgement()

    with (
        mock.patch.object(FollowerSide, "_pay_acknowledgement", pay),
        mock.patch.object(FollowerSide, "_receive_append", replaced),
    ):
        yield


@contextmanager
def _vote_before_sync() -> Iterator[None]:
    """Term and vote leave before they are synced."""
    send = CoreState._send

    def replaced(self: Any, node: Any, envelope: Any, *, promise: bool = True) -> bool:
        return send(self, node, envelope, promise=False)

    with mock.patch.object(CoreState, "_send", replaced):
        yield


@contextmanager
def _vote_for_anybody() -> Iterator[None]:
    """Candidates with shorter logs get votes."""
    with mock.patch.object(SafeSyncObj, "_up_to_date", lambda self, last_term, last_index: True):
        yield


@contextmanager
def _read_before_own_commit() -> Iterator[None]:
    """A new leader takes the commit index that it happens to know for that of the cluster."""

    def replaced(self: Any, callback: Any) -> None:
        if self.state != LEADER or self.stopped:
            read(self, callback)
        else:
            self.rounds.ask(self.commit_index, callback)

    read: Callable[..., Any] = LeaderSide.read_index
    with mock.patch.object(LeaderSide, "read_index", replaced):
        yield


@contextmanager
def _read_without_round() -> Iterator[None]:
    """Whoever thinks that it leads answers."""
    ask = ReadRounds.ask

    def replaced(self: ReadRounds, commit_index: int | None, callback: Any) -> None:
        if commit_index is None:
            ask(self, commit_index, callback)
        else:
            callback(commit_index, None)

    with mock.patch.object(ReadRounds, "ask", replaced):
        yield


@contextmanager
def _change_at_will() -> Iterator[None]:
    """A change of the members does not wait for the one before."""
    change = LeaderSide.change

    def replaced(self: Any, configuration: Any, callback: Any) -> int:
        entries = self.journal.configurations
        # as if the newest one were committed
        with mock.patch.object(self.journal, "configurations", [e for e in entries if e.index <= self.commit_index]):
            return change(self, configuration, callback)

    with mock.patch.object(LeaderSide, "change", replaced):
        yield


@contextmanager
def _install_anything() -> Iterator[None]:
    """A snapshot of what is committed here already is installed like any other. The rule is asked twice: when one is
    offered, and before it is installed. Else leaders offer only what they think is needed."""
    with mock.patch.object(SnapshotSide, "wants_snapshot", lambda self, index: True):
        yield


@contextmanager
def _forget_results() -> Iterator[None]:
    """A repeated write is executed again; what is abandoned or beyond the window still is."""
    judge = SessionLog.judge

    def replaced(self: SessionLog, seq: int, op: bytes, number: int, prefix: bytes) -> kv.WriteResult | None:
        answer = judge(self, seq, op, number, prefix)
        return answer if answer is not None and answer.outcome in (kv.OUTCOME_ABANDONED, kv.OUTCOME_WINDOW) else None

    with mock.patch.object(SessionLog, "judge", replaced):
        yield


@contextmanager
def _rights_of_this_run() -> Iterator[None]:
    """A node that was restarted asks for no tokens, until it hears of the switch again (etcd#14571)."""
    load = auth.load

    def replaced(txn: Any) -> auth.Auth:
        return replace(load(txn), on=False)

    with mock.patch.object(auth, "load", replaced):
        yield


@contextmanager
def _no_judgement() -> Iterator[None]:
    """Apply believes whatever stands in the log."""
    with mock.patch.object(auth, "judged", lambda entry, principal: execute):
        yield


@contextmanager
def _forget_frames() -> Iterator[None]:
    """A start takes the environment for the whole log."""
    with mock.patch.object(log_store, "frames", lambda data, epoch: []):
        yield


@contextmanager
def _believe_old_frames() -> Iterator[None]:
    """All epochs are one: what has moved into the environment stands in the file as well."""
    frames, frame = log_store.frames, WriteAhead.frame

    def written(self: Any, state: bytes, entries: Any) -> bytes | None:
        self._epoch = bytes(EPOCH_SIZE)
        return frame(self, state, entries)

    with (
        mock.patch.object(log_store, "frames", lambda data, epoch: frames(data, bytes(EPOCH_SIZE))),
        mock.patch.object(WriteAhead, "frame", written),
    ):
        yield


RULES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "truncate only on conflict": _truncate_always,
    "commit only own-term entries": _commit_older_terms,
    "what is worked out goes with the office": _keep_what_is_worked_out,
    "acknowledge only what is synced": _acknowledge_at_once,
    "durable vote": _vote_before_sync,
    "vote only for up-to-date logs": _vote_for_anybody,
    "ReadIndex needs an own-term commit": _read_before_own_commit,
    "ReadIndex needs a round": _read_without_round,
    "one change of members at a time": _change_at_will,
    "snapshots up to the commit index are ignored": _install_anything,
    "session dedup": _forget_results,
    "rights are state": _rights_of_this_run,
    "rights are judged in apply": _no_judgement,
    "what stands in the write-ahead file is log": _forget_frames,
    "an epoch ends when its frames have moved": _believe_old_frames,
    **QUEUE_RULES,
}

WATCHED = frozenset({"truncate only on conflict", "commit only own-term entries"})
"""Rules whose breaking does harm so rarely that nodes are also watched for it."""


def disabled(rule: str) -> AbstractContextManager[None]:
    """The product without this rule; "" is the product as it is. KeyError."""
    return RULES[rule]() if rule else nullcontext()
