"""Which node to try next, and how long to wait before. No I/O; clock and randomness are passed in.

Nodes tell clients who leads, by its id and its advertised address: its member entry's client address. A client behind
an address translation, outside of a container network say, cannot reach that address, but it was given others that lead
to the same nodes. So a leader is looked for where the client has met its id before, then at the advertised address,
and once such an address has failed, at given ones where nobody has been met yet.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

Address = tuple[str, int]

FIRST_DELAY: Final = 0.05
MAX_DELAY: Final = 1.0
AVOIDED: Final = 2.0
"""Seconds for which a hint to an address that has just failed is not followed:
nodes learn later than clients that a leader died.
"""


_PORT_DIGITS: Final = 5


def name(address: Address) -> str:
    """`host:port` as gRPC and people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(text: str) -> Address | None:
    """The address in a node's hint; None if it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > _PORT_DIGITS:
        return None
    if not 0 < int(port) < 65_536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


class Route:
    """Addresses in turn, hints first.

    After a failure the next try comes at once, then after a growing, jittered delay of ≤ 1 s.
    """

    def __init__(self, addresses: Sequence[Address], clock: Callable[[], float], rng: random.Random) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._clock = clock
        self._rng = rng
        # Clients that were given the same list should not all knock at the same door.
        self._turn = rng.randrange(len(self._addresses))
        self._hint: Address | None = None
        self._failures = 0
        self._failed_at: dict[Address, tuple[float, int]] = {}
        """When an address failed, and the newest term that was known then."""
        self._term = 0
        self._met: dict[Address, str] = {}
        """Which node was met last at an address that was given. Replaced, never changed: other threads read it."""
        self._advertised_fail = False
        """The last try of an address that nodes told of and nobody gave was in vain."""
        self._problems: dict[Address, str] = {}
        self._final: set[Address] = set()

    @property
    def addresses(self) -> Sequence[Address]:
        """What the client was given, without repeats."""
        return self._addresses

    def next(self) -> Address:
        """The hinted address, else the next in turn; one that failed a moment ago only if all did."""
        if self._hint is not None:
            hint, self._hint = self._hint, None
            return hint
        count = len(self._addresses)
        skipped = next((n for n in range(count) if self._rested(self._addresses[(self._turn + n) % count])), 0)
        address = self._addresses[(self._turn + skipped) % count]
        self._turn = (self._turn + skipped + 1) % count
        return address

    @property
    def rounds(self) -> int:
        """How often all addresses failed since one succeeded, about."""
        return self._failures // len(self._addresses)

    def delay(self) -> float:
        """Seconds to wait before the next try."""
        if self._failures <= 1:
            return 0.0
        return min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 2, 16)) * (0.5 + self._rng.random() / 2)

    def usable(self, hint: Address, term: int) -> bool:
        """Whether the hint to the leader of a term is worth following.

        Not if that address failed a moment ago, unless it was elected since.
        """
        return self._rested(hint) or term > self._failed_at[hint][1]

    def _rested(self, address: Address) -> bool:
        return address not in self._failed_at or self._clock() - self._failed_at[address][0] >= AVOIDED

    def met(self, address: Address, node_id: str) -> None:
        """A node said who it is, and refused nothing."""
        self._final.discard(address)
        if address in self._addresses and self._met.get(address) != node_id:
            self._met = {**self._met, address: node_id}

    def known_place(self, node_id: str, advertised: Address | None) -> Address | None:
        """Where a node is: at a given address if it was met there, else where it is told to be. For any thread."""
        if advertised in self._addresses:
            return advertised
        return next((address for address, met in self._met.items() if met == node_id), advertised)

    def place(self, node_id: str, advertised: Address | None) -> Address | None:
        """Where to try a node next: as `known_place`, as long as that promises something."""
        known = self.known_place(node_id, advertised)
        if known is None or advertised is None:
            return known
        if known != advertised:
            moved = not self._rested(known) and self._rested(advertised) and not self._advertised_fail
            return advertised if moved else known
        if known in self._addresses or not self._advertised_fail:
            return known
        strangers = (one for one in self._addresses if one not in self._met and self._rested(one))
        return next(strangers, known)

    def follow(self, hint: Address) -> None:
        """The next address is this one.

        Counts as a failure, so that nodes that point at each other are not asked in a tight loop.
        """
        self._hint = hint
        self._failures += 1

    def saw_term(self, term: int) -> None:
        """A node told of a leader of this term."""
        self._term = max(self._term, term)

    def failed(self, address: Address, problem: str, *, final: bool = False, dead: bool = True) -> None:
        """An attempt failed. `final`: the node says that trying again is pointless; not `dead`: it answers at least."""
        self._failures += 1
        if dead:
            self._failed_at[address] = self._clock(), self._term
        self._advertised_fail |= dead and address not in self._addresses
        if address in self._addresses:
            self._problems[address] = problem
            (self._final.add if final else self._final.discard)(address)
        elif len(self._failed_at) > len(self._addresses) + 64:  # hints are the nodes' to choose, memory is ours
            self._failed_at = {known: at for known, at in self._failed_at.items() if known in self._addresses}

    def succeeded(self, address: Address) -> None:
        """The node at this address did its work."""
        self._failures = 0
        self._advertised_fail &= address in self._addresses
        self._failed_at.pop(address, None)
        self._problems.pop(address, None)
        self._final.discard(address)

    @property
    def hopeless(self) -> bool:
        """Every address gave a final refusal."""
        return len(self._final) == len(self._addresses)

    def refusals(self) -> str:
        """As `problems`, when it is `hopeless`: what several nodes say alike is said once."""
        who: dict[str, list[str]] = {}
        for address in self._addresses:
            who.setdefault(self._problems[address], []).append(name(address))
        return "; ".join(f"{', '.join(names)}: {problem}" for problem, names in who.items())

    def problems(self) -> str:
        """What happened at each address, in one line; empty if nothing is wrong."""
        if not self._problems:
            return ""
        return "; ".join(
            f"{name(address)}: {self._problems.get(address, 'not answered yet')}" for address in self._addresses
        )
