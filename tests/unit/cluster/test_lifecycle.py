"""Reads, watches and consumers over reconnects; opening and closing. Against scripted nodes."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from kvorum import Kv, errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend, connect, route
from kvorum.process import THIS
from tests.pace import Pace, Witness
from tests.unit.cluster.fake_node import FakeNode, FakeState, FakeStream, put, refuse
from tests.unit.cluster.steps import until, value

# ---- reads and watches


async def test_strong_reads_survive_a_change_of_leader(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"k", b"1"), timeout=5)
    state.leader = nodes[1]  # nobody is told: the node answers NO_LEADER
    assert await value(backend, b"k") == b"1"
    await nodes[1].kill()
    reading = asyncio.create_task(value(backend, b"k"))
    state.lead(nodes[2])
    assert await reading == b"1"


async def test_eventual_reads_work_without_a_leader_and_ask_for_what_was_seen(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    outcome = await backend.write(put(b"k", b"1"), timeout=5)
    state.lead(None)
    result = await backend.read(pb.Read(keys=[b"k"], consistency=pb.CONSISTENCY_EVENTUAL), timeout=5)
    assert result.entries[0].value == b"1"
    asked = [read for node in nodes for frame in node.frames for read in frame.reads]
    assert asked[-1].min_versionstamp[:8] == outcome.versionstamp[:8]


async def test_a_watch_survives_reconnects_without_repeating_an_unchanged_snapshot(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    seen: list[bytes] = []
    changed = asyncio.Event()

    async def follow(events: AsyncIterator[object]) -> None:
        async for entries in events:
            seen.append(entries[0].value)  # type: ignore[index]
            changed.set()

    await backend.write(put(b"k", b"1"), timeout=5)
    follower = asyncio.create_task(follow(backend.watch([b"k"])))
    await until(changed)
    for node in (nodes[1], nodes[2], nodes[0]):
        state.lead(node)
        await backend.write(put(b"other"), timeout=5)
    changed.clear()
    await backend.write(put(b"k", b"2"), timeout=5)
    await until(changed)
    assert seen == [b"1", b"2"]
    follower.cancel()
    await asyncio.wait([follower])
    last = [watch for frame in nodes[0].frames for watch in frame.watches][-1]
    assert last.min_versionstamp >= (1).to_bytes(8, "big")


async def test_a_watch_that_is_left_is_stopped_on_the_node(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    stopped = asyncio.Event()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.stop_watches:
            stopped.set()
        return False

    nodes[0].hook = see
    events = backend.watch([b"k"])
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    await until(stopped)


async def test_frames_stay_within_their_size_however_much_is_asked_at_once(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    sizes: list[int] = []

    async def weigh(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        sizes.append(frame.ByteSize())
        return False

    nodes[0].hook = weigh
    key = b"k" * limits.MAX_READ_KEY_SIZE
    watches = [backend.watch([key] * 10) for _ in range(300)]
    reads = [backend.read(pb.Read(keys=[key] * 10), timeout=30) for _ in range(300)]
    points = [backend.point(key, pb.CONSISTENCY_STRONG, 0, timeout=30) for _ in range(600)]
    writes = [backend.write(put(b"k", b"v" * 60_000), timeout=30) for _ in range(40)]
    await asyncio.gather(*reads, *points, *writes, *(anext(watch) for watch in watches))
    assert max(sizes) <= limits.MAX_FRAME_SIZE and len(nodes[0].streams) == 1
    for watch in watches:
        await watch.aclose()  # type: ignore[attr-defined]


# ---- consumers


async def test_p59_a_consumer_goes_on_after_every_node_was_restarted_in_turn(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    """P59: restart every node in turn with a waiting consumer -> messages flow again without code from the user."""
    got: asyncio.Queue[bytes] = asyncio.Queue()
    consumer = await backend.consume("q", credits=5, concurrency=1, deliver=lambda m: got.put_nowait(m.lease_id))
    registered: asyncio.Queue[FakeStream] = asyncio.Queue()
    reports: asyncio.Queue[list[bytes]] = asyncio.Queue()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.consumers:
            registered.put_nowait(stream)
        for report in frame.started:
            reports.put_nowait(list(report.lease_ids))
        return False

    for node in nodes:
        node.hook = see
    await backend.write(put(b"k"), timeout=5)
    for turn, node in enumerate(nodes):
        state.lead(node)
        stream = await asyncio.wait_for(registered.get(), 60)
        while stream.node is not node:
            stream = await asyncio.wait_for(registered.get(), 60)
        message = pb.Delivery(consumer=1, message_id=b"m%d" % turn, lease_id=b"l%d" % turn, attempt=1)
        stream.send(pb.ServerFrame(deliveries=[message, message]))
        assert await asyncio.wait_for(got.get(), 60) == b"l%d" % turn
        consumer.started(b"l%d" % turn)
        assert await asyncio.wait_for(reports.get(), 60) == [b"l%d" % turn]
        held = [lease.lease_id for start in (stream.consumers[1],) for lease in start.held]
        assert held == [b"l%d" % earlier for earlier in range(turn)]
        await node.kill()
        await node.start()
    assert got.empty()
    await consumer.close()


async def test_a_message_that_comes_after_the_consumer_closed_is_given_back(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    returned = asyncio.Event()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.consumers:
            await consumer.close()
            stream.send(pb.ServerFrame(deliveries=[pb.Delivery(consumer=1, message_id=b"m", lease_id=b"l")]))
        for write in frame.writes.writes:
            settles = pb.AtomicWrite.FromString(write.op).settles
            if [(s.message_id, s.lease_id, s.kind) for s in settles] == [(b"m", b"l", pb.SETTLE_KIND_RETURN)]:
                returned.set()
        return False

    nodes[0].hook = see
    consumer = await backend.consume("q", credits=5, concurrency=1, deliver=lambda _: None)
    await until(returned)


async def test_consumers_follow_to_a_new_session(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    registered: asyncio.Queue[int] = asyncio.Queue()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        for start in frame.consumers:
            registered.put_nowait(start.id)
        return False

    nodes[0].hook = see
    await backend.consume("q", credits=5, concurrency=1, deliver=lambda _: None)
    assert await asyncio.wait_for(registered.get(), 60) == 1
    state.sessions.clear()
    await backend.write(put(b"k"), timeout=5)
    assert await asyncio.wait_for(registered.get(), 60) == 1
    with pytest.raises(errors.LimitExceeded):
        await backend.consume("q", credits=limits.MAX_CREDITS + 1, concurrency=1, deliver=lambda _: None)


# ---- opening and closing


async def test_p22_dead_addresses_fail_within_the_timeout_and_are_named(nodes: list[FakeNode]) -> None:
    """P22: connect to a closed port with timeout 2 s -> typed error ≤ 2 s."""
    dead, frozen, free = nodes
    await dead.kill()
    frozen.freeze()
    await free.kill()
    async with Witness(1.5):
        with pytest.raises(errors.ConnectFailed) as caught:
            await connect([node.target for node in nodes], timeout=1.5)
    assert f"127.0.0.1:{dead.port}: connection refused" in str(caught.value)
    assert f"127.0.0.1:{frozen.port}: no answer within" in str(caught.value)
    assert f"127.0.0.1:{free.port}: connection refused" in str(caught.value)
    assert [task for task in asyncio.all_tasks() if "kvorum/cluster" in repr(task)] == []


async def test_connecting_waits_for_a_node_that_is_still_starting(state: FakeState, nodes: list[FakeNode]) -> None:
    for node in nodes:
        await node.kill()
    opening = asyncio.create_task(connect([node.target for node in nodes], timeout=5))
    await asyncio.wait([opening], timeout=0.2)
    await nodes[2].start()
    state.leader = nodes[2]
    backend = await opening
    await backend.write(put(b"k"), timeout=5)
    await backend.close()


async def test_another_cluster_is_refused_by_name(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"k"), timeout=5)
    state.cluster_id = b"another cluster!"
    for node in nodes:
        await node.kill()
        await node.start()
    with pytest.raises(errors.WrongCluster, match=b"another cluster!".hex()):
        await backend.write(put(b"k"), timeout=5)
    with pytest.raises(errors.WrongCluster):
        await backend.read(pb.Read(keys=[b"k"]), timeout=5)
    assert [stream.hello.cluster_id for node in nodes for stream in node.streams if stream.hello][-1] == (
        b"0123456789abcdef"
    )


async def made_anew(state: FakeState, nodes: list[FakeNode]) -> None:
    state.cluster_id = b"another cluster!"
    for node in nodes:
        await node.kill()
        await node.start()


async def test_whoever_only_waits_is_told_of_another_cluster_once_and_what_to_do(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    """A listener, and watches of both kinds, make no call that could fail."""
    told: asyncio.Queue[errors.KvorumError] = asyncio.Queue()
    listening = asyncio.create_task(Kv(backend).listen_queue(lambda _: None))
    consumer = await backend.consume("q", credits=5, concurrency=1, deliver=lambda _: None, failed=told.put_nowait)
    watches = [backend.watch([b"k"]), backend.watch_range(b"a", b"z", since=b"", keys_only=False)]
    waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
    await waiting[0]
    waiting[0] = asyncio.ensure_future(anext(watches[0]))
    await made_anew(state, nodes)
    async with asyncio.timeout(30):
        problem = await told.get()
        ended = await asyncio.gather(listening, *waiting, return_exceptions=True)
    assert [type(end) for end in (problem, *ended)] == [errors.WrongCluster] * 4
    text = str(problem)
    assert text.count(b"another cluster!".hex()) == 1
    assert all(f"127.0.0.1:{node.port}" in text for node in nodes)
    assert text.endswith("open a new client")
    await consumer.close()
    assert told.empty()


async def test_a_client_that_is_refused_for_good_asks_rarely_but_at_once_when_it_is_used(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MAX_DELAY", 0.01)
    told: asyncio.Queue[errors.KvorumError] = asyncio.Queue()
    await backend.write(put(b"k"), timeout=5)
    await backend.consume("q", credits=5, concurrency=1, deliver=lambda _: None, failed=told.put_nowait)
    idle = backend.watch([b"k"])
    await anext(idle)  # and nobody goes on with it
    await made_anew(state, nodes)
    assert isinstance(await asyncio.wait_for(told.get(), 10), errors.WrongCluster)
    for _ in range(2):
        before = sum(len(node.streams) for node in nodes)
        await asyncio.sleep(0.5)  # some thirty attempts, if it did not rest
        assert sum(len(node.streams) for node in nodes) - before <= 1
        with pytest.raises(errors.WrongCluster):
            await backend.write(put(b"k"), timeout=5)
    await asyncio.sleep(0.1)  # it rests once more
    state.cluster_id = b"0123456789abcdef"
    assert (await backend.status(timeout=5)).cluster_id == b"0123456789abcdef"
    await backend.write(put(b"k"), timeout=5)


async def test_a_final_refusal_of_hello_is_told_when_opening(nodes: list[FakeNode]) -> None:
    for node in nodes:
        node.greet = lambda _: pb.ServerFrame(error="protocol 1 is too old", error_is_final=True)
    pace = Pace()
    with pytest.raises(errors.WrongCluster, match="too old"):
        await connect([node.target for node in nodes], timeout=5)
    assert pace.seconds() < 2


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [
        (pb.ServerFrame(pong=1), "did not answer Hello"),
        (pb.ServerFrame(error="starting"), "starting"),
        (pb.ServerFrame(hello=pb.HelloReply(protocol=9)), "protocol 9"),
        (b"\xff\xff\xff\xff", "cannot be read"),
    ],
)
async def test_strange_greetings_are_typed_errors(
    greeting: pb.ServerFrame, problem: str, nodes: list[FakeNode]
) -> None:
    nodes[0].greet = lambda _: greeting
    with pytest.raises((errors.ConnectFailed, errors.WrongCluster), match=problem):
        await connect([nodes[0].target], timeout=1.0)


async def test_a_fault_in_the_keeper_leaves_nobody_waiting(
    state: FakeState, backend: ClusterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    await backend.write(put(b"k"), timeout=5)
    monkeypatch.setattr(backend._keeper, "_greet", broken)
    state.lead(None)
    waiting = asyncio.create_task(backend.write(put(b"k"), timeout=30))
    with pytest.raises(errors.Closed, match="a bug"):
        await asyncio.wait_for(waiting, 60)
    assert len(reported) == 1
    await backend.close()


async def test_a_final_error_ends_what_was_sent_but_not_what_waits(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    async def object_to(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if any(write.op == b"poison" for write in frame.writes.writes):
            stream.send(pb.ServerFrame(error="malformed frame", error_is_final=True))
            return True
        return False

    await backend.write(put(b"k"), timeout=5)
    nodes[0].hook = object_to
    with pytest.raises(errors.OutcomeUnknown, match="malformed frame"):
        await backend.write(b"poison", timeout=5)
    await backend.write(put(b"k"), timeout=5)


async def test_close_ends_waiting_calls_and_says_which_writes_are_unknown(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"k"), timeout=5)
    goodbye = asyncio.Event()

    async def swallow(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.HasField("goodbye") and frame.goodbye.release:
            goodbye.set()
        return True

    nodes[0].hook = swallow
    events = backend.watch([b"k"])
    calls = [
        asyncio.ensure_future(backend.write(put(b"sent"), timeout=5)),
        asyncio.ensure_future(backend.read(pb.Read(keys=[b"k"]), timeout=5)),
        asyncio.ensure_future(anext(events)),
    ]
    await asyncio.wait(calls, timeout=0.05)
    never_sent = asyncio.ensure_future(backend.write(put(b"never sent"), timeout=5))
    await asyncio.sleep(0)
    await backend.close()
    sent, read, watch, unsent = await asyncio.gather(*calls, never_sent, return_exceptions=True)
    assert isinstance(sent, errors.OutcomeUnknown)
    assert isinstance(read, errors.Closed) and isinstance(watch, errors.Closed)
    assert isinstance(unsent, errors.Closed) and unsent.outcome == "not applied"
    await until(goodbye)
    for call in (
        backend.write(put(b"k"), timeout=1),
        backend.read(pb.Read(), timeout=1),
        backend.status(timeout=1),
        backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None),
        anext(backend.watch([b"k"])),
    ):
        with pytest.raises(errors.Closed):
            await call
    await backend.close()


async def test_status_asks_the_connected_node(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    await backend.write(put(b"k"), timeout=5)
    assert (await backend.status(timeout=5)).node_id == "n0"


@pytest.mark.parametrize("how", ["closed", "left"])
async def test_status_of_a_node_that_is_left_meanwhile_is_an_error_and_no_cancellation(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend, how: str
) -> None:
    nodes[0].freeze()
    asking = asyncio.ensure_future(backend.status(timeout=30))
    await until(nodes[0].asked_for_status)
    if how == "closed":
        await backend.close()
        with pytest.raises(errors.Closed):
            await asyncio.wait_for(asking, 60)
    else:
        reading = asyncio.ensure_future(value(backend, b"k"))  # so that its silence matters
        state.leader = nodes[1]
        with pytest.raises(errors.Unavailable, match="connection closed"):
            await asyncio.wait_for(asking, 60)
        await asyncio.gather(reading, return_exceptions=True)
    nodes[0].thaw()


async def test_status_that_is_cancelled_is_cancelled(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    nodes[0].freeze()
    asking = asyncio.ensure_future(backend.status(timeout=30))
    await until(nodes[0].asked_for_status)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    nodes[0].thaw()


async def test_a_client_does_not_survive_a_fork(backend: ClusterBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(THIS, "pid", -1)
        with pytest.raises(errors.Closed, match="fork"):
            await backend.write(put(b"k"), timeout=1)
        with pytest.raises(errors.Closed, match="fork"):
            await backend.read(pb.Read(), timeout=1)
        with pytest.raises(errors.Closed, match="fork"):
            await backend.point(b"k", pb.CONSISTENCY_STRONG, 0, timeout=1)


def test_a_process_knows_that_it_was_forked() -> None:
    code = """if True:
        import os
        from kvorum.process import THIS
        before = THIS.pid
        assert before == os.getpid()
        child = os.fork()
        if not child:
            os._exit(7 if THIS.pid == os.getpid() != before else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert THIS.pid == before
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("addresses", [[], [("", 1)], [("host", 0)], [("host", 65_536)]])
async def test_bad_addresses_are_refused(addresses: list[tuple[str, int]]) -> None:
    with pytest.raises(errors.InvalidArgument):
        await connect(addresses, timeout=1)


async def test_a_refused_session_is_asked_for_again(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    async def refuse(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.HasField("open_session"):
            stream.send(pb.ServerFrame(session=pb.SessionOpened()))
            return True
        return False

    nodes[0].hook = refuse
    with pytest.raises(errors.DeadlineExceeded, match="no more sessions"):
        await backend.write(put(b"k"), timeout=0.9)
    nodes[0].hook = None
    await backend.write(put(b"k"), timeout=5)


async def test_a_write_of_the_session_before_says_that_no_other_one_was_opened(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"k"), timeout=5)
    sent = asyncio.Event()

    async def expire(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.HasField("open_session"):
            opened = pb.SessionOpened(status=pb.READ_STATUS_UNAUTHENTICATED, message="unknown token")
            stream.send(pb.ServerFrame(session=opened))
        elif sent.is_set():
            stream.send(refuse(frame.writes, pb.OUTCOME_SESSION_EXPIRED))
        sent.set()
        return True

    nodes[0].hook = expire
    unanswered = asyncio.ensure_future(backend.write(put(b"unanswered"), timeout=30))
    await until(sent)
    with pytest.raises(errors.Unauthenticated):
        await backend.write(put(b"refused"), timeout=30)
    with pytest.raises(errors.OutcomeUnknown, match=r"^no session was opened: unknown token; the write may"):
        await unanswered
