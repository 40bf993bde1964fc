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
"""Rows of a list's first batch, if neither `batch_size` nor `limit` is given; later ones have twice as many each time,
at most MAX_READ_ENTRIES."""
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
MIN_LEASE: Final = 500
"""Shortest lease of a queue."""
MAX_LEASE: Final = 43_200_000
"""Longest lease of a queue, and longest extension of a message's: 12 hours."""
MAX_ATTEMPTS: Final = 1_000
"""Attempts that a queue's policy may allow."""
MAX_BATCH: Final = 1_000
"""Messages of one batch, sent or received."""
DEFAULT_BATCH: Final = 10
"""Messages that a batch consumer takes at a time."""
MAX_BATCH_WAIT: Final = 60_000
"""How long a batch may wait for more messages."""
DEFAULT_BATCH_WAIT: Final = 5_000
"""How long a batch waits for more messages."""
MAX_RETENTION: Final = 366 * 86_400_000
"""How long a queue or a message may say that it is kept undone."""
MAX_BACKLOG: Final = 1_000_000_000
"""Largest backlog that a queue's policy may name."""
MAX_GROUP_SIZE: Final = 128
"""A message group's name in UTF-8."""
MAX_DEDUP_ID_SIZE: Final = 128
"""A deduplication id in UTF-8."""
MAX_DEDUP_WINDOW: Final = 31 * 86_400_000
"""How long a deduplication id may be remembered."""
MAX_HEADERS_SIZE: Final = 4_096
"""Headers of a message, encoded."""
MAX_FAILURES: Final = 10
"""Attempts of a message whose failures are remembered: the first and the last ones."""
MAX_QUEUES: Final = 100_000
"""Queues that are defined or have been used."""
MAX_TOPICS: Final = 10_000
"""Topics."""
MAX_SUBSCRIPTIONS: Final = 256
"""Subscriptions of one topic."""
MAX_COPIES: Final = 10_000
"""Messages that the topics of one atomic write may make of it."""
MAX_TOPIC_SIZE: Final = 67_108_864
"""Bytes that a topic retains for subscriptions that start in the past; the oldest go first."""
MAX_TOPIC_MESSAGES: Final = 100_000
"""Messages that a topic retains."""
MAX_SCHEDULES: Final = 10_000
"""Recurring messages."""
MAX_CRON_SIZE: Final = 256
"""A cron expression, and the name of a time zone."""
MAX_CATCH_UP: Final = 1_000
"""Missed ticks of one schedule that are made up for; the oldest are left out."""
DEFAULT_GRACE: Final = 60_000
"""A tick that is later than this is missed."""
MAX_PEEK: Final = 1_000
"""Messages, queues, topics or schedules on one page of a list."""
QUEUE_CHUNK: Final = 256
"""Messages that one command purges, removes or requeues."""

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
MAX_UNREAD_SIZE: Final = 134_217_728
"""Bytes of answers that a node holds for all gRPC clients that have not taken them yet, unless its setting
`unread_answers_mb` says otherwise. Near it each call gets less at a time, at it reads are refused (`Overloaded`), and
calls that take nothing are ended."""
MAX_UNFINISHED_SIZE: Final = 268_435_456
"""Bytes of gRPC clients' requests that a node holds while they have come only in part, unless its setting
`unfinished_requests_mb` says otherwise. Beyond half of it calls of which nothing was heard for long are ended, beyond
all of it the connections that hold most are shut."""
SWEEP_LIMIT: Final = 1_000
"""Keys that one sweep deletes at most."""
MAX_DELETED_RANGE_KEYS: Final = 1_000
"""Keys that all ranges deleted in one atomic write may hold together."""
MAX_HISTORY_SIZE: Final = 67_108_864
"""Bytes of the change history that is kept for watches of ranges: keys, values and a little around them."""
MAX_HISTORY_ROWS: Final = 262_144
"""Rows of it. An entry, which holds the commits of many callers, takes one for each 8,000 bytes of its changes."""

# ---- Tokens

MAX_TOKENS: Final = 1_000
"""Tokens of a cluster."""
MAX_SCOPES: Final = 64
"""Key prefixes and queues that a token names."""
MAX_TOKEN_SIZE: Final = 16_384
"""Bytes of its scopes."""
MAX_TOKEN_NAME_SIZE: Final = 128
"""Name of a token."""

# ---- Calls

DEFAULT_TIMEOUT: Final = 10_000
"""Deadline of a call that names none."""
