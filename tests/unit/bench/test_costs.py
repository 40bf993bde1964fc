"""The guard against slower hot paths: counts of what the interpreter does, never times."""

import json
from pathlib import Path

import pytest

from bench import costs
from bench.costs import ALLOWED, RECORD, Cost, count, grown, recorded, version

OTHER = "2.7"


def test_hot_paths_cost_no_more_than_recorded() -> None:
    problems = grown(costs.costs(), recorded(), version())
    assert not problems, "; ".join(problems) + ". If it is worth it: python -m bench.costs --record"


def test_counts_are_the_same_each_time() -> None:
    assert dict(costs.codec()) == dict(costs.codec())
    assert dict(costs.applying()) == dict(costs.applying())


def test_only_what_is_done_within_is_counted() -> None:
    def work() -> int:
        return sum([1, 2, 3])

    bare = count(lambda here: here(work))
    assert bare.instructions > 5
    assert bare.calls >= 2
    assert count(lambda here: (work(), here(work), work())) == bare
    assert count(lambda here: here(lambda: (work(), work()))).instructions > 2 * bare.instructions


def slower(steps: int) -> None:
    """Costs some instructions."""
    for _ in range(steps):
        pass


@pytest.mark.parametrize(
    ("where", "name", "group", "operation"),
    [
        ("bench.costs", "encode_key", costs.codec, "encode a key of 3 parts"),
        ("bench.costs", "decode_value", costs.codec, "decode a dict of 4 fields"),
        ("kvorum_node.api.outbox", "varint", costs.node_frames, "node: an answer into a frame"),
        ("kvorum_raft.wire.pb.Envelope", "", costs.raft_frames, "raft: an entry into an append and out of it"),
    ],
)
def test_an_operation_that_does_a_third_more_is_found(
    monkeypatch: pytest.MonkeyPatch, where: str, name: str, group: costs.Group, operation: str
) -> None:
    before = dict(group())
    target = f"{where}.{name}" if name else "bench.costs.parse"
    real = _resolve(target)
    # Two instructions for each step of the loop that is put in front.
    steps = round(before[operation].instructions * 0.34 / 2)

    def wrapped(*arguments: object) -> object:
        slower(steps)
        return real(*arguments)

    monkeypatch.setattr(target, wrapped)
    problems = [line for line in grown(dict(group()), {version(): before}, version()) if operation in line]
    # The two calls in front may be too many as well, of a few.
    assert [line for line in problems if "instructions instead of" in line]


def _resolve(target: str):  # type: ignore[no-untyped-def]
    module, _, name = target.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


RECORDED = {"a": Cost(100.0, 10.0)}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"a": Cost(100.0 * ALLOWED, 10.0)}, []),
        ({"a": Cost(126.0, 10.0)}, ["a: 126 instructions instead of 100"]),
        ({"a": Cost(100.0, 13.0)}, ["a: 13 calls instead of 10"]),
        ({"a": Cost(50.0, 5.0)}, []),
        ({"a": Cost(1.0, 1.0), "b": Cost(1.0, 1.0)}, ["b: no record"]),
        ({}, ["a: recorded, but not counted any more"]),
    ],
)
def test_growth_by_more_than_a_quarter_is_told(now: dict[str, Cost], said: list[str]) -> None:
    assert grown(now, {version(): RECORDED}, version()) == said


def test_another_python_is_judged_by_calls_alone() -> None:
    record = {version(): RECORDED}
    assert grown({"a": Cost(900.0, 10.0)}, record, OTHER) == []
    assert grown({"a": Cost(1.0, 13.0)}, record, OTHER) == ["a: 13 calls instead of 10"]


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({OTHER: RECORDED}))
    assert recorded(file) == {OTHER: RECORDED}
    assert len(recorded(RECORD)["3.11"]) >= 15
