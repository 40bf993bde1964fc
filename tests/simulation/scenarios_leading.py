"""Elections, office and reads: the library's defects as short schedules, like `scenarios`."""

from typing import Any

from tests.simulation.scenarios import propose, require_acked
from tests.simulation.world import TIMING, Broken, World


def vote_counts_once(world: World) -> None:
    """S9. Five nodes, of which two see each other; whatever the wire delivers twice, two are no majority."""
    world.connect("A", "B")
    for node in world.nodes.values():
        node.hold_election()
    world.clock.now += 2.0
    world.nodes["A"].campaign()
    for _ in range(4):
        world.deliver("A", "B")
        world.nodes["B"].tick()
        answers = world.links.queues["B", "A"]
        answers.extend(list(answers))
        world.deliver("B", "A")
        world.nodes["A"].tick()
    if world.nodes["A"].leads:
        raise Broken("a node leads with 2 of 5 votes")


def nothing_is_committed_alone(world: World) -> None:
    """S10. All machines lose their power, and the disks keep an older log than they should. What is written afterwards
    is acknowledged when a quorum has it, not because an older process was that far once."""
    world.mesh()
    leader = world.elect("A")
    propose(leader, range(20), set(), letter="old")
    world.pump(14)  # more than a second: the library stores its commit index then
    for node_id in world.ids:
        world.nodes[node_id].keep_oldest_log()
    for node_id in world.ids:
        world.restart(node_id, power_cut=True)
    world.mesh()
    leader = world.elect("A")
    for other in "BC":
        world.disconnect("A", other)
    acked: set[str] = set()
    propose(leader, range(3), acked)
    for _ in range(3):
        world.clock.now += 0.11
        leader.tick()
    if acked:
        raise Broken(f"{len(acked)} writes are acknowledged that one node holds")


def read_sees_what_was_acknowledged(world: World) -> None:
    """S11. A leader that was cut off and replaced answers no read as if nothing had happened."""
    world.mesh()
    old = world.elect("A")
    world.pump(4)
    for other in "BC":
        world.disconnect("A", other)
    for node_id in "BC":
        world.nodes[node_id].hold_election()
    acked: set[str] = set()
    new = world.nodes["B"]
    world.clock.now += TIMING.election_min + 0.01  # the old leader does not know yet
    new.campaign()
    world.pump(5, dt=0.01, ids="BC")
    propose(new, range(2), acked)
    world.pump(5, dt=0.06, ids="BC")
    if len(acked) != 2 or not old.leads:
        raise RuntimeError("the scenario needs acknowledged writes, and two nodes that lead")
    seen: list[int | None] = []
    old.read(1, seen.append)
    old.tick()
    floor = new.applied_index
    if any(index is not None and index < floor for index in seen):
        raise Broken(f"a read that began after entry {floor} was acknowledged saw entry {seen[0]}")


def healthy_leader_stays(world: World) -> None:
    """L4. A node that does not hear the leader for a while disturbs nobody when it is back."""
    world.mesh()
    leader = world.elect("A")
    world.pump(4)
    term = leader.term
    lost = world.nodes["C"]
    for _ in range(3):  # what A and B send to C is late, what C sends arrives
        world.links.queues["A", "C"].clear()
        world.clock.now += 0.4
        leader.tick()
        world.deliver("A", "B")
        world.nodes["B"].tick()
        world.deliver("B", "A")
    world.nodes["B"].tick()
    lost.campaign()
    lost.hold_election()
    for _ in range(6):
        for node in world.nodes.values():
            world.clock.now += 0.006
            node.tick()
        world.links.queues["A", "C"].clear()
        for a, b in world.pairs():
            world.deliver(a, b)
    if not leader.leads or leader.term != term:
        raise Broken("a leader that its quorum hears was deposed")


def cut_off_leader_gives_up(world: World) -> None:
    """L5. A leader that hears no quorum takes no writes for longer than an election may last."""
    world.mesh()
    leader = world.elect("A")
    world.pump(4)
    for other in "BC":
        world.disconnect("A", other)
    for _ in range(20):
        world.clock.now += TIMING.election_max / 10
        leader.tick()
    if leader.leads:
        raise Broken(f"a leader that nobody hears leads on after {2 * TIMING.election_max:.0f} s")


def caller_hears_an_outcome(world: World) -> None:
    """L6. Whoever waits for a write hears of it when leadership is lost, be it that nobody knows what becomes of it."""
    world.mesh()
    leader = world.elect("A")
    world.pump(4)
    for other in "BC":
        world.disconnect("A", other)
    answers: list[bool] = []
    for number in range(5):
        leader.propose(f"w{number}", answers.append)
    for _ in range(400):
        world.clock.now += 0.1
        leader.tick()
    if leader.leads:
        raise Broken("a leader that nobody hears leads on after 40 s")
    if len(answers) != 5:
        raise Broken(f"{5 - len(answers)} of 5 callers wait for ever")


def vote_survives_a_power_cut(world: World) -> None:
    """D2. A node that voted and then lost its power does not vote again in the same term."""
    world.connect("A", "B")
    leaders: dict[int, set[str]] = {}

    def note(node: Any) -> None:
        if node.leads:
            leaders.setdefault(node.term, set()).add(node.node_id)

    note(world.elect("A", "AB"))
    world.restart("B", power_cut=True)
    world.connect("B", "C")
    world.clock.now += 2.0
    for _ in range(2):
        world.nodes["C"].campaign()
        world.pump(6, dt=0.02, ids="BC")
        note(world.nodes["C"])
    both = [term for term, who in leaders.items() if len(who) > 1]
    if both:
        raise Broken(f"two leaders in term {both[0]}, by one voter's two votes")


def acknowledged_survives_a_power_cut(world: World) -> None:
    """D1. What was acknowledged is there after all machines lost their power at once."""
    world.mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    propose(leader, range(30), acked)
    world.pump(12)
    if len(acked) != 30:
        raise RuntimeError("the scenario needs 30 acknowledged writes")
    for node_id in world.ids:
        world.restart(node_id, power_cut=True)
    world.mesh()
    world.elect("B")
    world.pump(12)
    require_acked(world.nodes["B"], acked)
