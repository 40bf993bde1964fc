"""Formats of keys and rows in the state environment. Data formats 2 to 5. Those of queues are in `queues.formats`.

One LMDB tree holds everything. User keys live below namespaces whose first byte is 00 (see `trie`), all else below a
table byte of 80 and up, so the two never meet. One tree and not a named database for each table: every tree that an
entry touches costs its own path of dirty pages at commit. Integers are big-endian, so that byte order is numeric order.
There is no version byte in the rows: the folder and the state row carry the format's version, and no row of another
version is ever read. What is described here is the row without its checksum (see `checked`), which all rows have but
those of INDEXES, which are empty, and the uuid.

Rows are packed by hand and not as protobuf, because the content hash covers their bytes, and protobuf promises no
canonical form.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

DATA_FORMAT: Final = 2
"""Format of everything in this module and of the content hash."""
HISTORY_FORMAT: Final = 3
"""Format 2 with a change history, of which the state row says more. A folder stays in format 2 until the first entry
that writes history, which no older program could have applied; from then on an older program, which would go on without
writing any, must not open it, and by the number in the state row it does not."""
QUEUE_FORMAT: Final = 4
"""Format 3 with queues that have policies, counters, groups and dead letters. It begins with the first entry of data
version 3, for the same reason."""
AUTH_FORMAT: Final = 5
"""Format 4 with tokens. It begins with the first command about them, all of which are of data version 4."""
KNOWN_FORMATS: Final = (DATA_FORMAT, HISTORY_FORMAT, QUEUE_FORMAT, AUTH_FORMAT)
DATA_VERSION: Final = 4
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
AUTH: Final = b"\x94"
TOKEN: Final = b"\x95"
OWNER: Final = b"\x96"
PAYLOAD: Final = b"\xa0"
MESSAGE: Final = b"\xa1"
READY: Final = b"\xa2"
LEASED: Final = b"\xa3"
FAILURES: Final = b"\xa4"
GROUPED: Final = b"\xa5"
DEAD: Final = b"\xa6"
QUEUE: Final = b"\xa7"
TALLY: Final = b"\xa8"
DEDUP: Final = b"\xa9"
TIMER: Final = b"\xaa"
TOPIC: Final = b"\xab"
SUBSCRIPTION: Final = b"\xac"
RETAINED: Final = b"\xad"
SCHEDULE: Final = b"\xae"
EXPIRY: Final = b"\xb0"

HASHED_TABLES: Final = (
    SESSION, RESULT, QUARANTINED, HISTORY, AUTH, TOKEN, OWNER, PAYLOAD, MESSAGE,
    FAILURES, QUEUE, TALLY, DEDUP, TOPIC, SUBSCRIPTION, RETAINED, SCHEDULE,
)  # fmt: skip
"""Tables of logical rows. Besides them the hash covers the user keys and the cluster row; READY, LEASED, GROUPED, DEAD,
TIMER and EXPIRY follow from the others."""
INDEXES: Final = (READY, LEASED, GROUPED, DEAD, TIMER)
"""Tables whose rows are empty."""

STATE_KEY: Final = META + b"state"
CLUSTER_KEY: Final = META + b"cluster"
UUID_KEY: Final = META + b"uuid"
AUTH_KEY: Final = AUTH
"""Whether tokens are asked for: one byte, 1 or 0. Absent = no."""

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
    has_queues: bool = False
    """An entry of data version 3 was applied."""
    queues: int = 0
    """Rows of TALLY."""
    topics: int = 0
    schedules: int = 0
    has_auth: bool = False
    """A command about tokens was applied, which is of data version 4."""
    tokens: int = 0


_STATE: Final = struct.Struct(">HQQ16sQQQQ")
_HISTORY_STATE: Final = struct.Struct(">QQ10s")
_QUEUE_STATE: Final = struct.Struct(">QQQ")
_AUTH_STATE: Final = struct.Struct(">Q")


def pack_state(state: State) -> bytes:
    later = HISTORY_FORMAT if state.oldest else DATA_FORMAT
    if state.has_queues:
        later = AUTH_FORMAT if state.has_auth else QUEUE_FORMAT
    row = _STATE.pack(
        later,
        state.applied_index,
        state.time_ms,
        state.digest.to_bytes(16, "big"),
        state.next_namespace,
        state.keys,
        state.messages,
        state.sessions,
    )
    if state.oldest:
        row += _HISTORY_STATE.pack(state.history_rows, state.history_size, state.oldest)
    if not state.has_queues:
        return row
    row += _QUEUE_STATE.pack(state.queues, state.topics, state.schedules)
    return row + _AUTH_STATE.pack(state.tokens) if state.has_auth else row


def state_format(row: bytes) -> int:
    """The format version of a state row of any version."""
    return int.from_bytes(row[:2], "big")


def unpack_state(row: bytes) -> State:
    version, index, time_ms, digest, namespace, keys, messages, sessions = _STATE.unpack_from(row)
    state = State(index, time_ms, int.from_bytes(digest, "big"), namespace, keys, messages, sessions)
    if version == DATA_FORMAT:
        return state
    rows, size, oldest = _HISTORY_STATE.unpack_from(row, _STATE.size)
    state = state._replace(history_rows=rows, history_size=size, oldest=oldest)
    if version == HISTORY_FORMAT:
        return state
    at = _STATE.size + _HISTORY_STATE.size
    queues, topics, schedules = _QUEUE_STATE.unpack_from(row, at)
    state = state._replace(has_queues=True, queues=queues, topics=topics, schedules=schedules)
    if version == QUEUE_FORMAT:
        return state
    return state._replace(has_auth=True, tokens=_AUTH_STATE.unpack_from(row, at + _QUEUE_STATE.size)[0])


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
"""Outcome, failing checks, message of a write that was executed and not done. Or DONE, in place of the checks the
number of keys that its ranges deleted and then the indexes of independent settles that were refused, and for message
what `pack_duplicates` makes."""
StoredResult = tuple[int, int, int, Refusal | None]
"""Seq, CRC-32 of the operation, number of the commit in its entry, and None if it was done and has nothing to say. A
plain tuple: one is made for each write, and a named one takes ten times as long."""

_RESULTS: Final = struct.Struct(">QHH")
_DONE: Final = struct.Struct(">QIH")
_REFUSAL: Final = struct.Struct(">BHH")


_DUPLICATE: Final = struct.Struct(">H12s")


def pack_duplicates(duplicates: Iterable[tuple[int, bytes]]) -> str:
    """Indexes of enqueues that were not taken, and the messages that have their deduplication ids."""
    return b"".join(_DUPLICATE.pack(*duplicate) for duplicate in duplicates).hex()


def unpack_duplicates(text: str) -> Iterator[tuple[int, bytes]]:
    return _DUPLICATE.iter_unpack(bytes.fromhex(text))


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
