"""Every limit of kvorum, in one place: errors and documentation quote these names.

The values are Deno KV's; where its runtime and its server differ, the larger one is accepted, and where the Python API
goes beyond Deno the comment says so. Sizes are bytes, times are milliseconds.

`docs/limits.md` is made from this file by `scripts/limits`: the headings are the comments that begin with dashes, the
text of each limit is the string below it.
"""

from typing import Final

# ---- Keys, values and atomic writes

MAX_WRITE_KEY_SIZE: Final = 2_048
"""Encoded key of a check or mutation."""
MAX_READ_KEY_SIZE: Final = 2_049
"""Encoded bound of a read range: one more, so that the largest key can be read with `key + 00` as its end."""
MAX_VALUE_SIZE: Final = 65_536
"""Encoded value, its V8 header included; also a queue payload."""
MAX_VALUE_DEPTH: Final = 200
"""Containers within containers of a value, the outermost one included."""
MAX_RARE_VALUE_DEPTH: Final = 64
"""The same for a value that is cyclic or has parts of `v8serialize.jstypes`; reading them takes a deep stack."""
MAX_CHECKS: Final = 100
"""Checks of one atomic write; Deno's server allows 10."""
MAX_MUTATIONS: Final = 1_000
"""Mutations, enqueues and settles of one atomic write together."""
MAX_TOTAL_WRITE_SIZE: Final = 819_200
"""Keys, values, payloads and undelivered keys of one atomic write, 4 bytes for each backoff step. Deno's runtime allows
81,920 bytes of them for keys; its server, like this one, has no limit for keys alone."""
MAX_BIGINT_BYTES: Final = 255
"""Magnitude of an integer key part."""
MAX_EXPIRE_IN: Final = 1_000_000_000_000_000
"""Some 31,000 years, which Deno takes too: programs say "never" by a large number."""

# ---- Reads and watches

MAX_READ_RANGES: Final = 10
"""Keys and ranges of one read."""
MAX_READ_ENTRIES: Final = 1_000
"""Rows that one read may ask for, over all its ranges."""
DEFAULT_BATCH_SIZE: Final = 100
"""Rows of a list's batch, if neither `batch_size` nor `limit` is given."""
MAX_DEFAULT_BATCH_SIZE: Final = 500
"""Rows of a list's batch, if `batch_size` is not given and `limit` is larger."""
MAX_WATCHED_KEYS: Final = 10
"""Keys of one watch."""

# ---- Queues

MAX_ENQUEUE_DELAY: Final = 366 * 86_400_000
"""A year; Deno allows 30 days."""
MAX_BACKOFF_STEPS: Final = 64
"""Deno's runtime allows 5, its server 10."""
MAX_BACKOFF_INTERVAL: Final = 3_600_000
"""One step of a backoff schedule: an hour."""
DEFAULT_BACKOFF: Final = (100, 1_000, 5_000, 30_000, 60_000)
"""The backoff schedule of a message that brings none."""
MAX_UNDELIVERED_KEYS: Final = 10
"""Keys under which a message that could not be delivered is stored."""
MAX_QUEUE_NAME_SIZE: Final = 256
"""A queue's name in UTF-8."""
MAX_REASON_SIZE: Final = 1_024
"""A settle's reason in UTF-8; longer ones are cut by the client."""
DEFAULT_LEASE: Final = 30_000
"""How long a message stays in the hands of a consumer that was lost."""
MAX_CREDITS: Final = 1_000
"""Messages in the hands of one consumer."""

# ---- Sessions, entries and frames

SESSION_WINDOW: Final = 4_096
"""Writes of one session whose results may be stored at a time."""
SESSION_IDLE: Final = 3_600_000
"""A session without traffic for this long is closed."""
MAX_SESSIONS: Final = 100_000
"""Open sessions of a cluster."""
MAX_ENTRY_COMMITS: Final = 4_096
"""Commits in one Raft entry."""
MAX_ENTRY_SIZE: Final = 1_048_576
"""Bytes of one Raft entry; one larger commit stands alone."""
MAX_FRAME_SIZE: Final = 4_194_304
"""Bytes of one stream frame, either way."""
MAX_FRAME_OPERATIONS: Final = 1_000
"""Writes and reads in one stream frame."""
SWEEP_LIMIT: Final = 1_000
"""Keys that one sweep deletes at most."""
MAX_DELETED_RANGE_KEYS: Final = 1_000
"""Keys that all ranges deleted in one atomic write may hold together."""
MAX_HISTORY_SIZE: Final = 67_108_864
"""Bytes of the change history that is kept for watches of ranges: keys, values and a little around them."""
MAX_HISTORY_ROWS: Final = 262_144
"""Rows of it. An entry, which holds the commits of many callers, takes one for each 8,000 bytes of its changes."""

# ---- Calls

DEFAULT_TIMEOUT: Final = 10_000
"""Deadline of a call that names none."""
