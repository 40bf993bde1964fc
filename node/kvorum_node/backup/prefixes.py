"""One range of keys of an older state put back into a database that goes on: its keys become what they were, and keys
that came since are deleted. Versionstamps are new ones, as with every write.

Written in atomic batches, each of which checks that what it replaces is still what was looked at; where somebody else
has written meanwhile the range is looked over again. It is not one transaction: whoever reads between two batches sees
a part of the range restored.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Backend
from kvorum.errors import KvorumError, Unavailable

from ..store import Snapshot, make_entry

PASSES: Final = 10
"""How often the range is looked over while others write to it."""
_PAGE: Final = 500
_BATCH_KEYS: Final = limits.MAX_CHECKS
_BATCH_BYTES: Final = limits.MAX_TOTAL_WRITE_SIZE // 2
_NEAR_MS: Final = 5_000
"""Expiries that differ by less are the same: they are given as durations."""


@dataclass(slots=True)
class Counts:
    """Keys."""

    set: int = 0
    deleted: int = 0
    same: int = 0
    expired: int = 0
    """That were there then, and would have expired since: they are not set."""
    passes: int = 0


class PutBack:
    """`snapshot` is the older state; `start` inclusive, `end` exclusive, encoded keys; `timeout` is seconds of a
    call."""

    def __init__(
        self,
        snapshot: Snapshot,
        backend: Backend,
        start: bytes,
        end: bytes,
        *,
        timeout: float,
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> None:
        self._snapshot = snapshot
        self._backend = backend
        self._start, self._end = start, end
        self._timeout = timeout
        self._progress = progress
        self._now_ms = 0
        self._lost = 0
        self.counts = Counts()

    async def compare(self) -> Counts:
        """What `run` would do now. Errors: KvorumError, StoreFault."""
        self.counts = Counts(passes=1)
        async for _ in self._changes():
            pass
        return self.counts

    async def run(self) -> Counts:
        """Do it; the counts are of all passes. Errors: Unavailable if others write faster; KvorumError, StoreFault."""
        self.counts = Counts()
        for number in range(PASSES):
            self.counts.same = self.counts.expired = 0
            self.counts.passes = number + 1
            self._lost = 0
            await self._pass()
            if not self._lost:
                return self.counts
        raise Unavailable(f"others go on writing to these keys: after {PASSES} rounds {self._lost} were still changing")

    async def _pass(self) -> None:
        batch, size = pb.AtomicWrite(), 0
        async for check, mutation in self._changes():
            weight = len(mutation.key) + len(mutation.value)
            if len(batch.mutations) >= _BATCH_KEYS or size + weight > _BATCH_BYTES:
                await self._commit(batch)
                batch, size = pb.AtomicWrite(), 0
            batch.checks.append(check)
            batch.mutations.append(mutation)
            size += weight
        await self._commit(batch)

    async def _commit(self, batch: pb.AtomicWrite) -> None:
        if not batch.mutations:
            return
        outcome = await self._backend.write(batch.SerializeToString(), timeout=self._timeout)
        if outcome.result.outcome == pb.OUTCOME_CHECK_FAILED:
            self._lost += len(outcome.result.failed_checks)
            for mutation in batch.mutations:
                self._count(mutation, -1)
        elif outcome.result.outcome != pb.OUTCOME_DONE:
            raise KvorumError(f"a batch was refused: {outcome.result.message or outcome.result.outcome}")
        self._progress(self.counts)

    def _count(self, mutation: pb.Mutation, by: int) -> None:
        if mutation.type == pb.MUTATION_TYPE_DELETE:
            self.counts.deleted += by
        else:
            self.counts.set += by

    async def _changes(self) -> AsyncIterator[tuple[pb.Check, pb.Mutation]]:
        """What makes the range what it was, by key; each is counted as done."""
        old = self._rows()
        wanted = next(old, None)
        async for live in self._live():
            while wanted is not None and wanted.key < live.key:
                if (change := self._set(wanted, None)) is not None:
                    yield change
                wanted = next(old, None)
            if wanted is not None and wanted.key == live.key:
                change = self._set(wanted, live)
                wanted = next(old, None)
            else:
                change = self._delete(live)
            if change is not None:
                yield change
        while wanted is not None:
            if (change := self._set(wanted, None)) is not None:
                yield change
            wanted = next(old, None)

    def _rows(self) -> Iterator[pb.KvEntry]:
        selected = pb.ReadRange(start=self._start, end=self._end, limit=(1 << 32) - 1)
        for key, row in self._snapshot.iter_rows(selected):
            yield make_entry(key, row, with_expiry=True)

    async def _live(self) -> AsyncIterator[pb.KvEntry]:
        start = self._start
        while True:
            read = pb.Read(with_expiry=True)
            read.ranges.add(start=start, end=self._end, limit=_PAGE)
            answer = await self._backend.read(read, timeout=self._timeout)
            self._now_ms = answer.time_ms
            entries = answer.ranges[0].entries
            for entry in entries:
                yield entry
            if len(entries) < _PAGE:
                return
            start = entries[-1].key + b"\0"

    def _set(self, wanted: pb.KvEntry, live: pb.KvEntry | None) -> tuple[pb.Check, pb.Mutation] | None:
        left = wanted.expire_at_ms - self._now_ms if wanted.expire_at_ms else None
        if left is not None and left <= 0:
            self.counts.expired += 1
            return None if live is None else self._delete(live)
        if live is not None and _same(wanted, live):
            self.counts.same += 1
            return None
        mutation = pb.Mutation(
            key=wanted.key,
            type=pb.MUTATION_TYPE_SET,
            value=wanted.value,
            encoding=wanted.encoding,
            expire_in_ms=left,
        )
        self._count(mutation, 1)
        stamp = b"" if live is None else live.versionstamp
        return pb.Check(key=wanted.key, versionstamp=stamp), mutation

    def _delete(self, live: pb.KvEntry) -> tuple[pb.Check, pb.Mutation]:
        mutation = pb.Mutation(key=live.key, type=pb.MUTATION_TYPE_DELETE)
        self._count(mutation, 1)
        return pb.Check(key=live.key, versionstamp=live.versionstamp), mutation


def _same(wanted: pb.KvEntry, live: pb.KvEntry) -> bool:
    if (wanted.value, wanted.encoding) != (live.value, live.encoding):
        return False
    if not wanted.expire_at_ms or not live.expire_at_ms:
        return wanted.expire_at_ms == live.expire_at_ms
    return abs(wanted.expire_at_ms - live.expire_at_ms) < _NEAR_MS
