"""Micro-benchmark of the store: what one operation costs in apply, validation and reads, without consensus or network.

    python bench/store_micro.py FOLDER [--seconds S] [--cpu]

FOLDER must be on a real disk (not tmpfs) to mean anything; a fresh subfolder is made in it and removed. Times are
microseconds of one operation, the LMDB commit of the (unsynced) transaction included where there is one; median over
the batches, and the best one. With --cpu they are CPU time of the thread, which others on the machine disturb less. The
last lines of writes are those of a token with rights to what it writes, in a cluster that asks for one.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import DATA_VERSION, Store, validate

BATCH = 256
VALUE = bytes(range(100))
START_MS = 1_700_000_000_000

TOKEN = b"bench-id"

MakeWrite = Callable[[random.Random], pb.AtomicWrite]


class Log:
    """Feeds a store with batches of one session whose seqs and acknowledgements go on as a busy client's would."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.perf_counter) -> None:
        self.store = store
        self.clock = clock
        opened = pb.Batch(data_version=DATA_VERSION, commands=[pb.Command(open_session=pb.OpenSession(client="bench"))])
        self.session: bytes = store.apply_now(store.applied_index + 1, START_MS, opened.SerializeToString()).outputs[0]
        self.seq = 1

    def batch(
        self, make: MakeWrite, rng: random.Random, size: int, *, session: bool = True, principal: bytes = b""
    ) -> bytes:
        first = self.seq
        self.seq += size
        writes = [pb.Write(seq=first + at, op=make(rng).SerializeToString()) for at in range(size)]
        group = pb.WriteGroup(session=self.session if session else b"", ack_below=max(1, first - size), writes=writes)
        command = pb.Command(writes=group, principal=principal)
        return pb.Batch(data_version=DATA_VERSION, commands=[command]).SerializeToString()

    def apply(self, payload: bytes) -> float:
        """Seconds."""
        began = self.clock()
        self.store.apply_now(self.store.applied_index + 1, START_MS, payload)
        return self.clock() - began

    def switch_tokens(self, *, on: bool) -> None:
        """Tokens are asked for, or not any more; there is one."""
        scopes = pb.Scopes(
            keys=[pb.KeyScope(prefix=b"\x02" + name + b"\x00", read=True, write=True) for name in (b"new", b"user")],
            queues=[pb.QueueScope(name="work", send=True, receive=True)],
        )
        token = pb.PutToken(id=TOKEN, name="bench", secret=bytes(32), scopes=scopes.SerializeToString())
        commands = [pb.Command(put_token=token), pb.Command(switch_auth=pb.SwitchAuth(on=on))]
        for command in commands:
            command.principal = b"root"
        self.apply(pb.Batch(data_version=DATA_VERSION, commands=commands).SerializeToString())


def user_key(rng: random.Random) -> bytes:
    return b"\x02user\x00\x02%08d\x00" % rng.randrange(100_000)


def new_key(rng: random.Random) -> bytes:
    return b"\x02new\x00\x02%016x\x00" % rng.getrandbits(64)


def set_of(key: Callable[[random.Random], bytes], *, expire_in_ms: int | None = None) -> MakeWrite:
    def make(rng: random.Random) -> pb.AtomicWrite:
        mutation = pb.Mutation(
            key=key(rng),
            type=pb.MUTATION_TYPE_SET,
            value=VALUE,
            encoding=pb.VALUE_ENCODING_BYTES,
            expire_in_ms=expire_in_ms,
        )
        return pb.AtomicWrite(mutations=[mutation])

    return make


def add(rng: random.Random) -> pb.AtomicWrite:
    operand = pb.Mutation(
        key=b"\x02sum\x00" + user_key(rng),
        type=pb.MUTATION_TYPE_ADD,
        value=b"\xff\x0fI\x02",
        encoding=pb.VALUE_ENCODING_V8,
    )
    return pb.AtomicWrite(mutations=[operand])


def checked_set(rng: random.Random) -> pb.AtomicWrite:
    write = set_of(new_key)(rng)
    write.checks.add(key=write.mutations[0].key)
    return write


def two_sets(rng: random.Random) -> pb.AtomicWrite:
    write = set_of(user_key)(rng)
    write.MergeFrom(set_of(new_key)(rng))
    return write


def enqueue(rng: random.Random) -> pb.AtomicWrite:
    return pb.AtomicWrite(enqueues=[pb.Enqueue(queue="work", payload=VALUE)])


def failed_check(rng: random.Random) -> pb.AtomicWrite:
    write = set_of(user_key)(rng)
    write.checks.add(key=b"\x02no", kind=pb.CHECK_KIND_EXISTS)
    return write


WRITES: dict[str, MakeWrite] = {
    "set, existing key": set_of(user_key),
    "set, new key": set_of(new_key),
    "set, new key, expires": set_of(new_key, expire_in_ms=60_000),
    "set, 600-byte key": set_of(lambda rng: b"\x02" + bytes(580) + user_key(rng)),
    "add to a counter": add,
    "check + set": checked_set,
    "two sets": two_sets,
    "enqueue": enqueue,
    "failed check": failed_check,
}


def report(name: str, seconds: list[float], operations: int) -> None:
    per = sorted(1e6 * took / operations for took in seconds)
    print(f"{name:36} {statistics.median(per):8.2f} {per[0]:8.2f}", flush=True)


def timed(name: str, run: Callable[[], None], operations: int, seconds: float) -> None:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    report(name, took, operations)


def bench_writes(log: Log, rng: random.Random, seconds: float) -> None:
    for name, make in WRITES.items():
        took: list[float] = []
        while sum(took) < seconds:
            took.append(log.apply(log.batch(make, rng, BATCH)))
        report(f"apply: {name}", took, BATCH)
    took = []
    while sum(took) < seconds:
        took.append(log.apply(log.batch(set_of(user_key), rng, BATCH, session=False)))
    report("apply: set, no session", took, BATCH)
    took = []
    while sum(took) < seconds:
        payload = log.batch(set_of(user_key), rng, BATCH)
        log.apply(payload)
        took.append(log.apply(payload))
    report("apply: set, repeated", took, BATCH)
    took = []
    while sum(took) < seconds:
        took.append(log.apply(log.batch(set_of(user_key), rng, 1)))
    report("apply: entry with a single set", took, 1)


def bench_judged(log: Log, rng: random.Random, seconds: float) -> None:
    """What a token may do; the queue's messages are acknowledged by nobody."""
    log.switch_tokens(on=True)
    for name in ("set, existing key", "set, new key", "check + set", "two sets", "enqueue"):
        took: list[float] = []
        while sum(took) < seconds:
            took.append(log.apply(log.batch(WRITES[name], rng, BATCH, principal=TOKEN)))
        report(f"apply, token: {name}", took, BATCH)
    took = []
    while sum(took) < seconds:
        took.append(log.apply(log.batch(set_of(user_key), rng, 1, principal=TOKEN)))
    report("apply, token: entry with a set", took, 1)
    log.switch_tokens(on=False)


def bench_leases(log: Log, seconds: float) -> None:
    granted: list[float] = []
    settled: list[float] = []
    lease = pb.Batch(
        data_version=DATA_VERSION, commands=[pb.Command(lease=pb.Lease(queue="work", session=log.session, count=BATCH))]
    ).SerializeToString()
    while sum(granted) < seconds:
        began = log.clock()
        result = log.store.apply_now(log.store.applied_index + 1, START_MS, lease)
        if len(result.granted) < BATCH:
            break
        granted.append(log.clock() - began)
        held: Iterator[pb.Delivery] = (grant.delivery for grant in result.granted)

        def ack(rng: random.Random, held: Iterator[pb.Delivery] = held) -> pb.AtomicWrite:
            delivery = next(held)
            settle = pb.Settle(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_ACK)
            return pb.AtomicWrite(settles=[settle])

        settled.append(log.apply(log.batch(ack, random.Random(), BATCH)))
    report("apply: lease", granted, BATCH)
    report("apply: acknowledge", settled, BATCH)


def bench_reads(store: Store, rng: random.Random, seconds: float) -> None:
    keys = [user_key(rng) for _ in range(1_000)]

    def get() -> None:
        for key in keys:
            with store.snapshot() as snapshot:
                snapshot.get(key)

    def get_from_one() -> None:
        with store.snapshot() as snapshot:
            for key in keys:
                snapshot.get(key)

    def list_rows() -> None:
        with store.snapshot() as snapshot:
            snapshot.range(pb.ReadRange(start=b"\x02user\x00", end=b"\x02user\x01", limit=1_000))

    timed("read: get, a snapshot each", get, 1_000, seconds)
    timed("read: get, one snapshot", get_from_one, 1_000, seconds)
    timed("read: list, each row", list_rows, 1_000, seconds)


def bench_validation(rng: random.Random, seconds: float) -> None:
    op = set_of(user_key)(rng).SerializeToString()

    def run() -> None:
        for _ in range(1_000):
            validate(pb.AtomicWrite.FromString(op))

    timed("parse and validate: set", run, 1_000, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--cpu", action="store_true", help="CPU time of the thread in place of wall time")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="store-micro-", dir=options.folder))
    rng = random.Random(1)
    try:
        store = Store.open(folder, durable=False)
        try:
            log = Log(store, time.thread_time if options.cpu else time.perf_counter)
            for _ in range(400):  # fill: most of the 100,000 user keys
                log.apply(log.batch(set_of(user_key), rng, BATCH))
            print(f"{'microseconds of one operation':36} {'median':>8} {'best':>8}")
            bench_writes(log, rng, options.seconds)
            bench_judged(log, rng, options.seconds)
            bench_leases(log, options.seconds)
            bench_reads(store, rng, options.seconds)
            bench_validation(rng, options.seconds)
            if store.recompute_hash() != store.state_hash():
                raise SystemExit("the content hash is wrong")
            print({name: round(value) for name, value in store.statistics().items()})
        finally:
            store.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
