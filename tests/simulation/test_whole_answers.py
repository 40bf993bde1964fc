"""The judge of requests: what it finds, and what it must not find."""

from dataclasses import replace

from tests.simulation.whole.queues.answers import Asked, violations

STAMP = "0" * 19 + "7"
REPLY = ("inbox", STAMP + "0000")
GOOD = Asked("c1.r1", "c1", "ok", "c1.r1", 1, STAMP, (REPLY,))


def _found(asked: Asked, owner: str = "c1") -> list[str]:
    return list(violations(asked, {"inbox": owner}))


def test_good_ones() -> None:
    assert _found(GOOD) == []
    assert _found(GOOD, owner="") == [], "its client died before it said which is its inbox"
    assert _found(replace(GOOD, outcome="unknown", answer="")) == [], "it came too late"
    assert _found(Asked("c1.r1", "c1", "unknown", count=1, stamp=STAMP)) == [], "nobody took the answer"
    assert _found(Asked("c1.r1", "c1", "unknown")) == []
    assert _found(Asked("c1.r1", "c1", "not applied")) == []


def test_bad_ones() -> None:
    assert "handled 2 times" in _found(replace(GOOD, count=2))[0]
    assert "answered 2 times" in _found(replace(GOOD, replies=(REPLY, REPLY)))[0]
    assert "has its effect at" in _found(replace(GOOD, stamp="1" * 20))[0]
    assert "at no place" in _found(replace(GOOD, count=0, stamp=""))[0]
    assert "was answered to c2" in _found(GOOD, owner="c2")[0]
    assert "got the answer to 'c1.r2'" in _found(replace(GOOD, answer="c1.r2"))[0]
    assert "that no node has handed out" in _found(replace(GOOD, replies=()))[0]
    assert "told that it was not sent" in _found(Asked("c1.r1", "c1", "not applied", count=1, stamp=STAMP))[0]
