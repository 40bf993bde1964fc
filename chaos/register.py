"""One key as a sequential register: what an operation may see of it, and what it leaves behind.

Versionstamps are identities here, not numbers. The stamp of a write whose outcome is unknown is not known either: such
a state is *unbound*, and is bound by the first operation that sees it. Unbound states remember which stamps they
cannot have (a check on one failed), and no stamp is bound twice.
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from .history import Effect, Operation, Seen


class Unbound(NamedTuple):
    """The stamp of a write that nobody has seen yet."""

    excluded: frozenset[str] = frozenset()


class State(NamedTuple):
    """Of one key. Absent: value and stamp are None."""

    value: int | None = None
    stamp: str | Unbound | None = None
    bound: frozenset[str] = frozenset()
    """Stamps that unbound states turned out to have."""


ABSENT = State()


class Condition(NamedTuple):
    """A check, and how it went."""

    stamp: str | None
    holds: bool


class Step(NamedTuple):
    """An operation as far as it concerns one key."""

    operation: Operation
    seen: Seen | None
    conditions: tuple[Condition, ...]
    effects: tuple[Effect, ...]
    stamp: str | None
    """None: not known."""


def project(operation: Operation, key: str) -> Step:
    """What an operation that was not denied has to do with a key.

    A refused commit has no effects, and tells of each of its checks whether it held.
    """
    seen = None
    if operation.outcome == "ok" and key in operation.reads:
        seen = operation.seen[operation.reads.index(key)]
    refused = bool(operation.failed_checks)
    conditions = tuple(
        Condition(check.versionstamp, index not in operation.failed_checks)
        for index, check in enumerate(operation.checks)
        if check.key == key
    )
    effects = () if refused else tuple(effect for effect in operation.effects if effect.key == key)
    return Step(operation, seen, conditions, effects, operation.versionstamp)


def after(value: int | None, effects: Iterable[Effect]) -> int | None:
    """The value that effects on one key leave behind."""
    for effect in effects:
        if effect.action == "set":
            value = effect.argument
        elif effect.action == "sum":
            value = (value or 0) + effect.argument
        else:
            value = None
    return value


def take(step: Step, state: State, taken: Set[str]) -> State | None:
    """The state after a step; None if the step is impossible in this state. `taken`: stamps of known commits."""
    if step.seen is not None:
        if step.seen.value != state.value:
            return None
        bound = _narrow(state, Condition(step.seen.versionstamp, True), taken)
        if bound is None:
            return None
        state = bound
    for condition in step.conditions:
        narrowed = _narrow(state, condition, taken)
        if narrowed is None:
            return None
        state = narrowed
    if not step.effects:
        return state
    value = after(state.value, step.effects)
    if value is None:
        return State(None, None, state.bound)
    return State(value, Unbound() if step.stamp is None else step.stamp, state.bound)


def _narrow(state: State, condition: Condition, taken: Set[str]) -> State | None:
    stamp, wanted = state.stamp, condition.stamp
    if not isinstance(stamp, Unbound):
        return state if (stamp == wanted) == condition.holds else None
    if wanted is None:
        return None if condition.holds else state
    possible = wanted not in taken and wanted not in stamp.excluded and wanted not in state.bound
    if condition.holds:
        return State(state.value, wanted, state.bound | {wanted}) if possible else None
    if not possible:
        return state
    return State(state.value, Unbound(stamp.excluded | {wanted}), state.bound)
