"""Reading the whole state over: is it still what was written?"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from . import checked, records, trie
from .errors import Damaged
from .queues import formats, messages, topic_formats
from .queues.formats import DEDUP_TIMER, FILL_TIMER, RETENTION_TIMER, TTL_TIMER, timer_key
from .queues.tallies import count, unpack
from .queues.walks import keys_below
from .records import (
    CLUSTER_KEY,
    DEDUP,
    EXPIRES,
    EXPIRY,
    GROUPED,
    HASH_MASK,
    HASHED_TABLES,
    HISTORY,
    INDEXES,
    MESSAGE,
    PAYLOAD,
    SCHEDULE,
    SESSION,
    STATE_KEY,
    SUBSCRIPTION,
    TALLY,
    TIMER,
    TOKEN,
    TOPIC,
    State,
    expiry_index_key,
)
from .rows import history_hash, row_hash

if TYPE_CHECKING:
    import lmdb


class Counts(NamedTuple):
    """What a state says, or turns out, to hold."""

    digest: int = 0
    history_size: int = 0
    keys: int = 0
    messages: int = 0
    sessions: int = 0
    history_rows: int = 0
    queues: int = 0
    topics: int = 0
    schedules: int = 0
    tokens: int = 0


def logical_rows(txn: "lmdb.Transaction[bytes]") -> Iterator[tuple[bytes, bytes]]:
    """Names and rows that the content hash covers. Raises Damaged.

    Each row that a cursor comes by is looked up as well: behind a branch page whose keys were changed a row may be
    there for a range, and missing for a get."""
    cluster = checked.get(txn, CLUSTER_KEY)
    if cluster is not None:
        yield CLUSTER_KEY, cluster
    for key, row in trie.scan(txn):
        place = trie.locate(txn, key)
        if place is None or txn.get(place) is None:
            raise checked.missing(trie.ROOT + key)
        yield trie.ROOT + key, row
    for table in HASHED_TABLES:
        for name, row in checked.table(txn, table):
            if txn.get(name) is None:
                raise checked.missing(name)
            yield name, row


def content_hash(txn: "lmdb.Transaction[bytes]") -> bytes:
    """16 bytes."""
    total = sum(_hash(name, row) for name, row in logical_rows(txn))
    return (total & HASH_MASK).to_bytes(16, "big")


def _hash(name: bytes, row: bytes) -> int:
    return history_hash(name, checked.seal(name, row)) if name.startswith(HISTORY) else row_hash(name, row)


def scrub(txn: "lmdb.Transaction[bytes]", slice_rows: int) -> Iterator[int]:
    """See `Store.scrub`."""
    seen = 0
    for step in chain(_check_rows(txn), _check_indexes(txn)):
        seen += step
        if seen % slice_rows == 0:
            yield seen
    yield seen


def _check_rows(txn: "lmdb.Transaction[bytes]") -> Iterator[int]:
    """One step for each logical row."""
    row = checked.get(txn, STATE_KEY)
    state = State() if row is None else records.unpack_state(row)
    digest = history_size = 0
    rows: Counter[int] = Counter()
    tallies: dict[bytes, list[int]] = {}
    stored_tallies: dict[bytes, tuple[int, ...]] = {}
    for name, row in logical_rows(txn):
        digest += _hash(name, row)
        rows[name[0]] += 1
        if name.startswith(b"\x00"):
            if row[0] & EXPIRES and checked.get(txn, expiry_index_key(row)) != name[len(trie.ROOT) :]:
                raise checked.missing(expiry_index_key(row))
        elif name.startswith(MESSAGE):
            message = formats.unpack_message(row)
            _check_message(txn, name[len(MESSAGE) :], message, state.time_ms)
            count(tallies, message)
        elif name.startswith(HISTORY):
            history_size += len(row)
        elif name.startswith(TALLY):
            stored_tallies[name[len(TALLY) :]] = unpack(row)[:3]
        else:
            _check_timer(txn, name, row)
        yield 1
    if state.has_queues:
        _check_tallies(stored_tallies, tallies)
    counted = [rows[table[0]] for table in (b"\x00", MESSAGE, SESSION, HISTORY, TALLY, TOPIC, SCHEDULE, TOKEN)]
    found = Counts(digest & HASH_MASK, history_size, *counted)
    expected = Counts(
        state.digest,
        state.history_size,
        state.keys,
        state.messages,
        state.sessions,
        state.history_rows,
        state.queues,
        state.topics,
        state.schedules,
        state.tokens,
    )
    if found != expected:
        raise Damaged(
            f"the data file is damaged: it holds {found.keys} keys, {found.messages} messages, {found.sessions}"
            f" sessions and {found.history_rows} rows of history, and says {expected.keys}, {expected.messages},"
            f" {expected.sessions} and {expected.history_rows}; its content hash is"
            f" {'right' if found.digest == expected.digest else 'wrong'}"
        )


def _check_tallies(stored: dict[bytes, tuple[int, ...]], counted: dict[bytes, list[int]]) -> None:
    for queue in stored.keys() | counted.keys():
        says, holds = list(stored.get(queue, ())), counted.get(queue, [0, 0, 0])
        if says != holds:
            raise Damaged(
                f"the data file is damaged: queue {queue.decode()!r} holds {holds} messages, leased and dead ones,"
                f" and says {says}"
            )


def _check_message(txn: "lmdb.Transaction[bytes]", message_id: bytes, message: formats.Message, now_ms: int) -> None:
    place = formats.index_key(message_id, message)
    if place is not None and txn.get(place) is None:
        raise checked.missing(place)
    row = checked.get(txn, PAYLOAD + message_id)
    if row is None:
        raise checked.missing(PAYLOAD + message_id)
    if not formats.has_ties(row) or message.state in (formats.DEAD_STATE, formats.DYING_STATE):
        return
    payload = formats.unpack_payload(row)
    group = formats.group_of(payload)
    if group is not None:
        prefix = formats.grouped_prefix(message.queue, group)
        if txn.get(prefix + message_id) is None:
            raise checked.missing(prefix + message_id)
        if (messages.head_of(txn, prefix) == message_id) == (message.state == formats.WAITING_STATE):
            raise checked.damaged(prefix + message_id)
    expires = payload.expires_ms
    if expires and not (message.lease_id and expires <= now_ms):
        timer = timer_key(expires, TTL_TIMER, message_id)
        if txn.get(timer) is None:
            raise checked.missing(timer)


def _check_timer(txn: "lmdb.Transaction[bytes]", name: bytes, row: bytes) -> None:
    """A row of another table has its timer, if it needs one."""
    at_ms = kind = 0
    if name.startswith(DEDUP):
        at_ms, kind = formats.unpack_dedup(row)[1], DEDUP_TIMER
    elif name.startswith(TOPIC):
        at_ms, kind = topic_formats.unpack_topic(row).timer_ms, RETENTION_TIMER
    elif name.startswith(SUBSCRIPTION):
        at_ms, kind = topic_formats.unpack_subscription(row).timer_ms, FILL_TIMER
    timer = timer_key(at_ms, kind, name[1:])
    if at_ms and txn.get(timer) is None:
        raise checked.missing(timer)


def _check_indexes(txn: "lmdb.Transaction[bytes]") -> Iterator[int]:
    """One step for each index row: none that nothing belongs to."""
    for name, key in checked.table(txn, EXPIRY):
        place = trie.locate(txn, key)
        stored = None if place is None else txn.get(place)
        row = None if stored is None else checked.unseal(trie.ROOT + key, stored)
        if row is None or not row[0] & EXPIRES or expiry_index_key(row) != name:
            raise checked.damaged(name)
        yield 1
    for table in INDEXES:
        for name in keys_below(txn, table):
            if not _belongs(txn, table, name):
                raise checked.damaged(name)
            yield 1


def _belongs(txn: "lmdb.Transaction[bytes]", table: bytes, name: bytes) -> bool:
    """Whether something stands behind a row of an index."""
    if table == TIMER:
        return _has_timer(txn, *formats.unpack_timer(name), name)
    message_id = name[-records.MESSAGE_ID_SIZE :]
    row = checked.get(txn, MESSAGE + message_id)
    if row is None:
        return False
    message = formats.unpack_message(row)
    if table != GROUPED:
        return name == formats.index_key(message_id, message)
    if message.state in (formats.DEAD_STATE, formats.DYING_STATE):
        return False
    group = formats.group_of(messages.load_payload(txn, message_id))
    return group is not None and name == formats.grouped_prefix(message.queue, group) + message_id


def _has_timer(txn: "lmdb.Transaction[bytes]", at_ms: int, kind: int, what: bytes, name: bytes) -> bool:
    if kind == TTL_TIMER:
        return messages.load(txn, what) is not None and messages.load_payload(txn, what).expires_ms == at_ms
    if kind == formats.DYING_TIMER:
        message = messages.load(txn, what)
        return message is not None and formats.index_key(what, message) == name
    if kind == formats.REST_TIMER:
        return len(what) == records.STAMP_SIZE
    table = {DEDUP_TIMER: DEDUP, RETENTION_TIMER: TOPIC}.get(kind, SUBSCRIPTION)
    row = checked.get(txn, table + what)
    if row is None:
        return False
    if kind == DEDUP_TIMER:
        return formats.unpack_dedup(row)[1] == at_ms
    if kind == RETENTION_TIMER:
        return topic_formats.unpack_topic(row).timer_ms == at_ms
    subscription = topic_formats.unpack_subscription(row)
    return kind == FILL_TIMER and subscription.filling and subscription.timer_ms == at_ms
