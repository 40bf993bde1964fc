"""Cut networks and cut power. Both need root and a kernel that gives namespaces and loop devices: where it does not,
these tests say so and are skipped; the simulators cover the same faults everywhere."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from chaos.isolation import Kind, missing
from tests.integration.chaos.command import run, start


def need(kind: Kind) -> None:
    reason = missing(kind)
    if reason is not None:
        pytest.skip(f"the kernel does not give what --{kind} needs here: {reason}")


@pytest.mark.timeout(90)
def test_cut_networks_lose_nothing(tmp_path: Path) -> None:
    need("net")
    arguments = ("--net", "namespaces", "--strict", "--faults", "cuts", "--most-faults", "3")
    numbers = run(*arguments, "--seed", "4", folder=tmp_path, timeout=80)
    assert numbers["cuts"] == 3


@pytest.mark.timeout(90)
def test_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    # P30: pages that were not synced are gone after the restart: no double vote, no lost acknowledgement
    need("disks")
    arguments = ("--disks", "loop", "--strict", "--faults", "power-cuts", "--most-faults", "3")
    numbers = run(*arguments, "--seed", "3", folder=tmp_path, timeout=80)
    assert numbers["power_cuts"] == 3


@pytest.mark.timeout(90)
def test_a_full_and_a_hanging_disk_kill_no_process_and_lose_nothing(tmp_path: Path) -> None:
    # P43: SIGBUS with writemap when the disk is full: an error, no crash
    need("disks")
    arguments = ("--disks", "loop", "--strict", "--faults", "bad-disks", "--most-faults", "2")
    numbers = run(*arguments, "--seed", "1", folder=tmp_path, timeout=80)
    assert numbers["bad_disks"] == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_was_interrupted(tmp_path: Path, how: signal.Signals) -> None:
    need("net")
    need("disks")
    process = start("--net", "namespaces", "--disks", "loop", "--strict", "--seconds", "60", folder=tmp_path)
    try:
        assert process.stdout is not None
        while "crew" not in (said := _processes(tmp_path)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert "kvorum_node" in said
        process.send_signal(how)
        process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == (130 if how != signal.SIGKILL else -how)
    deadline = time.monotonic() + 10
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
