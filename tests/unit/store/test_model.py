"""The whole machine against a dictionary: random atomics, checks, sums, expiry, touches, ranges and sweeps.

The model keeps values as Python objects and knows nothing of rows, encodings of keys, or indexes.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import DATA_VERSION, mutations
from kvorum_node.store.sums import emit_number
from tests.unit.store.harness import (
    BYTES,
    LE64,
    V8,
    Replica,
    add,
    combine,
    delete,
    delete_range,
    group,
    init_cluster,
    sweep,
    touch,
    u64,
)

TOP = (1 << 64) - 1
MOST = 3
"""Keys that the ranges of a commit may hold here."""


class Unsigned(int):
    """A 64-bit counter; a plain int is a BigInt, a float a Number, bytes are bytes."""


Value = Unsigned | int | float | bytes


class Row(NamedTuple):
    value: Value
    stamp: bytes
    expire_at: int | None


class Failed(Exception):
    def __init__(self, outcome: int) -> None:
        self.outcome = outcome


def encoded(value: Value) -> tuple[int, bytes]:
    if isinstance(value, bytes):
        return BYTES, value
    if isinstance(value, Unsigned):
        return LE64, u64(value)
    return V8, emit_number(value)


class Action(NamedTuple):
    """One mutation, as the model sees it."""

    kind: str
    key: bytes
    value: Value
    expire_in: int | None
    clamp: bool
    end: bytes = b""
    limit: int = 0


@dataclass
class Model:
    rows: dict[bytes, Row] = field(default_factory=dict)
    deleted: int = 0
    """By the ranges of the running commit."""

    def run(self, action: Action, stamp: bytes, now_ms: int) -> None:
        old = self.rows.get(action.key)
        if action.kind == "set":
            expire_at = None if action.expire_in is None else now_ms + action.expire_in
            self.rows[action.key] = Row(action.value, stamp, expire_at)
        elif action.kind == "delete":
            self.rows.pop(action.key, None)
        elif action.kind == "touch":
            if old is not None:
                expire_at = None if action.expire_in is None else now_ms + action.expire_in
                self.rows[action.key] = Row(old.value, old.stamp, expire_at)
        elif action.kind == "range":
            found = sorted(key for key in self.rows if action.key <= key < action.end)[: action.limit or None]
            self.deleted += len(found)
            if self.deleted > MOST:
                raise Failed(pb.OUTCOME_RANGE_ERROR)
            for key in found:
                del self.rows[key]
        elif action.kind == "sum":
            self.rows[action.key] = Row(self.wire_sum(old, action.value), stamp, None)
        elif action.kind in ("min", "max"):
            self.rows[action.key] = Row(self.extreme(old, action), stamp, None)
        else:
            self.rows[action.key] = Row(self.python_sum(old, action), stamp, None)

    @staticmethod
    def wire_sum(old: Row | None, operand: Value) -> Value:
        assert not isinstance(operand, bytes)
        if old is None:
            return operand
        if isinstance(operand, Unsigned):
            if not isinstance(old.value, Unsigned):
                raise Failed(pb.OUTCOME_TYPE_ERROR)
            return Unsigned((old.value + operand) % (TOP + 1))
        if isinstance(old.value, Unsigned) and isinstance(operand, int) and 0 <= operand <= TOP:
            return Unsigned((old.value + operand) % (TOP + 1))
        if isinstance(old.value, (bytes, Unsigned)) or type(old.value) is not type(operand):
            raise Failed(pb.OUTCOME_TYPE_ERROR)
        return old.value + operand

    @staticmethod
    def extreme(old: Row | None, action: Action) -> Value:
        assert isinstance(action.value, Unsigned)
        if old is None:
            return action.value
        if not isinstance(old.value, Unsigned):
            raise Failed(pb.OUTCOME_TYPE_ERROR)
        return Unsigned(min(old.value, action.value) if action.kind == "min" else max(old.value, action.value))

    @staticmethod
    def python_sum(old: Row | None, action: Action) -> Value:
        operand = action.value
        assert not isinstance(operand, (bytes, Unsigned))
        whole = isinstance(operand, int) or operand.is_integer()
        current: Value = (Unsigned(0) if whole else 0.0) if old is None else old.value
        if isinstance(current, bytes) or (isinstance(current, int) and not whole):
            raise Failed(pb.OUTCOME_TYPE_ERROR)
        if isinstance(current, float):
            return current + float(operand)
        if not isinstance(current, Unsigned):
            return current + int(operand)
        total = current + int(operand)
        if not 0 <= total <= TOP and not action.clamp:
            raise Failed(pb.OUTCOME_RANGE_ERROR)
        return Unsigned(max(0, min(TOP, total)))


NAMES = [b"a", b"b", b"c", b"k" * 495, b"k" * 496, b"k" * 2_048, b"k" * 496 + b"\x00", b"\x00"]


def name(at: int) -> bytes:
    return NAMES[at]


KEYS = st.integers(0, len(NAMES) - 1).map(name)
SMALL = st.integers(0, 5).map(Unsigned) | st.sampled_from([Unsigned(TOP), Unsigned(TOP - 1)])
NUMBERS = st.integers(-(1 << 66), 1 << 66) | st.sampled_from([0, 1, -1, 0.5, -2.0, 3.0, 1e300])
VALUES = SMALL | NUMBERS | st.binary(max_size=5)


def action(kind: str, values: st.SearchStrategy[Value]) -> st.SearchStrategy[Action]:
    expiries = st.none() | st.sampled_from([0, 1, 5, 50]) if kind == "set" else st.none()
    return st.builds(Action, st.just(kind), KEYS, values, expiries, st.booleans())


ACTIONS = st.one_of(
    action("set", VALUES),
    action("set", VALUES),
    action("delete", st.just(b"")),
    action("sum", SMALL | NUMBERS),
    action("min", SMALL),
    action("max", SMALL),
    action("add", NUMBERS),
    st.builds(Action, st.just("touch"), KEYS, st.just(b""), st.none() | st.sampled_from([1, 5, 50]), st.just(False)),
    st.builds(
        Action,
        st.just("range"),
        KEYS | st.just(b""),
        st.just(b""),
        st.none(),
        st.just(False),
        KEYS | st.just(b"\xff"),
        st.integers(0, 3),
    ),
)
KINDS = {
    "sum": pb.MUTATION_TYPE_SUM,
    "min": pb.MUTATION_TYPE_MIN,
    "max": pb.MUTATION_TYPE_MAX,
}


def mutation(action: Action) -> pb.Mutation:
    if action.kind == "set":
        encoding, value = encoded(action.value)
        return pb.Mutation(
            key=action.key,
            type=pb.MUTATION_TYPE_SET,
            value=value,
            encoding=pb.ValueEncoding.Name(encoding),
            expire_in_ms=action.expire_in,
        )
    if action.kind == "delete":
        return delete(action.key)
    if action.kind == "touch":
        return touch(action.key, action.expire_in)
    if action.kind == "range":
        return delete_range(action.key, action.end, limit=action.limit)
    assert not isinstance(action.value, bytes)
    if action.kind == "add":
        return add(action.key, action.value, clamp=action.clamp)
    operand = u64(action.value) if isinstance(action.value, Unsigned) else action.value
    return combine(KINDS[action.kind], action.key, operand)


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model()
        self.stale = bytes(10)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(mutations, "MAX_DELETED_RANGE_KEYS", MOST)

    @initialize()
    def start(self) -> None:
        self.replica = Replica(Path(self.folder.name) / "state", slice_commits=4, data_version=DATA_VERSION)
        self.replica.apply(init_cluster())

    @rule(actions=st.lists(ACTIONS, max_size=5), checks=st.lists(st.tuples(KEYS, st.integers(0, 4)), max_size=3))
    def commit(self, actions: list[Action], checks: list[tuple[bytes, int]]) -> None:
        write = pb.AtomicWrite(mutations=map(mutation, actions))
        failing: list[int] = []
        for at, (key, kind) in enumerate(checks):
            row = self.model.rows.get(key)
            stamp = row.stamp if row else b""
            if kind == 0:  # right
                write.checks.add(key=key, versionstamp=stamp)
                failed = False
            elif kind == 1:  # absent
                write.checks.add(key=key)
                failed = row is not None
            elif kind == 2:
                write.checks.add(key=key, versionstamp=self.stale)
                failed = stamp != self.stale
            elif kind == 3:
                write.checks.add(key=key, kind=pb.CHECK_KIND_EXISTS)
                failed = row is None
            else:
                write.checks.add(key=key, kind=pb.CHECK_KIND_NOT_NEWER, versionstamp=self.stale)
                failed = row is None or stamp > self.stale
            if failed:
                failing.append(at)
        before = self.replica.store.state_hash()
        answers = self.replica.apply(group(write)).outputs[0]
        result = answers.results[0]
        stamp = answers.stamp_prefix + result.number.to_bytes(2, "big")
        expected: int = pb.OUTCOME_CHECK_FAILED if failing else pb.OUTCOME_DONE
        rows = dict(self.model.rows)
        self.model.deleted = 0
        if not failing:
            try:
                for done in actions:
                    self.model.run(done, stamp, self.replica.store.applied_time_ms)
            except Failed as failed_at:
                expected = failed_at.outcome
                self.model.rows = rows
        assert (result.outcome, list(result.failed_checks)) == (expected, failing)
        assert result.deleted == (self.model.deleted if expected == pb.OUTCOME_DONE else 0)
        if expected != pb.OUTCOME_DONE:
            assert self.replica.store.state_hash() == before

    @rule()
    def remember(self) -> None:
        """From here on, checks with an older stamp are against this moment."""
        stamps = [row.stamp for row in self.model.rows.values()]
        self.stale = max(stamps, default=bytes(10))

    @rule(pause=st.sampled_from([0, 1, 4, 60]), limit=st.sampled_from([1, 2, 1_000]))
    def sweep(self, pause: int, limit: int) -> None:
        self.replica.now_ms += pause
        now = self.replica.now_ms
        due = [(row.expire_at, key) for key, row in self.model.rows.items() if row.expire_at is not None]
        late = [(at, key) for at, key in due if at <= now]
        result = self.replica.apply(sweep(limit))
        assert result.outputs[0] == min(limit, len(late)) == len(result.changed_keys)
        swept = sorted(at for at, key in late if key in result.changed_keys)
        assert swept == sorted(at for at, _ in late)[: len(swept)]
        for key in result.changed_keys:
            del self.model.rows[key]

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.replica.reopen(clean=clean)

    @invariant()
    def equal(self) -> None:
        expected = [(key, *encoded(row.value), row.stamp) for key, row in sorted(self.model.rows.items())]
        rows = [(row.key, row.encoding, row.value, row.versionstamp) for row in self.replica.rows()]
        assert rows == expected
        reverse = [row.key for row in self.replica.rows(reverse=True)]
        assert reverse == [key for key, *_ in expected][::-1]
        with self.replica.store.snapshot() as snapshot:
            whole = pb.ReadRange(end=b"\xff")
            assert list(snapshot.iter_keys(whole)) == [key for key, *_ in expected]
            for key, row in self.model.rows.items():
                assert snapshot.expire_at_ms(key) == row.expire_at
                assert snapshot.get(key, with_expiry=True).expire_at_ms == (row.expire_at or 0)
        expiries = [row.expire_at for row in self.model.rows.values() if row.expire_at is not None]
        assert self.replica.store.next_expiry_ms() == min(expiries, default=None)
        assert self.replica.store.statistics()["keys"] == len(expected)
        self.replica.check_hash()
        list(self.replica.store.scrub(1_000))

    def teardown(self) -> None:
        self.patch.undo()
        self.replica.store.close()
        self.folder.cleanup()


Comparison.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestModel = Comparison.TestCase
