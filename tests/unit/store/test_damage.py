"""Damaged pages: never another value than was written, whichever byte changes."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from kvorum._proto import kvorum_pb2 as pb
from tests.unit.store.damage_worker import contents
from tests.unit.store.harness import Replica, enqueue, group, init_cluster, lease, open_session, put, write

ROOT = Path(__file__).parents[3]
STEP = 23
"""Offsets from one changed byte to the next. All of them (1) take some minutes."""


def make_whole(folder: Path) -> None:
    """A database with each kind of row in a few pages, and what was in it after each entry."""
    made = Replica(folder / "whole", durable=True)
    expected: dict[str, dict[str, str]] = {}

    def note() -> None:
        expected[str(made.store.applied_index)] = contents(made.store)

    made.apply(init_cluster())
    note()
    session: bytes = made.apply(open_session("the client")).outputs[0]
    note()
    for at in range(12):
        parts: list[pb.Mutation | pb.Enqueue] = [put(b"key-%d" % at, b"value %d of many" % at * 5)]
        parts.append(put(b"same", b"%d" % at))
        parts.append(put(b"long" * 200 + b"%d" % (at % 3), b"under a long key", expire_in_ms=1_000_000 + at))
        parts.append(enqueue(b"message %d" % at, queue="work", keys=[b"dead"]))
        made.apply(group(write(*parts), session=session, first_seq=at + 1, ack_below=1))
        note()
    made.apply(group(write(put(b"big", b"overflow page " * 500))))
    note()
    made.apply(lease(session, queue="work", count=5))
    note()
    made.check_hash()
    made.store.close()
    (folder / "expected.json").write_text(json.dumps(expected))


def run_worker(folder: Path, step: int, first: int = 0) -> Counter[str]:
    """Outcomes, over all offsets; where the worker ends, the next one goes on behind that offset."""
    size = (folder / "whole" / "data.mdb").stat().st_size
    outcomes: Counter[str] = Counter()
    while first < size:
        command = [
            sys.executable,
            "-m",
            "tests.unit.store.damage_worker",
            str(folder),
            str(first),
            str(size),
            str(step),
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [line.partition(" ") for line in ended.stdout.splitlines()]
        outcomes.update(outcome for _, _, outcome in lines)
        if lines:
            first = int(lines[-1][0]) + step
        if ended.returncode == 0:
            break
        assert ended.returncode < 0, ended.stderr
        outcomes[f"ended by signal {-ended.returncode}"] += 1
        first += step
    return outcomes


def test_a_changed_byte_never_changes_a_value(tmp_path: Path) -> None:
    make_whole(tmp_path)
    outcomes = run_worker(tmp_path, STEP)
    print(dict(outcomes))
    assert not [outcome for outcome in outcomes if "WRONG" in outcome]
    assert "older" not in outcomes, "it was closed, so it is known where it ended"
    assert outcomes["right"] > 0
    assert outcomes["fault"] > outcomes["missing"]
