"""Queues: messages, and who holds them (rules F).

A message is two rows: what never changes (payload, backoff schedule, keys for when it cannot be delivered) and a small
one that each delivery rewrites. While it is ready or scheduled it stands in the ready index, (queue, due time, id),
while a consumer holds it in the set of leased ones. A lease is granted in the log; its deadline is not known here: a
lapse arrives as a `Release`. Every verdict names the lease that it is about, and only the current one counts.

An attempt is a lease that was not given back. A message may be attempted once, and once more for each step of its
backoff schedule; the last failure writes its payload to its `keys_if_undelivered`, or drops it where there are none.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import DEFAULT_BACKOFF, MAX_CREDITS, MAX_QUEUE_NAME_SIZE, MAX_WRITE_KEY_SIZE

from . import checked, keyspace, records
from .errors import Refused
from .records import LEASED, MAX_DURATION, MAX_NUMBER, MESSAGE, MESSAGE_ID_SIZE, PAYLOAD, READY, Message, Payload
from .results import Grant, LeaseInfo

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry

_INVALID: Final = int(pb.OUTCOME_INVALID)
_STALE: Final = int(pb.OUTCOME_STALE_LEASE)
_ACK: Final = int(pb.SETTLE_KIND_ACK)
_RETRY: Final = int(pb.SETTLE_KIND_RETRY)
_REJECT: Final = int(pb.SETTLE_KIND_REJECT)
_RETURN: Final = int(pb.SETTLE_KIND_RETURN)
_V8: Final = int(pb.VALUE_ENCODING_V8)
_NOT_HELD: Final = "the message is no longer in this consumer's hands"


# ---- commits


def enqueue(entry: "Entry", message: pb.Enqueue, stamp: bytes, number: int) -> None:
    """Add a message, the `number`th of the commit `stamp`; raises Refused with nothing changed."""
    queue = message.queue
    name = queue.encode()
    backoff = tuple(message.backoff.delays_ms) if message.HasField("backoff") else DEFAULT_BACKOFF
    keys = tuple(message.keys_if_undelivered)
    if len(name) > MAX_QUEUE_NAME_SIZE or message.delay_ms > MAX_DURATION or max(len(backoff), len(keys)) > MAX_NUMBER:
        raise Refused(_INVALID, "an enqueue is beyond the limits")
    if not all(0 < len(key) <= MAX_WRITE_KEY_SIZE for key in keys):
        raise Refused(_INVALID, "a key is empty or too long")
    message_id = stamp + number.to_bytes(2, "big")
    payload = Payload(entry.time_ms, backoff, keys, message.payload)
    entry.rows.put(PAYLOAD + message_id, records.pack_payload(payload))
    entry.rows.messages += 1
    _make_ready(entry, message_id, Message(name, entry.time_ms + message.delay_ms, 0))


def settle(entry: "Entry", verdict: pb.Settle, stamp: bytes) -> None:
    """Carry out a consumer's verdict; raises Refused with nothing changed, STALE_LEASE if it does not hold the
    message."""
    message_id, kind = verdict.message_id, verdict.kind
    if kind not in (_ACK, _RETRY, _REJECT, _RETURN) or verdict.delay_ms > MAX_DURATION:
        raise Refused(_INVALID, "unknown kind of settle, or a delay beyond the limits")
    message = _held(entry, message_id, verdict.lease_id)
    if message is None:
        raise Refused(_STALE, _NOT_HELD)
    _end_lease(entry, message_id, message)
    if kind == _ACK:
        _delete(entry, message_id)
    elif kind == _RETURN:
        _give_back(entry, message_id, message)
    elif kind == _REJECT:
        _undeliver(entry, message_id, stamp)
    else:
        _fail(entry, message_id, message, stamp, verdict.delay_ms if verdict.HasField("delay_ms") else None)


# ---- commands of the leader


def lease(entry: "Entry", command: pb.Lease) -> Generator[None, None, int]:
    """Lease ready messages to a consumer whose session exists (or is empty, inside a node); returns how many."""
    name = command.queue.encode()
    if len(name) > MAX_QUEUE_NAME_SIZE:
        return 0
    ready = _ready(entry, name, min(command.count, MAX_CREDITS))
    for index_key in ready:
        _grant(entry, index_key, command)
        if entry.spend():
            yield
    return len(ready)


def release(entry: "Entry", command: pb.Release, stamp: bytes) -> Generator[None, None, None]:
    """End leases; those that are not current are skipped. One that counts is an attempt that failed, but its message is
    ready at once."""
    for released in command.leases:
        mark = len(entry.changes)
        message = _held(entry, released.message_id, released.lease_id)
        if message is not None:
            _end_lease(entry, released.message_id, message)
            if released.counts:
                _fail(entry, released.message_id, message, stamp, 0)
            else:
                _give_back(entry, released.message_id, message)
        if entry.spend_on(mark):
            yield


# ---- steps


def _held(entry: "Entry", message_id: bytes, lease_id: bytes) -> Message | None:
    """The message, if this is its current lease."""
    message = _message(entry.rows.txn, message_id)
    return message if message is not None and lease_id and message.lease_id == lease_id else None


def _message(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> Message | None:
    row = checked.get(txn, MESSAGE + message_id) if len(message_id) == MESSAGE_ID_SIZE else None
    return None if row is None else records.unpack_message(row)


def _payload(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> Payload:
    row = checked.get(txn, PAYLOAD + message_id)
    if row is None:
        raise checked.missing(PAYLOAD + message_id)
    return records.unpack_payload(row)


def _ready(entry: "Entry", queue: bytes, count: int) -> list[bytes]:
    """Index rows of the first messages that are due. Collected before they are touched: granting deletes them."""
    prefix = records.ready_prefix(queue)
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


def _grant(entry: "Entry", index_key: bytes, command: pb.Lease) -> None:
    rows = entry.rows
    message_id = index_key[-MESSAGE_ID_SIZE:]
    message = _message(rows.txn, message_id)
    if message is None or message.lease_id or records.ready_key(message_id, message) != index_key:
        raise checked.damaged(index_key)  # index rows have no checksum of their own
    lease_id = entry.prefix + entry.leases.to_bytes(4, "big")
    entry.leases += 1
    rows.txn.delete(index_key)
    leased = Message(message.queue, message.due_ms, message.attempt + 1, lease_id, command.consumer, command.session)
    rows.put(MESSAGE + message_id, records.pack_message(leased))
    rows.txn.put(LEASED + message_id, b"")
    delivery = _delivery(rows.txn, message_id, leased)
    entry.result.granted.append(Grant(command.session, command.consumer, delivery))


def _end_lease(entry: "Entry", message_id: bytes, message: Message) -> None:
    checked.delete_index(entry.rows.txn, LEASED + message_id)
    entry.result.ended.append(message.lease_id)


def _make_ready(entry: "Entry", message_id: bytes, message: Message) -> None:
    entry.rows.put(MESSAGE + message_id, records.pack_message(message))
    entry.rows.txn.put(records.ready_key(message_id, message), b"")
    entry.note_ready(message.queue.decode(), message.due_ms)


def _give_back(entry: "Entry", message_id: bytes, message: Message) -> None:
    """It was never started: its attempt does not count, and its old due time puts it before those that came later."""
    _make_ready(entry, message_id, Message(message.queue, message.due_ms, message.attempt - 1))


def _fail(entry: "Entry", message_id: bytes, message: Message, stamp: bytes, delay_ms: int | None) -> None:
    """An attempt failed: again after the delay (None = as the schedule says), or never."""
    backoff = _payload(entry.rows.txn, message_id).backoff
    if message.attempt > len(backoff):
        _undeliver(entry, message_id, stamp)
        return
    if delay_ms is None:
        delay_ms = backoff[message.attempt - 1]
    _make_ready(entry, message_id, Message(message.queue, entry.time_ms + delay_ms, message.attempt))


def _undeliver(entry: "Entry", message_id: bytes, stamp: bytes) -> None:
    payload = _payload(entry.rows.txn, message_id)
    for key in payload.undelivered_keys:
        keyspace.write(entry, key, _V8, payload.payload, stamp)
    _delete(entry, message_id)


def _delete(entry: "Entry", message_id: bytes) -> None:
    entry.rows.remove(MESSAGE + message_id)
    entry.rows.remove(PAYLOAD + message_id)
    entry.rows.messages -= 1


# ---- reads


def _delivery(txn: "lmdb.Transaction[bytes]", message_id: bytes, message: Message) -> pb.Delivery:
    payload = _payload(txn, message_id)
    return pb.Delivery(
        consumer=message.consumer,
        message_id=message_id,
        lease_id=message.lease_id,
        attempt=message.attempt,
        payload=payload.payload,
        queue=message.queue.decode(),
        enqueued_at_ms=payload.enqueued_at_ms,
    )


def held_delivery(txn: "lmdb.Transaction[bytes]", message_id: bytes, lease_id: bytes) -> pb.Delivery | None:
    """What a consumer was given with this lease; None if the lease is not the current one."""
    message = _message(txn, message_id)
    if message is None or not lease_id or message.lease_id != lease_id:
        return None
    return _delivery(txn, message_id, message)


def next_due(txn: "lmdb.Transaction[bytes]", queue: str) -> int | None:
    """Due time of the queue's first message that is ready or scheduled."""
    prefix = records.ready_prefix(queue.encode())
    if len(prefix) > len(READY) + 2 + MAX_QUEUE_NAME_SIZE:
        return None
    with txn.cursor() as cursor:
        if cursor.set_range(prefix) and cursor.key().startswith(prefix):
            return int.from_bytes(cursor.key()[len(prefix) : len(prefix) + 8], "big")
    return None


def leases(txn: "lmdb.Transaction[bytes]") -> list[LeaseInfo]:
    """Every leased message, in order of message ids."""
    found: list[LeaseInfo] = []
    with txn.cursor() as cursor:
        if cursor.set_range(LEASED):
            for name in cursor.iternext(keys=True, values=False):
                if not name.startswith(LEASED):
                    break
                message = _message(txn, name[1:])
                if message is None or not message.lease_id:
                    raise checked.damaged(name)
                queue = message.queue.decode()
                found.append(
                    LeaseInfo(name[1:], message.lease_id, queue, message.session, message.consumer, message.attempt)
                )
    return found
