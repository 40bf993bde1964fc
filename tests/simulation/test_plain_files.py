"""What the library does to its own files. Ours has no such files: docs/consensus-defects.md names the tests of the log,
the checkpoints and the faults that take their place."""

import contextlib
import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pysyncobj.journal import FileJournal

from tests.simulation.plain import PlainNode, plain_world
from tests.simulation.scenarios import propose, require_acked
from tests.simulation.world import Broken, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")


class _Killed(BaseException):
    """The process ends here."""


def _single(world: World, count: int) -> tuple[PlainNode, set[str]]:
    """A cluster of one node that has acknowledged so many writes."""
    acked: set[str] = set()
    node: PlainNode = world.elect("A")
    propose(node, range(count), acked)
    world.pump(3)
    assert len(acked) == count
    return node, acked


def _reborn(world: World, *, power_cut: bool = False) -> PlainNode:
    world.restart("A", power_cut=power_cut)
    node: PlainNode = world.elect("A")
    world.pump(5)
    return node


def _killed_while_compacting(world: World, kill: Any) -> set[str]:
    """30 writes, a snapshot of them, 30 more that are acknowledged, and the end of the process where `kill` says."""
    node, acked = _single(world, 30)
    node.core.forceLogCompaction()
    propose(node, range(30, 60), acked)
    node.tick()
    with kill(node), pytest.raises(_Killed):
        node.tick()
    assert len(acked) == 60
    return acked


def test_d3_a_kill_while_the_journal_is_written_anew_loses_entries(tmp_path: Path) -> None:
    @contextlib.contextmanager
    def kill(node: PlainNode) -> Any:
        add, left = node.journal.add, [5]

        def dying(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise _Killed
            add(*arguments)

        with mock.patch.object(node.journal, "add", dying):
            yield

    with plain_world("A", folder=tmp_path, dump=True) as world:
        acked = _killed_while_compacting(world, kill)
        with pytest.raises(Broken, match="acknowledged writes are lost"):
            require_acked(_reborn(world), acked)


def test_d4_a_kill_between_dump_and_journal_loses_entries(tmp_path: Path) -> None:
    def kill(node: PlainNode) -> Any:
        return mock.patch.object(node.core, "_SyncObj__deleteEntriesTo", side_effect=_Killed)

    with plain_world("A", folder=tmp_path, dump=True) as world:
        acked = _killed_while_compacting(world, kill)
        with pytest.raises(Broken, match="acknowledged writes are lost"):
            require_acked(_reborn(world), acked)


def test_d5_a_flipped_bit_in_the_journal_is_applied(tmp_path: Path) -> None:
    with plain_world("A", folder=tmp_path) as world:
        node, acked = _single(world, 5)
        node.close()
        content = node.journal_file.read_bytes()
        place = content.index(b"v3.") + 10
        node.journal_file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        again = world.nodes["A"] = node._again(world)
        world.elect("A")
        world.pump(5)
        values = {value for _, value in again.applied}
        assert len(values) == 5, "nothing is noticed"
        assert len(values - acked) == 1, "and what nobody wrote is in the state"


def test_d6_a_dump_is_lost_in_a_power_cut_when_the_journal_is_cut_already(tmp_path: Path) -> None:
    with plain_world("A", folder=tmp_path, dump=True) as world:
        node, acked = _single(world, 30)
        node.compact()
        assert node.dump_file.stat().st_size > 0
        assert len(node.journal) < 10
        node.spared = {file: file.read_bytes() for file in (node.journal_file, node.meta_file)}
        with pytest.raises(Broken, match="acknowledged writes are lost"):
            require_acked(_reborn(world, power_cut=True), acked)


def test_d7_a_failed_write_stops_nothing_and_leaves_a_hole(tmp_path: Path) -> None:
    with plain_world("A", folder=tmp_path) as world:
        node, acked = _single(world, 5)
        file, failures = node.journal._FileJournal__journalFile, [OSError("I/O error")]
        write = file.write

        def failing(*arguments: Any) -> None:
            if failures:
                raise failures.pop()
            write(*arguments)

        with mock.patch.object(file, "write", failing):
            propose(node, range(5, 10), acked)
            with pytest.raises(OSError, match="I/O error"):
                node.tick()  # `_autoTickThread` logs that and goes on, as here
            for _ in range(4):
                world.clock.now += 0.11
                node.tick()
        assert node.leads
        assert len(acked) > 5, "it goes on acknowledging"
        node.close()
        stored = FileJournal(str(node.journal_file))
        indices = [index for _, index, _ in stored[:]]
        stored._destroy()
        assert indices != list(range(1, len(indices) + 1)), "its log on the disk has a hole"
