"""Each write of a session takes effect once (rules C1)."""

import random
from pathlib import Path

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import SESSION_WINDOW
from kvorum_node.store import sessions
from tests.unit.store.harness import (
    Replica,
    add,
    batch,
    close_sessions,
    delete,
    enqueue,
    group,
    open_session,
    put,
    settle,
    u64,
    write,
)

DONE, ABANDONED, WINDOW = pb.OUTCOME_DONE, pb.OUTCOME_ABANDONED, pb.OUTCOME_WINDOW
REUSED, EXPIRED = pb.OUTCOME_SEQ_REUSED, pb.OUTCOME_SESSION_EXPIRED


def send(
    replica: Replica, session: bytes, seq: int, *writes: pb.AtomicWrite | bytes, ack_below: int = 1
) -> list[pb.WriteResult]:
    answers = replica.apply(group(*writes, session=session, first_seq=seq, ack_below=ack_below)).outputs[0]
    assert answers.session == session
    return list(answers.results)


def count(replica: Replica) -> int:
    got = replica.get(b"n")
    return 0 if got is None else int.from_bytes(got[1], "little")


BUMP = write(add(b"n", 1))


def test_a_repeated_write_gets_its_stored_answer(replica: Replica) -> None:
    session = replica.session()
    (first,) = send(replica, session, 1, BUMP)
    index = replica.store.applied_index
    (again,) = send(replica, session, 1, BUMP)
    assert count(replica) == 1
    assert (again.outcome, again.number, again.seq) == (DONE, first.number, 1)
    assert again.stamp_prefix == index.to_bytes(8, "big")
    assert first.stamp_prefix == b""


def test_a_repeat_within_an_entry(replica: Replica) -> None:
    session = replica.session()
    command = group(BUMP, session=session)
    outputs = replica.apply(command, command).outputs
    assert [answer.results[0].outcome for answer in outputs] == [DONE, DONE]
    assert count(replica) == 1


@pytest.mark.parametrize("reopen", [False, True])
def test_application_errors_are_stored_too(replica: Replica, reopen: bool) -> None:
    session = replica.session()
    replica.commit(put(b"text"))
    failing: list[pb.AtomicWrite | bytes] = [
        write(pb.Check(key=b"no", kind=pb.CHECK_KIND_EXISTS), pb.Check(key=b"text")),
        write(add(b"text", 1)),
        b"\xff",
    ]
    first = send(replica, session, 1, *failing, BUMP)
    outcomes = [pb.OUTCOME_CHECK_FAILED, pb.OUTCOME_TYPE_ERROR, pb.OUTCOME_INVALID, DONE]
    assert [result.outcome for result in first] == outcomes
    replica.commit(delete(b"text"))
    if reopen:
        replica.reopen()
    again = send(replica, session, 1, *failing, BUMP)
    for old, new in zip(first, again, strict=True):
        new.stamp_prefix = b""
        assert new == old
    assert list(again[0].failed_checks) == [0, 1]
    assert count(replica) == 1


def test_another_operation_under_a_used_seq(replica: Replica) -> None:
    session = replica.session()
    send(replica, session, 1, BUMP)
    (result,) = send(replica, session, 1, write(add(b"n", 2)))
    assert result.outcome == REUSED
    assert count(replica) == 1


def test_unknown_sessions_execute_nothing(replica: Replica) -> None:
    for session in (b"\x00" * 10, b"short", b"x" * 600):
        results = send(replica, session, 1, BUMP, BUMP)
        assert [result.outcome for result in results] == [EXPIRED, EXPIRED]
    assert count(replica) == 0


def test_seqs_below_ack_below_are_abandoned(replica: Replica) -> None:
    session = replica.session()
    send(replica, session, 1, BUMP, BUMP, BUMP)
    results = send(replica, session, 1, BUMP, BUMP, BUMP, BUMP, ack_below=3)
    assert [result.outcome for result in results] == [ABANDONED, ABANDONED, DONE, DONE]
    assert count(replica) == 4
    # the highest ack_below counts, whatever comes later
    assert send(replica, session, 2, BUMP, ack_below=1)[0].outcome == ABANDONED
    assert send(replica, session, 0, BUMP)[0].outcome == ABANDONED


def test_a_jump_of_ack_below(replica: Replica) -> None:
    session = replica.session()
    send(replica, session, 1, BUMP)
    results = send(replica, session, 999, BUMP, BUMP, ack_below=1_000)
    assert [result.outcome for result in results] == [ABANDONED, DONE]


def test_the_window(replica: Replica) -> None:
    session = replica.session()
    assert send(replica, session, SESSION_WINDOW + 1, BUMP)[0].outcome == WINDOW
    assert send(replica, session, SESSION_WINDOW, BUMP)[0].outcome == DONE
    assert send(replica, session, SESSION_WINDOW + 1, BUMP, ack_below=2)[0].outcome == DONE
    assert send(replica, session, (1 << 64) - 1, BUMP, ack_below=2)[0].outcome == WINDOW
    # a refused seq may be sent again and is then executed
    assert send(replica, session, SESSION_WINDOW + 2, BUMP, ack_below=2)[0].outcome == WINDOW
    assert send(replica, session, SESSION_WINDOW + 2, BUMP, ack_below=3)[0].outcome == DONE
    assert count(replica) == 3


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_seqs_out_of_order(replica: Replica, seed: int) -> None:
    """Any order, any repeats, reopened now and then: each seq takes effect once and all its answers are equal."""
    rng = random.Random(seed)
    session = replica.session()
    answers: dict[int, set[tuple[int, bytes]]] = {}
    open_seqs: list[int] = []
    done: set[int] = set()
    next_seq = 1
    for _ in range(120):
        while len(open_seqs) < 12:
            open_seqs.append(next_seq)
            next_seq += 1
        sent = rng.sample(open_seqs, rng.randrange(1, 8))
        made = pb.WriteGroup(session=session, ack_below=min(open_seqs))
        for seq in sent:
            made.writes.add(seq=seq, op=write(add(b"n", 1), put(b"seq%d" % seq)).SerializeToString())
        result = replica.apply(pb.Command(writes=made)).outputs[0]
        for answer in result.results:
            assert answer.outcome == DONE
            stamp = (answer.stamp_prefix or result.stamp_prefix) + answer.number.to_bytes(2, "big")
            answers.setdefault(answer.seq, set()).add((answer.outcome, stamp))
            done.add(answer.seq)
        for seq in sent:  # some answers reach the client
            if rng.random() < 0.5:
                open_seqs.remove(seq)
        if rng.random() < 0.1:
            replica.reopen(clean=rng.random() < 0.5)
    assert count(replica) == len(done)
    for seq, told in answers.items():
        assert len(told) == 1
        assert replica.entry(b"seq%d" % seq).versionstamp == next(iter(told))[1]


def test_results_below_ack_below_are_deleted(replica: Replica) -> None:
    session = replica.session()
    base = replica.store.statistics()["rows"]
    for seq in range(1, 51):
        send(replica, session, seq, write())
    assert replica.store.statistics()["rows"] == base + 50
    # out of order: rows go when their last seq is acknowledged, whichever was written first
    send(replica, session, 60, write(), ack_below=51)
    send(replica, session, 51, write(), ack_below=51)
    assert replica.store.statistics()["rows"] == base + 2
    send(replica, session, 61, write(), ack_below=52)
    assert replica.store.statistics()["rows"] == base + 2
    replica.reopen()
    send(replica, session, 62, write(), ack_below=62)
    assert replica.store.statistics()["rows"] == base + 1


def test_two_groups_of_a_session_in_an_entry_share_a_row(replica: Replica) -> None:
    session = replica.session()
    base = replica.store.statistics()["rows"]
    replica.apply(
        group(BUMP, session=session),
        group(BUMP, session=session, first_seq=2),
        group(BUMP, session=session, first_seq=3),
    )
    assert replica.store.statistics()["rows"] == base + 2  # the counter, the results
    replica.apply(group(BUMP, session=session, first_seq=4), group(session=session, ack_below=5))
    assert replica.store.statistics()["rows"] == base + 1, "what is acknowledged in its own entry is not stored"
    assert send(replica, session, 4, BUMP)[0].outcome == ABANDONED


def test_sessions_are_independent(replica: Replica) -> None:
    one, two = replica.session(), replica.session()
    assert one != two
    assert replica.store.session_ids() == sorted([one, two])
    send(replica, one, 1, BUMP)
    assert send(replica, two, 1, write(add(b"n", 5)))[0].outcome == DONE
    assert count(replica) == 6


def test_closed_sessions(replica: Replica) -> None:
    base = replica.store.statistics()["rows"]
    one, two = replica.session(), replica.session()
    send(replica, one, 1, write())
    send(replica, one, 2, write())
    result = replica.apply(group(BUMP, session=one, first_seq=3), close_sessions(one, b"x", b"\x00" * 10, one))
    assert result.outputs[0].results[0].outcome == DONE
    assert result.closed_sessions == [one]
    assert send(replica, one, 4, BUMP)[0].outcome == EXPIRED
    assert replica.store.session_ids() == [two]
    replica.commit(delete(b"n"))
    replica.apply(close_sessions(two))
    assert replica.store.statistics()["rows"] == base
    assert replica.store.statistics()["sessions"] == 0


def test_too_many_sessions(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.MAX_SESSIONS == 100_000
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    outputs = replica.apply(open_session(), open_session(), open_session()).outputs
    assert outputs[2] == b""
    assert len(replica.store.session_ids()) == 2
    replica.apply(close_sessions(outputs[0]))
    assert replica.session()


def test_a_session_opened_in_an_entry_writes_in_it(replica: Replica) -> None:
    index = replica.store.applied_index + 1
    session = index.to_bytes(8, "big") + b"\x00\x00"
    outputs = replica.apply(open_session(), group(BUMP, session=session)).outputs
    assert outputs[0] == session
    assert outputs[1].results[0].outcome == DONE
    assert send(replica, session, 1, BUMP)[0].stamp_prefix == index.to_bytes(8, "big")


def test_without_a_session_nothing_is_remembered(replica: Replica) -> None:
    base = replica.store.statistics()["rows"]
    for _ in range(2):
        assert replica.apply(group(BUMP)).outputs[0].results[0].outcome == DONE
    assert count(replica) == 2
    assert replica.store.statistics()["rows"] == base + 1


def test_a_repeated_settle_gets_its_stored_answer_never_stale(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue())
    (delivery,) = replica.lease(session)
    ack = write(settle(delivery), add(b"n", 1))
    assert send(replica, session, 1, ack)[0].outcome == DONE
    assert send(replica, session, 1, ack)[0].outcome == DONE
    assert send(replica, session, 2, ack)[0].outcome == pb.OUTCOME_STALE_LEASE
    assert count(replica) == 1


def test_dropped_mirrors_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same entries with mirrors that are dropped all the time."""
    rng = random.Random(5)
    kept = Replica(tmp_path / "kept")
    ids = [kept.session() for _ in range(6)]
    for _ in range(150):
        session, seq = rng.choice(ids), rng.randrange(1, 30)
        op = write(add(b"n", seq % 3), put(b"%d" % seq))
        kept.apply(group(op, session=session, first_seq=seq, ack_below=max(1, seq - rng.randrange(20))))
    monkeypatch.setattr(sessions, "_MAX_MIRRORS", 0)
    dropped = Replica(tmp_path / "dropped")
    dropped.replay(kept.log)
    assert dropped.store.state_hash() == kept.store.state_hash()
    for replica in (kept, dropped):
        replica.check_hash()
        replica.store.close()


def test_a_given_up_entry_leaves_the_mirrors_as_they_were(replica: Replica) -> None:
    session = replica.session()
    send(replica, session, 1, BUMP)
    index = replica.store.applied_index
    big = [write(put(b"%d" % at, u64(at))) for at in range(600)]
    steps = replica.store.apply(
        index + 1, replica.now_ms, batch(group(*big, session=session, first_seq=2, ack_below=2))
    )
    next(steps)
    steps.close()
    assert replica.store.applied_index == index
    assert send(replica, session, 1, BUMP)[0].outcome == DONE
    assert [result.outcome for result in send(replica, session, 2, BUMP, *big)] == [DONE] * 601
    assert count(replica) == 2
