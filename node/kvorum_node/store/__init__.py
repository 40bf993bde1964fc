"""The replicated state machine on LMDB: keys, sessions, queues, expiry, versionstamps and the content hash."""

from .errors import Damaged, StoreFault
from .home import Space
from .machine import DEFAULT_MAP_SIZE, Store
from .reads import Snapshot
from .records import DATA_VERSION
from .results import ApplyResult, Grant, LeaseInfo
from .validation import check_queue_name, validate

__all__ = [
    "DATA_VERSION",
    "DEFAULT_MAP_SIZE",
    "ApplyResult",
    "Damaged",
    "Grant",
    "LeaseInfo",
    "Snapshot",
    "Space",
    "Store",
    "StoreFault",
    "check_queue_name",
    "validate",
]
