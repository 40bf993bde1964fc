"""What was done to queues and what came of it: a list of records, kept as JSON lines so that a run can be judged again.

Places in the log are the order of everything: a versionstamp and a lease id begin with the index of their entry. Hence
most of what is promised can be judged exactly, whatever the clocks say; only *too early* and *too late* need times.
Those are nanoseconds of one monotonic clock of all processes.

Ids and stamps are hex digits: message 24, lease 24, versionstamp 20.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Outcome = Literal["ok", "stale", "not applied", "unknown"]
"""`ok`: done. `stale`: refused, because the lease (or the message) was not there any more. `not applied`: certainly
without effect. `unknown`: perhaps done, once, at any time after the call."""
Verdict = Literal["ack", "retry", "reject", "return", "extend"]
Letters = Literal["keep", "drop"]


@dataclass(frozen=True, slots=True)
class Queue:
    """What was defined. `dead` names the dead letter queue, if letters go to one."""

    name: str
    lease: int
    """Milliseconds."""
    max_attempts: int = 6
    least_attempts: int = 0
    """Where somebody changes that meanwhile: the fewest and the most; 0 = it stays."""
    letters: Letters = "keep"
    dead: str = ""
    ordered: bool = False
    """Messages without a group are one group."""
    purged: bool = False
    """Somebody deletes its messages or its dead letters at will: what is not there proves nothing."""
    requeued: bool = False
    """Dead letters come again, as new messages of the same name."""
    taken: bool = False
    """Its consumers take messages at most once."""
    unhurried: bool = False
    """It is paused at times, or nobody may have room: nothing comes too late."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the queues that get a copy of each of its messages, all the time."""

    name: str
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """One message of a commit; to a queue or to a topic."""

    name: str
    """What its payload says; no other send has it."""
    queue: str
    invoked: int
    returned: int | None
    outcome: Outcome
    topic: bool = False
    """`queue` is a topic."""
    group: str | None = None
    dedup: str = ""
    window: int = 0
    """Milliseconds for which the id is remembered; 0 = until the message is done."""
    delay: int = 0
    ttl: int = 0
    stamp: str = ""
    """Of the commit, if `ok`."""
    message: str = ""
    """Its id, if `ok`; of the earlier one, if a duplicate."""
    duplicate: bool = False
    """Not taken, since the queue remembered its id."""
    mark: str = ""
    """A key that its commit has written, by which the outcome can be looked up in the end."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A lease, as its consumer got it (or as the log granted it)."""

    message: str
    name: str
    queue: str
    lease: str
    attempt: int
    consumer: str
    at: int
    group: str | None = None
    taken: bool = False
    """At most once: it is gone already."""


@dataclass(frozen=True, slots=True)
class Settle:
    """A verdict about a message in hand."""

    lease: str
    verdict: Verdict
    invoked: int
    returned: int | None
    outcome: Outcome
    stamp: str = ""
    """Of its commit, if `ok`."""
    delay: int | None = None
    """Milliseconds until the next attempt, or by which the lease is extended."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A consumer was killed, or let its connection go. It comes back under another name, or goes on with its leases."""

    consumer: str
    at: int


@dataclass(frozen=True, slots=True)
class Office:
    """A leader has taken office, at this time at the latest."""

    at: int


@dataclass(frozen=True, slots=True)
class Change:
    """Of a message in nobody's hands."""

    message: str
    kind: Literal["cancel", "reschedule"]
    invoked: int
    returned: int | None
    outcome: Outcome
    stamp: str = ""
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """Found in the end: what a message's acknowledgements have written in the same commit, a counter of its own."""

    message: str
    count: int
    stamp: str
    """Of the last one."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Found in the end: a dead letter; `origin` is the message's id before it came to a dead letter queue."""

    message: str
    name: str
    queue: str
    attempts: int
    origin: str = ""
    origin_queue: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """Found in the end: a message that is still there."""

    name: str
    queue: str


@dataclass(frozen=True, slots=True)
class Ticks:
    """A recurring message that stands for each moment from `first` to `last`, `period` milliseconds apart. Deliveries
    of it have `NAME@MOMENT` as their names."""

    name: str
    queue: str
    first: int
    last: int
    period: int


Record = Queue | Topic | Send | Delivery | Settle | Loss | Office | Change | Effect | Letter | Left | Ticks
_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (Queue, Topic, Send, Delivery, Settle, Loss, Office, Change, Effect, Letter, Left, Ticks)
}


def index(place: str) -> int:
    """The index (and stamp base) of the entry that an id, a lease or a versionstamp comes from."""
    return int(place[:16], 16)


def to_json(record: Record) -> str:
    """One line, without what is as always."""
    defaults = {one.name: one.default for one in record.__dataclass_fields__.values()}
    fields = {name: value for name, value in asdict(record).items() if value != defaults[name]}
    return json.dumps([type(record).__name__, fields], separators=(",", ":"))


def from_json(line: str) -> Record:
    """Errors: ValueError, KeyError, TypeError for what `to_json` has not written."""
    kind, fields = json.loads(line)
    if kind == "Topic":
        fields["queues"] = tuple(fields["queues"])
    record: Record = _KINDS[kind](**fields)
    return record


def save(records: Iterable[Record], path: Path) -> None:
    """A record a line. Errors: OSError."""
    with path.open("w") as out:
        for record in records:
            out.write(to_json(record) + "\n")


def load(path: Path) -> Iterator[Record]:
    """A last line that is cut off belongs to a process that was killed while it wrote. Errors: OSError, ValueError."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield from_json(line)


@dataclass
class History:
    """Records by their kind."""

    queues: dict[str, Queue] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    offices: list[Office] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    ticks: list[Ticks] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Record]) -> "History":
        """Sort records."""
        found = cls()
        for record in records:
            found._add(record)
        return found

    def _add(self, record: Record) -> None:
        match record:
            case Queue():
                self.queues[record.name] = record
            case Topic():
                self.topics[record.name] = record
            case Effect():
                self.effects[record.message] = record
            case _:
                lists: dict[type, list[Any]] = {
                    Send: self.sends,
                    Delivery: self.deliveries,
                    Settle: self.settles,
                    Loss: self.losses,
                    Office: self.offices,
                    Change: self.changes,
                    Letter: self.letters,
                    Left: self.left,
                    Ticks: self.ticks,
                }
                lists[type(record)].append(record)
