"""The judge of range watches finds what it is there for: each kind of fault, planted in the product, shows."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.ranges import RangeWatch as ClientWatch
from kvorum_node.range_watches import RangeHub
from kvorum_node.store import history
from tests.simulation.whole import schedule

ROOT = Path(__file__).parents[2]
SEEDS = (3, 2, 4, 5, 1)


def _skip_on_resume() -> Any:
    """Whoever goes on begins one entry too late."""
    begin = RangeHub.begin

    def late(self: RangeHub, watch: Any) -> None:
        if watch.through:
            watch.through = (int.from_bytes(watch.through[:8], "big") + 1).to_bytes(8, "big") + b"\xff\xff"
        begin(self, watch)

    return mock.patch.object(RangeHub, "begin", late)


def _repeat_on_resume() -> Any:
    """A client goes on one entry too early, and believes whatever comes."""
    registration = ClientWatch.registration

    def early(self: Any, newest: bytes) -> pb.StartWatch:
        start = registration(self, newest)
        if start.since:
            start.since = history.stamp_before(start.since[:8])
            self.through = b""
        return start

    return mock.patch.object(ClientWatch, "registration", early)


def _deaf_to_news() -> Any:
    """Entries do not wake the watches: they are thought to have missed nothing."""

    def applied(self: RangeHub, index: int, changed_keys: object) -> None:
        self._newest = (index + self._store.stamp_base).to_bytes(8, "big") + b"\xff\xff"

    return mock.patch.object(RangeHub, "applied", applied)


def _silent_trimming() -> Any:
    """What is not kept any more is passed over in silence."""
    step = RangeHub._step

    def tolerant(self: RangeHub, snapshot: Any, watch: Any, newest: bytes, oldest: bytes) -> int:
        return step(self, snapshot, watch, newest, bytes(10))

    return mock.patch.object(RangeHub, "_step", tolerant)


FAULTS: dict[str, Callable[[], Any]] = {
    "skips": _skip_on_resume,
    "repeats": _repeat_on_resume,
    "deaf": _deaf_to_news,
    "trims in silence": _silent_trimming,
}


def play(fault: str) -> None:
    """Print what the judge finds, up to the first seed in which a watcher does: a client that goes on behind the newest
    stamp may be refused before."""
    with FAULTS[fault]():
        for seed in SEEDS:
            findings = schedule.run(seed).findings
            if findings:
                print("\n".join(findings))
            if any("the watcher of" in finding for finding in findings):
                return


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """In a process of its own, because a seed is one schedule only under a fixed hash seed. The same seeds without a
    fault are among those of `test_whole`."""
    ended = subprocess.run(
        [sys.executable, "-c", f"from tests.simulation.test_range_watches import play; play({fault!r})"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert "the watcher of b'k'" in ended.stdout or "the watcher of b'x/'" in ended.stdout, ended.stdout
    assert not re.search("differ|lost|twice|invalid|stopped", ended.stdout), "and nothing else is broken"
