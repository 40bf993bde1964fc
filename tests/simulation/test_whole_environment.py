"""The simulator's ordered key-value environment against LMDB itself: random operations, the same answers."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import lmdb
import pytest
from hypothesis import HealthCheck, given, settings

from tests.simulation.whole import image
from tests.simulation.whole.environment import Environment
from tests.simulation.whole.storage import Storage
from tests.simulation.whole.vault import Vault

KEYS = st.one_of(
    st.text("abc", min_size=1, max_size=3).map(str.encode),
    st.sampled_from([b"", b"x" * 511, b"x" * 512, b"\x00", b"\xff\xff"]),
)
VALUES = st.sampled_from([b"", b"1", b"2", b"v" * 3000])
TABLE_NAMES = ("one", "two")
TABLES = st.sampled_from(TABLE_NAMES)
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["put", "put_new", "append", "replace"]), TABLES, KEYS, VALUES),
    st.tuples(st.sampled_from(["get", "pop", "delete"]), TABLES, KEYS),
    st.tuples(st.sampled_from(["stat", "drop"]), TABLES),
    st.tuples(st.sampled_from(["child", "commit", "abort", "parent", "snapshot", "look"])),
    st.tuples(st.sampled_from(["set_range", "set_key"]), TABLES, KEYS),
    st.tuples(st.sampled_from(["first", "last", "next", "prev", "item", "cursor_delete"]), TABLES),
    st.tuples(st.sampled_from(["iternext", "iterprev"]), TABLES, st.integers(0, 4)),
)
ERRORS = (lmdb.BadValsizeError, lmdb.BadTxnError)


class Driver:
    """Carries operations out on one environment. At most one write transaction, with a stack of children."""

    def __init__(self, env: Any, *, named: bool) -> None:
        self._env = env
        self._tables = {name: env.open_db(name.encode()) if named else None for name in TABLE_NAMES}
        self._stack: list[Any] = [env.begin(write=True)]
        self._cursors: dict[str, Any] = {}
        self._snapshot: Any = env.begin()

    def do(self, operation: tuple[Any, ...]) -> Any:
        """The answer, or the name of the error."""
        try:
            return getattr(self, f"_{operation[0]}")(*operation[1:])
        except ERRORS as error:
            self._cursors.clear()
            return type(error).__name__

    def copy(self, file: Path, open_env: Callable[..., Any], *, newest: bool) -> list[Any]:
        """What a copy holds, of the newest committed state or of what the snapshot sees."""
        with file.open("wb") as out:
            self._env.copyfd(out.fileno(), compact=True, txn=None if newest else self._snapshot)
        env = open_env(str(file), subdir=False, readonly=True, lock=False, max_dbs=2)
        with pytest.raises(lmdb.ReadonlyError):
            env.begin(write=True)
        tables = [table and env.open_db(name.encode()) for name, table in self._tables.items()]
        with env.begin() as txn:
            found = [_rows(txn, table) for table in tables]
        env.close()
        return found

    def close(self) -> list[Any]:
        """What is in the committed image at the end."""
        while self._stack:
            self._stack.pop().commit()
        self._snapshot.abort()
        with self._env.begin() as txn:
            return self._rows(txn)

    def _rows(self, txn: Any) -> list[Any]:
        return [_rows(txn, table) for table in self._tables.values()]

    @property
    def _txn(self) -> Any:
        return self._stack[-1]

    def _put(self, table: str, key: bytes, value: bytes) -> Any:
        return self._txn.put(key, value, db=self._tables[table])

    def _put_new(self, table: str, key: bytes, value: bytes) -> Any:
        return self._txn.put(key, value, overwrite=False, db=self._tables[table])

    def _append(self, table: str, key: bytes, value: bytes) -> Any:
        return self._txn.put(key, value, append=True, db=self._tables[table])

    def _replace(self, table: str, key: bytes, value: bytes) -> Any:
        return self._txn.replace(key, value, db=self._tables[table])

    def _get(self, table: str, key: bytes) -> Any:
        return self._txn.get(key, db=self._tables[table])

    # Where LMDB's cursor stands after its row was deleted by another way is not defined; the store collects rows first.

    def _pop(self, table: str, key: bytes) -> Any:
        self._cursors.clear()
        return self._txn.pop(key, db=self._tables[table])

    def _delete(self, table: str, key: bytes) -> Any:
        self._cursors.clear()
        return self._txn.delete(key, db=self._tables[table])

    def _stat(self, table: str) -> Any:
        return self._tables[table] and self._txn.stat(self._tables[table])["entries"]

    def _drop(self, table: str) -> None:
        if self._tables[table] is not None:
            self._cursors.clear()
            self._txn.drop(self._tables[table], delete=False)

    def _child(self) -> None:
        self._cursors.clear()
        if len(self._stack) < 4:
            self._stack.append(self._env.begin(write=True, parent=self._txn))

    def _commit(self) -> None:
        self._end(self._stack.pop().commit)

    def _abort(self) -> None:
        self._end(self._stack.pop().abort)

    def _end(self, end: Any) -> None:
        self._cursors.clear()
        end()
        if not self._stack:
            self._stack.append(self._env.begin(write=True))

    def _parent(self) -> Any:
        """A parent must not be used while it has a child."""
        return self._stack[-2].put(b"p", b"p") if len(self._stack) > 1 else None

    def _snapshot_(self) -> None:
        self._snapshot.abort()
        self._snapshot = self._env.begin()

    def _look(self) -> Any:
        """At the committed state as it was when the snapshot was taken."""
        return self._rows(self._snapshot)

    def _cursor(self, table: str) -> Any:
        if table not in self._cursors:
            self._cursors[table] = self._txn.cursor(db=self._tables[table])
        return self._cursors[table]

    # Where LMDB's cursor stands after a miss is not defined, and nobody relies on it: it is given up.

    def _set_range(self, table: str, key: bytes) -> Any:
        return self._item(table) if self._cursor(table).set_range(key) else self._lost(table)

    def _set_key(self, table: str, key: bytes) -> Any:
        return self._cursor(table).set_key(key) or self._lost(table)

    def _lost(self, table: str) -> bool:
        del self._cursors[table]
        return False

    def _step(self, table: str, name: str) -> Any:
        return self._item(table) if getattr(self._cursor(table), name)() else self._lost(table)

    def _first(self, table: str) -> Any:
        return self._step(table, "first")

    def _last(self, table: str) -> Any:
        return self._step(table, "last")

    def _next(self, table: str) -> Any:
        return self._step(table, "next")

    def _prev(self, table: str) -> Any:
        return self._step(table, "prev")

    def _item(self, table: str) -> Any:
        return tuple(bytes(part) for part in self._cursor(table).item())

    def _cursor_delete(self, table: str) -> Any:
        cursor = self._cursor(table)
        found = cursor.delete(), self._item(table)
        if not found[1][0]:  # that was the last row: one more says so
            return found, cursor.delete(), self._lost(table)
        return found

    def _iternext(self, table: str, count: int) -> Any:
        return self._some(self._cursor(table).iternext(), count)

    def _iterprev(self, table: str, count: int) -> Any:
        return self._some(self._cursor(table).iterprev(), count)

    def _some(self, rows: Iterator[Any], count: int) -> Any:
        found = [row for _, row in zip(range(count), rows, strict=False)]
        self._cursors.clear()
        return found


def _rows(txn: Any, table: Any) -> list[tuple[bytes, bytes]]:
    return [(bytes(key), bytes(value)) for key, value in txn.cursor(db=table)]


def _named(operation: tuple[Any, ...]) -> tuple[Any, ...]:
    """`_snapshot` is the attribute."""
    return ("snapshot_",) if operation[0] == "snapshot" else operation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lmdb")


NUMBERS = iter(range(1 << 30))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans(), st.lists(OPERATIONS, max_size=80))
def test_it_answers_as_lmdb_does(folder: Path, named: bool, operations: list[tuple[Any, ...]]) -> None:
    """With two tables, as the log has them, or with the main one only, as the state has it."""
    real = lmdb.open(str(folder / str(next(NUMBERS))), map_size=1 << 24, max_dbs=2, sync=False, lock=False)
    try:
        one, two = Driver(real, named=named), Driver(Environment(Storage()), named=named)
        for operation in operations:
            assert one.do(_named(operation)) == two.do(_named(operation)), operation
        for newest in (False, True):
            copies = [folder / f"copy {number}" for number in range(2)]
            answers = one.copy(copies[0], lmdb.open, newest=newest), two.copy(copies[1], Vault().open, newest=newest)
            assert answers[0] == answers[1]
            assert newest or answers[0] == one.do(("look",)), "a copy holds what its transaction sees"
        assert one.close() == two.close()
    finally:
        real.close()


def _fill(env: Any, number: int) -> None:
    with env.begin(write=True) as txn:
        txn.put(b"n", b"%d" % number)
        txn.put(b"m", b"%d" % number)


def _found(storage: Storage) -> tuple[bytes | None, bytes | None]:
    with Environment(storage).begin() as txn:
        return txn.get(b"n"), txn.get(b"m")


def test_a_power_cut_keeps_what_was_synced() -> None:
    for seed in range(50):
        storage = Storage()
        _fill(Environment(storage), 1)
        assert not storage.lose_power(random.Random(seed), atomic=True)
        assert _found(storage) == (b"1", b"1")


def test_a_power_cut_keeps_a_transaction_as_a_whole_or_not_at_all() -> None:
    seen = set()
    for seed in range(50):
        storage = Storage()
        env = Environment(storage)
        _fill(env, 1)
        with storage.held_sync():
            _fill(env, 2)
        assert _found(storage) == (b"2", b"2"), "what is committed is seen before it is synced"
        lost = storage.lose_power(random.Random(seed), atomic=True)
        assert lost == (_found(storage) == (b"1", b"1"))
        seen.add(_found(storage))
    assert seen == {(b"1", b"1"), (b"2", b"2")}


def test_a_power_cut_tears_what_nobody_syncs() -> None:
    seen = set()
    for seed in range(100):
        storage = Storage()
        env = Environment(storage, sync=False)
        _fill(env, 1)
        env.sync(True)
        _fill(env, 2)
        storage.lose_power(random.Random(seed), atomic=False)
        seen.add(_found(storage))
    assert {(b"1", b"1"), (b"2", b"2"), (b"1", b"2"), (b"2", b"1")} == seen


def test_a_killed_process_loses_at_most_the_transaction_that_it_was_writing() -> None:
    seen = set()
    for seed in range(50):
        storage = Storage()
        env = Environment(storage)
        _fill(env, 1)
        with storage.held_sync():
            _fill(env, 2)
        storage.lose_process(random.Random(seed), atomic=True)
        seen.add(_found(storage))
    assert seen == {(b"1", b"1"), (b"2", b"2")}
    unsynced = Storage()
    _fill(Environment(unsynced, sync=False), 1)
    assert not unsynced.lose_process(random.Random(1), atomic=False)
    assert _found(unsynced) == (b"1", b"1")


def test_what_is_under_way_dies_with_its_process() -> None:
    """Whether the process is killed or the machine; and what the dead process does to its transaction is nothing."""
    for lose in (Storage.lose_process, Storage.lose_power):
        storage = Storage()
        env = Environment(storage)
        _fill(env, 1)
        outer = env.begin(write=True)
        outer.put(b"n", b"2")
        inner = env.begin(write=True, parent=outer)
        inner.pop(b"m")
        inner.put(b"o", b"3")
        lose(storage, random.Random(1), atomic=True)
        assert _found(storage) == (b"1", b"1")
        _fill(Environment(storage), 4)
        inner.abort()
        outer.abort()
        with pytest.raises(lmdb.Error):
            outer.put(b"n", b"5")
        assert _found(storage) == (b"4", b"4")
        with Environment(storage).begin() as txn:
            assert txn.get(b"o") is None


def test_nobody_sees_what_is_under_way(tmp_path: Path) -> None:
    storage = Storage()
    env = Environment(storage, sync=False)
    _fill(env, 1)
    with env.begin(write=True) as txn:
        txn.put(b"n", b"2")
        early, copy = env.begin(), storage.copy()
        txn.put(b"m", b"2")
        late = env.begin()
        assert {(one.get(b"n"), one.get(b"m")) for one in (early, late)} == {(b"1", b"1")}
        assert _found(copy) == (b"1", b"1")
        assert env.stat()["entries"] == 2
        txn.put(b"o", b"2")
        assert env.stat()["entries"] == 2
    assert _found(storage) == (b"2", b"2")
    assert {(one.get(b"n"), one.get(b"m")) for one in (early, late)} == {(b"1", b"1")}
    _fill(Environment(copy), 3)
    assert _found(storage) == (b"2", b"2"), "copies go different ways"


def test_a_power_cut_keeps_any_of_the_newest_commits_or_what_was_synced() -> None:
    seen = set()
    for seed in range(400):
        storage = Storage()
        env = Environment(storage, sync=False)
        _fill(env, 0)
        env.sync(True)
        for number in range(1, 41):
            _fill(env, number)
        lost = storage.lose_power(random.Random(seed), atomic=True)
        assert lost == (_found(storage) != (b"40", b"40"))
        seen.add(_found(storage))
    assert seen == {(b"%d" % number, b"%d" % number) for number in (0, *range(9, 41))}


# ---- files


def test_an_image_is_an_environment_when_it_is_opened(tmp_path: Path) -> None:
    vault, file = Vault(), tmp_path / "data.mdb"
    _fill(vault.open(str(tmp_path)), 7)
    assert _read(vault.open(str(tmp_path))) == b"7", "the content outlives the process"
    copy = tmp_path / "copy"
    descriptor = os.open(copy, os.O_CREAT | os.O_WRONLY)
    vault.open(str(tmp_path)).copyfd(descriptor, compact=True)
    os.close(descriptor)
    before = copy.read_bytes()
    assert _read(vault.open(str(copy), subdir=False, readonly=True, lock=False)) == b"7"
    assert copy.read_bytes() == before, "looking changes nothing"
    other = vault.open(str(copy), subdir=False)
    _fill(other, 8)
    assert (_read(other), _read(vault.open(str(tmp_path)))) == (b"8", b"7")
    file.rename(tmp_path / "elsewhere")
    assert _read(vault.open(str(tmp_path / "elsewhere"), subdir=False)) == b"7", "a renamed file is the same one"
    with pytest.raises(lmdb.Error, match="No such file"):
        vault.open(str(tmp_path), readonly=True)
    assert _read(vault.open(str(tmp_path))) is None


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_a_damaged_image_is_not_opened(tmp_path: Path, damage: str) -> None:
    data = image.pack({None: [(b"a", b"1"), (b"b", b"22")], b"t": [(b"c", b"")]})
    assert image.unpack(data) == {None: [(b"a", b"1"), (b"b", b"22")], b"t": [(b"c", b"")]}
    for at in range(8, len(data)):
        torn = data[:at] if damage == "cut" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        (tmp_path / "f").write_bytes(torn)
        with pytest.raises(lmdb.CorruptedError):
            Vault().open(str(tmp_path / "f"), subdir=False, readonly=True)
    (tmp_path / "f").write_bytes(b"something else")
    with pytest.raises(lmdb.InvalidError):
        Vault().open(str(tmp_path / "f"), subdir=False)


def test_copied_folders_go_different_ways(tmp_path: Path) -> None:
    one, two = Vault(), Vault()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _fill(one.open(str(tmp_path / "a")), 1)
    (tmp_path / "b" / "data.mdb").write_bytes((tmp_path / "a" / "data.mdb").read_bytes())
    with pytest.raises(lmdb.InvalidError):
        two.open(str(tmp_path / "b"))
    two.copied(tmp_path / "b", one)
    _fill(two.open(str(tmp_path / "b")), 2)
    assert (_read(one.open(str(tmp_path / "a"))), _read(two.open(str(tmp_path / "b")))) == (b"1", b"2")


def _read(env: Environment) -> bytes | None:
    with env.begin() as txn:
        return txn.get(b"n")
