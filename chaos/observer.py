"""Looks at all nodes the whole time, over a way that no fault cuts: who leads since when, and what time it is there.

Other looks wait for a cluster that is whole; this one is for the moments in between.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import grpc

from kvorum._proto import kvorum_pb2 as pb

LOOK: Final = 0.05
"""Seconds between two looks at a node."""
CALL: Final = 0.4
FRESH: Final = 0.5
"""Seconds that an answer counts."""
_CHANNEL: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 100),
)


@dataclass(frozen=True, slots=True)
class Office:
    """A node leads, and a majority of the voters it knows says so too."""

    since: float
    """Of the monotonic clock, when it was first seen."""
    node: str
    term: int


class Observer:
    """`run` until it is cancelled; what it has seen are attributes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._answers: dict[int, tuple[float, pb.StatusResponse]] = {}
        self.offices: list[Office] = []
        """By term; each as soon as it was seen."""
        self.clock_off = 0.0
        """Seconds that the cluster's time was off this machine's clock at most, as the leader told it."""
        self.backwards = 0
        """Times that an office told an earlier time than before."""
        self._last_time: tuple[int, int] = (0, 0)

    async def run(self) -> None:
        """See the class."""
        async with AsyncExitStack() as stack:
            calls = []
            for address in self._addresses:
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=_CHANNEL))
                calls.append(
                    channel.unary_unary(
                        "/kvorum.v1.Kv/Status",
                        request_serializer=pb.StatusRequest.SerializeToString,
                        response_deserializer=pb.StatusResponse.FromString,
                    )
                )
            await asyncio.gather(*(self._look_at(number, call) for number, call in enumerate(calls)))

    async def _look_at(self, number: int, call: "grpc.aio.UnaryUnaryMultiCallable") -> None:
        while True:
            try:
                answer = await call(pb.StatusRequest(), timeout=CALL)
            except grpc.aio.AioRpcError:
                self._answers.pop(number, None)
            else:
                self.hear(number, answer, time.monotonic(), time.time())
            await asyncio.sleep(LOOK)

    def hear(self, number: int, answer: pb.StatusResponse, now: float, wall: float) -> None:
        """A node's status; `wall` is this machine's clock."""
        self._answers[number] = (now, answer)
        fresh = [known for moment, known in self._answers.values() if moment > now - FRESH]
        for leader in fresh:
            if leader.role != "leader" or leader.leader.node_id != leader.node_id:
                continue
            voters = {leader.node_id, *(peer.node_id for peer in leader.peers if peer.voter)}
            behind = {other.node_id for other in fresh if other.leader == leader.leader and other.term == leader.term}
            if len(behind & voters) * 2 > len(voters) and leader.term > self._newest():
                self.offices.append(Office(now, leader.node_id, leader.term))
        if answer.role == "leader" and answer.term == self._newest():
            self._check_time(answer, wall)

    def _newest(self) -> int:
        return self.offices[-1].term if self.offices else 0

    def _check_time(self, answer: pb.StatusResponse, wall: float) -> None:
        if not answer.time_ms:
            return
        self.clock_off = max(self.clock_off, abs(answer.time_ms / 1_000 - wall))
        term, last = self._last_time
        self.backwards += answer.term == term and answer.time_ms < last
        self._last_time = (answer.term, answer.time_ms)

    def after(self, moment: float, until: float) -> float | None:
        """Seconds from a moment until the next leader took office; None if nobody did before `until`."""
        next_ = next((office for office in self.offices if office.since > moment), None)
        return None if next_ is None or next_.since > until else next_.since - moment

    def at(self, moment: float) -> str:
        """Who led then; empty if nobody had yet."""
        return next((office.node for office in reversed(self.offices) if office.since <= moment), "")
