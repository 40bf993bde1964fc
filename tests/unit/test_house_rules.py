"""A scan of the shipped source for what it must not hold: code from data, shells, reads without a bound, shared state.

Each rule is shown to bite by samples that break it, and to leave alone what looks alike. What a rule finds and is
right all the same stands in `ALLOWED`, with its place and the reason; an entry that nothing needs any more fails too.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SCANNED = ("client/kvorum", "client/kvorum_command", "raft/kvorum_raft", "node/kvorum_node")

_MESSAGE = "one gRPC message, which is refused above a limit"
_OPERATOR = "a file that the operator names in the configuration"
_OWN_FILE = "a small file of the node's own folder"
_KERNEL = "a line of /proc"
_DEVELOPER = "not for production: the developer's own cluster"
ALLOWED: dict[tuple[str, str, str], str] = {
    ("unbounded read", "client/kvorum/cluster/connection.py", "Connection.greet"): _MESSAGE,
    ("unbounded read", "client/kvorum/cluster/connection.py", "Connection._pump_in"): _MESSAGE,
    ("unbounded read", "node/kvorum_node/api/gate.py", "Gate._single"): _MESSAGE,
    ("unbounded read", "node/kvorum_node/api/stream.py", "Stream._read"): _MESSAGE,
    ("unbounded read", "client/kvorum/v8/rest.py", "_read_plain"): "a double of a value that is in memory",
    ("unbounded read", "raft/kvorum_raft/node.py", "RaftNode.read_index"): "asks the leader for an index, of 8 bytes",
    ("unbounded read", "raft/kvorum_raft/faults.py", "check_refused"): _OWN_FILE,
    ("unbounded read", "node/kvorum_node/store/files.py", "read_json"): "its size is looked at before",
    ("unbounded read", "node/kvorum_node/store/host.py", "LinuxHost.boot_id"): _KERNEL,
    ("unbounded read", "node/kvorum_node/config.py", "_from_file"): _OPERATOR,
    ("trusting TLS", "client/kvorum/cluster/tls_trouble.py", "_demands_certificate"): (
        "only asks whether TLS is spoken, and says nothing secret"
    ),
    ("trusting TLS", "raft/kvorum_raft/tls.py", "PeerTls._load"): (
        "the certificate is demanded and verified, and names a node by its id, which the connection compares"
    ),
    **{
        ("unbounded read", "node/kvorum_node/dev_cluster.py", place): _DEVELOPER
        for place in (
            "DevCluster.client_address",
            "DevCluster.http_address",
            "DevCluster.pid",
            "DevCluster._check_ports",
            "DevCluster._tail",
            "DevCluster._is_ours",
            "_first_ephemeral_port",
        )
    },
}
"""(rule, file, function) → why it is right there."""


class Finding(NamedTuple):
    """`place` is the function it is in, `line` counts from 1."""

    rule: str
    place: str
    line: int


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; of anything else the part that can be named, after a dot."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


class Aliases:
    """What the names of a module stand for: `from os import system as run` makes `run` mean `os.system`."""

    def __init__(self, tree: ast.Module) -> None:
        self._meant: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._meant[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for alias in node.names:
                    self._meant[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def name(self, node: ast.AST) -> str:
        """The full name of what an expression names."""
        first, dot, rest = dotted(node).partition(".")
        return self._meant.get(first, first) + dot + rest


class Source:
    """A parsed module."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.aliases = Aliases(self.tree)
        self._places: dict[int, str] = {}
        self._note_places(self.tree, "")

    def _note_places(self, node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            within = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                within = f"{place}.{child.name}".lstrip(".")
            self._places[id(child)] = within
            self._note_places(child, within)

    def place(self, node: ast.AST) -> str:
        return self._places.get(id(node), "")

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Each call with the full name of what is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node, self.aliases.name(node.func)

    def used(self) -> Iterator[tuple[ast.AST, str]]:
        """Each name and attribute that is read, with its full name; a callable may be passed on before it is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield node, self.aliases.name(node)

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node, alias.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node, node.module or ""
                for alias in node.names:
                    yield node, f"{node.module}.{alias.name}"


Rule = Callable[[Source], Iterator[ast.AST]]

# ---- code from data

_PICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}


def pickles(source: Source) -> Iterator[ast.AST]:
    """Reading a pickle runs what its writer wants; so does a shelf. `pysyncobj.pickle` is one too."""
    for node, name in source.imports():
        if _PICKLES & set(name.split(".")):
            yield node
    for node, name in source.used():
        if _PICKLES & set(name.split(".")[:-1]) or name.endswith((".pickle", ".marshal")):
            yield node


def evaluations(source: Source) -> Iterator[ast.AST]:
    names = {"eval", "exec", "compile", "__import__"}
    for node, name in source.used():
        if name in names or name.removeprefix("builtins.") in names:
            yield node


def yaml_loads(source: Source) -> Iterator[ast.AST]:
    """Only `safe_load` makes nothing but data."""
    for node, name in source.used():
        if name.startswith("yaml.") and name.split(".")[1] in ("load", "load_all", "unsafe_load", "full_load"):
            yield node


# ---- processes

_SHELLS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"),
    *("asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell"),
}


def shells(source: Source) -> Iterator[ast.AST]:
    """A shell takes characters of its arguments for commands."""
    for node, name in source.used():
        if name in _SHELLS:
            yield node
    for call, _ in source.calls():
        for keyword in call.keywords:
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield call


def forks(source: Source) -> Iterator[ast.AST]:
    """A fork in a process with threads, as gRPC has them, can stand still for ever."""
    for node, name in source.imports():
        if name.partition(".")[0] == "multiprocessing":
            yield node
    for node, name in source.used():
        if name in ("os.fork", "os.forkpty", "pty.fork"):
            yield node


# ---- bounds

_READS = {"read", "readline", "readlines", "readall", "read_text", "read_bytes", "readuntil", "recv"}
_WHOLE_FILES = {"json.load", "tomllib.load", "yaml.safe_load"}
_INFLATES = {f"{module}.decompress" for module in ("zlib", "gzip", "bz2", "lzma")}


def unbounded_reads(source: Source) -> Iterator[ast.AST]:
    """As much as the other side cares to send. A size of -1 or None is none."""
    for call, name in source.calls():
        if name in _WHOLE_FILES or (_last(call) in _READS and not _bounded(call)):
            yield call


def _last(call: ast.Call) -> str:
    """`read` of `stream.read()`, and of `read()`: a method may be kept under its name before it is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def _bounded(call: ast.Call) -> bool:
    if _last(call) in ("readlines", "read_text", "read_bytes", "readuntil"):
        return False  # their arguments are no bounds
    sizes = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in ("n", "size", "bufsize"))]
    for size in sizes:
        negative = isinstance(size, ast.UnaryOp) and isinstance(size.op, ast.USub)
        if not negative and not (isinstance(size, ast.Constant) and not isinstance(size.value, int)):
            return True
    return False


def bombs(source: Source) -> Iterator[ast.AST]:
    """A few bytes inflate to as many as memory holds; `decompressobj().decompress(data, limit)` stops."""
    for call, name in source.calls():
        if name in _INFLATES:
            yield call
            continue
        bounded = len(call.args) > 1 or any(keyword.arg == "max_length" for keyword in call.keywords)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "decompress" and not bounded:
            yield call


# ---- errors and state


def bare_excepts(source: Source) -> Iterator[ast.AST]:
    """They swallow a cancellation and the end of the process."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node


_CONTAINERS = {
    "list",
    "dict",
    "set",
    "bytearray",
    "collections.defaultdict",
    "collections.deque",
    "collections.Counter",
}
_CONTAINERS |= {"collections.OrderedDict", "weakref.WeakKeyDictionary", "weakref.WeakValueDictionary"}
_CHANGES = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"),
    *("appendleft", "popleft", "sort", "reverse"),
}


def shared_state(source: Source) -> Iterator[ast.AST]:
    """Two stores in one process would meet in it. A table that nothing changes is none: it is Final, or in capitals."""
    containers: set[str] = set()
    for node in source.tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and _is_container(value, source):
                containers.add(target.id)
                final = isinstance(node, ast.AnnAssign) and dotted(_head(node.annotation)).endswith("Final")
                if not (final or target.id.isupper() or target.id == "__all__"):
                    yield node
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global) or (source.place(node) and _changes(node, containers)):
            yield node


def _head(annotation: ast.expr) -> ast.expr:
    return annotation.value if isinstance(annotation, ast.Subscript) else annotation


def _is_container(value: ast.expr | None, source: Source) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return isinstance(value, ast.Call) and source.aliases.name(value.func) in _CONTAINERS


def _changes(node: ast.AST, containers: set[str]) -> bool:
    """Whether this changes one of the module's containers."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return isinstance(node.value, ast.Name) and node.value.id in containers
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return isinstance(node.func.value, ast.Name) and node.func.value.id in containers
    return False


def trusting_tls(source: Source) -> Iterator[ast.AST]:
    """A connection that does not look at who answers."""
    for node, name in source.used():
        if name in ("ssl.CERT_NONE", "ssl._create_unverified_context"):
            yield node
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False):
            continue
        if any(isinstance(target, ast.Attribute) and target.attr == "check_hostname" for target in node.targets):
            yield node


_SECRETS = {"token", "secret", "password"}
"""Ends of the names of fields that hold one."""
_TEXTS = {"str", "bytes"}


def shown_secrets(source: Source) -> Iterator[ast.AST]:
    """A dataclass or named tuple writes its fields out in its repr, which ends in logs and tracebacks."""
    for made in ast.walk(source.tree):
        if not isinstance(made, ast.ClassDef) or not _writes_itself_out(made, source):
            continue
        for node in made.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_secret(node, source):
                yield node


def _writes_itself_out(made: ast.ClassDef, source: Source) -> bool:
    if any(isinstance(node, ast.FunctionDef) and node.name == "__repr__" for node in made.body):
        return False
    decorators = [one.func if isinstance(one, ast.Call) else one for one in made.decorator_list]
    names = {source.aliases.name(one) for one in (*decorators, *made.bases)}
    return bool(names & {"dataclasses.dataclass", "typing.NamedTuple"})


def _is_secret(node: ast.AnnAssign, source: Source) -> bool:
    assert isinstance(node.target, ast.Name)
    if node.target.id.rpartition("_")[2] not in _SECRETS:
        return False
    if not _TEXTS & {name.id for name in ast.walk(node.annotation) if isinstance(name, ast.Name)}:
        return False
    hidden = isinstance(node.value, ast.Call) and any(
        keyword.arg == "repr" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in node.value.keywords
    )
    return not hidden


RULES: dict[str, Rule] = {
    "pickle": pickles,
    "eval": evaluations,
    "yaml.load": yaml_loads,
    "shell": shells,
    "fork": forks,
    "unbounded read": unbounded_reads,
    "decompression bomb": bombs,
    "bare except": bare_excepts,
    "shared state": shared_state,
    "trusting TLS": trusting_tls,
    "shown secret": shown_secrets,
}


def scan(text: str) -> list[Finding]:
    """What the rules find in a module."""
    source = Source(text)
    found = {
        Finding(rule, source.place(node), getattr(node, "lineno", 0))
        for rule, look in RULES.items()
        for node in look(source)
    }
    return sorted(found, key=lambda finding: (finding.line, finding.rule))


def modules() -> list[Path]:
    """Every module that is shipped and not made by a machine."""
    found = [path for folder in SCANNED for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "_proto" not in path.parts]


def test_the_source_keeps_to_the_rules() -> None:
    paths = modules()
    assert len(paths) > 150, "the scan looks past the source"
    needed: set[tuple[str, str, str]] = set()
    wrong = []
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        for finding in scan(path.read_text()):
            entry = (finding.rule, name, finding.place)
            needed.add(entry)
            if entry not in ALLOWED:
                wrong.append(f"{name}:{finding.line}: {finding.rule}, in {finding.place or 'the module'}")
    assert not wrong, "\n".join(wrong)
    assert not set(ALLOWED) - needed, "allowed, and not there any more"


BREAKS: dict[str, tuple[str, ...]] = {
    "pickle": (
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "def f():\n    import shelve",
        "from pysyncobj import pickle",
        "import pysyncobj\npysyncobj.pickle.loads(b'')",
    ),
    "eval": (
        "eval('1')",
        "def f(text):\n    exec(text)",
        "import builtins\nbuiltins.eval('1')",
        "from builtins import exec as run\nrun('1')",
        "list(map(eval, texts))",
        "__import__(name)",
        "compile(text, '', 'exec')",
    ),
    "yaml.load": ("import yaml\nyaml.load(text, Loader=L)", "from yaml import unsafe_load\nunsafe_load(text)"),
    "shell": (
        "import os\nos.system('ls')",
        "from os import popen as p\np('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess as s\ns.Popen(['ls'], shell=asked)",
        "import asyncio\nasync def f():\n    await asyncio.create_subprocess_shell('ls')",
        "import subprocess\nsubprocess.getoutput('ls')",
    ),
    "fork": ("import os\nos.fork()", "import multiprocessing.pool", "from multiprocessing import Process"),
    "unbounded read": (
        "stream.read()",
        "read = stream.read\nread()",
        "async def f(reader):\n    return await reader.read(-1)",
        "stream.read(None)",
        "file.readlines(100)",
        "reader.readline()",
        "async def f(reader):\n    await reader.readuntil(b'\\n')",
        "Path('x').read_text('utf-8')",
        "Path('x').read_bytes()",
        "connection.recv()",
        "import json\njson.load(file)",
        "from tomllib import load\nload(file)",
    ),
    "decompression bomb": (
        "import zlib\nzlib.decompress(data)",
        "from gzip import decompress\ndecompress(data)",
        "import zlib\nzlib.decompressobj().decompress(data)",
    ),
    "bare except": ("try:\n    f()\nexcept:\n    pass",),
    "shared state": (
        "seen = {}",
        "_cache: dict[str, int] = {}",
        "from collections import defaultdict\ncounts = defaultdict(int)",
        "def f():\n    global count\n    count = 1",
        "from typing import Final\n_SEEN: Final = set()\ndef f(x):\n    _SEEN.add(x)",
        "TABLE = {}\ndef f(x):\n    TABLE[x] = 1",
        "TABLE = {}\nclass C:\n    def f(self, x):\n        del TABLE[x]",
    ),
    "trusting TLS": (
        "import ssl\ncontext.verify_mode = ssl.CERT_NONE",
        "context.check_hostname = False",
        "from ssl import _create_unverified_context as c\nc()",
    ),
    "shown secret": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n    token: str | None = None",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    root_token: str",
        "from typing import NamedTuple\nclass A(NamedTuple):\n    secret: bytes",
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    password: str = field(default='')",
    ),
}
KEEPS = (
    "import re\nre.compile('x')",
    "import ast\nast.literal_eval('1')",
    "model.eval_count()",
    "import yaml\nyaml.safe_dump(data)",
    "import subprocess\nsubprocess.run(['ls'], shell=False)",
    "async def f(reader):\n    await reader.read(65536)\n    await reader.readexactly(4)",
    "stream.read(size)\nconnection.recv(4096)\nfile.readline(1000)",
    "import zlib\nzlib.decompressobj().decompress(data, 1000)",
    "try:\n    f()\nexcept Exception:\n    raise",
    "from typing import Final\n_NAMES: Final = {1: 'a'}\n__all__ = ['x']\nTABLE = [1]",
    "def f():\n    seen = {}\n    seen[1] = 2",
    "import ssl\ncontext.verify_mode = ssl.CERT_REQUIRED\ncontext.check_hostname = True",
    "from .pickles import shown",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    token: str = field(repr=False)",
    "from typing import NamedTuple as N\nclass A(N):\n    secret: bytes\n    def __repr__(self):\n        return ''",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    secret: bool\n    token_id: str",
    "class A:\n    token: str",
)


@pytest.mark.parametrize(
    ("rule", "sample"),
    [
        pytest.param(rule, sample, id=f"{rule}-{number}")
        for rule in BREAKS
        for number, sample in enumerate(BREAKS[rule])
    ],
)
def test_each_rule_bites(rule: str, sample: str) -> None:
    assert rule in {finding.rule for finding in scan(sample)}


def test_every_rule_has_a_sample() -> None:
    assert set(BREAKS) == set(RULES)


@pytest.mark.parametrize("sample", KEEPS, ids=range(len(KEEPS)))
def test_what_looks_alike_is_left_alone(sample: str) -> None:
    assert scan(sample) == []


def test_a_finding_names_its_place() -> None:
    (finding,) = scan("class A:\n    def f(self):\n        return eval('1')\n")
    assert finding == Finding("eval", "A.f", 3)
