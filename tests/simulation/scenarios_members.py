"""Membership: the library's defects as short schedules, like `scenarios`. The world's `founders` form the cluster; its
other nodes wait to be added."""

from tests.simulation.scenarios import propose
from tests.simulation.world import TIMING, Broken, World


def join(world: World, leader_id: str, node_id: str) -> None:
    """Add an empty node and make it count; everybody is connected."""
    leader = world.nodes[leader_id]
    for step in (leader.add, leader.promote):
        done: list[bool] = []
        step(node_id, done.append)
        world.pump(3)
        world.mesh()  # a node that waits to be added is let in when it is a member
        world.pump(12)
        if done != [True]:
            raise RuntimeError(f"the scenario could not make node {node_id} a member")


def one_change_at_a_time(world: World) -> None:
    """S5. Several changes in one breath, seen by none of the old members: the majorities of before and after would not
    meet."""
    for a, b in ("AB", "AC", "BC"):
        world.connect(a, b)
    leader = world.elect("A", "ABC")
    world.pump(4, ids="ABC")
    for other in "BC":
        world.disconnect("A", other)
    for node_id in "DEFG":
        leader.add(node_id, lambda ok: None)
        leader.promote(node_id, lambda ok: None)
    world.clock.now += 0.11
    leader.tick()
    for node_id in "DEFG":
        world.connect("A", node_id)
    mine: set[str] = set()
    propose(leader, range(3), mine, letter="a")
    world.pump(12, dt=0.05, ids="ADEFG")
    theirs: set[str] = set()
    for node_id in "BC":
        world.nodes[node_id].hold_election()
    world.clock.now += TIMING.election_max
    other_leader = world.elect("B", "BC")
    propose(other_leader, range(3), theirs, letter="b")
    world.pump(5, ids="BC")
    if len(theirs) != 3:
        raise RuntimeError("the scenario needs the old members to go on")
    if mine:
        raise Broken("two leaders acknowledge different writes, each with its own majority")


def restarted_nodes_know_the_newest_members(world: World) -> None:
    """S6. Two of five nodes were there when there were three. After a restart they must not take themselves for a
    majority, though nothing of their logs is applied yet."""
    world.mesh()
    world.elect("A")
    world.pump(4)
    for node_id in "DE":
        join(world, "A", node_id)
    for node_id in "BC":
        world.restart(node_id, power_cut=True)
    world.connect("B", "C")
    world.clock.now += 2.0
    for _ in range(2):
        world.nodes["B"].campaign()
        world.pump(4, dt=0.02, ids="BC")
    if world.nodes["B"].leads:
        raise Broken("two of five nodes elect a leader")


def empty_node_stops_nothing(world: World) -> None:
    """L10. With one of three nodes down a new, empty one is added. It must not count before it has caught up."""
    for a, b in ("AB", "AC", "BC"):
        world.connect(a, b)
    leader = world.elect("A", "ABC")
    world.pump(4, ids="ABC")
    for other in "AB":
        world.disconnect("C", other)
    acked: set[str] = set()
    leader.add("D", lambda ok: None)
    world.pump(2, ids="AB")
    propose(leader, range(5), acked)
    world.pump(8, ids="AB")
    if len(acked) != 5:
        raise Broken("adding an empty node stopped all writes")
