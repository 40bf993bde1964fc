"""The cluster backend and three real nodes that are killed and frozen."""

import asyncio
import os
import signal
import time
from collections import Counter

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.cluster import ClusterBackend
from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster.conftest import Connect
from tests.integration.cluster_fixture import pace_of
from tests.pace import Witness

CALLERS = 64


def key(*parts: str) -> bytes:
    return b"".join(b"\x02" + part.encode() + b"\x00" for part in parts)


def setting(name: bytes, value: bytes) -> bytes:
    write = pb.AtomicWrite()
    write.mutations.add(key=name, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES)
    return write.SerializeToString()


def counting(caller: int, number: int) -> bytes:
    """One commit: a counter of the caller's, a shared one, and a key that says that this very commit happened."""
    write = pb.AtomicWrite()
    one = (1).to_bytes(8, "little")
    for name in (key("count", str(caller % 8)), key("total")):
        write.mutations.add(key=name, type=pb.MUTATION_TYPE_SUM, value=one, encoding=pb.VALUE_ENCODING_LE64)
    mark = write.mutations.add(key=key("mark", f"{caller:02}", f"{number:05}"), type=pb.MUTATION_TYPE_SET)
    mark.value, mark.encoding = b"", pb.VALUE_ENCODING_BYTES
    return write.SerializeToString()


class Progress:
    """A count that can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def advance(self) -> None:
        self.count += 1
        for goal, event in self._waiting:
            if self.count >= goal:
                event.set()

    async def more(self, number: int) -> None:
        event = asyncio.Event()
        self._waiting.append((self.count + number, event))
        await asyncio.wait_for(event.wait(), 60)


async def read_one(backend: ClusterBackend, name: bytes) -> bytes:
    result = await backend.read(pb.Read(keys=[name]), timeout=10)
    return result.entries[0].value


async def marks(backend: ClusterBackend) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    start, end = key("mark"), key("mark") + b"\xff"
    while True:
        read = pb.Read(ranges=[pb.ReadRange(start=start, end=end, limit=500)])
        entries = (await backend.read(read, timeout=10)).ranges[0].entries
        for entry in entries:
            _, caller, number = (part.removeprefix(b"\x02").decode() for part in entry.key.split(b"\x00")[:3])
            found.add((caller, number))
        if len(entries) < 500:
            return found
        start = entries[-1].key + b"\x00"


async def test_acknowledged_is_counted_and_not_applied_is_not_while_the_leader_is_killed_twice(
    own_cluster: DevCluster, open_backend: Connect
) -> None:
    backend = await open_backend(own_cluster)
    acknowledged: set[tuple[str, str]] = set()
    unknown: set[tuple[str, str]] = set()
    not_applied: set[tuple[str, str]] = set()
    finished = asyncio.Event()
    progress = Progress()

    async def caller(name: int) -> None:
        number = 0
        while not finished.is_set():
            mark = (f"{name:02}", f"{number:05}")
            try:
                outcome = await backend.write(counting(name, number), timeout=10)
            except errors.OutcomeUnknown:
                unknown.add(mark)
            except errors.Unavailable:
                not_applied.add(mark)
            else:
                assert outcome.result.outcome == pb.OUTCOME_DONE
                acknowledged.add(mark)
                progress.advance()
            number += 1

    callers = [asyncio.create_task(caller(name)) for name in range(CALLERS)]
    for _ in range(2):
        await progress.more(1_000)
        victim = await asyncio.to_thread(own_cluster.leader)
        own_cluster.kill(victim)
        await progress.more(500)
        await asyncio.to_thread(own_cluster.start, victim)
    await progress.more(200)
    finished.set()
    await asyncio.gather(*callers)

    found = await marks(backend)
    assert acknowledged <= found, "an acknowledged write is gone"
    assert not not_applied & found, "a write that was called not applied was applied"
    assert found <= acknowledged | unknown
    assert int.from_bytes(await read_one(backend, key("total")), "little") == len(found), "applied more than once"
    by_counter = Counter(int(name) % 8 for name, _ in found)
    for counter, count in by_counter.items():
        assert int.from_bytes(await read_one(backend, key("count", str(counter))), "little") == count
    assert backend.statistics()["retries"] > 0
    assert backend.statistics()["reconnects"] >= 2


async def test_p06_200_parallel_writers_while_a_node_restarts(own_cluster: DevCluster, open_backend: Connect) -> None:
    """P06: 200 parallel writers, restart one node in the middle -> no crash; retryable error at worst."""
    backend = await open_backend(own_cluster)
    progress = Progress()
    restarted = asyncio.Event()

    async def writer(name: int) -> list[WriteOutcome | errors.KvorumError]:
        results: list[WriteOutcome | errors.KvorumError] = []
        while not restarted.is_set():
            try:
                results.append(await backend.write(setting(key("p06", str(name)), b"x"), timeout=10))
            except errors.KvorumError as error:
                results.append(error)
            progress.advance()
        return results

    writers = [asyncio.create_task(writer(name)) for name in range(200)]
    victim = await asyncio.to_thread(own_cluster.leader)
    await progress.more(400)
    assert await asyncio.to_thread(own_cluster.terminate, victim) == 0
    await asyncio.to_thread(own_cluster.start, victim)
    restarted.set()
    results = [result for some in await asyncio.gather(*writers) for result in some]
    bad = [result for result in results if not isinstance(result, WriteOutcome)]
    assert all(error.retryable or isinstance(error, errors.OutcomeUnknown) for error in bad), bad
    assert len(results) - len(bad) > 400
    assert all(own_cluster.pid(number) for number in range(3))


async def test_p20_a_watch_on_one_node_sees_a_write_through_another_within_500_ms(
    shared_cluster: DevCluster, open_backend: Connect
) -> None:
    """P20: watch on node 1, write via node 3 -> event < 500 ms."""
    watching, writing = await open_backend(shared_cluster, 0), await open_backend(shared_cluster, 2)
    events = watching.watch([key("p20"), key("p20", "other")])
    assert [entry.versionstamp for entry in await anext(events)] == [b"", b""]
    pace = pace_of(shared_cluster)
    outcome = await writing.write(setting(key("p20"), b"hello"), timeout=5)
    entries = await asyncio.wait_for(anext(events), 60)
    took = pace.seconds()
    assert [entry.value for entry in entries] == [b"hello", b""]
    assert entries[0].versionstamp == outcome.versionstamp
    assert took < 0.5, took
    await events.aclose()  # type: ignore[attr-defined]


async def test_p48_p49_a_frozen_leader_is_left_and_the_watch_moves(
    own_cluster: DevCluster, open_backend: Connect
) -> None:
    """P48: SIGSTOP the node being watched -> moves, no event lost or doubled. P49: next call ok <= 5 s."""
    backend = await open_backend(own_cluster)
    await backend.write(setting(key("k"), b"1"), timeout=5)
    events = backend.watch([key("k")])
    assert [entry.value for entry in await anext(events)] == [b"1"]
    leader = await asyncio.to_thread(own_cluster.leader)
    pid = own_cluster.pid(leader)
    os.kill(pid, signal.SIGSTOP)
    try:
        pace = pace_of(own_cluster)
        await backend.write(setting(key("k"), b"2"), timeout=10)
        assert pace.seconds() <= 5
        assert [entry.value for entry in await asyncio.wait_for(anext(events), 60)] == [b"2"]
    finally:
        os.kill(pid, signal.SIGCONT)
    await backend.write(setting(key("other"), b""), timeout=10)
    await backend.write(setting(key("k"), b"3"), timeout=10)
    assert [entry.value for entry in await asyncio.wait_for(anext(events), 60)] == [b"3"]
    await events.aclose()  # type: ignore[attr-defined]


async def test_p37_a_deadline_of_200_ms_without_a_majority(own_cluster: DevCluster, open_backend: Connect) -> None:
    """P37: deadline 200 ms during election -> DEADLINE_EXCEEDED at 200 ms ± 50, outcome stated."""
    backend = await open_backend(own_cluster)
    await backend.write(setting(key("k"), b"1"), timeout=5)
    leader = await asyncio.to_thread(own_cluster.leader)
    own_cluster.kill(leader)
    own_cluster.kill((leader + 1) % 3)
    told = set()
    for _ in range(5):
        begun = time.monotonic()
        async with Witness(0.25):
            with pytest.raises((errors.DeadlineExceeded, errors.OutcomeUnknown)) as caught:
                await backend.write(setting(key("k"), b"2"), timeout=0.2)
        assert time.monotonic() - begun >= 0.15
        told.add(caught.value.outcome)
    assert told <= {"unknown", "not applied"}
    own_cluster.start(leader)
    await backend.write(setting(key("k"), b"3"), timeout=10)
    assert await read_one(backend, key("k")) == b"3"


async def test_p59_a_consumer_goes_on_after_every_node_was_restarted_in_turn(
    own_cluster: DevCluster, open_backend: Connect
) -> None:
    """P59: restart every node in turn with a waiting consumer -> messages flow again without code from the user."""
    backend = await open_backend(own_cluster)
    messages: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    consumer = await backend.consume("p59", credits=4, concurrency=2, deliver=messages.put_nowait)
    payload = b"\xff\x0fT"
    for number in range(4):
        if number:
            await asyncio.to_thread(own_cluster.terminate, number - 1)
            await asyncio.to_thread(own_cluster.start, number - 1)
        write = pb.AtomicWrite()
        write.enqueues.add(queue="p59", payload=payload)
        sent = await backend.write(write.SerializeToString(), timeout=10)
        message = await asyncio.wait_for(messages.get(), 60)
        assert message.message_id.startswith(sent.versionstamp)
        consumer.started(message.lease_id)
        settle = pb.AtomicWrite()
        settle.settles.add(message_id=message.message_id, lease_id=message.lease_id, kind=pb.SETTLE_KIND_ACK)
        settled = await backend.write(settle.SerializeToString(), timeout=10)
        assert settled.result.outcome == pb.OUTCOME_DONE
        consumer.settled(message.lease_id)
    assert messages.empty()
    await consumer.close()
