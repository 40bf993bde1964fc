"""A state as one moment left it: a base, and entries of the log applied to it by the store itself, up to one commit."""

import contextlib
import logging
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
logger = logging.getLogger("kvorum.backup")


def from_archive(catalog: Catalog, goal: Goal, progress: Progress = no_progress) -> Build:
    """The state of a moment. What is called raises NoWay, BadFile, ValueError, OSError, StoreFault."""

    def build(work: Path) -> Store:
        store = _newest_base(work, catalog, goal)
        try:
            return _replayed(store, catalog, goal, progress)
        except BaseException:
            store.close(clean=False)
            raise

    return build


def _newest_base(work: Path, catalog: Catalog, goal: Goal) -> Store:
    """A damaged one is passed over: an older one leads to the same moment, if the log goes back so far."""
    for base, _ in catalog.ways(goal):
        copy = work / "base"
        try:
            with catalog.target.get(base.name) as source:
                check_state(copy, unpack(source, copy))
        except ValueError as error:
            logger.warning("the base %s cannot be used, an older one is taken: %s", base.name, error)
            copy.unlink(missing_ok=True)
            continue
        return adopted(copy, work)
    raise AssertionError("ways ends with NoWay")


@contextlib.contextmanager
def rebuilt(build: Build, scratch: Path) -> Iterator[Store]:
    """A state for as long as it is needed, in a folder of its own in `scratch`."""
    with tempfile.TemporaryDirectory(prefix="kvorum-pitr-", dir=scratch) as folder:
        store = build(Path(folder))
        try:
            yield store
        finally:
            store.close(clean=False)


def _replayed(store: Store, catalog: Catalog, goal: Goal, progress: Progress) -> Store:
    """A damaged segment is passed over where others have the same entries: what was applied of it was in order."""
    replay = Replay(store, goal)
    until = goal.entry(store.stamp_base)
    while segments := catalog.chain(store.applied_index, until):
        try:
            for segment in segments:
                if _apply_segment(replay, catalog, segment, progress):
                    return store
        except BadFile as error:
            catalog = catalog.without(segment)
            if until is not None and not _leads(catalog, store.applied_index, until):
                raise
            logger.warning("%s cannot be used: %s", segment.name, error)
            if until is None and catalog.beyond(store.applied_index) is None:
                raise
    _check_end(store, catalog, until)
    return store


def _leads(catalog: Catalog, after: int, until: int) -> bool:
    segments = catalog.chain(after, until)
    return after >= until or bool(segments and segments[-1].last >= until)


def _check_end(store: Store, catalog: Catalog, until: int | None) -> None:
    """The entries have run out: that is the end of the archive, and not of what was found of it. Raises NoWay."""
    later = catalog.beyond(store.applied_index)
    if until is None and later is not None:
        raise NoWay(
            f"the archive has a gap: entries {store.applied_index + 1} to {later} are missing, and some of them may be"
            f" wanted; restore to the bookmark {bookmark(store.applied_index + store.stamp_base).hex()}, the last"
            " commit before the gap"
        )


def _apply_segment(replay: "Replay", catalog: Catalog, segment: Segment, progress: Progress) -> bool:
    """True: the goal is reached."""
    for one in catalog.entries(segment):
        if isinstance(one, pb.SegmentHeader):
            replay.begin(one)
        elif not replay.apply(one):
            return True
        elif one.index % _HUNDRED == 0:
            progress(one.index, segment.last)
    replay.end(segment)
    return False


class Mismatch(ValueError):
    """What was restored is not what the node had."""


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
        if entry.index > self.store.applied_index:
            return self._apply(entry)
        return self._until is None or entry.index < self._until

    def _apply(self, entry: Entry) -> bool:
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
        """All of its entries were applied. Raises Mismatch if that did not lead to what the node had that wrote it."""
        store = self.store
        if store.applied_index == segment.last and self._hash and self._hash != store.state_hash():
            raise Mismatch(
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
