"""Each defect of the library: its own core still has it, ours does not. An upgrade that mends one fails here and says
so."""

import logging
import random

import pytest

from tests.simulation.plain import PlainNode, plain_time
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Broken, SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.mark.parametrize("name", SCENARIOS)
def test_our_core_keeps_the_promise(name: str) -> None:
    SCENARIOS[name](World(SafeNode))


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_plain_core_still_breaks_it(name: str) -> None:
    random.seed(1)
    world = World(PlainNode)
    with plain_time(world.clock), pytest.raises(Broken):
        SCENARIOS[name](world)
