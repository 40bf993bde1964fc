"""The queues of a run on real processes, and what is sent to them."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

import kvorum

from .history import Queue, Record, Topic

LEASE: Final = 2_000
"""Milliseconds."""
PATIENT: Final = 30
"""Attempts that no number of kills uses up."""
STRICT: Final = 4
"""Attempts that handlers use up."""
TOPIC: Final = "news"
SCHEDULE: Final = "bell"
PERIOD: Final = 1_000
GROUPS: Final = 64
DEDUP_WINDOW: Final = 3_000
EFFECT: Final = "effect"
"""First part of the key that counts what was done for a message."""
MARK: Final = "sent"
"""First part of the key that a commit of sends leaves."""
NAME: Final = "name"
TROUBLE: Final = "trouble"
"""Of a value: what its handler makes of it, beside acknowledging it."""


@dataclass(frozen=True, slots=True)
class Line:
    """How a consumer process listens to one queue."""

    queue: str
    concurrency: int
    prefetch: int
    at_most_once: bool = False
    renew: bool = True


LINES: Final = (
    Line("work", 16, 8),
    Line("rows", 16, 8),
    Line("once", 4, 0, at_most_once=True),
    Line("poison", 8, 0),
    Line("letters", 4, 0),
    Line("news-a", 8, 8),
    Line("news-b", 8, 0, renew=False),
    Line("bells", 2, 0),
)
RECORDS: Final[tuple[Record, ...]] = (
    Queue("work", LEASE, PATIENT),
    Queue("rows", LEASE, PATIENT),
    Queue("once", LEASE, taken=True),
    Queue("poison", LEASE, STRICT, dead="letters"),
    Queue("letters", LEASE, PATIENT),
    Queue("news-a", LEASE, PATIENT),
    Queue("news-b", LEASE, PATIENT),
    Queue("bells", LEASE, PATIENT),
    Topic(TOPIC, ("news-a", "news-b")),
)


async def define(kv: kvorum.Kv) -> None:
    """Queues, topic and subscriptions. Errors: KvorumError."""
    for record in RECORDS:
        if isinstance(record, Queue):
            await kv.queue(record.name).define(
                lease=record.lease,
                max_attempts=record.max_attempts,
                backoff=[50, 100, 200],
                dead_letters=record.dead or "keep",
            )
    for record in RECORDS:
        if isinstance(record, Topic):
            for queue in record.queues:
                await kv.topic(record.name).subscribe(queue)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message to be sent."""

    queue: str
    name: str
    value: dict[str, Any]
    options: dict[str, Any]
    topic: bool = False


def parcel(rng: Random, name: str) -> Parcel:
    """One message, of any kind. The work of a handler is told it by the message."""
    queue = rng.choices(("work", "rows", TOPIC, "once", "poison"), (12, 6, 3, 1, 1))[0]
    value: dict[str, Any] = {NAME: name}
    options: dict[str, Any] = {}
    if queue == "poison":
        value[TROUBLE] = rng.choice(("reject", "always", "once", ""))
    elif rng.random() < 0.02:
        value[TROUBLE] = rng.choice(("once", "slow", "reject"))
    if queue == "rows" or (queue == "work" and rng.random() < 0.1):
        options["group"] = f"g{rng.randrange(GROUPS)}"
    if queue == "work" and rng.random() < 0.05:
        options["delay"] = rng.choice((100, 500, 2_000))
    elif queue == "work" and rng.random() < 0.1:
        options["dedup_id"] = f"d{rng.randrange(200)}"
        options["dedup_window"] = DEDUP_WINDOW
    return Parcel(queue, name, value, options, topic=queue == TOPIC)
