"""The thread that writes the log: whatever queued up during one sync is made durable by the next."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

import lmdb

from kvorum_raft.entry import Entry
from kvorum_raft.errors import RaftFault
from kvorum_raft.faults import kind_of
from kvorum_raft.histogram import Histogram
from kvorum_raft.journal import Batch
from kvorum_raft.log_store import LogStore

_GROUP_BYTES: Final = 16 << 20


class LmdbDisk:
    """The log-writer thread. `submit` and `read` are called in the event loop, `report` is called back in the writer
    thread.

    `report(seq, None)` says that everything up to `seq` is synced; at the end comes `report(-1, None)`, or `report(0,
    fault)` if writing failed, and nothing after it. The queue is bounded by what the core lets go unacknowledged.
    """

    def __init__(self, store: LogStore, report: Callable[[int, RaftFault | None], None]) -> None:
        self._store = store
        self._report = report
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvorum-log-writer", daemon=True)
        self.transactions = 0
        self.seconds = Histogram()
        """Of transactions, syncs included."""
        self._writing_since = 0.0

    def latency(self) -> float:
        """Seconds that the write under way has lasted; 0 if there is none. From any thread."""
        since = self._writing_since
        return time.monotonic() - since if since else 0.0

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._queue.put(batch)

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        return self._store.read(first, count, max_bytes)

    def finish(self) -> None:
        """Ask the thread to write what is queued and to end."""
        self._queue.put(None)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        failure, kind = "it ended unexpectedly", RaftFault
        try:
            more = True
            while more:
                batches, more = self._take()
                if batches:
                    since = self._writing_since = time.monotonic()
                    self._store.write(batches)
                    self._writing_since = 0.0
                    self.seconds.observe(time.monotonic() - since)
                    self.transactions += 1
                    self._report(batches[-1].seq, None)
            failure = ""
        except (lmdb.Error, OSError) as error:
            failure = str(error)
            kind = kind_of(error, self._store.path)
        finally:
            if failure:
                self._report(0, kind(f"writing the log in {self._store.path} failed: {failure}"))
            else:
                self._report(-1, None)

    def _take(self) -> tuple[list[Batch], bool]:
        """Everything that waits, as far as it fits into one transaction; False at the end."""
        batches: list[Batch] = []
        size = 0
        while True:
            batch = self._queue.get()
            if batch is None:
                return batches, False
            batches.append(batch)
            size += sum(entry.size for entry in batch.entries)
            if size > _GROUP_BYTES or self._queue.empty():
                return batches, True
