"""Each defect of the library: its own core still has it, ours does not. An upgrade that mends one fails here and says
so."""

import logging
from pathlib import Path

import pytest

from tests.simulation.defects import DEFECTS
from tests.simulation.plain import plain_world
from tests.simulation.world import Broken, SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.mark.parametrize("row", DEFECTS)
def test_our_core_keeps_the_promise(row: str, tmp_path: Path) -> None:
    defect = DEFECTS[row]
    defect.scenario(World(SafeNode, defect.ids, founders=defect.founders, folder=tmp_path).start())


@pytest.mark.parametrize("row", DEFECTS)
def test_the_plain_core_still_breaks_it(row: str, tmp_path: Path) -> None:
    defect = DEFECTS[row]
    options = {**defect.plain, **({"folder": tmp_path} if defect.files else {})}
    with (
        plain_world(defect.ids, founders=defect.founders, **options) as world,
        pytest.raises(Broken, match=defect.breaks),
    ):
        defect.scenario(world)
