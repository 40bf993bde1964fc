"""Snapshots: the library's defects as short schedules, like `scenarios`."""

from tests.simulation.scenarios import propose, require_acked
from tests.simulation.world import Broken, World


def compact(world: World, node_id: str, ids: str) -> None:
    """Cut that node's log behind all but its last few entries: behind the older of two snapshots, if it keeps two."""
    for number in range(2):
        propose(world.nodes[node_id], range(2), set(), letter=f"c{number}.")
        world.pump(3, ids=ids)
        world.nodes[node_id].compact()


_PATIENCE = 400
"""Messages after which a transfer is over, or will never be."""


def snapshot_commits_nothing(world: World) -> None:
    """S3. A deposed leader with an uncommitted tail is sent a snapshot. While it arrives the node must not take its own
    tail for committed, as the new leader's commit index alone would have it."""
    world.mesh()
    old = world.elect("A")
    world.pump(4)
    for other in "BC":
        world.disconnect("A", other)
    acked: set[str] = set()
    propose(old, range(5), acked, letter="tail")
    old.tick()
    new = world.elect("B", "BC")
    propose(new, range(40), set())
    world.pump(30, ids="BC")
    compact(world, "B", "BC")
    world.connect("A", "B")
    for _ in range(_PATIENCE):
        if not world.deliver("B", "A", 1):
            world.clock.now += 0.03
            new.tick()
            world.nodes["C"].tick()
            for a, b in ("BC", "CB"):
                world.deliver(a, b)
        old.tick()
        if any(value.startswith("tail") for _, value in old.applied):
            raise Broken(f"a node applies its own tail, and {len(acked)} writes are acknowledged and lost")
        world.deliver("A", "B")
        if old.applied_index >= new.applied_index:
            break
    else:
        raise RuntimeError("the snapshot never arrived")
    require_acked(new, acked)


def late_snapshot_is_ignored(world: World) -> None:
    """S7. Two refusals of one follower are under way, and each makes the leader send a snapshot. The second one arrives
    when the follower has long acknowledged later entries."""
    world.connect("A", "C")
    world.elect("A", "AC")
    propose(world.nodes["A"], range(30), set(), letter="old")
    world.pump(30, ids="AC")
    compact(world, "A", "AC")
    world.elect("C", "AC")  # a new leader's first guess lies behind its whole log, not at the snapshot
    world.pump(3, ids="AC")
    leader, follower = world.elect("A", "AC"), world.nodes["B"]
    world.pump(3, ids="AC")
    world.connect("A", "B")
    for _ in range(2):
        world.clock.now += 0.11
        leader.tick()
    world.deliver("A", "B")
    follower.tick()
    refusals = list(world.links.queues["B", "A"])
    world.links.queues["B", "A"].clear()
    leader.deliver("B", refusals[0])
    world.disconnect("A", "C")
    world.pump(60, dt=0.05, ids="AB")
    acked: set[str] = set()
    propose(leader, range(20), acked)
    world.pump(15, ids="AB")
    if len(acked) != 20:
        raise RuntimeError("the scenario needs 20 acknowledged writes")
    before = follower.last_index
    for late in refusals[1:]:
        leader.deliver("B", late)
    for _ in range(10):
        world.clock.now += 0.11
        leader.tick()
        while world.deliver("A", "B", 1) and follower.last_index >= before:
            follower.tick()
        if follower.last_index < before:
            break
        world.deliver("B", "A")
    world.disconnect("A", "B")
    world.connect("B", "C")
    longest = max("BC", key=lambda node_id: world.nodes[node_id].last_index)
    world.elect(longest, "BC")
    world.pump(40, ids="BC")
    require_acked(world.nodes[longest], acked)


def busy_snapshot_floods_nobody(world: World) -> None:
    """L3. A follower needs a snapshot while the leader is making its next one."""
    world.connect("A", "C")
    leader = world.elect("A", "AC")
    propose(leader, range(30), set())
    world.pump(30, ids="AC")
    compact(world, "A", "AC")
    propose(leader, range(5), set())
    world.pump(5, ids="AC")
    leader.begin_compaction()
    world.connect("A", "B")
    most = 0
    for _ in range(5):
        world.links.queues["A", "B"].clear()
        world.clock.now += 0.11
        leader.tick()
        most = max(most, len(world.links.queues["A", "B"]))
        leader.begin_compaction()
    if most > 50:
        raise Broken(f"{most} messages to one follower in one step")
