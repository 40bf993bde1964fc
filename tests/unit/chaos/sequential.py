"""Valid histories: a real sequential database, asked by concurrent clients with random delays."""

from dataclasses import dataclass, field, replace
from random import Random

from chaos.history import Check, Effect, Operation, Seen
from tests.unit.chaos.moments import stamp

KEYS = ("a", "b", "c")


@dataclass
class Database:
    """One operation after the other."""

    rows: dict[str, Seen] = field(default_factory=dict)
    commits: int = 0

    def run(self, operation: Operation) -> Operation:
        if operation.reads:
            return replace(operation, seen=tuple(self.row(key) for key in operation.reads))
        failed = tuple(
            index
            for index, check in enumerate(operation.checks)
            if self.row(check.key).versionstamp != check.versionstamp
        )
        if failed:
            return replace(operation, failed_checks=failed)
        self.commits += 1
        at = stamp(self.commits)
        for effect in operation.effects:
            if effect.action == "delete":
                self.rows.pop(effect.key, None)
                continue
            before = self.row(effect.key).value or 0
            value = effect.argument if effect.action == "set" else before + effect.argument
            self.rows[effect.key] = Seen(value, at)
        return replace(operation, versionstamp=at)

    def row(self, key: str) -> Seen:
        return self.rows.get(key, Seen(None, None))


def history(rng: Random, *, processes: int, operations: int, unknown: float, denied: float) -> list[Operation]:
    """What `processes` sequential clients saw; the fractions are of commits whose outcome is unknown or 'not applied'.

    Each operation happens at a random moment of its call; unknown ones at a later one, or never.
    """
    database = Database()
    clocks = [0] * processes
    happening: list[tuple[int, int, Operation]] = []
    finished: list[Operation] = []
    for number in range(operations):
        process = rng.randrange(processes)
        invoked = clocks[process] + rng.randrange(1, 20)
        returned = invoked + rng.randrange(1, 60)
        clocks[process] = returned
        operation = _content(rng, number, Operation(process, "atomic", invoked, returned, "ok"))
        moment = rng.randrange(invoked, returned)
        fate = rng.random()
        if not operation.reads and fate < denied:
            finished.append(replace(operation, outcome="not applied"))
            continue
        if not operation.reads and fate < denied + unknown:
            finished.append(replace(operation, outcome="unknown", returned=rng.choice((None, returned))))
            if rng.random() < 0.5:
                continue
            moment += rng.choice((0, 0, 50, 200))
            happening.append((moment, -1, operation))
            continue
        happening.append((moment, number, operation))
    known = [Seen(None, None)]
    for _, number, operation in sorted(happening, key=lambda item: item[:2]):
        checks = tuple(check._replace(versionstamp=rng.choice(known[-4:]).versionstamp) for check in operation.checks)
        if number < 0:
            database.run(operation)
            continue
        done = database.run(replace(operation, checks=checks))
        known.extend(done.seen)
        finished.append(done)
    rng.shuffle(finished)
    return finished


def _content(rng: Random, number: int, operation: Operation) -> Operation:
    if rng.random() < 0.45:
        return replace(operation, reads=tuple(rng.sample(KEYS, rng.randrange(1, len(KEYS) + 1))))
    effects = []
    for key in rng.sample(KEYS, rng.randrange(1, len(KEYS) + 1)):
        what = rng.random()
        if what < 0.45:
            effects.append(Effect(key, "set", number * 1_000))
        elif what < 0.85:
            effects.append(Effect(key, "sum", rng.randrange(1, 4)))
        else:
            effects.append(Effect(key, "delete"))
    checks = [Check(rng.choice(KEYS), None)] if rng.random() < 0.3 else []
    return replace(operation, effects=tuple(effects), checks=tuple(checks))
