"""What becomes of messages, entry by entry, as the first node that applies one has it; and the judgement in the end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos.queues import checker
from chaos.queues.case import Terms
from chaos.queues.history import (
    Change,
    Delivery,
    Effect,
    History,
    Left,
    Letter,
    Record,
    Send,
    Settle,
    Ticks,
)
from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_PEEK
from kvorum_node.store import Grant, Store
from tests.simulation.whole.queues.answers import Answers
from tests.simulation.whole.queues.commands import Calls, commands
from tests.simulation.whole.queues.fullness import Fullness
from tests.simulation.whole.queues.past import Past
from tests.simulation.whole.queues.plan import (
    BRIEF,
    LATE,
    LONGEST_LEASE,
    NAMES,
    PERIOD,
    RECORDS,
    SCHEDULE,
    STORY,
)
from tests.simulation.whole.queues.removal import Removal
from tests.simulation.whole.rpc import KEEPALIVE, PATIENCE

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge

UNSEEN = KEEPALIVE + PATIENCE
"""Seconds for which a node may take a killed client for one that lives: its connection may have been cut before."""
GRACE = 1.0
SHOWN = 5
"""Violations of a schedule that are reported."""
_COMMANDED = BRIEF.encode(), STORY.encode()
"""What commands about whole queues and topics are looked at for."""


class Ledger:
    """Of one schedule."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self.fullness, self.past, self.removal = Fullness(judge), Past(judge), Removal(judge)
        self.answers, self.calls = Answers(judge), Calls()
        self.ready = False
        """Queues and topics are defined."""
        self.maker = ""
        """The client that sees to it."""
        self.first_ms = self.last_ms = 0
        """It was there from this moment of the cluster on, and made its last message for that one; 0: not known."""
        self._records: list[Record] = list(RECORDS)
        self._marked: list[tuple[str, Record]] = []
        """What left a mark, by which an unknown outcome is known in the end."""
        self._released: dict[str, Settle] = {}
        self._holders: dict[str, str] = {}
        self._lost: dict[str, float] = {}
        self._offices: list[float] = []
        self.unseen: set[str] = set()
        """Messages that were leased where nobody looked, and not any more when somebody did."""
        self._healed = 0.0

    # ---- what happens to them

    def lost(self, client: str, at: float) -> None:
        """A client was killed."""
        self._lost[client] = at

    def office(self, at: float) -> None:
        """Somebody leads."""
        self._offices.append(at)

    def healed(self, at: float) -> None:
        """Nothing goes wrong from now on."""
        self._healed = at

    # ---- what clients do

    def settled(self, settle: Settle) -> None:
        """Somebody has got an answer, or none."""
        self._records.append(settle)

    def marked(self, mark: str, record: Send | Change) -> None:
        """A write is over, as far as its client knows. `mark` is a counter that it counts up."""
        self._marked.append((mark, record))

    def handed(self, lease: str, client: str) -> None:
        """A client has got a message. A lease is one client's."""
        if self._holders.setdefault(lease, client) != client:
            self._judge.broken(f"clients {self._holders[lease]} and {client} both have lease {lease}")

    # ---- what nodes do

    def applied(self, index: int, now: int, result: Any, grants: Sequence[Grant], payload: bytes) -> None:
        """An entry, for the first time. `now` is nanoseconds of true time."""
        counters = self._judge.counters
        self.fullness.applied(index, now)
        if result.ended:
            self._note_releases(index, now, {lease.hex() for lease in result.ended}, payload)
        if any(name in payload for name in _COMMANDED):
            for place, command, output in commands(index, payload, result.outputs):
                self.past.applied(place, result.time_ms, command)
                self.removal.applied(place, command, output)
                self.calls.applied(command, output, now)
        seen = {grant.delivery.lease_id for grant in grants}
        self.unseen |= {leased.message_id.hex() for leased in result.leased if leased.lease_id not in seen}
        for grant in grants:
            delivery: pb.Delivery = grant.delivery
            if delivery.queue in LATE:
                self.past.granted(delivery, result.time_ms)
            elif delivery.queue.startswith("\0"):
                self.answers.granted(delivery)
            if delivery.queue not in NAMES:
                continue
            if delivery.queue == BRIEF:
                self.removal.granted(delivery)
            holder = f"{grant.session.hex()}/{grant.consumer}"
            self._records.append(delivery_record(delivery, holder, now))
            counters["queue leases"] += 1
            counters["queue redeliveries"] += delivery.attempt > 1
            counters["queue takes"] += delivery.taken
            counters["topic copies delivered"] += delivery.queue.startswith("news")
            counters["letters delivered"] += delivery.HasField("origin")

    def _note_releases(self, index: int, now: int, ended: set[str], payload: bytes) -> None:
        if not payload:
            return
        for number, command in enumerate(pb.Batch.FromString(payload).commands):
            for released in command.release.leases:
                lease = released.lease_id.hex()
                if lease in ended:
                    stamp = f"{index:016x}{number:04x}"
                    verdict = "retry" if released.counts else "return"
                    self._released[lease] = Settle(lease, verdict, now, now, "ok", stamp)  # type: ignore[arg-type]
                    self._judge.counters["queue lapses"] += released.counts
                    self._judge.counters["queue releases"] += not released.counts

    # ---- the end

    def judge(self, store: Store, times: dict[int, tuple[int, bytes]]) -> None:
        """`times`: of each entry, first of all its milliseconds."""
        self._judge_lapses()
        records = self._whole(store)
        self.fullness.judge(records, frozenset(self.unseen))
        self.past.judge(records, times)
        self.removal.judge(records, times, store)
        self.answers.judge(store)
        for violation in self.calls.violations():
            self._judge.broken(f"queues: {violation}")
        self._judge_what_is_left(store)
        history = History.of(_common(records))
        terms = Terms(complete=True, unseen=frozenset(self.unseen), time_of=lambda index: times[index][0], late=None)
        found = checker.check(history, terms)
        for violation in found[:SHOWN]:
            self._judge.broken(f"queues: {violation}")
        counts = checker.count(history)
        for name in ("sends", "messages", "duplicates", "effects", "letters", "cancelled", "rescheduled"):
            self._judge.counters[f"queue {name}"] += counts[name]
        self._judge.counters["unknown queue sends"] += counts["unknown sends"]
        self._judge.counters["stale queue settles"] += counts["stale"]
        self._judge.counters["ticks"] += len({one.name for one in history.deliveries if one.queue == "bells"})

    def _judge_what_is_left(self, store: Store) -> None:
        """All messages that there are belong to queues."""
        with store.snapshot() as snapshot:
            infos, _ = snapshot.queue_infos("", b"", MAX_PEEK)
        known, there = sum(info.messages + info.dead for info in infos), store._state.messages
        if known != there:
            self._judge.broken(f"queues: there are {there} messages, and queues count {known}")

    def _judge_lapses(self) -> None:
        """What lost clients held is free again in time. While things go wrong there may be no leader that could see to
        it, so this is about what was left when they did not any more."""
        for lease, released in self._released.items():
            end, lost = released.invoked / 1e9, self._lost.get(self._holders.get(lease, ""))
            if lost is None or end <= self._healed:
                continue
            since = max([self._healed, lost + UNSEEN, *(at for at in self._offices if at <= end)])
            self._judge.counters["lapses judged"] += 1
            if end > since + LONGEST_LEASE / 1000 + GRACE:
                self._judge.broken(
                    f"queues: lease {lease} of a lost client lapsed only {end - since:.2f} s after {since:.2f}"
                )

    def _whole(self, store: Store) -> list[Record]:
        """Outcomes that nobody knew are known afterwards."""
        records = list(self._records)
        obeyed = {
            one.lease for one in records if isinstance(one, Settle) and one.outcome == "ok" and one.verdict != "extend"
        }
        records += [one for lease, one in self._released.items() if lease not in obeyed]
        with store.snapshot() as snapshot:
            records += [self._resolved(mark, record, snapshot) for mark, record in self._marked]
            for message in {one.message for one in records if isinstance(one, Delivery)}:
                row = snapshot.get(f"e/{message}".encode())
                if row.versionstamp:
                    records.append(Effect(message, int.from_bytes(row.value, "little"), row.versionstamp.hex()))
            for queue in NAMES:
                records += _what_is_left(snapshot, queue)
        first = self.first_ms - self.first_ms % PERIOD + PERIOD if self.first_ms else self.last_ms + PERIOD
        records.append(Ticks(SCHEDULE, "bells", first, self.last_ms, PERIOD))
        return records

    def _resolved(self, mark: str, record: Record, snapshot: Any) -> Record:
        assert isinstance(record, Send | Change)
        row = snapshot.get(mark.encode())
        count, stamp = int.from_bytes(row.value, "little") if row.versionstamp else 0, row.versionstamp.hex()
        if count > 1 or (record.outcome != "unknown" and (count == 1) != (record.outcome == "ok")):
            self._judge.broken(f"queues: {mark} was applied {count} times, and its client was told {record.outcome}")
        if record.outcome != "unknown":
            return record
        if not count:
            return replace(record, outcome="not applied")
        if isinstance(record, Change):
            return replace(record, outcome="ok", stamp=stamp)
        # Whether it was a duplicate is not known.
        return record if record.dedup else replace(record, outcome="ok", stamp=stamp)


def _common(records: Sequence[Record]) -> Iterator[Record]:
    """Without what its own judges look at: a topic whose subscriptions change, ids of a queue that is removed."""
    for record in records:
        if not isinstance(record, Send) or record.queue not in (STORY, BRIEF):
            yield record
        elif record.queue == BRIEF:
            yield replace(record, dedup="", window=0)


def delivery_record(delivery: pb.Delivery, holder: str, now: int) -> Delivery:
    """A grant."""
    return Delivery(
        delivery.message_id.hex(),
        _name(delivery),
        delivery.queue,
        delivery.lease_id.hex(),
        delivery.attempt,
        holder,
        now,
        delivery.group if delivery.HasField("group") else None,
        delivery.taken,
    )


def _name(message: pb.Delivery | pb.MessageInfo) -> str:
    name = message.payload.rpartition(b" ")[0].decode()
    return f"{SCHEDULE}@{pb.Headers.FromString(message.headers).tick_ms}" if name == SCHEDULE else name


def living(store: Store) -> int:
    """Messages of all queues that are not dead."""
    with store.snapshot() as snapshot:
        infos, _ = snapshot.queue_infos("", b"", MAX_PEEK)
    return sum(info.messages for info in infos)


def _what_is_left(snapshot: Any, queue: str) -> list[Record]:
    found: list[Record] = []
    for kind in (pb.PEEK_KIND_UNSPECIFIED, pb.PEEK_KIND_DEAD):
        after = b""
        while True:
            infos, after = snapshot.peek(queue, kind, after, MAX_PEEK, 0)
            for info in infos:
                dead = kind == pb.PEEK_KIND_DEAD
                found.append(_letter(info, queue) if dead else Left(_name(info), queue))
            if not after:
                break
    return found


def _letter(info: pb.MessageInfo, queue: str) -> Letter:
    origin = info.origin if info.HasField("origin") and info.origin.queue != queue else None
    message, name = info.message_id.hex(), _name(info)
    if origin is None:
        return Letter(message, name, queue, info.attempt)
    return Letter(message, name, queue, origin.attempts, origin.message_id.hex(), origin.queue)
