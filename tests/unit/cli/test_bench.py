"""`kvorum bench`: its figures, and that it leaves nothing behind."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from kvorum.cli import bench
from kvorum.cli.bench import Latencies
from kvorum.cli.group import kvorum


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_shares_are_within_a_hundredth_of_the_exact_ones(times: list[float], part: float) -> None:
    latencies = Latencies()
    for seconds in times:
        latencies.add(seconds)
    exact = sorted(times)[math.ceil(part * len(times)) - 1]
    assert exact * 0.999_999 <= latencies.share(part) <= exact * 1.011
    assert (latencies.count, latencies.most) == (len(times), max(times))


def test_none_have_no_share() -> None:
    assert Latencies().share(0.5) == 0.0


def run(folder: Path, *words: str, status: int = 0) -> Result:
    result = CliRunner(env={"KVORUM_URL": str(folder / "data.kv")}).invoke(kvorum, words)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_it_says_that_it_writes_measures_and_removes_its_keys(tmp_path: Path) -> None:
    run(tmp_path, "set", '["kept"]', "1")
    result = run(tmp_path, "bench", "--seconds", "0.1", "--callers", "1,4", "--json")
    assert "this writes up to 1,000 keys" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["call"], row["callers"]) for row in found] == [("set", 1), ("get", 1), ("set", 4), ("get", 4)]
    for row in found:
        assert row["calls"] > 0
        assert row["errors"] == 0
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert run(tmp_path, "count").stdout == "1\n"


def test_its_keys_are_removed_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(kv: object, *rest: object) -> list[bench.Round]:
        await kv.set(("kvorum-bench", rest[0][1], 1), 1)  # type: ignore[attr-defined, index]
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_measure", interrupted)
    run(tmp_path, "bench", status=130)
    assert run(tmp_path, "count").stdout == "0\n"


@pytest.mark.parametrize("callers", ["", "0", "1,,2", "-1", "many", "99999999", "٣"])
def test_wrong_callers(tmp_path: Path, callers: str) -> None:
    assert "--callers takes numbers" in run(tmp_path, "bench", "--callers", callers, status=2).stderr
