"""Short names for hand-made histories. Times are small numbers, versionstamps are written as small numbers too."""

from chaos.history import Check, Effect, Operation, Outcome, Seen
from kvorum.entry import STAMP_DIGITS


def stamp(number: int | None) -> str | None:
    return None if number is None else f"{number:0{STAMP_DIGITS}x}"


def read(invoked: int, returned: int, *seen: tuple[str, int | None, int | None], outcome: Outcome = "ok") -> Operation:
    """`seen`: key, value, versionstamp."""
    return Operation(
        process=0,
        kind="get",
        invoked=invoked,
        returned=returned,
        outcome=outcome,
        reads=tuple(key for key, _, _ in seen),
        seen=tuple(Seen(value, stamp(at)) for _, value, at in seen) if outcome == "ok" else (),
    )


def commit(
    invoked: int,
    returned: int,
    at: int | None,
    *effects: Effect,
    checks: tuple[tuple[str, int | None], ...] = (),
    failed: tuple[int, ...] = (),
    outcome: Outcome = "ok",
) -> Operation:
    """`at`: its versionstamp."""
    return Operation(
        process=0,
        kind="atomic",
        invoked=invoked,
        returned=returned,
        outcome=outcome,
        checks=tuple(Check(key, stamp(number)) for key, number in checks),
        effects=effects,
        versionstamp=stamp(at),
        failed_checks=failed,
    )


def put(key: str, value: int) -> Effect:
    return Effect(key, "set", value)


def add(key: str, number: int) -> Effect:
    return Effect(key, "sum", number)


def drop(key: str) -> Effect:
    return Effect(key, "delete")
