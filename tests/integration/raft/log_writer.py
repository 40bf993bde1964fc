"""A program that writes a history into a log, and is to be killed meanwhile. It says what it finds, and what is synced.

    python -m tests.integration.raft.log_writer FOLDER SEED BATCHES STAGE LINES

It ends itself by SIGKILL when the log's code has run so many lines in the stage `open`, `write` or `close`; in the
stage `never` somebody else does, or nobody.
"""

import itertools
import os
import random
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kvorum_raft.errors import RaftFault
from kvorum_raft.journal import Batch
from kvorum_raft.log_disk import LmdbDisk
from kvorum_raft.log_store import LogStore
from tests.integration.raft.log_history import Model, after

MOST_UNSYNCED: Final = 6
"""Batches."""
_CODE: Final = ("log_disk.py", "log_store.py", "write_ahead.py")


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def _die_after(lines: int) -> None:
    left = itertools.count(lines, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(_CODE):
            return None
        if event == "line" and next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


class Writer:
    """Hands batches to the log's thread, and reads what is durable at the same time."""

    def __init__(self, store: LogStore, model: Model) -> None:
        self._model = model
        self._room = threading.Semaphore(MOST_UNSYNCED)
        self._reported = model.number
        self._disk = LmdbDisk(store, self._report)

    def _report(self, seq: int, fault: RaftFault | None) -> None:
        if fault is not None:
            _say(f"fault {fault}")
        if seq > 0:
            _say(f"synced {seq}")
            for _ in range(seq - self._reported):
                self._room.release()
            self._reported = seq

    def run(self, batches: int) -> None:
        rng = random.Random(batches)
        self._disk.start()
        waiting: list[Batch] = []
        for _ in range(batches):
            self._room.acquire()
            batch = self._model.next()
            waiting = [*(one for one in waiting if one.seq > self._reported), batch]
            self._disk.submit(batch)
            self._read(rng, waiting[0].seq)
        self._disk.finish()
        self._disk.join()

    def _read(self, rng: random.Random, first_unsynced: int) -> None:
        """Committed entries of synced batches: nothing that is under way changes them."""
        committed = range(self._model.state.base_index + 1, self._model.state.commit_bound + 1)
        known = [index for index in committed if self._model.entries[index].time_ms < first_unsynced]
        if known:
            first = rng.choice([known[-1], rng.choice(known)])
            found = self._disk.read(first, rng.choice([1, known[-1] + 1 - first]), 1 << 20)
            assert found, f"entry {first} is synced and cannot be read"
            assert found == [self._model.entries[one.index] for one in found] and found[0].index == first


def main(folder: Path, seed: int, batches: int, stage: str, lines: int) -> None:
    if stage == "open":
        _die_after(lines)
    store = LogStore.open(folder, map_size=1 << 30)
    stored = store.verify(cache=1 << 30)
    model = after(seed, stored.state)
    model.check(store, stored)
    _say(f"found {model.number}")
    if stage == "write":
        _die_after(lines)
    Writer(store, model).run(batches)
    if stage == "close":
        _die_after(lines)
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
