"""Faults that others have met in the field, as schedules for kvorum's core: docs/consensus-defects.md lists them."""

import ast
import logging
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum_raft.log_store import LogStore
from tests.simulation.plain import plain_world
from tests.simulation.scenarios import propose, require_acked
from tests.simulation.scenarios_members import join
from tests.simulation.world import SafeNode, World


@pytest.fixture
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


def _world(folder: Path, ids: str = "ABC", *, founders: str = "ABC", seed: int = 0, auto_sync: bool = True) -> World:
    world = World(SafeNode, ids, founders=founders, seed=seed, folder=folder, auto_sync=auto_sync).start()
    world.mesh()
    return world


# -- P30: what was not synced is lost


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("batches", range(3))
def test_p30_what_one_node_had_not_synced_was_never_promised(tmp_path: Path, batches: int) -> None:
    """One node loses its power with writes on their way to the disk, after so many of them have arrived."""
    world = _world(tmp_path)
    leader, victim = world.elect("A"), world.nodes["B"]
    world.pump(3)
    world.disconnect("A", "C")
    world.auto_sync = False
    acked: set[str] = set()
    for step in range(8):
        propose(leader, range(step * 3, step * 3 + 3), acked)
        world.clock.now += 0.02
        for node_id in "AB":
            world.nodes[node_id].tick()
        leader.sync()
        world.deliver("A", "B")
        victim.tick()
    victim.sync(batches)
    world.deliver("B", "A")
    leader.tick()
    assert victim.disk.pending, "the schedule must lose something"
    world.restart("B", power_cut=True)
    world.auto_sync = True
    world.connect("B", "C")
    world.elect("B", "BC")
    world.pump(20, ids="BC")
    require_acked(world.nodes["B"], acked)
    require_acked(world.nodes["C"], acked)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("synced", [False, True])
def test_p30_nobody_votes_twice(tmp_path: Path, synced: bool) -> None:
    """The power goes before the vote is synced (then it has not left either) or just after."""
    world = _world(tmp_path, auto_sync=False)
    for node in world.nodes.values():
        node.hold_election()
    world.disconnect("A", "C")
    world.disconnect("B", "C")
    world.clock.now += 2.0
    candidate = world.nodes["A"]
    candidate.campaign()
    for _ in range(3):
        world.deliver("A", "B")
        world.deliver("B", "A")
        candidate.tick()
        candidate.sync()
    if synced:
        world.nodes["B"].sync()
        world.deliver("B", "A")
    assert candidate.leads == synced
    world.restart("B", power_cut=True)
    world.connect("B", "C")
    world.auto_sync = True
    world.clock.now += 2.0
    for _ in range(3):
        world.nodes["C"].campaign()
        world.pump(6, dt=0.02, ids="BC")
    assert world.nodes["C"].leads
    assert world.nodes["C"].term > candidate.term or not candidate.leads


# -- P32: who is a member


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("compacted", [False, True])
def test_p32_a_restarted_node_knows_the_member_that_was_added_last(tmp_path: Path, compacted: bool) -> None:
    world = _world(tmp_path, "ABCD")
    world.elect("A")
    world.pump(4)
    join(world, "A", "D")
    for round_ in range(4 if compacted else 0):
        propose(world.nodes["A"], range(round_ * 5, round_ * 5 + 5), set())
        world.pump(6)
        world.nodes["B"].compact()
    assert (world.nodes["B"].journal.base_index > 0) == compacted
    restarted = world.restart("B", power_cut=True)
    assert restarted.members == set("ABCD"), "before it has heard of anybody"
    world.mesh()
    world.pump(10)
    assert [node.members for node in world.nodes.values()] == [set("ABCD")] * 4
    assert [node.voters for node in world.nodes.values()] == [frozenset("ABCD")] * 4


def test_p32_the_library_has_forgotten_it_until_somebody_tells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")
    with plain_world("ABCD", founders="ABC") as world:
        world.mesh()
        world.elect("A")
        world.pump(4)
        join(world, "A", "D")
        assert world.nodes["B"].members == set("ABCD")
        assert world.restart("B").members == set("ABC")


# -- P33: agreement after kills


@pytest.mark.usefixtures("_quiet")
def test_p33_all_agree_on_a_leader_soon_after_each_of_fifty_kills(tmp_path: Path) -> None:
    world = _world(tmp_path, seed=33)
    for node in world.nodes.values():
        node.release_election()
    rng = random.Random(33)
    worst = 0.0
    for _ in range(50):
        _run(world, rng.uniform(0.0, 1.5))
        victim = world.restart(rng.choice(world.ids), power_cut=rng.random() < 0.5)
        _run(world, rng.choice([0.0, 0.3, 2.0]), ids=[i for i in world.ids if i != victim.node_id])
        victim.release_election()
        world.mesh()
        healed = world.clock.now
        while not _agreed(world):
            _run(world, 0.05)
            assert world.clock.now - healed <= 3.0, "no agreement 3 s after the last node was back"
        worst = max(worst, world.clock.now - healed)
    assert worst > 0.1, "kills that nobody notices prove nothing"


def _run(world: World, seconds: float, ids: list[str] | None = None) -> None:
    members = ids if ids is not None else world.ids
    end = world.clock.now + seconds
    while world.clock.now < end:
        world.clock.now += 0.01
        for node_id in members:
            world.nodes[node_id].tick()
        for a, b in world.pairs():
            if a in members and b in members:
                world.deliver(a, b)


def _agreed(world: World) -> bool:
    leaders = {node.core.leader_id for node in world.nodes.values()}
    (leader,) = leaders if len(leaders) == 1 else {None}
    return leader is not None and world.nodes[leader].core.leads


# -- P36: a snapshot fails


def test_p36_a_snapshot_that_fails_is_reported_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = _world(tmp_path)
    leader = world.elect("A")
    propose(leader, range(10), set())
    world.pump(8)
    leader.machine.images_to_fail = 1
    with caplog.at_level(logging.ERROR, "kvorum.raft"):
        leader.compact()
    assert [record.message for record in caplog.records] == [
        "a checkpoint could not be made, the next attempt is in 30 s: ValueError: the state cannot be held now"
    ]
    figures = leader.snapshots.statistics()
    assert (figures["checkpoints"], figures["checkpoint_failures"]) == (0, 1)
    acked: set[str] = set()
    propose(leader, range(10, 20), acked)
    world.pump(8)
    assert len(acked) == 10, "the cluster goes on"
    world.clock.now += 30
    leader.compact()
    assert leader.snapshots.statistics()["checkpoints"] == 1


# -- P43, P44: the file under a map


_FILLS_A_DISK = """
import resource, signal, sys
from pathlib import Path
from kvorum_raft.entry import Kind, make
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_store import LogStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LogStore.open(Path(sys.argv[1]), map_size=1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
heard = []
disk = LmdbDisk(store, lambda seq, fault: heard.append((seq, fault)))
disk.start()
for index in range(1, 100):
    disk.submit(Batch(index, HardState(1, "", 0, index), entries=[make(Kind.COMMAND, index, 1, 1, b"x" * 65_536)]))
disk.finish()
disk.join()
synced = [seq for seq, fault in heard if fault is None]
print(max(synced, default=0), len([fault for _, fault in heard if fault is not None]), heard[-1][1])
"""


def test_p43_a_disk_that_takes_no_more_is_an_error(tmp_path: Path) -> None:
    """A file that may not grow any more, as on a full disk: the log ends with one fault, the process does not."""
    ended = subprocess.run(
        [sys.executable, "-c", _FILLS_A_DISK, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    synced, faults, text = ended.stdout.split(maxsplit=2)
    assert 0 <= int(synced) < 20
    assert faults == "1"
    assert text.startswith("writing the log in ")
    stored = LogStore.open(tmp_path / "log", map_size=1 << 30).verify(cache=1 << 20)
    assert stored.state.last_index >= int(synced)


def test_p44_nobody_changes_the_size_of_a_map_in_use() -> None:
    """Nor writes through the map, where a full disk is a signal instead of an error."""
    root = Path(__file__).parents[2]
    sources = [*(root / "raft").rglob("*.py"), *(root / "node").rglob("*.py")]
    assert len(sources) > 30
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                assert name != "set_mapsize", path
                assert "writemap" not in [keyword.arg for keyword in node.keywords], path
