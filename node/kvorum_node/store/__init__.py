"""The replicated state machine on LMDB: keys, sessions, queues, expiry, versionstamps and the content hash."""

from .errors import StoreFault
from .machine import DEFAULT_MAP_SIZE, Store
from .reads import Snapshot
from .records import DATA_VERSION
from .results import ApplyResult, Grant, LeaseInfo
from .validation import check_queue_name, validate

__all__ = [
    "DATA_VERSION",
    "DEFAULT_MAP_SIZE",
    "ApplyResult",
    "Grant",
    "LeaseInfo",
    "Snapshot",
    "Store",
    "StoreFault",
    "check_queue_name",
    "validate",
]
