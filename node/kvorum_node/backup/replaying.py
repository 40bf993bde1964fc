"""A state as one moment left it: a base, and entries of the log applied to it by the store itself, up to one commit."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.entry import Entry, Kind

from ..store import Store
from .catalog import Catalog, Goal, NoWay
from .files import Progress, check_state, no_progress, unpack
from .frames import BadFile
from .names import Segment
from .restoring import Build, adopted
from .saving import bookmark

_HUNDRED: Final = 100


def from_archive(catalog: Catalog, goal: Goal, progress: Progress = no_progress) -> Build:
    """The state of a moment. What is called raises NoWay, BadFile, ValueError, OSError, StoreFault."""

    def build(work: Path) -> Store:
        base, segments = catalog.way(goal)
        copy = work / "base"
        with catalog.target.get(base.name) as source:
            check_state(copy, unpack(source, copy))
        store = adopted(copy, work)
        try:
            return _replayed(store, catalog, segments, goal, progress)
        except BaseException:
            store.close(clean=False)
            raise

    return build


@contextlib.contextmanager
def rebuilt(build: Build, scratch: Path) -> Iterator[Store]:
    """A state for as long as it is needed, in a folder of its own in `scratch`."""
    with tempfile.TemporaryDirectory(prefix="kvorum-pitr-", dir=scratch) as folder:
        store = build(Path(folder))
        try:
            yield store
        finally:
            store.close(clean=False)


def _replayed(store: Store, catalog: Catalog, segments: list[Segment], goal: Goal, progress: Progress) -> Store:
    replay = Replay(store, goal)
    last = segments[-1].last if segments else 0
    for segment in segments:
        for one in catalog.entries(segment):
            if isinstance(one, pb.SegmentHeader):
                replay.begin(one)
            elif not replay.apply(one):
                return store
            elif one.index % _HUNDRED == 0:
                progress(one.index, last)
        replay.end(segment)
    later = catalog.beyond(store.applied_index)
    if goal.time_ms is not None and later is not None:
        raise NoWay(
            f"the archive has a gap: entries {store.applied_index + 1} to {later} are missing, and some of them may be"
            f" of that time; restore to the bookmark {bookmark(store.applied_index + store.stamp_base).hex()}, the last"
            " commit before the gap"
        )
    return store


class Replay:
    """Applies entries until the goal is reached."""

    def __init__(self, store: Store, goal: Goal) -> None:
        self.store = store
        self._goal = goal
        self._until = goal.entry(store.stamp_base)
        self._hash = b""

    def begin(self, header: pb.SegmentHeader) -> None:
        """Entries of this segment come next. Raises BadFile."""
        if header.stamp_base != self.store.stamp_base:
            raise BadFile(f"a segment of stamp base {header.stamp_base} for a state of {self.store.stamp_base}")
        self._hash = header.content_hash
        self.store.skip((skipped.index, skipped.number) for skipped in header.skipped)

    def apply(self, entry: Entry) -> bool:
        """False: this entry, or what comes after it, lies behind the goal."""
        if entry.index <= self.store.applied_index:
            return self._until is None or entry.index < self._until
        if self._goal.time_ms is not None and entry.time_ms > self._goal.time_ms:
            return False
        payload = entry.payload if entry.kind is Kind.COMMAND else b""
        if self._until is not None and entry.index >= self._until:
            if entry.index == self._until:
                number = int.from_bytes(self._goal.stamp[8:], "big")
                self.store.apply_now(entry.index, entry.time_ms, first_commits(payload, number + 1))
            return False
        self.store.apply_now(entry.index, entry.time_ms, payload)
        return True

    def end(self, segment: Segment) -> None:
        """All of its entries were applied. Raises BadFile if that did not lead to what the node had that wrote it."""
        store = self.store
        if store.applied_index == segment.last and self._hash and self._hash != store.state_hash():
            raise BadFile(
                f"after entry {segment.last} the restored state has the content hash {store.state_hash().hex()};"
                f" the node that archived it had {self._hash.hex()}"
            )


def first_commits(payload: bytes, count: int) -> bytes:
    """An entry with its first so many commits only, which are numbered as in the whole one. Raises BadFile."""
    if not payload:
        return b""
    try:
        batch = pb.Batch.FromString(payload)
    except DecodeError as error:
        raise BadFile("an entry of the archive cannot be decoded") from error
    kept = pb.Batch(data_version=batch.data_version)
    for command in batch.commands:
        if count <= 0:
            break
        if command.WhichOneof("command") != "writes":
            kept.commands.append(command)
            count -= 1
            continue
        writes = command.writes
        if len(writes.writes) > count:
            del writes.writes[count:]
        count -= len(writes.writes)
        kept.commands.append(command)
    return kept.SerializeToString()
