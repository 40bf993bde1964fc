"""Messages come at least once; two ways to let their effects happen exactly once, and what happens without them.

python -m examples.exactly_once [TARGET]
"""

import uuid

import kvorum
from examples.stage import beside, emptied, play, shown
from kvorum.errors import StaleLease

QUEUE = "payments"
PAID = ("once", "paid")
CALLS = ("once", "calls")


class Crash(Exception):
    """Stands for everything that can go wrong after the effects, and before the message is acknowledged."""


async def carelessly(kv: kvorum.Kv, message: kvorum.Message) -> None:
    await kv.atomic().sum(PAID, message.value["amount"]).sum(CALLS, 1).commit()
    if message.attempt == 1:
        raise Crash


async def with_a_nonce(kv: kvorum.Kv, message: kvorum.Message) -> None:
    """Works with every system whose messages are sent in a commit, as with Deno's: the sender wrote the nonce."""
    nonce = await kv.get(("once", "nonce", message.value["nonce"]))
    if nonce.exists:
        await kv.atomic().check(nonce).delete(nonce.key).sum(PAID, message.value["amount"]).commit()
    await kv.atomic().sum(CALLS, 1).commit()
    if message.attempt == 1:
        raise Crash


async def by_acknowledging(kv: kvorum.Kv, message: kvorum.Message) -> None:
    """The effects and the end of the message are one commit: there is no moment in between, and no nonce."""
    await message.atomic().sum(PAID, message.value["amount"]).sum(CALLS, 1).ack().commit()
    raise Crash  # too late to do harm: it is only logged


async def pay(kv: kvorum.Kv, handler: object, calls: int) -> int:
    """Send one payment of 5 and handle it, which takes so many calls; returns what was paid."""
    assert callable(handler)
    await kv.delete_prefix(("once",))
    await kv.queue(QUEUE).remove()
    nonce = str(uuid.uuid4())
    await (
        kv.atomic()
        .set(("once", "nonce", nonce), True)
        .send(QUEUE, {"amount": 5, "nonce": nonce}, backoff_schedule=[20, 20])
        .commit()
    )

    async def handle(message: kvorum.Message) -> None:
        await handler(kv, message)

    async with beside(kv.queue(QUEUE).listen(handle)):
        await shown(kv, CALLS, lambda count: count == calls)
        await emptied(kv.queue(QUEUE))
    return int((await kv.get(PAID)).value)


async def fenced(kv: kvorum.Kv) -> int:
    """A worker that was away for longer than its lease cannot pay a second time, although it does not know."""
    await kv.delete_prefix(("once",))
    queue = kv.queue(QUEUE)
    await queue.remove()
    await queue.define(lease=500)
    await queue.send({"amount": 5})
    (first,) = await queue.receive_batch(max=1, renew=False)
    (second,) = await queue.receive_batch(max=1)  # half a second later: the first one was neither settled nor extended
    assert (first.id, first.attempt, second.attempt) == (second.id, 1, 2)
    await second.atomic().sum(PAID, 5).ack().commit()
    try:
        await first.atomic().sum(PAID, 5).ack().commit()
    except StaleLease:
        pass
    else:
        raise AssertionError("paid twice")
    return int((await kv.get(PAID)).value)


async def example(kv: kvorum.Kv) -> str:
    careless = await pay(kv, carelessly, calls=2)
    nonce = await pay(kv, with_a_nonce, calls=2)
    acknowledged = await pay(kv, by_acknowledging, calls=1)
    stale = await fenced(kv)
    assert (careless, nonce, acknowledged, stale) == (10, 5, 5, 5)
    return f"exactly_once: ok, 5 paid with a nonce, {acknowledged} by acknowledging, {careless} carelessly"


if __name__ == "__main__":
    play(example)
