"""The log of slow operations, and how operations are counted."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.logs import LineFormatter
from kvorum_node.metrics import service as of_service
from kvorum_node.reads import PendingRead
from kvorum_node.slow import LINES, SlowLog, of_keys
from kvorum_raft.errors import NotLeader

from .harness import Node

ANY = 1e-9
"""Seconds that everything takes."""


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(record, "fields", {}) for record in caplog.records if record.name == "kvorum.slow"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, slow_operation=ANY)
    yield node
    node.close()


def set_of(*keys: bytes) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    for key in keys:
        op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=b"secret", encoding=pb.VALUE_ENCODING_BYTES)
    return op


def test_a_write_is_told_with_its_phases_and_without_its_content(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    op = set_of(b"\x02users\0\x02nina\0", b"\x02users\0\x02eunice\0")
    node.write(op)
    (told,) = fields(caplog)
    assert told.keys() >= {"ms", "waited_ms", "logged_ms", "applied_ms"}
    assert (told["kind"], told["code"], told["writes"], told["mutations"]) == ("write", "ok", 1, 2)
    assert (told["key_bytes"], told["prefix_bytes"], told["bytes"]) == (15, 8, op.ByteSize())
    assert told["ms"] == pytest.approx(told["waited_ms"] + told["logged_ms"] + told["applied_ms"], abs=0.3)
    line = LineFormatter("n1", "text").format(caplog.records[-1])
    assert " kind=write " in line and "nina" not in line and "secret" not in line
    assert json.loads(LineFormatter("n1", "json").format(caplog.records[-1]))["key_bytes"] == 15


def test_reads_and_calls_are_told_too(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.write(set_of(b"\x02a\0"))
    node.service.barrier.wait = lambda passed: passed(None)  # type: ignore[method-assign]
    caplog.clear()
    answers: list[pb.ReadResult] = []
    node.service.reads.submit([PendingRead(pb.Read(keys=[b"\x02a\0"]), answers.append, lambda job, part: None)])
    wide = pb.Read(ranges=[pb.ReadRange(start=b"\x02a", end=b"\x03", limit=10)])
    node.service.reads.submit([PendingRead(wide, answers.append, lambda job, part: None)])
    node.timers.settle()
    node.call(queues=pb.ListQueues())
    told = {one["kind"]: one for one in fields(caplog)}
    assert told.keys() >= {"read", "list", "queue_call"}
    assert (told["list"]["ranges"], told["list"]["slices"], told["list"]["key_bytes"]) == (1, 1, 2)
    assert told["queue_call"]["call"] == "queues"


def test_without_a_setting_nothing_is_slow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)
    node.write(set_of(b"\x02a\0"))
    assert fields(caplog) == [] and node.service.slow.count == 0
    node.close()


def test_crowds_get_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    slow = SlowLog(0.5, lambda: now[0])
    made = []

    def facts() -> dict[str, int]:
        made.append(1)
        return {"n": len(made)}

    for _ in range(LINES + 7):
        slow.took("write", 0.7, facts, 3)
    assert len(fields(caplog)) == len(made) == LINES
    now[0] += 1.0
    slow.took("write", 0.7, facts)
    assert fields(caplog)[-1] == {"kind": "write", "ms": 700.0, "n": LINES + 1, "left_out": 7}
    assert slow.statistics() == {"slow_operations": 3 * (LINES + 7) + 1}


def test_sizes_of_keys() -> None:
    assert of_keys([]) == {}
    assert of_keys([b"abc"]) == {"key_bytes": 3, "prefix_bytes": 3}
    assert of_keys([b"abd", b"ab", b"abcd"]) == {"key_bytes": 4, "prefix_bytes": 2}
    assert of_keys([b"x", b""]) == {"key_bytes": 1, "prefix_bytes": 0}


def test_fields_never_hide_what_a_line_always_has() -> None:
    record = logging.LogRecord("kvorum.slow", logging.WARNING, "", 0, "slow operation", (), None)
    record.fields = {"node": "n9", "kind": "a b"}
    line = LineFormatter("n1", "text").format(record)
    assert "node=n1" in line and "n9" not in line and line.endswith('kind="a b"')


# ---- counts


def codes(node: Node) -> dict[tuple[str, ...], float]:
    return dict(of_service.counts(node.service)["kv_ops"])


def test_writes_are_counted_by_what_was_answered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(set_of(b"\x02a\0"))
    node.write(set_of(b"\x02b\0"))
    conflict = set_of(b"\x02a\0")
    conflict.checks.add(key=b"\x02a\0")
    node.write(conflict)
    node.write(set_of(b"\x02" + b"k" * 3_000))
    node.consensus.refuse_with = NotLeader("elsewhere")
    node.write(set_of(b"\x02c\0"))
    found = {code: count for (op, code), count in codes(node).items() if op == "write"}
    assert found == {"ok": 2, "check_failed": 1, "invalid": 1, "not_leader": 1}
    assert node.service.statistics()["write_conflicts"] == 1
    assert node.service.writes.seconds.count == 3, "what was refused at once has no time"
    node.close()


def test_a_stale_acknowledgement_is_counted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    session = node.open_session()
    op = pb.AtomicWrite()
    op.settles.add(message_id=b"m" * 12, lease_id=b"l" * 12, kind=pb.SETTLE_KIND_ACK)
    (result,) = node.write(op, session)
    assert result.outcome == pb.OUTCOME_STALE_LEASE
    assert node.service.statistics()["write_stale_leases"] == 1
    assert codes(node)["write", "stale_lease"] == 1
    node.close()


def test_delays_are_those_of_what_was_due_first(tmp_path: Path) -> None:
    from .harness import Receiver

    node = Node(tmp_path)
    session = node.open_session()
    node.enqueue(b"1")
    node.timers.advance(2.0)
    node.enqueue(b"2")
    Receiver(node, session, credits=10)
    node.timers.settle()
    delays = node.service.delivery.delays
    assert delays.count == 2 and 4.0 <= delays.sum < 4.6, "both count as the first one"
    node.enqueue(b"3")  # handed out in its own entry
    assert delays.count == 3 and delays.sum < 4.6
    node.close()
