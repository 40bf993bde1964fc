"""Whether queues kept what they promise: each check looks for single facts that no sound queue can have brought about.

Nothing is searched for or tried out, so a history of a million records takes seconds, and a verdict is never undecided:
what can be explained by what the records do not say (outcomes unknown, leases that never reached anybody) is no
violation.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from . import leases, sends, timing
from .case import STRICT, Case, Terms, Violation
from .history import History

CHECKS: Final[tuple[Callable[[Case], Iterator[Violation]], ...]] = (
    leases.one_at_a_time,
    leases.ended_once,
    leases.cancelled,
    leases.in_order,
    leases.attempts,
    leases.letters,
    leases.taken_once,
    sends.effects,
    sends.nothing_lost,
    sends.nothing_invented,
    sends.no_duplicates,
    timing.not_early,
    timing.not_late,
)


def check(history: History, terms: Terms = STRICT) -> list[Violation]:
    """Everything that is wrong."""
    case = Case(history, terms)
    return [violation for one in CHECKS for violation in one(case)]


def count(history: History) -> Counter[str]:
    """How much there was to be judged."""
    leased = {delivery.lease: delivery for delivery in history.deliveries}
    messages = {delivery.message for delivery in leased.values()}
    return Counter(
        {
            "sends": sum(send.outcome == "ok" for send in history.sends),
            "unknown sends": sum(send.outcome == "unknown" for send in history.sends),
            "duplicates": sum(send.duplicate for send in history.sends),
            "messages": len(messages),
            "deliveries": len(leased),
            "redeliveries": len(leased) - len(messages),
            "effects": len(history.effects),
            "letters": len(history.letters),
            "groups": len({(one.queue, one.group) for one in leased.values() if one.group is not None}),
            "stale": sum(settle.outcome == "stale" for settle in history.settles),
            "unknown settles": sum(settle.outcome == "unknown" for settle in history.settles),
            "losses": len(history.losses),
            "cancelled": sum(change.kind == "cancel" and change.outcome == "ok" for change in history.changes),
            "rescheduled": sum(change.kind == "reschedule" and change.outcome == "ok" for change in history.changes),
        }
    )
