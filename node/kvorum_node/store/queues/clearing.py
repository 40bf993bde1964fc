"""Purging and removing queues, in chunks: each command does a bounded part, and is repeated until nothing is left."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import QUEUE_CHUNK

from .. import checked
from ..records import DEDUP, QUEUE
from ..results import Unfinished
from . import dedup, formats, messages, walks
from .deaths import MOVED_AT_ONCE
from .formats import DEAD_STATE, Message, index_key
from .tallies import DEAD, LEASED, MESSAGES

if TYPE_CHECKING:
    from ..entry import Entry

_GONE = ((MESSAGES, -1),)
_LEASED_GONE = ((MESSAGES, -1), (LEASED, -1))
_DEAD_GONE = ((DEAD, -1),)


def purge(entry: "Entry", command: pb.Purge) -> Generator[None, None, int | Unfinished]:
    """Delete messages in nobody's hands, or dead letters; returns how many. Their keys_if_undelivered are not
    written."""
    queue = command.queue.encode()
    limit = min(command.limit or QUEUE_CHUNK, QUEUE_CHUNK)
    if command.dead:
        return (yield from _delete(entry, (yield from walks.first_dead(entry, queue, limit))))
    walk = walks.Walk(entry, command.after)
    ids = yield from walks.idle(walk, queue, limit)
    return walk.output(ids, (yield from _delete(entry, ids)))


def remove(entry: "Entry", command: pb.RemoveQueue) -> Generator[None, None, int | Unfinished]:
    """Delete messages, leased ones included, dead letters and what is remembered of deduplication ids; at last, when
    nothing is left, policy and counters. Returns how many rows it has found to delete."""
    queue = command.name.encode()
    limit = min(command.limit or QUEUE_CHUNK, QUEUE_CHUNK)
    counts = entry.tallies.of(queue) if entry.tallies is not None else None
    if counts is not None and (counts[MESSAGES] or counts[DEAD]):
        walk = walks.Walk(entry, command.after)
        ids = yield from walks.everything(walk, queue, limit, with_leased=bool(counts[LEASED]))
        output = walk.output(ids, (yield from _delete(entry, ids)))
        if ids or walk.cut:
            return output
        if walk.began:
            return Unfinished(0, b"")  # what is left came, or moved, to where the walk had been already
    names = []
    for name in walks.keys_below(entry.rows.txn, DEDUP + formats.named(queue)):
        names.append(name)
        if len(names) == limit:
            break
        if entry.spend():
            yield
    for name in names:
        dedup.drop(entry, name)
        if entry.spend():
            yield
    if not names:
        if entry.rows.remove(QUEUE + queue) is not None:
            entry.policies.pop(queue, None)
            entry.result.policies_changed.add(command.name)
        if entry.tallies is not None:
            entry.tallies.drop(queue)
    return len(names)


def _delete(entry: "Entry", ids: list[bytes]) -> Generator[None, None, int]:
    count = size = 0
    for message_id in ids:
        # loaded only now: deleting the head of a group moves the next one to its place
        message = messages.load(entry.rows.txn, message_id)
        if message is None:
            raise checked.missing(message_id)
        place = index_key(message_id, message)
        if place is not None:
            checked.delete_index(entry.rows.txn, place)
        if message.lease_id:
            entry.held.drop(message_id)
            entry.result.ended.append(message.lease_id)
        deleted = messages.forget(entry, message_id, message)
        if entry.tallies is not None:
            entry.tallies.add(message.queue, _counted(message))
        count += 1
        size += deleted
        if entry.spend_bytes(deleted):
            yield
        if size > MOVED_AT_ONCE:
            break
    return count


def _counted(message: Message) -> tuple[tuple[int, int], ...]:
    if message.state == DEAD_STATE:
        return _DEAD_GONE
    return _LEASED_GONE if message.lease_id else _GONE
