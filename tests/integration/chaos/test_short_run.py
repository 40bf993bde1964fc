"""Short runs on real processes, by the command that people use. P57: replicas that differ after kills under load."""

import shutil
from pathlib import Path

import kvorum
from chaos import linearizability, serializability
from chaos.history import load
from tests.integration.chaos.command import ROOT, run


def test_kills_and_pauses_lose_nothing(tmp_path: Path) -> None:
    numbers = run("--faults", "kill,leader,pause", "--most-faults", "3", "--seed", "5", folder=tmp_path, timeout=280)
    assert numbers["kills"] == 2
    (folder,) = tmp_path.iterdir()
    history = list(load(folder / "resolved.jsonl"))
    assert len(history) == numbers["operations"]
    assert linearizability.check(history).ok
    assert serializability.check(history).ok


def test_nodes_that_change_their_version_under_load_lose_nothing(tmp_path: Path) -> None:
    """The other version is this one, by another name: what is tested is the way there and back."""
    other = tmp_path / "other"
    for name in ("client", "node", "raft"):
        shutil.copytree(ROOT / name, other / name)
    (other / "client/kvorum/_version.py").write_text('__version__ = "0.0.7"\n')
    runs = tmp_path / "runs"
    arguments = ("--faults", "version,kill", "--other", str(other), "--most-faults", "8", "--seconds", "60")
    numbers = run(*arguments, "--seed", "5", folder=runs, timeout=280)
    assert numbers["versions"] >= 3
    assert numbers["kills"] >= 3
    (folder,) = runs.iterdir()
    for version in ("0.0.7", kvorum.__version__):
        assert any(f"version {version}" in log.read_text() for log in folder.glob("n?.log"))


def test_members_that_come_and_go_lose_nothing(tmp_path: Path) -> None:
    # P66: a membership change with partitions and kills lost 5 of 5,236 acknowledged writes elsewhere
    numbers = run("--membership", "--seconds", "1", "--seed", "5", folder=tmp_path, timeout=280)
    assert numbers["changes"] >= 3, "a node was added, promoted, and one was taken out"
