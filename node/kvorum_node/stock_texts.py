"""What the stock KV Connect server says where it refuses a request, word for word.

Programs see these texts within `KV Connect failed to call '<url>' (status=400 Bad Request): <text>`, and some compare
them. Our own messages say more (which part, which limit, how much it was) and go to everybody else. The texts of sums
and of mutations on the wrong type stand beside the arithmetic, in `kvorum_node.store.sums`: apply answers with them.
"""

from typing import Final

from kvorum.errors import InvalidArgument, InvalidValue, LimitExceeded

KEY_TOO_LARGE: Final = "A key exceeds the key size limit."
VALUE_TOO_LARGE: Final = "A value exceeds the value size limit."
TOO_MANY_CHECKS: Final = "Too many checks included in atomic write."
TOO_MANY_MUTATIONS: Final = "Too many mutations / enqueues included in atomic write."
WRITE_TOO_LARGE: Final = "The total size of the atomic write is too large."
TOO_MANY_RANGES: Final = "Too many read ranges requested in one read request."
TOO_MANY_ENTRIES: Final = "The total number of entries requested across read ranges in the read request is too large."
RANGE_LIMIT: Final = "The read range limit of the snapshot read request is invalid."
TOO_MANY_WATCHED_KEYS: Final = "Too many keys watched in a single watch request."
ENQUEUE_DEADLINE: Final = "Invalid mutation enqueue deadline."
TOO_MANY_BACKOFF_STEPS: Final = "Too many backoff intervals for a single queue message."
BACKOFF_INTERVAL: Final = "A backoff interval exceeds the maximum allowed backoff interval."
TOO_MANY_UNDELIVERED_KEYS: Final = "Too many dead letter keys for a single queue message."
VERSIONSTAMP: Final = "Invalid versionstamp."
MUTATION: Final = "Invalid mutation kind or arguments."
EXPIRE_AT: Final = "Invalid mutation expire at."
READ_ONLY: Final = "This database is read only."
INTERNAL: Final = "An internal server error occurred."
UNAVAILABLE: Final = "The server is temporarially unavailable, try again later."
"""Spelt as there."""
PROTOCOL_TOO_OLD: Final = "The server requires at least protocol version 2. Use Deno 1.38.0 or newer."
NO_PROTOCOL: Final = "The server could not negotiate a protocol version. The server requires protocol version 2 or 3."

LIMITS: Final = {
    "MAX_WRITE_KEY_SIZE": KEY_TOO_LARGE,
    "MAX_READ_KEY_SIZE": KEY_TOO_LARGE,
    "MAX_VALUE_SIZE": VALUE_TOO_LARGE,
    "MAX_CHECKS": TOO_MANY_CHECKS,
    "MAX_MUTATIONS": TOO_MANY_MUTATIONS,
    "MAX_TOTAL_WRITE_SIZE": WRITE_TOO_LARGE,
    "MAX_ENTRY_SIZE": WRITE_TOO_LARGE,
    "MAX_READ_RANGES": TOO_MANY_RANGES,
    "MAX_READ_ENTRIES": TOO_MANY_ENTRIES,
    "MAX_WATCHED_KEYS": TOO_MANY_WATCHED_KEYS,
    "MAX_ENQUEUE_DELAY": ENQUEUE_DEADLINE,
    "MAX_BACKOFF_STEPS": TOO_MANY_BACKOFF_STEPS,
    "MAX_BACKOFF_INTERVAL": BACKOFF_INTERVAL,
    "MAX_UNDELIVERED_KEYS": TOO_MANY_UNDELIVERED_KEYS,
    "MAX_EXPIRE_IN": EXPIRE_AT,
}
"""By the names of `kvorum.limits`, which is what `LimitExceeded.limit` holds."""


def stock_text(error: InvalidArgument) -> str:
    """The stock text for what `store.validate` or a limit refused; our own message where the stock server has none."""
    if isinstance(error, LimitExceeded):
        return LIMITS.get(error.limit, str(error))
    if isinstance(error, InvalidValue):
        return error.problem  # of a sum's operand: the text without the place, as apply words it
    return str(error)
