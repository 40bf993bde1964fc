"""Key by key: is there an order of the operations, each at a moment between its call and its return, that explains
everything that was seen?

A depth-first search as Wing and Gong describe it, with Lowe's memory of states that were looked at already. Keys are
independent in this question, so each is searched by itself. Versionstamps are only names here (`register`); that they
grow is judged by `serializability`. But they are good *hints*: quick attempts look only at orders in which they grow,
and in which unknown writes that nobody saw are far apart: at most one for each `GAPS` known ones. An order that one of
them finds is an explanation like any other. That there is none only the thorough attempt can say, for which stamps
merely decide what is tried first.

* An operation can come next if no other one that must come had returned before it was called.
* One that sees the state without changing it is taken as soon as it fits: to wait could only make it harder.
* A write whose outcome is unknown may come at any time after its call, or never. These are tried last, unless
  somebody waits for a stamp that no known commit has.
* What was denied (`not applied`) takes no part: if its effect is seen, nothing explains it.

A state is (operations taken, register). The operations taken are an index, below which all are, a bit set above it,
and a bit set of unknown ones. Rejected: the breadth-first variant that keeps all states at each return, which doubles
with each unknown write whether or not anybody ever sees it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from .history import Operation
from .register import ABSENT, State, Step, Unbound, project, take
from .verdict import Verdict

WORK_LIMIT: Final = 400_000
"""States looked at for each key beyond the n that a good history of n operations takes."""
GAPS: Final = (1, 8, 64)
"""Known commits from one unknown write to the next, in one quick attempt after the other. Where something does not fit
an unknown write is missing further up, and all places for it are tried: one at a time takes a product of their number
and that of unknown writes, two at a time its square."""
TASTE: Final = 16
"""Each quick attempt first gets this part of the work limit: mostly one of them needs hardly any."""
_NEVER: Final = 1 << 63
_LAST: Final = "~"
"""Greater than any versionstamp."""


def check(operations: Iterable[Operation], work_limit: int = WORK_LIMIT) -> Verdict:
    """Judge a history key by key. `undecided` if the work limit of a key did not suffice, and no key is wrong."""
    by_key: dict[str, list[Step]] = defaultdict(list)
    for operation in operations:
        if operation.outcome == "not applied" or (operation.outcome == "unknown" and not operation.effects):
            continue
        for key in operation.keys:
            by_key[key].append(project(operation, key))
    work = 0
    undecided: Verdict | None = None
    for key in sorted(by_key):
        for gap, limit in attempts(work_limit):
            verdict = _Search(key, by_key[key], limit, gap).run()
            work += verdict.work
            if verdict.ok:
                break
        if verdict.state == "invalid":
            return Verdict("invalid", verdict.explanation, work)
        if verdict.state == "undecided":
            undecided = verdict
    if undecided is not None:
        return Verdict("undecided", undecided.explanation, work)
    return Verdict("valid", work=work)


def attempts(work_limit: int) -> list[tuple[int, int]]:
    """Gaps and work limits, in their order; the last one is thorough."""
    return [(gap, limit) for limit in (work_limit // TASTE, work_limit) for gap in GAPS] + [(0, work_limit)]


class _Node(NamedTuple):
    base: int
    """All required steps below have been taken."""
    mask: int
    """Bit i: step base + i has been taken."""
    used: int
    """Bit i: optional step i has been taken."""
    state: State
    commits: int = 0
    """Required steps with effects among those taken."""
    until: int = 0
    """Before so many commits no further optional write may come (quick attempts only)."""


class _Search:
    """Over the steps of one key."""

    def __init__(self, key: str, steps: Sequence[Step], work_limit: int, gap: int) -> None:
        """`gap`: see `GAPS`; 0: the thorough attempt."""
        self._key = key
        self._gap = gap
        self._work_limit = work_limit
        self._most = work_limit + len(steps)
        ordered = sorted(steps, key=lambda step: step.operation.invoked)
        self._required = [step for step in ordered if step.operation.outcome == "ok"]
        known = {stamp for step in self._required for stamp in (step.stamp, *_proven(step))}
        # A client can only have checked on a stamp that somebody had been given before.
        self._optional = [
            step
            for step in ordered
            if step.operation.outcome == "unknown" and step.effects and known.issuperset(_proven(step))
        ]
        self._invoked = [step.operation.invoked for step in self._required]
        self._returned = [_return_of(step) for step in self._required]
        self._order = sorted(step.stamp or "" for step in self._required if step.effects)
        self._taken = frozenset(step.stamp for step in self._required if step.stamp is not None)
        self._sightings = {step.seen.versionstamp: step.seen.value for step in self._required if step.seen is not None}
        self._deepest = _Node(0, 0, 0, ABSENT)

    def run(self) -> Verdict:
        root = self._settle(_Node(0, 0, 0, ABSENT))
        if self._complete(root):
            return Verdict("valid", work=1)
        work = 1
        looked_at = {root}
        stack = [self._choices(root)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            work += 1
            if work > self._most:
                return Verdict("undecided", f"more than {self._work_limit} states; {self._explain()}", work)
            node = self._settle(node)
            if self._complete(node):
                return Verdict("valid", work=work)
            if node not in looked_at:
                looked_at.add(node)
                stack.append(self._choices(node))
        return Verdict("invalid", self._explain(), work)

    def _complete(self, node: _Node) -> bool:
        if _depth(node) > _depth(self._deepest):
            self._deepest = node
        return node.base == len(self._required)

    def _open(self, node: _Node) -> tuple[list[int], int]:
        """Required steps that can come next as far as time is concerned, and the time by which one must."""
        found = []
        earliest = _NEVER
        at = node.base
        while at < len(self._required) and self._invoked[at] <= earliest:
            if not node.mask >> (at - node.base) & 1:
                found.append(at)
                earliest = min(earliest, self._returned[at])
            at += 1
        return [at for at in found if self._invoked[at] <= earliest], earliest

    def _settle(self, node: _Node) -> _Node:
        """Take everything that fits and changes nothing."""
        while True:
            found, _ = self._open(node)
            before = node
            for at in found:
                step = self._required[at]
                if not step.effects and take(step, node.state, self._taken) == node.state:
                    node = _with(node, at, step, node.state)
            if node is before:
                return node

    def _choices(self, node: _Node) -> Iterator[_Node]:
        found, earliest = self._open(node)
        waited_for = min((self._waited_for(at) for at in found), default=_LAST)
        later: list[_Node] = []
        for stamp, at in sorted((self._required[at].stamp or "", at) for at in found):
            step = self._required[at]
            if self._gap and step.effects and stamp != self._order[node.commits]:
                continue
            state = take(step, node.state, self._taken)
            if state is not None and self._as_seen(state):
                if stamp > waited_for:
                    later.append(_with(node, at, step, state))
                else:
                    yield _with(node, at, step, state)
        for number, step in enumerate(self._optional):
            if step.operation.invoked > earliest or node.commits < node.until:
                break
            if not node.used >> number & 1:
                state = take(step, node.state, self._taken)
                if state is not None:
                    until = node.commits + self._gap if self._gap else 0
                    yield node._replace(used=node.used | 1 << number, state=state, until=until)
        yield from later

    def _as_seen(self, state: State) -> bool:
        """Whether a commit left what was seen of it. To be checked at once: a reader may be far off."""
        return isinstance(state.stamp, Unbound) or self._sightings.get(state.stamp, state.value) == state.value

    def _waited_for(self, at: int) -> str:
        """The stamp that a step must see, if no known commit has it: an unknown one must come first."""
        return min((stamp for stamp in _proven(self._required[at]) if stamp not in self._taken), default=_LAST)

    def _explain(self) -> str:
        node = self._deepest
        found, _ = self._open(node)
        waiting = "\n".join(f"  {self._required[at].operation.to_json()}" for at in found[:8])
        return (
            f"key {self._key}: after {_depth(node)} of {len(self._required)} operations it was"
            f" {node.state.value} at {node.state.stamp}, and none of these can come next:\n{waiting}"
        )


def _proven(step: Step) -> list[str]:
    """Stamps that the key must have had for the step to be possible."""
    stamps = [condition.stamp for condition in step.conditions if condition.holds]
    if step.seen is not None:
        stamps.append(step.seen.versionstamp)
    return [stamp for stamp in stamps if stamp is not None]


def _return_of(step: Step) -> int:
    return _NEVER if step.operation.returned is None else step.operation.returned


def _depth(node: _Node) -> int:
    return node.base + node.mask.bit_count()


def _with(node: _Node, at: int, step: Step, state: State) -> _Node:
    base, mask = node.base, node.mask | 1 << (at - node.base)
    while mask & 1:
        base += 1
        mask >>= 1
    commits = node.commits + bool(step.effects)
    # One that somebody has seen now is not guessed any more.
    seen = not step.effects and state != node.state
    return _Node(base, mask, node.used, state, commits, 0 if seen or commits >= node.until else node.until)
