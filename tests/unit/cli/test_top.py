"""`kvorum top`: rates of two looks, and what is shown of them."""

import dataclasses
import io
from typing import Any

from rich.console import Console

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.top import render
from kvorum.cli.top_view import RATES, Look, as_json, view


def node(name: str, *, leader: str = "n1", applied: int = 10, **figures: float) -> pb.StatusResponse:
    return pb.StatusResponse(
        node_id=name,
        role="leader" if name == leader else "follower",
        term=4,
        leader=pb.Leader(node_id=leader),
        applied_index=applied,
        commit_index=applied,
        version="1.0",
        statistics=figures,
    )


def look(at: float, *nodes: pb.StatusResponse | str, queues: list[kvorum.QueueStats] | None = None) -> Look:
    return Look(at, {f"host{number}:7401": one for number, one in enumerate(nodes)}, queues)


def shown(now: Look, before: Look | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=140, markup=False).print(render(view(before, now)))
    return out.getvalue()


def test_rates_are_differences_over_time_and_summed_over_nodes() -> None:
    before = look(10.0, node("n1", proposer_commits=100, reads_served=10), node("n2", reads_served=0))
    now = look(12.0, node("n1", proposer_commits=500, reads_served=30), node("n2", reads_served=10))
    made = view(before, now)
    assert made.rates["commits_per_s"] == 200.0
    assert made.rates["reads_per_s"] == 15.0
    assert [row.rates["reads_per_s"] for row in made.rows] == [10.0, 5.0]
    assert set(made.rates) == set(RATES)


def test_a_node_that_started_anew_counts_from_its_start_and_a_new_one_has_no_rate_yet() -> None:
    before = look(0.0, node("n1", proposer_commits=1_000), "connection refused")
    now = look(1.0, node("n1", proposer_commits=40), node("n2", proposer_commits=7))
    made = view(before, now)
    assert made.rates["commits_per_s"] == 40.0
    assert made.rows[1].rates == {}


def test_the_first_look_has_no_rates() -> None:
    assert set(view(None, look(1.0, node("n1", proposer_commits=5))).rates.values()) == {0.0}


def test_lag_is_counted_from_the_newest_commit() -> None:
    made = view(None, look(1.0, node("n1", applied=90), node("n2", applied=70), "silent for 2.0 s"))
    assert [row.lag for row in made.rows] == [0, 20, 0]
    assert (made.rows[2].role, made.rows[2].problem) == ("no answer", "silent for 2.0 s")


def test_the_leader_of_the_newest_term_is_shown_also_between_leaders() -> None:
    old, new = node("n1", leader="n1"), node("n2", leader="n2")
    new.term = 5
    assert (view(None, look(1.0, old, new)).leader, view(None, look(1.0, old, new)).term) == ("n2", 5)
    leaderless = node("n1", leader="")
    assert view(None, look(1.0, leaderless)).leader == ""
    assert "no leader" in shown(look(1.0, leaderless))
    assert "no leader" in shown(look(1.0, "connection refused"))


def test_what_is_drawn() -> None:
    now = look(2.0, node("n1", proposer_commits=50, disk_free_bytes=3 << 30, loop_lag_worst=0.002), "gone", queues=[])
    text = shown(now, look(1.0, node("n1", proposer_commits=0), "gone", queues=[]))
    for part in ("leader n1, term 4", "commits/s 50", "3.0 GiB", "2 ms", "no answer", "host1:7401: gone"):
        assert part in text
    assert "queues: no answer" in shown(look(1.0, node("n1")))


def _counters() -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(kvorum.QueueStats) if field.name not in ("name", "policy")]
    return {"policy": None, **dict.fromkeys([field.name for field in fields], 0), "oldest_age": None}


def test_names_are_shown_as_they_are_and_tell_the_terminal_nothing() -> None:
    """On a terminal styles are on, so that what is in brackets would be taken for one, or for a mistake in one."""
    odd = kvorum.QueueStats(name="[/x] \x1b[2J\x9b31m [red]r", **_counters())
    now = look(2.0, node("n1\x1b[2J"), "[/gone]\x1b", queues=[odd])
    out = io.StringIO()
    Console(file=out, width=140).print(render(view(look(1.0, node("n1"), "gone", queues=[odd]), now)))
    assert "[/x] \\u001b[2J\\u009b31m [red]r" in out.getvalue()
    assert "\x1b" not in out.getvalue() and "\x9b" not in out.getvalue()


def test_json_has_the_same() -> None:
    data = as_json(view(None, look(1.0, node("n1", keys=3.0), "gone", queues=[])), lambda stats: stats.name)
    assert data["leader"] == "n1"
    assert data["queues"] == []
    nodes = data["nodes"]
    assert isinstance(nodes, list)
    assert nodes[0]["keys"] == 3.0
    assert nodes[1] == {"address": "host1:7401", "error": "gone"}
