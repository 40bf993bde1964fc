"""Cut networks and cut power. Both need root and a kernel that gives namespaces and loop devices: where it does not,
these tests say so and are skipped; the simulators cover the same faults everywhere."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from chaos.faults import FAULTS, NEED, category
from chaos.isolation import Kind, missing
from tests.integration.chaos.command import run, start


def need(kind: Kind) -> None:
    reason = missing(kind)
    if reason is not None:
        pytest.skip(f"the kernel does not give what --{kind} needs here: {reason}")


@pytest.mark.timeout(600)
def test_every_kind_of_fault_once_loses_nothing(tmp_path: Path) -> None:
    # P30: pages that were not synced are gone after the restart: no double vote, no lost acknowledgement
    # P43: SIGBUS with writemap when the disk is full: an error, no crash
    need("net")
    need("disks")
    arguments = ("--minutes", "9", "--once", "--longest", "1", "--strict", "--clients", "1", "--thinking", "0.1")
    numbers = run(*arguments, "--seed", "4", folder=tmp_path, timeout=590)
    absent = ["other", *(kind for kind in ("links", "shim") if missing(kind) is not None)]
    possible = {fault for fault in FAULTS if NEED.get(category(fault)) not in absent}
    assert {kind for kind in numbers if kind in FAULTS} == possible, "each came, and did something"
    assert numbers["changes"] >= 3, "a node was added, promoted, and one was taken out"
    (folder,) = tmp_path.iterdir()
    assert "</svg>" in (folder / "timeline.svg").read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_was_interrupted(tmp_path: Path, how: signal.Signals) -> None:
    need("net")
    need("disks")
    arguments = ("--net", "namespaces", "--disks", "loop", "--strict", "--seconds", "60")
    process = start(*arguments, "--faults", "kills,slow,lossy,power-cuts,syncs", folder=tmp_path)
    try:
        assert process.stdout is not None
        while "crew" not in (said := _processes(tmp_path)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert "kvorum_node" in said
        process.send_signal(how)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == (130 if how != signal.SIGKILL else -how)
    deadline = time.monotonic() + 60
    while _processes(tmp_path) or _loop_devices(tmp_path):
        assert time.monotonic() < deadline, (_processes(tmp_path), _loop_devices(tmp_path))
        time.sleep(0.05)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def _processes(folder: Path) -> str:
    """Command lines that have to do with the run in that folder."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return "\n".join(found)


def _loop_devices(folder: Path) -> str:
    return "\n".join(
        line
        for line in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout.splitlines()
        if str(folder) in line
    )
