"""Only a majority of equal hashes says who is wrong; peers cannot make it remember more than it should."""

import random

import pytest

from kvorum_raft.state_hashes import StateHashes, Verdict

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
THREE = frozenset("xyz")
FIVE = frozenset("vwxyz")


def judged(hashes: dict[str, bytes], voters: frozenset[str], own_id: str = "x") -> Verdict | None:
    one = StateHashes()
    for node_id, found in hashes.items():
        if node_id == own_id:
            one.own(256, found)
        else:
            one.reported(node_id, 256, found)
    return one.judge(256, voters, own_id)


def test_every_256th_entry_is_due() -> None:
    one = StateHashes()
    assert [index for index in range(1000) if one.due(index)] == [256, 512, 768]


@pytest.mark.parametrize(
    ("hashes", "voters", "verdict"),
    [
        ({"x": A, "y": A, "z": A}, THREE, None),
        ({"x": A}, THREE, None),
        ({"x": A, "y": B}, THREE, None),  # z will tell
        ({"x": A, "y": A, "z": B}, THREE, Verdict(256, A, frozenset("z"), False)),
        ({"x": B, "y": A, "z": A}, THREE, Verdict(256, A, frozenset("x"), True)),
        ({"y": A, "z": B}, THREE, None),  # this node has not applied it yet
        ({"x": A, "y": B, "z": C}, THREE, Verdict(256, b"", THREE, True)),
        ({"x": A, "y": B}, frozenset("xy"), Verdict(256, b"", frozenset("xy"), True)),
        ({"x": A, "y": A, "z": A, "w": B}, FIVE, Verdict(256, A, frozenset("w"), False)),
        ({"x": A, "y": A, "z": B, "w": B}, FIVE, None),
        ({"x": A, "y": A, "z": B, "w": B, "v": C}, FIVE, Verdict(256, b"", FIVE, True)),
        ({"x": A, "y": B, "z": C, "w": C}, FIVE, None),
        ({"x": A, "y": B, "z": A, "q": B, "r": B}, THREE, Verdict(256, A, frozenset("y"), False)),  # no members
        ({"x": A, "y": B, "z": B}, frozenset("yz"), None),  # a leader that is no voter any more
    ],
)
def test_verdicts(hashes: dict[str, bytes], voters: frozenset[str], verdict: Verdict | None) -> None:
    assert judged(hashes, voters) == verdict
    assert verdict is None or verdict.decided is bool(verdict.content_hash)


def test_what_another_says_about_this_node_does_not_count() -> None:
    one = StateHashes()
    one.reported("x", 256, B)
    one.reported("y", 256, A)
    one.reported("z", 256, A)
    assert one.judge(256, THREE, "x") is None
    one.own(256, A)
    assert one.judge(256, THREE, "x") is None


def test_the_newest_report_of_a_node_counts_and_a_rebuilt_one_starts_anew() -> None:
    one = StateHashes()
    one.own(256, A)
    one.reported("y", 256, A)
    one.reported("z", 256, B)
    assert one.judge(256, THREE, "x") is not None
    one.forget("z")
    assert one.judge(256, THREE, "x") is None
    one.reported("z", 256, B)
    one.reported("z", 256, A)
    assert one.judge(256, THREE, "x") is None
    assert one.own_at(256) == A
    one.clear()
    assert one.own_at(256) is None


def test_memory_is_bounded_whatever_peers_send() -> None:
    one = StateHashes(every=4, keep=8)
    rng = random.Random(5)
    for _ in range(20_000):
        node_id = f"n{rng.randrange(1000)}"
        one.reported(node_id, rng.choice((0, 3, 4 * rng.randrange(1 << 60))), rng.randbytes(rng.choice((16, 16, 3))))
    assert sum(len(known) for known in one._reports.values()) <= 32 * 8
    one.reported("y", 1 << 62, B)  # an index that does not exist yet costs only the one who sends it
    one.own(400, A)
    one.reported("y", 400, B)
    one.reported("z", 400, A)
    assert one.judge(400, THREE, "x") == Verdict(400, A, frozenset("y"), False)
    assert set(one._reports) <= THREE
