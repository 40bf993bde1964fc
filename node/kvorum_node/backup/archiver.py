"""A node copies what it applies into an archive, so that any moment can be restored, not only that of a backup.

Two kinds of files go there: *bases*, which are backups, now and then, and *segments* of the log, every few seconds or
MiB. A segment begins where the one before it ended, and its name says where that is, so there is no gap unless there is
one in the names. The log of this node is not cut before it is archived, however long the target cannot be reached, but
for one case: where the disk has less than twice the room below which the cluster refuses writes, the node is worth more
than the archive. Then there is a gap, which is told loudly, and a new base begins behind it.

Nothing here is remembered between two runs: where to go on is read from the names in the archive.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum_raft.background import Stopping
from kvorum_raft.entry import Entry
from kvorum_raft.errors import RaftError
from kvorum_raft.log_reader import LogReader

from ..store import Store, StoreFault
from . import names
from .catalog import Catalog
from .frames import FORMAT, SEGMENT, BadFile, encode
from .saving import Backups, Busy
from .targets import ArchiveTarget

POLL: Final = 0.5
"""Seconds between looks at the log."""
RETRY: Final = 5.0
"""Seconds after a failure."""
READ: Final = 1 << 20
"""Bytes of entries at once."""
T = TypeVar("T")
logger = logging.getLogger("kvorum.backup")


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Seconds and bytes."""

    every: float = 10.0
    """A segment is closed when its first entry has waited for so long,"""
    segment_bytes: int = 16 << 20
    """or when it has so many bytes."""
    base_every: float = 86_400.0
    keep: float = 0.0
    """Files that no moment of so many last seconds needs are deleted; 0: none."""


@dataclass(slots=True)
class _Open:
    """The segment that is being filled."""

    entries: list[Entry] = field(default_factory=list)
    bytes: int = 0
    since: float = 0.0
    prev_term: int = 0


class Archiver:
    """Of one node. `log` is None while the node does not run; `tight` says that the disk has not much room left;
    `skipped` are the commits that an operator had this node skip."""

    def __init__(
        self,
        store: Store,
        log: Callable[[], LogReader | None],
        backups: Backups,
        target: ArchiveTarget,
        node_id: str,
        settings: ArchiveSettings,
        *,
        tight: Callable[[], bool],
        skipped: Iterable[tuple[int, int]] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._log = log
        self._backups = backups
        self._target = target
        self._node_id = node_id
        self._settings = settings
        self._tight = tight
        self._skipped = sorted(skipped)
        self._clock, self._wall = clock, wall
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="kvorum-archive")
        self._task: asyncio.Task[None] | None = None
        self._base_task: asyncio.Task[None] | None = None
        self._archived = 0
        """Everything up to this entry is in the archive, in a base or in segments; 0: it is not known yet."""
        self._told_until = 0
        """The last entry of the newest gap that was told of."""
        self._open = _Open()
        self._newest_base = 0.0
        self._complete_at = clock()
        self._failing_since: float | None = None
        self._counts = dict.fromkeys(("segments", "bases", "bytes", "gaps", "failures"), 0)

    # ---- life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What was not archived yet is at the next start: the log keeps it."""
        tasks = [task for task in (self._task, self._base_task) if task is not None]
        for task in tasks:
            task.cancel()
        self._target.halt()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def bound(self) -> int | None:
        """The last entry that may be cut off this node's log; None: any."""
        return None if self._tight() else self._archived

    def statistics(self) -> dict[str, float]:
        """Numbers for metrics: seconds, bytes, entries. `archive_age_seconds` is for how long something that was
        applied has not been in the archive."""
        lag = max(0, self._store.applied_index - self._archived) if self._archived else 0
        return {
            "archive_entry": float(self._archived),
            "archive_lag_entries": float(lag),
            "archive_age_seconds": self._clock() - self._complete_at if lag or not self._archived else 0.0,
            "archive_failing_seconds": 0.0 if self._failing_since is None else self._clock() - self._failing_since,
            "archive_base_age_seconds": self._wall() - self._newest_base if self._newest_base else 0.0,
            **{f"archive_{name}": float(count) for name, count in self._counts.items()},
        }

    async def _run(self) -> None:
        while True:
            pause = POLL
            try:
                await self._round()
                self._failing_since = None
            except Stopping:
                return
            except (OSError, Busy, StoreFault, RaftError) as error:
                self._failed()
                logger.error("the archive %s cannot be written, next attempt in %g s: %s", self._target, RETRY, error)
                pause = RETRY
            except Exception:  # whoever ended here would keep the log from being cut, and say nothing of it
                self._failed()
                logger.exception(
                    "the archive %s is not written by a fault of this node, next attempt in %g s", self._target, RETRY
                )
                pause = RETRY
            await asyncio.sleep(pause)

    def _failed(self) -> None:
        self._counts["failures"] += 1
        if self._failing_since is None:
            self._failing_since = self._clock()

    async def _round(self) -> None:
        log = self._log()
        if log is None or not self._store.cluster_id:
            return
        if not self._archived and not await self._find_place(log):
            return
        if self._archived < log.base_index and self._open.entries:
            await self._close_segment()  # what was read before it was cut off
        if self._archived < log.base_index:
            self._told_gap(log)
            await self._begin_anew(log)
        self._base_if_due()
        await self._archive(log)

    # ---- where to go on

    async def _find_place(self, log: LogReader) -> bool:
        """False: not now."""
        place = names.place(self._store.cluster_id, self._node_id)
        listed = await self._in_thread(lambda: self._target.names(place))
        found = [one for one in map(names.parse, listed) if one is not None]
        bases = [one for one in found if isinstance(one, names.Base)]
        segments = [one for one in found if isinstance(one, names.Segment)]
        self._newest_base = max((base.made_ms / 1000 for base in bases), default=0.0)
        if not bases:
            await self._begin_anew(log)
            return True
        newest = max(bases, key=lambda base: base.entry)
        last = max(segments, key=lambda segment: segment.last, default=None)
        index, term = (newest.entry, newest.term) if last is None else (last.last, last.last_term)
        if index > log.applied_index:
            return False  # this node is behind, e.g. because it has just been started
        self._check_fork(log, index, term)
        if index < log.base_index <= newest.entry <= log.applied_index:
            self._told_gap(log, index)
            index = newest.entry
        self._archived = index
        logger.info("the archive %s goes on behind entry %d", self._target, index)
        return True

    def _check_fork(self, log: LogReader, index: int, term: int) -> None:
        """Committed entries are the same for ever: what differs is not of this cluster's history."""
        found = log.term_at(index)
        if found and term and found != term:
            raise OSError(
                f"entry {index} in it is of term {term}, and of term {found} in this node's log:"
                " these are two histories. Name an empty folder"
            )

    def _told_gap(self, log: LogReader, index: int | None = None) -> None:
        if self._told_until >= log.base_index:
            return  # the base behind it could not be made yet
        self._told_until = log.base_index
        self._counts["gaps"] += 1
        logger.critical(
            "the archive %s has a gap: entries %d to %d were cut off the log before they were archived;"
            " no moment between them can be restored",
            self._target,
            (self._archived if index is None else index) + 1,
            log.base_index,
        )

    async def _begin_anew(self, log: LogReader) -> None:
        """With a base; segments follow behind it."""
        self._open = _Open()
        self._archived = 0
        entry = await self._make_base()
        if entry >= log.base_index:
            self._archived = entry

    # ---- bases

    def _base_if_due(self) -> None:
        if self._base_task is not None and self._base_task.done():
            task, self._base_task = self._base_task, None
            task.result()
        due = self._wall() - self._newest_base >= self._settings.base_every
        if due and self._base_task is None:
            self._base_task = asyncio.get_running_loop().create_task(self._periodic_base())

    async def _periodic_base(self) -> None:
        await self._make_base()

    async def _make_base(self) -> int:
        """Returns the last entry that is in it."""
        async with self._backups.made() as made:
            header = made.header
            now_ms = int(self._wall() * 1000)
            base = names.Base(header.cluster_id, self._node_id, header.index, header.term, now_ms)
            size = await self._in_thread(lambda: self._target.put(base.name, made.parts()))
        self._counts["bases"] += 1
        self._counts["bytes"] += size
        self._newest_base = base.made_ms / 1000
        logger.info("archived a base of entry %d, %d bytes", base.entry, size)
        await self._tidy()
        return base.entry

    async def _tidy(self) -> None:
        """Delete what no moment that is to be kept needs."""
        if not self._settings.keep:
            return
        place = names.place(self._store.cluster_id, self._node_id)
        listed = await self._in_thread(lambda: self._target.names(place))
        cutoff = int((self._wall() - self._settings.keep) * 1000)
        for name in outdated(listed, cutoff):
            await self._in_thread(lambda doomed=name: self._target.delete(doomed))  # type: ignore[misc]

    # ---- segments

    async def _archive(self, log: LogReader) -> None:
        """Everything that is due."""
        while True:
            await self._gather(log)
            now, pending = self._clock(), self._open
            if not pending.entries:
                self._complete_at = now
                return
            if pending.bytes < self._settings.segment_bytes and now - pending.since < self._settings.every:
                return
            await self._close_segment()

    async def _gather(self, log: LogReader) -> None:
        """Take entries until the segment is full or there are no more. Does not give the loop back after the last."""
        pending = self._open
        while pending.bytes < self._settings.segment_bytes:
            first = self._archived + len(pending.entries) + 1
            if first <= log.base_index:
                return  # cut off meanwhile: the next round notices
            found = log.entries(first, READ)
            if not found:
                return
            if not pending.entries:
                pending.since, pending.prev_term = self._clock(), log.term_at(first - 1)
            pending.entries += found
            pending.bytes += sum(entry.size for entry in found)
            if pending.bytes < self._settings.segment_bytes:
                await asyncio.sleep(0)

    async def _close_segment(self) -> None:
        entries = self._open.entries
        first, last = entries[0], entries[-1]
        store = self._store
        header = pb.SegmentHeader(
            format=FORMAT,
            cluster_id=store.cluster_id,
            first=first.index,
            last=last.index,
            prev_term=self._open.prev_term,
            last_term=last.term,
            first_time_ms=first.time_ms,
            last_time_ms=last.time_ms,
            stamp_base=store.stamp_base,
            content_hash=store.state_hash() if store.applied_index == last.index else b"",
            node_id=self._node_id,
            version=__version__,
            made_ms=int(self._wall() * 1000),
        )
        for index, number in self._skipped:
            if first.index <= index <= last.index:
                header.skipped.add(index=index, number=number)
        segment = names.Segment(store.cluster_id, self._node_id, first.index, last.index, last.term)
        size = await self._in_thread(lambda: self._put(segment, header, entries))
        self._open = _Open()
        self._archived = last.index
        self._counts["segments"] += 1
        self._counts["bytes"] += size

    def _put(self, segment: names.Segment, header: pb.SegmentHeader, entries: Sequence[Entry]) -> int:
        """In a thread. An attempt that was taken for a failure may have left the same file: then it is written anew, as
        it is if what is there is damaged. Other entries are another history, which stays."""

        def parts() -> Iterator[bytes]:
            return encode(SEGMENT, header, (entry.record for entry in entries))

        try:
            return self._target.put(segment.name, parts())
        except FileExistsError:
            pass
        catalog = Catalog(self._target, segment.cluster_id, [segment])
        own = {entry.index: entry.record for entry in entries}
        try:
            for one in catalog.entries(segment):
                # One that goes on behind its end is damaged, as the catalog says when it comes there.
                if isinstance(one, Entry) and one.record != own.get(one.index, one.record):
                    raise OSError(
                        f"{segment.name} in it has another entry {one.index}: these are two histories."
                        " Name an empty folder"
                    )
        except BadFile as error:
            logger.error("a file of the archive %s is damaged, and written anew: %s", self._target, error)
        return self._target.put(segment.name, parts(), replace=True)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        """Returns after the thread has ended, even if the caller was cancelled."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await work
            raise


def outdated(listed: Iterable[str], cutoff_ms: int) -> list[str]:
    """Of one node's files, those that no moment after `cutoff_ms` needs: whatever lies before the newest base that was
    made by then."""
    found = [one for one in map(names.parse, listed) if one is not None]
    kept = max(
        (one.entry for one in found if isinstance(one, names.Base) and one.made_ms <= cutoff_ms),
        default=0,
    )
    return [one.name for one in found if (one.entry if isinstance(one, names.Base) else one.last - 1) < kept]
