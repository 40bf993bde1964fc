"""The table of rights, against a plain reading of it: keys as tuples, queues as names."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvorum._proto import kvorum_pb2 as pb
from kvorum.keys import encode_key
from kvorum.rights import denied
from kvorum_node.store import rights
from kvorum_node.store.rights import MANAGE, READ, RECEIVE, SEND, WRITE, Rights

Key = tuple[Any, ...]
PARTS = st.one_of(
    st.sampled_from(["", "a", "a\0", "a\0\0", "a\0\xff", "b", "aa", b"", b"a", b"a\0", b"\xff"]),
    st.integers(-3, 3),
    st.sampled_from([0.0, -1.5, float("inf")]),
    st.booleans(),
)
KEYS = st.lists(PARTS, max_size=3).map(tuple)
NAMES = st.sampled_from(["", "a", "ab", "b", "a*", "\0reply/x"])


def same(one: object, other: object) -> bool:
    """`True == 1` and `1 == 1.0` are no equals as parts of a key."""
    return type(one) is type(other) and one == other


def below(prefix: Key, key: Key) -> bool:
    return len(prefix) <= len(key) and all(map(same, prefix, key))


@given(st.lists(st.tuples(KEYS, st.booleans(), st.booleans()), max_size=4), KEYS)
def test_keys(scopes: list[tuple[Key, bool, bool]], key: Key) -> None:
    made = [pb.KeyScope(prefix=encode_key(prefix), read=read, write=write) for prefix, read, write in scopes]
    mine = Rights(pb.Scopes(keys=made))
    encoded = encode_key(key)
    for right, at in ((READ, 1), (WRITE, 2)):
        allowed = any(scope[at] and below(scope[0], key) for scope in scopes)
        assert mine.may_key(right, encoded) == allowed
        assert (rights.for_key(mine, right, encoded) == "") == allowed


@given(KEYS, st.lists(KEYS, min_size=1, max_size=8), KEYS, KEYS)
def test_a_range_that_is_allowed_holds_allowed_keys_only(prefix: Key, keys: list[Key], start: Key, end: Key) -> None:
    mine = Rights(pb.Scopes(keys=[pb.KeyScope(prefix=encode_key(prefix), read=True)]))
    low, high = encode_key(start), encode_key(end)
    for before, behind in ((low, high), (low + b"\0", low + b"\xff"), (low, high + b"\0"), (b"", high)):
        if mine.may_range(READ, before, behind):
            for key in (*keys, start, end):
                encoded = encode_key(key)
                assert mine.may_key(READ, encoded) or not before <= encoded < behind
        assert not mine.may_range(WRITE, before, behind)


@given(KEYS)
def test_what_list_and_watch_ask_for_is_within_its_prefix(prefix: Key) -> None:
    encoded = encode_key(prefix)
    mine = Rights(pb.Scopes(keys=[pb.KeyScope(prefix=encoded, read=True, write=True)]))
    assert mine.may_range(READ, encoded + b"\0", encoded + b"\xff")
    assert mine.may_range(WRITE, encoded, encoded + b"\0")


@given(
    st.lists(st.tuples(NAMES, st.booleans(), st.integers(0, 7)), max_size=4), NAMES, st.booleans(),
    st.sampled_from([SEND, RECEIVE, MANAGE]),
)  # fmt: skip
def test_queues(scopes: list[tuple[str, bool, int]], name: str, admin: bool, right: int) -> None:
    made = [
        pb.QueueScope(
            name=queue, prefix=prefix, send=bool(mask & SEND), receive=bool(mask & RECEIVE), manage=bool(mask & MANAGE)
        )
        for queue, prefix, mask in scopes
    ]
    mine = Rights(pb.Scopes(queues=made, admin=admin))
    allowed = any(
        mask & right and (name.startswith(queue) if prefix else name == queue) for queue, prefix, mask in scopes
    )
    allowed = allowed or (admin and right == MANAGE) or (name.startswith("\0") and right != MANAGE)
    assert mine.may_queue(right, name) == allowed
    assert not mine.may_see(SEND | RECEIVE | MANAGE, "\0reply/x") or mine.may_queue(MANAGE, "\0reply/x")


def test_what_is_missing_is_said_in_words_that_stay() -> None:
    """Sessions remember them: they are in the content hash."""
    nothing = Rights(pb.Scopes())
    key = encode_key(("users", 1))
    assert rights.for_key(nothing, WRITE, key) == f"write key {key.hex()}" == "write key 0275736572730015" + "01"
    assert rights.for_key(nothing, READ, bytes(65)) == f"read key {'00' * 64}+"
    assert rights.for_range(nothing, READ, b"\x01", b"\x02") == "read range 01 02"
    assert [rights.for_queue(nothing, right, "a b") for right in (SEND, RECEIVE, MANAGE)] == [
        "send queue a b", "receive queue a b", "manage queue a b",
    ]  # fmt: skip
    assert rights.for_admin(nothing) == "admin"


def test_and_clients_make_sentences_of_them() -> None:
    assert str(denied("write key 027573657273001501")) == "this token may not write the key ('users', 1)"
    assert denied("write key 027573657273001501").right == "write"
    assert "begins with 0x00" in str(denied("read key 00+"))
    assert "0xzz" in str(denied("read key zz"))
    assert "from 0x01 to ()" in str(denied("read range 01 "))
    assert "send to the queue or topic 'a b'" in str(denied("send queue a b"))
    assert denied("admin").right == "admin"
    assert "lacks a right" in str(denied("something newer"))
