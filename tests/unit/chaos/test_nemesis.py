"""The nemesis: whom it harms, and that it waits."""

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import cast

import pytest

from chaos import nemesis as module
from chaos.__main__ import main
from chaos.arena import Arena
from chaos.faults import FAULTS, KINDS, Fault, by_category, category, deck, parse_faults
from chaos.nemesis import DidNotRejoin, Nemesis
from kvorum._proto import kvorum_pb2 as pb

HERE: tuple[Fault, ...] = (*KINDS["kills"], *KINDS["pauses"], *KINDS["power-cuts"])
"""Faults that need no network of one's own."""


class FakeCluster:
    """Three nodes that obey. A node that was started needs a few looks until it has rejoined."""

    nodes = 3
    LOOKS = 3
    lab = None

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.present = [0, 1, 2]
        self.dark: set[int] = set()
        self.power_cuts: list[int] = []
        self.down: set[int] = set()
        self.catching_up: dict[int, int] = {}
        self.struck_while_not_whole = 0
        self.killed = 0

    def leader(self, timeout: float = 20.0) -> int:
        running = [number for number in self.present if number not in self.down]
        return next((number for number in running if number not in self.catching_up), running[0])

    def pid(self, number: int) -> int:
        return self.pids[number]

    def kill(self, number: int) -> None:
        self.struck_while_not_whole += bool(self.catching_up)
        assert number not in self.down
        self.down.add(number)
        self.killed += 1

    def cut_power(self, numbers: list[int], *, frozen: bool, seconds: float) -> None:
        self.power_cuts.append(len(numbers))
        for number in numbers:
            self.kill(number)
            self.dark.add(number)
        self.killed -= len(numbers)

    @property
    def losses(self) -> int:
        return sum(self.power_cuts)

    def restore_power(self, number: int) -> None:
        self.dark.remove(number)

    def start(self, number: int) -> None:
        assert number not in self.dark
        self.down.remove(number)
        self.catching_up[number] = self.LOOKS

    def peek(self, number: int) -> pb.StatusResponse | None:
        if number in self.down:
            return None
        looks = self.catching_up.pop(number, 0)
        if looks > 1:
            self.catching_up[number] = looks - 1
        leader = self.leader()
        away = looks > 2 or (looks and number == leader)
        answer = pb.StatusResponse(node_id=f"n{number}", term=1, commit_index=1_000, last_log_index=1_001)
        answer.applied_index = 1 if looks else 1_000
        answer.leader.node_id = "" if away else f"n{leader}"
        if number == leader:
            for other in self.present:
                if other != number and other not in self.down:
                    match = 1 if other in self.catching_up else 1_000
                    answer.peers.add(node_id=f"n{other}", connected=True, match_index=match, voter=True)
        return answer


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OUTAGE", "BRIEF_OUTAGE", "STAGGER", "QUIET", "BRIEF_QUIET", "DEAD_DISK", "SHORT_PAUSE", "LONG_PAUSE"):
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
@pytest.mark.parametrize("faults", [HERE, ("majority",), ("pause",), ("power-two",)])
async def test_the_next_fault_comes_only_after_the_last_victims_have_rejoined(
    faults: tuple[Fault, ...], victims: list[int]
) -> None:
    cluster = FakeCluster(victims)
    nemesis = Nemesis(cast(Arena, cluster), Random(1), faults, lambda line: None)
    await nemesis.run(asyncio.Event(), time.monotonic() + 60, 16)
    counts = nemesis.counts
    assert counts.total() == len(nemesis.rejoins) == 16
    assert cluster.struck_while_not_whole == 0
    assert not cluster.down
    assert cluster.killed == counts["kill"] + counts["leader"] + 2 * counts["majority"] + 3 * counts["all"]
    assert Counter(cluster.power_cuts) == Counter({1: counts["power"], 2: counts["power-two"], 3: counts["power-all"]})
    if faults == HERE:
        assert set(counts.values()) == {2}, "each as often"


@pytest.mark.usefixtures("hurried")
async def test_a_victim_that_never_holds_what_is_committed_is_no_success(
    victims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    cluster = FakeCluster(victims)
    cluster.LOOKS = 1_000_000
    nemesis = Nemesis(cast(Arena, cluster), Random(1), ("kill",), lambda line: None)
    with pytest.raises(DidNotRejoin):
        await nemesis.run(asyncio.Event(), time.monotonic() + 60, 16)
    assert not nemesis.counts


@pytest.mark.usefixtures("hurried")
async def test_numbers_that_are_wanted_come_or_are_missed(victims: list[int]) -> None:
    for seconds, missed in ((3.0, []), (0.0, ["0 of 30 kills", "0 of 4 power-cuts"])):
        cluster = cast(Arena, FakeCluster(victims))
        nemesis = Nemesis(cluster, Random(1), HERE, lambda line: None, {"kills": 30, "power-cuts": 4})
        await nemesis.run(asyncio.Event(), time.monotonic() + seconds, 1_000)
        assert nemesis.short_of() == missed


@pytest.mark.usefixtures("hurried")
async def test_a_fault_that_does_nothing_is_told_and_so_is_one_that_does_not_come(victims: list[int]) -> None:
    async def nothing() -> int:
        return 0

    async def something() -> int:
        return 7

    lines: list[str] = []
    nemesis = Nemesis(cast(Arena, FakeCluster(victims)), Random(1), ("kill", "backup-restart", "change"), lines.append)
    nemesis.others = {"backup-restart": nothing, "change": something}
    assert nemesis.missing() == ["backup-restart", "change", "kill"]
    await nemesis.run(asyncio.Event(), time.monotonic() + 60, 3)
    assert nemesis.missing() == []
    assert nemesis.idle() == ["backup-restart"]
    assert nemesis.hits == Counter({"change": 7, "kill": 1, "backup-restart": 0})
    assert "backup-restart did nothing" in lines
    assert sorted(fault.fault for fault in nemesis.struck) == ["backup-restart", "change", "kill"]
    assert all(fault.began <= fault.ended <= fault.whole for fault in nemesis.struck)


def test_a_deck_holds_what_is_wanted_and_something_of_the_rest() -> None:
    cards = deck(Random(1), FAULTS, {"kills": 150, "power-cuts": 20})
    sums = by_category(Counter(cards))
    assert sums["kills"] == 150 and sums["power-cuts"] == 20
    assert set(cards) == set(FAULTS)
    assert Counter(cards)["kill"] > 50
    assert sorted(deck(Random(1), FAULTS, {})) == sorted(FAULTS)
    assert {category(fault) for fault in FAULTS} == set(KINDS)


@pytest.mark.usefixtures("hurried")
async def test_one_seed_makes_one_choice(victims: list[int]) -> None:
    told: list[list[str]] = []
    for seed in (1, 1, 2):
        lines: list[str] = []
        cluster = cast(Arena, FakeCluster(victims))
        nemesis = Nemesis(cluster, Random(seed), HERE, lines.append)
        await nemesis.run(asyncio.Event(), time.monotonic() + 60, 15)
        # How long something takes, and whether a process stood still within a moment, is the machine's choice.
        told.append([line for line in lines if "whole" not in line and not line.endswith("did nothing")])
    assert told[0] == told[1] != told[2]


async def test_it_ends_at_once_when_it_is_told_to_or_its_time_is_over() -> None:
    stop = asyncio.Event()
    cluster = cast(Arena, FakeCluster([0, 0, 0]))
    nemesis = Nemesis(cluster, Random(1), HERE, lambda line: None)
    await nemesis.run(stop, time.monotonic(), 10)
    stop.set()
    await nemesis.run(stop, time.monotonic() + 60, 10)
    assert not nemesis.counts


def test_faults_are_named() -> None:
    assert parse_faults("kill, pause,kill") == ("kill", "pause")
    assert parse_faults("power-cuts,kill") == ("power", "power-two", "power-all", "kill")
    for wrong in ("", "kil", "kill,,x"):
        with pytest.raises(ValueError):
            parse_faults(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--faults", "fire"],
        ["--seconds", "0"],
        ["--lanes", "0"],
        ["--kills", "0"],
        ["--membership", "--kills", "1"],
    ],
)
def test_nonsense_on_the_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--faults", "split"], ["--faults", "kill,power"], ["--cuts", "1"], ["--bad-disks", "1"], ["--versions", "1"]],
)
def test_faults_that_need_a_lab_are_refused_without_one(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "need" in capsys.readouterr().err
