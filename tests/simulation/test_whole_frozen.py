"""A consumer whose process stands still, and what that costs its messages."""

import random
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.client import ClusterBackend
from tests.simulation.whole.rpc import KEEPALIVE, PATIENCE, SimConnection
from tests.simulation.whole.trio import Trio

LEASE = 9.0
"""Seconds; longer than it takes to notice."""


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.close()
    assert not made.judge.findings


class Client:
    """A process with a client, and what it was handed."""

    def __init__(self, name: str, trio: Trio) -> None:
        self.loop = trio.another_process(name)
        self.got: list[pb.Delivery] = []
        self._trio = trio
        self._connect = partial(SimConnection, trio.network)
        self._rng = random.Random(name)
        self._backend: ClusterBackend | None = None
        self.does(self._open)

    def does(self, what: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """And ends it."""
        ended: list[None] = []

        def begin() -> None:
            self.loop.create_task(what()).add_done_callback(lambda task: ended.append(task.result() and None))

        self.loop.run(begin)
        self._trio.until(lambda: bool(ended), "end of what a client does")

    async def _open(self) -> None:
        self._backend = ClusterBackend([(node, 2) for node in "ABC"], rng=self._rng, connect=self._connect)
        await self._backend.open(30.0)

    async def consume(self) -> None:
        assert self._backend is not None
        await self._backend.consume("jobs", credits=1, concurrency=1, deliver=self.got.append)

    async def define(self) -> None:
        assert self._backend is not None
        policy = pb.QueuePolicy(lease_ms=int(LEASE * 1000)).SerializeToString()
        await self._backend.queue_call(pb.QueueCall(define=pb.DefineQueue(name="jobs", policy=policy)), timeout=5.0)

    async def send(self) -> None:
        assert self._backend is not None
        op = pb.AtomicWrite()
        op.enqueues.add(queue="jobs", payload=b"job 0")
        await self._backend.write(op.SerializeToString(), timeout=5.0)


def test_a_frozen_consumers_lease_is_not_longer_by_the_time_that_it_takes_to_notice(trio: Trio) -> None:
    trio.leader()
    frozen, other = Client("frozen", trio), Client("other", trio)
    for what in (frozen.define, frozen.consume, frozen.send):
        frozen.does(what)
    trio.until(lambda: len(frozen.got) == 1, "delivery")
    other.does(other.consume)
    trio.clock.run_until(trio.clock.now + 5.0)  # it lives, and has nothing to say
    frozen.loop.pause()
    froze = trio.clock.now
    trio.until(lambda: len(other.got) == 1, "redelivery")
    after = trio.clock.now - froze
    # Its last sign of life was a ping before it froze; what the node pings for is noticed later.
    assert LEASE - 2.0 < after <= LEASE + 1.0, "rules F2: lease + 1 s after the last sign of life"
    assert LEASE - 2.0 > KEEPALIVE + PATIENCE
