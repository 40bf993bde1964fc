"""What was promised, and whether it was kept.

While a schedule runs, each applied entry of each node is compared with what other nodes applied at that index, and the
queue's grants and settles are replayed; each leadership is compared with its term's. At the end the states are
compared, the marks that all writes left behind are counted, and the clients' history goes to the checkers of `chaos`.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos import linearizability, serializability
from chaos.history import Operation
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Grant, Store
from kvorum_raft.seams import Applied
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.machines import EPOCH_MS
from tests.simulation.whole.queues.jobs import QUEUE
from tests.simulation.whole.queues.ledger import Ledger
from tests.simulation.whole.ranges import Stretch, judge_stretches
from tests.simulation.whole.trace import Trace
from tests.simulation.whole.votes import Votes

if TYPE_CHECKING:
    from tests.simulation.whole.process import Process

AHEAD_MS = 1_000
"""How far entry time may be ahead of true time: sound clocks are wrong by up to 200 ms."""
MAX_ATTEMPTS = 21
"""Of the messages that clients enqueue."""


class Broken(Exception):
    """A promise was broken."""


class Judge:
    """One schedule's. Findings are gathered, not raised: they come up inside of shipped code."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self.rng = rng
        self.on_commit: Callable[[str], None] | None = None
        """Called once, soon after a leader has applied something, with its name."""
        self.findings: list[str] = []
        self.counters: Counter[str] = Counter()
        self.trace = Trace()
        self.ahead_ms = AHEAD_MS
        """How far entry time may be ahead of true time; more once somebody has set it."""
        self.votes = Votes(self)
        self.ledger = Ledger(self)
        self.may_be_refused: set[str] = set()
        """Machines whose folder the schedule has tampered with, or that were removed."""
        self.forgiven: set[str] = set()
        """Machines whose next fault was made by the schedule."""
        self.leaders: dict[int, str] = {}
        self.entries: dict[int, tuple[int, bytes]] = {}
        """Time and state's hash after each entry, as the first node that applied it had them."""
        self.terms: dict[int, int] = {}
        """Of committed entries."""
        self.newest = 0
        self.leases: dict[bytes, bytes] = {}
        """Lease of each message that somebody holds."""
        self.ended: dict[bytes, int] = {}
        """Index of the entry in which each lease ended, settled or released."""
        self._lease_messages: dict[bytes, bytes] = {}
        self._born: dict[bytes, int] = {}
        self._attempts: dict[bytes, int] = {}
        self._answers: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self.history: list[Operation] = []
        self.stretches: list[Stretch] = []
        """What watchers of ranges were told."""
        self.undecided = False
        """A checker gave up on the history, which therefore proves nothing."""
        self.messages: dict[str, str] = {}
        """Mark of each message that was enqueued for certain, by its name."""

    def broken(self, what: str) -> None:
        self.note("judge", f"BROKEN: {what}")
        self.findings.append(what)

    def note(self, who: str, what: str | Operation, *arguments: Any) -> None:
        """For the trace. `arguments` belong to what has `%` in it."""
        self.trace.add(self._clock.now, who, what, arguments)

    # ---- what nodes do (machines.Observer)

    def applied(self, process: "Process", applied: Applied) -> None:
        store, raft = process.store, process.raft
        assert store is not None and raft is not None
        index, digest = applied.index, store.state_hash()
        self.note(process.name, "applied %d at %d %s", index, applied.time_ms, digest[:4].hex())
        if raft._journal.durable_index < index:
            self.broken(f"node {process.name} applied entry {index} before it was durable")
        if process.applied_index is not None and index != process.applied_index + 1:
            self.broken(f"node {process.name} applied entry {index} after entry {process.applied_index}")
        process.applied_index = index
        if store.applied_index != index:
            self.broken(f"node {process.name} is at entry {store.applied_index} after it applied {index}")
        if index > raft._core.commit_index:
            self.broken(f"node {process.name} applied entry {index}, which it does not know to be committed")
        known = self.entries.get(index)
        if known is None:
            self.terms[index] = raft._journal.term_at(index) or 0
            self._first(index, applied, process)
            self.entries[index] = (applied.time_ms, digest)
        elif known != (applied.time_ms, digest):
            self.broken(f"node {process.name} applied another entry {index} than others, or to another effect")

    def _first(self, index: int, applied: Applied, process: "Process") -> None:
        if index != self.newest + 1:
            self.broken(f"entry {index} was applied after entry {self.newest}")
        if index - 1 in self.entries and self.entries[index - 1][0] > applied.time_ms:
            self.broken(f"time went back at entry {index}")
        ahead = applied.time_ms - EPOCH_MS - self._clock.now * 1000
        if ahead > self.ahead_ms:
            self.broken(f"the time of entry {index} is {ahead:.0f} ms ahead of every sound clock")
        self.newest = index
        if self.on_commit is not None and applied.result is not None and process.raft and process.raft.is_leader:
            self._clock.after(self.rng.uniform(0.0, 0.003), self.on_commit, process.name)
            self.on_commit = None
        if applied.result is not None:
            self._expiry_news(applied.time_ms, applied.result.changed_keys)
            self._sessions_news(index, applied.result)
            assert process.store is not None
            grants = process.store.grants(applied.result)
            self._queue_news(index, applied.time_ms, applied.result.ended, grants)
            payload = b"" if process.raft is None else process.raft._journal.entry(index).payload
            self.ledger.applied(index, round(self._clock.now * 1e9), applied.result, grants, payload)

    def _expiry_news(self, time_ms: int, changed_keys: list[bytes]) -> None:
        """Keys that expire are set once, so the second change is their end."""
        for key in changed_keys:
            if key.startswith(b"x/"):
                born = self._born.setdefault(key, time_ms)
                if born != time_ms:
                    self.counters["keys expired"] += 1
                    if time_ms < born + int(key.rpartition(b"/")[2]):
                        self.broken(f"key {key!r} expired after {time_ms - born} ms")

    def _sessions_news(self, index: int, result: Any) -> None:
        """Of each number of a session there is one effect, and the answer to a repeat is the answer."""
        for output in result.outputs:
            if not isinstance(output, pb.ResultGroup):
                continue
            for answer in output.results:
                if answer.outcome > pb.OUTCOME_RANGE_ERROR:
                    continue
                stamp = (answer.stamp_prefix or output.stamp_prefix) + answer.number.to_bytes(2, "big")
                known = self._answers.setdefault((output.session, answer.seq), (stamp, answer.outcome))
                if known != (stamp, answer.outcome):
                    self.broken(f"entry {index}: write {answer.seq} of session {output.session.hex()} has two answers")
                self.counters["dedup hits"] += int.from_bytes(stamp[:8], "big") != index

    def _queue_news(self, index: int, time_ms: int, ends: Sequence[bytes], grants: Sequence[Grant]) -> None:
        """An entry may end leases and grant new ones of the same messages, in this order or the other."""
        ended = dict.fromkeys(ends, index)
        self.ended.update(ended)
        for lease in ended:
            message = self._lease_messages.get(lease)
            if message is not None and self.leases.get(message) == lease:
                del self.leases[message]
        for grant in grants:
            delivery: pb.Delivery = grant.delivery
            message, lease = delivery.message_id, delivery.lease_id
            if message in self.leases:
                self.broken(f"entry {index} leases message {message.hex()}, which is leased already")
            if lease not in ended and not delivery.taken:
                self.leases[message] = lease
            self._lease_messages[lease] = message
            if delivery.queue != QUEUE:
                continue
            before = self._attempts.get(message, 0)
            known = message.hex() not in self.ledger.unseen
            if known and not max(before, 1) <= delivery.attempt <= min(before + 1, MAX_ATTEMPTS):
                self.broken(f"message {message.hex()}: attempt {delivery.attempt} after attempt {before}")
            self._attempts[message] = delivery.attempt
            delay = int(delivery.payload.rpartition(b" ")[2])
            if time_ms < delivery.enqueued_at_ms + delay:
                self.broken(f"message {message.hex()} was leased before it was due")
            self.counters["leases"] += 1
            self.counters["releases"] += delivery.attempt == before

    def role_changed(self, process: "Process", leading: bool) -> None:
        assert process.raft is not None
        term = process.raft._core.term if leading else 0
        self.note(process.name, f"leads term {term}" if leading else "sees another leader")
        if leading:
            self.ledger.office(self._clock.now)
            self.saw_leader(term, process.name)

    def saw_leader(self, term: int, name: str) -> None:
        if self.leaders.setdefault(term, name) != name:
            self.broken(f"two leaders in term {term}: {self.leaders[term]} and {name}")

    def started(self, process: "Process", applied_index: int) -> None:
        self.note(process.name, f"starts at entry {applied_index}")
        self.counters["hollow starts"] += process.core is not None and process.core.hollow
        self.votes.watch(process)

    def installed(self, process: "Process", index: int) -> None:
        """A snapshot is what everybody had at that entry."""
        store = process.store
        assert store is not None
        self.note(process.name, f"installed a snapshot of entry {index}")
        if process.applied_index is not None and index < process.applied_index:
            self.broken(f"a snapshot brings node {process.name} back from entry {process.applied_index} to {index}")
        process.applied_index = index
        known = self.entries.get(index)
        if store.applied_index != index or known is None or known[1] != store.state_hash():
            self.broken(f"node {process.name} installed a snapshot of entry {index} that is not what others had there")

    def refused(self, process: "Process", error: Exception) -> None:
        self.note(process.name, f"is refused: {error}")
        process.machine.out = True
        self.counters["folders refused"] += 1
        if process.name not in self.may_be_refused:
            self.broken(f"node {process.name} is refused, and nobody touched its folder: {error}")

    def fault(self, process: "Process", error: Exception) -> None:
        self.note(process.name, f"stops: {error}")
        # Whoever starts it meanwhile, as long as its disk is full it ends again.
        if process.name in self.forgiven or process.machine.platter.full:
            self.forgiven.discard(process.name)
            self.counters["faults made"] += 1
        else:
            self.broken(f"node {process.name} stopped: {type(error).__name__}: {error}")

    def error(self, name: str, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.broken(f"an exception in {name}: {context.get('message')}: {type(error).__name__}: {error}")

    # ---- the end

    def states(self, stores: Sequence[Store]) -> None:
        """All nodes hold the same, and it is what their hash says."""
        for store in stores:
            if store.state_hash() != stores[0].state_hash() or store.applied_index != stores[0].applied_index:
                self.broken("the states differ")
            if store.recompute_hash() != store.state_hash():
                self.broken("the content hash does not fit the content")

    def outcomes(self, store: Store) -> None:
        """Every write did what its caller was told; afterwards no outcome is unknown any more."""
        with store.snapshot() as snapshot:
            resolved = [self._resolve(operation, snapshot) for operation in self.history]
            for name in self.messages:
                handled = _count(snapshot.get(f"h/{name}".encode()))
                dead = snapshot.get(f"d/{name}".encode()).versionstamp
                if handled + bool(dead) != 1:
                    self.broken(f"message {name} was handled {handled} times{' and given up' if dead else ''}")
                self.counters["handled"] += handled
                self.counters["undelivered"] += bool(dead)
        self.history = resolved

    def _resolve(self, operation: Operation, snapshot: Any) -> Operation:
        if not operation.mark:
            return operation
        row = snapshot.get(operation.mark.encode())
        count, stamp = _count(row), row.versionstamp.hex()
        if count > 1:
            self.broken(f"a write was applied {count} times: {operation.to_json()}")
        elif operation.committed and (count != 1 or stamp != operation.versionstamp):
            self.broken(f"an acknowledged write is lost, or another than it was said to be: {operation.to_json()}")
        elif count and not operation.committed and operation.outcome != "unknown":
            self.broken(f"a write was applied that was denied: {operation.to_json()}")
        if operation.outcome != "unknown":
            return operation
        self.counters["unknown outcomes"] += 1
        self.counters["unknown outcomes that happened"] += count
        if not count:
            return replace(operation, outcome="not applied")
        if operation.message:
            self.messages[operation.message] = operation.mark
        return replace(operation, outcome="ok", versionstamp=stamp, returned=None)

    def watches(self, store: Store, name: str, watched: Sequence[pb.KvEntry]) -> None:
        """The last event of a watch is the state."""
        with store.snapshot() as snapshot:
            for entry in watched:
                if snapshot.get(entry.key).versionstamp != entry.versionstamp:
                    self.broken(f"client {name} watches {entry.key!r} and was not told of its last change")

    def queues(self, store: Store) -> None:
        """Every message came to the end that it should have."""
        self.ledger.judge(store, self.entries)

    def check_history(self) -> None:
        judge_stretches(self, self.stretches, self.history)
        for checker in (serializability, linearizability):
            verdict = checker.check(self.history)
            self.undecided |= verdict.state == "undecided"
            if verdict.state == "invalid":
                self.broken(f"{checker.__name__.rpartition('.')[2]}, {verdict.state}: {verdict.explanation}")


def _count(row: pb.KvEntry) -> int:
    return int.from_bytes(row.value, "little") if row.versionstamp else 0
