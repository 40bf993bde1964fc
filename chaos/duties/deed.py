"""One thing that a duty did or saw, kept as a JSON line so that a failed run can be judged again."""

import json
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import kvorum
from kvorum.errors import NoSpace, OutcomeUnknown, StaleLease, Unavailable

from ..history import Outcome

Duty = Literal["bank", "counter", "set", "lock", "watch"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deed:
    """Moments are nanoseconds of the monotonic clock, the same for all processes of a machine."""

    duty: Duty
    process: int
    what: str
    """Depends on the duty: `transfer`, `read`, `add`, `take`, `write`, `release`, `open`, `see`, `told`."""
    invoked: int = 0
    returned: int = 0
    outcome: Outcome = "unknown"
    """As in `history`: a commit that a check refused is `ok`, without a stamp."""
    stamp: str = ""
    """Of the commit, or of what was seen."""
    token: str = ""
    """The versionstamp by which a lock is held."""
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def committed(self) -> bool:
        return self.outcome == "ok" and bool(self.stamp)


async def committed(draft: Deed, call: Awaitable[kvorum.CommitResult]) -> Deed:
    """A commit, as a deed. Errors: what a client must not see."""
    outcome, result, deed = await _made(draft, call)
    stamp = (result.versionstamp or "") if result is not None else ""
    return replace(deed, outcome=outcome, stamp=stamp)


async def seen(draft: Deed, call: Awaitable[T]) -> tuple[Deed, T | None]:
    """A read, as a deed, and what it gave if it came to something."""
    outcome, result, deed = await _made(draft, call)
    return replace(deed, outcome=outcome), result


async def _made(draft: Deed, call: Awaitable[T]) -> tuple[Outcome, T | None, Deed]:
    began = time.monotonic_ns()
    result: T | None = None
    outcome: Outcome
    try:
        result = await call
        outcome = "ok"
    except OutcomeUnknown:
        outcome = "unknown"
    except (Unavailable, StaleLease, NoSpace):
        outcome = "not applied"
    return outcome, result, replace(draft, invoked=began, returned=time.monotonic_ns())


def number(entry: kvorum.Entry) -> int:
    """The value of a counter; 0 if it is absent."""
    return int(entry.value) if isinstance(entry.value, kvorum.KvU64) else 0


def export(deeds: Iterable[Deed], path: Path) -> None:
    """One a line. Errors: OSError."""
    with path.open("w") as out:
        for deed in deeds:
            record = {name: value for name, value in asdict(deed).items() if value not in ((), "")}
            out.write(json.dumps(record, separators=(",", ":")) + "\n")


def load(path: Path) -> Iterator[Deed]:
    """What `export` wrote. Errors: OSError, ValueError, TypeError for anything else."""
    with path.open() as lines:
        for line in lines:
            record = json.loads(line)
            for name in ("names", "numbers"):
                record[name] = tuple(record.get(name, ()))
            yield Deed(**record)


def told(deeds: Sequence[Deed]) -> str:
    """How many of them, by outcome."""
    counts = {outcome: sum(deed.outcome == outcome for deed in deeds) for outcome in ("ok", "not applied", "unknown")}
    return ", ".join(f"{outcome} {count}" for outcome, count in counts.items())
