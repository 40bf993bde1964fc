"""The whole database: do its versionstamps tell one history that everybody saw a prefix of?

Key by key one cannot judge commits and reads of several keys. But each commit has a versionstamp, which is the claim
of the database in which order things happened, so there is hardly anything to search for: replay all acknowledged
commits in that order, and see whether

* each could happen there (its checks hold, and nobody had returned before it was called who comes later), and
* each read, and each commit that was refused by its checks, fits a state between its call and its return, without
  going back behind what was read before it began (strict serializability).

What sees the state without changing it is fitted in as soon as it fits: to wait could only make it harder. So the
replay is linear, but for commits whose outcome is unknown. If a read saw a stamp that no acknowledged commit has (a
*ghost*), one of the unknown commits must stand there, and what it leaves must be what was seen. Others may have
happened without anybody having seen their stamps (a delete has none to be seen): they may be put in anywhere, or
nowhere. Only when nothing fits any more the search turns back and tries that. Each commit that was put in unseen opens
as many ways as there are others left, so there are *quick* attempts first, with at most one unseen commit for
some number of stamps, and only where it touches something that is at stake; and if none of them finds an explanation, a
thorough one, which alone can say that there is none. Runs that leave a mark with each commit know the outcomes in
the end (`audit.resolve`), and then nothing is left to try.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from .history import Operation
from .linearizability import attempts
from .register import after
from .verdict import Verdict

WORK_LIMIT: Final = 400_000
"""States looked at beyond the n that a good history of n commits without unknown ones takes."""
_NEVER: Final = 1 << 63

Row = tuple[int | None, str | None]
"""Value and versionstamp of one key."""


def check(operations: Iterable[Operation], work_limit: int = WORK_LIMIT) -> Verdict:
    """Judge a history as a whole."""
    operations = list(operations)
    problem = _order_problem([operation for operation in operations if operation.committed])
    if problem:
        return Verdict("invalid", problem, 1)
    uncertain = any(operation.outcome == "unknown" for operation in operations)
    work = 0
    for gap, limit in attempts(work_limit):
        verdict = _Replay(operations, limit, gap).run()
        work += verdict.work
        if verdict.ok or not uncertain:
            break
    return replace(verdict, work=work)


def _order_problem(commits: Sequence[Operation]) -> str:
    """The search would find these too, but could not say it so well."""
    by_stamp: dict[str, Operation] = {}
    for commit in commits:
        other = by_stamp.setdefault(commit.versionstamp or "", commit)
        if other is not commit:
            return f"two commits have one versionstamp:\n  {other.to_json()}\n  {commit.to_json()}"
    returned = sorted((commit for commit in commits if commit.returned is not None), key=_return_of)
    newest: Operation | None = None
    at = 0
    for commit in sorted(commits, key=lambda commit: commit.invoked):
        while at < len(returned) and _return_of(returned[at]) < commit.invoked:
            if newest is None or (returned[at].versionstamp or "") > (newest.versionstamp or ""):
                newest = returned[at]
            at += 1
        if newest is not None and (newest.versionstamp or "") > (commit.versionstamp or ""):
            return (
                "a commit was called after another one had returned, and has the smaller versionstamp:"
                f"\n  {newest.to_json()}\n  {commit.to_json()}"
            )
    return ""


class _Slot(NamedTuple):
    """A place in the order of stamps: a known commit, or a ghost."""

    stamp: str
    commit: Operation | None
    rank: int
    """Of the commit among the required operations; -1 for a ghost."""


class _Node(NamedTuple):
    slot: int
    """The next place to be filled."""
    rows: tuple[Row, ...]
    used: int
    """Bit i: unknown commit i was put in."""
    frontier: int
    """All required operations that returned earlier are fitted in (by rank)."""
    fitted: int
    """Bit i: observation frontier + i (by rank) is fitted in. Of commits the place tells that, which saves bits: those
    that only their marks tell of count as returned at the end, far from the frontier."""
    opened: int
    """Observations called before the frontier returned."""
    waiting: tuple[int, ...]
    """Those of them that are not fitted in."""
    until: int = 0
    """Before this place no further unknown commit may be put in unseen (quick attempts only)."""


class _Replay:
    """Required operations have a rank: their place in the order of returns."""

    def __init__(self, operations: Sequence[Operation], work_limit: int, gap: int) -> None:
        """`gap`: stamps from one unseen commit to the next, see `linearizability.GAPS`; 0: the thorough attempt."""
        self._gap = gap
        self._required = sorted(
            (operation for operation in operations if operation.committed or operation.observed), key=_return_of
        )
        self._returned = [_return_of(operation) for operation in self._required]
        ranks = range(len(self._required))
        self._observations = sorted(
            (rank for rank in ranks if not self._required[rank].committed),
            key=lambda rank: self._required[rank].invoked,
        )
        self._unknown = sorted(
            (operation for operation in operations if operation.outcome == "unknown" and operation.effects),
            key=lambda operation: operation.invoked,
        )
        involved = [*self._required, *self._unknown]
        self._keys = sorted({key for operation in involved for key in operation.keys})
        self._column = {key: column for column, key in enumerate(self._keys)}
        slots = {
            operation.versionstamp: _Slot(operation.versionstamp, operation, rank)
            for rank, operation in enumerate(self._required)
            if operation.versionstamp is not None
        }
        self._sightings = self._find_sightings()
        slots |= {stamp: _Slot(stamp, None, -1) for stamp in self._sightings if stamp not in slots}
        self._slots = [slots[stamp] for stamp in sorted(slots)]
        self._work_limit = work_limit
        self._most = work_limit + len(self._slots)
        self._place = {slot.stamp: place for place, slot in enumerate(self._slots)}
        self._place_of = [_NEVER] * len(self._required)
        """By rank; of an observation: never."""
        for place, slot in enumerate(self._slots):
            if slot.commit is not None:
                self._place_of[slot.rank] = place
        self._deepest = _Node(0, ((None, None),) * len(self._keys), 0, 0, 0, 0, ())

    def _find_sightings(self) -> dict[str, dict[str, int | None]]:
        """All stamps that somebody saw, with the values seen under them by key."""
        found: dict[str, dict[str, int | None]] = defaultdict(dict)
        for operation in self._required:
            for key, seen in zip(operation.reads, operation.seen, strict=True):
                if seen.versionstamp is not None:
                    found[seen.versionstamp][key] = seen.value
            for index, condition in enumerate(operation.checks):
                if condition.versionstamp is not None and index not in operation.failed_checks:
                    found[condition.versionstamp]  # that it held is a sighting, though without a value
        return dict(found)

    # ---- the search

    def run(self) -> Verdict:
        node: _Node | None = self._settle(self._deepest)
        assert node is not None
        work = 0
        stack: list[Iterator[_Node]] = []
        looked_at: set[_Node] = set()
        while True:
            if node is not None:
                if self._complete(node):
                    return Verdict("valid", work=work)
                if self._missed(node):
                    pass
                elif self._unknown:
                    if node not in looked_at:
                        looked_at.add(node)
                        stack.append(self._choices(node))
                else:
                    stack = [self._choices(node)]  # at most one, so that there is nothing to come back to
            while stack and (node := next(stack[-1], None)) is None:
                stack.pop()
            if not stack or node is None:
                return Verdict("invalid", self._explain(), work)
            work += 1
            if self._unknown and work > self._most:
                return Verdict("undecided", f"more than {self._work_limit} states; {self._explain()}", work)
            node = self._settle(node)

    def _complete(self, node: _Node) -> bool:
        if self._depth(node) > self._depth(self._deepest):
            self._deepest = node
        return node.slot == len(self._slots) and node.frontier == len(self._required)

    def _missed(self, node: _Node) -> bool:
        """Whether somebody waits for a stamp that has come and gone: it never comes back. To be noticed at once, since
        it may take long until he has to be fitted in."""
        for rank in node.waiting:
            operation = self._required[rank]
            wanted = [(key, seen.versionstamp) for key, seen in zip(operation.reads, operation.seen, strict=True)]
            wanted += [
                (check.key, check.versionstamp)
                for index, check in enumerate(operation.checks)
                if index not in operation.failed_checks
            ]
            for key, stamp in wanted:
                if stamp is not None and self._place[stamp] < node.slot and node.rows[self._column[key]][1] != stamp:
                    return True
        return False

    def _depth(self, node: _Node) -> int:
        return node.slot + node.frontier + node.fitted.bit_count()

    def _settle(self, node: _Node) -> _Node:
        """Fit in every observation that fits now."""
        slot, rows, used, frontier, fitted, opened, old, until = node
        places = self._place_of
        waiting = list(old)
        while True:
            while fitted & 1 or (frontier < len(places) and places[frontier] < slot):
                frontier += 1
                fitted >>= 1
            earliest = self._returned[frontier] if frontier < len(self._returned) else _NEVER
            while opened < len(self._observations):
                rank = self._observations[opened]
                if self._required[rank].invoked > earliest:
                    break
                waiting.append(rank)
                opened += 1
            fitting = [rank for rank in waiting if self._fits(self._required[rank], rows)]
            if not fitting:
                return _Node(slot, rows, used, frontier, fitted, opened, tuple(waiting), until)
            for rank in fitting:
                fitted |= 1 << (rank - frontier)
                waiting.remove(rank)

    def _choices(self, node: _Node) -> Iterator[_Node]:
        earliest = self._returned[node.frontier] if node.frontier < len(self._returned) else _NEVER
        slot = self._slots[node.slot] if node.slot < len(self._slots) else None
        if slot is not None and slot.commit is not None:
            if slot.commit.invoked <= earliest and self._possible(slot.commit, node.rows):
                rows = self._commit(slot.commit, node.rows, slot.stamp)
                if self._as_seen(slot.stamp, rows):
                    yield node._replace(slot=node.slot + 1, rows=rows)
        elif slot is not None:
            for number, unknown in self._usable(node, earliest):
                rows = self._commit(unknown, node.rows, slot.stamp)
                if self._as_seen(slot.stamp, rows):
                    yield node._replace(slot=node.slot + 1, rows=rows, used=node.used | 1 << number)
        if node.slot < node.until:
            return
        at_stake = self._at_stake(slot, node) if self._gap and self._unknown else frozenset()
        until = node.slot + self._gap if self._gap else 0
        for number, unknown in self._usable(node, earliest):
            if not self._gap or any(effect.key in at_stake for effect in unknown.effects):
                rows = self._commit(unknown, node.rows, f"unseen {number}")
                yield node._replace(rows=rows, used=node.used | 1 << number, until=until)

    def _at_stake(self, slot: _Slot | None, node: _Node) -> frozenset[str]:
        """Keys on which an unseen change would be noticed by the next commit, or would help one who waits.

        Nobody saw the stamp of an unseen commit, so all that a reader can have noticed of it is that a key is gone.
        """
        keys: set[str] = set()
        if slot is not None:
            keys.update(self._sightings.get(slot.stamp, ()) if slot.commit is None else slot.commit.keys)
        for rank in node.waiting:
            operation = self._required[rank]
            keys.update(check.key for check in operation.checks)
            for key, seen in zip(operation.reads, operation.seen, strict=True):
                if seen.versionstamp is None and node.rows[self._column[key]][1] is not None:
                    keys.add(key)
        return frozenset(keys)

    def _as_seen(self, stamp: str, rows: Sequence[Row]) -> bool:
        """Whether a commit left what was seen of it. To be checked at once: a reader may be far off."""
        wanted = self._sightings.get(stamp, {})
        return all(rows[self._column[key]] == (value, stamp) for key, value in wanted.items())

    def _usable(self, node: _Node, earliest: int) -> Iterator[tuple[int, Operation]]:
        """Unknown commits that can happen now."""
        for number, unknown in enumerate(self._unknown):
            if unknown.invoked > earliest:
                return
            if not node.used >> number & 1 and self._possible(unknown, node.rows):
                yield number, unknown

    # ---- one operation

    def _possible(self, commit: Operation, rows: Sequence[Row]) -> bool:
        return all(rows[self._column[check.key]][1] == check.versionstamp for check in commit.checks)

    def _fits(self, operation: Operation, rows: Sequence[Row]) -> bool:
        if operation.reads:
            pairs = zip(operation.reads, operation.seen, strict=True)
            return all(rows[self._column[key]] == seen for key, seen in pairs)
        failing = tuple(
            index
            for index, check in enumerate(operation.checks)
            if rows[self._column[check.key]][1] != check.versionstamp
        )
        return failing == operation.failed_checks

    def _commit(self, commit: Operation, rows: tuple[Row, ...], stamp: str) -> tuple[Row, ...]:
        if not commit.effects:
            return rows
        changed = list(rows)
        for effect in commit.effects:
            column = self._column[effect.key]
            value = after(changed[column][0], (effect,))
            changed[column] = (value, None if value is None else stamp)
        return tuple(changed)

    def _explain(self) -> str:
        node = self._deepest
        state = ", ".join(
            f"{key} = {value} at {stamp}" for key, (value, stamp) in zip(self._keys, node.rows, strict=True)
        )
        lines = [f"after {node.slot} of {len(self._slots)} commits the state was {state}"]
        if node.slot < len(self._slots):
            slot = self._slots[node.slot]
            next_one = "a ghost: nobody acknowledged it" if slot.commit is None else slot.commit.to_json()
            lines.append(f"the next commit is at {slot.stamp}: {next_one}")
        if node.frontier < len(self._required):
            lines.append(f"but this must come first: {self._required[node.frontier].to_json()}")
        lines += [f"  waiting: {self._required[rank].to_json()}" for rank in node.waiting[:8]]
        return "\n".join(lines)


def _return_of(operation: Operation) -> int:
    return _NEVER if operation.returned is None else operation.returned
