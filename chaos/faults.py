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
    "deaf",
    "dumb",
    "pair",
    "split",
    "reset",
    "flap",
    "slow",
    "lossy",
    "power",
    "power-two",
    "power-all",
    "hang",
    "full",
    "slow-sync",
    "failing-sync",
    "clock-forward",
    "clock-back",
    "backup-restart",
    "snapshot-restart",
    "version",
    "change",
]
Category = Literal[
    "kills", "pauses", "cuts", "links", "power-cuts", "bad-disks", "syncs", "clocks", "restarts", "versions", "changes"
]

KINDS: Final[Mapping[Category, tuple[Fault, ...]]] = {
    # kill -9 of any node, of the leader, of two of three, of all
    "kills": ("kill", "leader", "majority", "all"),
    # SIGSTOP for less or more than an election timeout
    "pauses": ("pause",),
    # The leader without its peers; a node without its cable; one that does not hear, or is not heard; two nodes that do
    # not hear each other; the network in two, clients on both sides; connections that break again and again; ways that
    # are cut and whole, over and over.
    "cuts": ("isolate", "unplug", "deaf", "dumb", "pair", "split", "reset", "flap"),
    # Packets that come late, and packets that do not come
    "links": ("slow", "lossy"),
    # Of one node, of two, of all at once
    "power-cuts": ("power", "power-two", "power-all"),
    # A disk on which every write waits; one without any room
    "bad-disks": ("hang", "full"),
    # Syncs that take long; one that fails
    "syncs": ("slow-sync", "failing-sync"),
    # The wall clock of one node jumps, and jumps back after a while
    "clocks": ("clock-forward", "clock-back"),
    # kill -9 of a node that makes a backup, and of one end of a snapshot under way
    "restarts": ("backup-restart", "snapshot-restart"),
    # A node goes on with the code of another version, or comes back from it
    "versions": ("version",),
    # A fourth member comes, and one of the four goes
    "changes": ("change",),
}
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
NEED: Final[Mapping[Category, str]] = {
    "cuts": "net",
    "links": "links",
    "power-cuts": "disks",
    "bad-disks": "disks",
    "syncs": "shim",
    "clocks": "shim",
    "restarts": "shim",
    "versions": "other",
}
"""What must be there for some of them (see `isolation`)."""
HITS: Final[Mapping[Category, str]] = {
    "kills": "processes killed",
    "pauses": "processes that stood still",
    "cuts": "segments sent again, or connections broken",
    "links": "packets late, or lost",
    "power-cuts": "disks that lost what was not synced",
    "bad-disks": "writes that waited, or were refused",
    "syncs": "syncs that were slow, or failed",
    "clocks": "wrong times told to a node",
    "restarts": "backups or snapshots under way at the kill",
    "versions": "nodes that changed their version",
    "changes": "changes of members",
}
"""What is counted to prove that faults do something."""
MAJORITY_STAYS: Final[frozenset[Fault]] = frozenset(get_args(Fault)) - {
    *("majority", "all", "power-two", "power-all", "snapshot-restart")
}
"""Faults that leave more than half of the nodes alone: service goes on. In the last one of the others a node has lost
its folder, and the one that sends it a snapshot may be killed."""
AT_THE_LEADER: Final[tuple[Fault, ...]] = ("kill", "leader", "pause", "isolate", "unplug", "power")
"""Faults after whose beginning a leader that was struck is of no use any more: the time to the next one is measured."""
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
