"""What the program knows by itself, and the final comparison with what the database holds."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import kvorum


@dataclass
class Ledger:
    """The program's own list, kept in memory and never read from the database."""

    orders_sold: set[str] = field(default_factory=set)
    orders_turned_away: set[str] = field(default_factory=set)
    deliveries: Counter[str] = field(default_factory=Counter)
    tickets_issued: set[str] = field(default_factory=set)
    acknowledged: dict[str, str] = field(default_factory=dict)
    """ballot -> song of every vote that was acknowledged"""
    unknown: dict[str, str] = field(default_factory=dict)
    not_applied: dict[str, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    wall_total: int = 0
    wall_stock: int | None = None
    problems: list[str] = field(default_factory=list)
    under_way: int = 0

    def sold(self, order: str) -> None:
        self.orders_sold.add(order)

    def turned_away(self, order: str) -> None:
        self.orders_turned_away.add(order)

    def delivered(self, order: str) -> None:
        self.deliveries[order] += 1

    def issued(self, order: str) -> None:
        self.tickets_issued.add(order)

    def count(self, what: str) -> None:
        self.counters[what] += 1

    def vote_acknowledged(self, ballot: str, song: str) -> None:
        self.acknowledged[ballot] = song

    def vote_unknown(self, ballot: str, song: str) -> None:
        self.unknown[ballot] = song

    def vote_not_applied(self, ballot: str, song: str) -> None:
        self.not_applied[ballot] = song

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Counts an operation that was begun and not yet answered."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    @property
    def votes_finished(self) -> int:
        return len(self.acknowledged) + len(self.unknown) + len(self.not_applied)

    def seen_on_wall(self, total: int, stock: int) -> None:
        """Take one event of the wall; a number that runs backwards is a problem."""
        if total < self.wall_total:
            self.problems.append(f"the wall went back from {self.wall_total} to {total} votes")
        if self.wall_stock is not None and stock > self.wall_stock:
            self.problems.append(f"the wall went back from {self.wall_stock} to {stock} tickets")
        self.wall_total, self.wall_stock = total, stock


async def _rows(kv: kvorum.Kv, prefix: str) -> dict[str, object]:
    return {str(entry.key[1]): entry.value async for entry in kv.list(prefix=(prefix,), batch_size=500)}


async def compare(kv: kvorum.Kv, ledger: Ledger, *, votes: int, tickets: int) -> list[str]:
    """Everything in which the database and the program's own list differ; empty if nothing was lost, doubled or
    invented.
    """
    problems = list(ledger.problems)

    def expect(what: str, got: object, wanted: object) -> None:
        if got != wanted:
            problems.append(f"{what}: {got!r}, should be {wanted!r}")

    stock = await kv.get(("ticket", "c001", "stock"))
    orders, issued = await _rows(kv, "order"), await _rows(kv, "issued")
    expect("tickets left", stock.value, 0)
    expect("tickets sold, by the program's list", len(ledger.orders_sold), tickets)
    expect("orders in the database", set(orders), ledger.orders_sold)
    expect("tickets issued", set(issued), ledger.orders_sold)
    expect("tickets issued, counted", (await kv.get(("issuedTotal",))).value, tickets)
    expect("orders told of success", ledger.tickets_issued, ledger.orders_sold)

    ballots, per_song = await _rows(kv, "ballot"), await _rows(kv, "vote")
    total = (await kv.get(("voteTotal",))).value
    lost = [ballot for ballot, song in ledger.acknowledged.items() if ballots.get(ballot) != song]
    ghosts = [ballot for ballot in ballots if ballot not in ledger.acknowledged and ballot not in ledger.unknown]
    expect("acknowledged votes whose ballot is missing or wrong", lost, [])
    expect("ballots that nobody cast, or that were certainly not applied", ghosts, [])
    expect("votes finished", ledger.votes_finished, votes)
    expect("votes counted", total, len(ballots))
    expect("votes per song", per_song, dict(Counter(ballots.values())))
    return problems
