"""What must hold of leases: one at a time, attempts that count, an end that is one."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .case import FINAL, MAYBE, Case, Violation
from .history import Delivery, Letter, index


def one_at_a_time(case: Case) -> Iterator[Violation]:
    """At each place of the log a message is in one consumer's hands at most, and of a group one message at most."""
    for message, deliveries in case.messages.items():
        yield from _exclusive(case, f"message {message}", deliveries)
    for group, deliveries in case.groups():
        yield from _exclusive(case, group, deliveries)


def _exclusive(case: Case, what: str, deliveries: Sequence[Delivery]) -> Iterator[Violation]:
    """A lease that is obeyed is valid then, so none was granted since."""
    for one, next_one in pairwise(deliveries):
        if one.lease == next_one.lease:
            yield Violation("two hands", f"{what}: {one.consumer} and {next_one.consumer} both have lease {one.lease}")
            continue
        for settle in case.settles.get(one.lease, ()):
            if settle.outcome == "ok" and settle.stamp and index(settle.stamp) > index(next_one.lease):
                yield Violation(
                    "two hands",
                    f"{what}: lease {one.lease} of {one.consumer} was obeyed ({settle.verdict} at {settle.stamp}),"
                    f" although lease {next_one.lease} of {next_one.consumer} had been granted",
                )


def ended_once(case: Case) -> Iterator[Violation]:
    """Two verdicts never both end a lease, and after its end a message does not come again."""
    for message, deliveries in case.messages.items():
        for delivery in deliveries:
            obeyed = case.verdicts(delivery.lease, "ok")
            if len(obeyed) > 1:
                verdicts = ", ".join(f"{one.verdict} at {one.stamp}" for one in obeyed)
                yield Violation("two ends", f"message {message}: lease {delivery.lease} was ended by {verdicts}")
        end = _end(case, message, deliveries)
        for delivery in deliveries:
            if end and index(delivery.lease) > index(end):
                yield Violation(
                    "delivered after its end",
                    f"message {message} ({delivery.name}) was done with at {end}, and leased to {delivery.consumer}"
                    f" with {delivery.lease}",
                )


def _end(case: Case, message: str, deliveries: Sequence[Delivery]) -> str:
    ends = [
        settle.stamp
        for delivery in deliveries
        for settle in case.verdicts(delivery.lease, "ok")
        if settle.verdict in FINAL and settle.stamp
    ]
    effect = case.history.effects.get(message)
    if effect is not None and effect.count == 1:
        ends.append(effect.stamp)
    return min(ends, default="")


def cancelled(case: Case) -> Iterator[Violation]:
    """What was cancelled is not delivered."""
    for change in case.history.changes:
        if change.kind != "cancel" or change.outcome != "ok":
            continue
        for delivery in case.messages.get(change.message, ()):
            if index(delivery.lease) > index(change.stamp):
                yield Violation(
                    "cancelled",
                    f"message {change.message} was cancelled at {change.stamp}, and leased to {delivery.consumer} with"
                    f" {delivery.lease}",
                )
        if change.message in case.history.effects:
            yield Violation("cancelled", f"message {change.message} was cancelled at {change.stamp}, and done")


def in_order(case: Case) -> Iterator[Violation]:
    """A group's messages come in the order in which they were sent, retries included, and are done in it."""
    for group, deliveries in case.groups():
        newest = ""
        for delivery in deliveries:
            if delivery.message < newest:
                yield Violation("order", f"{group}: message {delivery.message} ({delivery.name}) came after {newest}")
            newest = max(newest, delivery.message)
        members = {delivery.message for delivery in deliveries}
        done = sorted(
            (effect.stamp, effect.message)
            for effect in case.history.effects.values()
            if effect.message in members and effect.count == 1
        )
        for (_, one), (stamp, two) in pairwise(done):
            if two < one:
                yield Violation("order", f"{group}: message {two} was done at {stamp}, after {one}")


def attempts(case: Case) -> Iterator[Violation]:
    """1, 2, 3 …: one more for each attempt that failed, none for what was given back, and not more than are allowed."""
    for message, deliveries in case.messages.items():
        before: Delivery | None = None
        most = case.queue(deliveries[0].queue).max_attempts
        for delivery in deliveries:
            if before is not None and before.lease == delivery.lease:
                continue
            low, high = _next_attempt(case, before, delivery)
            if not low <= delivery.attempt <= high:
                how = f"after attempt {before.attempt} with {before.lease}" if before is not None else "at first"
                allowed = f"{low}" if low == high else f"{low} to {high}"
                yield Violation(
                    "attempts",
                    f"message {message} ({delivery.name}): attempt {delivery.attempt} with {delivery.lease} {how},"
                    f" which should be {allowed}",
                )
            if delivery.attempt > most:
                yield Violation("attempts", f"message {message}: attempt {delivery.attempt} of {most} at most")
            before = delivery


def _next_attempt(case: Case, before: Delivery | None, delivery: Delivery) -> tuple[int, int]:
    unseen = 0 if case.knows(delivery.message) else _troubles(case, before, delivery)
    if before is None:
        return 1, 1 + unseen
    verdicts = case.verdicts(before.lease, "ok")
    if not verdicts:
        return before.attempt, before.attempt + 1 + unseen
    exact = before.attempt + (verdicts[0].verdict != "return")
    return exact, exact + unseen


def _troubles(case: Case, before: Delivery | None, delivery: Delivery) -> int:
    """Times that a lease may have been granted which no record tells of: to a consumer that was lost with it."""
    if case.terms.complete:
        return case.queue(delivery.queue).max_attempts
    send = case.sends.get(delivery.name)
    since = before.at if before is not None else send.invoked if send is not None else 0
    since -= case.terms.unnoticed * 1_000_000
    until = delivery.at
    return sum(bisect_right(moments, until) - bisect_left(moments, since) for moments in (case.lost_at, case.offices))


def letters(case: Case) -> Iterator[Violation]:
    """Dead is who was rejected, or failed as often as is allowed; and nobody else."""
    for letter in case.history.letters:
        message = letter.origin or letter.message
        queue = case.queue(letter.origin_queue or letter.queue)
        what = f"dead letter {letter.message} ({letter.name}) of {queue.name!r}"
        deliveries = case.messages.get(message, [])
        least = queue.least_attempts or queue.max_attempts
        if letter.attempts < least and not _may_be_rejected(case, deliveries):
            yield Violation(
                "dead letter", f"{what} died after {letter.attempts} of {least} attempts, and nobody rejected it"
            )
        if letter.attempts > queue.max_attempts:
            yield Violation("dead letter", f"{what} died after {letter.attempts} of {queue.max_attempts} attempts")
        if letter.origin and letter.queue != (queue.dead or queue.name):
            yield Violation(
                "dead letter", f"{what} is in {letter.queue!r} and should be in {queue.dead or queue.name!r}"
            )
        if deliveries and deliveries[0].name != letter.name:
            yield Violation("dead letter", f"{what} was {deliveries[0].name!r} when it lived")
        yield from _last_attempt(case, what, letter, deliveries)


def _may_be_rejected(case: Case, deliveries: Sequence[Delivery]) -> bool:
    return any(
        case.untold(delivery) or any(one.verdict == "reject" for one in case.verdicts(delivery.lease, *MAYBE))
        for delivery in deliveries
    )


def _last_attempt(case: Case, what: str, letter: Letter, deliveries: Sequence[Delivery]) -> Iterator[Violation]:
    if not deliveries:
        if case.knows(letter.origin or letter.message) and letter.attempts:
            yield Violation("dead letter", f"{what} was never delivered")
        return
    last = deliveries[-1]
    if letter.attempts < last.attempt or (case.knows(last.message) and letter.attempts != last.attempt):
        yield Violation("dead letter", f"{what} says {letter.attempts} attempts, and was delivered with {last.attempt}")
    if any(one.verdict == "ack" for delivery in deliveries for one in case.verdicts(delivery.lease, "ok")):
        yield Violation("dead letter", f"{what} was acknowledged")


def taken_once(case: Case) -> Iterator[Violation]:
    """At most once."""
    for message, deliveries in case.messages.items():
        if len(deliveries) > 1 and any(delivery.taken for delivery in deliveries):
            leases = ", ".join(f"{one.lease} to {one.consumer}" for one in deliveries)
            yield Violation("taken twice", f"message {message} ({deliveries[0].name}): {leases}")
