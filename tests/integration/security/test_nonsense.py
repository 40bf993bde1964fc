"""Frames that can be decoded and make no sense: their stream gets an answer or its end, the node goes on, and others
notice nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc.aio
import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.dev_cluster import DevCluster
from tests.integration.node.raw import RawStream, enqueue_op, set_op

MOST = 2**64 - 1
MOST_32 = 2**32 - 1
KEY = b"\x02nonsense\0"
VICTIM = b"\x02victim\0"

Frames = list[pb.ClientFrame | bytes]


def field(number: int, data: bytes) -> bytes:
    """One that is told by its length."""
    tag, out = number << 3 | 2, bytearray()
    for value in (tag, len(data)):
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out) + data


def group(session: bytes, *ops: bytes, seq: int = 1, ack_below: int = 0) -> pb.ClientFrame:
    writes = [pb.Write(seq=seq + at, op=op) for at, op in enumerate(ops)]
    return pb.ClientFrame(writes=pb.WriteGroup(session=session, ack_below=ack_below, writes=writes))


def op(**parts: object) -> bytes:
    return pb.AtomicWrite(**parts).SerializeToString()  # type: ignore[arg-type]


def mutated(number: int, value: int) -> bytes:
    """A write whose mutation has a number in the place of a known one, in ten bytes if it is negative."""
    value &= MOST
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    inner = pb.Mutation(key=KEY, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
    return field(2, inner.SerializeToString() + bytes((number << 3,)) + bytes(out))


def calls(**more: object) -> Frames:
    return [pb.ClientFrame(queue_calls=[pb.QueueCall(id=1, **more)])]  # type: ignore[arg-type]


CASES: dict[str, Callable[[bytes], Frames]] = {
    "a second hello": lambda _: [pb.ClientFrame(hello=pb.Hello(protocol=1))],
    "a hello behind a hello": lambda _: [pb.ClientFrame(hello=pb.Hello(protocol=1), ping=5), pb.ClientFrame(ping=6)],
    "what a node says": lambda s: [
        pb.ServerFrame(
            hello=pb.HelloReply(protocol=1, node_id="n9"),
            results=[pb.ResultGroup(session=s, results=[pb.WriteResult(seq=1, outcome=pb.OUTCOME_DONE)])],
            reads=[pb.ReadResult(id=1)],
            error="over",
        ).SerializeToString()
    ],
    "fields that nobody knows": lambda _: [field(1_000, b"x" * 1_000) + pb.ClientFrame(ping=1).SerializeToString()],
    "fields of a write that nobody knows": lambda s: [group(s, set_op(KEY) + field(500, b"x"))],
    "a text that is none": lambda _: [field(7, b"\x12\x02\xff\xfe")],
    "a number of a watch used again": lambda _: [
        pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[KEY]), pb.StartWatch(id=1, keys=[KEY])])
    ],
    "a number of a range used again": lambda _: [
        pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[KEY]), pb.StartWatch(id=1, start=b"a", end=b"b")])
    ],
    "numbers of reads used again": lambda _: [
        pb.ClientFrame(reads=[pb.Read(id=1, keys=[KEY])] * 50, point_reads=[pb.PointReads(id=1, keys=[KEY])] * 50)
    ],
    "numbers of calls used again": lambda _: [
        pb.ClientFrame(queue_calls=[pb.QueueCall(id=1, queues=pb.ListQueues(limit=1))] * 40)
    ],
    "a number of a consumer used again": lambda _: [
        pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue=queue, credits=1)]) for queue in ("x", "y", "x")
    ],
    "a number of a write used again": lambda s: [group(s, set_op(KEY)), group(s, set_op(KEY, b"other"))],
    "one number for all writes of a group": lambda s: [
        pb.ClientFrame(writes=pb.WriteGroup(session=s, writes=[pb.Write(seq=1, op=set_op(KEY))] * 20))
    ],
    "writes without a number": lambda s: [group(s, set_op(KEY), seq=0)],
    "the largest number of a write": lambda s: [group(s, set_op(KEY), seq=MOST)],
    "all is acknowledged": lambda s: [
        group(s, set_op(KEY), seq=1, ack_below=MOST),
        group(s, set_op(KEY), seq=MOST, ack_below=MOST),
        group(s, set_op(KEY), seq=1),
    ],
    "the largest numbers": lambda _: [
        pb.ClientFrame(
            ping=MOST,
            reads=[
                pb.Read(id=MOST, keys=[KEY], consistency=pb.CONSISTENCY_BOUNDED, max_age_ms=MOST_32),
                pb.Read(id=2, ranges=[pb.ReadRange(end=b"\xff", limit=MOST_32)]),
            ],
            watches=[pb.StartWatch(id=MOST, keys=[KEY])],
            stop_watches=[MOST],
            stop_consumers=[MOST],
            started=[pb.Started(consumer=MOST, lease_ids=[b"\xff" * 12] * 100)],
        )
    ],
    "the largest consumer": lambda _: [
        pb.ClientFrame(consumers=[pb.StartConsumer(id=MOST, queue="x", credits=1_000, concurrency=MOST_32)]),
        pb.ClientFrame(started=[pb.Started(consumer=MOST, lease_ids=[b""])]),
    ],
    "more credits than there are": lambda _: [
        pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue="x", credits=MOST_32)])
    ],
    "a state of the far future": lambda _: [
        pb.ClientFrame(
            reads=[
                pb.Read(id=1, keys=[KEY], min_versionstamp=b"\xff" * 10, consistency=pb.CONSISTENCY_EVENTUAL),
                pb.Read(id=2, keys=[KEY], min_versionstamp=b"short"),
            ],
            watches=[pb.StartWatch(id=3, start=b"a", end=b"z", since=b"\xff" * 10)],
        )
    ],
    "kinds that nobody knows": lambda s: [
        group(
            s,
            mutated(2, 999),
            mutated(2, -1),
            mutated(4, 99),
            mutated(4, -7),
            op(checks=[pb.Check(key=KEY, kind=77)]),
            op(settles=[pb.Settle(kind=99)]),
        ),
        pb.ClientFrame(reads=[pb.Read(id=1, keys=[KEY], consistency=99)]),
        field(11, b"\x08\x01\x82\x01\x02\x10\x63"),
    ],
    "negative numbers": lambda s: [
        group(s, mutated(5, -1), mutated(10, -1)),
        b"\x1a" + bytes((12,)) + b"\x08" + b"\xff" * 9 + b"\x01" + b"\x20",
        b"\x40" + b"\xff" * 9 + b"\x01",
    ],
    "verdicts on nothing": lambda s: [
        group(
            s,
            op(settles=[pb.Settle(message_id=b"\xff" * 12, lease_id=b"\xff" * 12, kind=pb.SETTLE_KIND_ACK)]),
            op(settles=[pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_RETURN)] * 100),
            op(settles=[pb.Settle(message_id=b"\xff" * 12, kind=pb.SETTLE_KIND_CANCEL)]),
            op(settles=[pb.Settle(message_id=b"\xff" * 12, kind=pb.SETTLE_KIND_RESCHEDULE, delay_ms=MOST)]),
            op(settles=[pb.Settle(message_id=b"", lease_id=b"", kind=pb.SETTLE_KIND_ACK)]),
        )
    ],
    "leases that nobody has": lambda _: [
        pb.ClientFrame(
            consumers=[
                pb.StartConsumer(
                    id=1,
                    queue="x",
                    credits=1,
                    held=[pb.HeldLease(message_id=b"\xff" * 12, lease_id=b"\xff" * 12, started=True)] * 500,
                )
            ]
        )
    ],
    "times beyond all": lambda s: [
        group(
            s,
            op(mutations=[pb.Mutation(key=KEY, type=1, value=b"v", encoding=3, expire_in_ms=MOST)]),
            op(enqueues=[pb.Enqueue(queue="x", payload=b"v", delay_ms=MOST)]),
            op(enqueues=[pb.Enqueue(queue="x", payload=b"v", ttl_ms=MOST)]),
            op(enqueues=[pb.Enqueue(queue="x", payload=b"v", dedup_id=b"d", dedup_window_ms=MOST)]),
            op(enqueues=[pb.Enqueue(queue="x", payload=b"v", backoff=pb.Backoff(delays_ms=[MOST_32] * 64))]),
        )
    ],
    "a goodbye, and on": lambda s: [
        pb.ClientFrame(goodbye=pb.Goodbye(release=True)),
        group(s, set_op(KEY)),
        pb.ClientFrame(goodbye=pb.Goodbye(release=True), consumers=[pb.StartConsumer(id=1, queue="x", credits=1)]),
        pb.ClientFrame(goodbye=pb.Goodbye()),
    ],
    "more sessions than one needs": lambda _: [
        pb.ClientFrame(open_session=pb.OpenSession(client="x" * 100_000)) for _ in range(30)
    ],
    "a session that is nobody's": lambda _: [
        group(b"\xff" * 10, set_op(KEY)),
        group(b"", set_op(KEY)),
        group(b"x" * 5_000, set_op(KEY)),
    ],
    "calls that are none": lambda _: [
        pb.ClientFrame(queue_calls=[pb.QueueCall(), pb.QueueCall(id=MOST)]),
        field(11, b"\x08\x01" + field(900, b"x")),
    ],
    "a call for all": lambda _: calls(peek=pb.Peek(queue="x", kind=99, limit=MOST_32, after=b"\xff" * 500)),  # type: ignore[arg-type]
    "a page behind all": lambda _: calls(queues=pb.ListQueues(limit=1, after=b"\xff" * 600)),
    "a requeue of what is not there": lambda _: calls(
        requeue=pb.Requeue(queue="x", message_ids=[b"\xff" * 12] * 900, limit=MOST_32)
    ),
    "a policy of the largest numbers": lambda _: calls(
        define=pb.DefineQueue(
            name="x",
            policy=pb.QueuePolicy(
                lease_ms=MOST, max_attempts=MOST_32, retention_ms=MOST, max_backlog=MOST, max_in_flight=MOST_32
            ).SerializeToString(),
        )
    ),
    "a policy that is none": lambda _: calls(define=pb.DefineQueue(name="x", policy=b"\xff\xff\xff")),
    "a schedule that never was": lambda _: calls(
        schedule=pb.DefineSchedule(
            name="x",
            definition=pb.Schedule(
                cron="99 99 99 99 99", grace_ms=MOST, message=pb.Enqueue(queue="x", payload=b"v")
            ).SerializeToString(),
            next_ms=MOST,
        )
    ),
    "a subscription from before all": lambda _: calls(subscribe=pb.Subscribe(topic="x", queue="x", since_ms=MOST)),
    "the largest range": lambda s: [
        group(
            s,
            op(mutations=[pb.Mutation(key=b"\xff", end=b"\0", type=pb.MUTATION_TYPE_DELETE_RANGE)]),
            op(mutations=[pb.Mutation(key=KEY, end=KEY, type=pb.MUTATION_TYPE_DELETE_RANGE, limit=MOST_32)]),
        )
    ],
    "a write within a write": lambda s: [group(s, group(s, set_op(KEY)).SerializeToString() * 100)],
    "nothing at all": lambda _: [b"", pb.ClientFrame(), pb.ClientFrame(writes=pb.WriteGroup())] * 10,
}


class Victim:
    """Somebody who writes, watches and consumes, on a stream of his own."""

    def __init__(self, stream: RawStream) -> None:
        self._stream = stream
        self._round = 0

    async def begin(self) -> None:
        await self._stream.greet()
        await self._stream.open_session()
        await self._stream.send(
            pb.ClientFrame(
                watches=[pb.StartWatch(id=1, keys=[VICTIM])],
                consumers=[pb.StartConsumer(id=1, queue="victim", credits=1_000, concurrency=1_000)],
            )
        )
        await self._stream.until("watches")

    async def goes_on(self) -> None:
        self._round += 1
        value = b"%d" % self._round
        results = await self._stream.write(set_op(VICTIM, value), enqueue_op(value, "victim"))
        assert {result.outcome for result in results} == {pb.OUTCOME_DONE}
        seen = self._stream.seen
        while not (
            any(entry.value == value for event in seen.watches for entry in event.entries)
            and any(delivery.payload == value for delivery in seen.deliveries)
        ):
            assert await self._stream.next() is not None, seen.error


@pytest.fixture
async def victim(shared_cluster: DevCluster) -> AsyncIterator[Victim]:
    async with RawStream(shared_cluster.client_address(shared_cluster.leader())) as stream:
        made = Victim(stream)
        await made.begin()
        await made.goes_on()
        yield made


@pytest.mark.parametrize("case", CASES)
async def test_nonsense_is_answered_or_ends_its_stream(shared_cluster: DevCluster, victim: Victim, case: str) -> None:
    leader = shared_cluster.leader()
    logs = [shared_cluster.log(number).stat().st_size for number in range(3)]
    pids = [shared_cluster.pid(number) for number in range(3)]
    async with RawStream(shared_cluster.client_address(leader)) as stream:
        await stream.greet()
        session = await stream.open_session()
        answered = asyncio.create_task(_read(stream))  # gRPC has nothing more to be read once it knows of the end
        for frame in CASES[case](session):
            await _send(stream, frame)
        await _send(stream, pb.ClientFrame(ping=4_711))
        await answered
        seen = stream.seen
        assert seen.pong == 4_711 or seen.error, "neither an answer nor an end"
        assert seen.error != "internal error"
        await victim.goes_on()
        if not seen.error:
            results = [result for one in seen.results for result in one.results]
            assert all(result.outcome for result in results)
            assert all(result.message for result in results if result.outcome == pb.OUTCOME_INVALID)
    assert [shared_cluster.pid(number) for number in range(3)] == pids
    assert shared_cluster.leader() == leader
    for number, size in enumerate(logs):
        told = shared_cluster.log(number).read_bytes()[size:].decode()
        assert "Traceback" not in told and "fault of this node" not in told and "level=critical" not in told, told


async def _read(stream: RawStream) -> None:
    """Until the ping is answered, or the stream has ended."""
    while stream.seen.pong != 4_711 and await stream.next() is not None:
        pass


async def _send(stream: RawStream, frame: pb.ClientFrame | bytes) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has ended meanwhile
        await stream.send(frame)
