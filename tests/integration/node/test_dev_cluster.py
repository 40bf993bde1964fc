"""The cluster for demos and tests: what it says when it cannot start, and its command line over several invocations."""

import contextlib
import gc
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import ClusterFailed, DevCluster, free_ports
from kvorum_node.dev_command import main


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


def command_line(folder: Path | str, *arguments: str, cwd: Path | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvorum_node.dev", "--dir", str(folder), *arguments],
        cwd=cwd,
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
        assert command_line(folder, "kill", "2") == (1, "node 2 does not run: nothing was killed\n")
        assert command_line(folder, "start", "n2") == (0, "node 2 runs\n")
        assert command_line(folder, "kill", "4") == (2, "nodes are numbered 1 to 3\n")
        assert "down" not in command_line(folder, "status")[1]
    finally:
        assert command_line(folder, "down", "--wipe") == (0, "all nodes have ended\n")
    assert not folder.exists()


@pytest.mark.parametrize("port", ["0", "65514", "70000", "-1", "x", "٣"])
def test_ports_that_are_none_are_refused_before_anything_is_written(port: str, tmp_path: Path) -> None:
    status, output = command_line(tmp_path / "cluster", "up", "--port", port)
    assert status == 2 and "Traceback" not in output, output
    assert not (tmp_path / "cluster").exists()


def test_the_ports_of_a_cluster_that_is_there_stay(tmp_path: Path) -> None:
    """Somebody whose first try met a taken port would be told of that one again and again."""
    cluster = DevCluster(tmp_path / "cluster", ports=[(20_001, 20_003), (20_011, 20_013), (20_021, 20_023)])
    cluster.write_configs()
    status, output = command_line(cluster.base_dir, "up", "--port", "20101")
    assert (status, "has its ports, from 127.0.0.1:20001 on" in output, "down --wipe" in output) == (2, True, True)
    assert [cluster.pid(number) for number in range(3)] == [0, 0, 0]


def test_a_folder_is_the_same_by_whatever_path_it_is_named(tmp_path: Path) -> None:
    folder, inside, link = tmp_path / "cluster", tmp_path / "inside", tmp_path / "link"
    inside.mkdir()
    link.symlink_to(folder)
    status, output = command_line("../cluster", "up", "--port", str(free_block()), cwd=inside)
    assert status == 0, output
    try:
        assert command_line(link, "kill", "n1") == (0, "node 1 is dead\n")
        shown = command_line("cluster", "status", cwd=tmp_path)[1]
        assert [" pid " in line for line in shown.splitlines()] == [False, True, True]
        # A reader that goes away is no error: what was to be done is done.
        with subprocess.Popen(
            [sys.executable, "-m", "kvorum_node.dev", "--dir", str(link), "status"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()
            assert running.stderr.read() == b""
            assert running.wait(60) == 0
    finally:
        assert command_line("../cluster", "down", "--wipe", cwd=inside) == (0, "all nodes have ended\n")
    assert not folder.exists()


def test_no_data_is_removed_under_a_node_that_the_pid_file_does_not_name(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "cluster")
    cluster.start_all()
    try:
        pid_file = cluster.base_dir / "n2.pid"
        pid = pid_file.read_text()
        pid_file.unlink()
        told = f"node 2 runs, but not as the process that {pid_file} names: end it yourself"
        status, output = command_line(cluster.base_dir, "kill", "2")
        assert (status, told in output) == (1, True), output
        status, output = command_line(cluster.base_dir, "down", "--wipe")
        assert (status, told in output) == (1, True), output
        assert cluster.data_dir(1).is_dir()
        assert cluster.pid(1) == int(pid)
    finally:
        cluster.stop()


@pytest.mark.parametrize(("token", "told"), [("secret", "the token in $KVORUM_KV_CONNECT_TOKEN"), ("", "any token")])
def test_up_says_which_token_the_nodes_take(
    token: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DevCluster, "start_all", DevCluster.write_configs)
    monkeypatch.setenv("KVORUM_KV_CONNECT_TOKEN", token)
    assert main(["--dir", str(tmp_path), "up"]) == 0
    assert f"take any of these URLs, and {told}:" in capsys.readouterr().out


def test_ports_with_a_holder_are_not_found_by_others_and_may_be_listened_on() -> None:
    def bound(port: int, *, reuse: bool) -> bool:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                return False
            other.listen()
            return True

    class Holder:
        pass

    holder = Holder()
    (port,) = free_ports(1, holder)
    assert (bound(port, reuse=False), bound(port, reuse=True)) == (False, True)
    del holder
    gc.collect()
    assert bound(port, reuse=False)


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
