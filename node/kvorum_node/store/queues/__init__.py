"""Queues: messages, who holds them, and what is said about them as a whole (rules F). See `formats` for the rows,
`messages` and `delivery` for how a message comes, moves and goes.

Everything here begins with data version 3 but the nameless life of a message: enqueue, lease, settle, release, with the
default backoff schedule and nothing kept of what could not be delivered. An entry of an older version goes that way,
row for row as it always did.
"""

from typing import Final

from . import delivery, reads, tallies, timers
from .commands import COMMANDS, run
from .delivery import (
    IDLE_KINDS,
    acknowledge,
    acknowledge_known,
    held_delivery,
    lease,
    leases,
    next_due,
    release,
    settle,
)
from .first_leases import write_out
from .sending import enqueue, is_sure
from .tallies import Tallies
from .topics import Copies, publish

FIRST_VERSION: Final = 3
"""Data version from which on queues have names that mean something."""

__all__ = [
    "COMMANDS",
    "FIRST_VERSION",
    "IDLE_KINDS",
    "Copies",
    "Tallies",
    "acknowledge",
    "acknowledge_known",
    "delivery",
    "enqueue",
    "held_delivery",
    "is_sure",
    "lease",
    "leases",
    "next_due",
    "publish",
    "reads",
    "release",
    "run",
    "settle",
    "tallies",
    "timers",
    "write_out",
]
