"""Short runs on real processes, by the command that people use. P57: replicas that differ after kills under load."""

from pathlib import Path

from chaos import linearizability, serializability
from chaos.history import load
from tests.integration.chaos.command import run


def test_kills_and_pauses_lose_nothing(tmp_path: Path) -> None:
    numbers = run("--faults", "kill,leader,pause", "--most-faults", "3", "--seed", "5", folder=tmp_path, timeout=280)
    assert numbers["kills"] == 2
    (folder,) = tmp_path.iterdir()
    history = list(load(folder / "resolved.jsonl"))
    assert len(history) == numbers["operations"]
    assert linearizability.check(history).ok
    assert serializability.check(history).ok


def test_members_that_come_and_go_lose_nothing(tmp_path: Path) -> None:
    # P66: a membership change with partitions and kills lost 5 of 5,236 acknowledged writes elsewhere
    numbers = run("--membership", "--seconds", "1", "--seed", "5", folder=tmp_path, timeout=280)
    assert numbers["changes"] >= 3, "a node was added, promoted, and one was taken out"
