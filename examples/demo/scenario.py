"""The program itself: buyers, voters, a wall that shows both, and a handler that issues the tickets. It knows of no
nodes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import kvorum
from kvorum.errors import OutcomeUnknown, Unavailable

from .ledger import Ledger

STOCK = ("ticket", "c001", "stock")
TOTAL = ("voteTotal",)
SONGS = ("Blue Note", "Night Train", "So What", "Take Five", "Summertime")

TICKETS = 10
BUYERS = 50
VOTERS = 64
VOTES_IN_FLIGHT = 4
"""Votes that one voter has under way at a time."""


class HandlerTrouble(Exception):
    """What the issuing handler raises at times, as real ones do."""


async def prepare(kv: kvorum.Kv) -> None:
    """Put the stock in place; a database that holds an earlier run is refused."""
    put = await kv.atomic().check(STOCK, None).set(STOCK, TICKETS).commit()
    if not put.ok:
        raise SystemExit("demo: this database already holds a ticket sale; use an empty one")


# ---- tickets


async def buy(kv: kvorum.Kv, order: str, ledger: Ledger, rng: random.Random) -> None:
    """Buy one ticket, or find that none is left: read, check the versionstamp, write, and try again on a conflict.

    The order's own key makes an unknown outcome knowable: if it is there, the sale happened. It may also happen late,
    but never twice, since the order must be
    absent and the stock must be the one that was read.
    """
    while True:
        try:
            stock, mine = await kv.get_many([STOCK, ("order", order)])
            if mine.value is not None:
                ledger.sold(order)
                return
            if not isinstance(stock.value, int) or stock.value <= 0:
                ledger.turned_away(order)
                return
            done = await (
                kv.atomic()
                .check(STOCK, stock.versionstamp)
                .check(("order", order), None)
                .set(STOCK, stock.value - 1)
                .set(("order", order), "c001")
                .enqueue({"issue": order})
                .commit()
            )
        except OutcomeUnknown:
            ledger.count("buyers who had to look whether it happened")
            continue
        except Unavailable:
            ledger.count("buyers' calls repeated by the program")
            continue
        if done.ok:
            ledger.sold(order)
            return
        ledger.count("buyers' conflicts")
        await asyncio.sleep(rng.random() * 0.02)


async def sale(kv: kvorum.Kv, ledger: Ledger, seed: int) -> None:
    """Fifty buyers at once, ten tickets."""
    async with asyncio.TaskGroup() as buyers:
        for number in range(BUYERS):
            buyers.create_task(buy(kv, f"order-{number:02}", ledger, random.Random(seed * 1_000 + number)))


async def issue(kv: kvorum.Kv, message: object, ledger: Ledger) -> None:
    """Issue a ticket for a sold order. Delivered at least once, so the check makes the effect happen once; every third
    order fails at first.
    """
    assert isinstance(message, dict)
    order = message["issue"]
    ledger.delivered(order)
    if int(order[-2:]) % 3 == 0 and ledger.deliveries[order] == 1:
        raise HandlerTrouble(f"the printer is out of paper, {order} has to wait")
    issued = (
        await kv.atomic().check(("issued", order), None).set(("issued", order), True).sum(("issuedTotal",), 1).commit()
    )
    if not issued.ok:
        ledger.count("tickets that had been issued already")
    ledger.issued(order)


# ---- votes


async def vote(kv: kvorum.Kv, voter: int, number: int, song: str, ledger: Ledger) -> None:
    """One vote: two counters and the voter's own ballot, in one commit."""
    ballot = f"{voter:02}-{number:05}"
    with ledger.in_flight():
        try:
            await kv.atomic().sum(("vote", song), 1).sum(TOTAL, 1).set(("ballot", ballot), song).commit()
        except OutcomeUnknown:
            ledger.vote_unknown(ballot, song)
        except Unavailable:
            ledger.vote_not_applied(ballot, song)
        else:
            ledger.vote_acknowledged(ballot, song)


async def voter(kv: kvorum.Kv, name: int, ballots: Iterator[int], ledger: Ledger, rng: random.Random) -> None:
    """Vote as long as ballots are left, a few at a time."""

    async def lane() -> None:
        for number in ballots:
            await vote(kv, name, number, rng.choice(SONGS), ledger)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(VOTES_IN_FLIGHT):
            lanes.create_task(lane())


async def election(kv: kvorum.Kv, votes: range, ledger: Ledger, seed: int) -> None:
    """All voters at once; together they cast exactly these votes."""
    ballots = iter(votes)
    async with asyncio.TaskGroup() as voters:
        for name in range(VOTERS):
            voters.create_task(voter(kv, name, ballots, ledger, random.Random(seed * 7_919 + name)))


# ---- the wall


async def wall(kv: kvorum.Kv, ledger: Ledger) -> None:
    """Watch the number of votes and the stock; what one sees never runs backwards."""
    events: AsyncIterator[list[kvorum.Entry]] = kv.watch([TOTAL, STOCK])
    async for total, stock in events:
        ledger.seen_on_wall(
            total.value if isinstance(total.value, int) else 0,
            stock.value if isinstance(stock.value, int) else TICKETS,
        )
