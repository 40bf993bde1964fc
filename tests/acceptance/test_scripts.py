"""The scripts' own promises: they work from any folder, and .venv heals."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_scripts_are_executable_and_short() -> None:
    for script in ("demo", "test", "lint", "proto", "lock", "cluster", "chaos", "sim", "acceptance"):
        path = ROOT / "scripts" / script
        assert os.access(path, os.X_OK), f"{script} is not executable"
        assert len(path.read_text().splitlines()) <= 30, f"{script} is a program, not a script"


def test_a_script_works_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "test", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pytest" in done.stdout + done.stderr


def test_lock_file_is_pinned_hashed_and_names_no_registry() -> None:
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    pins = [line for line in lines if line and line[0].isalnum()]
    assert pins
    assert all("==" in pin for pin in pins)
    assert any(pin.startswith("pysyncobj==0.3.17 ") for pin in pins)
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    assert not [line for line in lines if "://" in line or line.startswith("-")]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("damage", ["emptied", "torn", "other lock"])
def test_a_damaged_environment_is_rebuilt(tmp_path: Path, damage: str) -> None:
    """On a copy of the project and of its environment."""
    project = tmp_path / "project"
    for part in ("scripts", "client", "raft", "node"):
        shutil.copytree(ROOT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, project / part)
    shutil.copytree(ROOT / "requirements", project / "requirements")

    def version() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [project / "scripts" / "test", "--version"], capture_output=True, text=True, timeout=1_000, check=False
        )

    venv = project / ".venv"
    shutil.copytree(ROOT / ".venv", venv, symlinks=True)
    sound = version()
    assert sound.returncode == 0, sound.stderr
    assert "setting up" not in sound.stderr
    if damage == "emptied":
        shutil.rmtree(venv)
        venv.mkdir()
    elif damage == "torn":
        (site,) = venv.glob("lib/python3*/site-packages")
        shutil.rmtree(site / "grpc")
        shutil.rmtree(site / "_pytest")
    else:
        with (project / "requirements" / "dev.txt").open("a") as lock:
            lock.write("# changed\n")
    done = version()
    assert done.returncode == 0, done.stderr
    assert "setting up" in done.stderr
    assert "pytest" in done.stdout + done.stderr
