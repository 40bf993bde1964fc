"""Range watches of a node and of a client, met by everything that may happen between them: with bounds so small that
commits come in parts and readers are stopped, each change is told once, in order."""

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ranges as client_ranges
from kvorum.cluster.watches import Watches
from kvorum_node import range_watches
from kvorum_node.store import history
from tests.unit.node.harness import Node
from tests.unit.node.test_range_watches import entry, stamp

Told = tuple[bytes, bytes]
"""Versionstamp and key."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("EVENT_CHANGES", 5), ("EVENT_BYTES", 600), ("MOST_CHANGES", 9), ("MOST_BYTES", 2_500), ("SLICE_CHANGES", 20),
        ("MAX_LOOKED", 30),
    ):  # fmt: skip
        monkeypatch.setattr(range_watches, name, value)
    monkeypatch.setattr(history, "_ROW_SIZE", 700)
    monkeypatch.setattr(client_ranges, "MAX_KEPT", 1_500)


class Reader:
    """A watch of the client, and what its consumer was told."""

    def __init__(self, watches: Watches, bounds: tuple[bytes, bytes], since: bytes) -> None:
        self.bounds = bounds
        self.since = since
        self.told: list[Told] = []
        self._watches = watches
        self.watch = watches.start_range(bounds, since, keys_only=False)

    async def read(self, most: int) -> None:
        while most and self.watch._kept:
            event = await self.watch.next()
            self._watches.resume(self.watch)
            if not self.since:
                assert not event.changes
                self.since = event.through
            self.told += [(change.entry.versionstamp, change.entry.key) for change in event.changes]
            most -= 1


class Meeting:
    """A node and a client, and the stream between them, on which events may be held up."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.watches = Watches(asyncio.get_running_loop())
        self.readers: list[Reader] = []
        self.has_room = True
        self._open: dict[int, range_watches.RangeWatch] = {}
        self._wire: list[pb.WatchEvent] = []
        self._stalled: list[range_watches.RangeWatch] = []

    def exchange(self, most: int | None = None) -> None:
        """Events reach the client, not more than so many; what it says reaches the node."""
        hub = self.node.service.ranges
        stalled, self._stalled = self._stalled, []
        hub.resume(stalled)
        self.node.timers.advance(0)
        part = self._wire[:most]
        del self._wire[: len(part)]
        self.watches.events(part)
        frame = pb.ClientFrame()
        self.watches.fill(frame, b"", 1_000)
        for number in frame.stop_watches:
            hub.remove(self._open.pop(number))
        for start in frame.watches:
            watch = hub.add(
                (start.start, start.end), start.since, keys_only=False, deliver=partial(self._deliver, start.id),
                has_room=self._room,
            )  # fmt: skip
            self._open[start.id] = watch
            hub.begin(watch)

    def disconnect(self) -> None:
        for watch in self._open.values():
            self.node.service.ranges.remove(watch)
        self._open.clear()
        self._wire.clear()
        self._stalled.clear()
        self.watches.connection_lost()

    def _deliver(self, number: int, _: range_watches.RangeWatch, event: pb.WatchEvent) -> None:
        event.id = number
        self._wire.append(event)

    def _room(self, watch: range_watches.RangeWatch) -> bool:
        if self.has_room and self.rng.random() < 0.7:
            return True
        self._stalled.append(watch)
        return False

    def commit(self) -> None:
        rng = self.rng
        commits: list[dict[bytes, bytes | None]] = [
            {
                bytes([97 + key]) * (key % 3 * 20 + 1): None if rng.random() < 0.2 else bytes(rng.choice((1, 100, 300)))
                for key in rng.sample(range(20), rng.choice((1, 1, 2, 5, 15, 20)))
            }
            for _ in range(rng.randrange(1, 5))
        ]
        self.node.consensus.apply(entry(*commits))

    def watch(self) -> None:
        low, high = sorted(self.rng.sample(range(97, 120), 2))
        newest = self.node.store.applied_index
        since = b""
        if newest and self.rng.random() < 0.7:
            since = stamp(self.rng.randrange(1, newest + 1), self.rng.choice((0, 1, 2, 0xFFFF)))
        self.readers.append(Reader(self.watches, (bytes([low]), bytes([high])), since))

    def happened(self, reader: Reader) -> list[Told]:
        start, end = reader.bounds
        with self.node.store.snapshot() as snapshot:
            rows = [row for _, row in snapshot.history(history.first_place(bytes(10)))]
        changes = [(row[1:11], key) for packed in rows for key, row in history.unpack(packed)]
        return [change for change in changes if change[0] > reader.since and start <= change[1] < end]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
async def test_each_change_is_told_once_whatever_happens(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    node = Node(tmp_path / "state")
    meeting = Meeting(node, rng)
    for _ in range(250):
        roll = rng.random()
        if roll < 0.5:
            meeting.commit()
        elif roll < 0.6 and len(meeting.readers) < 6:
            meeting.watch()
        elif roll < 0.68:
            meeting.disconnect()
        elif roll < 0.8:
            for reader in meeting.readers:
                await reader.read(rng.randrange(3))
        for _ in range(rng.randrange(3)):
            meeting.exchange(rng.randrange(4))
        if roll > 0.95:
            node.timers.advance(range_watches.MARK_INTERVAL)
    for _ in range(3_000):
        meeting.exchange()
        for reader in meeting.readers:
            await reader.read(-1)
    for reader in meeting.readers:
        assert reader.watch._problem is None
        assert reader.told == meeting.happened(reader)
    assert sum(len(reader.told) for reader in meeting.readers) > 500
    await node.service.barrier.stop()
    node.close()
