"""Two replicas that cut their work differently, for targets that propose what they have made."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.admission import admit
from kvorum_node.store import DATA_VERSION
from tests.unit.store.harness import Replica, batch, init_cluster

FRESH_AFTER = 500
"""Entries after which the replicas begin anew, so that the last input is never far from an empty state."""
POSSIBLE = frozenset((pb.OUTCOME_DONE, pb.OUTCOME_CHECK_FAILED, pb.OUTCOME_TYPE_ERROR, pb.OUTCOME_RANGE_ERROR,
                      pb.OUTCOME_STALE_LEASE, pb.OUTCOME_QUEUE_FULL, pb.OUTCOME_MESSAGE_GONE))  # fmt: skip
"""What apply may answer to a write that admission has let in. INVALID would be a hole in admission."""


class Pair:
    """Whatever admission lets in is applied by both, with equal answers and equal states (rules B3, invariant 4)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open()

    def _open(self) -> None:
        self.one = Replica(self._folder / "one")
        self.other = Replica(self._folder / "other", slice_commits=3)
        self._apply(init_cluster())
        # Something for sums, checks, settles and touches to meet.
        op = pb.AtomicWrite()
        for key, value, encoding in (
            (b"u", (7).to_bytes(8, "little"), pb.VALUE_ENCODING_LE64),
            (b"n", b"\xff\x0fI\x02", pb.VALUE_ENCODING_V8),
            (b"z", b"\xff\x0fZ\x10" + b"\xff" * 8, pb.VALUE_ENCODING_V8),
            (b"o", b"\xff\x0fo{\x00", pb.VALUE_ENCODING_V8),
            (b"b", b"", pb.VALUE_ENCODING_BYTES),
        ):
            op.mutations.add(key=key, value=value, type=pb.MUTATION_TYPE_SET, encoding=encoding)
        assert self.propose(op.SerializeToString())[0].outcome == pb.OUTCOME_DONE

    def close(self) -> None:
        """Both are compared with all of their rows first."""
        for replica in (self.one, self.other):
            replica.check_hash()
            for _ in replica.store.scrub(1 << 20):
                pass
            replica.store.close()
            shutil.rmtree(replica.path)

    def propose(self, *ops: bytes) -> list[pb.WriteResult]:
        """As a leader does: admit, then apply. Answers in order of the writes."""
        self._count += 1
        if self._count % FRESH_AFTER == 0:
            self.close()
            self._open()
        group = pb.WriteGroup(ack_below=1)
        for seq, op in enumerate(ops, 1):
            group.writes.add(seq=seq, op=op)
        parts, answers = admit(group)
        for answer in answers:
            assert answer.outcome == pb.OUTCOME_INVALID
            assert answer.message
        for part in parts:
            assert part.group.SerializeToString() == part.data
            results = self._apply(pb.Command(writes=part.group))
            assert {result.outcome for result in results} <= POSSIBLE, results
            answers = [*answers, *results]
        return sorted(answers, key=lambda result: result.seq)

    def sweep(self, *, after_ms: int) -> None:
        """Let time pass, and what has expired go."""
        for replica in (self.one, self.other):
            replica.now_ms += after_ms
        self._apply(pb.Command(sweep=pb.Sweep(limit=1_000)))

    def _apply(self, command: pb.Command) -> list[pb.WriteResult]:
        payload = batch(command, data_version=DATA_VERSION)
        outputs = [replica.apply_payload(payload).outputs[0] for replica in (self.one, self.other)]
        for replica in (self.one, self.other):
            replica.log.clear()
        assert outputs[0] == outputs[1]
        assert self.one.store.state_hash() == self.other.store.state_hash()
        return list(outputs[0].results) if isinstance(outputs[0], pb.ResultGroup) else []


@contextmanager
def pair() -> Iterator[Pair]:
    """In a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvorum-fuzz-"))
    try:
        made = Pair(folder)
        yield made
        made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
