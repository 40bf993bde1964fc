"""The pin, the fingerprints and the mangled names: an upgrade of PySyncObj fails here before it can lose anything."""

import ast
import hashlib
import importlib
import inspect
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from pysyncobj import SyncObj
from pysyncobj.version import VERSION

import kvorum_raft
from kvorum_raft.errors import RaftFault
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.upstream import CLASSES, FIELDS, PINNED, RELIED_ON, UPSTREAM
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
    assert _fingerprint(vars(SyncObj)[name]) == UPSTREAM[name]


@pytest.mark.parametrize("name", CLASSES)
def test_the_classes_are_the_ones_that_were_read(name: str) -> None:
    module, _, cls = name.rpartition(".")
    assert _fingerprint(getattr(importlib.import_module(module), cls)) == CLASSES[name]


def _fingerprint(thing: object) -> str:
    return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()  # type: ignore[arg-type]


# -- nothing of the library is used that is not in the tables


def _used(tree: ast.AST) -> set[str]:
    """Names of the base class that some source reads, writes, calls or defines: mangled ones wherever they stand, the
    others as attributes of `self`, `super()` and of what is called a core."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            receiver = node.value
            name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "super()")
            if node.attr.startswith("_SyncObj__") or name in ("self", "super()", "core", "_core"):
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            assigned = [target for part in node.body if isinstance(part, ast.Assign) for target in part.targets]
            found |= {target.id for target in assigned if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Name | ast.Constant):
            text = node.id if isinstance(node, ast.Name) else node.value
            if isinstance(text, str) and re.fullmatch(r"_SyncObj__\w+", text):
                found.add(text)
    return found


def _ours() -> tuple[set[str], set[str]]:
    """(methods and properties, other mangled names) of the base class that our sources use."""
    core = [inspect.getsourcefile(cls) for cls in SafeSyncObj.__mro__ if cls.__module__.startswith("kvorum_raft.")]
    methods: set[str] = set()
    fields: set[str] = set()
    for path in SOURCES:
        used = _used(ast.parse(path.read_text()))
        fields |= {name for name in used if name.startswith("_SyncObj__") and name not in vars(SyncObj)}
        if str(path) not in core:  # whose `self` is nothing of the library's, but who may hold a core
            used = {name for name in used if name.startswith("_SyncObj__") or _of_a_core(path, name)}
        methods |= {name for name in used if name in vars(SyncObj)}
    return methods - {"__doc__", "__module__"}, fields


def _of_a_core(path: Path, name: str) -> bool:
    return re.search(rf"\bcore\.{name}\b|_core\.{name}\b", path.read_text()) is not None


def test_every_method_that_is_used_is_in_the_table() -> None:
    methods, _ = _ours()
    assert len(methods) > 30
    assert methods - UPSTREAM.keys() == set()


def test_every_field_that_is_used_is_in_the_table() -> None:
    _, fields = _ours()
    assert fields == FIELDS


def test_what_is_relied_on_relies_on_nothing_else() -> None:
    """What a method of the library that we leave as it is calls in its turn, is left or replaced knowingly too."""
    for name in RELIED_ON:
        source = textwrap.dedent(inspect.getsource(vars(SyncObj)[name]))
        called = {
            f"_SyncObj{node.attr}" if node.attr.startswith("__") else node.attr
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
        }
        called.discard("_getStatus")  # a handler of a utility message, which we take away again: see below
        assert {one for one in called if inspect.isfunction(vars(SyncObj).get(one))} <= UPSTREAM.keys(), name


def test_every_base_class_is_in_the_table() -> None:
    """Of all classes of ours that inherit from the library."""
    bases = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pysyncobj")
            for alias in node.names
        }
        bases |= set(imported.values())
    assert bases - {"pysyncobj.SyncObj", "pysyncobj.version.VERSION"} == CLASSES.keys()


def test_every_mangled_name_exists_in_the_library() -> None:
    world = World(PlainNode)
    with plain_time(world.clock):
        plain = PlainNode("A", world).core
    assert [name for name in sorted(FIELDS | UPSTREAM.keys()) if not hasattr(plain, name)] == []


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum_raft.library.VERSION", "0.3.18")
    with pytest.raises(RaftFault, match=r"0\.3\.18 is installed"):
        World(SafeNode).start()


@pytest.mark.parametrize(
    "name", ["addNodeToCluster", "setCodeVersion", "transferLeadership", "_applyCommand", "_SyncObj__loadDumpFile"]
)
def test_the_ways_of_the_library_are_closed(name: str) -> None:
    node = World(SafeNode).start().nodes["A"]
    with pytest.raises(RaftFault, match="closed"):
        getattr(node.core, name)(b"x", None)


def test_the_search_finds_what_is_used() -> None:
    source = """
class Core(SyncObj):
    setCodeVersion = _closed

    def _onTick(self):
        self._SyncObj__sendAppendEntries()
        super().doTick()
        getattr(self.core, "_SyncObj__raftLog")
"""
    expected = {"setCodeVersion", "_onTick", "_SyncObj__sendAppendEntries", "doTick", "_SyncObj__raftLog"}
    assert _used(ast.parse(source)) >= expected


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
