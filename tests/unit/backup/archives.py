"""A log that a store has applied, and archives of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.backup import names
from kvorum_node.backup.catalog import Catalog, open_catalog
from kvorum_node.backup.files import read_header
from kvorum_node.backup.frames import SEGMENT, encode
from kvorum_node.backup.targets import ArchiveTarget
from kvorum_raft.entry import Entry, Kind, make
from tests.unit.backup.conftest import backup_of, stream
from tests.unit.store.harness import CLUSTER_ID, Replica, init_cluster, open_session
from tests.unit.store.test_determinism import Traffic

TERM = 3


@dataclass
class Recorded:
    """A replica after random traffic, its entries, and its content hash after each of them."""

    replica: Replica
    traffic: Traffic
    hashes: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, seed: int, data_version: int = 3) -> "Recorded":
        folder.mkdir(parents=True, exist_ok=True)
        replica = Replica(folder / "state", data_version=data_version)
        return cls(replica, Traffic(replica, seed))

    def run(self, entries: int) -> None:
        """As `Traffic.run`, with a look at the hash after each entry."""
        replica, traffic = self.replica, self.traffic
        if not replica.store.applied_index:
            replica.apply(init_cluster(), open_session())
            self._note()
        for _ in range(entries):
            replica.now_ms += traffic.rng.randrange(10)
            result = replica.apply(*traffic.commands())
            traffic.held += [grant.delivery for grant in result.granted]
            traffic.sessions += [output for output in result.outputs if isinstance(output, bytes)]
            self._note()

    def _note(self) -> None:
        self.hashes[self.replica.store.applied_index] = self.replica.store.state_hash()

    def entries(self, first: int, last: int) -> list[Entry]:
        return [
            make(Kind.COMMAND if payload else Kind.NO_OP, index, TERM, time_ms, payload)
            for index, time_ms, payload in self.replica.log
            if first <= index <= last
        ]

    def put_base(self, target: ArchiveTarget, folder: Path, node_id: str = "n1") -> names.Base:
        """Of what is applied now."""
        data = backup_of(self.replica.store, folder)
        header = read_header(stream(data))
        base = names.Base(header.cluster_id, node_id, header.index, TERM, header.made_ms)
        target.put(base.name, [data])
        return base

    def put_segment(
        self, target: ArchiveTarget, first: int, last: int, node_id: str = "n1", skipped: Iterable[tuple[int, int]] = ()
    ) -> names.Segment:
        segment = names.Segment(CLUSTER_ID, node_id, first, last, TERM)
        entries = self.entries(first, last)
        header = segment_header(first, last, self.hashes.get(last, b""))
        for index, number in skipped:
            header.skipped.add(index=index, number=number)
        target.put(segment.name, encode(SEGMENT, header, (entry.record for entry in entries)), replace=True)
        return segment


def segment_header(first: int, last: int, content_hash: bytes) -> pb.SegmentHeader:
    return pb.SegmentHeader(
        format=1,
        cluster_id=CLUSTER_ID,
        first=first,
        last=last,
        prev_term=TERM if first > 1 else 0,
        last_term=TERM,
        content_hash=content_hash,
        node_id="n1",
    )


def catalog_of(target: ArchiveTarget) -> Catalog:
    return open_catalog(target)
