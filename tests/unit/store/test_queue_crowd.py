"""Random entries about queues under tiny bounds, where nearly every command has to stop midway and another one goes on.

No model says what comes out. After each entry all rows must fit together, and the leases that the results tell of must
be those that are held; one log must give one state, however it is applied; and in the end everything can be swept and
removed."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import ApplyResult, Denied, Unfinished, checked, fresh
from kvorum_node.store.queues import clearing, deaths, formats, timers, topics, walks
from kvorum_node.store.records import HASHED_TABLES, INDEXES, MESSAGE, PAYLOAD, RETAINED, TIMER
from kvorum_node.store.rows import row_hash
from tests.unit.store.harness import (
    Replica,
    all_of,
    cancel,
    define,
    define_schedule,
    define_topic,
    each,
    enqueue,
    group,
    init_cluster,
    lease,
    names,
    open_session,
    pause,
    purge,
    put,
    release,
    remove_queue,
    requeue,
    reschedule,
    settle,
    subscribe,
    sweep,
    tick,
    write,
)

STEPS = 110
QUEUES = ("", "a", "ab", "dead", "\x00inbox")
NAMED = QUEUES[:-1]
TOPICS = ("t", "u")
SCHEDULES = ("s", "r")
GROUPS = (None, None, "", "g", "h", "i", "j", "k", "l", "m")
KINDS = (
    pb.SETTLE_KIND_ACK,
    pb.SETTLE_KIND_RETRY,
    pb.SETTLE_KIND_REJECT,
    pb.SETTLE_KIND_REJECT,
    pb.SETTLE_KIND_RETURN,
    pb.SETTLE_KIND_EXTEND,
)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"ordered": True},
    {"max_attempts": 2, "lease_ms": 70},
    {"exponential": pb.Exponential(base_ms=4, factor_percent=300, cap_ms=50, jitter_percent=50)},
    {"dead_letters": pb.DEAD_LETTERS_QUEUE, "dead_letter_queue": "dead", "max_attempts": 1},
    {"dead_letters": pb.DEAD_LETTERS_KEEP, "max_attempts": 1},
    {"dead_letters": pb.DEAD_LETTERS_DROP, "retention_ms": 60},
    {"max_backlog": 8, "max_in_flight": 3},
)
KEPT = (MESSAGE, PAYLOAD, *INDEXES, *HASHED_TABLES[HASHED_TABLES.index(MESSAGE) + 1 :])
"""Tables of which nothing is left when all queues, topics and schedules are gone."""


@pytest.fixture(autouse=True)
def tiny_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "WRITTEN_AT_ONCE", 120)
    for module in (deaths, clearing):
        monkeypatch.setattr(module, "MOVED_AT_ONCE", 60)
    for module in (deaths, topics, clearing):
        monkeypatch.setattr(module, "QUEUE_CHUNK", 3)
    monkeypatch.setattr(topics, "_TRIMMED_BY_SWEEP", 2)
    monkeypatch.setattr(topics, "_TRIMMED_BY_PUBLISH", 1)
    monkeypatch.setattr(topics, "_FILLED_AT_ONCE", 40)
    monkeypatch.setattr(topics, "MAX_TOPIC_MESSAGES", 6)
    monkeypatch.setattr(timers, "_COPIED_AT_ONCE", 2)
    monkeypatch.setattr(walks, "MAX_WALK", 6)


class Crowd:
    """Many who send, hold and settle messages, publish, and clear away at random."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.rng = random.Random(seed)
        self.session = b""
        self.seq = 1
        self.held: dict[bytes, pb.Delivery] = {}
        """The leases that nothing has ended, by lease id, as the results tell of them."""
        self.old: list[pb.Delivery] = []
        self.next_ms: dict[str, int] = {}
        self.unfinished: list[pb.Command] = []
        """Commands that are to be repeated, or to go on from somewhere."""
        self.seen: Counter[str] = Counter()

    def run(self, steps: int = STEPS) -> None:
        self.session = self.enter(init_cluster(), open_session()).outputs[1]
        for _ in range(steps):
            self.replica.now_ms += self.rng.choice((0, 0, 1, 5, 20))
            made = [self.command() for _ in range(self.rng.randrange(1, 5))]
            self.enter(*(made if self.rng.random() < 0.8 else [*made, *self.rush()]))

    # ---- entries

    def enter(self, *commands: pb.Command) -> ApplyResult:
        """Apply an entry, and look whether everything fits together."""
        result = self.replica.apply(*commands)
        self.replica.scrub()
        self.replica.check_hash()
        self.check_what_is_known()
        self.note_leases(result)
        for command, output in zip(commands, result.outputs, strict=True):
            self.note_output(command, output)
        return result

    def check_what_is_known(self) -> None:
        """What is known of leased messages without their rows is what the rows say."""
        known = self.replica.store._held.leases
        self.seen["known"] += len(known)
        with self.replica.store._env.begin() as txn:
            for message_id, (lease_id, queue, digest) in known.items():
                row, payload = (checked.get(txn, table + message_id) or b"" for table in (MESSAGE, PAYLOAD))
                message = formats.unpack_message(row)
                assert (message.lease_id, message.queue, message.attempt) == (lease_id, queue, 1)
                assert digest == row_hash(MESSAGE + message_id, row) + row_hash(PAYLOAD + message_id, payload)
                assert not formats.has_ties(payload)

    def note_leases(self, result: ApplyResult) -> None:
        for grant in result.granted:
            delivery = grant.delivery
            assert delivery.lease_id not in self.held
            self.seen["taken"] += delivery.taken
            self.seen["leased with its enqueue"] += delivery.message_id[:8] == result.index.to_bytes(8, "big")
            if not delivery.taken:
                self.held[delivery.lease_id] = delivery
        for lease_id in result.ended:
            self.old = [*self.old[-20:], self.held.pop(lease_id)]
        assert {lease_id for lease_id, _ in result.extended} <= self.held.keys() | set(result.ended)
        found = {info.lease_id: (info.message_id, info.queue) for info in self.replica.store.leases()}
        assert found == {at: (delivery.message_id, delivery.queue) for at, delivery in self.held.items()}

    def note_output(self, command: pb.Command, output: Any) -> None:
        kind = command.WhichOneof("command") or ""
        seen = self.seen
        if isinstance(output, pb.ResultGroup):
            for answer in output.results:
                seen[pb.Outcome.Name(answer.outcome)] += 1
                seen["duplicate"] += len(answer.duplicates)
                seen["refused alone"] += len(answer.failed_checks)
        elif kind in ("purge", "requeue", "remove_queue"):
            unfinished = isinstance(output, Unfinished)
            seen[f"{kind} unfinished" if unfinished else f"{kind} {bool(output)}"] += 1
            if output:
                getattr(command, kind).after = output.after if unfinished else b""
                self.unfinished = [*self.unfinished[-3:], command]
        elif not isinstance(output, Denied):
            seen[f"{kind} {bool(output)}"] += 1
        seen["dying"] += any(name[9] == formats.DYING_TIMER for name in names(self.replica, TIMER))

    # ---- commands

    def command(self) -> pb.Command:
        rng = self.rng
        makers: tuple[tuple[Callable[[], pb.Command], float], ...] = (
            (self.writes, 40), (self.lease, 20), (self.release, 4), (self.sweep, 8), (self.policy, 4), (self.pause, 2),
            (self.clear, 7), (self.requeue, 6), (self.topic, 9), (self.schedule, 4), (self.go_on, 6),
        )  # fmt: skip
        return rng.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]()

    def rush(self) -> list[pb.Command]:
        """Messages that are leased in the entry that brings them, as far as nothing stands before them."""
        rng = self.rng
        queue = rng.choice(QUEUES)
        some = [enqueue(bytes(at), queue=queue, group=rng.choice((None, None, "g"))) for at in range(rng.randrange(6))]
        made = [group(*[write(message) for message in some]) for _ in range(rng.randrange(1, 3))]
        return [*made, lease(self.session, queue=queue, count=rng.choice((2, 9, 30)), take=rng.random() < 0.1)]

    def writes(self) -> pb.Command:
        """A group of writes, of the session or of none; sometimes one that was sent before."""
        rng = self.rng
        made = [self.write() for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.3:
            return group(*made)
        first = max(1, self.seq - rng.choice((0, 0, 0, 2)))
        self.seq = max(self.seq, first + len(made))
        return group(*made, session=self.session, first_seq=first, ack_below=max(1, self.seq - 20))

    def write(self) -> pb.AtomicWrite:
        rng = self.rng
        roll = rng.random()
        if roll < 0.15:
            return each(*[self.verdict() for _ in range(rng.randrange(1, 5))])
        if roll < 0.4:
            return write(self.message())
        if roll < 0.55:
            return write(self.verdict())
        parts: list[pb.Check | pb.Mutation | pb.Enqueue | pb.Settle] = []
        parts += [self.verdict() for _ in range(rng.choice((0, 0, 1, 2)))]
        parts += [self.message() for _ in range(rng.choice((0, 1, 1, 3)))]
        if rng.random() < 0.2:
            parts.append(put(b"k%d" % rng.randrange(4), expire_in_ms=rng.choice((None, 10))))
        if rng.random() < 0.1:
            parts.append(pb.Check(key=b"k%d" % rng.randrange(4), versionstamp=b""))
        return write(*parts)

    def message(self) -> pb.Enqueue:
        rng = self.rng
        payload = bytes(rng.choice((0, 3, 10, 25, 50)))
        if rng.random() < 0.4:
            return enqueue(payload, queue=rng.choice(QUEUES), delay_ms=rng.choice((0, 0, 0, 10)))
        dedup_id = rng.choice((b"", b"", b"x", b"y"))
        topic = rng.choice(TOPICS) if rng.random() < 0.3 else ""
        return enqueue(
            payload,
            queue="" if topic else rng.choice(QUEUES),
            topic=topic,
            delay_ms=rng.choice((0, 0, 0, 5, 40)),
            keys=[b"k%d" % rng.randrange(4) for _ in range(rng.randrange(1, 4))] if rng.random() < 0.3 else (),
            backoff=rng.choice((None, None, [], [3], [0, 9])),
            group=rng.choice(GROUPS),
            dedup_id=dedup_id,
            window_ms=rng.choice((0, 25)) if dedup_id else 0,
            headers=rng.choice((b"", pb.Headers(reply_to="me").SerializeToString())),
            ttl_ms=rng.choice((0, 0, 0, 30)),
        )

    def verdict(self) -> pb.Settle:
        rng = self.rng
        roll = rng.random()
        if self.old and roll < 0.1:
            return settle(rng.choice(self.old), rng.choice(KINDS))
        if not self.held or roll < 0.3:
            ids = [name[1:] for name in names(self.replica, MESSAGE)] or [bytes(12)]
            chosen = rng.choice(ids)
            return cancel(chosen) if rng.random() < 0.3 else reschedule(chosen, rng.choice((0, 0, 30)))
        delivery = self.held[rng.choice([*self.held])]
        kind = rng.choice(KINDS)
        delay = rng.choice((None, 0, 7)) if kind in (pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_EXTEND) else None
        return settle(delivery, kind, delay, "no" if kind == pb.SETTLE_KIND_REJECT else "")

    def lease(self) -> pb.Command:
        rng = self.rng
        return lease(
            self.session,
            queue=rng.choice(QUEUES),
            consumer=rng.randrange(3),
            count=rng.choice((1, 2, 4, 9)),
            take=rng.random() < 0.15,
            expiring=rng.random() < 0.3,
        )

    def release(self) -> pb.Command:
        rng = self.rng
        known = rng.choice((0, max(0, self.replica.store.applied_index - 5)))
        some = [delivery for delivery in self.held.values() if rng.random() < 0.3]
        return release(*some, counts=rng.random() < 0.6, known=known)

    def sweep(self) -> pb.Command:
        return sweep(self.rng.choice((1, 2, 5, 0)))

    def policy(self) -> pb.Command:
        return define(self.rng.choice(NAMED), **self.rng.choice(POLICIES))

    def pause(self) -> pb.Command:
        return pause(self.rng.choice(NAMED), self.rng.random() < 0.3)

    def clear(self) -> pb.Command:
        rng = self.rng
        queue, limit = rng.choice(QUEUES), rng.choice((0, 1, 2, 3))
        if rng.random() < 0.5:
            return remove_queue(queue, limit=limit)
        return purge(queue, dead=rng.random() < 0.3, limit=limit)

    def requeue(self) -> pb.Command:
        rng = self.rng
        if rng.random() < 0.2:
            ids = [name[1:] for name in names(self.replica, MESSAGE)]
            return requeue(rng.choice(NAMED), *rng.sample(ids, min(5, len(ids))), to_origin=rng.random() < 0.3)
        if rng.random() < 0.5:
            return requeue("dead", limit=rng.randrange(4), to_origin=True)
        return requeue(rng.choice(NAMED), limit=rng.randrange(4))

    def go_on(self) -> pb.Command:
        """With what was perhaps not finished, whatever has happened since."""
        return self.unfinished.pop() if self.unfinished else self.clear()

    def topic(self) -> pb.Command:
        rng = self.rng
        name = rng.choice(TOPICS)
        if rng.random() < 0.3:
            return define_topic(name, rng.choice((0, 25, 400, 400)), remove=rng.random() < 0.15)
        return subscribe(name, rng.choice(NAMED), rng.choice((None, 0, 300, 300)), remove=rng.random() < 0.4)

    def schedule(self) -> pb.Command:
        rng = self.rng
        name = rng.choice(SCHEDULES)
        now = self.replica.now_ms
        if name not in self.next_ms or rng.random() < 0.1:
            self.next_ms[name] = now + rng.randrange(10)
            message = enqueue(b"tick", topic="t") if rng.random() < 0.5 else enqueue(b"tick", queue=rng.choice(NAMED))
            return define_schedule(name, message, self.next_ms[name])
        before, self.next_ms[name] = self.next_ms[name], now + rng.randrange(1, 10)
        return tick(name, before, self.next_ms[name], skip=rng.random() < 0.2)

    # ---- the end

    def sweep_to_the_end(self) -> None:
        for _ in range(400):
            due_ms = self.replica.store.next_expiry_ms()
            if due_ms is None:
                assert names(self.replica, RETAINED) == [], "all of it is too old"
                return
            self.replica.now_ms = max(self.replica.now_ms, due_ms)
            assert self.enter(sweep(self.rng.choice((1, 3, 0)))).outputs[0] > 0, "something was due"
        raise AssertionError("the sweeps do not end")

    def remove_everything(self) -> None:
        self.enter(
            *[define_topic(name, remove=True) for name in TOPICS],
            *[define_schedule(name, None) for name in SCHEDULES],
        )
        self.sweep_to_the_end()
        for queue in QUEUES:
            _, _, ended = all_of(self.replica, remove_queue(queue, limit=self.rng.choice((0, 1, 2))))
            assert sorted(ended) == sorted(at for at, delivery in self.held.items() if delivery.queue == queue)
            for lease_id in ended:
                del self.held[lease_id]
        assert not self.held
        self.sweep_to_the_end()
        assert [name for table in KEPT for name in names(self.replica, table)] == []
        facts = self.replica.store.statistics()
        assert [facts[kind] for kind in ("messages", "queues", "topics", "schedules")] == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(12))
def test_everything_fits_together_after_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    replica = Replica(tmp_path / "state", data_version=3)
    crowd = Crowd(replica, seed)
    crowd.run()
    log, expected = [*replica.log], replica.store.state_hash()
    replayed_in_small_steps(tmp_path / "slices", log, expected)
    replayed_without_deliveries(tmp_path / "bare", log, expected, crowd.held)
    with monkeypatch.context() as patched:
        patched.setattr(fresh, "MAX_FRESH", 0)
        replayed_in_small_steps(tmp_path / "written at once", log, expected)
    replayed_roughly(tmp_path / "restarts", log, expected, random.Random(seed))
    crowd.sweep_to_the_end()
    crowd.remove_everything()
    replica.check_hash()
    replica.store.close()


Log = list[tuple[int, int, bytes]]


def replayed_in_small_steps(path: Path, log: Log, expected: bytes) -> None:
    other = Replica(path, slice_commits=1)
    other.replay(log)
    assert other.store.state_hash() == expected
    other.store.close()


def replayed_without_deliveries(path: Path, log: Log, expected: bytes, held: dict[bytes, pb.Delivery]) -> None:
    other = Replica(path)
    other.store.wants_deliveries = False
    found: set[bytes] = set()
    for index, time_ms, payload in log:
        result = other.store.apply_now(index, time_ms, payload)
        assert all(grant.delivery.taken for grant in result.granted)
        found |= {leased.lease_id for leased in result.leased}
        found -= set(result.ended)
    assert other.store.state_hash() == expected
    assert found == held.keys()
    for lease_id, delivery in held.items():
        pushed = other.store.delivery(delivery.message_id, lease_id)
        assert pushed is not None and pushed.payload == delivery.payload and pushed.attempt == delivery.attempt
    other.store.close()


def replayed_roughly(path: Path, log: Log, expected: bytes, rng: random.Random) -> None:
    other = Replica(path, slice_commits=3)
    other.replay_roughly(log, rng)
    assert other.store.state_hash() == expected
    other.store.close()


def test_the_crowd_reaches_everything(tmp_path: Path) -> None:
    """A generator that misses a case proves nothing about it."""
    seen: Counter[str] = Counter()
    for seed in range(100, 106):
        replica = Replica(tmp_path / str(seed), data_version=3)
        crowd = Crowd(replica, seed)
        crowd.run()
        seen += crowd.seen
        replica.store.close()
    for case in (
        "taken", "known", "leased with its enqueue", "duplicate", "refused alone", "dying", "OUTCOME_DONE",
        "OUTCOME_STALE_LEASE", "OUTCOME_MESSAGE_GONE", "OUTCOME_QUEUE_FULL", "purge unfinished",
        "remove_queue unfinished", "requeue unfinished", "requeue True", "purge True", "remove_queue True",
        "subscribe True", "tick True", "sweep True",
    ):  # fmt: skip
        assert seen[case] > 3, (case, seen)
