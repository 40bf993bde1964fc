"""The kinds of faults, and in which order a run has them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Literal, get_args

Fault = Literal[
    "kill",
    "leader",
    "majority",
    "all",
    "pause",
    "isolate",
    "unplug",
    "one-way",
    "pair",
    "split",
    "reset",
    "power",
    "power-two",
    "power-all",
    "hang",
    "full",
]
Category = Literal["kills", "pauses", "cuts", "power-cuts", "bad-disks"]

KINDS: Final[Mapping[Category, tuple[Fault, ...]]] = {
    # kill -9 of any node, of the leader, of two of three, of all
    "kills": ("kill", "leader", "majority", "all"),
    # SIGSTOP for less or more than an election timeout
    "pauses": ("pause",),
    # The leader without its peers; a node without its cable; one direction; two nodes that do not hear each other; the
    # network in two, clients on both sides; connections that break again and again.
    "cuts": ("isolate", "unplug", "one-way", "pair", "split", "reset"),
    # Of one node, of two, of all at once
    "power-cuts": ("power", "power-two", "power-all"),
    # A disk on which every write waits; one without any room
    "bad-disks": ("hang", "full"),
}
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
_OFTEN: Final[Mapping[Fault, int]] = {"kill": 12, "leader": 6, "power": 3}
"""How much more often than others of its category a fault comes when many are wanted: those that the rest of a system
sees most."""


def category(fault: Fault) -> Category:
    """Every fault has one."""
    return next(name for name, kinds in KINDS.items() if fault in kinds)


def by_category(counts: Mapping[str, int]) -> Counter[str]:
    """Sums of counts by fault."""
    sums: Counter[str] = Counter()
    for name, kinds in KINDS.items():
        sums[name] = sum(counts.get(kind, 0) for kind in kinds)
    return sums


def deck(rng: Random, faults: Sequence[Fault], wanted: Mapping[Category, int]) -> list[Fault]:
    """Faults to come, the last one first. Without wishes each kind once; else those that are wanted of each category,
    and each kind of the others once for every 60 of them."""
    if not wanted:
        return rng.sample(faults, len(faults))
    many = max(1, sum(wanted.values()) // 60)
    cards: list[Fault] = []
    for name, kinds in KINDS.items():
        some = [kind for kind in kinds if kind in faults]
        if some and name in wanted:
            number = wanted[name]
            # Each kind at least once, if there is room for it.
            cards += rng.sample(some, min(number, len(some)))
            weights = [_OFTEN.get(kind, 1) for kind in some]
            cards += rng.choices(some, weights, k=max(0, number - len(some)))
        else:
            cards += some * many
    rng.shuffle(cards)
    return cards


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Names of faults or of categories, separated by commas. Errors: ValueError."""
    found: list[Fault] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        match = [fault for fault in FAULTS if fault == name]
        match += [fault for group, kinds in KINDS.items() if group == name for fault in kinds]
        if not match:
            raise ValueError(f"unknown fault {name!r}, expected some of {','.join((*KINDS, *FAULTS))}")
        found += match
    if not found:
        raise ValueError("no fault was named")
    return tuple(dict.fromkeys(found))
