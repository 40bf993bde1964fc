"""What an operator asks of the leader: change the members, hand leadership over, set the clock.

Each change is one entry that alters one voter at most, so that the majorities before and after it share a node, and the
next one is refused until it is committed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ChangePending, ConfigurationError, NotLeader, RaftError
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.seams import Applied, Member

CAUGHT_UP: Final = 1000
"""Entries that a learner may lack when it becomes a voter: the window of a second or so under load."""
MAX_JUMP_MS: Final = 100 * 365 * 86_400_000
_Result = TypeVar("_Result")


class Membership:
    """Implements `seams.Administration` over the core. `meet` dials an address once and says who is there; `step` asks
    for a step of the core."""

    def __init__(
        self,
        core: SafeSyncObj,
        meet: Callable[[Member], Awaitable[pb.Hello]],
        step: Callable[[], None],
    ) -> None:
        self._core = core
        self._meet = meet
        self._step = step

    async def add(self, member: Member) -> None:
        known = self._configuration().find(member.node_id)
        hello = await self._look(member)
        if known is None:
            _must_wait(member, hello)
            await self._change(lambda now: now.with_learner(member, hello.incarnation))
        elif hello.incarnation == known.incarnation:
            await self._change(lambda now: now.with_addresses(member))
        else:
            raise ValueError(f"node {member.node_id} is a member with another folder: replace it")

    async def replace(self, member: Member) -> None:
        if self._configuration().find(member.node_id) is None:
            raise ValueError(f"node {member.node_id} is not a member: add it")
        if member.node_id == self._core.node_id:
            raise ValueError(f"node {member.node_id} leads: it has not lost its folder")
        hello = await self._look(member)
        _must_wait(member, hello)
        await self._change(lambda now: now.with_replaced(member, hello.incarnation))

    async def promote(self, node_id: str) -> None:
        self._configuration().with_promoted(node_id)
        has = self._core.match_index(node_id)
        missing = self._core.journal.last_index - has
        if not has or not self._core.is_connected(node_id):
            raise ChangePending(f"node {node_id} has not been heard of by this leader yet: try again")
        if missing > CAUGHT_UP:
            raise ValueError(f"node {node_id} lacks {missing} entries still: promote it when it has caught up")
        await self._change(lambda now: now.with_promoted(node_id))

    async def remove(self, node_id: str) -> None:
        if node_id == self._core.node_id and self._configuration().voters - {node_id}:
            self._check_successor()
        await self._change(lambda now: now.without(node_id))

    async def transfer(self, node_id: str | None = None) -> str:
        self._configuration()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        chosen = self._core.transfer(node_id, lambda error: _settle(future, error, chosen))
        self._step()
        return await future

    async def set_time(self, unix_ms: int) -> None:
        self._configuration()
        now_ms = self._core.entry_clock.now_ms()
        if not now_ms <= unix_ms <= now_ms + MAX_JUMP_MS:
            raise ValueError(f"the cluster's time is {now_ms} ms: it can jump forward only, not to {unix_ms} ms")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._core.set_time(unix_ms, lambda _, error: _settle(future, error, None))
        self._step()
        await future

    def _configuration(self) -> cf.Configuration:
        if not self._core.leads or self._core.configuration is None:
            raise NotLeader("this node does not lead, or has only just begun to")
        return self._core.configuration

    def _check_majority(self, changed: cf.Configuration) -> None:
        """A change that those who are there cannot commit would stop the cluster, and nothing could take it back."""
        core = self._core
        voters = sorted(changed.voters)
        there = [one for one in voters if one == core.node_id or core.is_connected(one)]
        if len(there) < changed.quorum:
            raise ValueError(
                f"of the voters {', '.join(voters)} only {', '.join(there) or 'none'} can be reached: "
                f"they could not decide anything, {changed.quorum} are needed"
            )
        answering = [one for one in there if one == core.node_id or core.hears(one)]
        if len(answering) < changed.quorum:  # a connection is there for seconds after the last word came through it
            raise ChangePending(
                f"of the voters {', '.join(voters)} only {', '.join(answering) or 'none'} answer at the moment, and "
                f"{changed.quorum} are needed to decide anything: try again"
            )

    def _check_successor(self) -> None:
        """A leader that goes while all others have much to apply would leave a cluster that takes nothing for so
        long."""
        if not self._core.has_successor:
            raise ChangePending(
                f"node {self._core.node_id} leads, and no other voter could at once: those that answer have no state "
                "yet, or much to apply: try again"
            )

    async def _look(self, member: Member) -> pb.Hello:
        try:
            hello = await self._meet(member)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if hello.node_id != member.node_id:
            raise ValueError(f"at {member.peer_address} is node {hello.node_id}, not node {member.node_id}")
        return hello

    async def _change(self, alter: Callable[[cf.Configuration], cf.Configuration]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Applied | None, error: RaftError | None) -> None:
            _settle(future, error, None)

        changed = alter(self._configuration())
        self._check_majority(changed)
        self._core.change(changed, done)
        self._step()
        await future


def _must_wait(member: Member, hello: pb.Hello) -> None:
    if not hello.joining:
        raise ValueError(
            f"the folder of node {member.node_id} is not an empty one that waits to be added: "
            "empty it and start the node with --join"
        )


def _settle(future: "asyncio.Future[_Result]", error: RaftError | None, result: _Result) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
