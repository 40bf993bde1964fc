"""What the deeds of all processes may not show. Pure: the same deeds give the same problems.

Each rule follows from strict serializability and from what a caller is told of an outcome: what was acknowledged before
a read began is in it, what was denied is nowhere, what somebody has seen nobody misses later.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from .deed import Deed, Duty
from .doing import ACCOUNTS, LEASE, START

SOONEST: Final = LEASE / 1.1 - 1.0
"""Seconds before which no lock may be lost to its lease: cluster time runs 10 % too fast at most, and a new leader may
set it by what it had fallen behind."""
MOST: Final = 5
"""Problems told of each kind."""


def judge(deeds: Sequence[Deed]) -> dict[Duty, list[str]]:
    """Problems by duty; an empty list for one without any."""
    by_duty: dict[Duty, list[Deed]] = defaultdict(list)
    for deed in deeds:
        by_duty[deed.duty].append(deed)
    return {
        "bank": _bank(by_duty["bank"]),
        "counter": _counter(by_duty["counter"]),
        "set": _sets(by_duty["set"]),
        "lock": _lock(by_duty["lock"]),
        "watch": _watches(by_duty["watch"], by_duty["counter"], by_duty["set"]),
    }


def proves(deeds: Sequence[Deed]) -> list[str]:
    """Duties of which too little came to anything: nothing follows from them."""
    needed: dict[Duty, tuple[str, ...]] = {
        "bank": ("transfer", "read"),
        "counter": ("add", "read"),
        "set": ("add", "read"),
        "lock": ("take", "write"),
        "watch": ("see", "told"),
    }
    done = Counter((deed.duty, deed.what) for deed in deeds if deed.outcome == "ok")
    return [f"{duty}: no {what}" for duty, kinds in needed.items() for what in kinds if not done[duty, what]]


def _bank(deeds: Sequence[Deed]) -> list[str]:
    reads = [deed for deed in deeds if deed.what == "read" and deed.outcome == "ok"]
    wrong = [deed for deed in reads if sum(deed.numbers) != ACCOUNTS * START or min(deed.numbers) < 0]
    return [f"accounts hold {sum(deed.numbers)} and not {ACCOUNTS * START}: {deed}" for deed in wrong[:MOST]]


def _counter(deeds: Sequence[Deed]) -> list[str]:
    adds = [deed for deed in deeds if deed.what == "add" and deed.outcome != "not applied"]
    reads = [deed for deed in deeds if deed.what == "read" and deed.outcome == "ok"]
    return _between(adds, reads) + _never_back(reads)


def _between(adds: Sequence[Deed], reads: Sequence[Deed]) -> list[str]:
    """Each read saw all that was acknowledged before it, and nothing that had not begun."""
    acknowledged = sorted(deed.returned for deed in adds if deed.outcome == "ok")
    begun = sorted(deed.invoked for deed in adds)
    problems = []
    for read in reads:
        least, most = bisect_left(acknowledged, read.invoked), bisect_right(begun, read.returned)
        if not least <= read.numbers[0] <= most:
            problems.append(f"{read.numbers[0]} was read where {least} to {most} can be: {read}")
    return problems[:MOST]


def _never_back(reads: Sequence[Deed]) -> list[str]:
    by_return = sorted(reads, key=lambda read: read.returned)
    returns = [read.returned for read in by_return]
    highest = list(accumulate((read.numbers[0] for read in by_return), max))
    problems = []
    for read in reads:
        before = bisect_left(returns, read.invoked)
        if before and highest[before - 1] > read.numbers[0]:
            problems.append(f"{highest[before - 1]} had been read before: {read}")
    return problems[:MOST]


def _sets(deeds: Sequence[Deed]) -> list[str]:
    problems: list[str] = []
    groups: dict[str, list[Deed]] = defaultdict(list)
    for deed in deeds:
        groups[deed.token].append(deed)
    for group in groups.values():
        adds = {deed.names[0]: deed for deed in group if deed.what == "add"}
        first_seen: dict[str, int] = {}
        """When somebody had certainly been shown it."""
        reads = sorted(
            (deed for deed in group if deed.what == "read" and deed.outcome == "ok"), key=lambda read: read.returned
        )
        for read in reads:
            for name in read.names:
                first_seen.setdefault(name, read.returned)
        for name, deed in adds.items():
            if deed.outcome == "ok":
                first_seen[name] = min(deed.returned, first_seen.get(name, deed.returned))
        for read in reads:
            there = set(read.names)
            missing = {name for name, since in first_seen.items() if since < read.invoked} - there
            invented = {name for name in there if name not in adds or not _may_be_seen(adds[name], read.returned)}
            if missing or invented:
                problems.append(f"{sorted(missing)[:3]} missing, {sorted(invented)[:3]} invented: {_short(read)}")
    return problems[:MOST]


def _may_be_seen(add: Deed, moment: int) -> bool:
    return add.outcome != "not applied" and add.invoked < moment


def _short(deed: Deed) -> str:
    return f"{deed.what} of {deed.process} from {deed.invoked} to {deed.returned}"


def _lock(deeds: Sequence[Deed]) -> list[str]:
    takes = sorted((deed for deed in deeds if deed.what == "take" and deed.committed), key=lambda deed: deed.stamp)
    tokens = [take.stamp for take in takes]
    problems = [f"two owners under {one}" for one, other in pairwise(tokens) if one == other]
    for write in (deed for deed in deeds if deed.what in ("write", "release") and deed.committed):
        newest = bisect_left(tokens, write.stamp) - 1
        if newest < 0 or tokens[newest] != write.token:
            problems.append(f"an owner of {write.token} wrote when the lock was somebody else's: {write}")
    let_go = {deed.token for deed in deeds if deed.what == "release" and deed.outcome != "not applied"}
    for one, other in pairwise(takes):
        apart = (other.returned - one.invoked) / 1e9
        if one.stamp not in let_go and apart < SOONEST:
            problems.append(f"a lock for {LEASE:g} s was taken again after {apart:.2f} s: {one}, {other}")
    writes = [deed for deed in deeds if deed.what == "write"]
    possible = [deed for deed in writes if deed.committed or deed.outcome == "unknown"]
    final = [deed.numbers[0] for deed in deeds if deed.what == "read" and deed.outcome == "ok"]
    least = sum(deed.committed for deed in writes)
    problems += [
        f"{found} guarded writes and not {least} to {len(possible)}"
        for found in final
        if not least <= found <= len(possible)
    ]
    return problems[:MOST]


def _watches(watches: Sequence[Deed], counter: Sequence[Deed], sets: Sequence[Deed]) -> list[str]:
    problems: list[str] = []
    for process in sorted({deed.process for deed in watches}):
        own = [deed for deed in watches if deed.process == process]
        problems += _saw(own, counter)
        problems += _was_told([deed for deed in own if deed.what in ("ready", "told")], sets)
    return problems[:MOST]


def _saw(own: Sequence[Deed], counter: Sequence[Deed]) -> list[str]:
    """A key watch never goes back, shows only values that were there, and comes to the last one."""
    problems = []
    sights = [deed for deed in own if deed.what == "see"]
    begun = sorted(deed.invoked for deed in counter if deed.what == "add" and deed.outcome != "not applied")
    values = _values(counter)
    for one, other in pairwise(sights):
        if other.stamp < one.stamp or other.numbers[0] < one.numbers[0]:
            problems.append(f"a watch went back from {one} to {other}")
    for sight in sights:
        if sight.numbers[0] > bisect_right(begun, sight.returned):
            problems.append(f"a watch showed more than was added: {sight}")
        if values.get(sight.stamp, sight.numbers[0]) != sight.numbers[0]:
            problems.append(f"a watch showed another value than a read at the same versionstamp: {sight}")
    for opened in [deed for deed in own if deed.what == "open"][:1]:
        last = max((deed.stamp for deed in counter if deed.process == opened.process), default="")
        if last > (sights[-1].stamp if sights else ""):
            problems.append(f"a watch of {opened.process} did not come to the last change, at {last}")
    return problems


def _values(counter: Iterable[Deed]) -> Mapping[str, int]:
    return {deed.stamp: deed.numbers[0] for deed in counter if deed.what == "read" and deed.stamp}


def _was_told(own: Sequence[Deed], sets: Iterable[Deed]) -> list[str]:
    """A range watch tells each change once, in order, and leaves none out."""
    telling = [deed for deed in own if deed.what == "told"]
    problems = [
        f"a watch told {other.stamp} after {one.stamp}" for one, other in pairwise(telling) if other.stamp <= one.stamp
    ]
    counts = Counter(name for deed in telling for name in deed.names)
    problems += [f"a watch told {name} {count} times" for name, count in counts.items() if count > 1]
    ready = min((deed.returned for deed in own if deed.what == "ready"), default=None)
    adds = {deed.names[0]: deed for deed in sets if deed.what == "add"}
    for name in counts:
        if name not in adds or adds[name].outcome == "not applied":
            problems.append(f"a watch told {name}, which nobody added")
    ends = [deed.stamp for deed in telling[-1:]]
    for name, add in adds.items():
        after = ready is not None and add.invoked > ready and ends and add.stamp <= ends[0]
        if add.committed and after and not counts[name]:
            problems.append(f"a watch left out {name} at {add.stamp}")
    stamps = {name: deed.stamp for deed in telling for name in deed.names}
    problems += [
        f"a watch told {name} at {stamps[name]}, and it was at {adds[name].stamp}"
        for name in stamps
        if name in adds and adds[name].committed and adds[name].stamp != stamps[name]
    ]
    own_last = max((deed.stamp for deed in adds.values() if own and deed.process == own[0].process), default="")
    if own and own_last > max(ends, default=""):
        problems.append(f"a watch did not come to the last change at {own_last}")
    return problems
