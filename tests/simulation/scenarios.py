"""The library's defects as short schedules, one function each, for both kinds of nodes. A promise that is broken raises
Broken."""

from collections.abc import Callable
from typing import Any

from tests.simulation.world import Broken, World

Scenario = Callable[[World], None]


def _propose(node: Any, values: range, acked: set[str], *, letter: str = "v") -> None:
    for number in values:
        value = f"{letter}{number}." + "x" * 40
        node.propose(value, lambda ok, value=value: acked.add(value) if ok else None)


def _require_acked(node: Any, acked: set[str]) -> None:
    lost = acked - {value for _, value in node.applied}
    if lost:
        raise Broken(f"{len(lost)} acknowledged writes are lost")


def duplicate_refusal_keeps_acknowledged_entries(world: World) -> None:
    """S1. A reset loses entries under way; two heartbeats leave before the first refusal is back. The second refusal
    makes the leader send again what the follower has acknowledged already; if the first such message cuts the
    follower's log, acknowledged writes are lost."""
    world.start()
    world.connect("A", "B")
    leader, follower = world.elect("A", "AB"), world.nodes["B"]
    acked: set[str] = set()
    _propose(leader, range(20), acked)
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
    _require_acked(world.nodes["C"], acked)


def pipelining_deletes_nothing(world: World) -> None:
    """S2. On sound links a follower never has to cut its log, however many messages are under way."""
    world.start().mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    for step in range(60):
        _propose(leader, range(step * 10, step * 10 + 10), acked)
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
    world.start().mesh()
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
    world.start()
    world.connect("A", "B")
    old = world.elect("B", "AB")
    acked: set[str] = set()
    world.pump(3, ids="AB")
    world.disconnect("A", "B")
    _propose(old, range(40), set(), letter="lost")
    old.tick()
    world.connect("A", "C")
    _propose(world.elect("A", "AC"), range(60), acked)
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
    world.start().mesh()
    leader = world.elect("A")
    acked: set[str] = set()
    leader.propose("poison", lambda ok: None)
    _propose(leader, range(5), acked)
    for _ in range(20):
        try:
            world.pump(1)
        except ValueError:
            continue
    if len(acked) != 5:
        raise Broken(f"only {len(acked)} of 5 later commands were applied")


SCENARIOS: dict[str, Scenario] = {
    "S1": duplicate_refusal_keeps_acknowledged_entries,
    "S2": pipelining_deletes_nothing,
    "S8": failing_callback_applies_once,
    "L1": diverged_follower_converges,
    "L2": poisonous_command_stops_nobody,
}
