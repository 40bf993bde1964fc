"""Answers, errors and cursors tell a token nothing of what it may not see."""

import pytest

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from tests.integration.auth.conftest import ROOT
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream, enqueue_op
from tests.integration.security.hand import call, hello, leader_of, opened

DENIED, OK = pb.READ_STATUS_DENIED, pb.READ_STATUS_OK


@pytest.fixture
def leader(cluster: ThreeNodes) -> str:
    return leader_of(cluster)


async def test_a_purge_does_not_tell_whether_a_queue_is_empty(leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("purges", manage=["mine"])
    await root.enqueue(1, queue="purge.full")
    await root.queue("purge.drained").define(max_attempts=3)
    async with RawStream(leader) as stream:
        await hello(stream, made.text)
        for at, queue in enumerate(("purge.full", "purge.drained", "purge.never")):
            for number, request in enumerate(
                (
                    {"purge": pb.Purge(queue=queue)},
                    {"purge": pb.Purge(queue=queue, dead=True)},
                    {"requeue": pb.Requeue(queue=queue)},
                    {"remove": pb.RemoveQueue(name=queue)},
                )
            ):
                reply = await call(stream, 10 * at + number + 1, **request)
                assert reply.status == DENIED, (queue, request)


async def test_a_schedule_cannot_be_guessed(leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("guesses", manage=["mine"])
    schedule = pb.Schedule(cron="0 0 1 1 *", message=pb.Enqueue(queue="reports", payload=b"secret")).SerializeToString()
    other = pb.Schedule(cron="0 0 1 1 *", message=pb.Enqueue(queue="reports", payload=b"wrong")).SerializeToString()
    async with RawStream(leader) as stream, RawStream(leader) as admin:
        await hello(admin, ROOT)
        define = pb.DefineSchedule(name="yearly", definition=schedule)
        assert (await call(admin, 1, schedule=define)).status == OK
        await hello(stream, made.text)
        assert (await call(stream, 1, schedule=pb.DefineSchedule(name="yearly", definition=other))).status == DENIED
        assert (await call(stream, 2, schedule=define)).status == DENIED


async def test_cursors_name_nothing_that_is_left_out(leader: str, root: kvorum.Kv) -> None:
    for number in range(6):
        await root.enqueue(1, queue=f"pages.{'mine' if number % 3 == 1 else 'theirs'}.{number}")
    made = await root.auth.create("pages", manage=["pages.mine*"])
    async with RawStream(leader) as stream, RawStream(leader) as admin:
        await hello(admin, ROOT)
        number = 0
        for name in ("a", "b", "c"):
            number += 1
            topic = f"pages.{'mine' if name == 'b' else 'theirs'}.{name}"
            assert (await call(admin, number, topic=pb.DefineTopic(name=topic))).status == OK
            message = pb.Enqueue(queue=topic, payload=b"x")
            definition = pb.Schedule(cron="0 0 1 1 *", message=message).SerializeToString()
            number += 10
            schedule = pb.DefineSchedule(name=f"{topic}.yearly", definition=definition)
            assert (await call(admin, number, schedule=schedule)).status == OK
        await hello(stream, made.text)
        number = 0
        for kind, request in (("queues", pb.ListQueues), ("topics", pb.ListTopics), ("schedules", pb.ListSchedules)):
            after, names = b"", []
            for _ in range(20):
                number += 1
                reply = await call(stream, number, **{kind: request(limit=1, after=after)})
                assert reply.status == OK
                assert b"theirs" not in reply.SerializeToString()
                names += [info.name for info in getattr(reply, kind)]
                after = reply.after
                if not after:
                    break
            expected = {"queues": ["pages.mine.1", "pages.mine.4"], "topics": ["pages.mine.b"]}
            assert names == expected.get(kind, ["pages.mine.b.yearly"])


async def test_a_message_that_is_anothers_is_as_one_that_is_not_there(leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("looks", receive=["mine"])
    sent = await root.queue("theirs").send("secret")
    async with RawStream(leader) as stream:
        await hello(stream, made.text)
        message_id = bytes.fromhex(sent.id)
        async with RawStream(leader) as another:  # who knows an inbox's name may use it
            await opened(another, made.text)
            (result,) = await another.write(enqueue_op(b"an answer", "\0inbox-of-somebody"))
            (group,) = another.seen.results
            answer = group.stamp_prefix + result.number.to_bytes(2, "big") + bytes(2)
            found = await call(another, 1, peek=pb.Peek(queue="\0inbox-of-somebody"))
            assert [info.message_id for info in found.messages] == [answer]
        there = await call(stream, 1, peek=pb.Peek(message_id=message_id))
        absent = await call(stream, 2, peek=pb.Peek(message_id=bytes(12)))
        answered = await call(stream, 3, peek=pb.Peek(message_id=answer))
        for reply in (there, absent, answered):
            reply.ClearField("id")
            reply.ClearField("time_ms")
        assert there == absent == answered


async def test_a_bound_of_operations_is_one_of_all_that_costs(leader: str, root: kvorum.Kv) -> None:
    """Sessions are few in a cluster, and stay for an hour."""
    made = await root.auth.create("counted", read=[("a",)], receive=["mine"], operations_per_second=3)
    async with RawStream(leader) as stream:
        await hello(stream, made.text)
        for _ in range(12):
            await stream.send(pb.ClientFrame(open_session=pb.OpenSession(client="many")))
        statuses: list[int] = []
        while len(statuses) < 12:
            frame = await stream.next()
            assert frame is not None
            if frame.HasField("session"):
                statuses.append(frame.session.status)
        assert pb.READ_STATUS_OVERLOADED in statuses
    async with RawStream(leader) as stream:
        await hello(stream, made.text)
        found = [await call(stream, number, queues=pb.ListQueues()) for number in range(1, 13)]
        assert pb.READ_STATUS_OVERLOADED in {reply.status for reply in found}
