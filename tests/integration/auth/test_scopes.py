"""A token for prefix A, and everything that it may not do to B, by the Python client."""

import asyncio
from datetime import timedelta

import pytest

import kvorum
from kvorum.errors import KvorumError, PermissionDenied, Unauthenticated
from tests.integration.cluster_fixture import ThreeNodes, pace_of
from tests.pace import BUSY

A, B = ("a",), ("b",)


async def denied(call: object, right: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        await call  # type: ignore[misc]
    assert caught.value.right == right
    assert caught.value.outcome == "not applied" and not caught.value.retryable


async def test_whoever_shows_no_token_gets_nothing(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    await root.set((*A, "x"), 1)
    for token in (None, "nonsense", f"kvo_{'0' * 16}_{'A' * 43}"):
        async with kvorum.open_kv(cluster.url, token=token, timeout=5_000) as kv:
            for call in (
                kv.get((*A, "x")),
                kv.set((*A, "x"), 2),
                kv.count(A),
                kv.queues(),
                kv.status(),
                kv.auth.list(),
                kv.auth.off(),
            ):
                with pytest.raises(Unauthenticated):
                    await call
            with pytest.raises(Unauthenticated):
                await anext(aiter(kv.watch([(*A, "x")])))
            with pytest.raises(Unauthenticated):
                await kv.listen_queue(lambda value: None, queue="jobs")
            who = await kv.auth.whoami()
            assert (who.on, who.known, who.token) == (True, False, None)
    assert (await root.get((*A, "x"))).value == 1


async def test_a_token_for_a_is_good_for_a_and_nothing_else(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    await root.set((*A, "x"), 1)
    await root.set((*B, "x"), 1)
    made = await root.auth.create("a only", read=[A], write=[A])
    async with kvorum.open_kv(cluster.url, token=made.text) as kv:
        await kv.set((*A, "y"), 2)
        assert [entry.value async for entry in kv.list(A)] == [1, 2]
        assert (await kv.get((*A, "x"))).value == 1
        assert (await kv.get((*A, "x"), consistency="eventual")).value == 1
        await denied(kv.get((*B, "x")), "read")
        await denied(kv.get((*B, "x"), consistency="eventual"), "read")
        await denied(kv.get_many([(*A, "x"), (*B, "x")]), "read")
        await denied(kv.count(B), "read")
        await denied(kv.count(()), "read")
        await denied(anext(aiter(kv.list(B))), "read")
        await denied(anext(aiter(kv.list(start=A, end=("c",)))), "read")
        await denied(kv.set((*B, "x"), 2), "write")
        await denied(kv.set(("aa",), 2), "write")
        await denied(kv.set(("a\0",), 2), "write")
        await denied(kv.delete((*B, "x")), "write")
        await denied(kv.delete_prefix(B), "write")
        await denied(kv.atomic().set((*A, "z"), 1).set((*B, "z"), 1).commit(), "write")
        await denied(kv.atomic().check((*B, "x"), None).set((*A, "z"), 1).commit(), "read")
        await denied(kv.enqueue(1, queue="jobs", keys_if_undelivered=[(*A, "dead")]), "send")
        await denied(anext(aiter(kv.watch([(*A, "x"), (*B, "x")]))), "read")
        await denied(anext(aiter(kv.watch_prefix(B))), "read")
        await denied(kv.listen_queue(lambda value: None, queue="jobs"), "receive")
        await denied(kv.auth.create("mine", admin=True), "admin")
        assert not (await kv.get((*A, "z"))).versionstamp
        watched = kv.watch([(*A, "x")])
        assert (await anext(aiter(watched)))[0].value == 1
    assert (await root.get((*B, "x"))).value == 1


async def test_queues_have_three_rights(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    sender = await root.auth.create("sender", send=["jobs"])
    worker = await root.auth.create("worker", receive=["job*"], write=[("done",)])
    boss = await root.auth.create("boss", manage=["jobs"])
    async with (
        kvorum.open_kv(cluster.url, token=sender.text) as sends,
        kvorum.open_kv(cluster.url, token=worker.text) as works,
        kvorum.open_kv(cluster.url, token=boss.text) as manages,
    ):
        await sends.enqueue("one", queue="jobs")
        await denied(sends.enqueue("one", queue="jobs", keys_if_undelivered=[("b",)]), "write")
        await denied(works.enqueue("one", queue="jobs"), "send")
        await denied(sends.queue("jobs").purge(), "manage")
        await denied(works.queue("jobs").pause(), "manage")
        await denied(sends.listen_queue(lambda value: None, queue="jobs"), "receive")
        (received,) = await works.queue("jobs").receive_batch(max=1, wait=10_000)
        assert received.value == "one"
        await works.atomic().ack(received).set(("done", 1), True).commit()
        assert await manages.queue("jobs").purge() == 0
        assert [info.name for info in await manages.queues()] == ["jobs"]
        assert "jobs" in [info.name for info in await root.queues()]


async def test_a_request_is_answered_between_two_tokens(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    asks = await root.auth.create("asks", send=["echo"])
    answers = await root.auth.create("answers", receive=["echo"])
    async with (
        kvorum.open_kv(cluster.url, token=asks.text) as one,
        kvorum.open_kv(cluster.url, token=answers.text) as two,
    ):
        serving = asyncio.create_task(two.queue("echo").serve(lambda message: message.value * 2))
        try:
            assert await one.request("echo", 21, timeout=10_000) == 42
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def test_a_revoked_token_ends_watches_and_consumers_and_is_refused(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    made = await root.auth.create("soon gone", read=[A], write=[A], receive=["jobs"])
    async with kvorum.open_kv(cluster.url, token=made.text) as kv:
        snapshots = aiter(kv.watch([(*A, "w")]))
        changes = aiter(kv.watch_prefix(A, progress=True))
        await anext(snapshots)
        await kv.set((*A, "w"), 1)
        await anext(changes)
        listening = asyncio.create_task(kv.listen_queue(lambda value: None, queue="jobs"))
        await kv.queue("jobs").receive_batch(max=1, wait=100)  # by then the other consumer is there as well
        await root.auth.revoke(made.id)
        pace = pace_of(cluster)
        async with asyncio.timeout(60):
            with pytest.raises(Unauthenticated):
                while True:
                    await anext(snapshots)
            with pytest.raises(Unauthenticated):
                while True:
                    await anext(changes)
            with pytest.raises(Unauthenticated):
                await listening
        assert pace.seconds() < 3
        for call in (kv.set((*A, "w"), 2), kv.get((*A, "w"))):
            with pytest.raises(Unauthenticated):
                await call


async def test_a_token_ends_by_itself(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    made = await root.auth.create("short", read=[A], expire_in=timedelta(milliseconds=700) * BUSY)
    async with kvorum.open_kv(cluster.url, token=made.text) as kv:
        snapshots = aiter(kv.watch([(*A, "e")]))
        await anext(snapshots)
        pace = pace_of(cluster)
        async with asyncio.timeout(60):
            with pytest.raises(Unauthenticated, match="past its time"):
                await anext(snapshots)
        assert pace.seconds() < 0.7 * BUSY + 4
        with pytest.raises(Unauthenticated, match="past its time"):
            await kv.get((*A, "e"))


async def test_rights_are_taken_and_given_while_a_client_is_open(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    made = await root.auth.create("changing", read=[A])
    async with kvorum.open_kv(cluster.url, token=made.text) as kv:
        await kv.get(A)
        await root.auth.disable("changing")
        with pytest.raises(Unauthenticated, match="disabled"):
            await kv.get(A)
        await root.auth.disable("changing", disabled=False)
        await kv.get(A)
        new = await root.auth.rotate("changing", overlap=60_000)
        assert new.id == made.id and new.text != made.text
        await kv.get(A)
        async with kvorum.open_kv(cluster.url, token=new.text) as other:
            await other.get(A)
        await root.auth.rotate("changing", overlap=0)
        for text in (made.text, new.text):
            async with kvorum.open_kv(cluster.url, token=text) as old:
                with pytest.raises(Unauthenticated):
                    await old.get(A)


async def test_revoked_under_load_and_with_the_leader_killed(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    """Whatever was acknowledged is there, and nothing is applied after the removal was acknowledged."""
    made = await root.auth.create("loaded", write=[A], read=[A])
    stop = asyncio.Event()
    done: list[int] = []
    late: list[KvorumError] = []

    async with kvorum.open_kv(cluster.url, token=made.text, timeout=20_000) as kv:

        async def load(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    await kv.set((*A, "load", worker), number)
                    done.append(number)
                except KvorumError as error:
                    late.append(error)
                    return

        workers = [asyncio.create_task(load(worker)) for worker in range(16)]
        await asyncio.sleep(0.3)
        leader = await asyncio.to_thread(cluster.leader)
        await asyncio.to_thread(cluster.kill, leader)
        await asyncio.sleep(0.2)
        await root.auth.revoke(made.id, timeout=20_000)
        before = [entry.value async for entry in root.list((*A, "load"))]
        await asyncio.wait(workers, timeout=20)
        stop.set()
        after = [entry.value async for entry in root.list((*A, "load"))]
    await asyncio.to_thread(cluster.start, leader)
    assert done and len(late) == 16
    assert all(isinstance(error, Unauthenticated) or error.outcome == "unknown" for error in late), late
    assert before == after
