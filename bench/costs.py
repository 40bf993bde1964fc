"""What hot paths cost the interpreter, in counts that no machine changes: `python -m bench.costs [--record]`.

Counted are the instructions of Python's bytecode and the calls (of Python and of C functions) that one operation takes,
over a batch of them. Time depends on the machine and on what else it does, these counts do not: an operation that does
more shows here, though not one whose C functions (LMDB, protobuf, the kernel) do more in as many calls. What is known
is in `bench/costs.json`, and `tests/unit/bench` fails if an operation costs more than that by a quarter. Who makes one
cheaper, or dearer for a reason, records the new counts and commits them.

The counts belong to a minor version of Python, whose compiler makes the instructions. Under one without a record, the
calls are compared with those of another.
"""

import argparse
import gc
import json
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from bench.store_micro import Log, MakeWrite, add, checked_set, enqueue, set_of, user_key
from kvorum import Kv
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters
from kvorum.cluster.points import Batch, Points
from kvorum.cluster.writes import Writes
from kvorum.entry import found
from kvorum.keys import decode_key, encode_key
from kvorum.values import decode_value, encode_value
from kvorum_node.api.outbox import RESULTS, Outbox
from kvorum_node.proposer import write_proposal
from kvorum_node.store import DATA_VERSION, Store, validate
from kvorum_raft.appends import AppendHeader
from kvorum_raft.entry import Kind, make, parse
from kvorum_raft.wire import FrameReader, decode, encode

RECORD: Final = Path(__file__).with_suffix(".json")
ALLOWED: Final = 1.25
"""Times what is recorded."""
BATCH: Final = 64
"""Operations that are counted together."""
VALUE: Final = {"id": 7, "name": "Nina Simone", "score": 0.5, "active": True}
SESSION: Final = b"0123456789"
TIME_MS: Final = 1_700_000_000_000


class Cost(NamedTuple):
    """Of one operation, on average over a batch."""

    instructions: float
    calls: float


# ---- counting


Here = Callable[[Callable[[], Any]], Any]
"""Calls what it is given, and counts what that does."""


def count(run: Callable[[Here], object]) -> Cost:
    """What `run` does within `here`; it is called twice, and must do the same each time. Not for code with threads."""
    instructions = calls = 0

    def instruction(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes = True
        instructions += event == "opcode"
        return instruction

    def call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def counting_instructions(what: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(instruction)
        try:
            return what()
        finally:
            sys.settrace(before)

    def counting_calls(what: Callable[[], Any]) -> Any:
        before = sys.getprofile()
        sys.setprofile(call)
        try:
            return what()
        finally:
            sys.setprofile(before)

    collects = gc.isenabled()
    gc.disable()  # finalisers of earlier work are not this one's cost
    try:
        run(counting_instructions)
        run(counting_calls)
    finally:
        if collects:
            gc.enable()
    return Cost(instructions, calls)


def each(run: Callable[[Here], object], operations: int = BATCH) -> Cost:
    """Of one of the operations that a call carries out; the first call, which fills caches, is not counted."""
    run(lambda what: what())
    total = count(run)
    return Cost(round(total.instructions / operations, 2), round(total.calls / operations, 2))


def one(run: Callable[[], object]) -> Cost:
    """Of one call, all of it."""
    return each(lambda here: here(run), 1)


# ---- the operations


def codec() -> Iterator[tuple[str, Cost]]:
    """Keys, values and rows, as a client meets them."""
    key = ("users", 1_234_567, "profile")
    encoded_key = encode_key(key)
    data, encoding = encode_value(VALUE)
    row = pb.KvEntry(key=encoded_key, value=data, versionstamp=bytes(10))
    row.encoding = encoding  # type: ignore[assignment]  # as a number
    yield "encode a key of 3 parts", one(lambda: encode_key(key))
    yield "decode a key of 3 parts", one(lambda: decode_key(encoded_key))
    yield "encode a dict of 4 fields", one(lambda: encode_value(VALUE))
    yield "decode a dict of 4 fields", one(lambda: decode_value(data, encoding))
    yield "decode a row of a list", one(lambda: found(row))


@contextmanager
def a_store() -> Iterator[Store]:
    """Empty, and of no use afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvorum-costs-") as folder:
        store = Store.open(Path(folder), durable=False)
        try:
            yield store
        finally:
            store.close()


def applying() -> Iterator[tuple[str, Cost]]:
    """Entries of 64 operations, as every node applies them."""
    with a_store() as store:
        log, rng = Log(store), random.Random(1)
        for name, write in (
            ("set", set_of(user_key)),
            ("check and set", checked_set),
            ("sum", add),
        ):
            yield f"apply: {name}", each(partial(_apply_batch, log, rng, write))
        op = set_of(user_key)(rng).SerializeToString()
        yield "parse and validate a set", one(lambda: validate(pb.AtomicWrite.FromString(op)))
        yield "apply: message sent, leased and acknowledged", each(partial(_message_round, log, rng))


def _apply_batch(log: Log, rng: random.Random, write: MakeWrite, here: Here) -> None:
    payload = log.batch(write, rng, BATCH)
    here(lambda: log.apply(payload))


def _message_round(log: Log, rng: random.Random, here: Here) -> None:
    """64 messages, leased in the entry that brings them and acknowledged in the next one."""
    batch = pb.Batch.FromString(log.batch(enqueue, rng, BATCH))
    batch.commands.add(lease=pb.Lease(queue="work", session=log.session, count=BATCH))
    store = log.store
    payload = batch.SerializeToString()
    granted = here(lambda: store.apply_now(store.applied_index + 1, TIME_MS, payload)).granted
    held = iter([grant.delivery for grant in granted])

    def ack(rng: random.Random) -> pb.AtomicWrite:
        delivery = next(held)
        settle = pb.Settle(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_ACK)
        return pb.AtomicWrite(settles=[settle])

    _apply_batch(log, rng, ack, here)


class _Promise:
    """A caller of whom only that it waits is known."""

    def done(self) -> bool:
        return False

    def exception(self) -> None:
        pass

    def set_result(self, result: object, /) -> None:
        pass

    def set_exception(self, exception: BaseException, /) -> None:
        raise exception


def client_frames() -> Iterator[tuple[str, Cost]]:
    """64 writes from their calls into a frame, and their answers."""
    writes = Writes(Counters())
    writes.session_opened(SESSION)
    op = b"x" * 130

    def submit(promises: list[_Promise]) -> None:
        for promise in promises:
            writes.submit(op, promise, 1.0)

    def run(here: Here) -> None:
        promises = [_Promise() for _ in range(BATCH)]
        frame = pb.ClientFrame()
        here(lambda: submit(promises))
        here(lambda: writes.fill(frame, 1_000))
        results = [pb.WriteResult(seq=write.seq, outcome=pb.OUTCOME_DONE) for write in frame.writes.writes]
        here(lambda: writes.answered([pb.ResultGroup(session=SESSION, results=results)]))

    yield "client: a write into a frame and its answer", each(run)


class _Gets:
    """A backend that answers each read of a key with the same row, of which only the first 64 are asked for at once."""

    def __init__(self) -> None:
        batches: list[Batch] = []
        self.points = Points(
            Counters(), began=batches.append, ended=batches.remove, wake=lambda: None, otherwise=batches.append
        )
        self.points.known = True
        data, encoding = encode_value("x" * 96)
        self.row = bytes((encoding,)) + bytes(10) + data

    async def point(self, key: bytes, consistency: "pb.Consistency", max_age_ms: int, *, timeout: float) -> bytes:
        self.points.submit(key, _Promise(), 1, timeout, consistency, max_age_ms)
        return self.row


def gets() -> Iterator[tuple[str, Cost]]:
    """64 gets, from the call to the entry, and what a node does for them."""

    def run(here: Here) -> None:
        backend = _Gets()
        kv, points, frame = Kv(backend), backend.points, pb.ClientFrame()  # type: ignore[arg-type]

        def call() -> None:
            for number in range(BATCH):
                with suppress(StopIteration):
                    kv.get(("users", number)).send(None)

        here(call)
        here(lambda: points.fill(frame, b"", 1_000, leading=True))
        answers = [
            pb.PointAnswers(id=reads.id, status=pb.READ_STATUS_OK, rows=[backend.row] * BATCH)
            for reads in frame.point_reads
        ]
        here(lambda: points.answered(answers))

    yield "client: a get", each(run)
    with a_store() as store:
        log, rng = Log(store), random.Random(1)
        store.apply_now(store.applied_index + 1, TIME_MS, log.batch(set_of(user_key), rng, BATCH))
        with store.snapshot() as snapshot:
            rows = snapshot.range(pb.ReadRange(start=b"", end=b"\xff", limit=BATCH))
            keys = [row.key for row in rows]
            yield "node: rows of many keys", each(lambda here: here(lambda: snapshot.packed(keys, 1 << 20)), len(keys))


def node_frames() -> Iterator[tuple[str, Cost]]:
    """What a node makes of a frame with 64 writes, and frames of what it answers."""
    outbox = Outbox(lambda: None, load=lambda message, lease: None, take=lambda watch: None)
    writes = [pb.Write(seq=seq, op=b"x" * 130) for seq in range(1, BATCH + 1)]
    group = pb.WriteGroup(session=SESSION, ack_below=1, writes=writes).SerializeToString()
    answer = pb.ResultGroup(session=SESSION, results=[pb.WriteResult(seq=seq) for seq in range(BATCH)])
    delivery = pb.Delivery(consumer=1, message_id=bytes(12), lease_id=bytes(12), payload=bytes(100))

    def done(output: object, error: object) -> None:
        pass

    def answers() -> None:
        for _ in range(BATCH):
            outbox.put(RESULTS, answer.SerializeToString())
        while outbox.next_frame():
            pass

    def deliveries() -> None:
        for _ in range(BATCH):
            outbox.put_delivery(delivery)
        while outbox.next_frame():
            pass

    yield (
        "node: a group of writes into a proposal",
        one(lambda: write_proposal(group, done, commits=1, weight=1)),
    )
    yield "node: an answer into a frame", each(lambda here: here(answers))
    yield "node: a delivery into a frame", each(lambda here: here(deliveries))


def raft_frames() -> Iterator[tuple[str, Cost]]:
    """64 entries from a leader into an append, and out of it at a follower."""
    payload = pb.Batch(data_version=DATA_VERSION).SerializeToString() + bytes(400)
    entries = [make(Kind.COMMAND, index, 1, TIME_MS, payload) for index in range(1, BATCH + 1)]
    reader = FrameReader(1 << 24)

    def run() -> None:
        header = AppendHeader(1, 0, 0, BATCH, 0, 1, False, TIME_MS, 0)
        for frame in reader.feed(encode(header.message(TIME_MS, entries))):
            for record in decode(frame).append.entries:
                parse(record)

    yield "raft: an entry into an append and out of it", each(lambda here: here(run))


Group = Callable[[], Iterator[tuple[str, Cost]]]
GROUPS: Final[tuple[Group, ...]] = (codec, applying, client_frames, gets, node_frames, raft_frames)


def costs() -> dict[str, Cost]:
    """Of all operations, now."""
    return {name: cost for group in GROUPS for name, cost in group()}


# ---- the record


def version() -> str:
    """Of Python, to the minor one."""
    return ".".join(platform.python_version_tuple()[:2])


def recorded(file: Path = RECORD) -> dict[str, dict[str, Cost]]:
    """By version of Python and operation."""
    return {
        python: {name: Cost(*pair) for name, pair in rows.items()}
        for python, rows in json.loads(file.read_text()).items()
    }


def grown(now: dict[str, Cost], record: dict[str, dict[str, Cost]], python: str) -> list[str]:
    """What costs more than it may, or is not compared with anything; one line each."""
    known = record.get(python)
    before = known or record[min(record)]
    found = [f"{name}: no record" for name in now.keys() - before.keys()]
    found += [f"{name}: recorded, but not counted any more" for name in before.keys() - now.keys()]
    for name in now.keys() & before.keys():
        for what in Cost._fields if known else ("calls",):
            was, is_now = getattr(before[name], what), getattr(now[name], what)
            if is_now > was * ALLOWED:
                found.append(f"{name}: {is_now:g} {what} instead of {was:g}")
    return sorted(found)


def main() -> int:
    """Exit status 1 if something has grown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help=f"accept them: write {RECORD.name} for this Python")
    options = parser.parse_args()
    now = costs()
    record = recorded() if RECORD.exists() else {}
    if options.record:
        record[version()] = now
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    before = record.get(version(), {})
    for name, cost in now.items():
        was = before.get(name, cost)
        change = cost.instructions / was.instructions - 1 if was.instructions else 0.0
        print(f"{name:48} {cost.instructions:10,.1f} instructions ({change:+.0%}) {cost.calls:8,.2f} calls")
    problems = grown(now, record, version())
    for problem in problems:
        print(f"GROWN {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
