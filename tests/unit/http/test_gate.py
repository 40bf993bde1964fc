"""Whose writes go on: some bytes at a time, one connection after the other."""

import asyncio

from kvorum_node.http.gate import Gate


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_connection_after_the_other_whatever_each_has_sent() -> None:
    gate = Gate(100)
    order: list[str] = []

    async def write(who: str, size: int = 60) -> None:
        await gate.enter(who, size)
        order.append(who)

    await write("first")
    tasks = [asyncio.ensure_future(write("greedy")) for _ in range(5)]
    await turns()
    tasks += [asyncio.ensure_future(write(who)) for who in ("modest", "other")]
    await turns()
    assert (order, gate.waiting) == (["first"], 7)
    for _ in range(8):
        gate.leave(60)
        await turns()
    assert order == ["first", "greedy", "modest", "other", "greedy", "greedy", "greedy", "greedy"]
    assert (gate.inside, gate.waiting) == (0, 0)


async def test_a_small_one_does_not_overtake_and_a_huge_one_goes_alone() -> None:
    gate = Gate(100)
    await gate.enter("a", 60)
    huge = asyncio.ensure_future(gate.enter("b", 500))
    small = asyncio.ensure_future(gate.enter("c", 1))
    await turns()
    assert not huge.done() and not small.done()
    gate.leave(60)
    await turns()
    assert huge.done() and not small.done()
    gate.leave(500)
    await turns()
    assert small.done() and gate.inside == 1


async def test_those_who_give_up_are_in_nobodys_way() -> None:
    gate = Gate(100)
    await gate.enter("a", 100)
    gone = [asyncio.ensure_future(gate.enter("b", 50)) for _ in range(3)]
    late = asyncio.ensure_future(gate.enter("c", 50))
    await turns()
    for task in gone:
        task.cancel()
    await turns()
    gate.leave(100)
    await turns()
    assert late.done() and (gate.inside, gate.waiting) == (50, 0)
    waiting = asyncio.ensure_future(gate.enter("d", 60))
    await turns()
    gate.leave(50)  # its turn has come, and it is cancelled before it runs
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.inside == 0


async def test_those_who_give_up_while_the_line_stands_still_are_forgotten() -> None:
    gate = Gate(100)
    await gate.enter("a", 100)
    first = asyncio.ensure_future(gate.enter("first", 50))
    await turns()
    for number in range(50):
        gone = [asyncio.ensure_future(gate.enter(number, 50)) for _ in range(2)]
        await turns()
        for task in gone:
            task.cancel()
        await turns()
    assert list(gate._queues) == ["first"]
    gate.leave(100)
    await first
    assert (gate.inside, gate.waiting) == (50, 0)
