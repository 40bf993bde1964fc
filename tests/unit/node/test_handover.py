"""Leadership is handed over before it is lost."""

import asyncio
from types import SimpleNamespace
from typing import Any

from kvorum_node.handover import AGAIN, HandOver
from kvorum_node.lag import LoopLag
from kvorum_raft.errors import UnknownOutcome
from kvorum_raft.seams import Member, PeerView
from tests.unit.node.fake_admin import FakeAdministration
from tests.unit.node.harness import VirtualTimers

PEER = PeerView(Member("n2", "b:1", "b:2"), True, 1)


class Office:
    """As much of a consensus layer as a hand-over looks at."""

    def __init__(self, *peers: PeerView) -> None:
        self.is_leader = True
        self.peers = peers
        self.timers = VirtualTimers()
        self.administration = FakeAdministration()
        consensus: Any = self
        self.hand_over = HandOver(consensus, self.administration, self.timers, patience=0.2, too_late=0.25)

    def status(self) -> Any:
        return SimpleNamespace(peers=self.peers)

    @property
    def transfers(self) -> int:
        return len(self.administration.asked)


async def test_a_leader_hands_over_once() -> None:
    office = Office(PEER)
    assert await office.hand_over.now()
    assert office.administration.asked == [("transfer", None)]


async def test_there_must_be_an_office_and_somebody_to_take_it() -> None:
    follower = Office(PEER)
    follower.is_leader = False
    learner = PeerView(PEER.member, True, 1, learner=True)
    away = PeerView(PEER.member, False, 1)
    for office in (follower, Office(), Office(learner), Office(away), Office(learner, away)):
        assert not await office.hand_over.now()
        assert office.transfers == 0


async def test_one_that_fails_or_takes_too_long_is_no_reason_to_stay() -> None:
    office = Office(PEER)
    office.administration.failures = [UnknownOutcome("nobody took over")]
    assert not await office.hand_over.now()

    async def never(node_id: str | None = None) -> str:
        await asyncio.Event().wait()
        return ""

    office.administration.transfer = never  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        assert not await office.hand_over.now()


async def test_a_late_loop_hands_over_at_most_once_a_minute() -> None:
    office = Office(PEER)
    office.hand_over.late(0.25)
    await asyncio.sleep(0)
    assert office.transfers == 0
    for _ in range(3):
        office.hand_over.late(0.3)
    await office.hand_over._task  # type: ignore[misc]
    assert office.transfers == 1
    office.timers.advance(AGAIN)
    office.hand_over.late(0.3)
    await office.hand_over._task  # type: ignore[misc]
    assert office.transfers == 2
    assert office.hand_over.statistics() == {"handed_over_for_lateness": 2}
    await office.hand_over.stop()


def test_lateness_is_told() -> None:
    timers = VirtualTimers()
    told: list[float] = []
    lag = LoopLag(timers, on_late=told.append)
    lag.start()
    timers.advance(0.1)
    assert told == [0.0]
    timers._now += 0.4  # a callback that took so long
    timers.advance(0.0)
    assert [round(seconds, 3) for seconds in told] == [0.0, 0.3]
    lag.stop()
