"""The pin, the fingerprints and the mangled names: an upgrade of PySyncObj fails here before it can lose anything."""

import hashlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest
from pysyncobj import SyncObj
from pysyncobj.version import VERSION

import kvorum_raft
from kvorum_raft.errors import RaftFault
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.upstream import PINNED, RELIED_ON, UPSTREAM
from tests.simulation.plain import PlainNode, plain_time
from tests.simulation.world import SafeNode, World

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "raft" / "kvorum_raft").glob("*.py"))


def _overridden() -> set[str]:
    mine = SafeSyncObj.__mro__[: SafeSyncObj.__mro__.index(SyncObj)]
    return {
        name for cls in mine for name in vars(cls) if name in vars(SyncObj) and inspect.isfunction(vars(SyncObj)[name])
    }


def test_the_version_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"pysyncobj=={PINNED}" in project["optional-dependencies"]["node"]
    assert VERSION == PINNED


def test_the_table_names_what_is_replaced_or_relied_on() -> None:
    assert set(UPSTREAM) == _overridden() | RELIED_ON


@pytest.mark.parametrize("name", UPSTREAM)
def test_the_source_is_the_one_that_was_read(name: str) -> None:
    source = inspect.getsource(vars(SyncObj)[name])
    assert hashlib.sha256(source.encode()).hexdigest() == UPSTREAM[name]


def test_every_mangled_name_exists_in_the_library() -> None:
    used = {name for path in SOURCES for name in re.findall(r"_SyncObj__\w+", path.read_text())}
    assert len(used) > 20
    world = World(PlainNode)
    with plain_time(world.clock):
        plain = PlainNode("A", world).core
    assert [name for name in sorted(used) if not hasattr(plain, name)] == []


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum_raft.core_state.VERSION", "0.3.18")
    with pytest.raises(RaftFault, match=r"0\.3\.18 is installed"):
        World(SafeNode).start()


@pytest.mark.parametrize(
    "name", ["addNodeToCluster", "setCodeVersion", "transferLeadership", "_applyCommand", "_SyncObj__loadDumpFile"]
)
def test_the_ways_of_the_library_are_closed(name: str) -> None:
    node = World(SafeNode).start().nodes["A"]
    with pytest.raises(RaftFault, match="closed"):
        getattr(node.core, name)(b"x", None)


def test_utility_messages_have_no_handler() -> None:
    node = World(SafeNode).start().nodes["A"]
    assert node.transport._onUtilityMessageCallbacks == {}


def test_no_source_of_ours_uses_pickle() -> None:
    assert [path.name for path in SOURCES if re.search(r"import pickle|from pickle|pickle\.", path.read_text())] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert kvorum_raft.__file__ is not None
    source = Path(kvorum_raft.__file__).read_text()
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert top == ["from typing import TYPE_CHECKING, Any"]
    assert kvorum_raft.RaftConfig.__name__ == "RaftConfig"
    with pytest.raises(AttributeError):
        kvorum_raft.nothing  # noqa: B018
