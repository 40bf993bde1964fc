"""What the stock KV Connect server says where it refuses a request, word for word.

Programs see these texts within `KV Connect failed to call '<url>' (status=400 Bad Request): <text>`, and some compare
them. Our own messages say more (which part, which limit, how much it was) and go to everybody else. The texts of sums
and of mutations on the wrong type stand beside the arithmetic, in `kvorum_node.store.sums`: apply answers with them.
"""

from typing import Final

KEY_TOO_LARGE: Final = "A key exceeds the key size limit."
VALUE_TOO_LARGE: Final = "A value exceeds the value size limit."
TOO_MANY_CHECKS: Final = "Too many checks included in atomic write."
TOO_MANY_MUTATIONS: Final = "Too many mutations / enqueues included in atomic write."
TOTAL_TOO_LARGE: Final = "The total size of the atomic write is too large."
TOO_MANY_RANGES: Final = "Too many read ranges requested in one read request."
TOO_MANY_ENTRIES: Final = "The total number of entries requested across read ranges in the read request is too large."
BAD_LIMIT: Final = "The read range limit of the snapshot read request is invalid."
TOO_MANY_WATCHED: Final = "Too many keys watched in a single watch request."
TOO_MANY_INTERVALS: Final = "Too many backoff intervals for a single queue message."
INTERVAL_TOO_LONG: Final = "A backoff interval exceeds the maximum allowed backoff interval."
TOO_MANY_DEAD_LETTER_KEYS: Final = "Too many dead letter keys for a single queue message."
BAD_DEADLINE: Final = "Invalid mutation enqueue deadline."
BAD_VERSIONSTAMP: Final = "Invalid versionstamp."
BAD_MUTATION: Final = "Invalid mutation kind or arguments."
BAD_EXPIRY: Final = "Invalid mutation expire at."
UNAVAILABLE: Final = "The server is temporarially unavailable, try again later."
"""Spelt as there."""

LIMITS: Final = {
    "MAX_WRITE_KEY_SIZE": KEY_TOO_LARGE,
    "MAX_READ_KEY_SIZE": KEY_TOO_LARGE,
    "MAX_VALUE_SIZE": VALUE_TOO_LARGE,
    "MAX_CHECKS": TOO_MANY_CHECKS,
    "MAX_MUTATIONS": TOO_MANY_MUTATIONS,
    "MAX_TOTAL_WRITE_SIZE": TOTAL_TOO_LARGE,
    "MAX_ENTRY_SIZE": TOTAL_TOO_LARGE,
    "MAX_READ_RANGES": TOO_MANY_RANGES,
    "MAX_READ_ENTRIES": TOO_MANY_ENTRIES,
    "MAX_WATCHED_KEYS": TOO_MANY_WATCHED,
    "MAX_ENQUEUE_DELAY": BAD_DEADLINE,
    "MAX_BACKOFF_STEPS": TOO_MANY_INTERVALS,
    "MAX_BACKOFF_INTERVAL": INTERVAL_TOO_LONG,
    "MAX_UNDELIVERED_KEYS": TOO_MANY_DEAD_LETTER_KEYS,
    "MAX_EXPIRE_IN": BAD_EXPIRY,
}
"""By the names of `kvorum.limits`, which is what `LimitExceeded.limit` holds; for docs/limits.md."""
