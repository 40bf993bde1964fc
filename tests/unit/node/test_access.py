"""Who is recognised, what is told to whom, and what the audit log says."""

import hmac
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kvorum import tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import PermissionDenied, Unauthenticated
from kvorum_node.access import INSIDER, LOOK, Access, Audit
from kvorum_node.store.auth import NONE, ROOT, Auth, Token
from kvorum_node.store.rights import READ, Rights, for_key
from tests.unit.node.harness import VirtualTimers

ID, SECRET, OLD = bytes(8), bytes(32), bytes(31) + b"x"
SCOPES = pb.Scopes(keys=[pb.KeyScope(prefix=b"\x02a\0", read=True)])
A, B = b"\x02a\0", b"\x02b\0"


def token(**more: Any) -> Token:
    fields: dict[str, Any] = {
        "id": ID, "created_ms": 0, "expires_ms": 0, "disabled": False, "name": "one",
        "secrets": ((tokens.hash_of(SECRET), 0),), "scopes": SCOPES.SerializeToString(), "rights": Rights(SCOPES),
    }  # fmt: skip
    return Token(**{**fields, **more})


class Desk:
    """An access over made-up tokens."""

    def __init__(self, auth: Auth) -> None:
        self.timers = VirtualTimers()
        self.store: Any = SimpleNamespace(auth=auth)
        self.now_ms = 1_000
        self.access = Access(self.store, self.timers, lambda: self.now_ms, tokens.hash_of(b"the root token"))

    def stamp(self, text: str) -> bytes:
        return self.access.stamp(self.access.caller(text))

    def may(self, text: str, key: bytes) -> None:
        self.access.check(self.access.caller(text), lambda rights: for_key(rights, READ, key))


GOOD = tokens.text_of(ID, SECRET)


def test_while_tokens_are_unknown_nobody_is_stamped() -> None:
    desk = Desk(NONE)
    assert desk.stamp("") == desk.stamp(GOOD) == desk.access.stamp(INSIDER) == b""
    assert desk.stamp("the root token") == ROOT, "the first switch may overtake it"
    desk.may("", B)


def test_while_tokens_are_not_asked_for_those_who_show_one_are_stamped() -> None:
    desk = Desk(Auth(False, True, {ID: token()}))
    assert (desk.stamp(""), desk.stamp(GOOD), desk.stamp("the root token")) == (b"", ID, ROOT)
    desk.may("", B)


@pytest.mark.parametrize(
    ("changes", "text", "problem"),
    [
        ({}, "", "asks for a token"),
        ({}, "nonsense", "no token of kvorum's"),
        ({}, "kvo_5f0c9f6d2b1e7a34_0uVwGJ", "only a part of one: kvo_, 16 hex digits, _ and 43 characters"),
        ({}, "the root token ", "no token of kvorum's"),
        ({}, tokens.text_of(bytes(7) + b"x", SECRET), "unknown here"),
        ({}, tokens.text_of(ID, OLD), "its secret is another one"),
        ({"disabled": True}, GOOD, "disabled"),
        ({"expires_ms": 1_000}, GOOD, "past its time"),
        ({"secrets": ((tokens.hash_of(OLD), 0), (tokens.hash_of(SECRET), 1_000))}, GOOD, "its secret is another one"),
    ],
)
def test_who_is_nobody(changes: dict[str, Any], text: str, problem: str) -> None:
    desk = Desk(Auth(True, True, {ID: token(**changes)}))
    for call in (lambda: desk.stamp(text), lambda: desk.may(text, A)):
        with pytest.raises(Unauthenticated, match=problem):
            call()
    assert desk.access.statistics() == {"auth_denied": 2}


def test_a_token_lets_do_what_its_scopes_say() -> None:
    changes = {"expires_ms": 1_001, "secrets": ((tokens.hash_of(OLD), 0), (tokens.hash_of(SECRET), 1_001))}
    desk = Desk(Auth(True, True, {ID: token(**changes)}))
    desk.may(GOOD, A)
    with pytest.raises(PermissionDenied, match="may not read the key \\('b',\\)"):
        desk.may(GOOD, B)
    desk.may("the root token", B)
    desk.access.check(INSIDER, lambda rights: for_key(rights, READ, B))
    desk.now_ms += 1
    with pytest.raises(Unauthenticated):
        desk.may(GOOD, A)


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each known secret against the given one, by the function that is made for it, whatever the first one says."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("kvorum_node.store.auth.compare_digest", compare)
    known = (tokens.hash_of(SECRET), tokens.hash_of(OLD))
    desk = Desk(Auth(True, True, {ID: token(secrets=((known[0], 0), (known[1], 0)))}))
    desk.stamp(GOOD)
    assert compared[:2] == [(known[0], known[0]), (known[1], known[0])]


def test_listeners_hear_of_changes_and_of_time() -> None:
    desk = Desk(Auth(True, True, {ID: token(expires_ms=5_000)}))
    heard: list[int] = []
    stop = desk.access.listen(lambda: heard.append(1))
    desk.access.changed()
    assert len(heard) == 1
    desk.timers.advance(LOOK)
    assert len(heard) == 2
    stop()
    desk.timers.advance(2 * LOOK)
    assert len(heard) == 2
    desk.store.auth = Auth(True, True, {ID: token()})
    desk.access.listen(lambda: heard.append(1))
    desk.timers.advance(10 * LOOK)
    assert len(heard) == 2, "nothing ends by itself"


def test_the_audit_log_is_bounded_and_says_what_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    timers = VirtualTimers()
    audit = Audit(timers)
    with caplog.at_level(logging.INFO, "kvorum.audit"):
        for _ in range(500):
            audit.denied(ID, "send queue a\nb", "here")
        assert len(caplog.messages) == Audit.BURST
        assert caplog.messages[0] == f"denied principal=token:{ID.hex()} lacks='send queue a\\nb' where=here"
        timers.advance(1.0)
        audit.denied(b"", "x", "in the log")
        assert caplog.messages[-2:] == ["left out lines=400", "denied principal=nobody lacks='x' where=in the log"]
        for _ in range(500):
            audit.changed(ROOT, "auth on")
        assert caplog.messages.count("changed principal=root what='auth on'") == 500
