"""docs/performance.md is what its source says, and its plots can be read."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench import page, plots
from tests.unit.bench.test_table import rounds

ROOT = Path(__file__).parents[3]


def results(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "made": "2026-01-02",
        "machine": {
            "cores": 2,
            "cpu": "a processor",
            "memory_gib": 23.5,
            "kernel": "6.1",
            "python": "3.11.7",
            "fdatasync_p50_ms": 0.4,
            "load_at_start": 0.1,
        },
        "versions": {"etcd": "etcd 3.4"},
        "missing": {},
        "seconds": 2.0,
        "rounds": 5,
        "took_s": 1_800.0,
        "rows": rounds("set", 256, [(5_000.0, 500.0)]) + rounds("set", 1, [(100.0, 400.0)]),
        "crashes": [{"after": "set", "writes": 1_234, "keys": 100, "there": 100}],
        "restarts": [{"workload": "set-1M-keys", "system": "kvorum", "round": 0, "all_s": 2.5, "one_s": 1.5}],
        "failures": [],
    }
    return {**found, **changes}


def test_the_page_says_where_others_are_better() -> None:
    text = page.render(results())
    better = text.partition("## Where others are better")[2].partition("## Method")[0]
    assert "1 caller: rate 0.25 of etcd's" in better
    assert "256 callers" not in better
    assert "10.00" in text.partition("## Keys and values")[2]


def test_the_page_says_what_a_call_costs_and_what_that_would_allow() -> None:
    rows = rounds("set", 256, [(4_000.0, 500.0)]) + rounds("set", 1, [(100.0, 400.0)])
    costs = page.render(results(rows=rows)).partition("## What sets the rates")[2].partition("\n## ")[0]
    # 0.9, 0.4 and 0.2 s of the servers and 0.8 s of the client in 2 s: 2.3 s for 8,000 calls, of 4 s.
    assert "| set @256 | 112 50 25 + 100 \\| 900 400 200 + 800 | 288 \\| 2,300 | 57 % \\| 57 % | 8.00 | 8.00 |" in costs
    assert "set @1 " not in costs  # what limits one caller is its way


def test_nothing_that_is_missing_is_passed_over() -> None:
    text = page.render(
        results(
            missing={"nats": "no such package"},
            failures=["get, 64 callers: it broke"],
            crashes=[{"after": "set", "writes": 5, "keys": 3, "there": 2}],
        )
    )
    assert "not measured: nats (no such package)" in text
    assert "it broke" in text
    assert "2 were as acknowledged or newer; 1 were not" in text
    assert "## Queues\n\nNot measured in this run." in text
    costs = page.render(results(rows=rounds("set", 1, [(1.0, 1.0)]))).partition("## What sets the rates")[2]
    assert "Not measured in this run." in costs.partition("\n## ")[0]


def test_a_run_that_means_little_says_so() -> None:
    assert "A trial" not in page.render(results())
    assert "of fewer than 5 pairs: not" in page.render(results(rounds=4))
    busy = {**results()["machine"], "load_at_start": 9.0}
    assert "fewer than 5 pairs and on a machine that was busy" in page.render(results(rounds=1, machine=busy))


def test_plots_are_well_formed_and_have_their_figures(tmp_path: Path) -> None:
    page.write(results(), tmp_path)
    links = re.findall(r"\]\((performance/\S+\.svg)\)", (tmp_path / "performance.md").read_text())
    assert len(links) == 3
    for link in links:
        ElementTree.parse(tmp_path / link)
    shown = (tmp_path / "performance" / "ratios.svg").read_text()
    assert "set @256" in shown
    assert ">10.00<" in shown
    assert ">0.25<" in shown


def test_plots_do_without_figures() -> None:
    for text in (plots.curves("a & b", ["1"], [("x", [None])], "across", "up"), plots.ratios("none", [], "l", "r")):
        assert "not measured" in "".join(ElementTree.fromstring(text).itertext())


def test_higher_is_further_up() -> None:
    text = plots.curves("rates", ["1", "2"], [("x", [10.0, 1_000.0])], "callers", "1/s")
    low, high = (float(circle) for circle in re.findall(r'cy="([\d.]+)"', text))
    assert high < low


def test_the_page_in_the_repository_was_made_by_this_source() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert page.HEAD in text
    assert page.METHOD in text
    assert page.COSTS in text
    assert page.GUARD in text
