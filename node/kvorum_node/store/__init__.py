"""The replicated state machine on LMDB: keys, sessions, queues, expiry, versionstamps and the content hash."""

from .command_validation import validate_command
from .errors import Damaged, StoreFault
from .home import Space
from .machine import DEFAULT_MAP_SIZE, Store
from .mutations import BEYOND_VERSION_1
from .queues.reads import queue_cursor
from .reads import Snapshot, make_entry, write_bare_entry, write_entry
from .records import DATA_VERSION
from .results import ApplyResult, Denied, Grant, Leased, LeaseInfo, QueueFacts, Unfinished
from .validation import check_queue_name, validate

__all__ = [
    "BEYOND_VERSION_1",
    "DATA_VERSION",
    "DEFAULT_MAP_SIZE",
    "ApplyResult",
    "Damaged",
    "Denied",
    "Grant",
    "LeaseInfo",
    "Leased",
    "QueueFacts",
    "Snapshot",
    "Space",
    "Store",
    "StoreFault",
    "Unfinished",
    "check_queue_name",
    "make_entry",
    "queue_cursor",
    "validate",
    "validate_command",
    "write_bare_entry",
    "write_entry",
]
