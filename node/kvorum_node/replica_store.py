"""The state of a cluster's node: a `Store` whose want of room is told apart from damage.

A node whose disk or map is full cannot apply what was committed, so it stops, as with every fault. But with another
exit status: its disk is sound, and room is all that it needs.
"""

from collections.abc import Generator

import lmdb

from kvorum_raft.errors import DiskFull
from kvorum_raft.faults import is_full

from .store import ApplyResult, Store, StoreFault


class ReplicaStore(Store):
    """`apply` raises `kvorum_raft.errors.DiskFull` where there is no room."""

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, ApplyResult]:
        try:
            return (yield from super().apply(index, time_ms, payload))
        except (lmdb.Error, OSError, StoreFault) as error:
            if not is_full(error, self.data_file):
                raise
            raise DiskFull(f"entry {index} finds no room in the state: {error}") from error
