"""The nemesis: whom it harms, and that it waits."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import cast

import pytest

from chaos import nemesis as module
from chaos.__main__ import main
from chaos.nemesis import FAULTS, Fault, Nemesis, parse_faults
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.dev_cluster import DevCluster


class FakeCluster:
    """Three nodes that obey. A node that was started needs a few looks until it has rejoined."""

    nodes = 3
    LOOKS = 3

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.down: set[int] = set()
        self.catching_up: dict[int, int] = {}
        self.struck_while_not_whole = 0
        self.killed = 0

    def leader(self, timeout: float = 20.0) -> int:
        return next(number for number in range(self.nodes) if number not in self.down)

    def pid(self, number: int) -> int:
        return self.pids[number]

    def kill(self, number: int) -> None:
        self.struck_while_not_whole += bool(self.catching_up)
        assert number not in self.down
        self.down.add(number)
        self.killed += 1

    def start(self, number: int) -> None:
        self.down.remove(number)
        self.catching_up[number] = self.LOOKS

    def peek(self, number: int) -> pb.StatusResponse | None:
        if number in self.down:
            return None
        looks = self.catching_up.pop(number, 0)
        if looks > 1:
            self.catching_up[number] = looks - 1
        answer = pb.StatusResponse(node_id=f"n{number}", term=1, commit_index=1_000, applied_index=1_000)
        answer.leader.node_id = "n0"
        if looks:
            answer.applied_index = 1
        return answer


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OUTAGE", "STAGGER", "QUIET", "SHORT_PAUSE", "LONG_PAUSE"):
        monkeypatch.setattr(module, name, (0.0, 0.002))
    monkeypatch.setattr(module, "LOOK", 0.001)


@pytest.fixture
def victims() -> Iterator[list[int]]:
    """Processes that may be frozen."""
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    yield [child.pid for child in children]
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.communicate()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("faults", [FAULTS, ("majority",), ("pause",)])
async def test_the_next_fault_comes_only_after_the_last_victims_have_rejoined(
    faults: tuple[Fault, ...], victims: list[int]
) -> None:
    cluster = FakeCluster(victims)
    nemesis = Nemesis(cast(DevCluster, cluster), Random(1), faults, lambda line: None)
    await nemesis.run(asyncio.Event(), time.monotonic() + 60, 10)
    counts = nemesis.counts
    assert counts.total() == 10
    assert cluster.struck_while_not_whole == 0
    assert not cluster.down
    pauses = counts["short pause"] + counts["long pause"]
    assert cluster.killed == counts["kill"] + counts["leader"] + 2 * counts["majority"] + 3 * counts["all"]
    if faults == FAULTS:
        assert [counts[kind] for kind in ("kill", "leader", "majority", "all")] == [2, 2, 2, 2], "each as often"
    assert pauses == (10 if faults == ("pause",) else 2 if faults == FAULTS else 0)


@pytest.mark.usefixtures("hurried")
async def test_one_seed_makes_one_choice(victims: list[int]) -> None:
    told: list[list[str]] = []
    for seed in (1, 1, 2):
        lines: list[str] = []
        cluster = cast(DevCluster, FakeCluster(victims))
        nemesis = Nemesis(cluster, Random(seed), FAULTS, lines.append)
        await nemesis.run(asyncio.Event(), time.monotonic() + 60, 15)
        told.append(lines)
    assert told[0] == told[1] != told[2]


async def test_it_ends_at_once_when_it_is_told_to_or_its_time_is_over() -> None:
    stop = asyncio.Event()
    cluster = cast(DevCluster, FakeCluster([0, 0, 0]))
    nemesis = Nemesis(cluster, Random(1), FAULTS, lambda line: None)
    await nemesis.run(stop, time.monotonic(), 10)
    stop.set()
    await nemesis.run(stop, time.monotonic() + 60, 10)
    assert not nemesis.counts


def test_faults_are_named() -> None:
    assert parse_faults("kill, pause,kill") == ("kill", "pause")
    for wrong in ("", "kil", "kill,,x"):
        with pytest.raises(ValueError):
            parse_faults(wrong)


@pytest.mark.parametrize("arguments", [["--faults", "fire"], ["--seconds", "0"], ["--lanes", "0"]])
def test_nonsense_on_the_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
