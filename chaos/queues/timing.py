"""Too early, and too late."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from .case import MAYBE, Case, Violation
from .history import Change, Delivery, index

GRACE: Final = 1_000
"""Milliseconds beyond the lease within which what was lost is delivered again."""


def not_early(case: Case) -> Iterator[Violation]:
    """Never before its delay is over: that of its send, of a retry, or of the last change of its time."""
    moved: dict[str, list[Change]] = {}
    for change in case.history.changes:
        if change.kind == "reschedule" and change.outcome in MAYBE:
            moved.setdefault(change.message, []).append(change)
    for message, deliveries in case.messages.items():
        changes = moved.get(message, [])
        first = deliveries[0]
        send = case.sends.get(first.name)
        known = send is not None and (send.topic or send.message in ("", message)) and first.queue in case.copies(send)
        if send is not None and known and not changes:
            passed = case.between(send.stamp, send.invoked, first.lease, first.at)
            if passed < send.delay:
                yield _early(first, passed, send.delay)
        for change in changes:
            yield from _not_before(case, change, changes, deliveries)
        for before, after in pairwise(deliveries):
            yield from _retry(case, before, after, changes)


def _not_before(
    case: Case, change: Change, changes: Sequence[Change], deliveries: Sequence[Delivery]
) -> Iterator[Violation]:
    """The first lease after a change, unless there was another change in between."""
    if change.outcome != "ok":
        return
    after = [one for one in deliveries if index(one.lease) > index(change.stamp)]
    others = [one for one in changes if one is not change and (not one.stamp or one.stamp > change.stamp)]
    if after and not others:
        passed = case.between(change.stamp, change.invoked, after[0].lease, after[0].at)
        if passed < change.delay:
            yield _early(after[0], passed, change.delay)


def _retry(case: Case, before: Delivery, after: Delivery, changes: Sequence[Change]) -> Iterator[Violation]:
    for settle in case.verdicts(before.lease, "ok"):
        if settle.verdict != "retry" or not settle.delay or changes:
            continue
        passed = case.between(settle.stamp, settle.invoked, after.lease, after.at)
        if passed < settle.delay:
            yield _early(after, passed, settle.delay)


def _early(delivery: Delivery, passed: float, delay: int) -> Violation:
    return Violation(
        "early",
        f"message {delivery.message} ({delivery.name}), attempt {delivery.attempt}: after {passed:.0f} ms, not {delay}",
    )


def not_late(case: Case) -> Iterator[Violation]:
    """What a lost consumer held comes again, the lease and a second after it was lost or a new leader took office."""
    if case.terms.late is None:
        return
    for deliveries in case.messages.values():
        queue = case.queue(deliveries[0].queue)
        if queue.unhurried:
            continue
        for before, after in pairwise(deliveries):
            lost_at = case.losses.get(before.consumer)
            if lost_at is None or lost_at < before.at or case.verdicts(before.lease, *MAYBE):
                continue
            since = max(lost_at, _last(case.offices, after.at))
            allowed = (queue.lease + GRACE + case.terms.late) * 1_000_000
            if after.at > _until(case, since, allowed):
                took = (after.at - since) / 1e6
                yield Violation(
                    "late",
                    f"message {after.message} ({after.name}) of {before.consumer}, lost, came again after {took:.0f}"
                    f" ms, with a lease of {queue.lease}",
                )


def _until(case: Case, since: int, allowed: int) -> int:
    """When it must be there. Where not all leases are known, another one that was lost may have had it meanwhile."""
    until = since + allowed
    while not case.terms.complete and (later := _last(case.lost_at, until) + allowed) > until:
        until = later
    return until


def _last(moments: Sequence[int], until: int) -> int:
    at = bisect_right(moments, until)
    return moments[at - 1] if at else 0
