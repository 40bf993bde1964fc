"""Reads damaged copies of a data file, in a process of its own: LMDB may end it.

    python -m tests.unit.store.damage_worker FOLDER FIRST LAST STEP

FOLDER holds `whole`, an embedded database, and `expected.json`: what was in it after each entry. For each offset, one
byte of a copy of its data file is changed, and everything is read. Prints a line for each: offset, outcome.
"""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import lmdb

from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import packed
from kvorum.errors import DatabaseCorrupt
from kvorum_node.store import Store, StoreFault
from kvorum_node.store.host import LinuxHost

PATIENCE = 60.0
"""Seconds for one copy; SIGALRM then ends the process."""


class QuickHost(LinuxHost):
    def sync_file(self, path: Path) -> None:
        """Nothing here outlives anything."""


def contents(store: Store) -> dict[str, str]:
    """Everything that can be read of a state, as text."""
    with store.snapshot() as snapshot:
        ranged = snapshot.range(pb.ReadRange(start=b"", end=b"\xff" * 8, limit=1 << 31))
        found = {f"key {row.key.hex()}": f"{row.encoding} {row.versionstamp.hex()} {row.value.hex()}" for row in ranged}
        descending = snapshot.range(pb.ReadRange(start=b"", end=b"\xff" * 8, limit=1 << 31, reverse=True))
        for row in descending:
            found.setdefault(f"key {row.key.hex()}", f"{row.encoding} {row.versionstamp.hex()} {row.value.hex()}")
    for lease in store.leases():
        delivery = store.delivery(lease.message_id, lease.lease_id)
        found[f"lease {lease.message_id.hex()}"] = f"{lease} {delivery}"
    found |= {f"session {session.hex()}": "" for session in store.session_ids()}
    return found


def keys_one_by_one(store: Store, keys: list[str]) -> dict[str, str]:
    found = {}
    with store.snapshot() as snapshot:
        for name in keys:
            key = bytes.fromhex(name.removeprefix("key "))
            row = snapshot.get(key)
            if row.versionstamp:
                found[name] = f"{row.encoding} {row.versionstamp.hex()} {row.value.hex()}"
            (data,) = snapshot.packed((key,), 0)
            if data != packed(row):
                found[name] = f"packed {data.hex()}"
    return found


def judge(folder: Path, expected: dict[str, dict[str, str]], last: str) -> str:
    """right; fault; older: an earlier state as a whole; missing, stale: noticed by the scrub only; anything else must
    not be."""
    try:
        store = Store.open(folder, durable=True, map_size=1 << 24, host=QuickHost())
    except (DatabaseCorrupt, StoreFault, lmdb.Error):
        return "fault"
    try:
        index = str(store.applied_index)
        if index not in expected:
            return f"WRONG: index {index}"
        wanted = expected[index]
        outcome = "right" if index == last else "older"
        keys = {name for name in wanted if name.startswith("key")}
        found, gotten = contents(store), keys_one_by_one(store, sorted(keys))
        for name, value in (*found.items(), *gotten.items()):
            if value == wanted.get(name):
                continue
            if not any(value == other.get(name) for other in expected.values()):
                return f"WRONG: {name} = {value}"
            outcome = "stale"
        lost = (wanted.keys() - found.keys()) | (keys - gotten.keys())
        if lost:
            outcome = "missing"
        if outcome in ("missing", "stale"):
            return outcome + noticed(store, all(name.startswith("lease") for name in lost))
        return outcome
    except (StoreFault, lmdb.Error):
        return "fault"
    finally:
        store.close(clean=False)


def noticed(store: Store, only_indexes: bool) -> str:
    """Nothing, if a scan of everything finds out; the content hash does not cover indexes."""
    try:
        for _ in store.scrub(100):
            pass
        return " WRONG: the scrub finds nothing"
    except StoreFault:
        pass
    try:
        if store.recompute_hash() == store.state_hash() and not only_indexes:
            return " WRONG: the hash is right"
    except StoreFault:
        pass
    return ""


def main(folder: Path, first: int, last: int, step: int) -> None:
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    newest = max(expected, key=int)
    whole = (folder / "whole" / "data.mdb").read_bytes()
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "whole", copy)
    for offset in range(first, last, step):
        damaged = bytearray(whole)
        damaged[offset] ^= 0xFF if offset // step % 3 == 0 else 1 << offset % 8
        (copy / "lock.mdb").unlink(missing_ok=True)
        (copy / "data.mdb").write_bytes(damaged)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        outcome = judge(copy, expected, newest)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(offset, outcome, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
