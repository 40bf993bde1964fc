"""Formats of keys and rows in the state environment. Data formats 2 and 3.

One LMDB tree holds everything. User keys live below namespaces whose first byte is 00 (see `trie`), all else below a
table byte of 80 and up, so the two never meet. One tree and not a named database for each table: every tree that an
entry touches costs its own path of dirty pages at commit. Integers are big-endian, so that byte order is numeric order.
There is no version byte in the rows: the folder and the state row carry the format's version, and no row of another
version is ever read. What is described here is the row without its checksum (see `checked`), which all rows have but
those of READY and LEASED, which are empty, and the uuid.

Rows are packed by hand and not as protobuf, because the content hash covers their bytes, and protobuf promises no
canonical form.
"""

import struct
from typing import Final, NamedTuple

DATA_FORMAT: Final = 2
"""Format of everything in this module and of the content hash."""
HISTORY_FORMAT: Final = 3
"""Format 2 with a change history, of which the state row says more. A folder stays in format 2 until the first entry
that writes history, which no older program could have applied; from then on an older program, which would go on without
writing any, must not open it, and by the number in the state row it does not."""
KNOWN_FORMATS: Final = (DATA_FORMAT, HISTORY_FORMAT)
DATA_VERSION: Final = 2
"""Newest apply semantics known; an entry that relies on newer ones stops the node.

Whatever changes what an entry does to the state needs a new number, and the old way for entries with the old one. That
includes the constants of `kvorum.limits` that apply itself uses; those that only the leader's validation uses may
change freely."""

# ---- tables

META: Final = b"\x80"
SESSION: Final = b"\x90"
RESULT: Final = b"\x91"
QUARANTINED: Final = b"\x92"
HISTORY: Final = b"\x93"
PAYLOAD: Final = b"\xa0"
MESSAGE: Final = b"\xa1"
READY: Final = b"\xa2"
LEASED: Final = b"\xa3"
EXPIRY: Final = b"\xb0"

HASHED_TABLES: Final = (SESSION, RESULT, QUARANTINED, HISTORY, PAYLOAD, MESSAGE)
"""Tables of logical rows. Besides them the hash covers the user keys and the cluster row; READY, LEASED and EXPIRY
follow from the others."""

STATE_KEY: Final = META + b"state"
CLUSTER_KEY: Final = META + b"cluster"
UUID_KEY: Final = META + b"uuid"

STAMP_SIZE: Final = 10
MESSAGE_ID_SIZE: Final = 12
MAX_DURATION: Final = 1 << 53
"""Milliseconds. A bound of the format, far above any limit: times stay below 2^64."""
MAX_NUMBER: Final = 0xFFFF
"""Highest number of a commit in its entry, and of a mutation in its commit."""

HASH_MASK: Final = (1 << 128) - 1


# ---- the state row


class State(NamedTuple):
    """Where the state stands; rewritten by each entry, in the same transaction as its effects."""

    applied_index: int = 0
    time_ms: int = 0
    digest: int = 0
    """Content hash, see `rows`."""
    next_namespace: int = 1
    keys: int = 0
    messages: int = 0
    sessions: int = 0
    history_rows: int = 0
    history_size: int = 0
    """Bytes of the rows of history."""
    oldest: bytes = b""
    """10 bytes: the versionstamp behind which every change is in the history; empty = there is no history yet."""


_STATE: Final = struct.Struct(">HQQ16sQQQQ")


_HISTORY_STATE: Final = struct.Struct(">QQ10s")


def pack_state(state: State) -> bytes:
    row = _STATE.pack(
        HISTORY_FORMAT if state.oldest else DATA_FORMAT,
        state.applied_index,
        state.time_ms,
        state.digest.to_bytes(16, "big"),
        state.next_namespace,
        state.keys,
        state.messages,
        state.sessions,
    )
    if not state.oldest:
        return row
    return row + _HISTORY_STATE.pack(state.history_rows, state.history_size, state.oldest)


def state_format(row: bytes) -> int:
    """The format version of a state row of any version."""
    return int.from_bytes(row[:2], "big")


def unpack_state(row: bytes) -> State:
    version, index, time_ms, digest, namespace, keys, messages, sessions = _STATE.unpack_from(row)
    history = _HISTORY_STATE.unpack_from(row, _STATE.size) if version == HISTORY_FORMAT else ()
    return State(index, time_ms, int.from_bytes(digest, "big"), namespace, keys, messages, sessions, *history)


def pack_cluster(cluster_id: bytes, stamp_base: int) -> bytes:
    return cluster_id + stamp_base.to_bytes(8, "big")


def unpack_cluster(row: bytes) -> tuple[bytes, int]:
    return row[:16], int.from_bytes(row[16:], "big")


# ---- rows of user keys: encoding (| EXPIRES (| TOUCHED)), versionstamp, [expiry time, number of the mutation,
# [stamp of the touch]], value

EXPIRES: Final = 0x10
TOUCHED: Final = 0x20
"""Besides EXPIRES: the expiry was set by a later commit than the one that wrote the value, and keeps that one's
stamp. A touch keeps the versionstamp of the row, so two keys of one commit may be touched to one time by the first
mutations of two others: only the commit that touches tells them apart in the index."""
_VALUE_AT: Final = 1 + STAMP_SIZE
_EXPIRING_VALUE_AT: Final = _VALUE_AT + 10
_TOUCHED_VALUE_AT: Final = _EXPIRING_VALUE_AT + STAMP_SIZE
_ENCODING: Final = 0x0F


def expiry_index_key(row: bytes) -> bytes:
    """The index key of an expiring row: expiry time, then stamp and number of the mutation that set it."""
    return EXPIRY + row[11:19] + (row[21:31] if row[0] & TOUCHED else row[1:11]) + row[19:21]


def expiry_of(row: bytes) -> int:
    """When an expiring row expires, Unix milliseconds."""
    return int.from_bytes(row[11:19], "big")


def touched_row(row: bytes, expire_at_ms: int, number: int, stamp: bytes) -> bytes:
    """A row with the expiry that mutation `number` of the commit `stamp` gives to it."""
    encoding, value = value_of(row)
    expiry = expire_at_ms.to_bytes(8, "big") + number.to_bytes(2, "big") + stamp
    return bytes((encoding | EXPIRES | TOUCHED,)) + row[1:11] + expiry + value


def lasting_row(row: bytes) -> bytes:
    """A row without its expiry."""
    encoding, value = value_of(row)
    return bytes((encoding,)) + row[1:11] + value


def stamp_of(row: bytes) -> bytes:
    return row[1:11]


def value_of(row: bytes) -> tuple[int, bytes]:
    """Encoding and value."""
    kind = row[0]
    if kind & EXPIRES:
        return kind & _ENCODING, row[_TOUCHED_VALUE_AT if kind & TOUCHED else _EXPIRING_VALUE_AT :]
    return kind, row[_VALUE_AT:]


# ---- commits that were skipped: QUARANTINED ‖ index of the entry ‖ number → nothing


def quarantined_key(index: int, number: int) -> bytes:
    return QUARANTINED + index.to_bytes(8, "big") + number.to_bytes(2, "big")


# ---- sessions: SESSION ‖ id → lowest seq that may come, time of opening, name

_SESSION: Final = struct.Struct(">QQ")


def pack_session(ack_below: int, opened_at_ms: int, client: bytes) -> bytes:
    return _SESSION.pack(ack_below, opened_at_ms) + client


def unpack_session(row: bytes) -> tuple[int, int, bytes]:
    ack_below, opened_at_ms = _SESSION.unpack_from(row)
    return ack_below, opened_at_ms, row[_SESSION.size :]


# ---- results: RESULT ‖ session id ‖ stamp prefix → the results of one session in one entry


Refusal = tuple[int, tuple[int, ...], str]
"""Outcome, failing checks, message of a write that was executed and not done. Or DONE, the number of keys that its
ranges deleted in place of the checks, and no message."""
StoredResult = tuple[int, int, int, Refusal | None]
"""Seq, CRC-32 of the operation, number of the commit in its entry, and None if it was done and has nothing to say. A
plain tuple: one is made for each write, and a named one takes ten times as long."""

_RESULTS: Final = struct.Struct(">QHH")
_DONE: Final = struct.Struct(">QIH")
_REFUSAL: Final = struct.Struct(">BHH")


def pack_results(results: list[StoredResult]) -> bytes:
    """Done results take 14 bytes each and come first; a refused one also holds its outcome, failing checks and
    message."""
    pack = _DONE.pack
    done = [pack(seq, digest, number) for seq, digest, number, refusal in results if refusal is None]
    refused: list[bytes] = []
    for seq, digest, number, refusal in results:
        if refusal is not None:
            outcome, failed, message = refusal
            text = message.encode()
            head = pack(seq, digest, number) + _REFUSAL.pack(outcome, len(failed), len(text))
            refused.append(head + struct.pack(f">{len(failed)}H", *failed) + text)
    highest = max(result[0] for result in results)
    return b"".join((_RESULTS.pack(highest, len(done), len(refused)), *done, *refused))


def highest_seq(row: bytes) -> int:
    """The highest seq in a row of results."""
    return int.from_bytes(row[:8], "big")


def unpack_results(row: bytes) -> list[StoredResult]:
    _, done, refused = _RESULTS.unpack_from(row)
    at = _RESULTS.size + done * _DONE.size
    results: list[StoredResult] = []
    for seq, digest, number in _DONE.iter_unpack(row[_RESULTS.size : at]):
        results.append((seq, digest, number, None))
    for _ in range(refused):
        seq, digest, number = _DONE.unpack_from(row, at)
        outcome, count, size = _REFUSAL.unpack_from(row, at + _DONE.size)
        at += _DONE.size + _REFUSAL.size
        failed = struct.unpack_from(f">{count}H", row, at)
        at += 2 * count
        results.append((seq, digest, number, (outcome, failed, row[at : at + size].decode())))
        at += size
    return results


# ---- messages: PAYLOAD ‖ id → what never changes; MESSAGE ‖ id → the small row that each delivery rewrites


class Payload(NamedTuple):
    enqueued_at_ms: int
    backoff: tuple[int, ...]
    """Milliseconds before each retry."""
    undelivered_keys: tuple[bytes, ...]
    payload: bytes


_PAYLOAD: Final = struct.Struct(">QHH")


def pack_payload(payload: Payload) -> bytes:
    steps, keys = payload.backoff, payload.undelivered_keys
    parts = [_PAYLOAD.pack(payload.enqueued_at_ms, len(steps), len(keys)), struct.pack(f">{len(steps)}I", *steps)]
    for key in keys:
        parts += (len(key).to_bytes(2, "big"), key)
    parts.append(payload.payload)
    return b"".join(parts)


def unpack_payload(row: bytes) -> Payload:
    enqueued_at_ms, steps, count = _PAYLOAD.unpack_from(row)
    at = _PAYLOAD.size + 4 * steps
    backoff = struct.unpack_from(f">{steps}I", row, _PAYLOAD.size)
    keys = []
    for _ in range(count):
        end = at + 2 + int.from_bytes(row[at : at + 2], "big")
        keys.append(row[at + 2 : end])
        at = end
    return Payload(enqueued_at_ms, backoff, tuple(keys), row[at:])


class Message(NamedTuple):
    queue: bytes
    """UTF-8 name."""
    due_ms: int
    """When it became or becomes ready; kept while it is leased, so that a returned message goes back to its old
    place."""
    attempt: int
    """Leases so far that were not given back."""
    lease_id: bytes = b""
    """12 bytes; empty = ready or scheduled."""
    consumer: int = 0
    session: bytes = b""


_MESSAGE: Final = struct.Struct(">BIQH")
_LEASE: Final = struct.Struct(">12sQ")


def pack_message(message: Message) -> bytes:
    leased = bool(message.lease_id)
    row = _MESSAGE.pack(leased, message.attempt, message.due_ms, len(message.queue)) + message.queue
    return row + _LEASE.pack(message.lease_id, message.consumer) + message.session if leased else row


def unpack_message(row: bytes) -> Message:
    leased, attempt, due_ms, size = _MESSAGE.unpack_from(row)
    at = _MESSAGE.size + size
    queue = row[_MESSAGE.size : at]
    if not leased:
        return Message(queue, due_ms, attempt)
    lease_id, consumer = _LEASE.unpack_from(row, at)
    return Message(queue, due_ms, attempt, lease_id, consumer, row[at + _LEASE.size :])


def ready_prefix(queue: bytes) -> bytes:
    """The name's length stands first, so that no queue's rows lie between those of another. 279 bytes at most with due
    time and id."""
    return READY + len(queue).to_bytes(2, "big") + queue


def ready_key(message_id: bytes, message: Message) -> bytes:
    return ready_prefix(message.queue) + message.due_ms.to_bytes(8, "big") + message_id
