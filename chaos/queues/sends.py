"""What must become of sends: one message each, with one effect, unless somebody said otherwise."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .case import MAYBE, Case, Violation
from .history import Delivery, Queue, Send, Settle, index


def effects(case: Case) -> Iterator[Violation]:
    """An acknowledgement and its effect are one: once, or not at all."""
    for message, deliveries in case.messages.items():
        effect = case.history.effects.get(message)
        acks = [one for delivery in deliveries for one in case.verdicts(delivery.lease, *MAYBE) if one.verdict == "ack"]
        if effect is None:
            for ack in acks:
                if ack.outcome == "ok":
                    yield Violation("effect missing", f"message {message} was acknowledged at {ack.stamp}")
            continue
        if effect.count > 1:
            yield Violation("effect doubled", f"message {message} ({deliveries[0].name}) has {effect.count} effects")
        if not acks and not any(case.untold(delivery) for delivery in deliveries):
            yield Violation("effect of nothing", f"message {message} has an effect, and nobody acknowledged it")
        yield from _at_another_place(message, effect.stamp, effect.count, acks)
    for message in case.history.effects:
        if message not in case.messages:
            yield Violation("effect of nothing", f"message {message} has an effect, and was never delivered")


def _at_another_place(message: str, stamp: str, count: int, acks: Sequence[Settle]) -> Iterator[Violation]:
    for ack in acks:
        if ack.outcome == "ok" and ack.stamp and count == 1 and ack.stamp != stamp:
            yield Violation(
                "effect doubled", f"message {message} was acknowledged at {ack.stamp}, its effect is of {stamp}"
            )


def nothing_lost(case: Case) -> Iterator[Violation]:
    """What was sent is done, dead, or still there; once in each queue that it was sent to."""
    accounted = _accounted(case)
    for send in case.history.sends:
        if send.outcome != "ok" or send.duplicate:
            continue
        for queue in case.copies(send):
            if (queue, send.name) not in accounted and not _may_be_gone(case, case.queue(queue), send):
                kind = "topic copy missing" if send.topic else "lost"
                yield Violation(kind, f"{send.name} was sent to {queue!r} at {send.stamp}, and nothing is left of it")
    for ticks in case.history.ticks:
        for moment in range(ticks.first, ticks.last + 1, ticks.period):
            name = f"{ticks.name}@{moment}"
            if (ticks.queue, name) not in accounted and not case.ids.get((ticks.queue, name)):
                yield Violation("tick missing", f"{name}, every {ticks.period} ms from {ticks.first} to {ticks.last}")


def _accounted(case: Case) -> set[tuple[str, str]]:
    history = case.history
    found = _done(case)
    found |= {(letter.queue, letter.name) for letter in history.letters}
    found |= {(left.queue, left.name) for left in history.left}
    for queue in history.queues.values():
        if queue.dead:  # wherever its letters have got to
            found |= {(queue.name, name) for place, name in found if place == queue.dead}
    cancelled = {change.message for change in history.changes if change.kind == "cancel" and change.outcome in MAYBE}
    return found | {place for place, messages in case.ids.items() if messages & cancelled}


def _done(case: Case) -> set[tuple[str, str]]:
    return {
        (deliveries[0].queue, deliveries[0].name)
        for message, deliveries in case.messages.items()
        if message in case.history.effects
    }


def _may_be_gone(case: Case, queue: Queue, send: Send) -> bool:
    """Whether what is not there proves nothing."""
    if queue.purged or queue.taken or send.ttl:
        return True
    if queue.letters != "drop":
        return False
    deliveries = [
        one for message in case.ids.get((queue.name, send.name), ()) for one in case.messages.get(message, ())
    ]
    return any(
        one.attempt >= (queue.least_attempts or queue.max_attempts)
        or case.untold(one)
        or any(settle.verdict == "reject" for settle in case.verdicts(one.lease, *MAYBE))
        for one in deliveries
    )


def nothing_invented(case: Case) -> Iterator[Violation]:
    """A message comes of a send that was not denied, to where it was sent, and is one message."""
    recurring = {ticks.name for ticks in case.history.ticks}
    for (queue, name), messages in case.ids.items():
        deliveries = [one for message in sorted(messages) for one in case.messages.get(message, ())]
        if name.partition("@")[0] not in recurring:
            yield from _unsent(case, queue, name, deliveries)
        if len(messages) > 1 and not case.queue(queue).requeued:
            kind = "topic copy doubled" if name in case.sends and case.sends[name].topic else "message doubled"
            yield Violation(kind, f"{name} is {len(messages)} messages of {queue!r}: {', '.join(sorted(messages))}")
        done = [message for message in messages if message in case.history.effects]
        if len(done) > 1:
            yield Violation("effect doubled", f"{name} of {queue!r} was done as {', '.join(sorted(done))}")
    yield from _both_done_and_dead(case)


def _unsent(case: Case, queue: str, name: str, deliveries: Sequence[Delivery]) -> Iterator[Violation]:
    send = case.sends.get(name)
    if not deliveries:
        return
    if send is None:
        yield Violation("delivered, never sent", f"{name} of {queue!r}")
    elif send.outcome == "not applied" or send.duplicate:
        yield Violation(
            "delivered, never sent",
            f"{name} of {queue!r}, whose send was {send.outcome} {'(a duplicate)' * send.duplicate}",
        )
    elif queue not in case.copies(send) and queue not in {case.queue(one).dead for one in case.copies(send)}:
        yield Violation("delivered, never sent", f"{name} of {queue!r} was sent to {send.queue!r}")
    for delivery in deliveries:
        if send is not None and not send.topic and queue == send.queue and delivery.group != send.group:
            yield Violation(
                "delivered, never sent", f"{name} came in group {delivery.group!r} instead of {send.group!r}"
            )


def _both_done_and_dead(case: Case) -> Iterator[Violation]:
    done = _done(case)
    for letter in case.history.letters:
        if {(letter.origin_queue or letter.queue, letter.name), (letter.queue, letter.name)} & done:
            yield Violation("done and dead", f"{letter.name} of {letter.queue!r}")
    for left in case.history.left:
        if (left.queue, left.name) in done:
            yield Violation("done and dead", f"{left.name} of {left.queue!r} was done and is still there")


def no_duplicates(case: Case) -> Iterator[Violation]:
    """While a queue remembers an id no message of that id is taken; and none is left out without a reason."""
    found: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in case.history.sends:
        if send.dedup and not send.topic and send.outcome in MAYBE:
            found[send.queue, send.dedup].append(send)
    for (queue, dedup), sends in found.items():
        taken = sorted((one for one in sends if one.outcome == "ok" and not one.duplicate), key=lambda one: one.stamp)
        for one, two in pairwise(taken):
            if _certainly_remembered(case, one, two):
                yield Violation(
                    "duplicate taken",
                    f"{two.name} at {two.stamp}, although {queue!r} remembers {dedup!r} of {one.name}",
                )
        for left_out in (one for one in sends if one.duplicate):
            if not any(
                _perhaps_remembered(case, one, left_out) for one in sends if one is not left_out and not one.duplicate
            ):
                yield Violation("left out", f"{left_out.name} for its id {dedup!r}, which {queue!r} does not remember")


def _certainly_remembered(case: Case, one: Send, two: Send) -> bool:
    if one.window:
        if two.returned is None and case.terms.time_of is None:
            return False
        return case.between(one.stamp, one.invoked, two.stamp, two.returned or 0) < one.window
    alive = [delivery.lease for delivery in case.messages.get(one.message, ())]
    effect = case.history.effects.get(one.message)
    if effect is not None and effect.count == 1:
        alive.append(effect.stamp)
    return any(index(place) > index(two.stamp) for place in alive)


def _perhaps_remembered(case: Case, one: Send, two: Send) -> bool:
    if one.outcome == "unknown":
        return True
    if one.stamp > two.stamp:
        return False
    message = one.message
    if two.message and two.message != message:
        # A dead letter that went back to its queue is another message with the same id.
        came = case.messages.get(two.message, ())
        if not case.queue(one.queue).requeued or any(delivery.name != one.name for delivery in came):
            return False
        message = two.message
    if not one.window:
        effect = case.history.effects.get(message)
        return effect is None or index(effect.stamp) >= index(two.stamp)
    if case.terms.time_of is not None:
        return case.between(one.stamp, 0, two.stamp, 0) <= one.window
    return (two.invoked - (one.returned or two.invoked)) / 1e6 / case.terms.speed - case.terms.early <= one.window
