"""What is in an archive, and the way to a moment: a base, and the segments that lead on from it."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.entry import DamagedRecord, Entry, parse
from kvorum_raft.errors import ConfigurationError

from . import names
from .files import payloads, read_header
from .frames import SEGMENT, BadFile, Decoder
from .names import Base, Segment
from .saving import bookmark
from .targets import ArchiveTarget

logger = logging.getLogger("kvorum.backup")


class NoWay(ValueError):
    """The archive does not lead to the moment that is asked for; one line that says how far it does."""


class Goal(NamedTuple):
    """The last commit that is to be restored."""

    stamp: bytes = b""
    """10 bytes: up to and with this versionstamp; empty: by time."""
    time_ms: int | None = None
    """All entries up to this time, Unix milliseconds; None: all there are."""

    def entry(self, stamp_base: int) -> int | None:
        """The index of the last entry that matters, as far as the stamp says it."""
        return int.from_bytes(self.stamp[:8], "big") - stamp_base if self.stamp else None


class Coverage(NamedTuple):
    """An unbroken run of entries in segments, of any node."""

    first: int
    last: int


class Catalog:
    """Of one cluster. Raises OSError when files are opened."""

    def __init__(self, target: ArchiveTarget, cluster_id: bytes, files: Iterable[Base | Segment]) -> None:
        self.target = target
        self.cluster_id = cluster_id
        found = [one for one in files if one.cluster_id == cluster_id]
        self.bases = sorted((one for one in found if isinstance(one, Base)), key=lambda one: (one.entry, one.made_ms))
        self.segments = sorted(
            (one for one in found if isinstance(one, Segment)), key=lambda one: (one.first, -one.last, one.node_id)
        )

    def coverage(self) -> list[Coverage]:
        """Runs of entries that are there, in order."""
        runs: list[Coverage] = []
        for one in self.segments:
            if runs and one.first <= runs[-1].last + 1:
                runs[-1] = Coverage(runs[-1].first, max(runs[-1].last, one.last))
            else:
                runs.append(Coverage(one.first, one.last))
        return runs

    def chain(self, after: int, until: int | None = None) -> list[Segment]:
        """Segments that lead on from an entry without a gap, as far as that goes or is wanted."""
        chosen: list[Segment] = []
        position, at = after, 0
        while until is None or position < until:
            best: Segment | None = None
            while at < len(self.segments) and self.segments[at].first <= position + 1:
                if self.segments[at].last > (best.last if best is not None else position):
                    best = self.segments[at]
                at += 1
            if best is None:
                break
            chosen.append(best)
            position = best.last
        return chosen

    def ways(self, goal: Goal) -> Iterator[tuple[Base, list[Segment]]]:
        """Bases that do not lie behind the goal, the newest first, each with the segments that lead from it to the
        goal. Raises NoWay at the end."""
        problem = f"the archive of cluster {self.cluster_id.hex()} has no base"
        for base in reversed(self.bases):
            try:
                header = self.header(base)
            except BadFile as error:
                logger.warning("the base %s cannot be used, an older one is taken: %s", base.name, error)
                problem = str(error)
                continue
            until = goal.entry(header.stamp_base)
            whole = goal.stamp[8:] == b"\xff\xff"
            if until is not None and (base.entry > until or (base.entry == until and not whole)):
                problem = f"the oldest base is of entry {base.entry}, and the bookmark of entry {until}"
                continue
            if goal.time_ms is not None and header.time_ms > goal.time_ms:
                problem = "the oldest base is newer than that time"
                continue
            segments = self.chain(base.entry, until)
            reached = segments[-1].last if segments else base.entry
            if until is None or reached >= until:
                yield base, segments
                problem = f"{base.name} cannot be used, and no older base leads there"
            else:
                problem = self._short(reached, until, header.stamp_base)
        raise NoWay(problem)

    def _short(self, reached: int, until: int, stamp_base: int) -> str:
        """Why there is no way to an entry, and how far there is one."""
        missing = self.beyond(reached)
        why = (
            f"there are no entries after {reached} in it"
            if missing is None
            else f"the archive has a gap: entries {reached + 1} to {missing} are missing"
        )
        leads_to = bookmark(reached + stamp_base).hex()
        return f"{why}, and the bookmark is of entry {until}; the last one that can be restored is {leads_to}"

    def without(self, segment: Segment) -> "Catalog":
        """As if that file were not there."""
        others = [one for one in self.segments if one != segment]
        return Catalog(self.target, self.cluster_id, [*self.bases, *others])

    def beyond(self, entry: int) -> int | None:
        """The last entry that is missing between this one and what is in the archive of later ones; None: nothing of
        later ones is."""
        later = [one.first - 1 for one in self.segments if one.last > entry]
        later += [base.entry for base in self.bases if base.entry > entry]
        return min(later, default=None)

    def header(self, base: Base) -> pb.BackupHeader:
        """Raises BadFile, OSError."""
        with self.target.get(base.name) as file:
            header = read_header(file)
        if header.cluster_id != self.cluster_id or header.index != base.entry:
            raise BadFile(f"{base.name} is of entry {header.index} of cluster {header.cluster_id.hex()}")
        return header

    def entries(self, segment: Segment) -> Iterator["pb.SegmentHeader | Entry"]:
        """Its header, then its entries, in order and without a gap, each with its checksum compared; that all came is
        known at the end. Raises BadFile, OSError."""
        decoder = Decoder(SEGMENT, pb.SegmentHeader)
        following = segment.first
        told = False
        with self.target.get(segment.name) as file:
            for record in payloads(file, decoder):
                if not told and decoder.header is not None:
                    told = True
                    yield self._checked(segment, decoder.header)
                try:
                    entry = parse(record)
                except (DamagedRecord, ConfigurationError) as error:
                    raise BadFile(f"{segment.name}: {error}") from None
                if entry.index != following:
                    raise BadFile(f"{segment.name} has entry {entry.index} where {following} should be")
                following += 1
                yield entry
        if following != segment.last + 1:
            raise BadFile(f"{segment.name} ends before entry {following}")

    def _checked(self, segment: Segment, header: pb.SegmentHeader) -> pb.SegmentHeader:
        said = (header.cluster_id, header.first, header.last, header.last_term)
        if said != (self.cluster_id, segment.first, segment.last, segment.last_term):
            raise BadFile(f"{segment.name} is of entries {header.first} to {header.last} of {header.cluster_id.hex()}")
        return header


def clusters(listed: Iterable[str]) -> dict[bytes, list[Base | Segment]]:
    """The files of each cluster in an archive."""
    found: dict[bytes, list[Base | Segment]] = {}
    for one in map(names.parse, listed):
        if one is not None:
            found.setdefault(one.cluster_id, []).append(one)
    return found


def open_catalog(target: ArchiveTarget, cluster: str = "") -> Catalog:
    """Of the cluster whose id begins so; needed only where there are several. Raises ValueError, OSError."""
    found = clusters(target.names(""))
    chosen = [cluster_id for cluster_id in found if cluster_id.hex().startswith(cluster.lower())]
    if not found:
        raise ValueError(f"{target} is no archive: there are no files of one")
    if len(chosen) != 1:
        known = ", ".join(sorted(cluster_id.hex() for cluster_id in found))
        raise ValueError(f"which cluster? there are {known} in {target}: name one by --cluster")
    return Catalog(target, chosen[0], found[chosen[0]])


def check_chain(
    catalog: Catalog, segments: Sequence[Segment], progress: Callable[[Segment], None] = lambda _: None
) -> list[str]:
    """Read segments to their ends, and compare what two of them say of the same entry. One line for each problem.
    Raises OSError."""
    problems: list[str] = []
    terms: dict[int, tuple[int, str]] = {}

    def note(index: int, term: int, name: str) -> None:
        known = terms.setdefault(index, (term, name))
        if term and known[0] and known[0] != term:
            problems.append(f"entry {index} is of term {known[0]} in {known[1]} and of term {term} in {name}")

    for base in catalog.bases:
        note(base.entry, base.term, base.name)
    for segment in segments:
        ends = {base.entry for base in catalog.bases} | {one.last for one in segments}
        try:
            for one in catalog.entries(segment):
                if isinstance(one, pb.SegmentHeader):
                    note(segment.first - 1, one.prev_term, segment.name)
                elif one.index in ends:
                    note(one.index, one.term, segment.name)
        except BadFile as error:
            problems.append(str(error) if segment.name in str(error) else f"{segment.name}: {error}")
        progress(segment)
    return problems
