"""A session belongs to the token that opened it: numbers that can be guessed, and consumers' numbers used again."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from tests.integration.auth.conftest import ROOT
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream, enqueue_op, settle_op
from tests.integration.security.hand import call, consume, hello, leader_of, opened, settled

GUESSES = 40


@pytest.fixture
def leader(cluster: ThreeNodes) -> str:
    return leader_of(cluster)


async def _sent(leader: str, token: str, queue: str) -> None:
    async with RawStream(leader) as sender:
        await opened(sender, token)
        (result,) = await sender.write(enqueue_op(b"for the owner only", queue))
        assert result.outcome == pb.OUTCOME_DONE


async def test_a_session_cannot_be_entered_before_it_is_opened(leader: str, root: kvorum.Kv) -> None:
    """Ids of sessions are places in the log, so the next ones can be guessed."""
    owner = await root.auth.create("owner", receive=["theirs"], send=["theirs"])
    thief = await root.auth.create("thief", receive=["mine"])
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(RawStream(leader))
        newest = int.from_bytes((await opened(first, thief.text))[:8], "big")
        guesses: dict[bytes, RawStream] = {}
        for number in range(newest + 1, newest + GUESSES):
            stream = await stack.enter_async_context(RawStream(leader))
            session = number.to_bytes(8, "big") + bytes(2)
            await hello(stream, thief.text, session)
            guesses[session] = stream
        victim = await stack.enter_async_context(RawStream(leader))
        session = await opened(victim, owner.text)
        assert session in guesses, "the attack must have guessed right"
        await consume(victim, 1, "theirs")
        await _sent(leader, owner.text, "theirs")
        (delivery,) = await victim.until("deliveries")
        attacker = guesses[session]
        await consume(attacker, 1, "mine")
        seen = attacker.seen
        while not (seen.error or seen.deliveries) and await attacker.next() is not None:
            pass
        assert not seen.deliveries
        # nor is its consumer ended, nor its leases
        assert "belongs to another token" in seen.error
        for number, another in enumerate(stream for known, stream in guesses.items() if known != session):
            if number % 2:
                await another.send(pb.ClientFrame(goodbye=pb.Goodbye(release=True)))
        (result,) = await victim.write(settle_op(delivery))
        assert result.outcome == pb.OUTCOME_DONE
        await _sent(leader, owner.text, "theirs")
        await victim.until("deliveries", 2)


async def test_a_consumers_number_shows_nothing_of_another_queue(leader: str, root: kvorum.Kv) -> None:
    """What is in its hands stays there while its right is taken, and is somebody else's to handle."""
    made = await root.auth.create("moved", receive=["before", "after"], send=["before"])
    async with RawStream(leader) as stream:
        await opened(stream, made.text)
        await consume(stream, 1, "before")
        await _sent(leader, made.text, "before")
        (delivery,) = await stream.until("deliveries")
        scopes = pb.Scopes(queues=[pb.QueueScope(name="after", receive=True)]).SerializeToString()
        async with RawStream(leader) as admin:
            await hello(admin, ROOT)
            put = pb.PutToken(id=bytes.fromhex(made.id), scopes=scopes)
            assert (await call(admin, 1, put_token=put)).status == pb.READ_STATUS_OK
        (ended,) = await stream.until("ended_consumers")
        assert ended.status == pb.READ_STATUS_DENIED
        stream.seen.ClearField("deliveries")
        await consume(stream, 1, "after")
        assert not (await settled(stream, 1)).deliveries
        async with asyncio.timeout(10):  # a lease is good for 30 s, and would be renewed while its session lives
            (received,) = await _received(leader)
        assert received.message_id == delivery.message_id


async def _received(leader: str) -> list[pb.Delivery]:
    async with RawStream(leader) as other:
        await opened(other, ROOT)
        await consume(other, 1, "before")
        found = list(await other.until("deliveries"))
        await other.write(*(settle_op(delivery) for delivery in found))
        return found


async def test_what_is_wrong_with_a_late_consumer_ends_its_stream_alone(leader: str, root: kvorum.Kv) -> None:
    """It is found wrong after the round that others wait for, too."""
    made = await root.auth.create("late", receive=["mine"], read=[("a",)])
    nowhere = (1 << 40).to_bytes(8, "big") + bytes(2)
    bad = pb.StartConsumer(id=1, queue="mine", credits=0, concurrency=1)
    for _ in range(5):
        async with RawStream(leader) as stream, RawStream(leader) as other:
            await hello(other, made.text)
            await hello(stream, made.text, nowhere)
            await stream.send(pb.ClientFrame(consumers=[bad]))
            await other.send(pb.ClientFrame(reads=[pb.Read(id=number, keys=[b"\x02a\0"]) for number in range(20)]))
            answers = await other.until("reads", 20)
            assert {answer.status for answer in answers} == {pb.READ_STATUS_OK}
            assert "credits" in (await stream.end()).error


async def test_a_session_that_is_not_there_is_told_as_one_that_is_closed(leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("gone", receive=["mine"])
    async with RawStream(leader) as stream:
        await hello(stream, made.text, (1 << 40).to_bytes(8, "big") + bytes(2))
        await consume(stream, 1, "mine")
        (group,) = await stream.until("results")
        assert [result.outcome for result in group.results] == [pb.OUTCOME_SESSION_EXPIRED]


async def test_a_session_is_gone_on_with_once_its_token_is_good_again(leader: str, root: kvorum.Kv) -> None:
    """A node that does not know a token, or not yet, does not know whose session it is; what is asked later counts."""
    made = await root.auth.create("away", receive=["mine"], send=["mine"])

    async def disable(*, disabled: bool) -> None:
        put = pb.PutToken(id=bytes.fromhex(made.id), disabled=disabled)
        assert (await call(admin, 1 + disabled, put_token=put)).status == pb.READ_STATUS_OK

    async with RawStream(leader) as admin, RawStream(leader) as first, RawStream(leader) as stream:
        await hello(admin, ROOT)
        session = await opened(first, made.text)
        await disable(disabled=True)
        await hello(stream, made.text, session)
        stream.session = session
        await disable(disabled=False)
        await consume(stream, 1, "mine")
        await _sent(leader, made.text, "mine")
        (delivery,) = await stream.until("deliveries")
        (result,) = await stream.write(settle_op(delivery))
        assert result.outcome == pb.OUTCOME_DONE
