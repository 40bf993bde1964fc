"""Short forms of the counter runs (`scripts/acceptance counter` has the long one), and the tap that counts resends."""

from pathlib import Path

import pytest

from tests.acceptance.foreign.counter import WORKERS, Count, Fate, Trial
from tests.acceptance.foreign.process import KINDS
from tests.acceptance.foreign.tap import PREFACE, RequestBodies

KILLS = 3


@pytest.mark.parametrize("fate", [Fate.SURVIVES, Fate.DIES], ids=["serving node survives", "serving node dies"])
def test_counters_while_leaders_are_killed(clients_installed: None, tmp_path: Path, fate: Fate) -> None:
    trial = Trial(tmp_path, KINDS, fate)
    counts = trial.run(seconds=8, kills=KILLS)
    assert trial.kills >= KILLS
    for count in counts:
        assert not count.faults(), (count.kind, count.numbers())
        assert count.numbers()["ok"] >= KILLS, (count.kind, count.numbers())
        if fate is Fate.SURVIVES or count.kind == "deno":
            assert count.rounds > 5, count.numbers()


def test_counters_while_the_serving_node_is_left_alone(clients_installed: None, tmp_path: Path) -> None:
    """What it had sent to a leader is reported as unknown (409), all else is done when there is a leader again."""
    counts = Trial(tmp_path, KINDS, Fate.ALONE, held=2).run(seconds=1, kills=1)
    for count in counts:
        assert not count.faults(), (count.kind, count.numbers())
        assert count.numbers()["ok"] >= WORKERS, (count.kind, count.numbers())
    assert sum(count.numbers()["unknown"] for count in counts) <= 2 * len(KINDS) * WORKERS


def test_the_judge_finds_what_is_wrong() -> None:
    outcomes = {"0.1": "ok", "0.2": "outcome unknown", "0.3": "failed"}
    good = Count("deno", outcomes | {"0.3": "ok"}, {"0.1": 1, "0.3": 1}, 2)
    assert not good.faults()
    assert Count("deno", outcomes, {"0.1": 1}, 1).faults()  # an error that is not "unknown"
    assert Count("deno", {"0.1": "ok"}, {}, 0).faults()  # lost
    assert Count("deno", {"0.1": "ok"}, {"0.1": 2}, 2).faults()  # twice
    assert Count("deno", {"0.1": "ok"}, {"0.1": 1}, 2).faults()  # another sum
    assert Count("deno", {"0.1": "ok"}, {"0.1": 1, "0.2": 1}, 2).faults()  # from nowhere


def test_the_tap_reads_both_protocols() -> None:
    """In whatever pieces they come."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content

    two = PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, b"headers") + frame(1, 4, 3, b"headers")
    two += (
        frame(0, 0, 1, b"first ")
        + frame(0, 1 | 8, 3, b"\x02second\0\0")
        + frame(0, 1, 1, b"body")
        + frame(0, 1, 5, b"")
    )
    one = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirstPOST / HTTP/1.1\r\ncontent-length:6\r\n\r\nsecond"
    for size in (1, 7, 1000):
        for stream, expected in ((two, [b"second", b"first body"]), (one, [b"first", b"second"])):
            bodies = RequestBodies()
            pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
            assert [body for piece in pieces for body in bodies.feed(piece)] == expected
