"""Replication and applying: the library's defects as short schedules, one function each, for both kinds of nodes.

A scenario gets a started world without connections; a promise that is broken raises Broken. `defects.py` says which row
of docs/consensus-defects.md each belongs to.
"""

from typing import Any

from kvorum_raft.errors import RaftError
from tests.simulation.world import Broken, World


def propose(node: Any, values: range, acked: set[str], *, letter: str = "v") -> None:
    for number in values:
        value = f"{letter}{number}." + "x" * 40
        node.propose(value, lambda ok, value=value: acked.add(value) if ok else None)


def require_acked(node: Any, acked: set[str]) -> None:
    lost = acked - {value for _, value in node.applied}
    if lost:
        raise Broken(f"{len(lost)} acknowledged writes are lost")


def duplicate_refusal_keeps_acknowledged_entries(world: World) -> None:
    """S1. A reset loses entries under way; two heartbeats leave before the first refusal is back. The second refusal
    makes the leader send again what the follower has acknowledged already; if the first such message cuts the
    follower's log, acknowledged writes are lost."""
    world.connect("A", "B")
    leader, follower = world.elect("A", "AB"), world.nodes["B"]
    acked: set[str] = set()
    propose(leader, range(20), acked)
    for _ in range(2):
        world.clock.now += 0.11
        leader.tick()
    world.disconnect("A", "B")
    world.connect("A", "B")
    for _ in range(2):
        world.clock.now += 0.11
        leader.tick()
    world.deliver("A", "B")
    follower.tick()
    refusals = list(world.links.queues["B", "A"])
    late = refusals[1:] if len(refusals) > 1 else []
    world.links.queues["B", "A"].clear()
    world.nodes["A"].deliver("B", refusals[0])
    world.pump(12, dt=0.11, ids="AB")
    if len(acked) != 20:
        raise RuntimeError("the scenario needs 20 acknowledged writes")
    for refusal in late:
        world.nodes["A"].deliver("B", refusal)
    world.clock.now += 0.11
    leader.tick()
    world.deliver("A", "B", 1)
    follower.tick()
    world.disconnect("A", "B")
    world.connect("B", "C")
    world.elect("B", "BC")
    world.pump(10, ids="BC")
    require_acked(world.nodes["C"], acked)


def pipelining_deletes_nothing(world: World) -> None:
    """S2. On sound links a follower never has to cut its log, however many messages are under way."""
    world.mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    for step in range(60):
        propose(leader, range(step * 10, step * 10 + 10), acked)
        world.clock.now += 0.11
        for node_id in world.ids:
            world.nodes[node_id].tick()
        for a, b in world.pairs():
            world.deliver(a, b, 2)  # fewer than are sent: acknowledgements lag behind
    world.pump(60)
    if len(acked) != 600:
        raise Broken(f"only {len(acked)} of 600 writes were acknowledged on sound links")
    if world.nodes["B"].deleted or world.nodes["C"].deleted:
        raise Broken(f"{world.nodes['B'].deleted + world.nodes['C'].deleted} entries were deleted and written again")


def failing_callback_applies_once(world: World) -> None:
    """S8. Whoever waits for an entry may fail; the entry is applied once."""
    world.mesh()
    leader = world.elect("A")

    def fail(ok: bool) -> None:
        raise RuntimeError("the caller is broken")

    leader.propose("once", fail)
    for _ in range(10):
        try:
            world.pump(1)
        except RuntimeError:
            continue
    times = [value for _, value in leader.applied].count("once")
    if times != 1:
        raise Broken(f"an entry was applied {times} times")


def diverged_follower_converges(world: World) -> None:
    """L1. A follower with a long diverged tail comes to the leader's log although several messages are always under
    way."""
    world.connect("A", "B")
    old = world.elect("B", "AB")
    acked: set[str] = set()
    world.pump(3, ids="AB")
    world.disconnect("A", "B")
    propose(old, range(40), set(), letter="lost")
    old.tick()
    world.connect("A", "C")
    propose(world.elect("A", "AC"), range(60), acked)
    world.pump(40, ids="AC")
    leader = world.elect("C", "AC")  # whose first guess lies behind everything that the follower has
    world.pump(3, ids="AC")
    world.connect("C", "B")
    for _ in range(400):
        world.pump(1)
        if world.nodes["B"].applied_index >= leader.applied_index:
            return
    raise Broken("the follower does not converge in 400 rounds")


def poisonous_command_stops_nobody(world: World) -> None:
    """L2. A command that the application refuses is a result; later commands go on."""
    world.mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    leader.propose("poison", lambda ok: None)
    propose(leader, range(5), acked)
    for _ in range(20):
        try:
            world.pump(1)
        except ValueError:
            continue
    if len(acked) != 5:
        raise Broken(f"only {len(acked)} of 5 later commands were applied")


def late_acknowledgement_is_no_replica(world: World) -> None:
    """S4. Node B acknowledges a long log of A's first term, and the acknowledgement lies on the wire for two elections.
    Meanwhile A's log is cut to a short one; when A leads again, the late acknowledgement must not count for what A
    appends at the same indices."""
    for a, b in ("AB", "AC"):
        world.connect(a, b)
    first = world.elect("A", "ABC")
    world.pump(4, ids="ABC")
    world.disconnect("A", "C")
    propose(first, range(8), set(), letter="lost")
    for _ in range(6):  # B stores all of it; what it answers at the end stays on the wire
        world.clock.now += 0.11
        first.tick()
        world.deliver("A", "B")
        world.nodes["B"].tick()
        if world.nodes["B"].last_index == first.last_index:
            break
        world.deliver("B", "A")
    late = world.links.queues["B", "A"].pop()
    world.links.queues["B", "A"].clear()
    for a, b in ("CD", "CE", "DE"):
        world.connect(a, b)
    world.elect("C", "CDE")
    world.pump(6, ids="CDE")
    world.connect("A", "C")
    world.pump(10, ids="ACDE")  # A's log becomes C's, which is shorter
    world.connect("A", "D")
    again = world.elect("A", "ACD")
    world.disconnect("A", "D")
    world.disconnect("C", "D")
    world.disconnect("C", "E")
    world.pump(3, ids="AC")
    acked: set[str] = set()
    propose(again, range(12), acked)
    world.pump(4, ids="AC")
    again.deliver("B", late)
    world.pump(6, ids="AC")
    for a, b in ("AC", "AB"):
        world.disconnect(a, b)
    for a, b in ("BD", "BE"):
        world.connect(a, b)
    world.elect("D", "BDE")
    world.pump(10, ids="BDE")
    require_acked(world.nodes["D"], acked)


def entry_beyond_the_message_size_travels(world: World) -> None:
    """L8. An entry that is larger than what one message should hold arrives whole, whatever its size."""
    world.mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    sizes = range(300, 460, 7)
    for size in sizes:
        value = f"{size}." + "x" * size
        leader.propose(value, lambda ok, value=value: acked.add(value) if ok else None)
        try:
            world.pump(4)
        except Exception as error:
            raise Broken(f"a follower fails at a large entry: {type(error).__name__}") from error
    if len(acked) != len(sizes):
        raise Broken(f"only {len(acked)} of {len(sizes)} large writes were acknowledged")


def step_is_short_however_much_waits(world: World) -> None:
    """L9. One step of a node with thousands of commands before it returns to its sockets soon."""
    world.mesh()
    leader = world.elect("A")
    world.pump(3)
    for number in range(6000):
        try:
            leader.propose(f"{number}", lambda ok: None)
        except RaftError:  # definite: nothing was appended
            break
    begun = world.clock.now
    leader.tick()
    if world.clock.now - begun > 0.02:
        raise Broken(f"one step takes {(world.clock.now - begun) * 1000:.0f} ms")


def write_does_not_wait_for_the_next_heartbeat(world: World) -> None:
    """P3. What was proposed leaves with the next step, not with the next heartbeat."""
    world.mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    world.pump(3)
    leader.tick()
    propose(leader, range(1), acked)
    world.pump(4, dt=0.003)
    if not acked:
        raise Broken("a write on sound links waits for the next heartbeat")
