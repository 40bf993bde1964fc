"""Node processes: refused configurations and folders, orderly ends, killed leaders and consumers."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import connect
from kvorum_node.dev_cluster import ClusterFailed, DevCluster
from tests.integration.cluster_fixture import ThreeNodes, pace_of
from tests.integration.node.raw import RawStream, enqueue_op, set_op, settle_op
from tests.pace import Pace

REFUSAL = 3.0
"""Seconds in which a node that cannot start must have said so, beyond what this machine needs to start the program."""
PATIENCE = 60.0

CONSUMER = """
import asyncio, sys
from kvorum.cluster import connect
from tests.integration.node.raw import settle_op
async def main():
    addresses = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in sys.argv[1].split(","))]
    backend = await connect(addresses, timeout=10)
    got = asyncio.Queue()
    consumer = await backend.consume("q", credits=10, concurrency=1, deliver=got.put_nowait)
    print("ready", flush=True)
    for number in range(10):
        delivery = await got.get()
        print(delivery.payload.decode(), flush=True)
        if number < 2:
            consumer.started(delivery.lease_id)
            await backend.write(settle_op(delivery), timeout=10)
            consumer.settled(delivery.lease_id)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def refusal(*arguments: str, cwd: Path, cluster: DevCluster | None = None) -> str:
    """Run a node that must refuse to start; its one line. `cluster`: its nodes have a part in it."""
    status, said, seconds = _run(*arguments, cwd=cwd, cluster=cluster)
    if seconds >= REFUSAL:
        assert seconds - _run("--help", cwd=cwd)[2] < REFUSAL
    assert status != 0
    assert "Traceback" not in said
    lines = said.strip().splitlines()
    assert lines
    return lines[-1]


def _run(*arguments: str, cwd: Path, cluster: DevCluster | None = None) -> tuple[int, str, float]:
    """Status, standard error, and seconds that it took but for those in which it waited for a core."""
    others = [] if cluster is None else [cluster.pid(number) for number in range(cluster.nodes)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvorum_node", *arguments],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    pace = Pace(lambda: [process.pid, *others])
    try:
        while True:
            try:
                _, said = process.communicate(timeout=0.05)
                return process.returncode, said, pace.seconds()
            except subprocess.TimeoutExpired:
                assert pace.seconds() < PATIENCE, "it does not end"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Configurations of three nodes that do not run."""
    DevCluster(tmp_path).write_configs()
    return tmp_path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path, lease_ms=1_000) as cluster:
        yield cluster


# ---- refused to start


@pytest.mark.parametrize("which", ["client_listen", "peer_listen", "http_listen"])
def test_p38_a_taken_port_is_named_within_3_s(folder: Path, which: str) -> None:
    """P38: start a second server on the same port → exit ≠ 0 within 3 s, names the port."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal("--config", "n1.toml", f"--{which.replace('_', '-')}", f"127.0.0.1:{port}", cwd=folder)
        assert f"port {port} is taken" in line


def test_p38_a_second_node_on_the_same_configuration(cluster: ThreeNodes) -> None:
    """P38, with a real node as the other server."""
    port = cluster.client_address(0).rpartition(":")[2]
    assert f"port {port} is taken" in refusal("--config", "n1.toml", cwd=cluster.base_dir, cluster=cluster)
    cluster.leader()


def test_p39_a_node_twice_among_its_peers(folder: Path) -> None:
    """P39: peers contain self or a duplicate → refused at start."""
    file = folder / "n1.toml"
    text = file.read_text()
    head, first, rest = text.partition("[[members]]")
    own = rest.split("[[members]]")[0]
    file.write_text(head + first + own.replace('"n1"', '"n4"') + first + rest)
    line = refusal("--config", "n1.toml", cwd=folder)
    assert "n1" in line
    assert "n4" in line
    assert "same address" in line
    file.write_text(head + first + own + first + rest)
    assert "twice" in refusal("--config", "n1.toml", cwd=folder)


def test_an_unknown_key_is_named_with_its_nearest_match(folder: Path) -> None:
    file = folder / "n1.toml"
    file.write_text("hartbeat_ms = 100\n" + file.read_text())
    line = refusal("--config", "n1.toml", cwd=folder)
    assert "'hartbeat_ms'" in line
    assert "'heartbeat_ms'" in line


def test_other_places_are_refused(folder: Path) -> None:
    assert "none.toml" in refusal("--config", "none.toml", cwd=folder)
    (folder / "app.kv").mkdir()
    (folder / "app.kv" / "data.mdb").write_bytes(b"")
    assert "embedded" in refusal("--config", "n1.toml", "--data-dir", "app.kv", cwd=folder)
    assert "cannot use" in refusal("--config", "n1.toml", "--data-dir", "n1.toml", cwd=folder)


def test_folders_of_another_node_or_cluster_are_refused(tmp_path: Path, cluster: ThreeNodes) -> None:
    cluster.terminate(0)
    line = refusal("--config", "n1.toml", "--data-dir", "n2-copy", cwd=_with_copy(cluster, 1))
    assert "n2" in line
    with ThreeNodes(tmp_path / "other") as other:
        foreign = other.terminate(0)
        assert foreign == 0
        shutil.rmtree(cluster.data_dir(0))
        shutil.copytree(other.data_dir(0), cluster.data_dir(0))
    # Its peers must refuse it, so it may take until it has met one.
    assert "cluster" in refusal("--config", "n1.toml", cwd=cluster.base_dir, cluster=cluster)
    cluster.leader()


def test_an_emptied_folder_is_refused(cluster: ThreeNodes) -> None:
    cluster.terminate(0)
    shutil.rmtree(cluster.data_dir(0))
    line = refusal("--config", "n1.toml", cwd=cluster.base_dir, cluster=cluster)
    assert "n1" in line or "folder" in line
    cluster.leader()


def _with_copy(cluster: ThreeNodes, number: int) -> Path:
    cluster.terminate(number)
    shutil.copytree(cluster.data_dir(number), cluster.base_dir / f"n{number + 1}-copy")
    cluster.start(number)
    return cluster.base_dir


# ---- the helper


def test_another_program_takes_over_a_cluster_from_its_folder(cluster: ThreeNodes) -> None:
    other = DevCluster(cluster.base_dir)
    assert [other.pid(number) for number in range(3)] == [cluster.pid(number) for number in range(3)]
    assert other.url == cluster.url
    victim = other.leader()
    other.kill(victim)
    assert other.pid(victim) == 0
    assert other.leader() != victim
    other.start(victim)
    assert other.status(victim).node_id == f"n{victim + 1}"
    other.stop()
    assert [other.pid(number) for number in range(3)] == [0, 0, 0]


def test_a_node_that_dies_at_start_is_told_with_its_log(folder: Path) -> None:
    cluster = DevCluster(folder)
    file = cluster.config(1)
    file.write_text("nonsense = 1\n" + file.read_text())
    with pytest.raises(ClusterFailed, match="nonsense"):
        cluster.start_all()
    cluster.stop()


def test_the_command_line_runs_a_node(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kvorum.cli", "node", "--config", "none.toml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 78
    assert ended.stderr.strip() == "kvorum node: cannot read none.toml: No such file or directory"
    shown = subprocess.run(
        [sys.executable, "-m", "kvorum.cli", "node", "--help"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert "--data-dir" in shown.stdout


# ---- the end of a node


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_node_ends_in_order(cluster: ThreeNodes, how: signal.Signals) -> None:
    leader = cluster.leader()
    pace = pace_of(cluster)
    assert cluster._end(leader, how) == 0
    assert pace.seconds() < 5
    assert (cluster.data_dir(leader) / "state" / "CLEAN").exists()
    cluster.leader()
    cluster.start(leader)
    log = cluster.log(leader).read_text()
    assert "Traceback" not in log
    assert "anew" not in log


async def test_streams_are_told_that_a_node_ends(cluster: ThreeNodes) -> None:
    leader = cluster.leader()
    async with RawStream(cluster.client_address(leader)) as stream:
        await stream.greet()
        await stream.open_session()
        ended = asyncio.get_running_loop().run_in_executor(None, cluster.terminate, leader)
        seen = await stream.end()
        assert "stops" in seen.error
        assert not seen.error_is_final
        assert await ended == 0


async def test_a_killed_leader_is_replaced_and_comes_back(cluster: ThreeNodes) -> None:
    backend = await connect(cluster.addresses, timeout=10)
    await backend.write(set_op(b"\x02before\x00"), timeout=PATIENCE)
    victim = cluster.leader()
    followers = [number for number in range(3) if number != victim]
    async with RawStream(cluster.client_address(followers[0])) as watcher:
        await watcher.greet()
        await watcher.send(pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[b"\x02after\x00"])]))
        await watcher.until("watches")
        await asyncio.to_thread(cluster.kill, victim)
        await backend.write(set_op(b"\x02after\x00"), timeout=PATIENCE)
        # The watch has lived through the election, and the change of leader was pushed to its stream.
        assert (await watcher.until("watches", 2))[1].entries[0].versionstamp
        assert watcher.seen.leader.address in {cluster.client_address(number) for number in followers}
    await asyncio.to_thread(cluster.start, victim)
    deadline = time.monotonic() + PATIENCE
    while len(set(found := await asyncio.to_thread(cluster.hashes))) > 1:
        assert time.monotonic() < deadline, found
    await backend.close()


async def test_watches_end_without_a_majority(cluster: ThreeNodes) -> None:
    survivor = cluster.leader()
    async with RawStream(cluster.client_address(survivor)) as stream:
        await stream.greet()
        await stream.send(pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[b"\x02k\x00"])]))
        await stream.until("watches")
        for number in range(3):
            if number != survivor:
                await asyncio.to_thread(cluster.kill, number)
        ended = (await stream.until("watches", 2))[1]
        assert ended.error
        assert ended.retryable
        await stream.send(pb.ClientFrame(reads=[pb.Read(id=1, keys=[b"\x02k\x00"])]))
        assert (await stream.until("reads"))[0].status == pb.READ_STATUS_NO_LEADER
        await stream.send(
            pb.ClientFrame(reads=[pb.Read(id=2, keys=[b"\x02k\x00"], consistency=pb.CONSISTENCY_EVENTUAL)])
        )
        assert (await stream.until("reads", 2))[1].status == pb.READ_STATUS_OK


# ---- under load


async def test_p06_parallel_writers_over_the_restart_of_a_node(cluster: ThreeNodes) -> None:
    """P06: 200 parallel writers, restart one node in the middle → no crash; retryable error at worst."""
    backend = await connect(cluster.addresses, timeout=10)
    counts = [0] * 200
    restarted = asyncio.Event()
    begun = asyncio.Event()

    async def writer(number: int) -> None:
        while not restarted.is_set() or counts[number] < 5:
            op = pb.AtomicWrite()
            op.mutations.add(
                key=b"\x02p06-%d\x00" % number,
                type=pb.MUTATION_TYPE_SUM,
                value=(1).to_bytes(8, "little"),
                encoding=pb.VALUE_ENCODING_LE64,
            )
            try:
                await backend.write(op.SerializeToString(), timeout=PATIENCE)
                counts[number] += 1
            except errors.KvorumError as error:
                assert error.retryable, error
            if sum(counts) > 1_000:
                begun.set()

    async def director() -> None:
        await begun.wait()
        victim = cluster.leader()
        await asyncio.to_thread(cluster.kill, victim)
        await asyncio.to_thread(cluster.start, victim)
        await asyncio.to_thread(cluster.leader)
        restarted.set()

    await asyncio.gather(director(), *[writer(number) for number in range(200)])
    for begin in range(0, 200, 10):
        read = pb.Read(keys=[b"\x02p06-%d\x00" % number for number in range(begin, begin + 10)])
        entries = (await backend.read(read, timeout=PATIENCE)).entries
        stored = [int.from_bytes(entry.value, "little") for entry in entries]
        assert stored == counts[begin : begin + 10]
    for number in range(3):
        assert cluster.pid(number)
        assert "Traceback" not in cluster.log(number).read_text()
    await backend.close()


async def test_p76_a_killed_consumers_messages_are_delivered_elsewhere(cluster: ThreeNodes) -> None:
    """P76: consumer prefetches 10, killed after 2 acks → the other 8 delivered elsewhere ≤ lease + 1 s."""
    backend = await connect(cluster.addresses, timeout=10)
    addresses = ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    root = Path(__file__).parents[3]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSUMER, addresses, stdout=subprocess.PIPE, cwd=root
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    for number in range(10):
        await backend.write(enqueue_op(b"%d" % number), timeout=PATIENCE)
    taken = [int(await asyncio.wait_for(child.stdout.readline(), PATIENCE)) for _ in range(10)]
    assert sorted(taken) == list(range(10))
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    await backend.consume("q", credits=20, concurrency=20, deliver=got.put_nowait)
    # It prints a message before it settles it, and takes the next one after: ten lines mean that both acks were
    # answered.
    pace = pace_of(cluster)
    child.kill()
    await child.wait()
    found = [await asyncio.wait_for(got.get(), PATIENCE) for _ in range(8)]
    assert pace.seconds() <= 1.0 + 1.0
    assert sorted(int(delivery.payload) for delivery in found) == sorted(taken[2:])
    for delivery in found:
        outcome = await backend.write(settle_op(delivery), timeout=PATIENCE)
        assert outcome.result.outcome == pb.OUTCOME_DONE
    assert got.empty()
    await backend.close()
