"""The definition, tried out: every order of every subset. For histories of a handful of operations only."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from chaos.history import Operation

Rows = dict[str, tuple[int | None, str | None]]


def explainable(operations: Sequence[Operation], *, by_stamp: bool) -> bool:
    """Whether some sequential order explains a history. `by_stamp`: stamps must grow along it."""
    required = [operation for operation in operations if operation.outcome == "ok"]
    unknown = [operation for operation in operations if operation.outcome == "unknown"]
    seen = {row.versionstamp for operation in required for row in operation.seen}
    seen |= {
        check.versionstamp
        for operation in required
        for at, check in enumerate(operation.checks)
        if at not in operation.failed_checks
    }
    ghosts = sorted(
        at for at in seen if at is not None and at not in {operation.versionstamp for operation in required}
    )
    for chosen in product((False, True), repeat=len(unknown)):
        happened = [operation for operation, yes in zip(unknown, chosen, strict=True) if yes]
        for order in permutations([*required, *happened]):
            if _in_time(order):
                for names in _names(happened, ghosts):
                    if _replays(order, names, by_stamp=by_stamp):
                        return True
    return False


def _in_time(order: Sequence[Operation]) -> bool:
    return not any(
        later.outcome == "ok" and later.returned is not None and later.returned < earlier.invoked
        for at, earlier in enumerate(order)
        for later in order[at + 1 :]
    )


def _names(happened: Sequence[Operation], ghosts: Sequence[str]) -> Iterator[dict[int, str]]:
    """Each unknown commit has the stamp of a ghost, or one that nobody saw."""
    for names in product((*ghosts, ""), repeat=len(happened)):
        used = [name for name in names if name]
        if len(set(used)) == len(used):
            yield {id(operation): name for operation, name in zip(happened, names, strict=True)}


def _replays(order: Sequence[Operation], names: dict[int, str], *, by_stamp: bool) -> bool:
    rows: Rows = {}
    last = ""
    for operation in order:
        failing = tuple(
            at
            for at, check in enumerate(operation.checks)
            if rows.get(check.key, (None, None))[1] != check.versionstamp
        )
        if failing != operation.failed_checks:
            return False
        if failing:
            continue
        for key, row in zip(operation.reads, operation.seen, strict=True):
            if rows.get(key, (None, None)) != row:
                return False
        stamp = operation.versionstamp or names.get(id(operation), "")
        if by_stamp and stamp and not operation.reads:
            if stamp <= last:
                return False
            last = stamp
        for effect in operation.effects:
            if effect.action == "delete":
                rows[effect.key] = (None, None)
            else:
                before = rows.get(effect.key, (None, None))[0] or 0
                value = effect.argument if effect.action == "set" else before + effect.argument
                rows[effect.key] = (value, stamp or f"unseen {id(operation)}")
    return True
