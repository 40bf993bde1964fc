"""Three real nodes, spoken to by hand."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from tests.integration.cluster_fixture import ThreeNodes, pace_of
from tests.integration.node.raw import RawStream, enqueue_op, set_op, settle_op

KEY = b"\x02key\x00"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("stream"), lease_ms=1_000) as cluster:
        yield cluster


@pytest.fixture
def leader(cluster: ThreeNodes) -> str:
    return cluster.client_address(cluster.leader())


@pytest.fixture
def follower(cluster: ThreeNodes) -> str:
    return cluster.client_address(cluster.followers()[0])


async def test_hello_names_cluster_node_and_leader(cluster: ThreeNodes, leader: str, follower: str) -> None:
    async with RawStream(follower) as stream:
        reply = await stream.greet()
        assert len(reply.cluster_id) == 16
        assert reply.leader.address == leader
        assert reply.node_id != reply.leader.node_id


async def test_writes_and_reads(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        results = await stream.write(*[set_op(b"\x02w%02d\x00" % number, b"%d" % number) for number in range(50)])
        assert {result.outcome for result in results} == {pb.OUTCOME_DONE}
        reads = [pb.Read(id=number, keys=[b"\x02w%02d\x00" % number, b"\x02absent\x00"]) for number in range(50)]
        reads.append(pb.Read(id=99, ranges=[pb.ReadRange(start=b"\x02w", end=b"\x02x", limit=20, reverse=True)]))
        await stream.send(pb.ClientFrame(reads=reads))
        answers = {answer.id: answer for answer in await stream.until("reads", 51)}
        assert all(answers[number].entries[0].value == b"%d" % number for number in range(50))
        assert not answers[0].entries[1].versionstamp
        assert [entry.value for entry in answers[99].ranges[0].entries] == [
            b"%d" % number for number in range(49, 29, -1)
        ]


async def test_reads_of_one_key_each_come_together(leader: str, follower: str) -> None:
    async with RawStream(leader) as stream, RawStream(follower) as other:
        assert (await stream.greet()).point_reads
        await other.greet()
        await stream.open_session()
        await stream.write(*[set_op(b"\x02p%03d\x00" % number, b"%d" % number) for number in range(300)])
        keys = [b"\x02p%03d\x00" % number for number in range(400)]
        for node in (stream, other):
            reads = [pb.PointReads(id=1, keys=keys), pb.PointReads(id=2, keys=[KEY * 700])]
            await node.send(pb.ClientFrame(point_reads=reads))
            answers = await node.until("point_answers", 3)
            rows = [row for answer in answers if answer.id == 1 for row in answer.rows]
            assert [row[11:] for row in rows] == [b"%d" % number for number in range(300)] + [b""] * 100
            assert {len(row[:11]) for row in rows} == {11, 0}
            assert rows[0][0] == pb.VALUE_ENCODING_BYTES
            assert [answer.status for answer in answers if answer.id == 2] == [pb.READ_STATUS_INVALID]


async def test_a_repeated_write_is_answered_from_its_session(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        op = pb.AtomicWrite()
        op.mutations.add(
            key=b"\x02sum\x00",
            type=pb.MUTATION_TYPE_SUM,
            value=(1).to_bytes(8, "little"),
            encoding=pb.VALUE_ENCODING_LE64,
        )
        for _ in range(3):
            (result,) = await stream.write(op.SerializeToString(), seq=1)
            assert result.outcome == pb.OUTCOME_DONE
        session = stream.session
        await stream.send(pb.ClientFrame(reads=[pb.Read(id=1, keys=[b"\x02sum\x00"])]))
        assert (await stream.until("reads"))[0].entries[0].value == (1).to_bytes(8, "little")
    async with RawStream(leader) as again:
        await again.greet(session=session)
        again.session = session
        (result,) = await again.write(op.SerializeToString(), seq=1)
        assert result.outcome == pb.OUTCOME_DONE
        assert result.stamp_prefix


async def test_a_follower_reads_but_does_not_write(leader: str, follower: str) -> None:
    async with RawStream(leader) as stream, RawStream(follower) as other:
        await stream.greet()
        await other.greet()
        await stream.open_session()
        await stream.write(set_op(KEY, b"seen by all"))
        await other.send(pb.ClientFrame(reads=[pb.Read(id=1, keys=[KEY])]))
        assert (await other.until("reads"))[0].entries[0].value == b"seen by all"
        other.session = stream.session
        (result,) = await other.write(set_op(KEY, b"x"))
        assert result.outcome == pb.OUTCOME_NOT_LEADER
        assert (await other.until("leader")).address == leader
        await other.send(pb.ClientFrame(open_session=pb.OpenSession()))
        assert (await other.until("session")).session == b""


async def test_invalid_writes_and_reads_are_answered_one_by_one(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        results = await stream.write(
            set_op(KEY), b"\xff\xff", set_op(bytes(3_000)), set_op(KEY, bytes(70_000)), set_op(KEY)
        )
        outcomes = {result.seq: result.outcome for result in results}
        assert [outcomes[seq] for seq in sorted(outcomes)] == [
            pb.OUTCOME_DONE,
            pb.OUTCOME_INVALID,
            pb.OUTCOME_INVALID,
            pb.OUTCOME_INVALID,
            pb.OUTCOME_DONE,
        ]
        assert "MAX_VALUE_SIZE" in next(result.message for result in results if "value" in result.message)
        await stream.send(pb.ClientFrame(reads=[pb.Read(id=1, keys=[bytes(5_000)])]))
        assert (await stream.until("reads"))[0].status == pb.READ_STATUS_INVALID


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\xff\xff\xff\xff", "decoded"),
        (pb.ClientFrame(), "hello"),
        (pb.ClientFrame(ping=1), "hello"),
        (pb.ClientFrame(hello=pb.Hello(protocol=2)), "protocol"),
        (pb.ClientFrame(hello=pb.Hello(protocol=1, cluster_id=bytes(16))), "cluster"),
        (pb.ClientFrame(hello=pb.Hello(protocol=1, session=b"short")), "session"),
        (bytes(limits.MAX_FRAME_SIZE + 1), "MAX_FRAME_SIZE"),
    ],
)
async def test_a_bad_beginning_ends_the_stream_with_a_reason(
    leader: str, frame: pb.ClientFrame | bytes, says: str
) -> None:
    async with RawStream(leader) as stream:
        await stream.send(frame)
        seen = await stream.end()
        assert says in seen.error
        assert seen.error_is_final


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\x12\xff", "decoded"),
        (pb.ClientFrame(hello=pb.Hello(protocol=1)), "once"),
        (pb.ClientFrame(reads=[pb.Read(id=n) for n in range(1_001)]), "MAX_FRAME_OPERATIONS"),
        (pb.ClientFrame(point_reads=[pb.PointReads(keys=[b""] * 501)] * 2), "MAX_FRAME_OPERATIONS"),
        (pb.ClientFrame(consumers=[pb.StartConsumer(id=1, credits=1)]), "session"),
    ],
)
async def test_a_bad_frame_ends_the_stream_with_a_reason(leader: str, frame: pb.ClientFrame | bytes, says: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.send(frame)
        seen = await stream.end()
        assert says in seen.error
        assert seen.error_is_final


@pytest.mark.parametrize(
    "consumer",
    [pb.StartConsumer(id=1), pb.StartConsumer(id=1, credits=1_001), pb.StartConsumer(id=1, credits=1, queue="q" * 300)],
)
async def test_a_bad_consumer_ends_the_stream(leader: str, consumer: pb.StartConsumer) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await stream.send(pb.ClientFrame(consumers=[consumer]))
        assert "MAX_" in (await stream.end()).error


async def test_things_that_do_not_exist_are_ignored_and_garbage_leaves_the_node_unharmed(
    cluster: ThreeNodes, leader: str
) -> None:
    for _ in range(20):
        async with RawStream(leader) as stream:
            await stream.greet()
            await stream.send(pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[KEY])]))
            await stream.send(
                pb.ClientFrame(
                    stop_watches=[9],
                    stop_consumers=[9],
                    started=[pb.Started(consumer=9, lease_ids=[b"x"])],
                    goodbye=pb.Goodbye(release=True),
                    ping=4,
                )
            )
            assert await stream.until("pong") == 4
            await stream.send(b"\x00\x01garbage")
            assert (await stream.end()).error
    await none_left(cluster, "watches")


async def test_a_session_that_is_no_session_is_refused(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        (result,) = await stream.write(set_op(KEY))
        assert result.outcome == pb.OUTCOME_INVALID
        stream.session = b"\0\0\0\0\0\0\0\1\0\0"
        (result,) = await stream.write(set_op(KEY))
        assert result.outcome == pb.OUTCOME_SESSION_EXPIRED


async def test_watch(leader: str, follower: str) -> None:
    async with RawStream(leader) as writer, RawStream(follower) as watcher:
        await writer.greet()
        await watcher.greet()
        await writer.open_session()
        await watcher.send(pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[b"\x02wa\x00", b"\x02wb\x00"])]))
        first = (await watcher.until("watches"))[0]
        assert [entry.versionstamp for entry in first.entries] == [b"", b""]
        op = pb.AtomicWrite.FromString(set_op(b"\x02wa\x00", b"1"))
        op.MergeFrom(pb.AtomicWrite.FromString(set_op(b"\x02wb\x00", b"2")))
        await writer.write(op.SerializeToString())
        second = (await watcher.until("watches", 2))[1]
        assert [entry.value for entry in second.entries] == [b"1", b"2"]
        assert second.read_versionstamp > first.read_versionstamp
        await watcher.send(pb.ClientFrame(watches=[pb.StartWatch(id=2)]))
        ended = (await watcher.until("watches", 3))[2]
        assert (ended.id, ended.retryable) == (2, False)
        assert "MAX_WATCHED_KEYS" in ended.error
        await watcher.send(pb.ClientFrame(stop_watches=[1], ping=1))
        await watcher.until("pong")
        await writer.write(set_op(b"\x02wa\x00", b"3"))
        await watcher.send(pb.ClientFrame(reads=[pb.Read(id=1, keys=[KEY])]))
        await watcher.until("reads")
        assert len(watcher.seen.watches) == 3


async def test_queue(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        session = await stream.open_session()
        await stream.send(pb.ClientFrame(consumers=[pb.StartConsumer(id=7, queue="mail", credits=2, concurrency=1)]))
        await stream.write(*[enqueue_op(b"%d" % number, "mail") for number in range(3)])
        first, second = await stream.until("deliveries", 2)
        assert (first.consumer, first.payload, first.attempt) == (7, b"0", 1)
        await stream.send(pb.ClientFrame(started=[pb.Started(consumer=7, lease_ids=[first.lease_id])]))
        (result,) = await stream.write(settle_op(first))
        assert result.outcome == pb.OUTCOME_DONE
        third = (await stream.until("deliveries", 3))[2]
        assert third.payload == b"2"
    # The connection broke: within the lease the same consumer is given again what it does not hold.
    async with RawStream(leader) as again:
        await again.greet(session=session)
        again.session = session
        held = pb.HeldLease(message_id=second.message_id, lease_id=second.lease_id)
        await again.send(pb.ClientFrame(consumers=[pb.StartConsumer(id=7, queue="mail", credits=2, held=[held])]))
        (repeated,) = await again.until("deliveries")
        assert (repeated.lease_id, repeated.payload) == (third.lease_id, b"2")
        again._seq = 100
        results = await again.write(settle_op(second), settle_op(repeated))
        assert {result.outcome for result in results} == {pb.OUTCOME_DONE}


async def test_a_large_list_comes_in_slices_and_a_slow_reader_costs_little(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        for begin in range(0, 100, 20):
            await stream.write(
                *[set_op(b"\x02big%03d\x00" % number, bytes(60_000)) for number in range(begin, begin + 20)]
            )
        await stream.send(
            pb.ClientFrame(reads=[pb.Read(id=5, ranges=[pb.ReadRange(start=b"\x02big", end=b"\x02bih", limit=1_000)])])
        )
        while not stream.seen.reads or stream.seen.reads[-1].more:
            assert await stream.next() is not None
        slices = stream.seen.reads
        assert len(slices) > 3
        assert [len(part.ranges) for part in slices] == [1] * len(slices)
        keys = [entry.key for part in slices for entry in part.ranges[0].entries]
        assert keys == [b"\x02big%03d\x00" % number for number in range(100)]
        assert slices[-1].status == pb.READ_STATUS_OK


async def test_many_large_point_reads_wait_for_their_reader(cluster: ThreeNodes, leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        keys = [b"\x02large%d\x00" % number for number in range(10)]
        await stream.write(*[set_op(key, bytes(60_000)) for key in keys])
        pid = cluster.pid(cluster.leader())
        before = peak_bytes(pid)
        # 300 MB of answers are asked for before the first one is read.
        for begin in range(0, 500, 100):
            await stream.send(pb.ClientFrame(reads=[pb.Read(id=begin + number, keys=keys) for number in range(100)]))
        got = set()
        while len(got) < 500:
            stream.seen.Clear()
            assert await stream.next() is not None
            got |= {answer.id for answer in stream.seen.reads if len(answer.entries) == 10}
        assert peak_bytes(pid) - before < 100 * 1_048_576


async def test_many_large_reads_of_one_key_each_wait_for_their_reader(cluster: ThreeNodes, leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await stream.write(set_op(KEY, bytes(60_000)))
        pid = cluster.pid(cluster.leader())
        before = peak_bytes(pid)
        # 300 MB of answers are asked for before the first one is read.
        for number in range(10):
            await stream.send(pb.ClientFrame(point_reads=[pb.PointReads(id=number, keys=[KEY] * 500)]))
        got: Counter[int] = Counter()
        while got.total() < 5_000:
            stream.seen.Clear()
            assert await stream.next() is not None
            for answer in stream.seen.point_answers:
                got[answer.id] += sum(len(row) == 60_011 for row in answer.rows)
        assert set(got.values()) == {500}
        assert peak_bytes(pid) - before < 100 * 1_048_576


@pytest.mark.parametrize("together", [False, True])
async def test_a_client_that_asks_on_without_reading_is_cut_off(leader: str, together: bool) -> None:
    async with RawStream(leader) as stream, RawStream(leader) as other:
        await other.greet()
        await stream.greet()
        await stream.open_session()
        await stream.write(set_op(KEY, bytes(60_000)))
        for number in range(1, 19):  # 8,192 may wait
            frame = pb.ClientFrame()
            if together:
                frame.point_reads.add(id=1, keys=[KEY] * 500)
            else:
                frame.reads.extend(pb.Read(id=1, keys=[KEY]) for _ in range(500))
            await stream.send(frame)
            # Reads are taken in turn: what was asked before this one is answered by now, or waits for its client.
            await other.send(pb.ClientFrame(reads=[pb.Read(id=number, keys=[b"\x02other\x00"])]))
            await other.until("reads", number)
        seen = await stream.end()
        assert "not read fast enough" in seen.error
        assert not seen.error_is_final


async def test_an_expired_key_disappears(leader: str, cluster: ThreeNodes) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await stream.send(pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[b"\x02ttl\x00"])]))
        await stream.until("watches")
        begun, pace = asyncio.get_running_loop().time(), pace_of(cluster)
        await stream.write(set_op(b"\x02ttl\x00", expire_in_ms=300))
        assert (await stream.until("watches", 2))[1].entries[0].versionstamp
        assert not (await stream.until("watches", 3))[2].entries[0].versionstamp
        assert pace.seconds() < 2
        assert asyncio.get_running_loop().time() - begun >= 0.29


def peak_bytes(pid: int) -> int:
    """The most memory that the process ever had."""
    (line,) = [text for text in Path(f"/proc/{pid}/status").read_text().splitlines() if text.startswith("VmHWM:")]
    return int(line.split()[1]) * 1_024


def call(address: str, method: str, request: Any, kind: Any) -> Any:
    with grpc.insecure_channel(address) as channel:
        stub = channel.unary_unary(f"/kvorum.v1.Kv/{method}", response_deserializer=kind.FromString)
        return stub(request if isinstance(request, bytes) else request.SerializeToString(), timeout=10)


def test_unary_methods(leader: str, follower: str) -> None:
    write = pb.AtomicWrite.FromString(set_op(b"\x02unary\x00", b"u"))
    done = call(leader, "Commit", pb.WriteRequest(write=write), pb.WriteResponse)
    assert (done.outcome, len(done.versionstamp)) == (pb.OUTCOME_DONE, 10)
    read = pb.Read(keys=[b"\x02unary\x00"], ranges=[pb.ReadRange(start=b"\x02unary", end=b"\x02unas", limit=5)])
    answer = call(follower, "Get", read, pb.ReadResult)
    assert answer.entries[0].versionstamp == done.versionstamp == answer.ranges[0].entries[0].versionstamp
    write.checks.add(key=b"\x02unary\x00")
    failed = call(leader, "Commit", pb.WriteRequest(write=write), pb.WriteResponse)
    assert (failed.outcome, list(failed.failed_checks)) == (pb.OUTCOME_CHECK_FAILED, [0])
    elsewhere = call(follower, "Commit", pb.WriteRequest(write=write), pb.WriteResponse)
    assert elsewhere.outcome == pb.OUTCOME_NOT_LEADER
    assert leader in elsewhere.message
    with pytest.raises(grpc.RpcError) as caught:
        call(leader, "Commit", b"\xff\xff", pb.WriteResponse)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert call(leader, "Status", pb.StatusRequest(), pb.StatusResponse).role == "leader"


def write_of(*mutations: pb.Mutation, checks: Sequence[pb.Check] = ()) -> pb.WriteRequest:
    return pb.WriteRequest(write=pb.AtomicWrite(mutations=mutations, checks=checks))


def test_p13_checks_for_existence_and_for_not_newer(leader: str) -> None:
    """P13 · wants "exists" and "not newer than" checks → as asked → on the gRPC API too."""
    key, absent = b"\x02p13\x00", b"\x02p13-absent\x00"
    write = pb.AtomicWrite.FromString(set_op(key))
    first, second = (call(leader, "Commit", pb.WriteRequest(write=write), pb.WriteResponse) for _ in range(2))
    for check, outcome in (
        (pb.Check(key=key, kind=pb.CHECK_KIND_EXISTS), pb.OUTCOME_DONE),
        (pb.Check(key=absent, kind=pb.CHECK_KIND_EXISTS), pb.OUTCOME_CHECK_FAILED),
        (pb.Check(key=key, kind=pb.CHECK_KIND_NOT_NEWER, versionstamp=second.versionstamp), pb.OUTCOME_DONE),
        (pb.Check(key=key, kind=pb.CHECK_KIND_NOT_NEWER, versionstamp=first.versionstamp), pb.OUTCOME_CHECK_FAILED),
        (pb.Check(key=absent, kind=pb.CHECK_KIND_NOT_NEWER, versionstamp=b"\xff" * 10), pb.OUTCOME_CHECK_FAILED),
    ):
        assert call(leader, "Commit", write_of(checks=[check]), pb.WriteResponse).outcome == outcome


def test_touch_ranges_counts_and_expiry_by_unary_calls(leader: str, follower: str) -> None:
    prefix, behind = b"\x02beyond\x00", b"\x02beyond\x01"
    keys = [prefix + b"\x02%04d\x00" % number for number in range(900)]
    sets = [pb.Mutation(key=key, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=3) for key in keys]  # type: ignore[arg-type]
    stamp = call(leader, "Commit", write_of(*sets), pb.WriteResponse).versionstamp
    touch = pb.Mutation(key=keys[1], type=pb.MUTATION_TYPE_TOUCH, expire_in_ms=60_000)
    assert call(leader, "Commit", write_of(touch), pb.WriteResponse).outcome == pb.OUTCOME_DONE
    read = pb.Read(
        keys=keys[1:2],
        ranges=[
            pb.ReadRange(start=prefix, end=behind, count_only=True),
            pb.ReadRange(start=prefix, end=behind, limit=2, keys_only=True),
        ],
        with_expiry=True,
    )
    for address in (leader, follower):
        answer = call(address, "Get", read, pb.ReadResult)
        assert answer.ranges[0].count == 900 and not answer.ranges[0].entries
        bare = answer.ranges[1].entries
        assert [(entry.key, entry.value, entry.versionstamp) for entry in bare] == [
            (key, b"", stamp) for key in keys[:2]
        ]
        due = answer.entries[0].expire_at_ms
        assert (answer.entries[0].value, answer.entries[0].versionstamp) == (b"v", stamp)
        assert bare[0].expire_at_ms == 0 and bare[1].expire_at_ms == due
        assert 30_000 < due - answer.time_ms <= 60_500, "a follower knows about what time it is"
    for limit, deleted in ((10, 10), (0, 890), (0, 0)):
        remove = pb.Mutation(key=prefix, end=behind, type=pb.MUTATION_TYPE_DELETE_RANGE, limit=limit)
        done = call(leader, "Commit", write_of(remove), pb.WriteResponse)
        assert (done.outcome, done.deleted) == (pb.OUTCOME_DONE, deleted)
    for wrong, text in (
        (pb.Mutation(key=keys[0], type=pb.MUTATION_TYPE_TOUCH, expire_in_ms=0), "must be above zero"),
        (pb.Mutation(key=keys[0], type=pb.MUTATION_TYPE_TOUCH, value=b"v"), "a touch takes no value"),
        (pb.Mutation(key=keys[0], type=pb.MUTATION_TYPE_DELETE, end=b"z"), "takes no end"),
    ):
        refused = call(leader, "Commit", write_of(wrong), pb.WriteResponse)
        assert refused.outcome == pb.OUTCOME_INVALID and text in refused.message


async def test_a_count_of_many_slices_is_one_answer(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        op = pb.AtomicWrite()
        for _ in range(1_000):
            op.mutations.add(type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
        for group in range(10):
            for number, mutation in enumerate(op.mutations):
                mutation.key = b"\x02slices\x00\x02%d %d\x00" % (group, number)
            assert [result.outcome for result in await stream.write(op.SerializeToString())] == [pb.OUTCOME_DONE]
        counted = pb.ReadRange(start=b"\x02slices\x00", end=b"\x02slices\x01", count_only=True)
        await stream.send(pb.ClientFrame(reads=[pb.Read(id=1, ranges=[counted, counted])]))
        (answer,) = await stream.until("reads")
        assert [part.count for part in answer.ranges] == [10_000, 10_000] and not answer.more


def test_health_and_reflection(follower: str) -> None:
    with grpc.insecure_channel(follower) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "kvorum.v1.Kv"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        answers = list(stub.ServerReflectionInfo(asked, timeout=10))
        assert "kvorum.v1.Kv" in {service.name for service in answers[0].list_services_response.service}


async def test_streams_that_end_in_the_middle_leave_nothing(cluster: ThreeNodes, leader: str) -> None:
    for _ in range(5):
        async with RawStream(leader) as stream:
            await stream.greet()
            await stream.open_session()
            frame = pb.ClientFrame(watches=[pb.StartWatch(id=1, keys=[KEY])])
            frame.consumers.add(id=1, queue="leak", credits=5)
            for read in range(200):
                frame.reads.add(id=read, keys=[b"\x02large%d\x00" % key for key in range(10)])
            frame.reads.add(id=999, ranges=[pb.ReadRange(start=b"\x02big", end=b"\x02bih", limit=900)])
            await stream.send(frame)
            await stream.next()
    await none_left(cluster, "watches", "queue_consumers", "reads_under_way", "lists_open", "sessions_connected")


async def none_left(cluster: ThreeNodes, *names: str) -> None:
    """Wait until the leader has none of these, of this test or of those before."""
    deadline = asyncio.get_running_loop().time() + 60
    while any((figures := cluster.status(cluster.leader()).statistics)[name] for name in names):
        assert asyncio.get_running_loop().time() < deadline, {name: figures[name] for name in names}


def test_replicas_are_equal_after_all_this(cluster: ThreeNodes, tmp_path: Path) -> None:
    for _ in range(500):
        found = cluster.hashes()
        if len({index for index, _ in found}) == 1:
            break
    assert len(set(found)) == 1


def test_unary_calls_have_ids(leader: str) -> None:
    with grpc.insecure_channel(leader) as channel:
        for method, data in (("Kv/Status", b""), ("Kv/Commit", b"\xff"), ("Admin/Members", b"")):
            run = channel.unary_unary(f"/kvorum.v1.{method}")
            for sent, expected in ((None, "[0-9a-f]{16}"), ("job-1", "job-1"), ("a b", "[0-9a-f]{16}")):
                call = run.future(data, timeout=10, metadata=(("x-request-id", sent),) if sent else None)
                call.exception()  # whatever it says
                assert re.fullmatch(expected, dict(call.trailing_metadata())["x-request-id"]), (method, sent)
