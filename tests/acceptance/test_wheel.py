"""The wheel that users install: complete, importable in an empty environment, and light where it must be."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("kvorum-*.whl")
    return built


def test_the_wheel_holds_all_three_packages_and_their_type_markers(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("kvorum", "kvorum_raft", "kvorum_node"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "kvorum_command/__init__.py" in names
    assert "kvorum/_proto/kvorum_pb2.py" in names
    assert "kvorum_raft/_proto/raft_pb2.py" in names
    assert not [name for name in names if name.startswith(("tests", "examples", "scripts", "bench"))]


def test_installed_in_an_empty_environment_the_client_imports_and_says_what_the_embedded_store_needs(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    program = """
import asyncio, importlib.util, kvorum, kvorum.sync
assert importlib.util.find_spec("lmdb") is None and importlib.util.find_spec("pysyncobj") is None
async def main():
    try:
        async with kvorum.open_kv("app.kv"):
            pass
    except ModuleNotFoundError as error:
        print(error)
asyncio.run(main())
"""
    assert "kvorum[node]" in run(python, "-W", "error", "-c", program, cwd=tmp_path)
    installed = run(python, "-c", "import kvorum; print(kvorum.__file__)", cwd=tmp_path)
    assert str(tmp_path) in installed
    told = subprocess.run(
        [python.with_name("kvorum"), "get"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == 'kvorum: the command line needs the extra "cli": pip install "kvorum[cli]"\n'
