"""Tokens in the state machine: what an entry may do is decided by the rows as of the entry, alike on every node."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.keys import encode_key
from kvorum.limits import MAX_TOKENS
from kvorum_node.store import Denied, records
from kvorum_node.store.auth import ROOT
from tests.unit.store.harness import (
    ACK,
    DONE,
    Replica,
    batch,
    delete_range,
    enqueue,
    group,
    lease,
    open_session,
    put,
    settle,
    write,
)

DENIED, UNKNOWN = pb.OUTCOME_DENIED, pb.OUTCOME_UNAUTHENTICATED
ONE, TWO = b"token--1", b"token--2"
A, B = encode_key(("a",)), encode_key(("b",))
SECRET = bytes(32)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    made = Replica(tmp_path / "state", data_version=4)
    yield made
    made.store.close()


def scopes(*prefixes: bytes, read: bool = True, write: bool = True, admin: bool = False, **queues: str) -> bytes:
    """`queues`: send="q1", receive="q1", manage="q1"."""
    made = pb.Scopes(admin=admin, keys=[pb.KeyScope(prefix=one, read=read, write=write) for one in prefixes])
    for right, name in queues.items():
        scope = made.queues.add(name=name.removesuffix("*"), prefix=name.endswith("*"))
        setattr(scope, right, True)
    return made.SerializeToString()


def token(token_id: bytes, may: bytes, *, principal: bytes = ROOT, name: str = "", **more: object) -> pb.Command:
    made = pb.PutToken(id=token_id, secret=SECRET, name=name or token_id.decode(), scopes=may)
    for field, value in more.items():
        setattr(made, field, value)
    return pb.Command(principal=principal, put_token=made)


def switch(on: bool, principal: bytes = ROOT) -> pb.Command:
    return pb.Command(principal=principal, switch_auth=pb.SwitchAuth(on=on))


def remove(token_id: bytes, principal: bytes = ROOT) -> pb.Command:
    return pb.Command(principal=principal, remove_token=pb.RemoveToken(id=token_id))


def check(key: bytes) -> pb.Check:
    return pb.Check(key=key)


def acked(delivery: pb.Delivery) -> pb.Settle:
    return settle(delivery, ACK)


def by(principal: bytes, command: pb.Command) -> pb.Command:
    command.principal = principal
    return command


def outcome(
    replica: Replica, principal: bytes, *parts: pb.Check | pb.Mutation | pb.Enqueue | pb.Settle
) -> pb.WriteResult:
    answer: pb.ResultGroup = replica.apply(by(principal, group(write(*parts)))).outputs[0]
    return answer.results[0]


def test_without_the_switch_nothing_is_judged(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)))
    assert outcome(replica, b"", put(B)).outcome == DONE
    assert outcome(replica, ONE, put(B)).outcome == DONE


def test_a_token_writes_below_its_prefix_and_nowhere_else(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    assert outcome(replica, ONE, put(A)).outcome == DONE
    assert outcome(replica, ONE, put(encode_key(("a", 1, "x")))).outcome == DONE
    for key in (B, encode_key(("aa",)), encode_key(("a\0b",)), encode_key((b"a",)), b"\x02a"):
        answer = outcome(replica, ONE, put(key))
        assert (answer.outcome, answer.message) == (DENIED, f"write key {key.hex()}")
        assert replica.get(key) is None
    assert outcome(replica, ONE, put(A), put(B)).outcome == DENIED, "all or nothing"
    assert outcome(replica, ROOT, put(B)).outcome == DONE


def test_nobody_and_the_unknown_are_refused(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    assert outcome(replica, b"", put(A)).outcome == UNKNOWN
    assert outcome(replica, TWO, put(A)).outcome == UNKNOWN
    assert replica.get(A) is None
    assert isinstance(replica.apply(switch(on=False, principal=b"")).outputs[0], Denied)
    assert replica.store.auth.on


def test_checks_read(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A, read=False)), switch(on=True))
    assert outcome(replica, ONE, check(A), put(A)).message == f"read key {A.hex()}"
    assert outcome(replica, ONE, put(A)).outcome == DONE


def test_ranges_are_deleted_within_the_prefix_only(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    assert outcome(replica, ONE, delete_range(A, A + b"\xff")).outcome == DONE
    assert outcome(replica, ONE, delete_range(A + b"\0", A + b"\xff")).outcome == DONE
    for start, end in ((A, B), (b"", A + b"\xff"), (A, A + b"\xff\0")):
        assert outcome(replica, ONE, delete_range(start, end)).outcome == DENIED


def test_what_was_done_stays_done_after_the_token_was_removed(replica: Replica) -> None:
    """A repeat of a write that was carried out must hear so: "certainly not applied" would be a lie."""
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    session = replica.apply(by(ONE, open_session())).outputs[0]
    first = group(write(put(A, b"1")), session=session)
    assert replica.apply(by(ONE, first)).outputs[0].results[0].outcome == DONE
    replica.apply(remove(ONE))
    again = replica.apply(by(ONE, first)).outputs[0].results[0]
    assert again.outcome == DONE
    assert (
        replica.apply(by(ONE, group(write(put(A, b"2")), session=session, first_seq=2))).outputs[0].results[0].outcome
        == UNKNOWN
    )
    assert replica.get(A) == (pb.VALUE_ENCODING_BYTES, b"1")


def test_a_denial_is_remembered_and_one_of_nobody_is_not(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    session = replica.apply(by(ONE, open_session())).outputs[0]
    to_b = group(write(put(B)), session=session)
    assert replica.apply(by(ONE, to_b)).outputs[0].results[0].outcome == DENIED
    replica.apply(token(ONE, scopes(A, B)))
    assert replica.apply(by(ONE, to_b)).outputs[0].results[0].outcome == DENIED, "the same number, the same answer"
    replica.apply(pb.Command(principal=ROOT, put_token=pb.PutToken(id=ONE, disabled=True)))
    second = group(write(put(B)), session=session, first_seq=2)
    assert replica.apply(by(ONE, second)).outputs[0].results[0].outcome == UNKNOWN
    replica.apply(pb.Command(principal=ROOT, put_token=pb.PutToken(id=ONE, disabled=False)))
    assert replica.apply(by(ONE, second)).outputs[0].results[0].outcome == DONE


def test_a_session_belongs_to_who_opened_it(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), token(TWO, scopes(A)), switch(on=True))
    session = replica.apply(by(ONE, open_session())).outputs[0]
    answer = replica.apply(by(TWO, group(write(put(A)), session=session))).outputs[0]
    assert (answer.session, answer.results[0].outcome) == (session, pb.OUTCOME_SESSION_EXPIRED)
    assert replica.apply(by(ONE, group(write(put(A)), session=session))).outputs[0].results[0].outcome == DONE
    replica.apply(pb.Command(close_sessions=pb.CloseSessions(sessions=[session])))
    assert replica.store.state_hash() == replica.store.recompute_hash()


def test_a_token_ends_by_the_time_of_the_entry(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A), expire_in_ms=1_000), switch(on=True))
    replica.now_ms += 999
    assert outcome(replica, ONE, put(A)).outcome == DONE
    replica.now_ms += 1
    assert outcome(replica, ONE, put(A)).outcome == UNKNOWN


def test_a_revoked_token_is_refused_later_in_the_same_entry(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    result = replica.apply(
        by(ONE, group(write(put(A, b"1")))), remove(ONE), by(ONE, group(write(put(A, b"2")))), switch(on=False),
        group(write(put(B))),
    )  # fmt: skip
    found = [result.outputs[at].results[0].outcome for at in (0, 2, 4)]
    assert found == [DONE, UNKNOWN, DONE]
    assert result.auth_changed and result.denials == 1


def test_queues(replica: Replica) -> None:
    replica.apply(
        token(ONE, scopes(send="jobs")), token(TWO, scopes(A, receive="jobs", manage="other*")), switch(on=True)
    )
    assert outcome(replica, ONE, enqueue(b"1", queue="jobs")).outcome == DONE
    assert outcome(replica, ONE, enqueue(b"1", queue="job")).message == "send queue job"
    assert outcome(replica, TWO, enqueue(b"1", queue="jobs")).outcome == DENIED
    escape = pb.Enqueue(queue="jobs", payload=b"x", keys_if_undelivered=[B])
    assert outcome(replica, ONE, escape).message == f"write key {B.hex()}", "where it cannot be delivered it is written"
    session = replica.apply(by(TWO, open_session())).outputs[0]
    delivery = replica.lease(session, queue="jobs")[0]
    assert outcome(replica, ONE, acked(delivery)).message == "receive queue jobs"
    assert outcome(replica, TWO, acked(delivery)).outcome == DONE


def test_a_message_of_the_same_entry_is_cancelled_only_by_who_manages_its_queue(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(send="jobs")), token(TWO, scopes(manage="jobs")), switch(on=True))
    for principal, expected in ((ONE, DENIED), (TWO, DONE)):
        prefix = (replica.store.applied_index + 1).to_bytes(8, "big")
        cancel = pb.Settle(message_id=prefix + bytes(4), kind=pb.SETTLE_KIND_CANCEL)
        made = by(ONE, group(write(enqueue(b"1", queue="jobs"))))
        result = replica.apply(made, by(principal, group(write(cancel))))
        assert result.outputs[0].results[0].outcome == DONE
        assert result.outputs[1].results[0].outcome == expected


@pytest.mark.parametrize(
    "command",
    [
        pb.Command(define_queue=pb.DefineQueue(name="jobs")),
        pb.Command(pause_queue=pb.PauseQueue(name="jobs", paused=True)),
        pb.Command(purge=pb.Purge(queue="jobs", limit=1)),
        pb.Command(requeue=pb.Requeue(queue="jobs", limit=1)),
        pb.Command(remove_queue=pb.RemoveQueue(name="jobs", limit=1)),
        pb.Command(define_topic=pb.DefineTopic(name="jobs")),
        pb.Command(subscribe=pb.Subscribe(topic="mine", queue="jobs")),
        pb.Command(subscribe=pb.Subscribe(topic="jobs", queue="mine")),
        pb.Command(
            define_queue=pb.DefineQueue(
                name="mine",
                policy=pb.QueuePolicy(dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="jobs").SerializeToString(),
            )
        ),
        pb.Command(
            define_schedule=pb.DefineSchedule(
                name="s",
                definition=pb.Schedule(cron="* * * * *", message=pb.Enqueue(queue="jobs")).SerializeToString(),
            )
        ),
        pb.Command(
            define_schedule=pb.DefineSchedule(
                name="s",
                definition=pb.Schedule(
                    cron="* * * * *", message=pb.Enqueue(queue="mine", keys_if_undelivered=[B])
                ).SerializeToString(),
            )
        ),
        pb.Command(put_token=pb.PutToken(id=TWO, secret=SECRET, name="t")),
        pb.Command(remove_token=pb.RemoveToken(id=ONE)),
        pb.Command(switch_auth=pb.SwitchAuth(on=False)),
    ],
    ids=lambda command: f"{command.WhichOneof('command')}",
)
def test_commands_need_their_rights(replica: Replica, command: pb.Command) -> None:
    replica.apply(
        pb.Command(define_topic=pb.DefineTopic(name="mine")),
        token(ONE, scopes(manage="mine", send="mine")),
        switch(on=True),
    )
    before = replica.store.auth
    denied = replica.apply(by(ONE, command)).outputs[0]
    assert isinstance(denied, Denied) and denied.outcome == DENIED
    nobody = replica.apply(by(b"", command)).outputs[0]
    assert isinstance(nobody, Denied) and nobody.outcome == UNKNOWN
    assert replica.store.auth is before
    allowed = replica.apply(by(ROOT, command)).outputs[0]
    assert not isinstance(allowed, Denied) or allowed.outcome not in (DENIED, UNKNOWN)


def test_a_schedule_is_changed_by_who_manages_where_it_sends_to(replica: Replica) -> None:
    mine = pb.Schedule(cron="* * * * *", message=pb.Enqueue(queue="mine")).SerializeToString()
    theirs = pb.Schedule(cron="* * * * *", message=pb.Enqueue(queue="theirs")).SerializeToString()
    replica.apply(pb.Command(define_schedule=pb.DefineSchedule(name="s", definition=theirs, next_ms=1)))
    replica.apply(token(ONE, scopes(manage="mine", send="mine")), switch(on=True))
    for definition in (mine, b""):
        made = pb.Command(define_schedule=pb.DefineSchedule(name="s", definition=definition, next_ms=1))
        assert replica.apply(by(ONE, made)).outputs[0].message == "manage queue theirs"


def test_secrets_rotate_with_an_overlap(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)))
    new = bytes(31) + b"1"
    rotate = pb.Command(put_token=pb.PutToken(id=ONE, secret=new, overlap_ms=1_000))
    replica.apply(rotate)
    replica.apply(rotate)  # an answer was lost
    found = replica.store.auth.tokens[ONE]
    assert found.knows(new, replica.now_ms) and found.knows(SECRET, replica.now_ms + 999)
    assert not found.knows(SECRET, replica.now_ms + 1_000) and not found.knows(bytes(32)[:31] + b"x", replica.now_ms)
    replica.reopen()
    assert replica.store.auth.tokens[ONE] == found or replica.store.auth.tokens[ONE].secrets == found.secrets


@pytest.mark.parametrize(
    "bad",
    [
        pb.PutToken(id=b"short", secret=SECRET, name="x"),
        pb.PutToken(id=TWO, secret=b"x", name="x"),
        pb.PutToken(id=TWO, name="x"),
        pb.PutToken(id=TWO, secret=SECRET),
        pb.PutToken(id=TWO, secret=SECRET, name="token--1"),
        pb.PutToken(id=TWO, secret=SECRET, name="x" * 129),
        pb.PutToken(id=TWO, secret=SECRET, name="x", scopes=b"\xff"),
        pb.PutToken(id=TWO, secret=SECRET, name="x", expire_in_ms=1 << 60),
    ],
    ids=range(8),
)
def test_bad_tokens_are_refused(replica: Replica, bad: pb.PutToken) -> None:
    replica.apply(token(ONE, scopes(A)))
    assert isinstance(replica.apply(pb.Command(put_token=bad)).outputs[0], Denied)
    assert list(replica.store.auth.tokens) == [ONE]


def test_there_are_so_many_tokens_and_no_more(replica: Replica) -> None:
    made = [token(number.to_bytes(8, "big"), b"", name=str(number)) for number in range(MAX_TOKENS + 1)]
    outputs = replica.apply(*made).outputs
    assert list(outputs[:-1]) == [None] * MAX_TOKENS and isinstance(outputs[-1], Denied)
    replica.apply(remove((0).to_bytes(8, "big")))
    assert replica.apply(made[-1]).outputs[0] is None
    for _ in replica.store.scrub(1_000):
        pass


def test_older_entries_know_nothing_of_it_until_it_began(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state", data_version=3)
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    assert replica.store.auth.tokens == {} and not replica.store.auth.on
    assert replica.store.proved_version == 3
    replica.data_version = 4
    replica.apply(token(ONE, scopes(A)), switch(on=True))
    assert replica.store.proved_version == 4
    replica.data_version = 3  # of a leader that had not heard of a member yet
    assert outcome(replica, b"", put(A)).outcome == UNKNOWN
    replica.store.close()


@pytest.mark.parametrize("seed", range(8))
def test_short_ways_of_the_judgement_answer_as_the_long_one_does(tmp_path: Path, seed: int) -> None:
    """A field that nobody knows keeps a write from being told from its bytes, and changes nothing else: results and
    state are the same, whatever a token may do and whatever comes."""
    rng = random.Random(seed)
    may = scopes(A, read=rng.random() < 0.7, write=rng.random() < 0.8, send="q1", receive=rng.choice(("q1", "q*")))
    plain, odd = (Replica(tmp_path / name, data_version=4) for name in ("plain", "odd"))
    for replica in (plain, odd):
        replica.apply(token(ONE, may), switch(True))
    for _ in range(12):
        ops = [_some_write(rng) for _ in range(rng.randrange(1, 12))]
        found = []
        for replica, tail in ((plain, b""), (odd, b"\xf8\x7f\x00")):
            writes = [pb.Write(seq=at, op=op + tail) for at, op in enumerate(ops, 1)]
            result = replica.apply(by(ONE, pb.Command(writes=pb.WriteGroup(writes=writes))))
            answers = [answer.SerializeToString() for answer in result.outputs[0].results]
            found.append((answers, result.denials, result.denied))
        assert found[0] == found[1]
        assert plain.store.state_hash() == odd.store.state_hash()
    for replica in (plain, odd):
        replica.store.close()


def _some_write(rng: random.Random) -> bytes:
    key = rng.choice((A, B, A + B, A + bytes(rng.randrange(3)), b"", A + bytes(3_000)))
    kind = rng.randrange(6)
    made = pb.AtomicWrite()
    if kind < 3:
        made.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
        if kind == 1:
            made.checks.add(key=rng.choice((A, B, key)))
        if kind == 2:
            made.mutations.add(key=rng.choice((A, B)), type=pb.MUTATION_TYPE_SET, value=b"w", encoding=1)
    elif kind < 5:
        made.enqueues.add(queue=rng.choice(("q1", "q2", "")), payload=b"p")
    else:
        made.settles.add(message_id=b"m" * 12, lease_id=b"l" * 12, kind=ACK)
    cut_off = bytes((rng.choice((0x0A, 0x12, 0x1A, 0x22)),)) + b"\xff\xff\x7f"
    return made.SerializeToString() if rng.random() < 0.95 else cut_off


def test_an_entry_that_is_given_up_leaves_no_trace(replica: Replica) -> None:
    replica.apply(token(ONE, scopes(A)))
    before, state = replica.store.auth, replica.store.state_hash()
    writes = [write(put(b"%d" % number)) for number in range(300)]
    steps = replica.store.apply(99, replica.now_ms, batch(switch(on=True), by(ROOT, group(*writes)), data_version=4))
    next(steps)
    steps.close()
    assert replica.store.auth is before and replica.store.state_hash() == state


def test_state_row_round_trip() -> None:
    state = records.State(5, 6, 7, 8, 9, 10, 11, 12, 13, b"0123456789", True, 14, 15, 16, True, 17)
    assert records.unpack_state(records.pack_state(state)) == state
    assert records.state_format(records.pack_state(state)) == records.AUTH_FORMAT


def test_the_same_log_gives_the_same_state_whatever_the_slices_and_restarts(tmp_path: Path) -> None:
    rng = random.Random(58)
    ids = [bytes((number,)) * 8 for number in range(4)]
    first = Replica(tmp_path / "first", data_version=4)
    sessions = [first.session() for _ in range(2)]
    seqs = dict.fromkeys(sessions, 0)
    for _ in range(250):
        first.now_ms += rng.randrange(200)
        principal = rng.choice([ROOT, b"", *ids])
        kind = rng.randrange(6)
        if kind == 0:
            first.apply(switch(rng.random() < 0.7, rng.choice([ROOT, ROOT, principal])))
        elif kind == 1:
            made = scopes(rng.choice((A, B)), admin=rng.random() < 0.3, send="q*", read=rng.random() < 0.5)
            expiry = rng.choice((0, 300))
            first.apply(token(rng.choice(ids), made, principal=rng.choice([ROOT, principal]), expire_in_ms=expiry))
        elif kind == 2:
            first.apply(remove(rng.choice(ids), rng.choice([ROOT, principal])))
        else:
            session = rng.choice(sessions)
            parts = [
                write(put(rng.choice((A, B)) + bytes((rng.randrange(256),)))),
                write(check(A), put(A)),
                write(enqueue(b"1", queue=rng.choice(("q1", "r1")))),
                write(put(A), put(B), enqueue(b"2", queue="q2")),
                write(delete_range(A, A + b"\xff")),
            ]
            made_group = group(*parts, session=session, first_seq=seqs[session] + 1)
            if rng.random() < 0.8:
                seqs[session] += len(parts)
            first.apply(by(principal, made_group), lease(session, queue="q1"))
    assert first.store.auth.used
    for number, slices in enumerate((1, 3, 256)):
        other = Replica(tmp_path / f"other{number}", slice_commits=slices)
        other.replay_roughly(first.log, random.Random(number))
        assert other.store.state_hash() == first.store.state_hash()
        assert (other.store.auth.on, other.store.auth.tokens.keys()) == (
            first.store.auth.on,
            first.store.auth.tokens.keys(),
        )
        for _ in other.store.scrub(1_000):
            pass
        other.store.close()
    first.store.close()
