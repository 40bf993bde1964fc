"""Random entries about queues, against a model; and what must hold of any state whatever the model says."""

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import ApplyResult
from kvorum_node.store.queues import formats
from kvorum_node.store.records import DEDUP, MESSAGE
from tests.unit.store.harness import (
    Replica,
    cancel,
    define,
    define_schedule,
    define_topic,
    each,
    enqueue,
    group,
    hashes_by_hash_seed,
    lease,
    open_session,
    pause,
    purge,
    remove_queue,
    requeue,
    reschedule,
    settle,
    subscribe,
    sweep,
    tick,
    write,
)
from tests.unit.store.queue_model import Letter, Queues

QUEUES = ("", "a", "b", "b\u00e9", "dead", "\x00inbox")
NAMED = QUEUES[:-1]
TOPICS = ("t", "u")
GROUPS = (None, None, None, "", "g", "h")
SETTLES = (
    pb.SETTLE_KIND_ACK,
    pb.SETTLE_KIND_RETRY,
    pb.SETTLE_KIND_REJECT,
    pb.SETTLE_KIND_RETURN,
    pb.SETTLE_KIND_EXTEND,
)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"ordered": True},
    {"max_attempts": 3, "lease_ms": 700},
    {"max_attempts": 12, "backoff": pb.Backoff(delays_ms=[1, 5])},
    {"exponential": pb.Exponential(base_ms=4, factor_percent=300, cap_ms=50, jitter_percent=50)},
    {"dead_letters": pb.DEAD_LETTERS_QUEUE, "dead_letter_queue": "dead", "max_attempts": 2},
    {"dead_letters": pb.DEAD_LETTERS_DROP, "max_attempts": 1},
    {"dead_letters": pb.DEAD_LETTERS_KEEP, "max_attempts": 1},
    {"retention_ms": 60},
    {"max_backlog": 5},
    {"max_in_flight": 2},
)


class Traffic:
    """Entries of all kinds, made with a look at what is there."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.rng = random.Random(seed)
        self.model = Queues()
        self.session = b""
        self.seen: Counter[str] = Counter()
        self.old: list[pb.Settle] = []

    def run(self, entries: int) -> None:
        if not self.session:
            self.session = self.enter(open_session()).outputs[0]
        for _ in range(entries):
            self.replica.now_ms += self.rng.choice((0, 0, 1, 5, 20))
            self.step()

    def enter(self, *commands: pb.Command) -> ApplyResult:
        return self.replica.apply(*commands)

    def step(self) -> None:
        made = [self.command() for _ in range(self.rng.randrange(1, 4))]
        alone = [command for command in made if command.HasField("remove_queue")]
        made = alone[:1] or made
        result = self.enter(*made)
        expected = self.model.apply(result.index, self.replica.now_ms, made)
        for command, output, wanted in zip(made, result.outputs, expected, strict=True):
            kind = command.WhichOneof("command")
            if kind == "writes":
                self.check_writes(output, wanted)
            elif kind == "remove_queue":
                self.finish_removal(command)
            elif kind != "sweep":
                assert output == wanted, kind
            self.seen[f"{kind} {bool(output)}"] += 1
        if not any(command.HasField("remove_queue") for command in made):
            assert result.ended == self.model.ended
            assert result.extended == self.model.extended
            granted = [
                (grant.delivery.message_id, grant.delivery.lease_id, grant.delivery.attempt, grant.delivery.taken)
                for grant in result.granted
            ]
            assert granted == self.model.granted
        self.compare()

    def finish_removal(self, command: pb.Command) -> None:
        """The model has removed all at once."""
        for _ in range(100):
            index = self.replica.store.applied_index + 1
            if not self.enter(command).outputs[0]:
                self.model.index = index
                return
        raise AssertionError("a queue was not removed in a hundred steps")

    def check_writes(
        self, output: pb.ResultGroup, wanted: list[tuple[int, list[int], list[tuple[int, bytes]]]]
    ) -> None:
        for answer, (outcome, refused, duplicates) in zip(output.results, wanted, strict=True):
            assert answer.outcome == outcome, answer.message
            assert list(answer.failed_checks) == refused
            assert [(one.enqueue, one.message_id) for one in answer.duplicates] == duplicates
            self.seen[f"outcome {pb.Outcome.Name(answer.outcome)}"] += 1
            self.seen["duplicate"] += len(duplicates)
            self.seen["refused alone"] += len(refused)

    # ---- making commands

    def command(self) -> pb.Command:
        rng = self.rng
        queue = rng.choice(QUEUES)
        kind = rng.choices(
            (
                "write",
                "lease",
                "release",
                "sweep",
                "policy",
                "pause",
                "purge",
                "requeue",
                "topic",
                "schedule",
                "remove",
            ),
            (50, 25, 4, 6, 4, 1, 1, 3, 5, 4, 0.4),
        )[0]
        if kind == "write":
            return self.write()
        if kind == "lease":
            count = rng.randrange(1, 5)
            return lease(self.session, queue=queue, consumer=rng.randrange(3), count=count, take=rng.random() < 0.1)
        if kind == "release":
            return self.release()
        if kind == "sweep":
            return sweep()
        if kind == "policy":
            return define(rng.choice(NAMED), **rng.choice(POLICIES))
        if kind == "pause":
            return pause(rng.choice(NAMED), rng.random() < 0.4)
        if kind == "purge":
            return purge(queue, dead=rng.random() < 0.5, limit=rng.randrange(1, 4))
        if kind == "requeue":
            return self.requeue(queue)
        if kind == "topic":
            return self.topic()
        if kind == "schedule":
            return self.schedule()
        return remove_queue(queue, limit=rng.choice((1, 3, 0)))

    def held(self) -> list[Letter]:
        return [letter for letter in self.model.letters.values() if letter.lease_id]

    def write(self) -> pb.Command:
        rng = self.rng
        writes = []
        for _ in range(rng.randrange(1, 3)):
            if rng.random() < 0.15:
                writes.append(each(*[self.verdict() for _ in range(rng.randrange(1, 5))]))
                continue
            parts: list[pb.Enqueue | pb.Settle] = [self.verdict() for _ in range(rng.choice((0, 0, 1, 1, 2)))]
            parts += [self.message() for _ in range(rng.choice((0, 1, 1, 2)))]
            writes.append(write(*parts))
        return group(*writes)

    def message(self) -> pb.Enqueue:
        rng = self.rng
        dedup_id = rng.choice((b"", b"", b"x", b"y"))
        topic = rng.choice(TOPICS) if rng.random() < 0.15 else ""
        return enqueue(
            rng.randbytes(5),
            queue="" if topic else rng.choice(QUEUES),
            topic=topic,
            delay_ms=rng.choice((0, 0, 0, 5, 40)),
            keys=[b"k%d" % rng.randrange(5)] if rng.random() < 0.15 else (),
            backoff=rng.choice((None, None, None, [], [3], [0, 9])),
            group=rng.choice(GROUPS),
            dedup_id=dedup_id,
            window_ms=0 if dedup_id == b"" else rng.choice((0, 0, 25)),
            headers=rng.choice((b"", pb.Headers(reply_to="me").SerializeToString())),
            ttl_ms=rng.choice((0, 0, 0, 30)),
        )

    def verdict(self) -> pb.Settle:
        rng = self.rng
        letters = list(self.model.letters.values())
        if self.old and rng.random() < 0.1:
            return rng.choice(self.old)
        if letters and rng.random() < 0.25:
            chosen = rng.choice(letters).message_id
            return cancel(chosen) if rng.random() < 0.5 else reschedule(chosen, rng.choice((0, 0, 30)))
        held = self.held()
        if not held:
            return cancel(bytes(12))
        letter = rng.choice(held)
        delivery = pb.Delivery(message_id=letter.message_id, lease_id=letter.lease_id)
        kind = rng.choice(SETTLES)
        delay = rng.choice((None, 0, 7)) if kind == pb.SETTLE_KIND_RETRY else None
        made = settle(delivery, kind, delay, "no" if kind == pb.SETTLE_KIND_REJECT else "")
        self.old = [*self.old[-20:], made]
        return made

    def release(self) -> pb.Command:
        made = pb.Release()
        for letter in self.held():
            if self.rng.random() < 0.3:
                counts = self.rng.random() < 0.7
                made.leases.add(message_id=letter.message_id, lease_id=letter.lease_id, counts=counts)
        return pb.Command(release=made)

    def requeue(self, queue: str) -> pb.Command:
        rng = self.rng
        dead = [letter.message_id for letter in self.model.letters.values() if letter.died]
        if dead and rng.random() < 0.3:
            return requeue(queue, *rng.sample(dead, min(3, len(dead))))
        if rng.random() < 0.4:
            return requeue("dead", limit=rng.randrange(4), to_origin=True)
        return requeue(queue, limit=rng.randrange(4))

    def topic(self) -> pb.Command:
        rng = self.rng
        name = rng.choice(TOPICS)
        if rng.random() < 0.3:
            return define_topic(name, rng.choice((0, 25, 400, 400)), remove=rng.random() < 0.2)
        return subscribe(name, rng.choice(NAMED), rng.choice((None, 0, 300, 300)), remove=rng.random() < 0.4)

    def schedule(self) -> pb.Command:
        rng = self.rng
        name = rng.choice(("s", "t"))
        now = self.replica.now_ms
        next_ms, _, _ = self.model.schedules.get(name, (0, 0, b""))
        if not next_ms or rng.random() < 0.1:
            message = enqueue(b"tick", queue=rng.choice(NAMED)) if rng.random() < 0.7 else enqueue(b"tick", topic="t")
            return define_schedule(name, None if rng.random() < 0.2 else message, now + rng.randrange(20))
        return tick(name, next_ms + rng.choice((0, 0, 0, 1)), now + rng.randrange(1, 30), skip=rng.random() < 0.2)

    # ---- comparing

    def compare(self) -> None:
        replica, model = self.replica, self.model
        with replica.store._env.begin() as txn, txn.cursor() as cursor:
            names = [bytes(name) for name in cursor.iternext(keys=True, values=False)]
        assert {name[1:] for name in names if name.startswith(MESSAGE)} == set(model.letters)
        dedup = {name for name in names if name.startswith(DEDUP)}
        assert dedup == {formats.dedup_key(queue.encode(), dedup_id) for queue, dedup_id in model.dedup}
        for message_id, letter in model.letters.items():
            info = replica.info(message_id)
            assert info is not None
            self.compare_one(info, letter)
        for key, value in model.keys.items():
            assert replica.entry(key).value == value
        self.compare_queues()
        facts = replica.store.statistics()
        assert facts["messages"] == len(model.letters)
        assert facts["schedules"] == len(model.schedules)
        with replica.store.snapshot() as snapshot:
            topics, _ = snapshot.topic_infos(b"", 10)
            schedules, _ = snapshot.schedule_infos(b"", 10)
        assert {info.name: (set(info.queues), info.retained) for info in topics} == {
            name: (topic["queues"], len(topic["retained"])) for name, topic in model.topics.items()
        }
        assert {info.name: (info.next_ms, info.last_ms) for info in schedules} == {
            name: (next_ms, last_ms) for name, (next_ms, last_ms, _) in model.schedules.items()
        }
        self.check_rules()

    def compare_one(self, info: pb.MessageInfo, letter: Letter) -> None:
        model = self.model
        if letter.died:
            state = pb.MESSAGE_STATE_DEAD
        elif letter.lease_id:
            state = pb.MESSAGE_STATE_LEASED
            assert (info.session, info.consumer) == letter.holder
        elif model.waits(letter):
            state = pb.MESSAGE_STATE_WAITING
        else:
            state = pb.MESSAGE_STATE_SCHEDULED if letter.due_ms > model.now_ms else pb.MESSAGE_STATE_READY
        assert info.state == state, (info, letter)
        assert (info.queue, info.attempt, info.payload) == (letter.queue, letter.attempt, letter.made.payload)
        assert info.due_ms == (0 if letter.died else letter.due_ms)
        assert info.expires_ms == (0 if letter.died else letter.expires_ms)
        assert info.enqueued_at_ms == letter.enqueued_ms
        assert (info.group if info.HasField("group") else None) == (
            letter.made.group if letter.made.HasField("group") else None
        )
        assert info.headers == letter.headers
        assert info.dedup_id == letter.made.dedup_id
        failures = [(one.attempt, one.at_ms, one.kind, one.reason) for one in info.failures]
        assert failures == letter.failures
        origin = letter.origin
        if origin is None and letter.died:
            origin = (letter.queue, letter.message_id, letter.enqueued_ms, letter.died[0], letter.attempt)
        found = info.origin
        shown = (found.queue, found.message_id, found.enqueued_at_ms, found.died_at_ms, found.attempts)
        assert (shown if info.HasField("origin") else None) == origin

    def compare_queues(self) -> None:
        model = self.model
        with self.replica.store.snapshot() as snapshot:
            infos, after = snapshot.queue_infos("", b"", 100)
        assert not after
        shown = {info.name: info for info in infos}
        names = [name for name in model.tallies if not name.startswith("\x00")]
        assert sorted(shown, key=str.encode) == sorted(names, key=str.encode)
        for name in names:
            info, counts, settings = shown[name], model.tallies[name], model.settings.get(name)
            for kind in ("messages", "leased", "dead"):
                assert getattr(info, kind) == model.count(name, kind), (name, kind)
            for kind in ("sent", "delivered", "done", "failed", "lost", "died", "expired", "duplicates"):
                assert getattr(info, kind) == counts[kind], (name, kind)
            assert info.paused == (settings is not None and settings.paused)
            assert info.defined == (settings is not None and settings.policy is not None)

    def check_rules(self) -> None:
        """What holds of any state."""
        fronts: defaultdict[tuple[str, object], list[Letter]] = defaultdict(list)
        for letter in self.model.letters.values():
            info = self.replica.info(letter.message_id)
            assert info is not None
            if letter.group is not None and info.state not in (pb.MESSAGE_STATE_WAITING, pb.MESSAGE_STATE_DEAD):
                fronts[letter.queue, letter.group].append(letter)
            assert info.attempt <= limits.MAX_ATTEMPTS
        for front in fronts.values():
            assert len(front) == 1, "two of a group are out at once"
            assert self.model.line(front[0])[0] is front[0]


@pytest.mark.parametrize("seed", range(12))
def test_queues_do_what_the_model_does(tmp_path: Path, seed: int) -> None:
    replica = Replica(tmp_path / "state", data_version=3, slice_commits=random.Random(seed).choice((1, 5, 256)))
    traffic = Traffic(replica, seed)
    traffic.run(30)
    for _ in range(5):
        traffic.run(50)
        replica.scrub()
    replica.store.close()


def test_the_traffic_reaches_everything(tmp_path: Path) -> None:
    """A generator that misses a case proves nothing about it."""
    seen: Counter[str] = Counter()
    for seed in (100, 101, 102, 103):
        replica = Replica(tmp_path / str(seed), data_version=3)
        traffic = Traffic(replica, seed)
        traffic.run(250)
        seen += traffic.seen
        replica.store.close()
    for case in (
        "lease True", "lease False", "purge True", "requeue True", "subscribe True", "tick True", "tick False",
        "duplicate", "refused alone", "outcome OUTCOME_DONE", "outcome OUTCOME_STALE_LEASE",
        "outcome OUTCOME_QUEUE_FULL", "outcome OUTCOME_MESSAGE_GONE",
    ):  # fmt: skip
        assert seen[case] > 3, case


@pytest.mark.parametrize("seed", range(3))
def test_one_log_gives_one_state(tmp_path: Path, seed: int) -> None:
    """Slices, restarts and entries that were given up midway do not matter."""
    first = Replica(tmp_path / "first", data_version=3)
    Traffic(first, 50 + seed).run(150)
    rng = random.Random(seed)
    for size in (1, 3, 100_000):
        other = Replica(tmp_path / str(size), slice_commits=size)
        other.replay_roughly(first.log, rng)
        assert other.store.state_hash() == first.store.state_hash()
        assert other.store.next_expiry_ms() == first.store.next_expiry_ms()
        other.scrub()
        other.store.close()
    first.store.close()


def test_the_hash_seed_does_not_matter(tmp_path: Path) -> None:
    assert len(hashes_by_hash_seed(tmp_path, __name__, 3)) == 1


def test_a_log_begun_with_version_2_goes_on_with_3(tmp_path: Path) -> None:
    """What was enqueued and leased before has no counters, groups or failures, and is like any other message after."""
    replica = Replica(tmp_path / "state", data_version=2)
    session = replica.session()
    replica.commit(*[enqueue(b"%d" % at, queue="ab"[at % 2], delay_ms=at % 3 * 5) for at in range(30)])
    held = replica.lease(session, queue="a", count=5)
    replica.commit(settle(held[0], pb.SETTLE_KIND_RETRY), settle(held[1]))
    replica.data_version = 3
    rng = random.Random(5)
    for _ in range(150):
        replica.now_ms += rng.choice((0, 1, 5))
        taken = replica.lease(session, queue=rng.choice("ab"), count=3)
        held += taken
        rng.shuffle(held)
        replica.apply(
            group(each(*[settle(one, rng.choice(SETTLES)) for one in held[:2]], reschedule(held[-1].message_id, 3)))
        )
        del held[:2]
        replica.apply(requeue("a"), requeue("b"), sweep())
        replica.scrub()
        held = held or taken
        if not held:
            break
    replica.store.close()
