"""The library that is loaded into nodes: what is ordered happens, is counted, and nothing else happens."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.shim import COMPILER, Shim, build, environment_with

LOOK = """
import json, os, sys, threading, time
monotonic = time.monotonic()
waited = threading.Event().wait(0.05)
failed = []
with open(sys.argv[1], "wb") as file:
    for _ in range(2):
        try:
            os.fdatasync(file.fileno())
            failed.append(0)
        except OSError as error:
            failed.append(error.errno)
print(json.dumps({"wall": time.time(), "monotonic": [monotonic, time.monotonic()], "failed": failed}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"there is no {COMPILER}")
    return build(tmp_path_factory.mktemp("shim"))


def look(shim: Shim, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", LOOK, str(folder / "file")]
    done = subprocess.run(command, env=environment_with(shim), capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_without_an_order_nothing_happens(library: Path, tmp_path: Path) -> None:
    shim = Shim(library, tmp_path / "control")
    seen = look(shim, tmp_path)
    assert abs(seen["wall"] - time.time()) < 30
    assert seen["failed"] == [0, 0]
    assert (shim.asked, shim.delayed, shim.failed) == (0, 0, 0)


@pytest.mark.parametrize("jump", [86_400.0, -86_400.5])
def test_only_the_wall_clock_is_wrong(library: Path, tmp_path: Path, jump: float) -> None:
    shim = Shim(library, tmp_path / "control")
    shim.set_clock(jump)
    before = time.monotonic()
    seen = look(shim, tmp_path)
    assert abs(seen["wall"] - time.time() - jump) < 30
    begin, end = seen["monotonic"]
    assert before < begin < end < time.monotonic(), "a wait ended when it should"
    assert shim.asked > 0
    assert shim.failed == 0


def test_so_many_syncs_fail_and_all_are_slow(library: Path, tmp_path: Path) -> None:
    shim = Shim(library, tmp_path / "control")
    shim.fail_syncs(1)
    shim.delay_syncs(0.001)
    assert look(shim, tmp_path)["failed"] == [5, 0]
    assert (shim.failed, shim.delayed) == (1, 2)
