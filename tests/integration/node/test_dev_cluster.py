"""The cluster for demos and tests: what it says when it cannot start, and its command line over several invocations."""

import contextlib
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import ClusterFailed, DevCluster


def test_a_taken_port_is_named_even_if_another_cluster_answers_on_it(tmp_path: Path) -> None:
    other = DevCluster(tmp_path / "other")
    other.start_all()
    try:
        addresses = [other.client_address(number) for number in range(3)]
        taken = [(int(address.rpartition(":")[2]), free_block()) for address in addresses]
        mine = DevCluster(tmp_path / "mine", ports=taken)
        with pytest.raises(ClusterFailed, match=f"node 1 cannot use {addresses[0]}: Address already in use"):
            mine.start_all()
        assert mine.pid(0) == 0
        assert other.status(other.leader()).role == "leader"
    finally:
        other.stop()


def command_line(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvorum_node.dev_cluster", "--dir", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_keeps_data_from_run_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    first = free_block()
    assert command_line(folder, "status") == (1, f"there is no cluster in {folder}; start one with: up\n")
    status, output = command_line(folder, "up", "--port", str(first))
    assert status == 0, output
    try:
        assert f"kvorum://127.0.0.1:{first},127.0.0.1:{first + 10},127.0.0.1:{first + 20}" in output
        assert command_line(folder, "kill", "2") == (0, "node 2 is dead\n")
        assert "n2  down" in command_line(folder, "status")[1]
        assert command_line(folder, "start", "2") == (0, "node 2 runs\n")
        assert command_line(folder, "kill", "4") == (2, "nodes are numbered 1 to 3\n")
        assert "down" not in command_line(folder, "status")[1]
    finally:
        assert command_line(folder, "down", "--wipe") == (0, "all nodes have ended\n")
    assert not folder.exists()


def free_block() -> int:
    """A port that is free together with those of two more nodes, 10 and 20 above, and the two above each of them."""
    for first in random.Random().sample(range(10_000, 32_000), 200):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(9):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", first + 10 * (number // 3) + number % 3))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
