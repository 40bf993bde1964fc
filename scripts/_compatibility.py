"""Run as `scripts/compatibility`. Errors end it with a line that begins with `compatibility: FAILED`."""

import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PINNED = ("protobuf", "grpcio", "grpcio-health-checking", "grpcio-reflection")
"""What is installed at the end of its range; everything else is what pip chooses."""
PATIENCE = 900


def requirements() -> dict[str, Requirement]:
    """What a node and the command line need, by name."""
    with (ROOT / "pyproject.toml").open("rb") as source:
        project = tomllib.load(source)["project"]
    extras = project["optional-dependencies"]
    found = [Requirement(text) for text in (*project["dependencies"], *extras["node"], *extras["cli"])]
    return {one.name: one for one in found}


def lowest() -> list[str]:
    """Constraints that pin each of PINNED to the lowest version of its range."""
    known = requirements()
    pins = []
    for name in PINNED:
        (low,) = [one.version for one in known[name].specifier if one.operator == ">="]
        pins.append(f"{name}=={low}")
    return pins


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Its output. Errors: SystemExit."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\ncompatibility: FAILED at {' '.join(map(str, command))[:300]}")
    return done.stdout


def check(name: str, constraints: Sequence[str], wheel: Path, folder: Path) -> None:
    """Install under these constraints, and run the smoke test."""
    began = time.monotonic()
    venv.create(folder / name, with_pip=True)
    python = folder / name / "bin" / "python"
    file = folder / f"{name}.txt"
    file.write_text("\n".join(constraints))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", file]
    run([*pip, f"{wheel}[node,cli]"], folder)
    said = run([python, "-W", "error", ROOT / "scripts" / "_compatibility_smoke.py"], folder)
    print(f"compatibility: {name}: {said.splitlines()[-1]} ({time.monotonic() - began:.0f} s)", flush=True)


def main() -> None:
    wanted = sys.argv[1:] or ["lowest", "newest"]
    if not set(wanted) <= {"lowest", "newest"}:
        raise SystemExit("usage: scripts/compatibility [lowest|newest]")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"], ROOT)
        (wheel,) = (folder / "dist").glob("kvorum-*.whl")
        for name in wanted:
            check(name, lowest() if name == "lowest" else [], wheel, folder)
    print("compatibility: ok")


if __name__ == "__main__":
    main()
