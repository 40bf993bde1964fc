"""Linearizable reads through a follower that is killed and comes back while its leader stays."""

import asyncio

from kvorum_raft.follower_reads import FollowerReads
from tests.simulation.world import SafeNode, World


def _reads(node: SafeNode, world: World, first_id: int) -> FollowerReads:
    reads = FollowerReads(node.core.ask_leader, world.clock, limit=10, timeout=1.0, first_id=first_id)
    node.read_answered = reads.answered  # type: ignore[method-assign]
    return reads


async def read_after_restart(first_ids: tuple[int, int]) -> tuple[int, int]:
    """Returns the index that a read may see, and that of a write acknowledged before the read began."""
    world = World(SafeNode).start()
    world.mesh()
    leader, follower = world.elect("A"), world.nodes["B"]
    acked: list[int] = []
    for value in ("first", "second"):
        leader.propose(value, lambda ok: acked.append(leader.applied_index) if ok else None)
        if value == "first":
            world.pump(4, dt=0.02)
    leader.tick()
    world.deliver("A", "C")
    world.nodes["C"].tick()
    # The question comes before the second write is committed, and is not answered: nobody confirms the leader in time.
    question = _reads(follower, world, first_ids[0]).read()
    world.deliver("B", "A")
    world.deliver("C", "A")
    for _ in range(3):
        leader.tick()
    assert len(acked) == 2
    world.disconnect("A", "B")
    world.disconnect("B", "C")
    follower.core.stop("killed")
    question.cancel()
    restarted = world.nodes["B"] = SafeNode("B", world, follower.disk, follower.machine)
    restarted.hold_election()
    reads = _reads(restarted, world, first_ids[1])
    world.connect("A", "B")
    world.deliver("A", "B")
    answer = reads.read()
    world.deliver("B", "A")
    for _ in range(20):
        leader.tick()
        world.deliver("A", "B")
        restarted.tick()
        world.deliver("B", "A")
        if answer.done():
            break
        world.clock.now += 0.02
    return await asyncio.wait_for(answer, 1), acked[-1]


async def test_an_answer_to_the_process_before_is_not_taken() -> None:
    seen, acknowledged = await read_after_restart((1, 1000))
    assert seen >= acknowledged


async def test_the_schedule_bites() -> None:
    """With ids that begin anew at each start the old answer passes for the new one."""
    seen, acknowledged = await read_after_restart((1, 1))
    assert seen < acknowledged
