"""P52: the ranges of protobuf and grpcio that pyproject.toml allows hold what the generated code needs.

That imports and a smoke test pass at both ends is shown by `scripts/compatibility`, which installs them.
"""

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
GENERATED = sorted(ROOT.glob("*/*/_proto/*_pb2.py"))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripts_compatibility", ROOT / "scripts" / "_compatibility.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", GENERATED, ids=lambda file: file.stem)
def test_generated_code_runs_with_the_lowest_protobuf_that_is_allowed(file: Path) -> None:
    made = re.search(
        r"ValidateProtobufRuntimeVersion\(\s*_runtime_version\.Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+)",
        file.read_text(),
    )
    assert made is not None
    (low,) = [one.version for one in script().requirements()["protobuf"].specifier if one.operator == ">="]
    # The library refuses code that is newer than itself when that is imported.
    assert Version(low) >= Version(".".join(made.groups()))


def test_there_is_generated_code() -> None:
    assert {file.stem for file in GENERATED} == {"kvorum_pb2", "raft_pb2", "datapath_pb2"}


def test_both_ends_are_tried_and_what_is_locked_lies_between() -> None:
    compatibility = script()
    known = compatibility.requirements()
    assert {pin.partition("==")[0] for pin in compatibility.lowest()} == set(compatibility.PINNED)
    for name in compatibility.PINNED:
        assert version(name) in known[name].specifier
