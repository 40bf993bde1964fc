"""Calls about tokens at one node: what they need, what is refused, what they tell, and who is stamped."""

import logging

import pytest

from kvorum import tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.access import INSIDER, Caller
from kvorum_node.queue_calls import AUTH_TOO_OLD, LOCKED_OUT
from kvorum_node.store.auth import ROOT
from tests.unit.node.harness import Node

ID, SECRET = b"token--1", bytes(32)
INVALID, OK = pb.READ_STATUS_INVALID, pb.READ_STATUS_OK
DENIED, UNKNOWN = pb.READ_STATUS_DENIED, pb.READ_STATUS_UNAUTHENTICATED


def token(admin: bool = False, **more: object) -> pb.PutToken:
    scopes = pb.Scopes(admin=admin, keys=[pb.KeyScope(prefix=b"\x02a\0", write=True)])
    made = pb.PutToken(id=ID, secret=tokens.hash_of(SECRET), name="one", scopes=scopes.SerializeToString())
    for field, value in more.items():
        setattr(made, field, value)
    return made


def ask(node: Node, caller: Caller, **call: object) -> pb.QueueReply:
    replies: list[pb.QueueReply] = []
    node.service.calls.submit(pb.QueueCall(id=1, **call), replies.append, caller)  # type: ignore[arg-type]
    node.timers.advance(0.1)
    (reply,) = replies
    return reply


def shown(node: Node, text: str = "") -> Caller:
    return node.service.access.caller(text)


def test_all_members_must_know_tokens(node: Node) -> None:
    node.service.proposer._common_data_version = lambda: 3
    reply = ask(node, INSIDER, put_token=token())
    assert (reply.status, reply.message) == (pb.READ_STATUS_OVERLOADED, AUTH_TOO_OLD)
    node.service.proposer._common_data_version = lambda: 4
    assert ask(node, INSIDER, put_token=token()).status == OK


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (None, INVALID),
        (token(), INVALID),
        (token(admin=True, expire_in_ms=1_000), INVALID),
        (token(admin=True, disabled=True), INVALID),
        (token(admin=True), OK),
    ],
    ids=["none", "no admin", "one that ends", "a disabled one", "an admin"],
)
def test_nobody_is_locked_out(node: Node, made: pb.PutToken | None, status: "pb.ReadStatus") -> None:
    if made is not None:
        assert ask(node, shown(node), put_token=made).status == OK
    reply = ask(node, shown(node), switch_auth=pb.SwitchAuth(on=True))
    assert reply.status == status and (reply.message == LOCKED_OUT) == (status == INVALID)


def test_the_root_token_opens_it_again(node: Node) -> None:
    node.service.access.root_hash = tokens.hash_of(b"the root token")
    root = shown(node, "the root token")
    assert ask(node, shown(node), switch_auth=pb.SwitchAuth(on=True)).status == OK
    for caller, status in ((shown(node), UNKNOWN), (shown(node, "nonsense"), UNKNOWN), (root, OK)):
        assert ask(node, caller, put_token=token()).status == status
    mine = shown(node, tokens.text_of(ID, SECRET))
    for call in (
        {"put_token": pb.PutToken(id=ID, disabled=False)}, {"remove_token": pb.RemoveToken(id=ID)},
        {"switch_auth": pb.SwitchAuth(on=False)}, {"tokens": pb.ListTokens()},
    ):  # fmt: skip
        reply = ask(node, mine, **call)
        assert (reply.status, reply.message) == (DENIED, "admin")
        assert ask(node, shown(node), **call).status == UNKNOWN
    assert ask(node, root, switch_auth=pb.SwitchAuth(on=False)).status == OK


@pytest.mark.parametrize(
    "bad",
    [
        pb.PutToken(id=b"short", secret=bytes(32), name="x"),
        pb.PutToken(id=ID, secret=bytes(31), name="x"),
        token(name="two\nlines"),
        token(name="n" * 129),
        token(scopes=b"\xff"),
        token(scopes=pb.Scopes(keys=[pb.KeyScope(prefix=b"\x02open")]).SerializeToString()),
        token(scopes=pb.Scopes(keys=[pb.KeyScope()] * 65).SerializeToString()),
        token(scopes=pb.Scopes(queues=[pb.QueueScope(name="q" * 300)]).SerializeToString()),
        token(scopes=b"\xf8\x06\x01"),
        token(expire_in_ms=1 << 60),
    ],
    ids=range(10),
)
def test_bad_tokens_do_not_get_into_the_log(node: Node, bad: pb.PutToken) -> None:
    index = node.store.applied_index
    reply = ask(node, INSIDER, put_token=bad)
    assert reply.status == INVALID and reply.message
    assert node.store.applied_index == index


def test_lists_come_in_pages_and_without_secrets(node: Node) -> None:
    for number in range(5):
        made = pb.PutToken(id=bytes((number,)) * 8, secret=bytes((number,)) * 32, name=str(number))
        assert ask(node, INSIDER, put_token=made).status == OK
    names: list[str] = []
    after = b""
    for _ in range(3):
        reply = ask(node, INSIDER, tokens=pb.ListTokens(limit=2, after=after))
        names += [info.name for info in reply.tokens]
        after = reply.after
        assert b"\4" * 32 not in reply.SerializeToString()
    assert (names, after) == (["0", "1", "2", "3", "4"], b"")
    assert ask(node, INSIDER, tokens=pb.ListTokens(limit=5_000)).status == INVALID


def test_changes_are_in_the_audit_log(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kvorum.audit"):
        ask(node, INSIDER, put_token=token(admin=True))
        ask(node, INSIDER, switch_auth=pb.SwitchAuth(on=True))
        ask(node, shown(node, tokens.text_of(ID, SECRET)), define=pb.DefineQueue(name="jobs"))
        ask(node, shown(node), pause=pb.PauseQueue(name="jobs"))
    assert [message for message in caplog.messages if message.startswith("changed")] == [
        f"changed principal=root what='put_token {ID.hex()}'",
        "changed principal=root what='auth on'",
        f"changed principal=token:{ID.hex()} what='define jobs'",
    ]
    assert any(message.startswith("denied principal=nobody") for message in caplog.messages)


def test_what_apply_refuses_is_counted_and_told_by_the_leader(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.service.access.root_hash = tokens.hash_of(b"the root token")
    ask(node, INSIDER, put_token=token())
    ask(node, INSIDER, switch_auth=pb.SwitchAuth(on=True))
    answers: list[pb.ResultGroup] = []
    group = pb.WriteGroup()
    op = pb.AtomicWrite(mutations=[pb.Mutation(key=b"\x02b\0", type=pb.MUTATION_TYPE_DELETE)])
    group.writes.add(seq=1, op=op.SerializeToString())
    with caplog.at_level(logging.INFO, "kvorum.audit"):
        node.service.write(group, answers.append, ID)
        node.timers.advance(0.1)
    assert answers[0].results[0].outcome == pb.OUTCOME_DENIED
    assert caplog.messages == [f"denied principal=token:{ID.hex()} lacks='write key 026200' where=in the log"]
    assert node.service.statistics()["auth_denied"] == 1
    node.service.write(group, answers.append, ROOT)
    node.timers.advance(0.1)
    assert answers[1].results[0].outcome == pb.OUTCOME_DONE
