"""Who holds which message (rules F).

While a message is ready or scheduled it stands in the ready index, (queue, due time, id), while a consumer holds it in
the set of leased ones. A lease is granted in the log; its deadline is not known here: a lapse arrives as a `Release`.
Every verdict names the lease that it is about, and only the current one counts.

An attempt is a lease that was not given back. How many a message has, and how long the pauses between them are, say the
message itself, its queue's policy, or the default backoff schedule.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_CREDITS, MAX_QUEUE_NAME_SIZE, MAX_REASON_SIZE

from .. import checked
from ..errors import Refused
from ..records import LEASED, MAX_DURATION, MESSAGE, MESSAGE_ID_SIZE, PAYLOAD, READY
from ..results import Grant, Leased, LeaseInfo
from ..rows import row_hash
from . import deaths, first_leases, formats, messages, policies
from .formats import (
    DEAD_STATE,
    DYING_STATE,
    LEASED_STATE,
    WAITING_STATE,
    Failure,
    Message,
    index_key,
    ready_key,
    ready_prefix,
)
from .policies import policy_of
from .tallies import DEAD, DELIVERED, DONE, FAILED, LOST, MESSAGES
from .tallies import LEASED as HELD
from .walks import keys_below

if TYPE_CHECKING:
    import lmdb

    from ..entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_STALE: Final = int(pb.OUTCOME_STALE_LEASE)
_GONE: Final = int(pb.OUTCOME_MESSAGE_GONE)
_ACK: Final = int(pb.SETTLE_KIND_ACK)
_RETRY: Final = int(pb.SETTLE_KIND_RETRY)
_REJECT: Final = int(pb.SETTLE_KIND_REJECT)
_RETURN: Final = int(pb.SETTLE_KIND_RETURN)
_EXTEND: Final = int(pb.SETTLE_KIND_EXTEND)
_CANCEL: Final = int(pb.SETTLE_KIND_CANCEL)
_RESCHEDULE: Final = int(pb.SETTLE_KIND_RESCHEDULE)
IDLE_KINDS: Final = frozenset((_CANCEL, _RESCHEDULE))
"""About messages in nobody's hands, which must have been written."""
_OLD_KINDS: Final = frozenset((_ACK, _RETRY, _REJECT, _RETURN))
_KINDS: Final = _OLD_KINDS | IDLE_KINDS | {_EXTEND}
_HAS_FAILED: Final = int(pb.FAILURE_KIND_FAILED)
_REJECTED: Final = int(pb.FAILURE_KIND_REJECTED)
_LOST: Final = int(pb.FAILURE_KIND_LOST)
_NOT_HELD: Final = "the message is no longer in this consumer's hands"
"""To data versions 1 and 2: sessions remember what was answered."""

_ENDED: Final = ((HELD, -1),)
_FAILED: Final = ((HELD, -1), (FAILED, 1))
_LOSS: Final = ((HELD, -1), (LOST, 1))
_CANCELLED: Final = ((MESSAGES, -1),)
_DEAD_CANCELLED: Final = ((DEAD, -1),)


# ---- commits


def settle(entry: "Entry", verdict: pb.Settle, stamp: bytes) -> None:
    """Carry out a verdict; raises Refused with nothing changed: STALE_LEASE if the consumer does not hold the message,
    MESSAGE_GONE if somebody does that was to be cancelled or rescheduled, or if it is not there."""
    message_id, kind = verdict.message_id, verdict.kind
    if kind not in (_OLD_KINDS if entry.tallies is None else _KINDS) or verdict.delay_ms > MAX_DURATION:
        raise Refused(_INVALID, "unknown kind of settle, or a delay beyond the limits")
    if kind == _ACK:
        acknowledge(entry, verdict)
        return
    if kind in IDLE_KINDS:
        _settle_idle(entry, verdict)
        return
    message = _held(entry, message_id, verdict.lease_id)
    if message is None:
        raise _not_held(entry, message_id)
    if kind == _EXTEND:
        by_ms = verdict.delay_ms or policy_of(entry, message.queue).lease_ms
        entry.held.drop(message_id)
        extended = message._replace(extended_at=int.from_bytes(entry.prefix, "big"), extended_ms=by_ms)
        entry.rows.put(MESSAGE + message_id, formats.pack_message(extended))  # a new leader goes on from it
        entry.result.extended.append((message.lease_id, by_ms))
        return
    _end_lease(entry, message_id, message)
    if kind == _RETURN:
        _give_back(entry, message_id, message, stamp)
    else:
        failure = Failure(
            message.attempt,
            entry.time_ms,
            _REJECTED if kind == _REJECT else _HAS_FAILED,
            verdict.reason.encode()[:MAX_REASON_SIZE],
        )
        _fail(entry, message_id, message, stamp, verdict.delay_ms if verdict.HasField("delay_ms") else None, failure)


def acknowledge(entry: "Entry", verdict: pb.Settle) -> None:
    """A message is done; raises Refused with nothing changed if the consumer does not hold it."""
    if verdict.delay_ms > MAX_DURATION:
        raise Refused(_INVALID, "unknown kind of settle, or a delay beyond the limits")
    message_id, lease_id = verdict.message_id, verdict.lease_id
    if acknowledge_known(entry, message_id, lease_id):
        return
    rows = entry.rows
    stored = rows.fetch(MESSAGE + message_id) if len(message_id) == MESSAGE_ID_SIZE else None
    if stored is None or not lease_id or formats.lease_of(stored) != lease_id:
        raise _not_held(entry, message_id)
    checked.delete_index(rows.txn, LEASED + message_id)
    entry.result.ended.append(lease_id)
    messages.forget_held(entry, message_id, stored)
    if entry.tallies is not None:
        entry.tallies.done(formats.queue_of(stored))


def acknowledge_known(entry: "Entry", message_id: bytes, lease_id: bytes) -> bool:
    """A message is done; False = nothing was changed, since its rows must be asked."""
    leases = entry.held.leases
    known = leases.get(message_id)
    if known is None or known[0] != lease_id or entry.tallies is None:
        return False
    rows = entry.rows
    delete = rows.txn.delete
    if not (delete(LEASED + message_id) and delete(MESSAGE + message_id) and delete(PAYLOAD + message_id)):
        raise checked.missing(MESSAGE + message_id)
    del leases[message_id]
    rows.digest -= known[2]
    rows.messages -= 1
    entry.result.ended.append(lease_id)
    entry.tallies.done(known[1])
    return True


def _not_held(entry: "Entry", message_id: bytes) -> Refused:
    named = f"message {message_id[:MESSAGE_ID_SIZE].hex()} is no longer in this consumer's hands"
    return Refused(_STALE, _NOT_HELD if entry.tallies is None else named)


def _settle_idle(entry: "Entry", verdict: pb.Settle) -> None:
    """Cancel or reschedule a message that is in nobody's hands."""
    txn, message_id = entry.rows.txn, verdict.message_id
    message = messages.load(txn, message_id)
    if message is None or message.state in (LEASED_STATE, DYING_STATE):
        raise Refused(_GONE, f"message {message_id.hex()} is done, or in a consumer's hands")
    dead = message.state == DEAD_STATE
    if verdict.kind == _RESCHEDULE and dead:
        raise Refused(_GONE, f"message {message_id.hex()} is a dead letter: requeue it")
    place = index_key(message_id, message)
    if place is not None:
        checked.delete_index(txn, place)
    if verdict.kind == _CANCEL:
        messages.forget(entry, message_id, message)
        if entry.tallies is not None:
            entry.tallies.add(message.queue, _DEAD_CANCELLED if dead else _CANCELLED)
        return
    moved = message._replace(due_ms=entry.time_ms + verdict.delay_ms)
    if message.state == WAITING_STATE:
        entry.rows.put(MESSAGE + message_id, formats.pack_message(moved))
    else:
        messages.make_ready(entry, message_id, moved)


# ---- commands of the leader


def lease(entry: "Entry", command: pb.Lease) -> Generator[None, None, int]:
    """Lease ready messages to a consumer whose session exists (or is empty, inside a node); returns how many."""
    queue = command.queue.encode()
    if len(queue) > MAX_QUEUE_NAME_SIZE:
        return 0
    policy = policy_of(entry, queue)
    count = min(command.count, MAX_CREDITS)
    take = command.take and entry.tallies is not None
    if policy.paused:
        return 0
    if policy.max_in_flight and entry.tallies is not None:
        count = min(count, max(0, policy.max_in_flight - entry.tallies.of(queue)[HELD]))
    ready = _ready(entry, queue, count)
    first = first_leases.first_place(entry, queue)
    if first is not None and (take or (ready and ready[-1] > first)):
        # to be taken at once, or not behind all that is ready
        yield from first_leases.write_out(entry)
        ready = _ready(entry, queue, count)
    for place in ready:
        if take:
            _take(entry, place, command, policy.lease_ms)
        else:
            _grant(entry, place, command, policy.lease_ms)
        if entry.spend():
            yield
    granted = len(ready)
    if first is not None and granted < count:
        granted += yield from first_leases.grant(entry, queue, command, policy.lease_ms, count - granted)
    if granted and not entry.bare:
        entry.result.delays.append((entry.time_ms - _due(ready[0]) if ready else 0, granted))
    if granted and entry.tallies is not None:
        entry.tallies.add(
            queue,
            ((MESSAGES, -granted), (DELIVERED, granted), (DONE, granted))
            if take
            else ((HELD, granted), (DELIVERED, granted)),
        )
    return granted


def release(entry: "Entry", command: pb.Release, stamp: bytes) -> Generator[None, None, None]:
    """End leases; those that are not current are skipped, and those that were extended after they had been judged. One
    that counts is an attempt that failed, but its message is ready at once."""
    # Rows count entries on from those of the cluster that a backup was taken of.
    known = int.from_bytes(entry.prefix, "big") - entry.result.index + command.known if command.known else None
    for released in command.leases:
        mark = len(entry.changes)
        message_id = released.message_id
        message = _held(entry, message_id, released.lease_id)
        if message is not None and (known is None or message.extended_at <= known):
            _end_lease(entry, message_id, message)
            if released.counts:
                failure = Failure(message.attempt, entry.time_ms, _LOST, b"")
                _fail(entry, message_id, message, stamp, 0, failure)
            else:
                _give_back(entry, message_id, message, stamp)
        if entry.spend_on(mark):
            yield


# ---- steps


def _held(entry: "Entry", message_id: bytes, lease_id: bytes) -> Message | None:
    """The message, if this is its current lease."""
    message = messages.load(entry.rows.txn, message_id)
    return message if message is not None and lease_id and message.lease_id == lease_id else None


def _ready(entry: "Entry", queue: bytes, count: int) -> list[bytes]:
    """Index rows of the first messages that are due. Collected before they are touched: granting deletes them."""
    prefix = ready_prefix(queue)
    after = prefix + (entry.time_ms + 1).to_bytes(8, "big")
    found: list[bytes] = []
    with entry.rows.txn.cursor() as cursor:
        if count and cursor.set_range(prefix):
            for name in cursor.iternext(keys=True, values=False):
                if name >= after:
                    break
                found.append(name)
                if len(found) == count:
                    break
    return found


def _grant(entry: "Entry", place: bytes, command: pb.Lease, lease_ms: int) -> None:
    rows = entry.rows
    message_id = place[-MESSAGE_ID_SIZE:]
    name = MESSAGE + message_id
    stored = rows.fetch(name)
    # An index row has no checksum of its own. Queue and due time stand in it as in the other row, which need not be
    # unpacked for that.
    due_at = formats.STATE_END
    if (
        stored is None
        or stored[0] != formats.READY_STATE
        or place[-_PLACE_END:-MESSAGE_ID_SIZE] != stored[due_at : formats.DUE_END]
        or place[len(READY) : -_PLACE_END] != stored[formats.DUE_END : -checked.SEAL_SIZE]
    ):
        raise checked.damaged(place)
    lease_id = entry.prefix + entry.leases.to_bytes(4, "big")
    entry.leases += 1
    attempt = int.from_bytes(stored[1:due_at], "big") + 1
    expiring = command.expiring and entry.tallies is not None
    row = b"".join(
        (
            _TIMED_ROW if expiring else _LEASED_ROW,
            attempt.to_bytes(4, "big"),
            stored[due_at : -checked.SEAL_SIZE],
            formats.EXPIRING if expiring else b"",
            lease_id,
            command.consumer.to_bytes(8, "big"),
            command.session,
        )
    )
    digest = rows.rewrite(name, stored, row)
    rows.txn.delete(place)
    rows.txn.put(LEASED + message_id, b"")
    payload = None
    if attempt == 1 and entry.tallies is not None:
        payload = messages.load_payload_row(rows.txn, message_id)
        if not formats.has_ties(payload):
            digest += row_hash(PAYLOAD + message_id, payload)
            entry.held.room(1)[message_id] = lease_id, command.queue.encode(), digest
    if entry.bare:
        entry.result.leased.append(Leased(command.session, command.consumer, message_id, lease_id))
        return
    if payload is None:
        payload = messages.load_payload_row(rows.txn, message_id)
    delivery = _delivery(rows.txn, message_id, lease_id, attempt, command.queue, command.consumer, lease_ms, payload)
    entry.result.granted.append(Grant(command.session, command.consumer, delivery))


_LEASED_ROW: Final = bytes((LEASED_STATE,))
_TIMED_ROW: Final = bytes((formats.TIMED_STATE,))
_PLACE_END: Final = 8 + MESSAGE_ID_SIZE
"""Due time and message id of a row of READY."""


def _due(place: bytes) -> int:
    """Unix milliseconds, of a row of READY."""
    return int.from_bytes(place[-_PLACE_END:-MESSAGE_ID_SIZE], "big")


def _take(entry: "Entry", place: bytes, command: pb.Lease, lease_ms: int) -> None:
    """Hand out a message and delete it: it is delivered once, or not at all."""
    rows = entry.rows
    message_id = place[-MESSAGE_ID_SIZE:]
    message = messages.load(rows.txn, message_id)
    if message is None or message.state != formats.READY_STATE or ready_key(message_id, message) != place:
        raise checked.damaged(place)
    lease_id = entry.prefix + entry.leases.to_bytes(4, "big")
    entry.leases += 1
    attempt = message.attempt + 1
    row = messages.load_payload_row(rows.txn, message_id)
    delivery = _delivery(rows.txn, message_id, lease_id, attempt, command.queue, command.consumer, lease_ms, row)
    delivery.taken = True
    rows.txn.delete(place)
    messages.forget(entry, message_id, message)
    entry.result.granted.append(Grant(command.session, command.consumer, delivery))


def _end_lease(entry: "Entry", message_id: bytes, message: Message) -> None:
    checked.delete_index(entry.rows.txn, LEASED + message_id)
    entry.held.drop(message_id)
    entry.result.ended.append(message.lease_id)


def _give_back(entry: "Entry", message_id: bytes, message: Message, stamp: bytes) -> None:
    """It was never started: its attempt does not count, and its old due time puts it before those that came later."""
    if entry.tallies is not None:
        entry.tallies.add(message.queue, _ENDED)
        row = messages.load_payload_row(entry.rows.txn, message_id)
        if formats.expires(row):
            payload = formats.unpack_payload(row)
            if payload.expires_ms <= entry.time_ms:
                deaths.expire(entry, message_id, message, payload, stamp)
                return
    messages.make_ready(entry, message_id, Message(message.queue, message.due_ms, message.attempt - 1))


def _fail(
    entry: "Entry", message_id: bytes, message: Message, stamp: bytes, delay_ms: int | None, failure: Failure
) -> None:
    """An attempt failed: again after the delay (None = as the schedule says), or never."""
    payload = messages.load_payload(entry.rows.txn, message_id)
    policy = policy_of(entry, message.queue)
    if entry.tallies is not None:
        entry.tallies.add(message.queue, _LOSS if failure.kind == _LOST else _FAILED)
    if failure.kind == _REJECTED or message.attempt >= policies.attempts(policy, payload):
        deaths.bury(entry, message_id, message, payload, stamp, failure)
        return
    if payload.expires_ms and payload.expires_ms <= entry.time_ms:
        deaths.expire(entry, message_id, message, payload, stamp)
        return
    if delay_ms is None:
        delay_ms = policies.pause_before(policy, payload, message_id, message.attempt)
    if entry.tallies is not None:
        found = messages.failures(entry.rows.txn, message_id) if message.attempt > 1 or payload.origin else []
        messages.put_failures(entry, message_id, [*found, failure])
    messages.make_ready(entry, message_id, Message(message.queue, entry.time_ms + delay_ms, message.attempt))


# ---- reads


def _delivery(
    txn: "lmdb.Transaction[bytes]",
    message_id: bytes,
    lease_id: bytes,
    attempt: int,
    queue: str,
    consumer: int,
    lease_ms: int,
    row: bytes,
) -> pb.Delivery:
    """`row` is that of the message in PAYLOAD."""
    plain = formats.plain_payload(row)
    payload = formats.unpack_payload(row) if plain is None else None
    enqueued_at_ms, data = (payload.enqueued_at_ms, payload.payload) if payload is not None else plain or (0, b"")
    delivery = pb.Delivery(
        consumer=consumer,
        message_id=message_id,
        lease_id=lease_id,
        attempt=attempt,
        payload=data,
        queue=queue,
        enqueued_at_ms=enqueued_at_ms,
        lease_ms=lease_ms,
    )
    if payload is not None:
        messages.fill(txn, delivery, payload)
    return delivery


def held_delivery(txn: "lmdb.Transaction[bytes]", message_id: bytes, lease_id: bytes) -> pb.Delivery | None:
    """What a consumer was given with this lease; None if the lease is not the current one."""
    message = messages.load(txn, message_id)
    if message is None or not lease_id or message.lease_id != lease_id:
        return None
    policy = policies.read(lambda name: checked.get(txn, name), message.queue)
    queue = message.queue.decode()
    row = messages.load_payload_row(txn, message_id)
    return _delivery(txn, message_id, lease_id, message.attempt, queue, message.consumer, policy.lease_ms, row)


def next_due(txn: "lmdb.Transaction[bytes]", queue: str) -> int | None:
    """Due time of the queue's first message that is ready or scheduled."""
    prefix = ready_prefix(queue.encode())
    if len(prefix) > len(READY) + 2 + MAX_QUEUE_NAME_SIZE:
        return None
    with txn.cursor() as cursor:
        if cursor.set_range(prefix) and cursor.key().startswith(prefix):
            return int.from_bytes(cursor.key()[len(prefix) : len(prefix) + 8], "big")
    return None


def leases(txn: "lmdb.Transaction[bytes]", after: bytes = b"", limit: int | None = None) -> list[LeaseInfo]:
    """See `Store.leases`."""
    found: list[LeaseInfo] = []
    periods: dict[bytes, int] = {}
    for name in keys_below(txn, LEASED, LEASED + after if after else b""):
        if len(found) == limit:
            break
        message = messages.load(txn, name[1:])
        if message is None or not message.lease_id:
            raise checked.damaged(name)
        queue = message.queue
        lease_ms = periods.get(queue)
        if lease_ms is None:
            lease_ms = periods[queue] = policies.read(lambda row: checked.get(txn, row), queue).lease_ms
        holder = queue.decode(), message.session, message.consumer
        lease_ms = message.extended_ms or lease_ms
        found.append(LeaseInfo(name[1:], message.lease_id, *holder, message.attempt, lease_ms, message.expiring))
    return found
