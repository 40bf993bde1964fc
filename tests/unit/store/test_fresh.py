"""Messages that are leased in the entry that brings them are never written as ready ones. Nobody can tell: the same
entries give the same states and answers if all are written at once."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import ApplyResult, fresh
from kvorum_node.store.queues import first_leases
from kvorum_node.store.records import MESSAGE, READY
from kvorum_node.store.rows import Rows
from tests.unit.store.harness import (
    Replica,
    batch,
    cancel,
    define,
    each,
    enqueue,
    group,
    lease,
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
    write,
)
from tests.unit.store.test_queue_model import Traffic

QUEUES = ("", "a", "b")
POLICIES: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {}, {"max_in_flight": 4}, {"max_backlog": 12}, {"ordered": True}, {"retention_ms": 30},
    {"max_attempts": 1},
)  # fmt: skip
SETTLES = (
    pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_REJECT, pb.SETTLE_KIND_RETURN,
    pb.SETTLE_KIND_EXTEND,
)  # fmt: skip
DONE, FULL, GONE = pb.OUTCOME_DONE, pb.OUTCOME_QUEUE_FULL, pb.OUTCOME_MESSAGE_GONE


class Rush:
    """Entries of many commands, in which messages come, are leased, cancelled and counted all at once."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.rng = random.Random(seed)
        self.held: list[pb.Delivery] = []
        self.seen: Counter[str] = Counter()
        self.session = replica.apply(open_session()).outputs[0]
        self.made = 0
        """Commits of the entry that is being made."""

    def run(self, entries: int) -> None:
        rng, replica = self.rng, self.replica
        for _ in range(entries):
            replica.now_ms += rng.choice((0, 0, 1, 10))
            self.made = 0
            result = replica.apply(*[self.command() for _ in range(rng.randrange(1, 9))])
            self.held = [*self.held[-40:], *[grant.delivery for grant in result.granted]]
            index = result.index.to_bytes(8, "big")
            self.seen["leased at once"] += sum(one.delivery.message_id.startswith(index) for one in result.granted)
            for output in result.outputs:
                if isinstance(output, pb.ResultGroup):
                    self.seen.update(pb.Outcome.Name(answer.outcome) for answer in output.results)

    def command(self) -> pb.Command:
        rng = self.rng
        queue = rng.choice(QUEUES)
        kind = rng.choices(("write", "lease", "other"), (60, 34, 6))[0]
        if kind == "write":
            return group(*[self.write() for _ in range(rng.randrange(1, 5))])
        self.made += 1
        if kind == "lease":
            return lease(
                self.session,
                queue=queue,
                consumer=rng.randrange(3),
                count=rng.choice((0, 1, 2, 5, 100)),
                take=rng.random() < 0.1,
                expiring=rng.random() < 0.2,
            )
        return rng.choice(
            (
                sweep(), define(queue, **rng.choice(POLICIES)), pause(queue, rng.random() < 0.2), purge(queue, limit=2),
                requeue(queue, limit=2), release(*self.some_held(), counts=rng.random() < 0.5), remove_queue(queue),
            )
        )  # fmt: skip

    def some_held(self) -> list[pb.Delivery]:
        return self.rng.sample(self.held, min(len(self.held), self.rng.randrange(3)))

    def write(self) -> pb.AtomicWrite:
        rng = self.rng
        self.made += 1
        if rng.random() < 0.1:
            return each(*[settle(one, rng.choice(SETTLES)) for one in self.some_held()], cancel(self.some_id()))
        parts: list[pb.Mutation | pb.Enqueue | pb.Settle] = []
        if rng.random() < 0.25:
            parts += [settle(one, rng.choice(SETTLES)) for one in self.some_held()]
        if rng.random() < 0.15:
            parts.append(cancel(self.some_id()) if rng.random() < 0.5 else reschedule(self.some_id(), 5))
        if rng.random() < 0.2:
            parts.append(put(b"k%d" % rng.randrange(3)))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 6))):
            plain = rng.random() < 0.7
            parts.append(
                enqueue(
                    rng.randbytes(rng.choice((0, 3, 40))),
                    queue=rng.choice(QUEUES),
                    delay_ms=0 if plain else rng.choice((0, 1, 20)),
                    headers=b"" if plain or rng.random() < 0.5 else pb.Headers(reply_to="me").SerializeToString(),
                    group=None if plain else rng.choice((None, "g")),
                    dedup_id=b"" if plain else rng.choice((b"", b"x")),
                )
            )
        return write(*parts)

    def some_id(self) -> bytes:
        """Of a message that came lately, perhaps in this entry."""
        rng = self.rng
        index = self.replica.store.applied_index + 1 - rng.choice((0, 0, 0, 1, 2))
        return index.to_bytes(8, "big") + rng.randrange(max(1, self.made)).to_bytes(2, "big") + b"\x00\x00"


def results(path: Path, log: list[tuple[int, int, bytes]], slice_commits: int, *, bare: bool) -> Iterator[Any]:
    """What a replica says and holds after each entry."""
    replica = Replica(path, slice_commits=slice_commits)
    replica.store.wants_deliveries = not bare
    for entry in log:
        result: ApplyResult = replica.store.apply_now(*entry)
        yield result, replica.store.state_hash(), replica.store.statistics()["messages"]
        if entry[0] % 20 == 0:
            replica.scrub()
    replica.scrub()
    replica.check_hash()
    replica.store.close()


def compare(path: Path, log: list[tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    for bare in (False, True):
        monkeypatch.setattr(fresh, "MAX_FRESH", 0)
        wanted = [*results(path / f"at-once-{bare}", log, 256, bare=bare)]
        for most, slice_commits in ((1, 1), (3, 5), (4_096, 256)):
            monkeypatch.setattr(fresh, "MAX_FRESH", most)
            found = results(path / f"{most}-{bare}", log, slice_commits, bare=bare)
            for one, other in zip(wanted, found, strict=True):
                assert one == other


@pytest.mark.parametrize("seed", range(8))
def test_nobody_can_tell_whether_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(first_leases, "_AT_ONCE", random.Random(seed).choice((1, 2, 64)))
    replica = Replica(tmp_path / "first", data_version=3)
    rush = Rush(replica, seed)
    rush.run(120)
    replica.store.close()
    for case, least in {"leased at once": 20, "OUTCOME_DONE": 100, "OUTCOME_MESSAGE_GONE": 3}.items():
        assert rush.seen[case] > least, case
    compare(tmp_path, replica.log, monkeypatch)


@pytest.mark.parametrize("seed", range(2))
def test_nobody_can_tell_in_any_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    replica = Replica(tmp_path / "first", data_version=3)
    Traffic(replica, 300 + seed).run(120)
    replica.store.close()
    compare(tmp_path, replica.log, monkeypatch)


# ---- one by one


@pytest.fixture
def written(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Names of index rows of ready messages, as they are written."""
    replica.data_version = 3
    names: list[bytes] = []
    add_index = Rows.add_index

    def note(rows: Rows, index: list[bytes]) -> None:
        names.extend(name for name in index if name.startswith(READY))
        add_index(rows, index)

    monkeypatch.setattr(Rows, "add_index", note)
    return names


def payloads(result: ApplyResult) -> list[bytes]:
    return [grant.delivery.payload for grant in result.granted]


def test_what_is_leased_at_once_is_never_ready(replica: Replica, written: list[bytes]) -> None:
    session = replica.session()
    commands = [group(*[write(enqueue(b"%d" % at, queue="q")) for at in range(5)]), lease(session, queue="q", count=3)]
    assert payloads(replica.apply(*commands)) == [b"0", b"1", b"2"]
    assert [name[-2 - 2 : -2] for name in written] == [b"\x00\x03", b"\x00\x04"]
    assert payloads(replica.apply(lease(session, queue="q", count=3))) == [b"3", b"4"]


def test_older_messages_go_first(replica: Replica, written: list[bytes]) -> None:
    session = replica.session()
    replica.commit(enqueue(b"old", queue="q"))
    replica.commit(enqueue(b"late", queue="q", delay_ms=1))
    command = group(write(enqueue(b"new", queue="q")), write(enqueue(b"newer", queue="q")))
    assert payloads(replica.apply(command, lease(session, queue="q", count=2))) == [b"old", b"new"]
    replica.now_ms += 1
    written.clear()
    result = replica.apply(group(write(enqueue(b"last", queue="q"))), lease(session, queue="q", count=3))
    assert payloads(result) == [b"newer", b"late", b"last"]
    assert written == []


def test_order_holds_among_messages_of_one_entry(replica: Replica, written: list[bytes]) -> None:
    """Copies of topics are written at once, those before and after them are not."""
    session = replica.session()
    replica.apply(subscribe("t", "q"))
    command = group(write(enqueue(b"0", queue="q")), write(enqueue(b"1", topic="t")), write(enqueue(b"2", queue="q")))
    assert payloads(replica.apply(command, lease(session, queue="q", count=3))) == [b"0", b"1", b"2"]
    assert len(written) == 2


def test_messages_with_options_are_not_written_first_either(replica: Replica, written: list[bytes]) -> None:
    session = replica.session()
    headers = pb.Headers(reply_to="me").SerializeToString()
    some = (
        enqueue(b"0", queue="q", headers=headers), enqueue(b"1", queue="q", ttl_ms=50, dedup_id=b"d"),
        enqueue(b"2", queue="q", group="g"), enqueue(b"3", queue="q", group="g"), enqueue(b"4", queue="q", backoff=[]),
    )  # fmt: skip
    command = group(*[write(message) for message in some])
    result = replica.apply(command, lease(session, queue="q", count=9))
    assert payloads(result) == [b"0", b"1", b"2", b"4"]
    assert [grant.delivery.headers for grant in result.granted] == [headers, b"", b"", b""]
    assert [grant.delivery.group for grant in result.granted] == ["", "", "g", ""]
    assert written == []
    replica.scrub()
    for grant in result.granted:
        replica.commit(settle(grant.delivery))
    assert payloads(replica.apply(lease(session, queue="q", count=9))) == [b"3"]
    replica.scrub()


def test_a_queue_becomes_full_within_an_entry(replica: Replica, written: list[bytes]) -> None:
    replica.apply(define("q", max_backlog=3))
    some = [write(enqueue(b"%d" % at, queue="q")) for at in range(5)]
    (answer,) = replica.apply(group(*some)).outputs
    assert [result.outcome for result in answer.results] == [DONE] * 3 + [FULL] * 2
    assert len(written) == 3


def test_nothing_is_known_of_an_entry_that_was_given_up(replica: Replica) -> None:
    replica.data_version = 3
    session = replica.session()
    made = (group(*[write(enqueue(queue="q")) for _ in range(9)]), lease(session, queue="q", count=9), sweep())
    replica.store._slice = 1
    index = replica.store.applied_index + 1
    steps = replica.store.apply(index, replica.now_ms, batch(*made, data_version=3))
    while not replica.store._held.leases:
        next(steps)
    (message_id, (lease_id, _, _)), *_ = replica.store._held.leases.items()
    steps.close()
    verdict = settle(pb.Delivery(message_id=message_id, lease_id=lease_id))
    assert replica.commit(verdict).outcome == pb.OUTCOME_STALE_LEASE
    replica.scrub()


def test_a_refused_commit_leaves_none_behind(replica: Replica, written: list[bytes]) -> None:
    session = replica.session()
    replica.apply(define("full", max_backlog=1))
    result = replica.apply(
        group(
            write(enqueue(b"0", queue="q"), enqueue(b"1", queue="full")),
            write(enqueue(b"2", queue="q"), enqueue(b"3", queue="r"), enqueue(b"4", queue="full")),
            write(enqueue(b"5", queue="q"), put(b"k")),
        ),
        lease(session, queue="q", count=10),
    )
    assert [answer.outcome for answer in result.outputs[0].results] == [DONE, FULL, DONE]
    assert payloads(result) == [b"0", b"5"]
    assert replica.store.statistics()["messages"] == 3
    assert len(written) == 1


def test_a_message_is_cancelled_in_the_entry_that_brings_it(replica: Replica, written: list[bytes]) -> None:
    session = replica.session()
    index = (replica.store.applied_index + 1).to_bytes(8, "big")
    result = replica.apply(
        group(
            write(enqueue(b"0", queue="q")),
            write(enqueue(b"1", queue="q")),
            write(cancel(index + bytes(4)), cancel(bytes(12))),
            write(cancel(index + bytes(4)), put(b"k")),
            write(reschedule(index + b"\x00\x01\x00\x00", 5)),
            write(enqueue(b"5", queue="q")),
        ),
        lease(session, queue="q", count=10),
    )
    assert [answer.outcome for answer in result.outputs[0].results] == [DONE, DONE, GONE, DONE, DONE, DONE]
    assert payloads(result) == [b"5"]
    assert len(written) == 2


def test_all_are_written_when_the_entry_ends(replica: Replica, written: list[bytes]) -> None:
    replica.apply(group(*[write(*[enqueue(b"x", queue=queue) for queue in ("q", "r")]) for _ in range(100)]))
    assert len(written) == 200
    with replica.store._env.begin() as txn, txn.cursor() as cursor:
        names = [bytes(name) for name in cursor.iternext(keys=True, values=False)]
    assert sum(name.startswith(READY) for name in names) == sum(name.startswith(MESSAGE) for name in names) == 200
    replica.scrub()
