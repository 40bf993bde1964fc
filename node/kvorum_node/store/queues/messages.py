"""Messages: how they come, where they stand, how they go.

A message is two rows, what never changes and what each delivery rewrites, and stands in at most one index, which
follows from its state. If it belongs to a group it also stands among the group's messages, in order of ids, until it is
done or dead. The first of them is the group's head: the only one that is ready, scheduled, or in somebody's hands. When
it goes the next one becomes head, behind whatever else is ready by then, so that groups take turns.
"""

from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_FAILURES

from .. import checked
from ..records import FAILURES, MESSAGE, MESSAGE_ID_SIZE, PAYLOAD, READY
from . import dedup, formats
from .formats import (
    DEAD_STATE,
    DYING_STATE,
    LEASED_STATE,
    TTL_TIMER,
    WAITING_STATE,
    Failure,
    Message,
    Payload,
    grouped_prefix,
    ready_key,
    timer_key,
)
from .tallies import MESSAGES, SENT

if TYPE_CHECKING:
    import lmdb

    from ..entry import Entry

_SENT: Final = ((MESSAGES, 1), (SENT, 1))


# ---- rows


def load(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> Message | None:
    row = checked.get(txn, MESSAGE + message_id) if len(message_id) == MESSAGE_ID_SIZE else None
    return None if row is None else formats.unpack_message(row)


def load_payload_row(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> bytes:
    row = checked.get(txn, PAYLOAD + message_id)
    if row is None:
        raise checked.missing(PAYLOAD + message_id)
    return row


def load_payload(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> Payload:
    return formats.unpack_payload(load_payload_row(txn, message_id))


def failures(txn: "lmdb.Transaction[bytes]", message_id: bytes) -> list[Failure]:
    row = checked.get(txn, FAILURES + message_id)
    return [] if row is None else formats.unpack_failures(row)


def fill(txn: "lmdb.Transaction[bytes]", delivery: pb.Delivery, payload: Payload) -> None:
    """What a message carries besides its value."""
    if payload.group is not None:
        delivery.group = payload.group.decode()
    delivery.headers = payload.headers
    if payload.origin is not None:
        delivery.origin.CopyFrom(payload.origin.message())
        delivery.failures.extend(failure.message() for failure in failures(txn, delivery.message_id))


# ---- coming


def add(
    entry: "Entry", message_id: bytes, queue: bytes, payload: Payload, due_ms: int, *, in_order: bool = False
) -> None:
    """A new message. What could refuse it was looked at. `in_order`: its id is above those of all others that were
    enqueued."""
    rows = entry.rows
    group = None
    if entry.tallies is None:
        row = formats.pack_old_payload(payload)
        in_order = False
    else:
        row = formats.pack_payload(payload)
        entry.tallies.add(queue, _SENT)
        group = formats.group_of(payload)
        if payload.expires_ms:
            rows.txn.put(timer_key(payload.expires_ms, TTL_TIMER, message_id), b"")
            entry.note_expiry(payload.expires_ms)
    rows.messages += 1
    waits = group is not None and _join(entry, message_id, grouped_prefix(queue, group))
    if in_order and not waits and due_ms == entry.time_ms and entry.fresh.add(queue, message_id, row):
        entry.note_ready(queue.decode(), due_ms)
        return
    rows.put(PAYLOAD + message_id, row)
    message = Message(queue, due_ms, 0)
    if waits:
        rows.put(MESSAGE + message_id, formats.pack_message(message._replace(state=WAITING_STATE)))
    else:
        make_ready(entry, message_id, message)


def add_plain(entry: "Entry", message_id: bytes, queue: bytes, message: pb.Enqueue) -> None:
    """The commonest message, one without anything else. Its rows are put together from their parts here, for speed."""
    rows, time_ms = entry.rows, entry.time_ms
    delay_ms = message.delay_ms
    row = formats.plain_head(time_ms) + message.payload
    if delay_ms or not entry.fresh.add(queue, message_id, row):
        due = (time_ms + delay_ms).to_bytes(8, "big")
        queue_part = formats.named(queue)
        rows.add(PAYLOAD + message_id, row)
        rows.add(MESSAGE + message_id, formats.UNTRIED + due + queue_part)
        rows.txn.put(READY + queue_part + due + message_id, b"")
    rows.messages += 1
    if entry.tallies is not None:
        entry.tallies.add(queue, _SENT)
    entry.note_ready(message.queue, time_ms + delay_ms)


def make_ready(entry: "Entry", message_id: bytes, message: Message) -> None:
    entry.rows.put(MESSAGE + message_id, formats.pack_message(message))
    entry.rows.txn.put(ready_key(message_id, message), b"")
    entry.note_ready(message.queue.decode(), message.due_ms)


def head_of(txn: "lmdb.Transaction[bytes]", prefix: bytes) -> bytes | None:
    """The id of a group's first message."""
    with txn.cursor() as cursor:
        if cursor.set_range(prefix):
            name = cursor.key()
            if name.startswith(prefix) and len(name) == len(prefix) + MESSAGE_ID_SIZE:
                return name[-MESSAGE_ID_SIZE:]
    return None


def _join(entry: "Entry", message_id: bytes, prefix: bytes) -> bool:
    """Stand in line with the others of the group; True = behind somebody."""
    txn = entry.rows.txn
    head = head_of(txn, prefix)
    txn.put(prefix + message_id, b"")
    if head is None:
        return False
    if head < message_id:
        return True
    # Both come from one commit, which numbers what it makes besides its enqueues from further up: nobody has it yet.
    message = load(txn, head)
    if message is None:
        raise checked.missing(MESSAGE + head)
    checked.delete_index(txn, ready_key(head, message))
    entry.rows.put(MESSAGE + head, formats.pack_message(message._replace(state=WAITING_STATE)))
    return False


# ---- going


def forget(entry: "Entry", message_id: bytes, message: Message) -> int:
    """Delete a message; the caller has taken it out of the index of its state. Returns the size of what was deleted."""
    rows = entry.rows
    rows.remove(MESSAGE + message_id)
    row = take_payload(entry, message_id)
    if entry.tallies is not None:
        has_ties = formats.has_ties(row)
        if message.attempt > (message.state == LEASED_STATE) or has_ties:
            rows.remove(FAILURES + message_id)
        if has_ties and message.state not in (DEAD_STATE, DYING_STATE):
            part(entry, message_id, message, formats.unpack_payload(row))
    return len(row)


def forget_held(entry: "Entry", message_id: bytes, stored: bytes) -> None:
    """Delete a leased message, whose MESSAGE row was fetched as `stored`."""
    rows = entry.rows
    rows.drop(MESSAGE + message_id, stored)
    row = take_payload(entry, message_id)
    if entry.tallies is not None and (stored[1:5] != formats.FIRST_ATTEMPT or formats.has_ties(row)):
        rows.remove(FAILURES + message_id)
        if formats.has_ties(row):
            message = formats.unpack_message(stored[: -checked.SEAL_SIZE])
            part(entry, message_id, message, formats.unpack_payload(row))


def take_payload(entry: "Entry", message_id: bytes) -> bytes:
    """Delete the PAYLOAD row, and count the message out; returns the row."""
    row = entry.rows.remove(PAYLOAD + message_id)
    if row is None:
        raise checked.missing(PAYLOAD + message_id)
    entry.rows.messages -= 1
    return row


def part(entry: "Entry", message_id: bytes, message: Message, payload: Payload) -> None:
    """Undo what ties a message that is done, dead or dying to others: its group, its deduplication id, its timer."""
    if payload.expires_ms:
        entry.rows.txn.delete(timer_key(payload.expires_ms, TTL_TIMER, message_id))  # gone if it rang meanwhile
    if payload.until_done:
        dedup.free(entry, message.queue, payload.dedup_id, message_id)
    group = formats.group_of(payload)
    if group is not None:
        prefix = grouped_prefix(message.queue, group)
        checked.delete_index(entry.rows.txn, prefix + message_id)
        if message.state != WAITING_STATE:
            _advance(entry, prefix)


def _advance(entry: "Entry", prefix: bytes) -> None:
    """The head of a group has gone: the next one takes its place."""
    head = head_of(entry.rows.txn, prefix)
    if head is None:
        return
    message = load(entry.rows.txn, head)
    if message is None or message.state != WAITING_STATE:
        raise checked.damaged(prefix + head)
    make_ready(entry, head, Message(message.queue, max(message.due_ms, entry.time_ms), message.attempt))


def put_failures(entry: "Entry", message_id: bytes, found: list[Failure]) -> None:
    """Keep the first failure, and the last ones."""
    if len(found) > MAX_FAILURES:
        found = found[:1] + found[1 - MAX_FAILURES :]
    entry.rows.put(FAILURES + message_id, formats.pack_failures(found))
