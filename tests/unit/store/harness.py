"""A store, a log beside it, and short words for operations."""

import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import ApplyResult, Store, Unfinished
from kvorum_node.store.sums import emit_number

START_MS = 1_700_000_000_000
CLUSTER_ID = bytes(range(16))
ACK, RETRY, REJECT = pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_REJECT
RETURN, EXTEND = pb.SETTLE_KIND_RETURN, pb.SETTLE_KIND_EXTEND
DONE, STALE, GONE, FULL = pb.OUTCOME_DONE, pb.OUTCOME_STALE_LEASE, pb.OUTCOME_MESSAGE_GONE, pb.OUTCOME_QUEUE_FULL
FAILED, REJECTED, LOST = pb.FAILURE_KIND_FAILED, pb.FAILURE_KIND_REJECTED, pb.FAILURE_KIND_LOST
V8, LE64, BYTES = pb.VALUE_ENCODING_V8, pb.VALUE_ENCODING_LE64, pb.VALUE_ENCODING_BYTES


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def put(
    key: bytes, value: bytes = b"v", *, encoding: pb.ValueEncoding = BYTES, expire_in_ms: int | None = None
) -> pb.Mutation:
    return pb.Mutation(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=encoding, expire_in_ms=expire_in_ms)


def delete(key: bytes) -> pb.Mutation:
    return pb.Mutation(key=key, type=pb.MUTATION_TYPE_DELETE)


def touch(key: bytes, expire_in_ms: int | None = None) -> pb.Mutation:
    return pb.Mutation(key=key, type=pb.MUTATION_TYPE_TOUCH, expire_in_ms=expire_in_ms)


def delete_range(start: bytes, end: bytes, *, limit: int = 0) -> pb.Mutation:
    return pb.Mutation(key=start, type=pb.MUTATION_TYPE_DELETE_RANGE, end=end, limit=limit)


def number(value: int | float | None) -> bytes:
    return b"" if value is None else emit_number(value)


def combine(
    kind: pb.MutationType,
    key: bytes,
    operand: int | float | bytes,
    *,
    low: int | float | None = None,
    high: int | float | None = None,
    clamp: bool = False,
) -> pb.Mutation:
    """`operand`: bytes = 64-bit, int = BigInt, float = Number; the bounds likewise."""
    raw = isinstance(operand, bytes)
    return pb.Mutation(
        key=key,
        type=kind,
        value=operand if isinstance(operand, bytes) else number(operand),
        encoding=LE64 if raw else V8,
        sum_min=number(low),
        sum_max=number(high),
        sum_clamp=clamp,
    )


def add(key: bytes, operand: int | float, **bounds: int | float | None) -> pb.Mutation:
    clamp = bool(bounds.pop("clamp", False))
    return combine(pb.MUTATION_TYPE_ADD, key, operand, low=bounds.get("low"), high=bounds.get("high"), clamp=clamp)


def suffixed(key: bytes, value: bytes = b"v", *, expire_in_ms: int | None = None) -> pb.Mutation:
    kind = pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY
    return pb.Mutation(key=key, type=kind, value=value, encoding=BYTES, expire_in_ms=expire_in_ms)


def enqueue(
    payload: bytes = b"job",
    *,
    queue: str = "",
    delay_ms: int = 0,
    keys: Sequence[bytes] = (),
    backoff: Iterable[int] | None = None,
    group: str | None = None,
    dedup_id: bytes = b"",
    window_ms: int = 0,
    headers: bytes = b"",
    ttl_ms: int = 0,
    topic: str = "",
) -> pb.Enqueue:
    message = pb.Enqueue(
        queue=queue,
        payload=payload,
        delay_ms=delay_ms,
        keys_if_undelivered=keys,
        group=group,
        dedup_id=dedup_id,
        dedup_window_ms=window_ms,
        headers=headers,
        ttl_ms=ttl_ms,
        topic=topic,
    )
    if backoff is not None:
        message.backoff.delays_ms.extend(backoff)
        message.backoff.SetInParent()
    return message


def settle(
    delivery: pb.Delivery, kind: pb.SettleKind = pb.SETTLE_KIND_ACK, delay_ms: int | None = None, reason: str = ""
) -> pb.Settle:
    return pb.Settle(
        message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind, delay_ms=delay_ms, reason=reason
    )


def cancel(message_id: bytes) -> pb.Settle:
    return pb.Settle(message_id=message_id, kind=pb.SETTLE_KIND_CANCEL)


def reschedule(message_id: bytes, delay_ms: int) -> pb.Settle:
    return pb.Settle(message_id=message_id, kind=pb.SETTLE_KIND_RESCHEDULE, delay_ms=delay_ms)


def each(*verdicts: pb.Settle) -> pb.AtomicWrite:
    """Settles that are judged independently."""
    return pb.AtomicWrite(settles=verdicts, each=True)


def write(*parts: pb.Check | pb.Mutation | pb.Enqueue | pb.Settle) -> pb.AtomicWrite:
    """An atomic write of any parts."""
    made = pb.AtomicWrite()
    for part in parts:
        if isinstance(part, pb.Check):
            made.checks.append(part)
        elif isinstance(part, pb.Mutation):
            made.mutations.append(part)
        elif isinstance(part, pb.Enqueue):
            made.enqueues.append(part)
        else:
            made.settles.append(part)
    return made


def group(*writes: pb.AtomicWrite | bytes, session: bytes = b"", first_seq: int = 1, ack_below: int = 1) -> pb.Command:
    made = pb.WriteGroup(session=session, ack_below=ack_below)
    for seq, op in enumerate(writes, first_seq):
        made.writes.add(seq=seq, op=op if isinstance(op, bytes) else op.SerializeToString(deterministic=True))
    return pb.Command(writes=made)


def lease(
    session: bytes, *, queue: str = "", consumer: int = 1, count: int = 1, take: bool = False, expiring: bool = False
) -> pb.Command:
    made = pb.Lease(queue=queue, session=session, consumer=consumer, count=count, take=take, expiring=expiring)
    return pb.Command(lease=made)


def release(*deliveries: pb.Delivery, counts: bool, known: int = 0) -> pb.Command:
    leases = [
        pb.ReleasedLease(message_id=delivery.message_id, lease_id=delivery.lease_id, counts=counts)
        for delivery in deliveries
    ]
    return pb.Command(release=pb.Release(leases=leases, known=known))


def open_session(client: str = "test") -> pb.Command:
    return pb.Command(open_session=pb.OpenSession(client=client))


def close_sessions(*sessions: bytes) -> pb.Command:
    return pb.Command(close_sessions=pb.CloseSessions(sessions=sessions))


def sweep(limit: int = 1_000) -> pb.Command:
    return pb.Command(sweep=pb.Sweep(limit=limit))


def init_cluster(stamp_base: int = 0) -> pb.Command:
    return pb.Command(init_cluster=pb.InitCluster(cluster_id=CLUSTER_ID, stamp_base=stamp_base))


def define(queue: str, **policy: Any) -> pb.Command:
    """A queue with a policy, whose fields are those of `pb.QueuePolicy`."""
    made = pb.QueuePolicy(**policy).SerializeToString(deterministic=True)
    return pb.Command(define_queue=pb.DefineQueue(name=queue, policy=made))


def pause(queue: str, paused: bool = True) -> pb.Command:
    return pb.Command(pause_queue=pb.PauseQueue(name=queue, paused=paused))


def purge(queue: str, *, dead: bool = False, limit: int = 0) -> pb.Command:
    return pb.Command(purge=pb.Purge(queue=queue, dead=dead, limit=limit))


def remove_queue(queue: str, *, limit: int = 0) -> pb.Command:
    return pb.Command(remove_queue=pb.RemoveQueue(name=queue, limit=limit))


def requeue(queue: str, *message_ids: bytes, limit: int = 0, to_origin: bool = False) -> pb.Command:
    made = pb.Requeue(queue=queue, message_ids=message_ids, limit=limit, to_origin=to_origin)
    return pb.Command(requeue=made)


def define_topic(name: str, retention_ms: int = 0, *, remove: bool = False) -> pb.Command:
    return pb.Command(define_topic=pb.DefineTopic(name=name, retention_ms=retention_ms, remove=remove))


def subscribe(topic: str, queue: str, since_ms: int | None = None, *, remove: bool = False) -> pb.Command:
    return pb.Command(subscribe=pb.Subscribe(topic=topic, queue=queue, since_ms=since_ms, remove=remove))


def define_schedule(name: str, message: pb.Enqueue | None, next_ms: int = 0) -> pb.Command:
    """None = remove it."""
    definition = b"" if message is None else pb.Schedule(cron="* * * * *", message=message).SerializeToString()
    return pb.Command(define_schedule=pb.DefineSchedule(name=name, definition=definition, next_ms=next_ms))


def tick(name: str, tick_ms: int, next_ms: int, *, skip: bool = False) -> pb.Command:
    return pb.Command(tick=pb.Tick(schedule=name, tick_ms=tick_ms, next_ms=next_ms, skip=skip))


def batch(*commands: pb.Command, data_version: int = 1) -> bytes:
    return pb.Batch(data_version=data_version, commands=commands).SerializeToString(deterministic=True)


@dataclass
class Replica:
    """A store and the entries that it applied."""

    path: Path
    slice_commits: int = 256
    durable: bool = False
    now_ms: int = START_MS
    data_version: int = 1
    """Of the entries that `apply` makes."""
    log: list[tuple[int, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(self.path, durable=self.durable, map_size=1 << 30, slice_commits=self.slice_commits)

    def apply(self, *commands: pb.Command) -> ApplyResult:
        return self.apply_payload(batch(*commands, data_version=self.data_version))

    def apply_payload(self, payload: bytes) -> ApplyResult:
        index = self.store.applied_index + 1
        self.log.append((index, self.now_ms, payload))
        return self.store.apply_now(index, self.now_ms, payload)

    def commit(self, *parts: pb.Check | pb.Mutation | pb.Enqueue | pb.Settle) -> pb.WriteResult:
        """One write without a session, in an entry of its own."""
        answers: pb.ResultGroup = self.apply(group(write(*parts))).outputs[0]
        return answers.results[0]

    def session(self) -> bytes:
        opened: bytes = self.apply(open_session()).outputs[0]
        return opened

    def lease(
        self, session: bytes, *, queue: str = "", consumer: int = 1, count: int = 1, expiring: bool = False
    ) -> list[pb.Delivery]:
        result = self.apply(lease(session, queue=queue, consumer=consumer, count=count, expiring=expiring))
        return [grant.delivery for grant in result.granted]

    def info(self, message_id: bytes) -> pb.MessageInfo | None:
        with self.store.snapshot() as snapshot:
            return snapshot.message_info(message_id, self.now_ms)

    def queue(self, name: str) -> pb.QueueInfo:
        with self.store.snapshot() as snapshot:
            found, _ = snapshot.queue_infos("", b"", 1, name)
        return found[0] if found else pb.QueueInfo()

    def peek(self, queue: str, kind: pb.PeekKind = pb.PEEK_KIND_UNSPECIFIED) -> list[pb.MessageInfo]:
        """All pages of it."""
        found: list[pb.MessageInfo] = []
        after = b""
        with self.store.snapshot() as snapshot:
            while True:
                page, after = snapshot.peek(queue, kind, after, 1_000, self.now_ms)
                found += page
                if not after:
                    return found

    def get(self, key: bytes) -> tuple[int, bytes] | None:
        """Encoding and value."""
        entry = self.entry(key)
        return (int(entry.encoding), entry.value) if entry.versionstamp else None

    def entry(self, key: bytes) -> pb.KvEntry:
        with self.store.snapshot() as snapshot:
            return snapshot.get(key)

    def rows(
        self, start: bytes = b"", end: bytes = b"\xff", *, limit: int = 1 << 31, reverse: bool = False
    ) -> list[pb.KvEntry]:
        with self.store.snapshot() as snapshot:
            return snapshot.range(pb.ReadRange(start=start, end=end, limit=limit, reverse=reverse))

    def reopen(self, *, clean: bool = True) -> None:
        self.store.proved_good()
        self.store.close(clean=clean)
        self.store = self._open()

    def replay(self, log: Iterable[tuple[int, int, bytes]]) -> None:
        for index, time_ms, payload in log:
            self.store.apply_now(index, time_ms, payload)

    def replay_roughly(self, log: Iterable[tuple[int, int, bytes]], rng: random.Random) -> None:
        """With restarts, and with entries that are given up midway first, as a stopping node does."""
        for index, time_ms, payload in log:
            if rng.random() < 0.1:
                steps = self.store.apply(index, time_ms, payload)
                for _ in range(rng.randrange(3)):
                    next(steps, None)
                steps.close()
            if self.store.applied_index < index:
                self.store.apply_now(index, time_ms, payload)
            if rng.random() < 0.08:
                self.reopen(clean=rng.random() < 0.5)

    def scrub(self) -> None:
        """Everything fits together: rows, indexes, counters, hash."""
        for _ in self.store.scrub(1_000):
            pass

    def check_hash(self) -> None:
        assert self.store.recompute_hash() == self.store.state_hash()


def names(replica: Replica, table: bytes) -> list[bytes]:
    """Names of the rows of a table, those of all with b""."""
    with replica.store._env.begin() as txn, txn.cursor() as cursor:
        if not cursor.set_range(table):
            return []
        return [*takewhile(lambda name: name.startswith(table), cursor.iternext(keys=True, values=False))]


def last_id(replica: Replica, number: int = 0) -> bytes:
    """Of an enqueue of the last entry, which held one commit."""
    return replica.store.applied_index.to_bytes(8, "big") + b"\x00\x00" + number.to_bytes(2, "big")


def all_of(replica: Replica, command: pb.Command) -> tuple[int, int, list[bytes]]:
    """Repeat a command as a node does: messages touched, commands, leases that ended."""
    kind = command.WhichOneof("command")
    part = getattr(command, kind or "")
    touched = commands = found = 0
    ended: list[bytes] = []
    while commands < 1_000:
        result = replica.apply(command)
        (output,) = result.outputs
        commands += 1
        ended += result.ended
        replica.scrub()
        count, part.after = output if isinstance(output, Unfinished) else (output, b"")
        touched += count
        found += count
        if not isinstance(output, Unfinished):
            if not found:
                return touched, commands, ended
            found = 0
    raise AssertionError("it does not end")


_TRAFFIC = """
import sys
from importlib import import_module
from pathlib import Path
from tests.unit.store.harness import Replica
folder, module, data_version = sys.argv[1:]
replica = Replica(Path(folder), data_version=int(data_version))
import_module(module).Traffic(replica, 4).run(60)
print(replica.store.state_hash().hex())
replica.store.close()
"""


def hashes_by_hash_seed(folder: Path, module: str, data_version: int) -> set[str]:
    """State hashes after the same `Traffic` of a module, in processes with different PYTHONHASHSEED."""
    hashes = set()
    for seed in ("0", "1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", _TRAFFIC, str(folder / seed), module, str(data_version)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        hashes.add(run.stdout)
    return hashes


def random_key(rng: random.Random, alphabet: bytes = b"\x00\x01\xff", longest: int = 2_048) -> bytes:
    """Keys of all lengths, with long common prefixes."""
    size = rng.choice((1, 2, 3, 494, 495, 496, 497, 990, 991, 1_485, longest))
    head = bytes([rng.choice(alphabet)]) * max(0, size - 3)
    return head + bytes(rng.choice(alphabet) for _ in range(size - len(head)))
