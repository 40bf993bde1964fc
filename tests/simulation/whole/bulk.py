"""Commits that are larger than a slice of apply, so that they are carried out in several turns: nobody must see a part.

Each client writes one number to all keys of a range of its own, over and over; whoever looks must find it everywhere.
"""

import random
from typing import TYPE_CHECKING, Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.values import encode_number

if TYPE_CHECKING:
    from kvorum.cluster.client import ClusterBackend
    from tests.simulation.whole.judge import Judge

SIZES: Final = (20, 70)
"""Keys of a range: some more than the largest slice (64) has room for. More than it takes is no better: with 100 and
150 keys a seed took 6 % more time, most of it in nodes whose slices hold one key."""
TIMEOUT: Final = 3.0


class Bulk:
    """The range of one client."""

    def __init__(self, name: str, judge: "Judge", rng: random.Random) -> None:
        self._name = name
        self._judge = judge
        self._rng = rng
        self._size = rng.choice(SIZES)
        self._number = 0
        self._acknowledged = 0

    async def act(self, backend: "ClusterBackend") -> None:
        """Write it, or look at it."""
        await (self._write(backend) if self._rng.random() < 0.5 else self._look(backend))

    async def _write(self, backend: "ClusterBackend") -> None:
        self._number += 1
        number, op = self._number, pb.AtomicWrite()
        for at in range(self._size):
            op.mutations.add(
                key=f"{self._prefix}{at:03}".encode(),
                type=pb.MUTATION_TYPE_SET,
                value=number.to_bytes(8, "little"),
                encoding=pb.VALUE_ENCODING_LE64,
            )
        refused = self._rng.random() < 0.3
        if refused:
            # The last part cannot be carried out, so nothing is.
            op.mutations.add(
                key=b"b/none",
                type=pb.MUTATION_TYPE_ADD,
                value=encode_number(2),
                encoding=pb.VALUE_ENCODING_V8,
                sum_max=encode_number(1),
            )
        try:
            answer = await backend.write(op.SerializeToString(), timeout=TIMEOUT)
        except errors.KvorumError as error:
            self._judge.note(self._name, f"bulk {number}: {error}")
            return
        if refused == (answer.result.outcome == pb.OUTCOME_DONE):
            self._judge.broken(f"client {self._name}: bulk {number} was answered with outcome {answer.result.outcome}")
        if not refused:
            self._acknowledged = max(self._acknowledged, number)
        self._judge.counters["bulk writes refused" if refused else "bulk writes"] += 1

    async def _look(self, backend: "ClusterBackend") -> None:
        least = self._acknowledged
        read = pb.Read()
        read.ranges.add(start=self._prefix.encode(), end=f"{self._prefix}~".encode(), limit=1_000)
        try:
            answer = await backend.read(read, timeout=TIMEOUT)
        except errors.KvorumError as error:
            self._judge.note(self._name, f"no look at its bulk: {error}")
            return
        entries = answer.ranges[0].entries
        stamps = {entry.versionstamp for entry in entries}
        numbers = {int.from_bytes(entry.value, "little") for entry in entries}
        if len(stamps) > 1 or len(numbers) > 1 or len(entries) not in (0, self._size):
            self._judge.broken(f"client {self._name} sees a part of a commit: {len(entries)} keys of {sorted(numbers)}")
        if max(numbers, default=0) < least:
            self._judge.broken(f"client {self._name} sees bulk {max(numbers, default=0)} after {least}")
        self._judge.counters["bulk looks"] += 1

    @property
    def _prefix(self) -> str:
        return f"b/{self._name}/"
